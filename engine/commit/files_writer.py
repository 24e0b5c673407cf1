"""The writes and syncs of a round through the log's `Files`, in Python: the twin of `engine.commit.round_writer`.

It may wait for the disk, and is used on the committer's thread; for a round that waits for no disk, on the owner's.
"""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field

from engine.commit.round_writer import DONE, SYNC, WRITE
from engine.files.system import Files
from engine.helpers import Helpers


@dataclass(slots=True)
class _File:
    """What is done to one file."""

    fd: int
    position: int
    sync: bool
    mark_fd: int
    mark: bytes
    mark_position: int
    buffers: list[memoryview] = field(default_factory=list)
    failed_at: int = DONE
    error: int = 0
    mark_error: int = 0


def _code(problem: OSError) -> int:
    return problem.errno or errno.EIO


class FilesWriter:
    """One round at a time; see `engine.commit.round_steps.RoundWriter`."""

    def __init__(self, files: Files, helpers: Helpers) -> None:
        self._files = files
        self._helpers = helpers
        self._parts: list[_File] = []
        self._sync_seconds = 0.0

    def part(self, fd: int, position: int, sync: bool, mark_fd: int, mark: bytes, mark_position: int) -> None:
        self._parts.append(_File(fd, position, sync, mark_fd, mark, mark_position))

    def add(self, buffer: bytearray, size: int) -> None:
        self._parts[-1].buffers.append(memoryview(buffer)[:size])

    def clear(self) -> None:
        self._parts = []

    def perform(self) -> None:
        self._sync_seconds = 0.0
        for part in self._parts:
            self._write(part)
        due = [part for part in self._parts if part.sync and part.failed_at == DONE]
        if due and not self._is_in_vain():
            started = time.perf_counter()
            self._helpers.each(due, self._sync)
            self._sync_seconds = time.perf_counter() - started
        for part in self._parts:
            if part.mark and part.failed_at == DONE:
                self._write_mark(part)

    def take(self) -> tuple[list[tuple[int, int, int]], float]:
        parts, self._parts = self._parts, []
        return [(part.failed_at, part.error, part.mark_error) for part in parts], self._sync_seconds

    def _is_in_vain(self) -> bool:
        """Whether a part of a transaction, which comes without watermarks, cannot be written: none will count."""
        return any(part.failed_at != DONE for part in self._parts) and not any(part.mark for part in self._parts)

    def _write(self, part: _File) -> None:
        if not part.buffers:
            return
        try:
            self._files.write(part.fd, part.buffers, part.position)
        except OSError as problem:
            part.failed_at, part.error = WRITE, _code(problem)

    def _sync(self, part: _File) -> None:
        try:
            self._files.sync_data(part.fd)
        except OSError as problem:
            part.failed_at, part.error = SYNC, _code(problem)

    def _write_mark(self, part: _File) -> None:
        try:
            self._files.write(part.mark_fd, [part.mark], part.mark_position)
        except OSError as problem:
            part.mark_error = _code(problem)
