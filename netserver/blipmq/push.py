"""Version 2 deliveries: the subscriptions of a connection whose messages are pushed.

A pushed subscription is a cursor that is polled by the server itself, as long as the connection takes output and not
too much is unacknowledged. Three kinds:

- of one topic: a volatile cursor, which ends with the connection, as in the original;
- of a group: a durable cursor that its members share; what a member leaves behind goes to the others;
- of a pattern: a volatile cursor for each topic that it stands for, those made later included.

When a topic is deleted, the next one of its name takes its place. A tag has the number of the topic, as met by this
subscription, in its upper 20 bits: 0 for the first one.

What is passed over without being pushed, since it is too old, too large or damaged, costs nobody but its own
subscriber: it is done in slices (`engine.slices`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from engine.errors import EngineError
from engine.formats.record import BatchError, BundleError
from netserver.blipmq import codec
from netserver.blipmq.codec_v2 import DELIVER_HEAD_BYTES
from netserver.blipmq.frames import END, FULL, SKIP, deliver
from netserver.blipmq.limits import FRAME_LENGTH_MAX, PUSH_BYTES, PUSH_RANGES_MAX, PUSH_TURN_BYTES, PUSH_WINDOW
from netserver.blipmq.polling import UNKNOWN, cid_at

if TYPE_CHECKING:
    from engine.cursors.cursor import Cursor
    from engine.cursors.deliveries import Plan
    from engine.state.topic_entries import Topic
    from netserver.blipmq.polling import ConsumingSession

log = logging.getLogger("quintlog.blipmq")

TAG_SHIFT = 44
NUMBERS = 1 << 20
MASK = (1 << 64) - 1
SEQ_BOUND = 1 << 62
RETRY_S = 1.0
STALL_S = 0.05
ID_FRAME_BYTES = 21

OnGone: TypeAlias = "Callable[[Cursor], None]"


class Push:
    """One cursor that is pushed.

    Args:
        number: of the topic in the subscription.
        on_gone: called when the cursor was deleted, if it is durable.

    Attributes:
        subscription: whose it is; None: the cursor's id is the subscription's.
    """

    __slots__ = ("_era", "_pusher", "cursor", "delivered", "is_queued", "number", "on_gone", "subscription")

    def __init__(self, pusher: Pusher, cursor: Cursor, number: int = 0, on_gone: OnGone | None = None) -> None:
        self._pusher = pusher
        self.cursor = cursor
        self.number = number
        self.on_gone = on_gone
        self.subscription: Subscription | None = None
        self.is_queued = False
        self.delivered: deque[tuple[int, int]] = deque(maxlen=PUSH_RANGES_MAX)  # to this connection, not finished
        self._era = cursor.era

    @property
    def base(self) -> int:
        """What a tag counts from, modulo 2**64."""
        return (self.cursor.base - (self.number << TAG_SHIFT)) & MASK

    def wake(self) -> None:
        """There may be something to push."""
        self._pusher.queue(self)

    def note(self, first: int, last: int) -> None:
        """These went to this connection and wait for their acknowledgement."""
        delivered = self.delivered
        if self._era != self.cursor.era:  # it was reset: what went out before is no longer in flight
            self._era = self.cursor.era
            delivered.clear()
        floor = self.cursor.deliveries.floor
        while delivered and delivered[0][1] <= floor:
            delivered.popleft()
        if delivered and delivered[-1][1] == first - 1:
            delivered[-1] = (delivered[-1][0], last)
        else:
            delivered.append((first, last))

    def give_back(self, now_ms: int) -> None:
        """The connection is gone: what went to it comes again."""
        for first, last in self.delivered if self._era == self.cursor.era else ():
            self.cursor.give_back(first, last, now_ms)


class Subscription:
    """The cursors of one subscription that have other ids than itself, by the numbers of their topics.

    A number comes again only after all others: what is acknowledged late for a deleted topic is nobody's.

    Args:
        first: number of the first one.
    """

    __slots__ = ("_next", "pushes")

    def __init__(self, first: int = 0) -> None:
        self.pushes: dict[int, Push] = {}
        self._next = first

    def add(self, pusher: Pusher, cursor: Cursor, on_gone: OnGone | None = None) -> Push:
        """One more topic."""
        number = self._next
        while number in self.pushes:
            number = (number + 1) % NUMBERS
        self._next = (number + 1) % NUMBERS
        push = self.pushes[number] = Push(pusher, cursor, number, on_gone)
        push.subscription = self
        return push


class Pusher:
    """All pushed cursors of a connection.

    Attributes:
        count: how many there are.
    """

    def __init__(self, session: ConsumingSession) -> None:
        self.count = 0
        self._session = session
        self._connection = session.connection
        self._shared = session.shared
        self._queue: deque[Push] = deque()
        self._stalled: set[Push] = set()
        self._own: dict[int, Subscription] = {}  # of volatile cursors
        self._of_topic: dict[int, list[Push]] = {}  # topic id -> the volatile ones
        self._durable: dict[Push, None] = {}
        self._is_scheduled = False
        self._is_late = False  # this turn's slice is used up
        self._ended = False

    # --- subscriptions

    def push(self, subscription_id: int, cursor: Cursor, on_gone: OnGone | None = None) -> None:
        """Push a cursor from now on, for a subscription that has none, had one of a deleted topic, or is a pattern's.

        Args:
            on_gone: called when the cursor was deleted, if it is durable.
        """
        if self._ended or cursor.partition.is_deleted or not cursor.alive:
            return
        self.count += 1
        if cursor.is_volatile:
            push = self._own.setdefault(subscription_id, Subscription()).add(self, cursor)
            self._of_topic.setdefault(cursor.partition.topic.id, []).append(push)
        else:
            if cursor.id == subscription_id:
                push = Push(self, cursor, on_gone=on_gone)
            else:
                push = self._own.setdefault(subscription_id, Subscription(first=1)).add(self, cursor, on_gone)
            cursor.pins += 1
            self._durable[push] = None
        push.wake()

    def open(self, subscription_id: int) -> None:
        """A pattern's subscription, which may have no topic yet."""
        self._own.setdefault(subscription_id, Subscription())

    def drop(self, topic: Topic) -> None:
        """A topic was deleted: its volatile cursors end (durable ones do by themselves, and are found when they do)."""
        for push in self._of_topic.pop(topic.id, ()):
            assert push.subscription is not None
            del push.subscription.pushes[push.number]
            self.count -= 1
            self._end(push)

    def _gone(self, push: Push) -> None:
        """A durable cursor was deleted."""
        del self._durable[push]
        self.count -= 1
        if push.subscription is not None:
            del push.subscription.pushes[push.number]
        if push.on_gone is not None:
            push.on_gone(push.cursor)

    def _end(self, push: Push) -> None:
        self._stalled.discard(push)
        self._shared.cursors.watched.discard(push.cursor)
        push.cursor.close()

    def close(self) -> None:
        """The connection is gone: volatile cursors end, what a group's members get back goes to the others."""
        self._ended = True
        self._queue.clear()
        self._shared.log.slices.run(self._let_go())

    def _let_go(self) -> Iterator[None]:
        now_ms = self._shared.clock_ms()
        for push in self._durable:
            push.cursor.forget(push.wake)
            push.cursor.pins -= 1
            push.give_back(now_ms)
            yield
        for push in (push for subscription in self._own.values() for push in subscription.pushes.values()):
            if push.cursor.is_volatile:
                self._end(push)
            yield
        for subscription in self._own.values():
            subscription.pushes.clear()
        for pushes in (self._durable, self._own, self._of_topic, self._stalled):
            pushes.clear()

    def acked(self, subscription_id: int, data: memoryview, position: int, count: int) -> bool:
        """Take ACKs of a subscription whose cursors have other ids; False: it is none of this connection."""
        subscription = self._own.get(subscription_id)
        if subscription is None:
            return False
        for at in range(position, position + count * ID_FRAME_BYTES, ID_FRAME_BYTES):
            tag = cid_at(data, at)
            push = subscription.pushes.get(tag >> TAG_SHIFT)
            is_known = push is not None and bool(tag)
            if push is not None and is_known:
                seq = (push.base + tag) & MASK
                is_known = seq < SEQ_BOUND and bool(push.cursor.acknowledge(seq, seq))
                self._session.acked |= not push.cursor.is_volatile
            if not is_known:
                self._session.answer(codec.nack(tag, codec.NOT_FOUND, UNKNOWN))
        return True

    # --- pushing

    def queue(self, push: Push) -> None:
        """A cursor may have something."""
        if not (push.is_queued or self._ended):
            push.is_queued = True
            self._queue.append(push)
            self.schedule()

    def schedule(self) -> None:
        """Go on in the next turn of the loop, or in one that has time for a slice."""
        if not self._is_scheduled and not self._ended:
            self._is_scheduled = True
            later = self._shared.log.slices.later if self._is_late else self._connection.loop.call_soon
            later(self._connection.guarded(self._turn))

    def unstall(self) -> None:
        """Acknowledgements were taken: there may be room in the windows again."""
        stalled, self._stalled = self._stalled, set()
        for push in stalled:
            self.queue(push)

    def _turn(self) -> None:
        self._is_scheduled = self._is_late = False
        left_bytes = PUSH_TURN_BYTES
        while self._queue and left_bytes > 0 and self._connection.writable and not (self._ended or self._is_late):
            push = self._queue.popleft()
            push.is_queued = False
            left_bytes -= self._some(push)
        if self._queue and self._connection.writable:
            self.schedule()

    def _some(self, push: Push) -> int:
        """Push some messages of a cursor; returns their bytes. It is queued again, or waits, afterwards."""
        cursor, out = push.cursor, self._shared.out
        now_ms = self._shared.clock_ms()
        used = 0
        while used < PUSH_BYTES and self._connection.writable and not self._is_late:
            if not cursor.alive:
                if push in self._durable:
                    self._gone(push)
                break
            try:
                plan = cursor.next(now_ms)
            except EngineError as problem:
                log.warning("%s: pushing has to wait: %s", cursor.title, problem)
                self._connection.loop.call_later(RETRY_S, push.wake)
                break
            if plan is None:
                cursor.wait(push.wake)
                break
            room = PUSH_WINDOW
            if cursor.qos and not plan.retry:
                room -= cursor.deliveries.unacknowledged
            if room <= 0:
                self._stall(push)
                break
            before, used = used, self._deliver(push, plan, used, room, now_ms)
            self._is_late = used <= before and self._shared.log.slices.is_over()
        else:
            self.queue(push)
        if used:
            self._connection.write(bytes(out[:used]))
        return used

    def _stall(self, push: Push) -> None:
        """Its window is full: go on after acknowledgements, also those of others."""
        self._stalled.add(push)
        self._connection.loop.call_later(STALL_S, self.unstall)

    def _deliver(self, push: Push, plan: Plan, used: int, limit: int, now_ms: int) -> int:
        """Put the first stretch of a plan into its output; the bytes used of it then."""
        cursor, counters = push.cursor, self._session.counters
        reader, topic, out = cursor.reader, cursor.topic_name, self._shared.out
        records = reader.records
        assert records is not None
        first, oldest_ms = records.seq, self._shared.oldest_ms()
        arguments = (plan.last, limit, push.base, cursor.qos, topic, b"", 0, oldest_ms, self._shared.age_ms, True)
        try:
            end, taken, state, qos0 = deliver(out, used, records, *arguments)
            if not taken and state == FULL:
                size_bytes = 4 + DELIVER_HEAD_BYTES + len(topic) + records.value_end - records.value_start
                if used:
                    self._connection.write(bytes(out[:used]))
                    used = 0
                if size_bytes > len(out):
                    out = bytearray(size_bytes)
                end, taken, state, qos0 = deliver(out, 0, records, *arguments)
            if not taken and state == SKIP:
                size_bytes = DELIVER_HEAD_BYTES + len(topic) + records.value_end - records.value_start
                counters.skipped["too large" if size_bytes > FRAME_LENGTH_MAX else "expired"] += 1
                reader.advance()
                reader.moved(first + 1, reader.current)
                cursor.finished(plan, first)
                return used
        except (BatchError, BundleError) as problem:
            cursor.skip_read_batch(plan, problem)
            return used
        last = first + taken - 1
        reader.moved(last + 1, state != END)
        if qos0:
            cursor.finished(plan, last)
        else:
            cursor.delivered(plan, first, last, now_ms)
            if not cursor.is_volatile:
                push.note(first, last)
        counters.records_delivered += taken
        self._connection.delivered(taken)
        counters.delivered_bytes += end - used
        if out is not self._shared.out:
            self._connection.write(out)
            return used
        return end
