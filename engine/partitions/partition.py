"""A partition: numbers are given out and records gathered here, and read from here.

Everything in this module runs on the owner's thread. Records go into the *open write batch*; the committer takes write
batches, oldest first, and tells the outcome by `round_done`. Readers see what is committed, nothing else. The file
worker makes the files of a new partition before its first round, and recovers an existing one on first use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from engine.callbacks import call_each
from engine.commit.target import PartitionCommit
from engine.context import EngineContext
from engine.errors import DiskFull, EngineError, NotStored, ReadOnly
from engine.formats.batch_header import HEADER_BYTES, QOS0_ATTRIBUTE
from engine.formats.bundle import BundleInfo
from engine.formats.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from engine.limits import RECORD_OVERHEAD_BYTES, SEQ_RESERVATION, WRITE_BATCH_BYTES_MAX, WRITE_BATCH_BYTES_MIN
from engine.partitions import reads as reading
from engine.partitions import retention
from engine.partitions.appending import CLOSED, DELETED, MAKING, NO_FILES, OPEN, OPENING, Appending
from engine.partitions.context import PartitionContext
from engine.partitions.producers import Producers
from engine.partitions.reservation import Reservation
from engine.partitions.tail_cache import NO_TAIL, Tail
from engine.reports import report, report_seldom
from engine.segments.active import ActiveSegment, SealedSegment
from engine.segments.batches import COMMITTED, FAILED, ReadBatch, Waiter, WriteBatch, WriteBatchGroup, check_records
from engine.segments.missing_numbers import NO_GAPS
from engine.segments.recovery import Recovered
from engine.segments.watermarks import Owner
from engine.state.topic_entries import Topic


class Partition(Appending):
    """One partition of a topic, made by `Log.partition` alone. `CommitTarget` documents what rounds need of it."""

    __slots__ = (  # there may be 100,000; one that was used stays, with what would have to be read from its files again
        "__weakref__", "_excess_ms", "_open_callbacks", "_pending", "_producers", "_read_state", "_reservation",
        "_told_failure", "_write_batch_bytes", "committed_end", "committed_s", "committed_seq", "failing", "found_seq",
        "gap_before_next", "gaps", "index", "mark_failed", "marked_log_start", "readers", "sealed", "tail",
    )  # fmt: skip

    def __init__(self, context: EngineContext, parts: PartitionContext, topic: Topic, index: int) -> None:
        super().__init__(context, parts, topic)
        self.index = index
        self.found_seq = 0  # `last_seq` as it was when the partition was opened; 0 when it was new
        self.committed_seq = 0  # the last one that readers may see
        self.committed_s = 0.0
        """When something was last committed (`time.monotonic()`): how late a live reader is told."""
        self.gaps = NO_GAPS  # how many records a range of committed numbers holds
        self.committed_end = 0  # of the committed batches in the active segment's file
        self.sealed: list[SealedSegment] = []
        self.gap_before_next = False
        """Numbers before the next record were reserved, but not given out: a new segment begins with it, so that they
        are no part of any, and damage beside them is not told as their loss."""
        self._excess_ms = 0
        """Of the clock, as it was known when the segments were dated."""
        self.mark_failed = False
        """Its watermark could not be written; housekeeping has it tried again."""
        self.marked_log_start = 1  # as its watermark says: files below it may go
        self.tail: Tail = NO_TAIL  # committed write batches that are still in memory
        self._read_state: reading.ReadState | None = None
        self._producers: Producers | None = None
        self.readers: dict[Callable[[], None], None] = {}
        self._told_failure = ("", 0)
        self.failing: EngineError | None = None  # why the last round stored nothing; gone with the next that does
        self._reservation = Reservation(context.state, topic.id, index)
        self._pending: list[WriteBatch] = []  # few; an empty deque takes 600 bytes
        self._write_batch_bytes = WRITE_BATCH_BYTES_MIN
        self._open_callbacks: list[Callable[[], None]] = []
        self._phase = CLOSED if index in topic.numbers else NO_FILES

    # --- facts

    def __repr__(self) -> str:
        return f"<Partition {self.title}>"

    @property
    def title(self) -> str:
        return f"topic {self.topic.name.decode('utf-8', 'backslashreplace')!r} partition {self.index}"

    @property
    def is_open(self) -> bool:
        """Whether numbers are known: append, read and the attributes may be used."""
        return self._phase <= OPEN

    @property
    def is_deleted(self) -> bool:
        return self._phase == DELETED

    @property
    def active_segment(self) -> ActiveSegment:
        assert self._active is not None
        return self._active

    @property
    def has_files(self) -> bool:
        return self._active is not None

    @property
    def sync_each_round(self) -> bool:
        return self.topic.config.durability == "always"

    @property
    def number(self) -> int:
        return self.topic.numbers[self.index]

    @property
    def owner(self) -> Owner:
        return Owner(self.topic.numbers[self.index], self.topic.id, self.index)

    def may_commit(self) -> bool:
        if self._pending and self._pending[0].transaction is not None:
            return False  # it comes with its transaction; the committer adds the partition again after that
        if self.sync_each_round:
            return True
        if self._reservation.bound - self.last_seq < SEQ_RESERVATION // 2:
            self._reservation.extend(self.last_seq + SEQ_RESERVATION, self._reserved)
        if self._pending:
            return self._pending[0].last_seq < self._reservation.bound
        return self._open_write_batch is None or self._open_write_batch.writer.next_seq <= self._reservation.bound

    def _reserved(self, error: EngineError | None) -> None:
        if error is not None:
            self._fail_pending(NotStored(f"{self.title}: cannot reserve numbers: {error}"))
        elif self.has_pending and self._active is not None:
            self._parts.committer.add(self)

    def release_reservation(self) -> None:
        """At a clean stop, when everything is on disk: the numbers go on without a gap."""
        active = self._active
        if self._reservation.bound and active is not None and active.durable_position == active.position:
            self._reservation.set(self.last_seq + 1)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending) or (self._open_write_batch is not None and not self._open_write_batch.is_empty)

    @property
    def first_waiter(self) -> Waiter | None:
        write_batch = self._pending[0] if self._pending else self._open_write_batch
        return write_batch.waiters[0] if write_batch is not None and write_batch.waiters else None

    # --- opening

    def when_open(self, callback: Callable[[], None]) -> None:
        """Opens the partition when it is not; calls back when it is open, or has failed to (`error` says why)."""
        if self.is_open or self._phase == DELETED or (self._phase == CLOSED and self._context.error is not None):
            self.error = self.error or self._context.error
            callback()
            return
        self._open_callbacks.append(callback)
        if self._phase == CLOSED:
            self._phase = OPENING
            self.error = None
            self._parts.file_worker.recover(self.topic, self.index, self.opened)

    def opened(self, result: Recovered | EngineError) -> None:
        """Called with the outcome of recovery."""
        callbacks, self._open_callbacks = self._open_callbacks, []
        try:
            if self._phase != DELETED:
                self._phase = CLOSED
                self.error = result if isinstance(result, EngineError) else self.error
                self._parts.note_opening(self.title, result)
                if not isinstance(result, EngineError):
                    self._use(result)
                    if self._parts.on_opened is not None:
                        self._parts.on_opened(self.topic, self.index)
        finally:
            call_each("the opening of a partition", callbacks)

    def _use(self, result: Recovered) -> None:
        """Takes over what recovery found."""
        self._active = result.active
        bound = self._parts.adoption.reserved_bound(self.topic, self.index, result.next_seq)
        self._reservation.bound = bound
        self.last_seq = self.found_seq = max(result.next_seq, bound) - 1
        self.gap_before_next = self.last_seq >= result.next_seq
        self.committed_seq = result.committed_seq
        self.committed_end = result.active.position
        self._append_ms = result.active.last_append_ms
        self.log_start = self.marked_log_start = result.log_start
        self.gaps = result.gaps()
        self._phase = OPEN
        if result.next_seq - 1 > max(result.committed_seq, bound):
            self._reservation.set(result.next_seq)
        self.sealed = result.sealed
        left = retention.take_below(self.sealed, self.log_start)  # by a former process, which did not remove them
        self.set_segment_ages()
        self._parts.removal.add(self, left)

    def _make_files(self) -> None:
        """Starts making the files of a new partition; its write batches wait."""
        self._phase = MAKING
        self._parts.file_worker.make(self.topic, self.index, self.files_made)

    def files_made(self, result: Recovered | EngineError) -> None:
        """Called with the outcome of making the first segment, or of opening what was found in its place."""
        if self._phase == DELETED:
            return
        if isinstance(result, EngineError):
            self._phase = NO_FILES
            kind = DiskFull if isinstance(result, DiskFull) else NotStored
            self.failing = kind(f"{self.title}: its files cannot be made: {result}")
            self._fail_pending(self.failing)
            return
        if result.next_seq > 1:
            self._fail_pending(NotStored(f"{self.title}: it has records already, which nobody knew of: publish again"))
            self._use(result)
            return
        self._active = result.active
        self.committed_end = result.active.position
        self._phase = OPEN
        if self.has_pending:
            self._parts.committer.add(self)

    # --- appending

    @property
    def producers(self) -> Producers:
        """Those that number their records, so that none is stored twice."""
        if self._producers is None:
            self._producers = Producers(self._context, self)
        return self._producers

    def _open_next_write_batch(self, need: int) -> WriteBatch:
        if self._open_write_batch is not None:
            self._close_write_batch(self._open_write_batch)
        if not self.is_open:
            raise NotStored(f"{self.title} is not open yet")
        if need <= WRITE_BATCH_BYTES_MAX:
            need = 1 << (need - 1).bit_length()  # a size that is used again
        buffer = self._context.buffers.take(max(self._write_batch_bytes, need))
        write_batch = self._open_write_batch = WriteBatch(self, buffer, self.last_seq + 1)
        return write_batch

    def append(self, values: Sequence[bytes], **options: Any) -> WriteBatch:
        """`append_many` for one record, or where it is enough to know what becomes of the last one: its write batch."""
        return self.append_many(values, **options)[-1]

    def append_many(
        self,
        values: Sequence[bytes | bytearray],
        *,
        keys: Sequence[bytes] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[tuple[bytes, ...]] | None = None,
        qos0: bool = False,
        waiter: Waiter | None = None,
    ) -> list[WriteBatch]:
        """Appends records; the last one's number is `last_seq`.

        Returns:
            their write batches, oldest first. Each is committed or fails by itself: `outcome` sums up.

        Raises:
            ValueError: no records, or a key of more than 255 bytes.
            TooLarge: a record is larger than the topic allows.
            NotStored: see `writer`. Whatever is raised, nothing was appended.
        """
        if not values:
            raise ValueError("no records")
        check_records(self.config, values, keys, headers)  # all of them first: after it none can be refused
        attributes = QOS0_ATTRIBUTE if qos0 else 0
        now_ms = self._context.now_ms()
        write_batches: list[WriteBatch] = []
        writer = self.writer(len(values[0]), attributes)
        size = 0
        columns: Any = ((keys, b""), (timestamps_ms, now_ms), (headers, ()))
        filled = [repeat(usual, len(values)) if column is None else column for column, usual in columns]
        for value, key, timestamp_ms, flat in zip(values, *filled, strict=True):
            while not writer.put_record(value, key, timestamp_ms, flat):
                if size:
                    write_batches.append(self.appended(waiter, size))
                    size = 0
                writer = self.writer(len(value) + len(key) + sum(map(len, flat)) + 16 * len(flat), attributes)
            size += len(value) + len(key) + RECORD_OVERHEAD_BYTES
        write_batches.append(self.appended(waiter, size))
        return write_batches

    def write_batch_apart(self, first_seq: int, room_bytes: int) -> WriteBatch:
        """A write batch for `append_apart`, whose writer has room for a record of `room_bytes`. It belongs to nobody:
        who lets go of it has appended nothing."""
        need = HEADER_BYTES + RECORD_OVERHEAD_BYTES + room_bytes
        return WriteBatch(self, self._context.buffers.take(max(WRITE_BATCH_BYTES_MAX, need)), first_seq)

    def append_apart(self, write_batches: list[WriteBatch], group: WriteBatchGroup | None = None) -> None:
        if self._open_write_batch is not None:
            self._close_write_batch(self._open_write_batch)
        self._append_ms = max(self._context.now_ms(), self._append_ms)
        behind_seq = self.last_seq
        for write_batch in write_batches:
            assert write_batch.records, "a reader takes an empty one for the records behind it"
            write_batch.renumber(behind_seq, self._append_ms)
            write_batch.transaction = group
            self.last_seq = write_batch.last_seq
            self._count(write_batch)
            self._context.backlog.bytes += write_batch.pending_bytes
        self._pending += write_batches
        if self._phase == NO_FILES:
            self._make_files()
        elif group is None and self._active is not None:
            self._parts.committer.add(self)

    def is_next(self, group: WriteBatchGroup) -> bool:
        return bool(self._pending) and self._pending[0].transaction is group

    def take_apart(self, group: WriteBatchGroup) -> list[WriteBatch]:
        write_batches = []
        while self.is_next(group):
            write_batches.append(self._pending.pop(0))
        return write_batches

    def append_bundle(
        self,
        src: bytes | bytearray | memoryview,
        start: int,
        end: int,
        info: BundleInfo,
        *,
        first_seq: int = 0,
        waiter: Waiter | None = None,
    ) -> WriteBatch:
        """Appends a Tank bundle (without its length varint), as it is, that `engine.formats.bundle.check_bundle`
        approved.

        Args:
            first_seq: number of its first record when it is not sparse; 0 = the next one.

        Raises:
            NotStored: see `writer`.
        """
        if info.sparse:
            first_seq, last_seq = info.first_seq, info.last_seq
        else:
            first_seq = first_seq or self.last_seq + 1
            last_seq = first_seq + info.count - 1
        writer = self.writer(end - start)
        stored = writer.put_bundle(src, start, end, info.count, first_seq, last_seq, info.max_timestamp_ms, info.sparse)
        assert stored, "writer() made room"
        return self.appended(waiter, end - start)

    def _count(self, write_batch: WriteBatch) -> None:
        if not write_batch.is_counted:
            write_batch.is_counted = True
            self._context.backlog.write_batches += 1

    # --- committing (called by the committer, on the owner's thread)

    def _close_write_batch(self, write_batch: WriteBatch) -> None:
        if not write_batch.is_empty:
            self.last_seq = write_batch.writer.next_seq - 1
            self._count(write_batch)
            write_batch.close()
            self._pending.append(write_batch)
            used = write_batch.end
            if used > len(write_batch.buffer) // 2:
                self._write_batch_bytes = min(2 * self._write_batch_bytes, WRITE_BATCH_BYTES_MAX)
            elif used < len(write_batch.buffer) // 8:
                self._write_batch_bytes = max(self._write_batch_bytes // 2, WRITE_BATCH_BYTES_MIN)
        self._open_write_batch = None

    def next_write_batch(self, bytes_left: int, *, first: bool) -> WriteBatch | None:
        if not self._pending:
            write_batch = self._open_write_batch
            if write_batch is None or write_batch.is_empty:
                return None
            if not first and write_batch.writer.position > bytes_left:
                return None
            self._close_write_batch(write_batch)
        if self._pending[0].transaction is not None or (not first and self._pending[0].end > bytes_left):
            return None
        return self._pending.pop(0)

    def round_done(self, part: PartitionCommit) -> None:
        self._active = part.active
        if part.sealed is not None:
            self.sealed.append(part.sealed)
            self.gap_before_next &= not part.write_batches
        if part.error is not None:
            for write_batch in part.write_batches:
                self.settle(write_batch, FAILED, part.error)
            if isinstance(part.error, ReadOnly):
                self.stop_writing(part.error)
            if part.sealed is not None:
                self.committed_end = SEGMENT_HEADER_BYTES
            self.failing = part.error
            self._told_failure = report_seldom(str(part.error), self._told_failure, self._context.now_ms())
            if any(write_batch.produced for write_batch in part.write_batches):
                self._fail_numbered(part.error)
            return
        self.failing = None
        if part.write_batches and self.tail is NO_TAIL:
            self.tail = Tail()
        for write_batch in part.write_batches:
            self.settle(write_batch, COMMITTED, None)
            write_batch.produced.clear()  # the segment knows them, and the tail cache counts buffers only
            if write_batch.last_seq - self.committed_seq != write_batch.records:
                self.gaps = self.gaps.behind(self.committed_seq, write_batch)
            self.committed_seq = write_batch.last_seq
            self._parts.tail_cache.add(self.tail, write_batch)
        if part.write_batches:
            self.committed_s = time.monotonic()
        self.committed_end = part.active.position
        if self.readers:
            self._wake_readers()

    def settle(self, write_batch: WriteBatch, state: int, error: EngineError | None) -> None:
        write_batch.state = state
        write_batch.error = error
        self._context.backlog.settled(write_batch.pending_bytes)
        write_batch.pending_bytes = 0
        del write_batch.writer  # lets go of the buffer
        write_batch.transaction = None  # which holds its write batches

    def _fail_pending(self, error: EngineError) -> None:
        """Fails everything that waits for a round, and tells the waiters."""
        if self._open_write_batch is not None:
            self._close_write_batch(self._open_write_batch)
        waiters: dict[Waiter, None] = {}
        while self._pending:
            write_batch = self._pending.pop(0)
            waiters.update(dict.fromkeys(write_batch.waiters))
            if write_batch.transaction is not None:
                self._pending.insert(0, write_batch)
                write_batch.transaction.fail(error)
            else:
                self.settle(write_batch, FAILED, error)
        for waiter in waiters:
            self._context.call_soon_threadsafe(waiter.round_done)

    def _fail_numbered(self, error: EngineError) -> None:
        """Fails what numbered producers have behind a failed round: what has failed comes again, and goes first."""
        if self._open_write_batch is not None:
            self._close_write_batch(self._open_write_batch)
        pending, self._pending = self._pending, []
        waiters: dict[Waiter, None] = {}
        for write_batch in pending:
            if write_batch.produced:
                waiters.update(dict.fromkeys(write_batch.waiters))
                self.settle(write_batch, FAILED, error)
            else:
                self._pending.append(write_batch)
        for waiter in waiters:
            self._context.call_soon_threadsafe(waiter.round_done)

    def drop_apart(self, group: WriteBatchGroup, error: EngineError) -> None:
        for write_batch in [write_batch for write_batch in self._pending if write_batch.transaction is group]:
            self._pending.remove(write_batch)
            self.settle(write_batch, FAILED, error)

    def stop_writing(self, error: ReadOnly) -> None:
        if self._phase != DELETED:
            self.error = error
            self._fail_pending(error)

    def removed(self, error: NotStored) -> None:
        """The topic was deleted: nothing more is stored here."""
        self.error = error
        self._phase = DELETED

    def tell_removed(self) -> None:
        """The same for those who wait here."""
        assert self.error is not None
        self._fail_pending(self.error)
        if self.readers:
            self._wake_readers()

    def marked(self, log_start: int, problem: OSError | None) -> None:
        if problem is None:
            self.mark_failed = False
            self.marked_log_start = log_start
            return
        if not self.mark_failed:  # a lower bound for recovery: old is allowed, and the data is on disk
            report(f"{self.title}: cannot write its watermark: {problem.strerror or problem}")
        self.mark_failed = True

    # --- keeping

    @property
    def _segments(self) -> list[SealedSegment | ActiveSegment]:
        return [*self.sealed, self.active_segment]

    def set_segment_ages(self) -> None:
        """Dates the segments found at the opening by the steady clock."""
        self._excess_ms = self._context.clock.excess_ms
        retention.set_segment_ages(self._segments, self._context.clock, self._context.steady_ms())

    def _make_younger(self) -> None:
        """When the clock that the segments were dated by has turned out to be ahead."""
        clock = self._context.clock
        if self._excess_ms != clock.excess_ms:
            retention.make_younger(self._segments, clock.excess_ms - self._excess_ms, clock.started_ms)
            self._excess_ms = clock.excess_ms

    def apply_retention(self, steady_ms: int) -> int:
        """Raises the start of the log past the segments that are due; returns how many these are."""
        self._make_younger()
        due = retention.due_segments(self.config, self.sealed, self.active_segment, self.committed_end, steady_ms)
        if due:
            self.trim(self.sealed[due - 1].last_seq + 1)
        return due

    def trim(self, before_seq: int) -> int:
        """Raises the start of the log to `before_seq` (at most to what follows the last committed record).

        Returns:
            Number of whole segments that go away after the grace time.
        """
        before_seq = min(before_seq, self.committed_seq + 1)
        if before_seq <= self.log_start or not self.has_files:
            return 0
        self.log_start = before_seq
        removed = retention.take_below(self.sealed, before_seq)
        self._parts.committer.request_watermark(self)
        self._parts.removal.add(self, removed)
        return len(removed)

    # --- reading

    def read(self, seq: int, max_bytes: int, on_ready: Callable[[], None] | None) -> ReadBatch | None:
        """Committed batches from the one that holds `seq` on (or the next one, in a gap), about `max_bytes`.

        At least one batch, always whole ones.

        None: nothing now; `on_ready` is called once when reading again may give more (something was committed, or the
        disk answered). `on_ready` None: no wish to be called (then what is not in memory or page cache never comes).

        Raises:
            OutOfRange: `seq` is below the start of the log.
            EngineError: the partition is offline.
        """
        if not self.is_open:
            if self.error is not None:
                raise self.error.again()
            if on_ready is not None:
                self.when_open(on_ready)
            return None
        if seq > self.committed_seq:
            if on_ready is not None:
                self.readers[on_ready] = None
            return None
        return reading.read(self._context, self._parts, self, seq, max_bytes, on_ready)

    @property
    def read_state(self) -> reading.ReadState:
        """What is remembered of reads of its files."""
        if self._read_state is None:
            self._read_state = reading.ReadState()
        return self._read_state

    def _wake_readers(self) -> None:
        """Calls readers back, from the next turn of the owner's loop on."""
        slices, readers = self._context.slices, self.readers
        self.readers = {}
        slices.later(partial(slices.call_each, "a commit round", readers))

    def forget(self, on_ready: Callable[[], None]) -> None:
        """Withdraws a wish to be called."""
        self.readers.pop(on_ready, None)
        if self._read_state is not None:
            self._read_state.forget(on_ready)

    def seq_at_time(self, timestamp_ms: int) -> int:
        """First number in the log of the first batches that may hold a record of that time or later.

        Exact to one entry of the index (about 64 KiB): records a little older may follow from there.
        """
        return reading.seq_at_time(self._context, self, timestamp_ms)
