"""Commit rounds: many appends, one write and one sync a file, one callback that answers everybody.

A round takes the oldest pending chunks, by turns over partitions, up to a size and a number of files. While it runs
on the committer thread, the next one gathers: the sync is the batching window, there is no timer. One round is in
flight at a time. Steps, for each file: roll the segment when it is due, seal the chunks for their place, write; then
sync all files (in parallel when there are several); then write the watermarks. The callback on the owner's thread
makes the chunks visible and tells their waiters. A small round that waits for no disk (durability below "always") is
done on the owner's thread: the way to another thread and back would take longer. The usual round, of a few files and
without a roll, is done by threads that need no interpreter (`engine.commit.native_rounds`), in the same steps.

Failure: what a round wrote to a file is cut off again and synced before anything else is written there (by the next
round, if the file cannot be opened for it); its numbers stay a gap. After a failed sync or a failed cut the partition
takes no more records until a restart: a second sync of the same pages could report success for data that is gone.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVarTuple

from engine.callbacks import call_each
from engine.commit.counters import Counters
from engine.commit.interval_syncs import IntervalSyncs
from engine.commit.native_rounds import Watch, rounds_for
from engine.commit.target import CommitTarget, Part
from engine.commit.transactions import Markers, Transaction
from engine.config import TopicConfig
from engine.context import EngineContext
from engine.errors import DiskFull, EngineError, NotStored, ReadOnly
from engine.files.system import NO_SPACE, REMOVED
from engine.formats.segment import HEADER_BYTES
from engine.helpers import Helpers
from engine.limits import (
    CLOCK_STEP_MS,
    INLINE_BYTES_MAX,
    ROUND_SIZES_MAX,
    SEGMENT_AGE_MS_MIN,
    SEGMENT_BYTES_MIN,
    SHARED_ROUND_BYTES,
    SHARED_ROUNDS,
)
from engine.reports import report_exception
from engine.segments.active import ActiveSegment, create_segment, new_header
from engine.segments.chunk import FAILED, PENDING, Chunk, Waiter
from engine.segments.watermarks import Watermark
from engine.state.store import Post

Args = TypeVarTuple("Args")


def segment_age_ms(config: TopicConfig) -> int:
    """Age at which a segment is sealed: with retention by age, a quarter of that at most, so that records do not stay
    much longer than they should (whole segments are removed)."""
    if not config.retention_ms:
        return config.segment_age_ms
    return min(config.segment_age_ms, max(config.retention_ms // 4, SEGMENT_AGE_MS_MIN))


def segment_bytes(config: TopicConfig) -> int:
    """Size at which a segment is sealed: as for the age, a quarter of what is kept at most."""
    if not config.retention_bytes:
        return config.segment_bytes
    return min(config.segment_bytes, max(config.retention_bytes // 4, SEGMENT_BYTES_MIN))


def is_aged(config: TopicConfig, created_ms: int, now_ms: int) -> bool:
    """Whether a segment that was made at `created_ms` is to be sealed for its age. One that comes from the future is:
    the clock was set back, and by this one's time it would stay for as long."""
    return now_ms - created_ms > segment_age_ms(config) or created_ms - now_ms > CLOCK_STEP_MS


