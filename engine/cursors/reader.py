# cython: annotation_typing=False
"""Reading for cursors: read batches, bounded in total and shared by all readers of one position; a position in one.

A POLL does not search: a reader stays on its record, in its read batch. A cursor that has not read for long loses the
batch (not its number) and finds the position again by one read.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable

from engine.formats.batch import RecordCursor
from engine.formats.record import BatchError, BundleError
from engine.limits import CURSOR_READ_BATCHES_BYTES_MAX, CURSOR_READ_BYTES
from engine.partitions.partition import Partition
from engine.segments.batches import ReadBatch
from engine.state.topic_entries import Topic

COMPILED = not __file__.endswith(".py")


class SharedReadBatch:
    """A read batch in the cache.

    Attributes:
        first_seq, last_seq: the numbers it answers for; those it does not hold name no record.
        lost: ranges of numbers that damage took.
    """

    def __init__(self, partition: Partition, seq: int, read_batch: ReadBatch) -> None:
        self.partition = partition
        self.buffer = read_batch.buffer
        self.first_seq = min(seq, read_batch.first_seq)
        self.last_seq = read_batch.last_seq
        self.lost = read_batch.lost
        self.readers: set[Reader] = set()
        # a view keeps all of its buffer in memory
        self.size_bytes = memoryview(read_batch.buffer.obj).nbytes


class ReadBatchCache:
    """The read batches that cursors read in, least recently opened first."""

    def __init__(self, bytes_max: int = CURSOR_READ_BATCHES_BYTES_MAX) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._recent: OrderedDict[SharedReadBatch, None] = OrderedDict()
        self._places: dict[Partition, list[SharedReadBatch]] = {}

    def find(self, partition: Partition, seq: int) -> SharedReadBatch | None:
        """A read batch that answers for ``seq``."""
        places = self._places.get(partition)
        if places is None:
            return None
        index = bisect_right(places, seq, key=_first_seq) - 1
        if index < 0 or places[index].last_seq < seq:
            return None
        self._recent.move_to_end(places[index])
        return places[index]

    def add(self, partition: Partition, seq: int, read_batch: ReadBatch) -> SharedReadBatch:
        """Take in what reading ``seq`` gave."""
        shared = SharedReadBatch(partition, seq, read_batch)
        self._recent[shared] = None
        insort(self._places.setdefault(partition, []), shared, key=_first_seq)
        self.size_bytes += shared.size_bytes
        while self.size_bytes > self._bytes_max and len(self._recent) > 1:
            self._drop(self._recent.popitem(last=False)[0])
        return shared

    def forget_topic(self, topic: Topic) -> None:
        """Drop all read batches of a topic that was deleted."""
        for shared in [shared for shared in self._recent if shared.partition.topic is topic]:
            del self._recent[shared]
            self._drop(shared)

    def _drop(self, shared: SharedReadBatch) -> None:
        self.size_bytes -= shared.size_bytes
        places = self._places[shared.partition]
        places.remove(shared)
        if not places:
            del self._places[shared.partition]
        for reader in list(shared.readers):
            reader.close()


def _first_seq(shared: SharedReadBatch) -> int:
    return shared.first_seq


class Reader:
    """A place in a partition.

    Attributes:
        records: its current record is the one at the place, if ``current``.
        position: the lowest number that the place may have: the reader is before, or at, its record.
        lost: ranges of numbers in its read_batch that damage took.
    """

    def __init__(self, cache: ReadBatchCache) -> None:
        self._cache = cache
        self._shared: SharedReadBatch | None = None
        self.records: RecordCursor | None = None
        self.position = 0
        self.current = False
        self.lost: tuple[tuple[int, int], ...] = ()

    @property
    def last_seq(self) -> int:
        """The highest number that the read batch answers for (0: no read batch)."""
        return self._shared.last_seq if self._shared is not None else 0

    def open(self, partition: Partition, seq: int, on_ready: Callable[[], None]) -> bool:
        """Go to the first record with a number of at least ``seq``.

        Returns:
            whether the read_batch is there; False: ``on_ready`` is called when it may be

        Raises:
            OutOfRange, EngineError: see ``Partition.read``
            BatchError, BundleError: the records cannot be decoded
        """
        shared = self._shared
        if shared is None or shared.partition is not partition or not shared.first_seq <= seq <= shared.last_seq:
            shared = self._cache.find(partition, seq)
            if shared is None:
                read_batch = partition.read(seq, CURSOR_READ_BYTES, on_ready)
                if read_batch is None:
                    return False
                shared = self._cache.add(partition, seq, read_batch)
            self.close()
            self._shared = shared
            self.lost = shared.lost
            shared.readers.add(self)
        elif seq == self.position and self.records is not None:
            return True
        self.records = RecordCursor(shared.buffer, 0, len(shared.buffer), seq)
        self.position = seq
        self.advance()
        return True

    def advance(self) -> None:
        """Go on to the next record of the read batch. Raises BatchError, BundleError."""
        assert self.records is not None
        self.current = False
        self.current = self.records.next()

    def moved(self, position: int, current: bool) -> None:
        """Somebody has read on with ``records``: up to before ``position``; ``current``: it stands on a record."""
        self.position = position
        self.current = current

    def close(self) -> None:
        """Let go of the read batch."""
        if self._shared is not None:
            self._shared.readers.discard(self)
        self._shared = None
        self.records = None
        self.current = False
        self.lost = ()


__all__ = ["BatchError", "BundleError", "ReadBatchCache", "Reader", "SharedReadBatch"]
