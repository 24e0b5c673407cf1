"""The tail cache: committed write batches kept in memory for readers at the end of the log, bounded in total."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from engine.limits import TAIL_MERGED_BYTES, TAIL_SMALL_BYTES, WRITE_BATCH_BYTES_MIN
from engine.segments.batches import WriteBatch
from engine.segments.buffers import BufferPool

COMPACT_ENTRIES = 512
"""Given-up entries at the head of a partition's list before they are cut off at once."""


class Tail:
    """Committed write batches of one partition that are still in memory, oldest first. Owner's thread only."""

    __slots__ = ("_head", "_next", "write_batches")

    def __init__(self) -> None:
        self.write_batches: list[WriteBatch | None] = []
        """Appended to by the cache; None before `_head`, what it gave up."""
        self._head = 0
        self._next = 0  # where the write batch that follows the one read last may be

    def drop_oldest(self) -> WriteBatch:
        """Lets go of the oldest write batch, which is returned."""
        write_batches, head = self.write_batches, self._head
        write_batch = write_batches[head]
        assert write_batch is not None, "there is one for each time that the tail stands in the cache's queue"
        write_batches[head] = None
        self._head = head = head + 1
        if head >= COMPACT_ENTRIES or head == len(write_batches):
            del write_batches[:head]
            self._head = 0
        return write_batch

    def find(self, seq: int) -> WriteBatch | None:
        """The write batch that holds the committed number `seq`, or the next one in a gap; None: not in memory."""
        write_batches, head = self.write_batches, self._head
        if head >= len(write_batches):
            return None
        at = self._next  # right for a sequential reader, and cheaper than a search where write batches are small
        write_batch = write_batches[at] if head <= at < len(write_batches) else None
        if write_batch is None or write_batch.first_seq != seq:
            at = bisect_right(write_batches, seq, lo=head, key=_first_seq) - 1
            if at < head:
                return None
            write_batch = write_batches[at]
            assert write_batch is not None
            if seq > write_batch.last_seq:  # in a gap between two write batches
                at += 1
                write_batch = write_batches[at]
        self._next = at + 1
        return write_batch


NO_TAIL = Tail()
"""Of partitions that nothing was committed in; nothing is ever put in it."""


def _first_seq(write_batch: WriteBatch | None) -> int:
    return write_batch.first_seq if write_batch is not None else 0


class TailCache:
    """All partitions' committed write batches, first in, first out. Owner's thread only.

    Small write batches that follow each other in a file become one, so that a late reader gets many of their records at
    once. A merged write batch grows within its buffer only: what readers hold of it stays as it is.
    """

    def __init__(self, size_bytes_max: int, buffers: BufferPool) -> None:
        self.size_bytes = 0
        self._buffers = buffers
        self._size_bytes_max = size_bytes_max
        self._tails: deque[Tail] = deque()  # once for each write batch, in the order in which these came

    def add(self, tail: Tail, write_batch: WriteBatch) -> None:
        """Puts a write batch that was just committed at the end of its partition's tail."""
        write_batches = tail.write_batches
        last = write_batches[-1] if write_batches else None
        if write_batch.end <= TAIL_SMALL_BYTES:
            if last is not None and _fits(last, write_batch):
                self._merge(last, write_batch)
                return
            size_bytes = WRITE_BATCH_BYTES_MIN  # an idle partition's first; twice as large where there come more
            if last is not None and last.end <= len(last.buffer) <= TAIL_MERGED_BYTES:
                size_bytes = min(2 * len(last.buffer), TAIL_MERGED_BYTES)
            self._move(write_batch, self._buffers.take(size_bytes))
        elif 2 * write_batch.end < len(write_batch.buffer):
            self._move(write_batch, bytearray(write_batch.end))
        write_batches.append(write_batch)
        self._tails.append(tail)
        self.size_bytes += len(write_batch.buffer)
        while self.size_bytes > self._size_bytes_max:
            self._give_up(self._tails.popleft().drop_oldest())

    def _move(self, write_batch: WriteBatch, buffer: bytearray) -> None:
        if len(buffer) == len(write_batch.buffer):
            self._buffers.give(buffer)
            return
        buffer[: write_batch.end] = memoryview(write_batch.buffer)[: write_batch.end]
        self._buffers.give(write_batch.buffer)
        write_batch.buffer = buffer

    def _merge(self, last: WriteBatch, write_batch: WriteBatch) -> None:
        end = last.end + write_batch.end
        last.buffer[last.end : end] = memoryview(write_batch.buffer)[: write_batch.end]
        last.end = end
        last.last_seq = write_batch.last_seq
        self._buffers.give(write_batch.buffer)
        write_batch.buffer = bytearray()

    def _give_up(self, write_batch: WriteBatch) -> None:
        self.size_bytes -= len(write_batch.buffer)
        self._buffers.give(write_batch.buffer)


def _fits(last: WriteBatch, write_batch: WriteBatch) -> bool:
    """Whether `write_batch` may be copied to the end of `last`."""
    return (
        last.end + write_batch.end <= len(last.buffer)
        and len(last.buffer) <= TAIL_MERGED_BYTES
        and last.file_position + last.end == write_batch.file_position
        and last.segment_id == write_batch.segment_id
    )