class Committer:
    """Owner-side queue of partitions with pending chunks, and the thread that commits them."""

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
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._helpers = Helpers(context.config.sync_threads, "quintlog-sync")
        self._round_callbacks: list[Callable[[], None]] = []
        self._transactions: deque[Transaction] = deque()
        self._transaction: Transaction | None = None
        """The one that the round in flight is for."""
        self.counters = Counters()
        self.interval_syncs = IntervalSyncs(context, self.counters)
        self._thread = threading.Thread(target=self._run, name="quintlog-committer", daemon=True)
        self._thread.start()
        self._quick = rounds_for(context, self, watch)

    # --- owner's thread

    def add(self, partition: CommitTarget) -> None:
        """Puts a partition with pending chunks in the queue and starts a round when none is running."""
        if partition not in self._queued:
            self._queued.add(partition)
            self._dirty.append(partition)
        if not self._in_flight:
            self._start()

    def add_transaction(self, transaction: Transaction) -> None:
        """Queues a transaction whose chunks stand in their partitions."""
        self._transactions.append(transaction)
        if not self._in_flight:
            self._start()

    def fail_transaction(self, transaction: Transaction, error: EngineError) -> None:
        """Takes a waiting transaction out of all its partitions."""
        self._transactions.remove(transaction)
        for partition in transaction.partitions:
            partition.drop_apart(transaction, error)
        for partition in transaction.partitions:  # what waited behind the transaction
            if partition.has_pending and partition.has_files and partition.error is None:
                self.add(partition)
        self._context.call_soon_threadsafe(lambda: transaction.finish(error))

    def touch(self, partition: CommitTarget) -> None:
        """Has the next round write the partition's watermark."""
        if partition.has_files and partition.error is None:
            self.add(partition)

    def roll_next(self, partition: CommitTarget) -> None:
        """Has the next round of a partition begin a new segment; `touch` it unless it has records to write."""
        self._roll_wanted.add(partition)

    def look_up(self) -> None:
        """Ends the round in flight if its work is done, before the owner's loop would get to it."""
        self._quick.look_up()

    def after_round(self, callback: Callable[[], None]) -> None:
        """Calls back when the round in flight, if any, is over, and before the next one begins."""
        if self._in_flight:
            self._round_callbacks.append(callback)
        else:
            callback()

    def stop(self) -> None:
        """Ends the thread after the round in flight; blocking. Call when idle."""
        self._jobs.put(None)
        self._thread.join()
        self._quick.stop()
        self._helpers.stop()

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
        parts: dict[CommitTarget, Part] = {}
        round_bytes = self._round_bytes()
        bytes_left = round_bytes
        files_max = self._context.config.round_files_max
        while self._dirty and len(parts) < files_max:
            partition = self._dirty[0]
            try:
                may_commit = partition.error is None and partition.may_commit()
                chunk = partition.next_chunk(bytes_left, first=not parts) if may_commit else None
            except Exception as problem:  # noqa: BLE001 - it may not stand in the way of the others
                may_commit, chunk = False, None
                self._stop(partition, self._defect(problem))
            if not may_commit:
                self._dirty.popleft()
                self._queued.discard(partition)
                if partition.error is not None:
                    self._roll_wanted.discard(partition)
                continue
            if chunk is None and partition.has_pending:
                break
            self._dirty.popleft()
            part = parts.get(partition)
            if part is None:
                part = parts[partition] = Part(partition, partition.active_segment, sync=partition.sync_each_round)
            if partition in self._roll_wanted:
                self._roll_wanted.discard(partition)
                part.roll = True
            if chunk is not None:
                part.roll = part.roll or partition.leaves_out_numbers
                part.add(chunk)
                bytes_left -= chunk.end
            if partition.has_pending:
                self._dirty.append(partition)
            else:
                self._queued.discard(partition)
        if not parts:
            return
        self._in_flight = True
        taken = list(parts.values())
        self._shared_rounds = SHARED_ROUNDS if len(taken) > 1 else max(self._shared_rounds - 1, 0)
        self._quick.begin(taken, round_bytes - bytes_left, self._begin)

    def _begin(self, parts: list[Part], size_bytes: int) -> None:
        """Begins a round in the usual way."""
        if size_bytes <= INLINE_BYTES_MAX and not any(map(self._waits, parts)):
            self.fenced(parts, lambda: self._commit(parts), self._context.call_soon)
        else:
            self.on_thread(parts, lambda: self._commit(parts))

    def on_thread(self, parts: list[Part], work: Callable[[], None]) -> None:
        """Has the committer's thread do something for the round in flight, which it ends."""
        self._jobs.put(lambda: self.fenced(parts, work, self._context.call_soon_threadsafe))

    def _start_transaction(self, transaction: Transaction) -> None:
        if transaction.needs_marker:
            transaction.id = self.markers.next_id()
        parts = []
        for partition in transaction.partitions:
            chunks = partition.take_apart(transaction)
            active, roll = partition.active_segment, partition.leaves_out_numbers
            part = Part(partition, active, transaction=transaction, transaction_id=transaction.id, roll=roll)
            for chunk in chunks:
                chunk.transaction_id = transaction.id
                part.add(chunk)
            parts.append(part)
        self._in_flight = True
        self._transaction = transaction
        self.on_thread(parts, lambda: self._commit(parts))

    def _end_transaction(self, transaction: Transaction, parts: list[Part]) -> None:
        """All files of a transaction are synced, or it has failed: writes the marker, then ends the round."""
        error = next((part.error for part in parts if part.error is not None), None)
        if error is not None or not transaction.id:
            self.settle(parts)
            transaction.finish(error)
            return

        def done(problem: EngineError | None) -> None:
            self._marked(transaction, parts, problem)

        self.markers.commit(transaction.id, done, transaction.also)

    def _marked(self, transaction: Transaction, parts: list[Part], problem: EngineError | None) -> None:
        """The marker is on disk, or was refused."""
        if problem is not None and not isinstance(problem, ReadOnly):  # it is not there, and will not be
            self.on_thread(parts, lambda: self._undo_transaction(parts, problem))
            return
        for part in parts:
            if problem is not None:
                part.error = ReadOnly(f"{part.partition.title}: a transaction's outcome is unknown: {problem}")
            else:
                self._mark(part)
        self.settle(parts)
        transaction.finish(parts[0].error)

    def _waits(self, part: Part) -> bool:
        """Whether what a round does to this partition waits for the disk."""
        return part.sync or part.roll or self.roll_due(part)

    def _finish(self, parts: list[Part]) -> None:
        if self._transaction is not None:
            self._end_transaction(self._transaction, parts)
        else:
            self.settle(parts)

    def settle(self, parts: list[Part]) -> None:
        """Makes a round's outcome visible and tells everybody."""
        waiters: dict[Waiter, None] = {}
        for part in parts:
            for chunk in part.chunks:
                waiters.update(dict.fromkeys(chunk.waiters))
                chunk.waiters.clear()  # the chunk stays in memory for its readers, whoever waited need not
            self._give_outcome(part)
            if part.transaction is not None and part.partition.has_pending and part.partition not in self._queued:
                self._queued.add(part.partition)
                self._dirty.append(part.partition)
        self._in_flight = False
        self._transaction = None
        callbacks, self._round_callbacks = self._round_callbacks, []
        call_each("a commit round", callbacks)
        if self._dirty or self._transactions:
            call_each("a commit round", (self._start,))  # the disk works while the answers are written
        self._context.slices.call_each("a commit round", (waiter.round_done for waiter in waiters))

    def _give_outcome(self, part: Part) -> None:
        """Tells a partition what became of its part; a defect in it stops that partition, not the rounds of others."""
        partition = part.partition
        error = self.guarded([part], partition.round_done, part)
        if error is not None:
            for chunk in part.chunks:
                if chunk.state == PENDING:  # it may be stored: not acknowledged does not mean not stored
                    partition.settle(chunk, FAILED, error)
            self._stop(partition, error)

    @staticmethod
    def _stop(partition: CommitTarget, error: ReadOnly) -> None:
        call_each("a defect in a commit round", (lambda: partition.stop_writing(error),))

    def _defect(self, problem: Exception) -> ReadOnly:
        """Tells the operator of a defect; what those who wait are told."""
        report_exception("commit round", problem)
        return ReadOnly(f"internal error in a commit round: {problem!r}; restart the server")

    # --- committer thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def fenced(self, parts: list[Part], work: Callable[[], None], post: Post) -> None:
        """Does something for the round in flight, and has it ended by `post`, whatever happens."""
        self.guarded(parts, work)
        post(lambda: self._finish(parts))

    def guarded(self, parts: list[Part], work: Callable[[*Args], None], *args: *Args) -> ReadOnly | None:
        """Does something for some of the round; what it does not manage is not stored, and why is returned."""
        try:
            work(*args)
        except Exception as problem:  # noqa: BLE001 - whatever it was, nothing may be acknowledged and nobody may hang
            error = self._defect(problem)
            for part in parts:
                part.error = error
            return error
        return None

    def _commit(self, parts: list[Part]) -> None:
        for part in parts:
            self.guarded([part], self._write, part)
        started = time.perf_counter()
        if parts[0].transaction is not None:
            self._undo_all_if_one_failed(parts)
        self._sync([part for part in parts if part.error is None and part.chunks and part.sync])
        sync_seconds = time.perf_counter() - started
        if parts[0].transaction is not None:
            self._undo_all_if_one_failed(parts)
        for part in parts:
            if part.error is None:
                self.guarded([part], self._written, part)
        self.count(parts, sync_seconds)

    def _written(self, part: Part) -> None:
        """What the round wrote is as safe as it has to be."""
        if not part.transaction_id:
            self._mark(part)
        if part.chunks and not part.sync:
            self.interval_syncs.add(part.partition, part.active)

    def _write(self, part: Part) -> None:
        """Rolls the segment when it is due, and writes the chunks; `part.error` when that failed."""
        context = self._context
        part.state = part.active.state()
        if part.active.sync_failed:  # an earlier one, of a topic that is synced at intervals
            part.error = self._sync_error(part, "an earlier sync failed")
            return
        try:
            part.active.cut(context.files, context.handles)  # what an earlier round could not take back
            if self.roll_due(part):
                self._roll(part)
                part.state = part.active.state()
            if part.chunks:
                part.active.append(context.files, context.handles, part.chunks)
                part.active.appended_steady_ms = context.steady_ms()
        except OSError as problem:
            self.undo(part, problem)
        except ReadOnly as problem:
            part.error = problem

    def roll_due(self, part: Part) -> bool:
        """Whether the round is to begin a new segment."""
        config = part.partition.config
        active = part.active
        if active.position == HEADER_BYTES:  # an empty segment never rolls, unless numbers are left out behind it
            return part.roll and part.partition.leaves_out_numbers and bool(part.chunks)
        if part.roll:
            return True
        return active.position + part.size_bytes > segment_bytes(config) or is_aged(
            config, active.header.created_ms, self._context.now_ms()
        )

    def _roll(self, part: Part) -> None:
        """Seals the active segment and begins the next one, both durable. Raises OSError."""
        context, old, partition = self._context, part.active, part.partition
        context.check_directory()
        first_seq = part.chunks[0].first_seq if part.chunks else old.last_seq + 1
        header = new_header(
            partition.topic.id, partition.index, partition.number, first_seq, context.now_ms(), follows=old.last_seq + 1
        )
        sealed = old.seal(context.files, context.handles)
        part.active = create_segment(
            context.files, context.handles, old.directory, header, max_timestamp_ms=old.max_timestamp_ms
        )
        part.active.last_append_ms = old.last_append_ms
        part.sealed.append(sealed)

    def undo(self, part: Part, problem: OSError) -> None:
        """Takes back a failed write."""
        name = part.partition.title
        if part.active.sync_failed:
            reason = REMOVED if problem.errno == errno.ENOENT else problem.strerror or str(problem)
            part.error = self._sync_error(part, reason)
        elif problem.errno in NO_SPACE:
            part.error = DiskFull(f"{name}: no space left on the disk; free some, and publishing goes on by itself")
            self._cut(part)
        else:
            part.error = NotStored(f"{name}: cannot write {part.active.path}: {problem.strerror or problem}")
            self._cut(part)

    def _cut(self, part: Part) -> None:
        """Takes back what the round wrote to one file; what cannot be taken back makes the partition read-only.

        A file that cannot be opened now (no descriptors) is cut by the next round before it writes anything.
        """
        assert part.state is not None
        files, handles, active = self._context.files, self._context.handles, part.active
        active.take_back(part.state)
        try:
            handle = handles.acquire(active.path)
        except OSError:
            return
        try:
            active.cut(files, handles)
        except OSError as problem:
            part.error = ReadOnly(
                f"{part.error}; and what was written could not be taken back ({problem.strerror or problem}): "
                "read-only until a restart"
            )
        finally:
            handles.release(handle)

    def _undo_all_if_one_failed(self, parts: list[Part]) -> None:
        """A transaction of which one part failed leaves nothing in the other files either."""
        failed = next((part.error for part in parts if part.error is not None), None)
        if failed is not None:
            self._undo_transaction(parts, failed)

    def _undo_transaction(self, parts: list[Part], problem: EngineError) -> None:
        for part in parts:
            if part.error is None:
                kind = DiskFull if isinstance(problem, DiskFull) else NotStored
                part.error = kind(f"{part.partition.title}: the transaction failed: {problem}")
                self._cut(part)
        self.markers.new_epoch()

    def _sync(self, parts: list[Part]) -> None:
        if len(parts) == 1:
            self._sync_part(parts[0])
        elif parts:
            self._helpers.each(parts, self._sync_part)

    def _sync_part(self, part: Part) -> None:
        try:
            part.active.sync(self._context.files, self._context.handles)
        except OSError as problem:
            self.undo(part, problem)  # without a failed sync the file could not be opened: then it can be taken back

    def _sync_error(self, part: Part, reason: str) -> ReadOnly:
        self.counters.sync_failures += 1
        return ReadOnly(
            f"{part.partition.title}: cannot sync {part.active.path}: {reason}; "
            "the disk may have lost data: check it, then restart the server"
        )

    def _mark(self, part: Part) -> None:
        self.write_mark(part.partition, part.active)
        for chunk in part.chunks:
            self.note_index(part, chunk)

    def write_mark(self, partition: CommitTarget, active: ActiveSegment) -> None:
        """Writes the partition's watermark: everything in `active` is committed."""
        log_start = partition.log_start
        mark = Watermark(
            log_start,
            active.header.first_seq,
            active.last_seq,
            active.position,
            active.durable_position,
            active.header.segment_id,
        )
        try:
            self._context.watermarks.write(partition.owner, mark)
        except OSError as problem:
            partition.marked(log_start, problem)
        else:
            partition.marked(log_start, None)

    def note_index(self, part: Part, chunk: Chunk) -> None:
        """Puts a committed chunk into the index."""
        header = part.active.header
        self._context.index.add(
            part.partition.number,
            chunk.first_seq,
            header.segment_id,
            header.first_seq,
            chunk.file_position,
            part.active.max_timestamp_ms,
        )

    def count(self, parts: list[Part], sync_seconds: float) -> None:
        """Counts a round, failed or not."""
        counters = self.counters
        records = size = 0
        failed_before = counters.failed_parts
        for part in parts:
            if part.error is None:
                records += part.records
                size += part.size_bytes
            else:
                counters.failed_parts += 1
        counters.rounds += 1
        counters.failed_rounds += counters.failed_parts > failed_before
        counters.records += records
        counters.bytes += size
        counters.files += len(parts)
        if len(counters.round_sizes) < ROUND_SIZES_MAX:
            counters.round_sizes.append((records, size, len(parts), sync_seconds))
