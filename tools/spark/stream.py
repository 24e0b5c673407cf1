"""Streaming reads. Offsets in Spark's checkpoints: ``{topic: {partition: next number}}``, as those of Kafka's source.

The log holds no state for a query: a restarted one goes on exactly where its checkpoint says. Records that retention
removes before they were read are a loss (failOnDataLoss), and so is a topic that is gone, or that begins anew.
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

from tools.spark.options import Options
from tools.spark.plan import Key, Planner, lost
from tools.spark.source import Fields, TaskPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger("quintlog.spark")
FIRST_SEQ = 1
Offsets = dict[str, dict[str, int]]


def to_offsets(numbers: Mapping[Key, int]) -> Offsets:
    """In one order, since Spark compares the JSON."""
    offsets: Offsets = {}
    for (topic, partition), number in sorted(numbers.items()):
        offsets.setdefault(topic, {})[str(partition)] = number
    return offsets


def from_offsets(offsets: Offsets) -> dict[Key, int]:
    """The reverse of `to_offsets`."""
    return {(topic, int(index)): number for topic, row in offsets.items() for index, number in row.items()}


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
        self._target: dict[Key, int] | None = None
        self._topic_ids: dict[Key, int] = {}
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
        return to_offsets({key: planner.resolve(key, self.options.start) for key in planner.partitions})

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
        return to_offsets(self._ends(self._planner or self._refreshed()))

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """How far the next batch goes. Partitions that are new since the start are read from their beginning.

        Raises:
            DataLoss: a topic that was read is gone or has begun anew.
        """
        begin = from_offsets(start)
        planner = self._refreshed()
        end: Mapping[Key, int] = self._bounded(planner, begin)
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(planner, begin, end)
        if end != begin:
            self._last_batch_s = time.monotonic()
        return to_offsets(end)

    @staticmethod
    def _ends(planner: Planner) -> dict[Key, int]:
        return {key: reader.committed_seq + 1 for key, reader in planner.partitions.items()}

    def _bounded(self, planner: Planner, begin: Mapping[Key, int]) -> dict[Key, int]:
        """The end of what there is, or of the query."""
        end = dict(begin)
        for key, committed in self._ends(planner).items():
            known, topic_id = self._topic_ids.get(key), planner.partitions[key].topic.id
            self._topic_ids[key] = topic_id
            if key in begin and (committed < begin[key] or known not in (None, topic_id)):
                name = f"{key[0]}:{key[1]}"
                lost(self.options, f"{name} has begun anew: it ends with record {committed - 1}, not {begin[key] - 1}")
                end[key] = FIRST_SEQ  # a batch of nothing; the next one begins there
            elif self._target is None or key in self._target:
                end[key] = committed if self._target is None else max(self._target[key], begin.get(key, 0))
        for key in begin:
            if key not in planner.partitions and self.options.wants(*key):
                lost(self.options, f"{key[0]}:{key[1]} is gone; what it had behind record {begin[key] - 1} is lost")
                del end[key]
        return end

    def _limited(self, planner: Planner, begin: Mapping[Key, int], end: Mapping[Key, int]) -> Mapping[Key, int]:
        """As much of it as the options for one trigger allow."""
        options = self.options
        starts = {key: begin.get(key, FIRST_SEQ) for key in end}
        parts = planner.partitions
        behind = [key for key, number in end.items() if number > starts[key] and key in parts]
        waiting = {key: parts[key].count(starts[key], end[key]) for key in behind}
        least = options.min_rows_per_trigger
        if least is not None and self._target is None and sum(waiting.values()) < least and not self._overdue():
            return begin
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
        begin = from_offsets(start)
        wanted = {}
        for key, end_seq in from_offsets(end).items():
            first_seq = begin.get(key, FIRST_SEQ)
            if end_seq < first_seq:  # it has begun anew
                first_seq = FIRST_SEQ
            if key in planner.partitions:
                wanted[key] = (first_seq, end_seq)
            elif end_seq > first_seq:
                lost(self.options, f"{key[0]}:{key[1]} is gone; lost: records {first_seq} to {end_seq - 1}")
        return [TaskPartition(task) for task in planner.plan(wanted)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Record batches of one task."""
        return read_partition(partition, self.fields, self.options)

    def commit(self, end: Offsets) -> None:
        """Nothing: the checkpoint holds the offsets, and retention does not wait for queries."""

    def stop(self) -> None:
        """Nothing is open between two triggers."""
