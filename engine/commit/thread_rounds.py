"""Rounds by the committer's thread: those that roll a segment, carry a transaction, or have failed elsewhere.

A small round that waits for no disk (durability below "always") is done on the owner's thread: the way to another
thread and back would take longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from engine.commit.files_writer import FilesWriter
from engine.commit.rolling import is_roll_due
from engine.commit.round_steps import Round, RoundSteps
from engine.commit.target import PartitionCommit
from engine.context import EngineContext
from engine.errors import EngineError, ReadOnly
from engine.helpers import Helpers
from engine.limits import INLINE_BYTES_MAX
from engine.state.store import CallSoon


class ThreadRounds:
    """Executes rounds with `FilesWriter`; each ends in `finish`, on the owner's thread, whatever happens."""

    def __init__(self, context: EngineContext, steps: RoundSteps, finish: Callable[[Round], None]) -> None:
        self._context = context
        self._steps = steps
        self._finish = finish
        self._helpers = Helpers(context.config.sync_threads, "quintlog-sync")
        self._writer = FilesWriter(context.files, self._helpers)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="quintlog-committer", daemon=True)
        self._thread.start()

    def begin(self, this: Round) -> None:
        """Begins a round."""
        if this.size_bytes <= INLINE_BYTES_MAX and not any(map(self._waits, this.parts)):
            self._fenced(this, lambda: self._execute(this), self._context.call_soon)
        else:
            self._on_thread(this, lambda: self._execute(this))

    def take_back(self, this: Round) -> None:
        """Takes back what has failed of a round that another executor has executed, and ends it."""
        self._on_thread(this, lambda: self._steps.take_back(this))

    def undo_transaction(self, this: Round, problem: EngineError) -> None:
        """Takes back a round whose transaction was refused in the end, and ends it."""
        self._on_thread(this, lambda: self._steps.undo_transaction(this, problem))

    def poll_completion(self) -> None:
        """Nothing: the thread says when it is done."""

    def stop(self) -> None:
        """Ends the threads after the round under way; blocking. Call when idle."""
        self._jobs.put(None)
        self._thread.join()
        self._helpers.stop()

    def _waits(self, part: PartitionCommit) -> bool:
        """Whether what a round does to this partition waits for the disk."""
        return part.sync or part.roll or is_roll_due(self._context, part)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _on_thread(self, this: Round, work: Callable[[], None]) -> None:
        self._jobs.put(lambda: self._fenced(this, work, self._context.call_soon_threadsafe))

    def _fenced(self, this: Round, work: Callable[[], None], call_soon: CallSoon) -> None:
        """Does something for a round, and has it ended by `call_soon`, whatever happens."""
        if self._steps.guarded(this.parts, work) is not None:
            self._writer.clear()
            self._steps.release(this)
        call_soon(lambda: self._finish(this))

    def _execute(self, this: Round) -> None:
        steps, writer = self._steps, self._writer
        for part in this.parts:
            error = steps.guarded([part], self._prepare, part)
            if error is None and part.problem is None and part.error is None:
                this.prepared.append(part)
        if this.transaction is None or len(this.prepared) == len(this.parts):
            steps.begin_writing(this)
            writer.perform()
        else:  # one of its files cannot be written
            writer.clear()
            this.prepared.clear()
            steps.release(this)
        if not steps.written(this, writer):
            steps.take_back(this)

    def _prepare(self, part: PartitionCommit) -> None:
        try:
            self._steps.prepare(part, self._writer, may_wait=True)
        except OSError as problem:
            part.problem = problem
        except ReadOnly as problem:
            part.error = problem
