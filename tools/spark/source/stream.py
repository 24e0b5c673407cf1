"""Streaming reads. Offsets as those of Spark's source for Kafka, with the ids of topics (`tools.spark.source.offsets`).

The log holds no state for a query: a restarted one goes on exactly where its checkpoint says. Records that retention
removes before they were read are a loss (failOnDataLoss), and so is a topic that is gone, or that starts over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tools.spark.source.data_source import Fields, TaskPartition, read_partition
from tools.spark.source.offsets import Offsets, Positions
from tools.spark.source.options import Options
from tools.spark.source.plan import Key, Planner, lost

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger("quintlog.spark")
FIRST_SEQ = 1


def shared(waiting: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """At most `limit` of what waits, shared among partitions in proportion to it.

    A share is rounded down; what is left over goes to the first partitions that still have something, so that any
    limit makes progress.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {key: limit * amount // total for key, amount in waiting.items()}
    left = limit - sum(shares.values())
    for key in sorted(waiting):
        more = min(left, waiting[key] - shares[key])
        shares[key] += more
        left -= more
    return shares


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans each trigger on the driver, reads on executors."""

    def __init__(self, options: Options, fields: Fields) -> None:
        self.options = options
        self.fields = fields
        self._planner: Planner | None = None
        self._target: Positions | None = None
        self._last_batch_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None, "_target": None}

    def _refreshed(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options)
        self._planner.refresh()
        return self._planner

    def initialOffset(self) -> Offsets:
        """Where a query without a checkpoint begins. A topic that is named may come later."""
        planner = self._refreshed()
        for topic in sorted(planner.missing()):
            LOG.warning("no topic %s with records in %s yet: waiting for it", topic, self.options.where)
        starts = {key: planner.resolve(key, self.options.start) for key in planner.partitions}
        return Positions(starts, self._ids(planner)).pack()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What stands for the options; `latestOffset` looks at all of them unless it is told to read everything."""
        options = self.options
        if options.rows_per_trigger is not None:
            return ReadMaxRows(options.rows_per_trigger)
        if options.bytes_per_trigger is not None:
            return ReadMaxBytes(options.bytes_per_trigger)
        if options.min_rows_per_trigger is not None:
            return ReadMinRows(options.min_rows_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query: what is committed now."""
        self._target = self._ends(self._refreshed())

    def reportLatestOffset(self) -> Offsets:
        """What is committed, for the query's progress."""
        return self._ends(self._planner or self._refreshed()).pack()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """How far the next batch goes. Partitions that are new since the start are read from their beginning.

        Raises:
            DataLoss: a topic that was read is gone or has started over.
        """
        given = Positions.unpack(start)
        planner = self._refreshed()
        begin = self._begin(planner, given)
        end: Mapping[Key, int] = self._bounded(planner, begin)
        if not isinstance(limit, ReadAllAvailable):
            waiting = self._waiting(planner, begin, end)
            if begin == given.numbers and self._holds_back(waiting):  # else what started over is noted now
                return start
            end = self._limited(planner, begin, end, waiting)
        offsets = Positions(end, {**given.ids, **self._ids(planner)}).pack()
        if offsets != start:
            self._last_batch_s = time.monotonic()
        return offsets

    @staticmethod
    def _ids(planner: Planner) -> dict[str, int]:
        return {topic: part.topic.id for (topic, _), part in planner.partitions.items()}

    def _ends(self, planner: Planner) -> Positions:
        ends = {key: part.committed_seq + 1 for key, part in planner.partitions.items()}
        return Positions(ends, self._ids(planner))

    def _begin(self, planner: Planner, given: Positions) -> dict[Key, int]:
        """Where reading goes on: as given, but at the beginning of what has started over."""
        begin = {}
        for key, number in given.numbers.items():
            part, name = planner.partitions.get(key), f"{key[0]}:{key[1]}"
            if part is None:
                if self.options.wants(*key):
                    lost(self.options, f"{name} is gone; what it had after record {number - 1} is lost")
                else:
                    begin[key] = number
                continue
            begin[key] = number
            if not given.is_of(key[0], part.topic.id):
                behind = f"what it had after record {number - 1} is lost"
                lost(self.options, f"{name} has begun anew: the topic was deleted and made again; {behind}")
                begin[key] = FIRST_SEQ
            elif part.committed_seq + 1 < number:
                text = f"it ends with record {part.committed_seq}, not {number - 1}"
                lost(self.options, f"{name} has begun anew: {text}")
                begin[key] = FIRST_SEQ
        return begin

    def _bounded(self, planner: Planner, begin: Mapping[Key, int]) -> dict[Key, int]:
        """The end of what there is, or of the query."""
        end, ends, target = dict(begin), self._ends(planner), self._target
        for key, number in ends.numbers.items():
            if target is None:
                end[key] = number
            elif key in target.numbers and target.is_of(key[0], ends.ids[key[0]]):
                end[key] = max(min(target.numbers[key], number), begin.get(key, 0))
        return end

    @staticmethod
    def _waiting(planner: Planner, begin: Mapping[Key, int], end: Mapping[Key, int]) -> dict[Key, int]:
        """Records that were not read yet."""
        waiting = {}
        for key, number in end.items():
            first = begin.get(key, FIRST_SEQ)
            if number > first and key in planner.partitions:
                waiting[key] = planner.partitions[key].count(first, number)
        return waiting

    def _holds_back(self, waiting: Mapping[Key, int]) -> bool:
        """Whether they are too few for a batch of their own."""
        least = self.options.min_rows_per_trigger
        return least is not None and self._target is None and sum(waiting.values()) < least and not self._overdue()

    def _limited(
        self, planner: Planner, begin: Mapping[Key, int], end: Mapping[Key, int], waiting: Mapping[Key, int]
    ) -> Mapping[Key, int]:
        """As much of it as the options for one trigger allow."""
        options, parts = self.options, planner.partitions
        starts = {key: begin.get(key, FIRST_SEQ) for key in waiting}
        if options.rows_per_trigger is not None:
            shares = shared(waiting, options.rows_per_trigger)
            ends = {key: parts[key].end_of(starts[key], end[key], share) for key, share in shares.items() if share}
            end = {**end, **{key: ends.get(key, starts[key]) for key in waiting}}
        if options.bytes_per_trigger is not None:
            firsts = {key: max(starts[key], parts[key].log_start) for key in waiting}
            sizes = {key: planner.bytes_between(key, first, end[key]) for key, first in firsts.items()}
            if sum(sizes.values()) > options.bytes_per_trigger:
                bounds = shared(sizes, options.bytes_per_trigger)
                ends = {key: planner.end_within(key, firsts[key], end[key], bounds[key]) for key in waiting}
                end = {**end, **ends}
        return end

    def _overdue(self) -> bool:
        last = self._last_batch_s
        return last is None or time.monotonic() - last >= self.options.trigger_delay_s

    def partitions(self, start: Offsets, end: Offsets) -> list[TaskPartition]:
        """The tasks of one batch. Raises DataLoss, Corrupt."""
        planner = self._refreshed()
        begin, until = Positions.unpack(start), Positions.unpack(end)
        wanted = {}
        for key, end_seq in until.numbers.items():
            first_seq = begin.numbers.get(key, FIRST_SEQ)
            if end_seq < first_seq or not begin.is_of(key[0], until.ids.get(key[0])):  # it has started over
                first_seq = FIRST_SEQ
            part = planner.partitions.get(key)
            if part is not None and until.is_of(key[0], part.topic.id):
                wanted[key] = (first_seq, end_seq)
            elif end_seq > first_seq:
                why = "is gone" if part is None else "has begun anew: the topic was deleted and made again"
                lost(self.options, f"{key[0]}:{key[1]} {why}; lost: records {first_seq} to {end_seq - 1}")
        return [TaskPartition(tasks) for tasks in planner.packed(planner.plan(wanted))]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Record batches of one task."""
        return read_partition(partition, self.fields, self.options)

    def commit(self, end: Offsets) -> None:
        """Nothing: the checkpoint holds the offsets, and retention does not wait for queries."""

    def stop(self) -> None:
        """Nothing is open between two triggers."""
