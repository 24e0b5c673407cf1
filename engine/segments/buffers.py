"""Buffers of write batches, used again: fresh memory costs a page fault for every 4 KiB, and zeroing."""

from __future__ import annotations

from engine.limits import FREE_BUFFER_BYTES_MAX, WRITE_BATCH_BYTES_MAX, WRITE_BATCH_BYTES_MIN


class BufferPool:
    """Free buffers by size, for write batches of the usual sizes. Owner's thread only."""

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0

    def take(self, size_bytes: int) -> bytearray:
        """A buffer of exactly this size with any content."""
        free = self._free.get(size_bytes)
        if not free:
            return bytearray(size_bytes)
        self._free_bytes -= size_bytes
        return free.pop()

    def give(self, buffer: bytearray) -> None:
        """Takes a buffer back, unless somebody still looks at it (a read batch on its way to a reader)."""
        size_bytes = len(buffer)
        if size_bytes & (size_bytes - 1) or not WRITE_BATCH_BYTES_MIN <= size_bytes <= WRITE_BATCH_BYTES_MAX:
            return  # no write batch of a usual size will ask for it
        if self._free_bytes + size_bytes > FREE_BUFFER_BYTES_MAX:
            return
        try:
            buffer.append(buffer.pop())  # the documented way to learn of memoryviews: they forbid another length
        except BufferError:
            return
        self._free.setdefault(size_bytes, []).append(buffer)
        self._free_bytes += size_bytes
