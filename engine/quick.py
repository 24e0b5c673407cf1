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
from engine.watermarks import Owner, Watermark

if TYPE_CHECKING:
    from engine.active import ActiveSegment
    from engine.committer import Committer, Part
    from engine.handles import Handle
    from engine.log import Log
    from engine.partition import Partition

AVAILABLE = COMPILED and os.environ.get("QUINTLOG_PURE") != "1"

Watch = Callable[[int, Callable[[], None]], Callable[[], object]]
"""Has a function called on the owner's thread whenever a descriptor is readable; returns what ends that."""


class UsualRounds:
    """Where there are none: every round goes the usual way."""

    def begin(self, parts: list[Part], otherwise: Callable[[], None]) -> None:
        """Begins a round of these parts, by `otherwise`."""
        otherwise()

    def stop(self) -> None:
        """There is nothing to stop."""


class QuickRounds(UsualRounds):
    """One round at a time, of one partition."""

    def __init__(self, log: Log, committer: Committer, watch: Watch) -> None:
        self._log = log
        self._committer = committer
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._writer = RoundWriter(self._wake_fd, self._done_fd)
        self._part: Part | None = None
        self._handle: Handle | None = None
        self._syncing: ActiveSegment | None = None
        """Whose `sync_lock` the round under way has."""
        self._end = 0
        self._log_start = 0
        self._unwatch = watch(self._done_fd, self._done)
        self._thread = threading.Thread(target=self._writer.serve, name="quintlog-rounds", daemon=True)
        self._thread.start()

    def begin(self, parts: list[Part], otherwise: Callable[[], None]) -> None:
        """Begins a round; of several partitions, or with a new segment, by `otherwise`."""
        if len(parts) > 1 or not self._has_begun(parts[0]):
            otherwise()

    def _has_begun(self, part: Part) -> bool:
        try:
            return not part.roll and not self._committer.roll_due(part) and self._begin(part)
        except Exception:  # noqa: BLE001 - the usual way meets it again, behind a fence, and says so
            self._writer.clear()
            self._release()
            return False

    def _begin(self, part: Part) -> bool:
        """False: it has to go the usual way, and nothing has happened."""
        log, active, chunks = self._log, part.active, part.chunks
        if not 0 < len(chunks) <= ROUND_PIECES_MAX or active.sync_failed or active.has_rest:
            return False
        if part.sync:
            if not active.sync_lock.acquire(blocking=False):
                return False  # housekeeping syncs it: if that fails, this round may not succeed
            self._syncing = active
            if active.sync_failed:
                self._release()
                return False
        try:
            self._handle = log.handles.acquire(active.path)
            slot, at = log.watermarks.prepare(owner_of(part.partition), _mark(part))
        except OSError:
            self._release()
            return False  # the usual way meets it again, and says so
        part.state = active.state()
        self._end = active.place(chunks)
        self._log_start = part.partition.log_start
        for chunk in chunks:
            self._writer.add(chunk.buffer, chunk.end)
        active.has_rest = True
        self._part = part
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
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.sync_lock.release()
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
        failed_at, code, mark_code, sync_seconds = self._writer.take()
        part.active.sync_failed |= failed_at == SYNC  # that of another thread may have failed meanwhile
        self._release()  # only now may others sync the file
        if failed_at != DONE:
            self._failed(part, OSError(code, os.strerror(code)))
            return
        problem = OSError(mark_code, os.strerror(mark_code)) if mark_code else None
        self._committer.fenced([part], lambda: self._stored(part, problem, sync_seconds), _at_once)

    def _failed(self, part: Part, problem: OSError) -> None:
        """What it wrote is taken back, which may take time."""

        def work() -> None:
            self._committer.undo(part, problem)
            self._committer.count([part], 0.0)

        self._committer.on_thread([part], work)

    def _stored(self, part: Part, problem: OSError | None, sync_seconds: float) -> None:
        """It is on disk; but its watermark is not written if there is a problem."""
        log, committer, active = self._log, self._committer, part.active
        active.take(part.chunks, self._end)
        active.appended_steady_ms = log.steady_ms()
        if part.sync:
            active.durable_position = self._end
        else:
            log.housekeeping.sync_later(part.partition, active)
        if problem is None:
            log.watermarks.written(owner_of(part.partition))
        committer.marked(part.partition, self._log_start, problem)
        for chunk in part.chunks:
            log.note_index(part, chunk)
        committer.count([part], sync_seconds)


def _at_once(callback: Callable[[], None]) -> None:
    callback()


def rounds_for(log: Log, committer: Committer, watch: Watch | None) -> UsualRounds:
    """Quick rounds, unless there was no compiler, nobody can watch a descriptor, or files are not the system's."""
    if watch is None or not AVAILABLE or type(log.files) is not SystemFiles:
        return UsualRounds()
    return QuickRounds(log, committer, watch)


def owner_of(partition: Partition) -> Owner:
    """To whom a partition's watermark belongs."""
    return Owner(partition.number, partition.topic.id, partition.index)


def _mark(part: Part) -> Watermark:
    """The watermark as it will be when the chunks of `part`, not yet written, are committed."""
    active = part.active
    end = active.position + sum(chunk.end for chunk in part.chunks)
    return Watermark(
        part.partition.log_start,
        active.header.first_seq,
        part.chunks[-1].last_seq,
        end,
        end if part.sync else active.durable_position,
        active.header.segment_id,
    )
