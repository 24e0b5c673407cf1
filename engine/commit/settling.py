"""Settling: what comes after the files of a commit round are written, on the owner's thread.

The marker of a transaction is made durable; then write batches become visible or fail as a whole, the next round
starts, and the waiters are told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from engine.commit.gathering import Gathering
from engine.commit.round_steps import Round, RoundSteps
from engine.commit.target import PartitionCommit, stop_writing
from engine.errors import EngineError, ReadOnly
from engine.segments.batches import FAILED, PENDING, Waiter
from engine.slices import Slices
from engine.state.markers import Markers

RoundTap = Callable[[Sequence[PartitionCommit]], None]


class Settling:
    """Brings rounds to their end.

    Args:
        gathering: gets the partitions that a transaction has held up.
        undo_transaction: takes back what a round wrote whose transaction cannot be committed.
        on_settled: called between the outcome of a round and telling its waiters.
    """

    def __init__(
        self,
        steps: RoundSteps,
        markers: Markers,
        slices: Slices,
        gathering: Gathering,
        undo_transaction: Callable[[Round, EngineError], None],
        on_settled: Callable[[], None],
    ) -> None:
        self._steps = steps
        self._markers = markers
        self._slices = slices
        self._gathering = gathering
        self._undo_transaction = undo_transaction
        self._on_settled = on_settled
        self.tap: RoundTap | None = None
        """Is told of each round when its outcome is visible, before the next one begins."""

    def finish(self, this: Round) -> None:
        """The files are as they should be, or `part.error` says why not."""
        transaction = this.transaction
        if transaction is None or not transaction.id or any(part.error is not None for part in this.parts):
            self._settle(this)
            return
        try:
            self._markers.commit(transaction.id, lambda problem: self._marked(this, problem), transaction.also)
        except EngineError as error:  # too much at once for the state
            self._marked(this, error)

    def _marked(self, this: Round, problem: EngineError | None) -> None:
        """The marker of a transaction is on disk, or was refused."""
        if problem is not None and not isinstance(problem, ReadOnly):  # it is not there, and will not be
            self._undo_transaction(this, problem)
            return
        if problem is not None:
            for part in this.parts:
                part.error = ReadOnly(f"{part.partition.title}: a transaction's outcome is unknown: {problem}")
        self._settle(this)

    def _settle(self, this: Round) -> None:
        """Makes a round's outcome visible and tells everybody."""
        waiters: dict[Waiter, None] = {}
        for part in this.parts:
            if part.error is None:
                self._steps.guarded([part], self._steps.apply, part)
            for write_batch in part.write_batches:
                waiters.update(dict.fromkeys(write_batch.waiters))
                write_batch.waiters.clear()  # the write batch stays in memory for its readers, whoever waited need not
            self._give_outcome(part)
            if this.transaction is not None and part.partition.has_pending:
                self._gathering.add(part.partition)
        self._steps.count(this)
        if self.tap is not None:
            self.tap(this.parts)
        self._on_settled()  # the disk works while the answers are written
        self._slices.call_each("a commit round", map(attrgetter("round_done"), waiters))
        if this.transaction is not None:
            this.transaction.finish(this.parts[0].error)

    def _give_outcome(self, part: PartitionCommit) -> None:
        """Tells a partition what became of its part; a defect in it stops that partition, not the rounds of others."""
        partition = part.partition
        error = self._steps.guarded([part], partition.round_done, part)
        if error is not None:
            for write_batch in part.write_batches:
                if write_batch.state == PENDING:  # it may be stored: not acknowledged does not mean not stored
                    partition.settle(write_batch, FAILED, error)
            stop_writing(partition, error)
