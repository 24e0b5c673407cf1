"""The tail cache: committed chunks kept in memory for readers at the end of the log, bounded in total."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from engine.limits import CHUNK_BYTES_MIN, TAIL_MERGED_BYTES, TAIL_SMALL_BYTES
from engine.segments.buffers import BufferPool
from engine.segments.chunk import Chunk

COMPACT_ENTRIES = 512
"""Given-up entries at the head of a partition's list before they are cut off at once."""


class Tail:
    """Committed chunks of one partition that are still in memory, oldest first. Owner's thread only."""

    __slots__ = ("_head", "_next", "chunks")

    def __init__(self) -> None:
        self.chunks: list[Chunk | None] = []
        """Appended to by the cache; None before `_head`, what it gave up."""
        self._head = 0
        self._next = 0  # where the chunk that follows the one read last may be

    def drop_oldest(self) -> Chunk:
        """Lets go of the oldest chunk, which is returned."""
        chunks, head = self.chunks, self._head
        chunk = chunks[head]
        assert chunk is not None, "there is one for each time that the tail stands in the cache's queue"
        chunks[head] = None
        self._head = head = head + 1
        if head >= COMPACT_ENTRIES or head == len(chunks):
            del chunks[:head]
            self._head = 0
        return chunk

    def find(self, seq: int) -> Chunk | None:
        """The chunk that holds the committed number `seq`, or the next one in a gap; None: it is not in memory."""
        chunks, head = self.chunks, self._head
        if head >= len(chunks):
            return None
        at = self._next  # right for a sequential reader, and cheaper than a search where chunks are small
        chunk = chunks[at] if head <= at < len(chunks) else None
        if chunk is None or chunk.first_seq != seq:
            at = bisect_right(chunks, seq, lo=head, key=_first_seq) - 1
            if at < head:
                return None
            chunk = chunks[at]
            assert chunk is not None
            if seq > chunk.last_seq:  # in a gap between two chunks
                at += 1
                chunk = chunks[at]
        self._next = at + 1
        return chunk


NO_TAIL = Tail()
"""Of partitions that nothing was committed in; nothing is ever put in it."""


def _first_seq(chunk: Chunk | None) -> int:
    return chunk.first_seq if chunk is not None else 0


class TailCache:
    """All partitions' committed chunks, first in, first out. Owner's thread only.

    Small chunks that follow each other in a file become one, so that a reader who comes late gets many of their records
    at once. A merged chunk grows within its buffer only: what readers hold of it stays as it is.
    """

    def __init__(self, size_bytes_max: int, buffers: BufferPool) -> None:
        self.size_bytes = 0
        self._buffers = buffers
        self._size_bytes_max = size_bytes_max
        self._tails: deque[Tail] = deque()  # once for each chunk, in the order in which these came

    def add(self, tail: Tail, chunk: Chunk) -> None:
        """Puts a chunk that was just committed at the end of its partition's tail."""
        chunks = tail.chunks
        last = chunks[-1] if chunks else None
        if chunk.end <= TAIL_SMALL_BYTES:
            if last is not None and _fits(last, chunk):
                self._merge(last, chunk)
                return
            size_bytes = CHUNK_BYTES_MIN  # an idle partition's first; twice as large where there come more
            if last is not None and last.end <= len(last.buffer) <= TAIL_MERGED_BYTES:
                size_bytes = min(2 * len(last.buffer), TAIL_MERGED_BYTES)
            self._move(chunk, self._buffers.take(size_bytes))
        elif 2 * chunk.end < len(chunk.buffer):
            self._move(chunk, bytearray(chunk.end))
        chunks.append(chunk)
        self._tails.append(tail)
        self.size_bytes += len(chunk.buffer)
        while self.size_bytes > self._size_bytes_max:
            self._give_up(self._tails.popleft().drop_oldest())

    def _move(self, chunk: Chunk, buffer: bytearray) -> None:
        if len(buffer) == len(chunk.buffer):
            self._buffers.give(buffer)
            return
        buffer[: chunk.end] = memoryview(chunk.buffer)[: chunk.end]
        self._buffers.give(chunk.buffer)
        chunk.buffer = buffer

    def _merge(self, last: Chunk, chunk: Chunk) -> None:
        end = last.end + chunk.end
        last.buffer[last.end : end] = memoryview(chunk.buffer)[: chunk.end]
        last.end = end
        last.last_seq = chunk.last_seq
        self._buffers.give(chunk.buffer)
        chunk.buffer = bytearray()

    def _give_up(self, chunk: Chunk) -> None:
        self.size_bytes -= len(chunk.buffer)
        self._buffers.give(chunk.buffer)


def _fits(last: Chunk, chunk: Chunk) -> bool:
    """Whether `chunk` may be copied to the end of `last`."""
    return (
        last.end + chunk.end <= len(last.buffer)
        and len(last.buffer) <= TAIL_MERGED_BYTES
        and last.file_position + last.end == chunk.file_position
        and last.segment_id == chunk.segment_id
    )
