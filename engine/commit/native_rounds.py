"""Rounds of a few files by threads without the interpreter (`engine.commit.round_writer`), where they can be had.

The usual case of a round: a few partitions, no new segment, no transaction, nothing to wait for before the writes.
Everything but the system calls is done on the owner's thread; of a small round that needs no sync, these are too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from engine.commit.round_steps import Round, RoundSteps
from engine.commit.round_writer import COMPILED, RoundWriter
from engine.commit.thread_rounds import ThreadRounds
from engine.context import EngineContext
from engine.files.system import SystemFiles
from engine.limits import INLINE_BYTES_MAX, ROUND_PARTS_MAX, ROUND_PIECES_MAX

Watch = Callable[[int, Callable[[], None]], Callable[[], object]]
"""Has a function called on the owner's thread whenever a descriptor is readable; returns what ends that."""


class NativeRounds:
    """Executes rounds with the compiled `RoundWriter`; what it cannot do, or take back, is done by `fallback`."""

    def __init__(
        self,
        context: EngineContext,
        steps: RoundSteps,
        finish: Callable[[Round], None],
        fallback: ThreadRounds,
        watch: Watch,
    ) -> None:
        self._call_soon = context.call_soon
        self._steps = steps
        self._finish = finish
        self._fallback = fallback
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._writer = RoundWriter(self._wake_fd, self._done_fd)
        self._round: Round | None = None
        """The one under way."""
        self._unwatch = watch(self._done_fd, self._done)
        self._threads: list[threading.Thread] = []
        self._start_thread(self._writer.serve)

    def _start_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="quintlog-rounds", daemon=True)
        thread.start()
        self._threads.append(thread)

    def begin(self, this: Round) -> None:
        """Begins a round; one of many parts, or that waits for something before it writes, by the fallback."""
        if not self._is_prepared(this):
            self._writer.clear()
            this.prepared.clear()
            self._steps.release(this)
            self._fallback.begin(this)
            return
        self._steps.begin_writing(this)
        self._round = this
        is_quick = this.size_bytes <= INLINE_BYTES_MAX
        for part in this.parts:
            is_quick &= not part.is_locked
        if is_quick:
            self._writer.perform()
            self._call_soon(self._end)
            return
        while len(self._threads) < len(this.parts):
            self._start_thread(self._writer.help)
        self._writer.submit()

    def _is_prepared(self, this: Round) -> bool:
        parts = this.parts
        if this.transaction is not None or len(parts) > ROUND_PARTS_MAX:
            return False
        if sum([len(part.write_batches) for part in parts]) > ROUND_PIECES_MAX:
            return False
        try:
            for part in parts:
                if not self._steps.prepare(part, self._writer, may_wait=False) or part.mark_problem is not None:
                    return False
                this.prepared.append(part)
        except Exception:  # noqa: BLE001 - the fallback meets it again, behind a fence, and says so
            return False
        return True

    def poll_completion(self) -> None:
        """Ends the round under way if it is done."""
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

    def _done(self) -> None:
        try:
            os.eventfd_read(self._done_fd)
        except BlockingIOError:
            return
        self._end()

    def _end(self) -> None:
        this, self._round = self._round, None
        assert this is not None, "it was begun"
        if self._steps.written(this, self._writer):
            self._finish(this)
        else:
            self._fallback.take_back(this)


def native_rounds(
    context: EngineContext,
    steps: RoundSteps,
    finish: Callable[[Round], None],
    fallback: ThreadRounds,
    watch: Watch | None,
) -> NativeRounds | None:
    """None where there was no compiler, nobody can watch a descriptor, or files are not the system's."""
    if watch is None or not COMPILED or type(context.files) is not SystemFiles:
        return None
    return NativeRounds(context, steps, finish, fallback, watch)
