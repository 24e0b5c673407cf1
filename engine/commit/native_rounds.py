"""Rounds of a few files by threads without the interpreter (`engine.commit.round_writer`), where they can be had.

The usual case of a round: a few partitions, no new segment, no transaction. What is to be done to the files is what
`engine.commit.committer` does; here everything but the system calls is done on the owner's thread, before and after
them; of a small round that needs no sync, they are too. What fails of a round is handed to the committer's own thread,
which takes it back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from engine.commit.round_writer import COMPILED, DONE, SYNC, RoundWriter
from engine.commit.target import Part
from engine.context import EngineContext
from engine.files.descriptors import Handle
from engine.files.system import SystemFiles
from engine.limits import INLINE_BYTES_MAX, ROUND_PARTS_MAX, ROUND_PIECES_MAX
from engine.segments.active import ActiveSegment
from engine.segments.watermarks import Owner, Watermark

if TYPE_CHECKING:
    from engine.commit.committer import Committer

Begin = Callable[["list[Part]", int], None]
"""Begins a round of parts, together of so many bytes."""

Watch = Callable[[int, Callable[[], None]], Callable[[], object]]
"""Has a function called on the owner's thread whenever a descriptor is readable; returns what ends that."""


class UsualRounds:
    """Where there are none: every round goes the usual way."""

    def begin(self, parts: list[Part], size_bytes: int, otherwise: Begin) -> None:
        """Begins a round of these parts, together of so many bytes, by `otherwise`."""
        otherwise(parts, size_bytes)

    def look_up(self) -> None:
        """Ends the round under way if it is done."""

    def stop(self) -> None:
        """There is nothing to stop."""


class _Placed(NamedTuple):
    """A part of the round under way."""

    part: Part
    handle: Handle
    owner: Owner
    mark: Watermark
    """As it will be when the chunks are committed."""


