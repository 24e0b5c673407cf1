"""Reading partitions for a request: records in pieces that each take a millisecond or two, one partition or several.

Several partitions are merged by time, as far as their records are there: a partition that is at its end holds nobody
up, so that a follower gets each new record when it is committed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeAlias

from engine.errors import OutOfRange
from engine.formats.batch import records
from engine.formats.record import BatchError, BundleError, Record
from netserver.access.access import Forbidden
from netserver.admin.slices import sliced
from netserver.http.large import begins_large
from netserver.http.limits import (
    HTTP_DECODE_BYTES,
    HTTP_HEARTBEAT_S,
    HTTP_READ_BYTES,
    HTTP_READ_LEAST_BYTES,
    HTTP_RECORDS_FRAMED,
    HTTP_RECORDS_PIECE,
    HTTP_WRITE_BYTES,
)

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.positions import Position
    from engine.segments.batches import ReadBatch
    from engine.slices import Slices
    from netserver.http.sender import Sender
    from netserver.http.taking_turns import TakingTurns
    from netserver.shell.counters import Counters

Buffer: TypeAlias = bytes | bytearray | memoryview


class Frame(Protocol):
    """`netserver.http.frames.frame_lengths`, or `frame_lines` for a partition."""

    def __call__(
        self, batches: Buffer, from_seq: int, last_seq: int, bytes_max: int, records_max: int, /
    ) -> tuple[Buffer, int, int]: ...


class Allowance(Protocol):
    """How many records somebody still takes."""

    left: int


@dataclass(slots=True)
class Allowed:
    """An `Allowance` that nobody adds to."""

    left: int


@dataclass(frozen=True, slots=True)
class Remark:
    """Numbers that a reader does not get, and why."""

    partition: int
    first_offset: int
    last_offset: int
    text: str


Item: TypeAlias = tuple[int, Record] | Remark
"""(partition, record), or why there is none."""


def remark_about(start: Position, partitions: Sequence[Partition]) -> Remark | None:
    """What is said of a number that is not there: whoever mistypes one would wait for nothing."""
    if start.kind != "seq" or not start.value:
        return None
    first = min(partition.log_start for partition in partitions)
    last = max(partition.committed_seq for partition in partitions)
    index = partitions[0].index
    if start.value < first:
        return Remark(index, start.value, first - 1, f"records before {first} are no longer there")
    if start.value > last + 1:
        return Remark(index, last + 1, start.value - 1, f"the log ends before {start.value}: its last record is {last}")
    return None


class Source:
    """One partition of a request.

    Args:
        end_seq: reading ends before this number; None: never.
        since_ms: older records at the beginning are passed over: a position by time is exact to a piece of the index.
        read_bytes: what is read at a time.
        wake: called when reading again may give more.
    """

    def __init__(
        self,
        partition: Partition,
        next_seq: int,
        end_seq: int | None,
        since_ms: int,
        read_bytes: int,
        wake: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.next_seq = next_seq
        self.end_seq = end_seq
        self.found: deque[Item] = deque()
        self._since_ms = since_ms
        self._read_bytes = read_bytes
        self._wake = wake
        self._records: Iterator[Record] | None = None
        self._last_seq = 0  # of what `_records` goes over
        self._read_batch: ReadBatch | None = None  # what `frame` goes over

    @property
    def is_over(self) -> bool:
        """Nothing more comes from it."""
        return not self.found and self.end_seq is not None and self.next_seq >= self.end_seq

    @property
    def is_at_end(self) -> bool:
        """It has nothing more now."""
        return self.is_over or self.next_seq > self.partition.committed_seq

    def frame(self, frame: Frame, records_max: int) -> tuple[Buffer, int] | None:
        """The next records as a hot loop writes them, and how many; None: there is nothing now, or not of that form.

        For a source that nothing was taken of by `fill`, or all of that. Raises EngineError: it cannot be read.
        """
        if self.found or self._records is not None or self._since_ms or self.is_over:
            return None
        read_batch = self._read_batch
        if read_batch is None or read_batch.last_seq < self.next_seq:
            read_batch = self._read_batch = self._next_read_batch()
            if read_batch is None or self.found:
                return None
        last_seq = read_batch.last_seq if self.end_seq is None else min(read_batch.last_seq, self.end_seq - 1)
        try:
            if begins_large(read_batch.buffer, self.next_seq):
                return None
            out, self.next_seq, count = frame(read_batch.buffer, self.next_seq, last_seq, HTTP_WRITE_BYTES, records_max)
        except (BatchError, BundleError):
            return None  # `fill` tells it
        return (out, count) if count or self.next_seq > last_seq else None

    def fill(self) -> bool:
        """Take the next piece; False: there is none now. Raises EngineError: it cannot be read."""
        if self.found:
            return True
        if self.end_seq is not None and self.next_seq >= self.end_seq:
            return False
        if self._records is None and not self._read():
            return False
        self._decode()
        return True

    def _next_read_batch(self) -> ReadBatch | None:
        """The batches that come next; None: none for now, or a remark was made."""
        if self.end_seq is not None and self.next_seq >= self.end_seq:
            return None
        try:
            read_batch = self.partition.read(self.next_seq, self._read_bytes, self._wake)
        except OutOfRange as gap:
            self._pass(self.next_seq, gap.first - 1, "removed by retention or trimmed")
            return None
        if read_batch is not None:
            for first, last in read_batch.lost:
                self._remark(first, last, "damaged")
        return read_batch

    def _read(self) -> bool:
        read_batch, self._read_batch = self._read_batch, None
        if read_batch is None or read_batch.last_seq < self.next_seq:
            read_batch = self._next_read_batch()
        if read_batch is None:
            return bool(self.found)
        self._last_seq = read_batch.last_seq
        self._records = records(read_batch.buffer, 0, None, self.next_seq)
        return True

    def _decode(self) -> None:
        if self._records is None:
            return
        index, since_ms, end_seq = self.partition.index, self._since_ms, self.end_seq
        count, size_bytes, has_more = 0, 0, False
        try:
            for record in self._records:
                count += 1
                size_bytes += len(record.value)
                self.next_seq = record.seq + 1
                if end_seq is not None and record.seq >= end_seq:
                    self.next_seq = end_seq
                    break
                if record.timestamp_ms >= since_ms:
                    self._since_ms = since_ms = 0
                    self.found.append((index, record))
                has_more = count >= HTTP_RECORDS_PIECE or size_bytes >= HTTP_DECODE_BYTES
                if has_more:
                    break
        except (BatchError, BundleError) as problem:  # it passed its checksum, so it was written like that
            self._pass(self.next_seq, self._last_seq, f"cannot be read: {problem}")
        if not has_more:
            self.next_seq = max(self.next_seq, self._last_seq + 1)
            self._records = None

    def _pass(self, first: int, last: int, why: str) -> None:
        self._remark(first, last, why)
        self.next_seq = last + 1

    def _remark(self, first: int, last: int, why: str) -> None:
        if self.partition.gaps.count(first, last).most:
            self.found.append(Remark(self.partition.index, first, last, why))

    def close(self) -> None:
        """Nobody is called any more."""
        self.partition.forget(self._wake)


class Reader:
    """Several partitions of one topic.

    Args:
        sender: keeps the answer to a rate.
        may: whether whoever reads has the right to go on; asked before each piece.
        slices: in which a turn of the event loop reads of many partitions.
        counters: of what is read for the request.
        starts: (partition, first number, number before which it ends or None, milliseconds since 1970 or 0).
        remark: what is said before anything else.
        turns: of all readers; None: there are few of its kind.
    """

    def __init__(
        self,
        starts: Sequence[tuple[Partition, int, int | None, int]],
        sender: Sender,
        may: Callable[[], bool],
        slices: Slices,
        counters: Counters,
        remark: Remark | None = None,
        turns: TakingTurns | None = None,
    ) -> None:
        self._slices = slices
        self._counters = counters
        self._turns = turns
        self._sender = sender
        self._wait_s = 0.0
        self._may = may
        self._more = asyncio.Event()
        read_bytes = max(HTTP_READ_BYTES // max(len(starts), 1), HTTP_READ_LEAST_BYTES)
        self._sources = [Source(*start, read_bytes, self._more.set) for start in starts]
        if remark is not None:
            self._sources[0].found.append(remark)

    async def pieces(self, until_s: float | None) -> AsyncIterator[list[Item]]:
        """What there is, piece by piece; an empty one before each wait, and when nothing came for a while.

        Args:
            until_s: ends then (time of the event loop); None: when all partitions are over.

        Raises:
            EngineError: a partition cannot be read, or is deleted.
        """
        loop = asyncio.get_running_loop()
        while until_s is None or loop.time() < until_s:
            if not await self._turn(until_s):
                return
            is_moving, is_reading = await self._fill()
            piece = [] if is_reading else self._merge()
            if piece:
                self._count(piece)
                yield piece
            elif all(source.is_over for source in self._sources):
                return
            elif not is_moving:
                yield []
                await self._wait(until_s)
            await asyncio.sleep(0)

    async def frames(
        self, frame: Frame, allowed: Allowance, until_s: float | None
    ) -> AsyncIterator[Buffer | list[Item]]:
        """As `pieces` for one partition, written by a hot loop as far as that can; items where it cannot.

        Args:
            allowed: what was read is taken off; ends when nothing is left.
        """
        loop, source = asyncio.get_running_loop(), self._sources[0]
        while allowed.left > 0 and (until_s is None or loop.time() < until_s):
            if not await self._turn(until_s):
                return
            framed = source.frame(frame, min(allowed.left, HTTP_RECORDS_FRAMED))
            if framed is not None:
                allowed.left -= framed[1]
                self._count_of(len(framed[0]), framed[1])
                yield framed[0]
            elif source.fill():
                items = list(islice(source.found, allowed.left))
                source.found.clear()
                allowed.left -= self._count(items)
                yield items
            elif source.is_over:
                return
            else:
                yield []
                await self._wait(until_s)
            await asyncio.sleep(0)

    def total(self) -> int:
        """How many records there are to read now, at most."""
        return sum(
            source.partition.gaps.count(source.next_seq, _last_of(source)).most
            for source in self._sources
            if source.next_seq <= _last_of(source)
        )

    def _count(self, items: list[Item]) -> int:
        """Counts records, which are returned, and what was left out."""
        values = [item[1].value for item in items if isinstance(item, tuple)]
        self._count_of(sum(map(len, values)), len(values))
        return len(values)

    def _count_of(self, size_bytes: int, records: int) -> None:
        self._counters.records_delivered += records
        self._counters.delivered_bytes += size_bytes
        self._wait_s = self._sender.sent(size_bytes, records)

    async def _turn(self, until_s: float | None) -> bool:
        """Begins a piece, when the rate allows; False: time is over before. Raises Forbidden."""
        if self._wait_s:
            left_s = self._wait_s if until_s is None else until_s - asyncio.get_running_loop().time()
            await self._sender.pause(min(self._wait_s, left_s))
            if left_s < self._wait_s:
                return False
            self._wait_s = 0.0
        if self._turns is not None:
            await self._turns.wait()
        if not self._may():
            raise Forbidden("the right to read was taken away")
        self._more.clear()
        return True

    async def _wait(self, until_s: float | None) -> None:
        left_s = HTTP_HEARTBEAT_S
        if until_s is not None:
            left_s = min(left_s, until_s - asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._more.wait()

    async def _fill(self) -> tuple[bool, bool]:
        """Read what is there of each; whether there was something, and whether one has more that is not here yet."""
        is_moving = is_reading = False
        async for source in sliced(self._slices, self._sources):
            if not source.found:
                is_moving |= source.fill()
                is_reading |= not source.found and not source.is_at_end
        return is_moving, is_reading

    def _merge(self) -> list[Item]:
        """The oldest of what was read, up to where a partition has to be read first."""
        with_some = [source for source in self._sources if source.found]
        if len(with_some) == 1:
            piece = list(with_some[0].found)
            with_some[0].found.clear()
            return piece
        piece, size_bytes = [], 0
        oldest = [(_time(source), number, source) for number, source in enumerate(with_some)]
        heapq.heapify(oldest)
        while oldest and len(piece) < HTTP_RECORDS_PIECE and size_bytes < HTTP_READ_BYTES:
            _, number, source = oldest[0]
            item = source.found.popleft()
            piece.append(item)
            size_bytes += len(item[1].value) if isinstance(item, tuple) else 0
            if source.found:
                heapq.heapreplace(oldest, (_time(source), number, source))
            elif source.is_at_end:
                heapq.heappop(oldest)
            else:
                break
        return piece

    def close(self) -> None:
        """Reading is over."""
        for source in self._sources:
            source.close()


def _last_of(source: Source) -> int:
    committed_seq = source.partition.committed_seq
    return committed_seq if source.end_seq is None else min(source.end_seq - 1, committed_seq)


def _time(source: Source) -> int:
    first = source.found[0]
    return first[1].timestamp_ms if isinstance(first, tuple) else 0
