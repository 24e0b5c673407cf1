"""Commit rounds: many appends, one write and one sync a file, one callback that answers everybody.

One round is in flight at a time, and is started here. What it takes is in `engine.commit.gathering`; what it does to
the files in `engine.commit.round_steps`; who does it: threads without the interpreter in the usual case
(`engine.commit.native_rounds`), else a thread of Python (`engine.commit.thread_rounds`). Back on the owner's thread
its outcome is made visible and told (`engine.commit.settling`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.callbacks import call_each
from engine.commit.counters import Counters
from engine.commit.gathering import Gathering
from engine.commit.interval_syncs import IntervalSyncs
from engine.commit.native_rounds import Watch, native_rounds
from engine.commit.round_steps import Round, RoundSteps
from engine.commit.settling import RoundTap, Settling
from engine.commit.target import CommitTarget, PartitionCommit
from engine.commit.thread_rounds import ThreadRounds
from engine.commit.transactions import Transaction
from engine.context import EngineContext
from engine.errors import EngineError
from engine.segments.active import ActiveSegment
from engine.state.markers import Markers


class Committer:
    """Starts rounds, one after the other, of what waits to be committed. Owner's thread only."""

    def __init__(self, context: EngineContext, markers: Markers, watch: Watch | None = None) -> None:
        self._context = context
        self.markers = markers
        self._in_flight = False
        self._round_callbacks: list[Callable[[], None]] = []
        self._transactions: deque[Transaction] = deque()
        self.counters = Counters()
        self.interval_syncs = IntervalSyncs(context, self.counters)
        self._steps = RoundSteps(context, markers, self.counters, self.interval_syncs)
        self._gathering = Gathering(context, self._steps)
        self._threads = ThreadRounds(context, self._steps, lambda this: self._settling.finish(this))
        self._settling = Settling(
            self._steps, markers, context.slices, self._gathering, self._threads.undo_transaction, self._round_settled
        )
        self._native = native_rounds(context, self._steps, self._settling.finish, self._threads, watch)
        self._executor = self._native or self._threads

    def add(self, partition: CommitTarget) -> None:
        """Puts a partition with pending write batches in the queue and starts a round when none is running."""
        self._gathering.add(partition)
        if not self._in_flight:
            self._start()

    def add_transaction(self, transaction: Transaction) -> None:
        """Queues a transaction whose write batches stand in their partitions."""
        self._transactions.append(transaction)
        if not self._in_flight:
            self._start()

    def fail_transaction(self, transaction: Transaction, error: EngineError) -> None:
        """Takes a waiting transaction out of all its partitions."""
        self._transactions.remove(transaction)
        for partition in transaction.partitions:
            partition.drop_apart(transaction, error)
        for partition in transaction.partitions:  # what waited after the transaction
            if partition.has_pending and partition.has_files and partition.error is None:
                self.add(partition)
        if self._transactions and not self._in_flight:
            self._start()  # the next one may have waited for this one alone
        self._context.call_soon_threadsafe(lambda: transaction.finish(error))

    def request_watermark(self, partition: CommitTarget) -> None:
        """Has the next round write the partition's watermark."""
        if partition.has_files and partition.error is None:
            self.add(partition)

    def roll_next(self, partition: CommitTarget) -> None:
        """Has the next round of a partition begin a new segment; `request_watermark` unless it has records to write."""
        self._gathering.roll_next(partition)

    def poll_completion(self) -> None:
        """Ends the round in flight if its work is done, before the owner's loop would get to it."""
        self._executor.poll_completion()

    def after_round(self, callback: Callable[[], None]) -> None:
        """Calls back when the round in flight, if any, is over, and before the next one begins."""
        if self._in_flight:
            self._round_callbacks.append(callback)
        else:
            callback()

    def tell_rounds(self, tap: RoundTap | None) -> None:
        """Has `tap` told of each round when its outcome is visible; None ends that."""
        self._settling.tap = tap

    def stop(self) -> None:
        """Ends the threads after the round in flight; blocking. Call when idle."""
        self._threads.stop()
        if self._native is not None:
            self._native.stop()

    def write_mark(self, partition: CommitTarget, active: ActiveSegment) -> None:
        """Writes a partition's watermark at once; after `stop`."""
        self._steps.write_mark(partition, active)

    def _start(self) -> None:
        if self._context.is_closed:
            return  # another process may have the directory by now
        if self._transactions and self._transactions[0].is_ready:
            self._start_transaction(self._transactions.popleft())
            return
        this = self._gathered()
        if this is not None:
            self._executor.begin(this)
        elif self._transactions and self._transactions[0].is_ready:  # what stood before it was refused meanwhile
            self._start()

    def _gathered(self) -> Round | None:
        """The next round, which is in flight from the start: what is refused meanwhile begins none beside it."""
        self._in_flight = True
        this = None
        try:
            this = self._gathering.take()
        finally:
            self._in_flight = this is not None
        return this

    def _start_transaction(self, transaction: Transaction) -> None:
        if transaction.needs_marker:
            transaction.id = self.markers.next_id()
        this = Round([], transaction=transaction)
        for partition in transaction.partitions:
            write_batches = partition.take_apart(transaction)
            active, roll = partition.active_segment, partition.gap_before_next
            part = PartitionCommit(partition, active, transaction_id=transaction.id, roll=roll)
            for write_batch in write_batches:
                write_batch.transaction_id = transaction.id
                part.add(write_batch)
            this.parts.append(part)
        self._in_flight = True
        self._threads.begin(this)

    def _round_settled(self) -> None:
        """Files and partitions are as the round has left them: the next one may begin."""
        self._in_flight = False
        callbacks, self._round_callbacks = self._round_callbacks, []
        call_each("a commit round", callbacks)
        if self._gathering or self._transactions:
            call_each("a commit round", (self._start,))
