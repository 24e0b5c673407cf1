"""The tail cache: committed chunks kept in memory for readers at the end of the log, bounded in total."""

from __future__ import annotations

from collections import deque

from engine.buffers import BufferPool
from engine.chunk import Chunk

COMPACT_ENTRIES = 512
"""Given-up entries at the head of a partition's list before they are cut off at once."""


class TailCache:
    """All partitions' committed chunks, first in, first out. Owner's thread only."""

    def __init__(self, size_bytes_max: int, buffers: BufferPool) -> None:
        self.size_bytes = 0
        self._buffers = buffers
        self._size_bytes_max = size_bytes_max
        self._chunks: deque[Chunk] = deque()

    def add(self, chunk: Chunk) -> None:
        """Takes a chunk that was just put at the end of its partition's `tail`."""
        if 2 * chunk.end < len(chunk.buffer):
            whole = chunk.buffer
            chunk.buffer = whole[: chunk.end]
            self._buffers.give(whole)
        self._chunks.append(chunk)
        self.size_bytes += len(chunk.buffer)
        while self.size_bytes > self._size_bytes_max:
            self._give_up(self._chunks.popleft())

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
