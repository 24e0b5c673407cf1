"""Rounds of one file by the thread without the interpreter (`engine.unlocked`), where that can be had.

The usual case of a round: one partition, no new segment, no transaction. What is to be done to the file is what
`engine.committer` does; here everything but the system calls is done on the owner's thread, before and after them. A
round that fails is handed to the committer's own thread, which takes it back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.files import SystemFiles
from engine.limits import ROUND_PIECES_MAX
from engine.unlocked import COMPILED, DONE, SYNC, RoundWriter

if TYPE_CHECKING:
    from engine.committer import Committer, Part
    from engine.handles import Handle
    from engine.log import Log
    from engine.watermarks import Owner

Watch = Callable[[int, Callable[[], None]], Callable[[], object]]
"""Has a function called on the owner's thread whenever a descriptor is readable; returns what ends that."""


class QuickRounds:
    """One round at a time, of one partition."""

    def __init__(self, log: Log, committer: Committer, watch: Watch) -> None:
        self._log = log
        self._committer = committer
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._writer = RoundWriter(self._wake_fd, self._done_fd)
        self._part: Part | None = None
        self._handle: Handle | None = None
        self._end = 0
        self._log_start = 0
        self._owner: Owner | None = None
        self._unwatch = watch(self._done_fd, self._done)
        self._thread = threading.Thread(target=self._writer.serve, name="quintlog-rounds", daemon=True)
        self._thread.start()

    @classmethod
    def made(cls, log: Log, committer: Committer, watch: Watch | None) -> QuickRounds | None:
        """None where there is no compiler, no loop that can watch a descriptor, or files are not the system's."""
        if watch is None or not COMPILED or type(log.files) is not SystemFiles:
            return None
        return cls(log, committer, watch)

    def begin(self, part: Part) -> bool:
        """Begins a round; False: it has to go the usual way, and nothing has happened."""
        log, active, chunks = self._log, part.active, part.chunks
        if not 0 < len(chunks) <= ROUND_PIECES_MAX or active.sync_failed or active.has_rest:
            return False
        try:
            self._handle = log.handles.acquire(active.path)
            self._owner, mark = self._committer.mark(part)
            slot, at = log.watermarks.prepare(self._owner, mark)
        except OSError:
            self._release()
            return False  # the usual way meets it again, and says so
        part.state = active.state()
        self._part = part
        self._end = active.place(chunks)
        self._log_start = part.partition.log_start
        for chunk in chunks:
            self._writer.add(chunk.buffer, chunk.end)
        active.has_rest = True
        self._writer.submit(self._handle.fd, active.position, part.sync, log.watermarks.fd, slot, at)
        return True

    def stop(self) -> None:
        """Ends the thread; when idle."""
        self._writer.stop()
        self._thread.join()
        self._unwatch()
        os.close(self._wake_fd)
        os.close(self._done_fd)

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._log.handles.release(handle)

    def _done(self) -> None:
        part = self._part
        try:
            os.eventfd_read(self._done_fd)
        except BlockingIOError:
            return
        assert part is not None
        self._part = None
        self._release()
        failed_at, code, mark_code, sync_seconds = self._writer.take()
        if failed_at != DONE:
            part.active.sync_failed = failed_at == SYNC
            self._committer.quick_failed(part, OSError(code, os.strerror(code)))
            return
        part.active.take(part.chunks, self._end)
        part.active.appended_steady_ms = self._log.steady_ms()
        if part.sync:
            part.active.durable_position = self._end
        problem = OSError(mark_code, os.strerror(mark_code)) if mark_code else None
        if problem is None:
            assert self._owner is not None
            self._log.watermarks.written(self._owner)
        self._committer.quick_done(part, self._log_start, problem, sync_seconds)
