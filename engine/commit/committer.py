"""Commit rounds: many appends, one write and one sync a file, one callback that answers everybody.

A round takes the oldest pending write batches, by turns over partitions, up to a size and a number of files. While it
is executed the next one gathers: the sync is the batching window, there is no timer. One round is in flight at a time.
What it does to the files is described in `engine.commit.round_steps`; who does it: threads without the interpreter in
the usual case (`engine.commit.native_rounds`), else a thread of Python (`engine.commit.thread_rounds`). Back on the
owner's thread its write batches become visible, and their waiters are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.callbacks import call_each
from engine.commit.counters import Counters
from engine.commit.interval_syncs import IntervalSyncs
from engine.commit.native_rounds import Watch, native_rounds
from engine.commit.round_steps import Round, RoundSteps
from engine.commit.target import CommitTarget, PartitionCommit
from engine.commit.thread_rounds import ThreadRounds
from engine.commit.transactions import Transaction
from engine.context import EngineContext
from engine.errors import EngineError, ReadOnly
from engine.limits import SHARED_ROUND_BYTES, SHARED_ROUNDS
from engine.segments.active import ActiveSegment
from engine.segments.batches import FAILED, PENDING, Waiter
from engine.state.markers import Markers


class Committer:
    """The queue of partitions with pending write batches, and the rounds that commit them. Owner's thread only."""

    def __init__(self, context: EngineContext, markers: Markers, watch: Watch | None = None) -> None:
        self._context = context
        self.markers = markers
        self._dirty: deque[CommitTarget] = deque()
        self._queued: set[CommitTarget] = set()
        """Those in `_dirty`."""
        self._roll_wanted: set[CommitTarget] = set()
        """Those that get a new segment with their next round."""
        self._in_flight = False
        self._shared_rounds = 0
        self._round_callbacks: list[Callable[[], None]] = []
        self._transactions: deque[Transaction] = deque()
        self.counters = Counters()
        self.interval_syncs = IntervalSyncs(context, self.counters)
        self._steps = RoundSteps(context, markers, self.counters, self.interval_syncs)
        self._threads = ThreadRounds(context, self._steps, self._finish)
        self._native = native_rounds(context, self._steps, self._finish, self._threads, watch)
        self._executor = self._native or self._threads

    def add(self, partition: CommitTarget) -> None:
        """Puts a partition with pending write batches in the queue and starts a round when none is running."""
        if partition not in self._queued:
            self._queued.add(partition)
            self._dirty.append(partition)
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
        self._roll_wanted.add(partition)

    def poll_completion(self) -> None:
        """Ends the round in flight if its work is done, before the owner's loop would get to it."""
        self._executor.poll_completion()

    def after_round(self, callback: Callable[[], None]) -> None:
        """Calls back when the round in flight, if any, is over, and before the next one begins."""
        if self._in_flight:
            self._round_callbacks.append(callback)
        else:
            callback()

    def stop(self) -> None:
        """Ends the threads after the round in flight; blocking. Call when idle."""
        self._threads.stop()
        if self._native is not None:
            self._native.stop()

    def write_mark(self, partition: CommitTarget, active: ActiveSegment) -> None:
        """Writes a partition's watermark at once; after `stop`."""
        self._steps.write_mark(partition, active)

    def _round_bytes(self) -> int:
        """Bytes that the next round takes: fewer while several partitions are in use, since each waits for all."""
        limit = self._context.config.round_bytes_max
        return min(limit, SHARED_ROUND_BYTES) if self._shared_rounds else limit

    def _start(self) -> None:
        if self._context.is_closed:
            return  # another process may have the directory by now
        if self._transactions and self._transactions[0].is_ready:
            self._start_transaction(self._transactions.popleft())
            return
        parts: dict[CommitTarget, PartitionCommit] = {}
        round_bytes = self._round_bytes()
        bytes_left = round_bytes
        files_max = self._context.config.round_files_max
        while self._dirty and len(parts) < files_max:
            partition = self._dirty[0]
            try:
                may_commit = partition.error is None and partition.may_commit()
                write_batch = partition.next_write_batch(bytes_left, first=not parts) if may_commit else None
            except Exception as problem:  # noqa: BLE001 - it may not stand in the way of the others
                may_commit, write_batch = False, None
                self._stop(partition, self._steps.defect(problem))
            if not may_commit:
                self._dirty.popleft()
                self._queued.discard(partition)
                if partition.error is not None:
                    self._roll_wanted.discard(partition)
                continue
            if write_batch is None and partition.has_pending:
                break
            self._dirty.popleft()
            part = parts.get(partition)
            if part is None:
                part = parts[partition] = PartitionCommit(
                    partition, partition.active_segment, sync=partition.sync_each_round
                )
            if partition in self._roll_wanted:
                self._roll_wanted.discard(partition)
                part.roll = True
            if write_batch is not None:
                part.roll = part.roll or partition.gap_before_next
                part.add(write_batch)
                bytes_left -= write_batch.end
            if partition.has_pending:
                self._dirty.append(partition)
            else:
                self._queued.discard(partition)
        if not parts:
            return
        self._in_flight = True
        taken = list(parts.values())
        self._shared_rounds = SHARED_ROUNDS if len(taken) > 1 else max(self._shared_rounds - 1, 0)
        self._executor.begin(Round(taken, round_bytes - bytes_left))

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

    # --- the end of a round

    def _finish(self, this: Round) -> None:
        """The files are as they should be, or `part.error` says why not."""
        transaction = this.transaction
        if transaction is None or not transaction.id or any(part.error is not None for part in this.parts):
            self._settle(this)
        else:
            self.markers.commit(transaction.id, lambda problem: self._marked(this, problem), transaction.also)

    def _marked(self, this: Round, problem: EngineError | None) -> None:
        """The marker of a transaction is on disk, or was refused."""
        if problem is not None and not isinstance(problem, ReadOnly):  # it is not there, and will not be
            self._threads.undo_transaction(this, problem)
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
            partition = part.partition
            if this.transaction is not None and partition.has_pending and partition not in self._queued:
                self._queued.add(partition)
                self._dirty.append(partition)
        self._steps.count(this)
        self._in_flight = False
        callbacks, self._round_callbacks = self._round_callbacks, []
        call_each("a commit round", callbacks)
        if self._dirty or self._transactions:
            call_each("a commit round", (self._start,))  # the disk works while the answers are written
        self._context.slices.call_each("a commit round", (waiter.round_done for waiter in waiters))
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
            self._stop(partition, error)

    @staticmethod
    def _stop(partition: CommitTarget, error: ReadOnly) -> None:
        call_each("a defect in a commit round", (lambda: partition.stop_writing(error),))
