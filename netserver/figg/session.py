"""The server's side of a Figg connection: events of the codec become engine calls, commit rounds become answers.

- PUBLISH: runs of frames of one topic go into the log in one call. One ACK a commit round: the highest seq_num that is
  stored, in the order of arrival, and never one at or above the number of a publish that is not stored.
- ATTACH: one subscription per topic; ATTACHED names the position after which DATA begins, always before the first
  DATA, and again when the topic was deleted and made again: its numbers begin again. Another ATTACH seeks.
  DETACH is always answered, and no DATA follows.
- PONG, ACK and ATTACHED are written at once. DATA is written only while the connection's output is short, a portion of
  each subscription in turn, so nothing waits behind much of it.
- A publish that cannot be stored ends the acknowledging on its connection, which stays open: its client would redial a
  closed one without pause. Further publishes are read and dropped (the client has them until they are acknowledged),
  everything else goes on. When the topic takes records again the connection is closed: the client redials and resends.
- A frame that is too large for us closes the connection too, a second later: its client redials a closed one without
  pause and sends the same frame again, for ever. So does a publish that its client may not make (no right, no room for
  one more topic): waiting would not help, and the reason is in the log.
- A subscription of a topic that is there and cannot be read (its partition is offline) closes the connection after some
  seconds, with the reason in the log: the protocol has no error, and silence would look like a topic without records.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from engine.errors import EngineError, InvalidConfig, LimitReached, NotStored, UnknownTopic, too_large
from netserver.access.access import Forbidden
from netserver.access.table import right_of
from netserver.errors import ProtocolError
from netserver.figg import codec
from netserver.figg.limits import (
    COSTLY_S,
    RESENT_S,
    STEPS_A_LOOK,
    SUBSCRIPTIONS_MAX,
    TOPICS_REMEMBERED_MAX,
    TURN_BYTES,
)
from netserver.figg.listener_state import ListenerState
from netserver.figg.publishing import PublishingSession
from netserver.figg.subscription import Subscription

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.access.rights import Right
    from netserver.shell.connection import Connection, Services, SessionFactory

PUBLISH_RIGHT = right_of("figg", "PUBLISH")
ATTACH_RIGHT = right_of("figg", "ATTACH")
OPENING = "a topic is being opened"
DEFINITE = (Forbidden, InvalidConfig, LimitReached, UnknownTopic)
"""Why there is no topic to publish to, where the same publish is not better off a little later."""
RESENT = frozenset(("frame_size", "record_size", "topic_size", "subscriptions", "refused"))
"""What a sane client may send, and sends again on its next connection: see `limits.RESENT_S`."""


def factory(services: Services) -> SessionFactory:
    """Makes the sessions of one listener."""
    shared = ListenerState(services)

    def make(connection: Connection) -> FiggSession:
        return FiggSession(connection, shared)

    return make


class FiggSession(PublishingSession):
    """See the module's text, and `netserver.shell.connection.Session` for who calls what."""

    def __init__(self, connection: Connection, shared: ListenerState) -> None:
        super().__init__(connection, connection.services.log.slices, shared.frame_bytes_max)
        self._shared = shared
        self._partitions: dict[bytes, Partition] = {}
        self._subscriptions: dict[bytes, Subscription] = {}
        self._ready: deque[Subscription] = deque()
        self._answers: list[bytes] = []
        self._closes_later = False
        self._turn_scheduled = False

    # --- input

    def other(self, data: memoryview, position: int, length: int) -> int:
        steps = 0
        connection = self.connection
        try:
            while not connection.held:
                frame = codec.open_frame(data, position, length, self.frame_bytes_max)
                if frame is None:
                    if length - position >= 8:
                        connection.expect(8 + int.from_bytes(data[position + 4 : position + 8], "big"))
                    break
                kind, start, end = frame
                steps += 1
                if (kind == codec.ATTACH or not steps % STEPS_A_LOOK) and not connection.has_turn():
                    break
                if kind == codec.PUBLISH:
                    behind = self._publish(data, position, length, start, end)
                    if behind == position:
                        break  # held, and this frame comes again
                    position = behind
                    continue
                if kind == codec.PING:
                    self._answers.append(codec.pong(codec.read_number(data, start, end)))
                elif kind == codec.ATTACH:
                    self._attach(*codec.read_attach(data, start, end))
                elif kind == codec.DETACH:
                    self._detach(codec.read_topic(data, start, end))
                position = end
        except codec.FiggError as error:
            self._closes_later = error.kind in RESENT
            raise ProtocolError(str(error), error.kind) from None
        finally:
            self._flush()
        if self._ready:
            self._deliver()
        return position

    def _flush(self) -> None:
        answers = self._answers
        if answers:
            self.connection.write(answers[0] if len(answers) == 1 else b"".join(answers))
            self._answers = []

    # --- publishing

    def _publish(self, data: memoryview, position: int, length: int, start: int, end: int) -> int:
        """Store the publishes from ``position`` on, as far as they are of one topic; the position after them.

        ``position`` itself means that the connection is held and the frame has to come again.
        """
        topic, number, value_start, value_end = codec.read_record(data, start, end)
        partition = None if self._refused else self._partition(topic, number)
        if partition is None:
            return end if self._refused else position
        if value_end - value_start > partition.config.record_bytes_max:
            raise codec.FiggError(too_large(value_end - value_start, partition.config.record_bytes_max), "record_size")
        self._last = partition
        try:
            return self._store_run(partition, data, position, length)
        except NotStored as problem:
            self._refuse(problem, topic, partition, number)
            return end

    def _partition(self, topic: bytes, number: int) -> Partition | None:
        """Where to publish; None: not now (the connection is held), or nothing can be stored there."""
        partition = self._partitions.get(topic)
        if partition is not None and partition.is_open and partition.error is None:
            return partition
        try:
            if not self.connection.has_turn():  # a new topic takes a while: many of them must not hold up others
                return None
            self._demand("PUBLISH", PUBLISH_RIGHT, topic)
            partition = self._shared.partition(topic, self.connection.maker)
        except DEFINITE as problem:
            raise codec.FiggError(f"its publishes are refused: {problem}", "refused") from None
        except EngineError as problem:
            self._refuse(problem, topic, None, number)
            return None
        if not partition.is_open:
            self.connection.hold(OPENING)
            partition.when_open(self.connection.guarded(lambda: self._opened(partition, number)))
            return None
        if len(self._partitions) >= TOPICS_REMEMBERED_MAX:
            self._partitions.clear()
        self._partitions[topic] = partition
        return partition

    def _demand(self, request: str, right: Right, topic: bytes) -> None:
        """Raises Forbidden: this client may not."""
        self.connection.visitor.demand(request, right, topic, is_there=self._shared.is_there(topic))

    def _opened(self, partition: Partition, number: int) -> None:
        if not partition.is_open:
            problem = partition.error or NotStored(f"{partition.title} cannot be opened")
            self._refuse(problem, partition.topic.name, partition, number)
        self.connection.release(OPENING)

    def _refuse(self, problem: Exception, topic: bytes, partition: Partition | None, number: int) -> None:
        """The publish with this number cannot be stored: it and what comes after it is not acknowledged."""
        if number < self._refused_from:
            self._refused_from = number
        if not self._refused:
            self._refused = True
            self._shared.refused(self, topic, partition, problem)

    # --- subscribing

    def _attach(self, topic: bytes, offset: int | None) -> None:
        self._stop(topic)
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise codec.FiggError(f"more than {SUBSCRIPTIONS_MAX} subscriptions", "subscriptions")
        subscription = Subscription(
            topic,
            offset,
            shared=self._shared.frames,
            counters=self.connection.counters,
            on_ready=self._wake,
            guarded=self.connection.guarded,
            value_bytes_max=self.frame_bytes_max - 16 - len(topic),
        )
        self._subscriptions[topic] = subscription
        self._begin(subscription)

    def _begin(self, subscription: Subscription, *, create: bool = True) -> None:
        """Start it as soon as its topic can be read; ATTACHED is not written yet when this returns."""
        try:
            self._demand("ATTACH", ATTACH_RIGHT, subscription.topic)
            if not subscription.is_counted:
                self.connection.visitor.subscribe("ATTACH", subscription.topic)
                subscription.is_counted = True
            partition = self._shared.partition_to_read(subscription.topic, self.connection.maker, create=create)
        except EngineError as problem:
            self._shared.unreadable(self, subscription, problem)
            return
        if partition.is_open:
            self._start(subscription, partition)
            return
        partition.when_open(self.connection.guarded(lambda: self._opened_to_read(subscription, partition)))

    def _opened_to_read(self, subscription: Subscription, partition: Partition) -> None:
        if subscription.stopped:
            return
        if partition.is_open:
            self._start(subscription, partition)
            self._flush()
            self._deliver()
        else:
            problem = partition.error or EngineError(f"{partition.title} cannot be opened")
            self._shared.unreadable(self, subscription, problem)

    def _start(self, subscription: Subscription, partition: Partition) -> None:
        position = subscription.start(partition)
        if not subscription.attached:
            subscription.attached = True
            self._answers.append(codec.attached(subscription.topic, position))
        self._enqueue(subscription)

    def _detach(self, topic: bytes) -> None:
        self._stop(topic)
        self._answers.append(codec.detached(topic))

    def _stop(self, topic: bytes) -> None:
        subscription = self._subscriptions.pop(topic, None)
        if subscription is not None:
            self._leave(subscription)

    def _stop_all(self) -> None:
        """In slices: there may be 65,536."""
        subscriptions, self._subscriptions = self._subscriptions, {}
        leave = (partial(self._leave, subscription) for subscription in subscriptions.values())
        self.connection.services.log.slices.call_each("the end of a connection", leave)

    def _leave(self, subscription: Subscription) -> None:
        subscription.stop()
        if subscription.is_counted:
            self.connection.visitor.unsubscribe()
        self._shared.forget(subscription)

    def _enqueue(self, subscription: Subscription) -> None:
        if not subscription.queued:
            subscription.queued = True
            self._ready.append(subscription)

    def _wake(self, subscription: Subscription) -> None:
        """Its topic may have more."""
        if not subscription.stopped:
            self._enqueue(subscription)
            self._deliver()

    def retry(self, subscription: Subscription) -> None:
        """Try again to read what could not be read (a topic that is gone is not made again for that)."""
        if not subscription.stopped:
            self._begin(subscription, create=False)
            self._flush()
            self._deliver()

    def _deliver(self) -> None:
        """Write DATA while the output is short: a portion of each ready subscription in turn."""
        connection = self.connection
        ready = self._ready
        left_bytes = TURN_BYTES
        slices = connection.services.log.slices
        at = perf_counter()
        while ready and connection.writable and not connection.closed:
            if left_bytes <= 0 or (ready[0].is_costly and slices.is_over()):
                self._deliver_later()
                return
            subscription = ready.popleft()
            subscription.queued = False
            if subscription.stopped:
                continue
            try:
                framed = subscription.advance()
            except EngineError as problem:
                self._shared.unreadable(self, subscription, problem)
                continue
            before, at = at, perf_counter()
            # A portion may be a few of a million records, all of which are unpacked and passed over to find them.
            subscription.is_costly = at - before > COSTLY_S
            if subscription.is_costly:
                left_bytes = 0
            if framed is not None:
                self._enqueue(subscription)
                if framed.count:
                    connection.write(framed.frames)
                    connection.delivered(framed.count)
                    left_bytes -= len(framed.frames)

    def _deliver_later(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self.connection.services.log.slices.later(self.connection.guarded(self._next_turn))

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self._deliver()

    # --- the connection's life

    def eof(self) -> None:
        if self._closes_later:
            self.connection.loop.call_later(RESENT_S, self.connection.guarded(self.drain))
        self._end()

    def drain(self) -> None:
        self._closes_later = False
        self._end()

    def _end(self) -> None:
        """No more input: answer what is outstanding, then close."""
        self._ending = True
        self._stop_all()
        self._close_when_done()

    def _close_when_done(self) -> None:
        if not len(self._outstanding) and not self._closes_later:
            self.connection.close()

    def resume_output(self) -> None:
        self._deliver()

    def closed(self) -> None:
        self._stop_all()
        self._ready.clear()
        self._shared.leave(self)
        self._outstanding.close()
        self._discharge_runs(0)

    def idle(self) -> bool:
        return not self._outstanding
