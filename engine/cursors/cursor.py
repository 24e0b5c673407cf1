# cython: annotation_typing=False
"""One durable cursor (see ``engine.cursors.table``): what it delivers next, and from where."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from engine.callbacks import call_each
from engine.cursors.policies import CursorTotals
from engine.cursors.reader import BatchError, BundleError, ReadBatchCache, Reader
from engine.cursors.stored_cursors import Entry
from engine.errors import EngineError, OutOfRange
from engine.partitions.partition import Partition
from engine.reports import report

if TYPE_CHECKING:  # for the compiled module these are the declarations' own
    from engine.cursors.deliveries import Deliveries, Plan

log = logging.getLogger("quintlog.cursors")
COMPILED = not __file__.endswith(".py")

USED_STEP_MS = 3_600_000
"""The time of last use is written when it has moved by so much: polling an empty subscription writes nothing."""


class CursorHome(Protocol):
    """Who keeps cursors (``engine.cursors.table.CursorTable``)."""

    @property
    def read_batches(self) -> ReadBatchCache:
        """What they read in."""

    @property
    def watched(self) -> set[Cursor]:
        """Those that are looked at for what falls due."""

    def clock_ms(self) -> int:
        """The clock that deliveries go by."""

    def now_ms(self) -> int:
        """The clock of the log."""

    def checked(self, cursor: Cursor) -> None:
        """The position of a cursor was compared with the log as it was found."""

    def moved(self, cursor: Cursor) -> None:
        """A cursor has something to write."""

    def give_up(self, cursor: Cursor) -> None:
        """Takes over what a cursor has given up."""

    def forget_given_up(self, cursor: Cursor) -> None:
        """Nothing of what it gave up is wanted any more."""


class Cursor:
    """A cursor in use. Its numbers are in ``deliveries``; deliver like this::

        while room and (plan := cursor.next(now_ms)) is not None:
            records = cursor.reader.records           # its current record is the first one of the plan
            ... take records with numbers up to plan.last, in order, without a gap in between ...
            cursor.reader.moved(last + 1, current)    # current: records stands on the one after the last taken
            cursor.delivered(plan, first, last, now_ms)   # or finished(plan, last): needs no acknowledgement
        if cursor.waiting: cursor.wait(callback)      # the next record is being read from the disk: try again then

    Attributes:
        base: what tags count from: a protocol that counts per subscription names a record ``seq - base``. Negative
            after a reset to the front.
        used_ms: wall clock of the last use, to the hour.
        version: rises with each entry that is written.
        waiting: :meth:`next` gave None because the disk has to answer first.
        pins: users that need the cursor to stay in memory.
        era: rises with each :meth:`reset`; what was delivered in an earlier one is nobody's any more.
        on_reset: what is called after each :meth:`reset`, as its keys.
        alive: False once it was deleted or let go of: ask the store for it again.
        is_paused: it delivers nothing.
        is_volatile: it lives as long as its user keeps it, and is never written.
        totals: counters of its owner.
    """

    def __init__(
        self,
        store: CursorHome,
        totals: CursorTotals,
        entry: Entry,
        partition: Partition,
        deliveries: Deliveries,
    ) -> None:
        self._store = store
        self.totals = totals
        self.id = entry.id
        self.owner = entry.owner
        self.name = entry.name
        self.partition = partition
        self.topic_name = partition.topic.name
        self.qos = entry.qos
        self.base = entry.base
        self.deliveries = deliveries
        self.created_ms = entry.created_ms
        self.used_ms = entry.used_ms
        self.version = entry.version
        self.alive = True
        self.era = 0
        self.on_reset: dict[Callable[[], None], None] = {}
        self.is_volatile = False
        self.pins = 0
        self.is_dirty = False
        self.is_paused = False
        self.check_end = False
        self.log_start = 0
        self.lost = 0
        self.waiting = False
        self._reader = Reader(store.read_batches)
        self._retry_reader: Reader | None = None
        self.reader = self._reader
        self._waiters: list[Callable[[], None]] = []
        self._wanted = 0
        self._failure: EngineError | None = None
        self._used_at_ms = store.clock_ms()

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{self.owner} subscription {self.id} of {self.partition.title}"

    # --- delivering

    def next(self, now_ms: int) -> Plan | None:
        """What to deliver now, see the class; None: nothing.

        Raises:
            EngineError: the partition is offline, or its disk cannot be read
        """
        self.waiting = False
        self._used_at_ms = now_ms
        if self.is_paused:
            return None
        partition = self.partition
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if partition.log_start != self.log_start and not self._refresh_bounds():
            return None
        deliveries = self.deliveries
        while True:
            plan = deliveries.plan(partition.committed_seq, now_ms, partition.gaps)
            if deliveries.dropped:
                self.totals.dropped += deliveries.dropped
                deliveries.dropped = 0
            if deliveries.given_up:
                self._store.give_up(self)
                continue
            if plan is None:
                return None
            if not self._open(plan):
                if self.waiting:
                    return None
                continue
            reader = self.reader
            records = reader.records
            if reader.current and records is not None:
                seq = records.seq
                if seq <= plan.last:
                    return plan
                last = seq - 1
            else:
                last = max(reader.last_seq, plan.first)
            # No record has a number up to there. What is new goes on after it at once, however far that is: a plan
            # covers as many numbers as records may be unacknowledged, and a publisher may leave out billions.
            self.finished(plan, min(last, plan.last) if plan.retry else last)

    def _open(self, plan: Plan) -> bool:
        """Set ``reader`` to the first record of a plan. False: ``waiting`` for the disk, or the plan is void."""
        if plan.retry:
            if self._retry_reader is None:
                self._retry_reader = Reader(self._store.read_batches)
            reader = self._retry_reader
        else:
            reader = self._reader
        self.reader = reader
        try:
            if reader.open(self.partition, plan.first, self._ready):
                return True
        except OutOfRange:
            self._refresh_bounds()
            return False
        except (BatchError, BundleError) as problem:
            self.skip_read_batch(plan, problem)
            return False
        self.waiting = True
        self._wanted = plan.first
        return False

    def delivered(self, plan: Plan, first: int, last: int, now_ms: int) -> None:
        """The records ``first`` to ``last`` went out and wait for their acknowledgement."""
        deliveries = self.deliveries
        if self.reader.lost and first > plan.first:
            self._count_damage(plan.first, first - 1)
        deliveries.delivered(plan, first, last, now_ms)
        if plan.retry:
            self.totals.redelivered += last - first + 1
        if deliveries.policy.deliveries_max:
            self._store.watched.add(self)
        if not self.is_dirty:
            self.touch()

    def finished(self, plan: Plan, last: int) -> None:
        """Nothing up to ``last`` needs an acknowledgement (any more)."""
        if self.reader.lost:
            self._count_damage(plan.first, last)
        self.deliveries.finished(plan, last)
        if not self.is_dirty:
            self.touch()

    def skip_read_batch(self, plan: Plan, problem: Exception) -> None:
        """The records of a plan cannot be decoded: pass what is left of them in the read batch, and report it."""
        last = max(self.reader.last_seq, plan.first)
        if plan.retry:
            last = min(last, plan.last)
        report(f"{self.partition.title}: records {plan.first} to {last} cannot be decoded: {problem}")
        self.reader.close()
        self._lose(self._most(plan.first, last), f"records {plan.first} to {last} cannot be decoded")
        self.finished(plan, last)

    # --- acknowledging

    def settle(self, first: int, last: int) -> None:
        """Finish delivered records that nobody has acknowledged."""
        if self.deliveries.acknowledge(first, last):
            self.touch()

    def acknowledge(self, first: int, last: int) -> int:
        """Take the acknowledgement of delivered records; returns how many of them were still unacknowledged."""
        count = self.deliveries.acknowledge(first, last)
        if count:
            self.totals.acknowledged += count
            if not self.is_dirty:
                self.touch()
        return count

    def give_back(self, first: int, last: int, now_ms: int, delay_ms: int = 0) -> int:
        """Deliver unacknowledged records again, after a delay or first of all; returns how many were in flight."""
        count = self.deliveries.release(first, last, now_ms, delay_ms)
        if count:
            self.totals.given_back += count
            self._store.watched.add(self)
            if self.deliveries.given_up:
                self._store.give_up(self)
            self.touch()
            self._call_waiters()
        return count

    def reset(self, after_seq: int) -> None:
        """Forget all deliveries and go on after ``after_seq``.

        Tags go on as if nothing had happened: none that was given out before is given to another record, so that no
        delivery from before can acknowledge one that comes after.
        """
        self.era += 1
        self._store.forget_given_up(self)
        self.base += after_seq + 1 - self.deliveries.next_seq
        self.deliveries.reset(after_seq + 1)
        self.touch()
        call_each("a reset of a subscription", tuple(self.on_reset))
        self._call_waiters()

    def pause(self, is_paused: bool) -> None:
        """Deliver nothing from now on, or go on."""
        self.is_paused = is_paused
        if not is_paused:
            self._call_waiters()

    # --- the log under it

    def _refresh_bounds(self) -> bool:
        """Catch up with what happened to the partition. False: it has to be opened first, or has failed to.

        Raises:
            EngineError: it is offline
        """
        partition = self.partition
        if not partition.is_open:
            if partition.error is not None and self._wanted == -1:
                self._wanted = 0
                raise partition.error.again()
            self._wanted = -1
            self.waiting = True
            partition.when_open(self._ready)
            return False
        if self.check_end:
            self.check_end = False
            self._store.checked(self)
            end_seq = partition.found_seq  # what was published since then is to be delivered
            beyond = self.deliveries.cut(end_seq)
            self.base = min(self.base, end_seq)
            if beyond:
                report(f"{self.title} was beyond the end of the log by {beyond} numbers; set to its end")
                self.touch()
        self.log_start = partition.log_start
        passed_seq = self.deliveries.next_seq
        lost = self.deliveries.jump(partition.log_start) + self._most(passed_seq, partition.log_start - 1)
        if lost:
            self._lose(lost, f"retention removed {lost} records before they were acknowledged")
            self.touch()
        return True

    def _count_damage(self, first: int, last: int) -> None:
        """The cursor passes these numbers: count those that damage took."""
        for lost_first, lost_last in self.reader.lost:
            low, high = max(first, lost_first), min(last, lost_last)
            if low <= high:
                self._lose(self._most(low, high), f"damage took records {low} to {high}")

    def _most(self, first: int, last: int) -> int:
        """How many records have these numbers, at most."""
        return self.partition.gaps.count(first, last).most

    def _lose(self, count: int, what: str) -> None:
        self.lost += count
        self.totals.lost += count
        log.warning("%s: %s", self.title, what)

    def fall_due(self, now_ms: int) -> None:
        """Called by the store's clock: what nobody polls for falls due too."""
        deliveries = self.deliveries
        if now_ms >= deliveries.next_due_ms:
            deliveries.fall_due(self.partition.committed_seq, now_ms)
            if deliveries.given_up:
                self._store.give_up(self)
            if deliveries.queued:
                self._call_waiters()
        if not deliveries.unacknowledged:
            self._store.watched.discard(self)

    # --- waiting

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back once when :meth:`next` may give something: after ``waiting``, or when there was nothing.

        After ``waiting`` False it is called when something was committed, given back, or (for cursors in
        ``CursorTable.watched``) has fallen due.
        """
        if callback not in self._waiters:
            self._waiters.append(callback)
        if not self.waiting:
            if self.deliveries.unacknowledged:
                self._store.watched.add(self)
            self._wanted = self.partition.committed_seq + 1
            self.partition.read(self._wanted, 1, self._ready)

    def forget(self, callback: Callable[[], None]) -> None:
        """Withdraw a :meth:`wait`."""
        if callback in self._waiters:
            self._waiters.remove(callback)
            if not self._waiters:
                self.partition.forget(self._ready)

    def _ready(self) -> None:
        """The engine has something: take what the disk read, which is there during this call only, and pass it on."""
        wanted, partition = self._wanted, self.partition
        if wanted > 0 and wanted <= partition.committed_seq:
            self._wanted = 0
            try:
                if self._store.read_batches.find(partition, wanted) is None:
                    read_batch = partition.read(wanted, 1, None)
                    if read_batch is not None:
                        self._store.read_batches.add(partition, wanted, read_batch)
            except OutOfRange:
                pass  # retention was faster; next() meets it again
            except EngineError as problem:
                self._failure = problem
        self._call_waiters()

    def _call_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        call_each("news of a subscription", waiters)

    # --- life

    def entry(self) -> Entry:
        """The cursor as it is now, to be stored."""
        partition = self.partition
        return Entry(
            self.id, self.owner, self.name, partition.topic.id, partition.index, self.qos, self.base,
            self.created_ms, self.used_ms, self.version, self.deliveries.dump(),
        )  # fmt: skip

    def touch(self) -> None:
        """There is something to write."""
        if self.alive and not self.is_volatile:
            self.is_dirty = True
            now_ms = self._store.now_ms()
            if abs(now_ms - self.used_ms) > USED_STEP_MS:  # also one that was used by a clock that was ahead
                self.used_ms = now_ms
            self._store.moved(self)

    def used(self) -> None:
        """Somebody uses the cursor, be there something to deliver or not."""
        if abs(self._store.now_ms() - self.used_ms) > USED_STEP_MS:
            self.touch()

    def is_idle(self, since_ms: int) -> bool:
        """Nothing has happened since that time (of the store's clock), and nothing depends on it."""
        return (
            self._used_at_ms < since_ms
            and not (self.pins or self._waiters or self.is_dirty)
            and not self.deliveries.given_up
        )

    def close(self) -> None:
        """Let go of it: read batches, callbacks, and whoever still holds it."""
        self.alive = False
        self._reader.close()
        if self._retry_reader is not None:
            self._retry_reader.close()
        self.partition.forget(self._ready)
        self._waiters = []

    def gone(self) -> None:
        """It was deleted: whoever waits finds out."""
        waiters = self._waiters
        self.close()
        call_each("the end of a subscription", waiters)
