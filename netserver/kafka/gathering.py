"""What an open transaction has gathered: records by partition and offsets by group, in memory until its commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.formats.extension import SEQUENCE_MASK
from engine.limits import RECORD_OVERHEAD_BYTES, WRITE_BATCH_BYTES_MAX

from .appending import room_bytes_of
from .committed import Committed, Place
from .errors import Code
from .limits import PACKED_RECORDS, PLACE_BYTES, REPEATS_KNOWN
from .records import pack_records

if TYPE_CHECKING:
    import asyncio

    from engine.commit.transactions import Transaction
    from engine.partitions.partition import Partition

    from .checking import Records


class Gathered:
    """One open transaction.

    Attributes:
        partitions: those that it may have records of.
        groups: those that it may have offsets of.
        size_bytes: what it counts in the bounds of transactions.
        failed: why something of it was refused that its producer may not leave out: it cannot be committed any more.
        began: what the first batch of a partition begins with, where nothing was known of its producer.
        missing: a batch of a partition that was refused, as one before it had not come: without it there is no commit.
        timer: of its time.
        is_late: its time was over while its end was under way.
    """

    def __init__(self) -> None:
        self.partitions: set[Place] = set()
        self.groups: set[str] = set()
        self.records: dict[Place, list[Records]] = {}
        self.offsets: dict[str, dict[Place, Committed]] = {}
        self.size_bytes = 0
        self.failed: Code | None = None
        self.began: dict[Place, int] = {}
        self.missing: dict[Place, int] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.is_late = False

    def take(self, place: Place, records: Records, sequence: Sequence) -> None:
        """Take the next records, or some that others have overtaken, on another connection."""
        if self.missing.get(place) == records.first_sequence:
            del self.missing[place]
        if self.is_earlier(place, records):
            self.records[place].insert(0, records)
            self.began[place] = records.first_sequence
            sequence.remember(records)
            return
        if sequence.next < 0 and place not in self.records:
            self.began[place] = records.first_sequence
        self.records.setdefault(place, []).append(records)
        sequence.take(records)

    def is_earlier(self, place: Place, records: Records) -> bool:
        """Whether a batch comes just before the first one that is there."""
        return self.began.get(place) == records.first_sequence + records.count & SEQUENCE_MASK

    @property
    def offset_count(self) -> int:
        """How many offsets there are."""
        return sum(map(len, self.offsets.values()))


class Sequence:
    """How far a producer has counted in a partition, and its latest batches: who gets no answer sends them again."""

    __slots__ = ("_latest", "next")

    def __init__(self) -> None:
        self.next = -1
        self._latest: tuple[tuple[int, int], ...] = ()

    def has(self, records: Records) -> bool:
        """Whether this batch was taken already."""
        return (records.first_sequence, records.count) in self._latest

    def follows(self, records: Records) -> bool:
        """Whether this batch is the next one; any is where none is known."""
        return self.next in (-1, records.first_sequence)

    def take(self, records: Records) -> None:
        """It is taken."""
        self.remember(records)
        self.next = records.first_sequence + records.count & SEQUENCE_MASK

    def remember(self, records: Records) -> None:
        """It is not taken again."""
        self._latest = (*self._latest, (records.first_sequence, records.count))[-REPEATS_KNOWN:]


def size_of_offset(group: str, committed: Committed) -> int:
    """What an offset of a group counts in the bounds of transactions."""
    return PLACE_BYTES + len(group.encode()) + len((committed.metadata or "").encode())


def pack(transaction: Transaction, partition: Partition, batches: list[Records], now_ms: int) -> Iterator[None]:
    """Puts records into a transaction of the log, in short steps.

    Raises:
        EngineError: the partition takes none.
    """
    room_bytes = min(sum(map(room_bytes_of, batches)), WRITE_BATCH_BYTES_MAX // 2)
    for records in batches:
        walk, place = records.walk(), 0
        while place < records.count:
            until = min(place + PACKED_RECORDS, records.count)
            writer = transaction.writer(partition, room_bytes)
            count, size_bytes, is_full = pack_records(walk, writer, until, now_ms)
            if count:
                transaction.added(partition, size_bytes + count * RECORD_OVERHEAD_BYTES)
            place += count
            room_bytes = walk.room() if is_full else 0
            yield
