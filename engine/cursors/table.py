"""Durable subscriptions, for any protocol: a cursor reads one partition, and the server keeps its position.

A cursor is a small entry in ``state`` and nothing else until it is used: what is published costs no memory per cursor.
Pending records are the numbers above its position, read from the log when they are asked for;
``engine.cursors.deliveries`` keeps what was delivered, ``engine.cursors.reader`` the place in the log.

Stored entries (layout of values and keys: engine/state/store.py)::

    c/next_cursor_id   the id that the next new cursor gets; ids are never used again, and leap at each opening by a
                       random number: nor are those that were given after a copy was made which is put back
    u/, v/             the cursors, see engine.cursors.stored_cursors

Entries of cursors that moved are written together, in one submission about every 100 ms, or at once when somebody
wants to know them durable (:meth:`CursorTable.flush`). A crash loses at most the last ones, which brings records
again, never loses one. Positions are those that the cursor had when its entry was written, in flight included: after a
restart what was in flight is pending again.

What happens under a cursor: retention passes it (it jumps to the start of the log), damage takes records (they are
passed), the log ends before it, after an older copy was put back (it goes to the end that was found), its topic is
deleted (so is the cursor). Each is counted, and told in the log once.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator

from engine.callbacks import call_each
from engine.context import EngineContext
from engine.cursors.cursor import Cursor
from engine.cursors.dead_letters import DeadLetters
from engine.cursors.deliveries import Deliveries, load
from engine.cursors.lags import Lags, Standing
from engine.cursors.names import CursorKey, CursorNames
from engine.cursors.policies import CursorPolicies, CursorPolicy, CursorTotals
from engine.cursors.reader import ReadBatchCache
from engine.cursors.stored_cursors import (
    CURSOR,
    Entry,
    delete_entry,
    delete_paused,
    entry_key,
    id_of,
    parse_entry,
    put_entry,
    put_paused,
    read_paused,
)
from engine.cursors.writer import CursorWriter
from engine.errors import Corrupt, EngineError, InvalidConfig
from engine.limits import CURSOR_NAME_BYTES_MAX, CURSORS_LOADED_MAX, WALK_KEYS
from engine.partitions.partition import Partition
from engine.partitions.table import PartitionTable
from engine.reports import report, report_exception
from engine.state.store import COUNTER, OnDone, Op, Put
from engine.state.topic_catalog import Change, Topic

log = logging.getLogger("quintlog.cursors")

NEXT_CURSOR_ID = COUNTER + b"next_cursor_id"
LOST_CURSOR_IDS = 1 << 32
"""Ids left out when the counter was damaged: more than were ever deleted."""
CURSOR_ID_LEAP = 1 << 32
"""Ids left out at an opening, at most: a million openings stay below what JSON takes as a whole number."""

IDLE_MS = 60_000
"""A cursor without use for so long is forgotten until it is used again."""
CROWDED_IDLE_MS = 1_000
"""The same while there are more than ``CURSORS_LOADED_MAX`` in memory."""
SWEEP_MS = 10_000
"""Interval of the look for idle and expired cursors."""
EXPIRY_SLICE = 256
"""Entries looked at for expiry in one turn: each is a read of ``state``."""


class CursorTable:
    """All cursors of a log. Owner's thread only; call :meth:`tick` about every 100 ms."""

    def __init__(
        self,
        context: EngineContext,
        partitions: PartitionTable,
        *,
        is_new: bool,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """Reads which cursors there are (100,000 take about half a second); damaged entries are reported.

        Raises:
            Corrupt: the counter of ids is damaged.
        """
        self.context = context
        self.clock_ms = clock_ms
        self.now_ms = context.now_ms
        self.read_batches = ReadBatchCache()
        self._partitions = partitions
        self._policies = CursorPolicies()
        self.dead_letters = DeadLetters(context, partitions, self.read_batches, self._policies, lambda: self.clock_ms())
        self.watched: set[Cursor] = set()
        """Cursors that :meth:`tick` looks at for what falls due."""
        self._topic_of: dict[int, int] = {}
        self._paused = read_paused(context.state, self._report)
        self.names = CursorNames()
        self._of_topic: dict[int, set[int]] = {}
        self._loaded: dict[int, Cursor] = {}
        self._at_rest: dict[int, Standing] = {}
        """Where cursors stand that are not in memory, as far as somebody has asked."""
        self.writer = CursorWriter(context.state, self.loaded_cursor)
        self._next_id = 1
        self._next_sweep_ms = 0
        self._expiry_queue: list[int] = []
        self._scan(is_new)
        self._unchecked = set(self._topic_of)
        """Cursors of former processes whose position was not compared with the log yet."""
        self.lags = Lags(context, self, partitions)
        context.catalog.listen(self._topic_changed)

    def _scan(self, is_new: bool) -> None:
        state = self.context.state
        newest = self.writer.journal.read(self._report)
        highest = 0
        for key, value in state.scan(CURSOR, self._report):
            try:
                entry = parse_entry(id_of(key), value)
            except Corrupt as problem:
                self._report(problem)
                continue
            newer = newest.get(entry.id)
            if newer is not None and newer.version > entry.version:
                self.writer.overlay[entry.id] = newer
            self._note(entry.id, entry.owner, entry.name, entry.topic_id, entry.partition)
            highest = max(highest, entry.id)
        try:
            self._next_id = max(state.get(NEXT_CURSOR_ID) or 1, highest + 1)
        except Corrupt as problem:
            report(f"{problem}; new cursors get numbers far above the old ones, so that none is used again")
            self._next_id = highest + LOST_CURSOR_IDS
        if not is_new:
            # A copy that is put back, or a lost state, would give ids again that clients still hold.
            self._next_id += secrets.randbelow(CURSOR_ID_LEAP)
        self.writer.take_in_journal()

    def _note(self, cursor_id: int, owner: str, name: bytes, topic_id: int, index: int) -> None:
        self._topic_of[cursor_id] = topic_id
        self._of_topic.setdefault(topic_id, set()).add(cursor_id)
        if name:
            self.names.add(CursorKey(owner, name, topic_id, index), cursor_id)

    def _unnote(self, cursor_id: int) -> None:
        """There is no such cursor any more."""
        topic_id = self._topic_of.pop(cursor_id, None)
        others = self._of_topic.get(topic_id) if topic_id is not None else None
        if others is not None and topic_id is not None:
            others.discard(cursor_id)
            if not others:
                del self._of_topic[topic_id]
        self._at_rest.pop(cursor_id, None)
        self.names.remove(cursor_id)

    def _report(self, problem: Exception) -> None:
        report(f"a cursor is lost: {problem}")

    # --- policies and figures

    def set_policy(self, owner: str, policy: CursorPolicy) -> None:
        """The policy of an owner, from now on, also for the cursors in use."""
        self._policies.set(owner, policy)
        for cursor in self._loaded.values():
            if cursor.owner == owner:
                cursor.deliveries.set_policy(policy.deliveries)

    def policy(self, owner: str) -> CursorPolicy:
        """The policy of an owner."""
        return self._policies.policy(owner)

    def totals(self, owner: str) -> CursorTotals:
        """Counters of an owner."""
        return self._policies.totals(owner)

    def __len__(self) -> int:
        return len(self._topic_of)

    def has(self, cursor_id: int) -> bool:
        """Whether there is a cursor of this id."""
        return cursor_id in self._topic_of

    def ids(self) -> list[int]:
        """The ids of all cursors, oldest first."""
        return sorted(self._topic_of)

    def loaded_cursor(self, cursor_id: int) -> Cursor | None:
        """The cursor of this id if it is in memory."""
        return self._loaded.get(cursor_id)

    def loaded(self) -> list[Cursor]:
        """The cursors that were used not long ago."""
        return list(self._loaded.values())

    # --- making and finding

    def create(
        self,
        owner: str,
        partition: Partition,
        *,
        after_seq: int,
        qos: int = 1,
        name: bytes = b"",
        on_durable: OnDone | None = None,
    ) -> Cursor:
        """A new cursor, usable at once, which delivers what lies after ``after_seq``.

        Args:
            owner: the protocol whose policy it follows.
            name: finds it again by :meth:`group`; empty: by its id alone.
            on_durable: called with None once it survives a restart, else with the error; it is gone then.

        Raises:
            InvalidConfig: the name is too long, or taken
        """
        topic, index = partition.topic, partition.index
        if len(name) > CURSOR_NAME_BYTES_MAX:
            raise InvalidConfig(f"a name of {len(name)} bytes: up to {CURSOR_NAME_BYTES_MAX} are allowed")
        if name and CursorKey(owner, name, topic.id, index) in self.names:
            raise InvalidConfig("there is a cursor of this name")
        deliveries = Deliveries(after_seq + 1, self.policy(owner).deliveries)
        now_ms = self.now_ms()
        entry = Entry(self._next_id, owner, name, topic.id, index, qos, after_seq, now_ms, now_ms, 1, [])
        cursor = Cursor(self, self.totals(owner), entry, partition, deliveries)
        cursor.pins += 1  # until it can be read back
        self._next_id += 1
        self._loaded[cursor.id] = cursor
        self._note(cursor.id, owner, name, topic.id, index)

        def done(error: EngineError | None) -> None:
            cursor.pins -= 1
            if error is not None:
                self._forget(cursor)
            if on_durable is not None:
                on_durable(error)

        self.context.state.submit([Put(NEXT_CURSOR_ID, self._next_id), put_entry(cursor.entry())], done)
        return cursor

    def volatile(self, owner: str, partition: Partition, *, after_seq: int, qos: int = 1) -> Cursor:
        """A cursor that nobody finds and that is never written: for a subscription that ends with its connection.

        Its id is its own all the same. Call ``close()`` at its end.
        """
        now_ms = self.now_ms()
        topic = partition.topic
        entry = Entry(self.new_id(), owner, b"", topic.id, partition.index, qos, after_seq, now_ms, now_ms, 1, [])
        cursor = Cursor(
            self, self.totals(owner), entry, partition, Deliveries(after_seq + 1, self.policy(owner).deliveries)
        )
        cursor.is_volatile = True
        return cursor

    def new_id(self) -> int:
        """An id that no cursor has had or will have."""
        self._next_id += 1
        self.context.state.submit([Put(NEXT_CURSOR_ID, self._next_id)])
        return self._next_id - 1

    def get(self, cursor_id: int) -> Cursor | None:
        """The cursor of this id; None: there is none (any more)."""
        cursor = self._loaded.get(cursor_id)
        if cursor is None and cursor_id in self._topic_of:
            cursor = self._load(cursor_id)
        return cursor

    def group(self, owner: str, name: bytes, partition: Partition) -> Cursor | None:
        """The cursor of this name in this partition."""
        cursor_id = self.names.get(CursorKey(owner, name, partition.topic.id, partition.index))
        return self.get(cursor_id) if cursor_id is not None else None

    def _load(self, cursor_id: int) -> Cursor | None:
        entry = self._stored(cursor_id)
        topic = self.context.catalog.by_id(entry.topic_id) if entry is not None else None
        if entry is None or topic is None or topic.deleting:
            return None
        try:
            deliveries = load(entry.deliveries, self.policy(entry.owner).deliveries)
            partition = self._partitions.get(topic, entry.partition)
        except (ValueError, TypeError, EngineError) as problem:
            self._lose(cursor_id, problem)
            return None
        cursor = Cursor(self, self.totals(entry.owner), entry, partition, deliveries)
        cursor.check_end = cursor_id in self._unchecked
        if cursor_id in self._paused:
            cursor.pause(True)
        self._loaded[cursor_id] = cursor
        self._at_rest.pop(cursor_id, None)
        return cursor

    def checked(self, cursor: Cursor) -> None:
        """The position of a cursor was compared with the log as it was found: from now on it is one of this log."""
        self._unchecked.discard(cursor.id)

    def moved(self, cursor: Cursor) -> None:
        """A cursor has something to write."""
        self.writer.moved(cursor)

    def give_up(self, cursor: Cursor) -> None:
        """Takes over what a cursor has given up."""
        self.dead_letters.take(cursor)

    def forget_given_up(self, cursor: Cursor) -> None:
        """Nothing of what a cursor gave up is wanted any more."""
        self.dead_letters.forget(cursor)

    def is_paused(self, cursor_id: int) -> bool:
        """Whether a cursor delivers nothing."""
        return cursor_id in self._paused

    def pause(self, cursor: Cursor, is_paused: bool, on_durable: OnDone | None = None) -> None:
        """Have a cursor deliver nothing, or go on; that lasts over restarts."""
        if is_paused:
            self._paused.add(cursor.id)
        else:
            self._paused.discard(cursor.id)
        cursor.pause(is_paused)
        self.context.state.submit([put_paused(cursor.id) if is_paused else delete_paused(cursor.id)], on_durable)

    def delete(self, cursor: Cursor, on_durable: OnDone | None = None) -> None:
        """Delete a cursor; whoever uses it finds it gone."""
        self._forget(cursor)
        self.context.state.submit(self._removal(cursor.id), on_durable)

    def _removal(self, cursor_id: int) -> list[Op]:
        """What removes a cursor from the disk."""
        if cursor_id not in self._paused:
            return [delete_entry(cursor_id)]
        self._paused.discard(cursor_id)
        return [delete_entry(cursor_id), delete_paused(cursor_id)]

    def _forget(self, cursor: Cursor) -> None:
        self._unnote(cursor.id)
        self._loaded.pop(cursor.id, None)
        self.writer.forget(cursor)
        self.dead_letters.forget(cursor)
        self.watched.discard(cursor)
        cursor.gone()

    # --- topics

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change != "deleted":
            return
        self.read_batches.forget_topic(topic)
        ids = self._of_topic.pop(topic.id, None)
        if ids:
            log.info("topic %r was deleted, and with it %d cursors", topic.name, len(ids))
            self.context.slices.run(self._forget_all(ids))

    def _forget_all(self, ids: set[int]) -> Iterator[None]:
        """There may be very many; a step for each. What a process that ends leaves is found by `_expire`."""
        gone = []
        while ids:
            cursor_id = ids.pop()
            cursor = self._loaded.get(cursor_id)
            if cursor is not None:
                self._forget(cursor)
            self._unnote(cursor_id)
            gone += self._removal(cursor_id)
            if len(gone) >= WALK_KEYS or not ids:
                self.context.state.submit(gone)
                gone = []
            yield

    # --- time

    def tick(self) -> None:
        """What time brings: moved cursors are written, records fall due, idle cursors are let go, old ones expire."""
        now_ms = self.clock_ms()
        steps = (
            lambda: self._fall_due(now_ms),
            self.dead_letters.work,
            lambda: self.writer.tick(now_ms),
            lambda: self._sweep(now_ms),
            lambda: self.lags.tick(now_ms),
        )
        call_each("the clock of subscriptions", steps)

    def _fall_due(self, now_ms: int) -> None:
        for cursor in list(self.watched):
            try:
                cursor.fall_due(now_ms)
            except Exception as problem:  # noqa: BLE001 - the others fall due all the same
                self.watched.discard(cursor)
                report_exception(f"the clock of {cursor.title}", problem)

    def _sweep(self, now_ms: int) -> None:
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + SWEEP_MS
            self._let_go(now_ms)
            if not self._expiry_queue:
                self._expiry_queue = list(self._topic_of)
        for _ in range(min(EXPIRY_SLICE, len(self._expiry_queue))):
            self._expire(self._expiry_queue.pop())

    def _let_go(self, now_ms: int) -> None:
        idle_ms = IDLE_MS if len(self._loaded) <= CURSORS_LOADED_MAX else CROWDED_IDLE_MS
        for cursor in list(self._loaded.values()):
            if cursor.is_idle(now_ms - idle_ms) and not (self.writer.needs(cursor) or self.dead_letters.needs(cursor)):
                del self._loaded[cursor.id]
                self.watched.discard(cursor)
                cursor.close()

    def _expire(self, cursor_id: int) -> None:
        if cursor_id in self._loaded:
            return
        entry = self._stored(cursor_id)
        if entry is None:
            return
        expiry_ms = self.policy(entry.owner).expiry_ms
        if self._is_of_no_topic(entry):
            log.info("subscription %d is removed: its topic was deleted", cursor_id)
        elif expiry_ms and self.context.clock.age_ms(entry.used_ms) > expiry_ms:
            log.info("subscription %d expired: not used for %d hours", cursor_id, expiry_ms // 3_600_000)
            self.totals(entry.owner).expired += 1
        else:
            return
        self._unnote(cursor_id)
        self.context.state.submit(self._removal(cursor_id))

    def _is_of_no_topic(self, entry: Entry) -> bool:
        """Whether its topic is gone: one whose description is damaged still has its directory."""
        context = self.context
        if context.catalog.by_id(entry.topic_id) is not None:
            return False
        try:
            return not context.files.exists(context.data_dir / "topics" / str(entry.topic_id))
        except OSError:
            return False

    # --- looking at all

    def entries(self) -> Iterator[Entry]:
        """Every cursor as it is now, oldest first; none is loaded for that."""
        yield from filter(None, map(self.entry, self.ids()))

    def entry(self, cursor_id: int) -> Entry | None:
        """A cursor as it is now; none is loaded for that. None: there is no such cursor (any more)."""
        cursor = self._loaded.get(cursor_id)
        return cursor.entry() if cursor is not None else self._stored(cursor_id)

    def standing(self, cursor_id: int) -> Standing | None:
        """Where a cursor stands; none is loaded for that. None: there is no such cursor (any more)."""
        cursor = self._loaded.get(cursor_id)
        if cursor is not None:
            partition, deliveries = cursor.partition, cursor.deliveries
            numbers = (deliveries.floor, deliveries.next_seq, deliveries.unacknowledged)
            return Standing(cursor.owner, partition.topic.id, partition.index, *numbers)
        known = self._at_rest.get(cursor_id)
        if known is None:
            entry = self._stored(cursor_id)
            if entry is None:
                return None
            try:
                deliveries = load(entry.deliveries, self.policy(entry.owner).deliveries)
            except (ValueError, TypeError) as problem:
                self._lose(cursor_id, problem)
                return None
            numbers = (deliveries.floor, deliveries.next_seq, deliveries.unacknowledged)
            known = self._at_rest[cursor_id] = Standing(entry.owner, entry.topic_id, entry.partition, *numbers)
        return known

    def _stored(self, cursor_id: int) -> Entry | None:
        """The stored entry of a cursor; one that is damaged is reported and the cursor gone."""
        if cursor_id not in self._topic_of:
            return None
        newer: Entry | None = self.writer.overlay.get(cursor_id)
        if newer is not None:
            return newer
        try:
            return parse_entry(cursor_id, self.context.state.get(entry_key(cursor_id)))
        except Corrupt as problem:
            self._lose(cursor_id, problem)
            return None

    def _lose(self, cursor_id: int, problem: Exception) -> None:
        """A cursor turns out to be damaged: its name may be given to a new one."""
        self._report(problem)
        self._unnote(cursor_id)

    def flush(self, on_done: OnDone | None = None) -> None:
        """Write what has moved; ``on_done`` gets None once all that moved before this call is durable."""
        self.writer.flush(on_done)

    def close(self) -> None:
        """Submit what is left to write; before the state is closed. Nothing is written afterwards."""
        self.writer.close()