class QuickRounds(UsualRounds):
    """One round at a time."""

    def __init__(self, context: EngineContext, committer: Committer, watch: Watch) -> None:
        self._context = context
        self._committer = committer
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._writer = RoundWriter(self._wake_fd, self._done_fd)
        self._placed: list[_Placed] = []
        self._syncing: list[ActiveSegment] = []
        """Whose `sync_lock` the round under way has."""
        self._unwatch = watch(self._done_fd, self._done)
        self._threads: list[threading.Thread] = []
        self._start_thread(self._writer.serve)

    def _start_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="quintlog-rounds", daemon=True)
        thread.start()
        self._threads.append(thread)

    def begin(self, parts: list[Part], size_bytes: int, otherwise: Begin) -> None:
        """Begins a round; one of many parts, or with a new segment, by `otherwise`."""
        if not self._has_begun(parts, size_bytes):
            otherwise(parts, size_bytes)

    def _has_begun(self, parts: list[Part], size_bytes: int) -> bool:
        try:
            if len(parts) <= ROUND_PARTS_MAX and all(map(self._is_usual, parts)) and self._begin(parts, size_bytes):
                return True
        except Exception:  # noqa: BLE001, S110 - the usual way meets it again, behind a fence, and says so
            pass
        self._writer.clear()
        self._release()
        return False

    def _is_usual(self, part: Part) -> bool:
        active = part.active
        if not part.chunks or part.roll or active.has_rest or self._committer.roll_due(part):
            return False
        if part.sync:
            if not active.sync_lock.acquire(blocking=False):
                return False  # housekeeping syncs it: if that fails, this round may not succeed
            self._syncing.append(active)
        return not active.sync_failed

    def _begin(self, parts: list[Part], size_bytes: int) -> bool:
        """False: it has to go the usual way, and nothing has happened."""
        if sum([len(part.chunks) for part in parts]) > ROUND_PIECES_MAX:
            return False
        for part in parts:
            self._place(part)
        for part in parts:
            part.active.has_rest = True
        if size_bytes <= INLINE_BYTES_MAX and not self._syncing:
            self._writer.perform()
            self._context.call_soon(self._end)
            return True
        while len(self._threads) < len(parts):
            self._start_thread(self._writer.help)
        self._writer.submit()
        return True

    def _place(self, part: Part) -> None:
        """Makes a part ready. Raises OSError, which the usual way meets again."""
        context, partition, active, writer = self._context, part.partition, part.active, self._writer
        handle = context.handles.acquire(active.path)
        owner = partition.owner
        end = active.position + part.size_bytes
        mark = Watermark(
            partition.log_start,
            active.header.first_seq,
            part.chunks[-1].last_seq,
            end,
            end if part.sync else active.durable_position,
            active.header.segment_id,
        )
        self._placed.append(_Placed(part, handle, owner, mark))
        slot, at = context.watermarks.prepare(owner, mark)
        writer.part(handle.fd, active.position, part.sync, context.watermarks.fd, slot, at)
        active.place(part.chunks)
        for chunk in part.chunks:
            writer.add(chunk.buffer, chunk.end)

    def look_up(self) -> None:
        if self._writer.is_done():
            self._done()

    def stop(self) -> None:
        """Ends the threads; when idle."""
        self._writer.stop()
        for thread in self._threads:
            thread.join()
        self._unwatch()
        os.close(self._wake_fd)
        os.close(self._done_fd)

    def _release(self) -> list[_Placed]:
        """Lets go of the files; what was placed."""
        syncing, self._syncing = self._syncing, []
        for active in syncing:
            active.sync_lock.release()
        placed, self._placed = self._placed, []
        for one in placed:
            self._context.handles.release(one.handle)
        return placed

    def _done(self) -> None:
        try:
            os.eventfd_read(self._done_fd)
        except BlockingIOError:
            return
        self._end()

    def _end(self) -> None:
        """Takes the outcome of the round, and ends it."""
        committer = self._committer
        ends, sync_seconds = self._writer.take()
        for one, (failed_at, _, _) in zip(self._placed, ends, strict=True):
            one.part.active.sync_failed |= failed_at == SYNC  # that of another thread may have failed meanwhile
        placed = self._release()  # only now may others sync the files
        parts = [one.part for one in placed]
        failed: list[tuple[Part, OSError]] = []
        for one, (failed_at, code, mark_code) in zip(placed, ends, strict=True):
            if failed_at != DONE:
                failed.append((one.part, OSError(code, os.strerror(code))))
                continue
            problem = OSError(mark_code, os.strerror(mark_code)) if mark_code else None
            committer.guarded([one.part], self._stored, one, problem)
        if failed:
            committer.on_thread(parts, partial(self._take_back, parts, failed, sync_seconds))
        else:
            committer.settle(parts)
            committer.count(parts, sync_seconds)

    def _take_back(self, parts: list[Part], failed: list[tuple[Part, OSError]], sync_seconds: float) -> None:
        """What the failed parts wrote is taken back, which may take time."""
        committer = self._committer
        for part, problem in failed:
            part.state = part.active.state()  # nothing of the round was counted
            committer.guarded([part], committer.undo, part, problem)
        committer.count(parts, sync_seconds)

    def _stored(self, placed: _Placed, problem: OSError | None) -> None:
        """It is on disk; but its watermark is not written if there is a problem."""
        context, part = self._context, placed.part
        active = part.active
        active.take(part.chunks, placed.mark.committed_position)
        active.appended_steady_ms = context.steady_ms()
        if part.sync:
            active.durable_position = active.position
        else:
            self._committer.interval_syncs.add(part.partition, active)
        if problem is None:
            context.watermarks.written(placed.owner)
        part.partition.marked(placed.mark.log_start, problem)
        for chunk in part.chunks:
            self._committer.note_index(part, chunk)


def rounds_for(context: EngineContext, committer: Committer, watch: Watch | None) -> UsualRounds:
    """Quick rounds, unless there was no compiler, nobody can watch a descriptor, or files are not the system's."""
    if watch is None or not COMPILED or type(context.files) is not SystemFiles:
        return UsualRounds()
    return QuickRounds(context, committer, watch)
