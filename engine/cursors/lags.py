"""How far durable positions are behind: in records, in seconds, and whether that becomes more.

The lag in seconds is the age of the oldest record that waits: the time since its batch was appended, by the clock of
the log, whatever timestamp its publisher gave it. It is read from the batch, and once for each place: a position at
rest costs nothing, one that moves a read of what it is about to read itself.

Positions that nobody uses count as well; they are looked up in ``state`` once and cannot move until they are used.

Of the first `LAG_HISTORIES_MAX` of them the records that waited are remembered for an hour.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from engine.context import EngineContext
from engine.errors import EngineError
from engine.formats.batch_header import APPEND_TIME_POSITION, TIME
from engine.limits import LAG_HISTORIES_MAX, LAG_HISTORY_SAMPLES, LAG_SAMPLE_MS
from engine.partitions.partition import Partition
from engine.partitions.table import PartitionTable
from engine.segments.watermarks import Owner

if TYPE_CHECKING:
    from engine.cursors.table import CursorTable
    from engine.state.topic_entries import Topic


Key: TypeAlias = int | str | tuple[str, int, int]
"""The id of a cursor, or what tells a position that is none: see `Lags.others`."""


class Standing(NamedTuple):
    """Where a cursor stands; ``floor`` and ``next_seq`` as of its deliveries."""

    owner: str
    topic_id: int
    partition: int
    floor: int
    next_seq: int
    unacknowledged: int


class Lag(NamedTuple):
    """What is not known is None.

    Attributes:
        records: that wait, unacknowledged ones included.
        seconds: age of the oldest of them; 0: none waits.
        trend: records a second that it grows by; below 0: it catches up.
    """

    records: int | None = None
    seconds: float | None = None
    trend: float | None = None


class Waiting(NamedTuple):
    """What waits for a cursor; ``first_seq`` is the oldest number that may, 0: none does.

    ``records`` None: not known before the partition is open, as numbers may have been left out.
    """

    partition: Partition
    records: int | None
    first_seq: int


class Lags:
    """The lag of every cursor of a store. Owner's thread only.

    Attributes:
        others: positions beside them that are to be looked at, too, each with the name by which it is asked for.
    """

    def __init__(self, context: EngineContext, cursors: CursorTable, partitions: PartitionTable) -> None:
        self._context = context
        self._cursors = cursors
        self._partitions = partitions
        self.others: Callable[[], Iterable[tuple[Key, Standing]]] = tuple
        self._histories: dict[Key, array[int]] = {}
        self._appended: dict[Key, tuple[int, int]] = {}
        """Cursor -> the number that was its oldest, and when that was appended."""
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        """Partitions that are not open -> the first and last number that their watermark tells of; 0: it does not."""
        self._generation = -1
        self._samples: list[tuple[int, dict[Key, int]]] = []
        """When, and the records that waited then by cursor: the latest and the one before it."""
        self._next_sample_ms = 0

    def waiting(self, standing: Standing) -> Waiting | None:
        """What waits for a cursor; None: its partition is gone, or cannot be looked at."""
        topic = self._context.catalog.by_id(standing.topic_id)
        if topic is None:
            return None
        try:
            partition = self._partitions.get(topic, standing.partition)
        except EngineError:
            return None
        if partition.is_open:
            log_start, committed_seq = partition.log_start, partition.committed_seq
        else:
            log_start, committed_seq = self._stored_end(topic, standing.partition)
            if not log_start:
                return None
        next_seq = max(standing.next_seq, log_start)  # what was removed does not wait
        records: int | None = standing.unacknowledged + partition.gaps.count(next_seq, committed_seq).most
        if next_seq <= committed_seq and not partition.is_open:
            records = None
        first_seq = max(standing.floor + 1, log_start)
        return Waiting(partition, records, first_seq if first_seq <= committed_seq else 0)

    def _stored_end(self, topic: Topic, index: int) -> tuple[int, int]:
        generation = self._context.catalog.generation
        if generation != self._generation:
            self._ends.clear()
            self._generation = generation
        found = self._ends.get((topic.id, index))
        if found is None:
            number = topic.numbers.get(index)
            try:
                mark = self._context.watermarks.read(Owner(number, topic.id, index)) if number is not None else None
            except OSError:
                mark = None
            found = self._ends[topic.id, index] = (mark.log_start, mark.committed_seq) if mark is not None else (0, 0)
        return found

    def of(self, cursor_id: int, on_ready: Callable[[], None] | None) -> Lag | None:
        """The lag of a cursor.

        None: not now; ``on_ready`` is called once when asking again may tell (``on_ready`` None: no wish to be called,
        the seconds are left out then).
        """
        return self.of_standing(cursor_id, self._cursors.standing(cursor_id), on_ready)

    def of_standing(self, key: Key, standing: Standing | None, on_ready: Callable[[], None] | None) -> Lag | None:
        """The same of any position."""
        waiting = self.waiting(standing) if standing is not None else None
        if waiting is None:
            return Lag()
        trend = self._trend(key, waiting.records)
        if not waiting.first_seq:
            return Lag(waiting.records, 0.0, trend)
        try:
            stamp_ms = self.appended_ms(key, waiting, on_ready)
        except EngineError:
            return Lag(waiting.records, None, trend)
        if stamp_ms is None:
            return None if on_ready is not None else Lag(waiting.records, None, trend)
        seconds = self._context.clock.likely_age_ms(stamp_ms) / 1000 if stamp_ms else None  # time off counts at once
        return Lag(waiting.records, seconds, trend)

    def appended_ms(self, key: Key, waiting: Waiting, on_ready: Callable[[], None] | None) -> int | None:
        """When the oldest record that waits was appended; 0: damage took it. None as in :meth:`of`.

        Raises:
            EngineError: it cannot be read
        """
        known = self._appended.get(key)
        if known is not None and known[0] == waiting.first_seq:
            return known[1]
        partition = waiting.partition
        read_batch = partition.read(max(waiting.first_seq, partition.log_start), 1, on_ready)
        if read_batch is None:
            return None
        stamp_ms: int = TIME.unpack_from(read_batch.buffer, APPEND_TIME_POSITION)[0] if len(read_batch.buffer) else 0
        self._appended[key] = (waiting.first_seq, stamp_ms)
        return stamp_ms

    # --- trend

    def tick(self, now_ms: int) -> None:
        """Every so often note what waits, in slices of time."""
        if now_ms >= self._next_sample_ms:
            self._next_sample_ms = now_ms + LAG_SAMPLE_MS
            self._context.slices.run(self._sample(now_ms))

    def _sample(self, now_ms: int) -> Iterator[None]:
        found: dict[Key, int] = {}
        for key, standing in self.standings():
            waiting = self.waiting(standing) if standing is not None else None
            if waiting is not None and waiting.records is not None:
                found[key] = waiting.records
                self._remember(key, waiting.records)
            yield
        self._samples = [*self._samples[-1:], (now_ms, found)]
        for kept in (self._appended, self._histories):
            for key in kept.keys() - found.keys():
                del kept[key]

    def standings(self) -> Iterator[tuple[Key, Standing | None]]:
        """Where all stand; None: it is not known."""
        for cursor_id in self._cursors.ids():
            yield cursor_id, self._cursors.standing(cursor_id)
        yield from self.others()

    def _remember(self, key: Key, records: int) -> None:
        history = self._histories.get(key)
        if history is None:
            if len(self._histories) >= LAG_HISTORIES_MAX:
                return
            history = self._histories[key] = array("q")
        if len(history) >= LAG_HISTORY_SAMPLES:
            del history[0]
        history.append(records)

    def history(self, keys: Iterable[Key]) -> Sequence[int]:
        """The records that waited for some positions together, every `LAG_SAMPLE_MS`, the newest last.

        Empty: not known.
        """
        series = [self._histories.get(key, ()) for key in keys]
        shortest = min(map(len, series), default=0)
        return [sum(samples) for samples in zip(*(one[len(one) - shortest :] for one in series), strict=True)]

    def _trend(self, key: Key, records: int | None) -> float | None:
        if records is None:
            return None
        for at_ms, found in self._samples:
            since_ms = self._cursors.clock_ms() - at_ms
            if key in found and since_ms >= 1000:
                return round((records - found[key]) * 1000 / since_ms, 1)
        return None
