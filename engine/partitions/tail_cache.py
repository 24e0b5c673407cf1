"""The tail cache: committed chunks kept in memory for readers at the end of the log, bounded in total."""

from __future__ import annotations

from collections import deque

from engine.limits import CHUNK_BYTES_MIN, TAIL_MERGED_BYTES, TAIL_SMALL_BYTES
from engine.segments.buffers import BufferPool
from engine.segments.chunk import Chunk

COMPACT_ENTRIES = 512
"""Given-up entries at the head of a partition's list before they are cut off at once."""


class TailCache:
    """All partitions' committed chunks, first in, first out. Owner's thread only.

    Small chunks that follow each other in a file become one, so that a reader who comes late gets many of their records
    at once. A merged chunk grows within its buffer only: what readers hold of it stays as it is.
    """

    def __init__(self, size_bytes_max: int, buffers: BufferPool) -> None:
        self.size_bytes = 0
        self._buffers = buffers
        self._size_bytes_max = size_bytes_max
        self._chunks: deque[Chunk] = deque()

    def add(self, chunk: Chunk) -> None:
        """Puts a chunk that was just committed at the end of its partition's `tail`."""
        tail = chunk.partition.tail
        last = tail[-1] if tail else None
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
        tail.append(chunk)
        self._chunks.append(chunk)
        self.size_bytes += len(chunk.buffer)
        while self.size_bytes > self._size_bytes_max:
            self._give_up(self._chunks.popleft())

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
        partition = chunk.partition
        assert partition.tail[partition.tail_head] is chunk, "chunks go in the order in which they came"
        partition.tail[partition.tail_head] = None
        partition.tail_head += 1
        if partition.tail_head >= COMPACT_ENTRIES or partition.tail_head == len(partition.tail):
            del partition.tail[: partition.tail_head]
            partition.tail_head = 0


def _fits(last: Chunk, chunk: Chunk) -> bool:
    """Whether `chunk` may be copied behind `last`."""
    return (
        last.end + chunk.end <= len(last.buffer)
        and len(last.buffer) <= TAIL_MERGED_BYTES
        and last.file_position + last.end == chunk.file_position
        and last.segment_id == chunk.segment_id
    )
