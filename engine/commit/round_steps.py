"""One commit round, described once for both executors.

    prepare   cut what a failed round left; roll the segment if that is due; seal the batches for their place; pack the
              watermark as it will be
    execute   write to all files, sync them, write the watermarks of those that went well: a `RoundWriter`
    apply     count what was written, note it in the index (owner's thread)

Executors (`thread_rounds`, `native_rounds`) say on which thread each step is done. What a round has written counts
when it is applied: what failed, or belongs to a transaction that failed, is taken back by cutting it off the file.

Failure: what a round wrote to a file is cut off again and synced before anything else is written there (by the next
round, if the file cannot be opened for it); its numbers stay a gap. After a failed sync or a failed cut the partition
takes no more records until a restart: a second sync of the same pages could report success for data that is gone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVarTuple

from engine.commit.counters import Counters
from engine.commit.interval_syncs import IntervalSyncs
from engine.commit.rolling import is_roll_due, roll
from engine.commit.round_writer import DONE, SYNC
from engine.commit.target import CommitTarget, PartitionCommit
from engine.commit.transactions import Transaction
from engine.context import EngineContext
from engine.errors import DiskFull, EngineError, NotStored, ReadOnly
from engine.files.system import NO_SPACE, REMOVED
from engine.limits import ROUND_SIZES_MAX
from engine.reports import report_exception
from engine.segments.active import ActiveSegment
from engine.segments.watermarks import Watermark
from engine.state.markers import Markers

Args = TypeVarTuple("Args")


class RoundWriter(Protocol):
    """Executes a round: for each file a `part` and `add` its buffers; `perform`; `take`."""

    def part(self, fd: int, position: int, sync: bool, mark_fd: int, mark: bytes, mark_position: int) -> None:
        """Begins the part of a file: what is added goes to `position` of `fd`, which is synced if `sync` says so.

        If that went well, the watermark's slot `mark` is written to `mark_position` of `mark_fd`.
        """

    def add(self, buffer: bytearray, size: int) -> None:
        """Has the part that was begun last write `buffer[:size]` after what was added to it before."""

    def clear(self) -> None:
        """Forgets all parts."""

    def perform(self) -> None:
        """All writes, then all syncs, then the slots of those files that had no failure."""

    def take(self) -> tuple[list[tuple[int, int, int]], float]:
        """Ends the round: for each part (where it failed or `DONE`, its errno, errno of the slot's write or 0); and the
        seconds of the syncs."""


@dataclass(slots=True)
class Round:
    """What one round does."""

    parts: list[PartitionCommit]
    size_bytes: int = 0
    transaction: Transaction | None = None
    """All parts are its own, and are stored together or not at all."""
    prepared: list[PartitionCommit] = field(default_factory=list)
    """Those that the writer has."""
    sync_seconds: float = 0.0


class RoundSteps:
    """The steps of a round, for whoever executes them. One round at a time."""

    def __init__(self, context: EngineContext, markers: Markers, counters: Counters, syncs: IntervalSyncs) -> None:
        self._context = context
        self._files = context.files
        self._handles = context.handles
        self._watermarks = context.watermarks
        self._markers = markers
        self._counters = counters
        self._syncs = syncs

    # --- prepare

    def prepare(self, part: PartitionCommit, writer: RoundWriter, *, may_wait: bool) -> bool:
        """Makes a part ready and gives it to the writer.

        Returns:
            False: not without waiting for the disk or another thread, which it may not; to be called again then.

        Raises:
            OSError: as the system gave it; the file may hold what is to be cut off (`undo`).
            ReadOnly: the partition takes no more records.
        """
        if not may_wait and (
            not part.write_batches or part.active.may_have_torn_tail or is_roll_due(self._context, part)
        ):
            return False
        if part.active.sync_failed:  # an earlier one, of a topic that is synced at intervals
            return self._refuse(part, may_wait)
        if may_wait:
            part.active.cut(self._files, self._handles)  # what an earlier round could not take back
            if is_roll_due(self._context, part):
                roll(self._context, part)
        active, is_synced = part.active, part.sync and bool(part.write_batches)
        part.mark_problem = None
        if is_synced:
            if not active.sync_lock.acquire(blocking=may_wait):
                return False  # housekeeping syncs it: if that fails, this round may not succeed
            part.is_locked = True
            if active.sync_failed:
                return self._refuse(part, may_wait)
        position, fd = active.position, -1
        end = position + part.size_bytes
        if part.write_batches:
            part.handle = self._handles.acquire(active.path)
            fd = part.handle.fd
        last_seq = part.write_batches[-1].last_seq if part.write_batches else active.last_seq
        part.mark = _mark(part.partition, active, last_seq, end, end if is_synced else active.durable_position)
        slot, at = self._slot(part)
        active.seal_at_tail(part.write_batches)
        writer.part(fd, position, is_synced, self._watermarks.fd, slot, at)
        for write_batch in part.write_batches:
            writer.add(write_batch.buffer, write_batch.end)
        return True

    def _refuse(self, part: PartitionCommit, may_wait: bool) -> bool:
        if may_wait:
            raise self._sync_error(part, "an earlier sync failed")
        return False

    def _slot(self, part: PartitionCommit) -> tuple[bytes, int]:
        """The watermark as it is to be written; empty: not with this round."""
        part.owner = part.partition.owner
        assert part.mark is not None
        if part.transaction_id:
            return b"", 0
        try:
            return self._watermarks.prepare(part.owner, part.mark)
        except OSError as problem:  # a lower bound for recovery: old is allowed
            part.mark_problem = problem
            return b"", 0

    # --- execute

    @staticmethod
    def begin_writing(this: Round) -> None:
        """From now on the files may hold what does not count yet."""
        for part in this.prepared:
            if part.write_batches:
                part.active.may_have_torn_tail = True

    def written(self, this: Round, writer: RoundWriter) -> bool:
        """Takes the outcome from the writer, and lets go of the files; whether nothing has failed."""
        ends, this.sync_seconds = writer.take()
        is_good = len(this.prepared) == len(this.parts)
        for part, (failed_at, code, mark_code) in zip(this.prepared, ends, strict=True):
            if failed_at == DONE and mark_code == errno.EROFS:
                # The file system has just made itself read-only (ext4 with errors=remount-ro): a sync of that moment
                # may have answered well for a size of the file that the journal then gave up.
                failed_at, code = SYNC, mark_code
            if failed_at != DONE:
                is_good = False
                part.problem = OSError(code, os.strerror(code))
                part.active.sync_failed |= failed_at == SYNC  # only behind this may others sync the file
            if mark_code:
                part.mark_problem = OSError(mark_code, os.strerror(mark_code))
        self.release(this)
        return is_good

    def release(self, this: Round) -> None:
        """Lets go of the files."""
        for part in this.parts:
            if part.is_locked:
                part.is_locked = False
                part.active.sync_lock.release()
            if part.handle is not None:
                self._handles.release(part.handle)
                part.handle = None

    # --- take back

    def take_back(self, this: Round) -> None:
        """What failed is cut off the files again, which may take time; of a transaction, everything."""
        for part in this.parts:
            if part.problem is not None:
                problem, part.problem = part.problem, None
                self.guarded([part], self.undo, part, problem)
        if this.transaction is not None:
            error = next((part.error for part in this.parts if part.error is not None), None)
            if error is not None:
                self.undo_transaction(this, error)

    def undo(self, part: PartitionCommit, problem: OSError) -> None:
        """Takes back a part that failed."""
        name, active = part.partition.title, part.active
        if active.sync_failed:
            reason = REMOVED if problem.errno == errno.ENOENT else problem.strerror or str(problem)
            part.error = self._sync_error(part, reason)
        elif problem.errno in NO_SPACE:
            part.error = DiskFull(f"{name}: no space left on the disk; free some, and publishing goes on by itself")
            self._cut(part)
        else:
            part.error = NotStored(f"{name}: cannot write {active.path}: {problem.strerror or problem}")
            self._cut(part)

    def undo_transaction(self, this: Round, problem: EngineError) -> None:
        """A transaction of which one part failed leaves nothing in the other files either."""
        for part in this.parts:
            if part.error is None:
                kind = DiskFull if isinstance(problem, DiskFull) else NotStored
                part.error = kind(f"{part.partition.title}: the transaction failed: {problem}")
                self._cut(part)
        self._markers.new_epoch()

    def _cut(self, part: PartitionCommit) -> None:
        """Takes back what the round wrote to one file; what cannot be taken back makes the partition read-only.

        A file that cannot be opened now (no descriptors) is cut by the next round before it writes anything.
        """
        active = part.active
        try:
            handle = self._handles.acquire(active.path)
        except OSError:
            return
        try:
            active.cut(self._files, self._handles)
        except OSError as problem:
            part.error = ReadOnly(
                f"{part.error}; and what was written could not be taken back ({problem.strerror or problem}): "
                "read-only until a restart"
            )
        finally:
            self._handles.release(handle)

    def _sync_error(self, part: PartitionCommit, reason: str) -> ReadOnly:
        self._counters.sync_failures += 1
        return ReadOnly(
            f"{part.partition.title}: cannot sync {part.active.path}: {reason}; "
            "the disk may have lost data: check it, then restart the server"
        )

    # --- apply

    def apply(self, part: PartitionCommit) -> None:
        """What the round has written to a partition counts from now on; of a transaction, after its marker."""
        partition, active, mark, owner = part.partition, part.active, part.mark, part.owner
        assert mark is not None, "it was prepared"
        assert owner is not None
        if part.write_batches:
            active.mark_written(part.write_batches, mark.committed_position)
            active.appended_steady_ms = self._context.steady_ms()
            if part.sync:
                active.durable_position = active.position
            else:
                self._syncs.add(partition, active)
        if part.transaction_id:
            self.write_mark(partition, active)
        else:
            if part.mark_problem is None:
                self._watermarks.written(owner)
            partition.marked(mark.log_start, part.mark_problem)
        header, add = active.header, self._context.index.add
        number, segment_id, first_seq = owner.number, header.segment_id, header.first_seq
        for write_batch in part.write_batches:
            add(
                number, write_batch.first_seq, segment_id, first_seq, write_batch.file_position, active.max_timestamp_ms
            )

    def write_mark(self, partition: CommitTarget, active: ActiveSegment) -> None:
        """Writes the partition's watermark: everything in `active` is committed."""
        mark = _mark(partition, active, active.last_seq, active.position, active.durable_position)
        try:
            self._watermarks.write(partition.owner, mark)
        except OSError as problem:
            partition.marked(mark.log_start, problem)
        else:
            partition.marked(mark.log_start, None)

    # --- whatever happens

    def guarded(self, parts: list[PartitionCommit], work: Callable[[*Args], object], *args: *Args) -> ReadOnly | None:
        """Does something for some of the round; what it does not manage is not stored, and why is returned."""
        try:
            work(*args)
        except Exception as problem:  # noqa: BLE001 - whatever it was, nothing may be acknowledged and nobody may hang
            error = self.defect(problem)
            for part in parts:
                part.error = error
            return error
        return None

    @staticmethod
    def defect(problem: Exception) -> ReadOnly:
        """Tells the operator of a defect; what those who wait are told."""
        report_exception("commit round", problem)
        return ReadOnly(f"internal error in a commit round: {problem!r}; restart the server")

    def count(self, this: Round) -> None:
        """Counts a round, failed or not."""
        counters = self._counters
        records = size = 0
        failed_before = counters.failed_parts
        for part in this.parts:
            if part.error is None:
                records += part.records
                size += part.size_bytes
            else:
                counters.failed_parts += 1
        counters.rounds += 1
        counters.failed_rounds += counters.failed_parts > failed_before
        counters.records += records
        counters.bytes += size
        counters.files += len(this.parts)
        if len(counters.round_sizes) < ROUND_SIZES_MAX:
            counters.round_sizes.append((records, size, len(this.parts), this.sync_seconds))


def _mark(
    partition: CommitTarget, active: ActiveSegment, committed_seq: int, position: int, durable_position: int
) -> Watermark:
    header = active.header
    return Watermark(
        partition.log_start, header.first_seq, committed_seq, position, durable_position, header.segment_id
    )
