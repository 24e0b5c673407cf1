"""Reader groups: streams that share the records of a topic, each record going to one of them.

A group's position is a durable cursor of the engine (owner ``fujin``, the group's name). *Takers* are push streams and
waiting FETCHes; whoever wants records stands in a queue and gets a portion in turn, so that work is shared and nobody
waits behind a taker that is full. What a taker holds unacknowledged goes back when its stream ends, and is the first to
be delivered again. When the group's position is set again, nobody holds anything any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from engine.errors import EngineError
from engine.formats.record import BatchError, BundleError
from netserver.fujin.dispatch import END, FULL, SKIP, frame_records
from netserver.fujin.limits import FETCH_BYTES_MAX, LARGE_KEPT_MAX, PUSH_TURN_BYTES, TURN_BYTES, TURN_RECORDS_MAX
from netserver.fujin.runs import Runs

if TYPE_CHECKING:
    from engine.cursors.cursor import Cursor
    from engine.cursors.deliveries import Plan
    from engine.partitions.partition import Partition
    from netserver.fujin.listener_state import ListenerState

log = logging.getLogger(__name__)

OWNER = "fujin"
SKIPPED_BYTES = 256
"""What a record that is left out counts in a turn."""


class Member(Protocol):
    """A stream that reads.

    Attributes:
        held: what it was given and has not acknowledged.
    """

    held: Runs

    def freed(self) -> None:
        """It holds less now."""


class Taker(Protocol):
    """A push stream, or a FETCH that waits.

    Attributes:
        is_push: records become MSGs, else entries of an answer to FETCH.
        is_auto: what it is given counts as acknowledged; else it is held, and has its id.
        held: what its stream was given and has not acknowledged.
        is_waiting: it stands in the queue of its group.
    """

    is_push: bool
    is_auto: bool
    held: Runs
    is_waiting: bool

    @property
    def message_bytes_max(self) -> int:
        """Larger records are left out."""

    def wanted(self) -> int:
        """How many records it can take now."""

    def give(self, frames: bytes, count: int) -> None:
        """Here they are."""

    def given(self) -> None:
        """That is all for now."""

    def fail(self, text: str) -> None:
        """Nothing can be read any more."""


class Group:
    """One group in one partition. Owner's thread only."""

    def __init__(self, shared: ListenerState, name: bytes, partition: Partition) -> None:
        self.partition = partition
        self._shared = shared
        self._name = name
        self._cursor: Cursor | None = None
        self._opening: list[Callable[[EngineError | None], None]] = []
        self._readers: dict[Member, None] = {}
        self._queue: deque[Taker] = deque()
        self._dealing = False
        self._scheduled = False
        self._large = Runs()  # too large to be pushed: they wait for a FETCH

    # --- the cursor

    def open(self, start: str | int | float, callback: Callable[[EngineError | None], None]) -> None:
        """Find or make the cursor; ``callback`` when it is there for good, or with the reason why not.

        Args:
            start: where a new group begins, see ``fujin_config.parse_start``.
        """
        if self._opening:
            self._opening.append(callback)
            return
        cursors = self._shared.cursors
        cursor = self._cursor
        if cursor is None or not cursor.alive:
            cursor = cursors.group(OWNER, self._name, self.partition)
        if cursor is not None:
            self._use(cursor)
            callback(None)
            return
        self._opening.append(callback)
        try:
            cursor = cursors.create(
                OWNER, self.partition, after_seq=self._after(start), name=self._name, on_durable=self._made
            )
        except EngineError as error:
            self._made(error)
        else:
            self._use(cursor)

    def _after(self, start: str | int | float) -> int:
        partition = self.partition
        if start == "newest":
            return partition.last_seq
        if isinstance(start, float):
            return partition.seq_at_time(int(start * 1000)) - 1
        if isinstance(start, int):
            return min(max(start, partition.log_start) - 1, partition.last_seq)
        return partition.log_start - 1

    def _use(self, cursor: Cursor) -> None:
        if cursor is not self._cursor:
            self._cursor = cursor
            cursor.pins += 1
            cursor.on_reset[self._reset] = None

    def _made(self, error: EngineError | None) -> None:
        while self._opening:  # who still waits keeps the group from being let go of
            self._opening.pop(0)(error)

    # --- readers

    def join(self, reader: Member) -> None:
        """A stream reads from now on."""
        self._readers[reader] = None

    def leave(self, reader: Member) -> None:
        """It does not any more: what it holds is delivered again, to somebody else if there is one."""
        cursor = self._cursor
        if reader in self._readers:
            del self._readers[reader]
            held = list(reader.held)
            reader.held.clear()
            if held and cursor is not None and cursor.alive:
                now_ms = self._shared.cursors.clock_ms()
                with self.quiet():  # until all of it is back: the lowest number goes to the front last
                    for first, last in reversed(held):
                        cursor.give_back(first, last, now_ms)
                self.deal()
        if not self._readers and not self._opening:
            if cursor is not None:
                self._return_large(cursor, self._shared.cursors.clock_ms())
                cursor.forget(self._woken)
                cursor.on_reset.pop(self._reset, None)
                cursor.pins -= 1
            self._cursor = None
            if self._shared.groups.get((self._name, self.partition)) is self:
                del self._shared.groups[self._name, self.partition]

    def wants(self, taker: Taker) -> None:
        """It can take records: put it into the queue."""
        if not taker.is_waiting:
            taker.is_waiting = True
            if self._large.count and not taker.is_push:
                self._queue.appendleft(taker)  # there is something for it, and nobody else can take it
            else:
                self._queue.append(taker)
        self.deal()

    def forget(self, taker: Taker) -> None:
        """It takes nothing any more."""
        if taker.is_waiting:
            taker.is_waiting = False
            self._queue.remove(taker)

    # --- acknowledgements

    @property
    def next_seq(self) -> int:
        """The first number that was never delivered."""
        return self._cursor.deliveries.next_seq if self._cursor is not None else 0

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing is dealt out within; ``deal`` has to follow."""
        before, self._dealing = self._dealing, True
        try:
            yield
        finally:
            self._dealing = before

    def acknowledge(self, reader: Member, first: int, last: int) -> None:
        """Records are done with, whichever stream they were given to."""
        if self._cursor is not None:
            self._cursor.acknowledge(first, last)
        self._let_go(reader, first, last)

    def give_back(self, reader: Member, first: int, last: int, delay_ms: int) -> None:
        """Records are to be delivered again after a while."""
        self._let_go(reader, first, last)
        if self._cursor is not None:
            self._cursor.give_back(first, last, self._shared.cursors.clock_ms(), delay_ms)

    def _let_go(self, reader: Member | None, first: int, last: int) -> None:
        """Nobody holds these records any more; most likely ``reader`` did."""
        removed = reader.held.remove(first, last) if reader is not None else 0
        if removed <= last - first and len(self._readers) > 1:
            for other in tuple(self._readers):
                if other is not reader and other.held.remove(first, last):
                    other.freed()

    def _reset(self) -> None:
        """The group's position was set again: all that was delivered is delivered to somebody again, or to nobody."""
        self._large.clear()
        for reader in self._readers:
            reader.held.clear()
        with self.quiet():
            for reader in tuple(self._readers):
                reader.freed()
        self.deal()

    # --- dealing out

    def deal(self) -> None:
        """Hand out what there is to those who want it, a turn's worth."""
        if self._dealing or not self._queue:
            return
        self._dealing = True
        try:
            more = self._deal(TURN_BYTES)
        except EngineError as error:
            self._fail(str(error))
            more = False
        finally:
            self._dealing = False
        if more and not self._scheduled:
            self._scheduled = True
            self._shared.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._scheduled = False
        self._woken()

    def _woken(self) -> None:
        """There may be something again (also called by the engine, which an error of ours must not reach)."""
        try:
            self.deal()
        except Exception:
            log.exception("error while records of %s were dealt out", self.partition.title)
            self._shared.counters.session_errors += 1
            self._fail("internal error")

    def _deal(self, turn_bytes: int) -> bool:
        """Whether there is more to hand out after ``turn_bytes``."""
        cursor = self._cursor
        if cursor is None or not cursor.alive:
            self._fail("the topic was deleted")
            return False
        now_ms = self._shared.cursors.clock_ms()
        queue = self._queue
        while queue:
            if turn_bytes <= 0:
                return True
            taker = queue.popleft()
            taker.is_waiting = False
            try:
                used = self._fill(cursor, taker, now_ms)
            except EngineError:
                taker.is_waiting = True
                queue.appendleft(taker)
                raise
            if taker.wanted() > 0:
                taker.is_waiting = True
                if not used:
                    queue.appendleft(taker)
                    cursor.wait(self._woken)
                    return False
                queue.append(taker)
            turn_bytes -= used
        return False

    def _fill(self, cursor: Cursor, taker: Taker, now_ms: int) -> int:
        """Give a taker its portion; returns about how many bytes that were."""
        portion_bytes = PUSH_TURN_BYTES if taker.is_push else FETCH_BYTES_MAX
        used = 0
        if self._large.count and not taker.is_push:
            self._return_large(cursor, now_ms)
        try:
            while used < portion_bytes and (wanted := taker.wanted()) > 0:
                plan = cursor.next(now_ms)
                if plan is None:
                    break
                used += self._take(cursor, taker, plan, min(wanted, TURN_RECORDS_MAX), portion_bytes - used, now_ms)
        finally:
            if used:
                taker.given()
        return used

    def _take(self, cursor: Cursor, taker: Taker, plan: Plan, limit: int, room_bytes: int, now_ms: int) -> int:
        """Give the first stretch of a plan; returns about how many bytes that were."""
        reader = cursor.reader
        records = reader.records
        assert records is not None
        first = records.seq
        index = self.partition.index
        out = memoryview(self._shared.out)[:room_bytes]
        arguments = (index, taker.is_push, not taker.is_auto, taker.message_bytes_max)
        try:
            end, taken, state = frame_records(out, 0, records, plan.last, limit, *arguments)
            if not taken and state == FULL:
                out = memoryview(bytearray(32 + records.value_end - records.value_start))
                end, taken, state = frame_records(out, 0, records, plan.last, 1, *arguments)
            if not taken and state == SKIP:
                self._leave_out(cursor, plan, records.value_end == records.value_start, now_ms)
                return SKIPPED_BYTES
        except (BatchError, BundleError) as problem:
            cursor.skip_read_batch(plan, problem)
            return SKIPPED_BYTES
        last = first + taken - 1
        reader.moved(last + 1, state != END)
        if plan.retry:  # its time is over for whoever was given it before
            self._let_go(None, first, last)
            taker.held.remove(first, last)
        if taker.is_auto:
            cursor.finished(plan, last)
        else:
            cursor.delivered(plan, first, last, now_ms)
            taker.held.add(first, last)
        taker.give(bytes(out[:end]), taken)
        counters = self._shared.counters
        counters.records_delivered += taken
        counters.delivered_bytes += end
        return end

    def _leave_out(self, cursor: Cursor, plan: Plan, is_empty: bool, now_ms: int) -> None:
        """Pass the first record of a plan, which cannot be a message, or is too large to be pushed."""
        reader = cursor.reader
        assert reader.records is not None
        seq = reader.records.seq
        reader.advance()
        reader.moved(seq + 1, reader.current)
        self._shared.counters.skipped["empty" if is_empty else "too large"] += 1
        if is_empty:
            cursor.finished(plan, seq)
            return
        if plan.retry:
            self._let_go(None, seq, seq)
            self._large.remove(seq, seq)
        kept = self._large.count < LARGE_KEPT_MAX
        if kept:
            cursor.delivered(plan, seq, seq, now_ms)
            self._large.add(seq, seq)
        else:
            cursor.finished(plan, seq)
        if not kept or self._large.count == 1:
            what = "waits for a reader that pulls" if kept else f"is left out, as {LARGE_KEPT_MAX} wait already"
            log.warning(
                "group %r of %s: record %d is larger than push_bytes_max and %s",
                self._name.decode(errors="replace"), self.partition.title, seq, what,
            )  # fmt: skip

    def _return_large(self, cursor: Cursor, now_ms: int) -> None:
        """What was too large to be pushed comes first now."""
        large = list(self._large)
        self._large.clear()
        if cursor.alive:
            with self.quiet():
                for first, last in reversed(large):
                    cursor.give_back(first, last, now_ms)

    def _fail(self, text: str) -> None:
        waiting, self._queue = list(self._queue), deque()
        for taker in waiting:
            taker.is_waiting = False
        for taker in waiting:
            taker.fail(text)
