# cython: annotation_typing=False
"""Reading for cursors: slabs shared by all who read at the same place, bounded in total, and one's place in a slab.

A POLL does not search: a reader stays on its record, in its slab. A cursor that has not read for long loses the slab
(not its number) and finds the place again by one read.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable

from engine.formats.batch import RecordCursor
from engine.formats.record import BatchError, BundleError
from engine.limits import CURSOR_READ_BYTES, CURSOR_SLABS_BYTES_MAX
from engine.partitions.partition import Partition
from engine.segments.chunk import Slab
from engine.state.topics import Topic

COMPILED = not __file__.endswith(".py")


class SharedSlab:
    """A slab in the cache.

    Attributes:
        first_seq, last_seq: the numbers it answers for; those it does not hold name no record.
        lost: ranges of numbers that damage took.
    """

    def __init__(self, partition: Partition, seq: int, slab: Slab) -> None:
        self.partition = partition
        self.buffer = slab.buffer
        self.first_seq = min(seq, slab.first_seq)
        self.last_seq = slab.last_seq
        self.lost = slab.lost
        self.readers: set[Reader] = set()
        # a view keeps all of its buffer in memory
        self.size_bytes = memoryview(slab.buffer.obj).nbytes


class SlabCache:
    """The slabs that cursors read in, least recently opened first."""

    def __init__(self, bytes_max: int = CURSOR_SLABS_BYTES_MAX) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._recent: OrderedDict[SharedSlab, None] = OrderedDict()
        self._places: dict[Partition, list[SharedSlab]] = {}

    def find(self, partition: Partition, seq: int) -> SharedSlab | None:
        """A slab that answers for ``seq``."""
        places = self._places.get(partition)
        if places is None:
            return None
        index = bisect_right(places, seq, key=_first_seq) - 1
        if index < 0 or places[index].last_seq < seq:
            return None
        self._recent.move_to_end(places[index])
        return places[index]

    def add(self, partition: Partition, seq: int, slab: Slab) -> SharedSlab:
        """Take in what reading ``seq`` gave."""
        shared = SharedSlab(partition, seq, slab)
        self._recent[shared] = None
        insort(self._places.setdefault(partition, []), shared, key=_first_seq)
        self.size_bytes += shared.size_bytes
        while self.size_bytes > self._bytes_max and len(self._recent) > 1:
            self._drop(self._recent.popitem(last=False)[0])
        return shared

    def forget_topic(self, topic: Topic) -> None:
        """Drop all slabs of a topic that was deleted."""
        for shared in [shared for shared in self._recent if shared.partition.topic is topic]:
            del self._recent[shared]
            self._drop(shared)

    def _drop(self, shared: SharedSlab) -> None:
        self.size_bytes -= shared.size_bytes
        places = self._places[shared.partition]
        places.remove(shared)
        if not places:
            del self._places[shared.partition]
        for reader in list(shared.readers):
            reader.close()


def _first_seq(shared: SharedSlab) -> int:
    return shared.first_seq


class Reader:
    """A place in a partition.

    Attributes:
        records: its current record is the one at the place, if ``current``.
        position: the lowest number that the place may have: the reader is before, or at, its record.
        lost: ranges of numbers in its slab that damage took.
    """

    def __init__(self, cache: SlabCache) -> None:
        self._cache = cache
        self._shared: SharedSlab | None = None
        self.records: RecordCursor | None = None
        self.position = 0
        self.current = False
        self.lost: tuple[tuple[int, int], ...] = ()

    @property
    def last_seq(self) -> int:
        """The highest number that the slab answers for (0: no slab)."""
        return self._shared.last_seq if self._shared is not None else 0

    def open(self, partition: Partition, seq: int, on_ready: Callable[[], None]) -> bool:
        """Go to the first record with a number of at least ``seq``.

        Returns:
            whether the slab is there; False: ``on_ready`` is called when it may be

        Raises:
            OutOfRange, EngineError: see ``Partition.read``
            BatchError, BundleError: the records cannot be decoded
        """
        shared = self._shared
        if shared is None or shared.partition is not partition or not shared.first_seq <= seq <= shared.last_seq:
            shared = self._cache.find(partition, seq)
            if shared is None:
                slab = partition.read(seq, CURSOR_READ_BYTES, on_ready)
                if slab is None:
                    return False
                shared = self._cache.add(partition, seq, slab)
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
        """Go on to the next record of the slab. Raises BatchError, BundleError."""
        assert self.records is not None
        self.current = False
        self.current = self.records.next()

    def moved(self, position: int, current: bool) -> None:
        """Somebody has read on with ``records``: up to before ``position``; ``current``: it stands on a record."""
        self.position = position
        self.current = current

    def close(self) -> None:
        """Let go of the slab."""
        if self._shared is not None:
            self._shared.readers.discard(self)
        self._shared = None
        self.records = None
        self.current = False
        self.lost = ()


__all__ = ["BatchError", "BundleError", "Reader", "SharedSlab", "SlabCache"]
