"""What protocol version 2 adds to a session: PUBLISH and SUBSCRIBE with their further fields, and pushing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError, NotStored, TooLarge
from netserver.access.table import right_of
from netserver.blipmq import codec, codec_v2
from netserver.blipmq.codec import FrameType, PayloadError
from netserver.blipmq.frames import TTL_HEADER
from netserver.blipmq.limits import (
    CONNECTION_CURSORS_MAX,
    CONNECTION_PATTERNS_MAX,
    CONNECTION_SHAPES_MAX,
    CONNECTION_TOPICS_MAX,
    FRAME_LENGTH_MAX,
    KEY_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    TOPICS_A_STEP,
)
from netserver.blipmq.listener_state import OWNER
from netserver.blipmq.patterns import Pattern, is_pattern
from netserver.blipmq.polling import SUBSCRIBE, cid_at
from netserver.blipmq.push import Pusher
from netserver.shell.outstanding import Promise

if TYPE_CHECKING:
    from engine.cursors.cursor import Cursor
    from engine.partitions.partition import Partition
    from engine.state.store import OnDone
    from engine.state.topic_catalog import Change
    from engine.state.topic_entries import Topic
    from netserver.blipmq.session import BlipmqSession

log = logging.getLogger("quintlog.blipmq")

PUBLISH: Final = right_of("blipmq", "PUBLISH")
EARLIEST = 0

# Reason for which a connection is not parsed.
MATCHING: Final = "topics of a pattern are looked for"


class VersionTwo:
    """The part of a session that exists once HELLO has asked for version 2.

    Attributes:
        topics: subscriptions of one topic each.
    """

    def __init__(self, session: BlipmqSession) -> None:
        self.pusher = Pusher(session)
        self._session = session
        self._shared = session.shared
        self._patterns: dict[PatternSubscription, None] = {}
        self.topics: dict[TopicSubscription, None] = {}

    def close(self) -> None:
        """The connection is gone."""
        self._shared.forget(self._topic_changed)
        for subscription in list(self._patterns):
            self.left(subscription)
        for one in list(self.topics):
            self.left_topic(one)
        self.pusher.close()

    def handle(self, kind: int, data: memoryview, position: int, behind: int) -> int:
        """A PUBLISH or SUBSCRIBE; the position after it, or ``position`` while something has to be waited for."""
        session = self._session
        cid = cid_at(data, position)
        payload = data[position + 13 : behind]
        try:
            if kind == FrameType.PUBLISH:
                return behind if self._publish(cid, codec_v2.parse_publish(payload)) else position
            return behind if self._subscribe(cid, codec_v2.parse_subscribe(payload)) else position
        except PayloadError as error:
            session.nack(cid, error.code, error.text)
        except NotStored as error:
            session.nack(cid, session.failure_code(error), f"durable {FrameType(kind).name.lower()} failed: {error}")
        return behind

    # --- publishing

    def _publish(self, cid: int, request: codec_v2.Publish) -> bool:
        """Append a message with a key or a time to live of its own. False: the partition is being opened."""
        session = self._session
        partition = session.route(request.topic, "PUBLISH", PUBLISH)
        if len(request.key) > KEY_BYTES_MAX:
            raise PayloadError("partition key too long")
        if not session.is_open(partition):
            return False
        if codec_v2.DELIVER_HEAD_BYTES + len(request.topic) + len(request.body) > FRAME_LENGTH_MAX:
            raise PayloadError("message too large to be delivered in a frame")
        headers = (TTL_HEADER, b"%d" % request.ttl_ms) if request.ttl_ms else ()
        try:
            write_batch = partition.append(
                [request.body],
                keys=[request.key],
                headers=[headers],
                qos0=not request.qos,
                waiter=session.outstanding,
            )
        except TooLarge as error:
            raise PayloadError(str(error)) from None
        except NotStored:
            if request.qos:
                raise
            session.counters.skipped["not stored"] += 1
            return True
        session.published(write_batch, cid.to_bytes(8, "big") if request.qos else b"", len(request.body), 1)
        return True

    # --- subscribing

    def _subscribe(self, cid: int, request: codec_v2.Subscribe) -> bool:
        """Make or join a subscription. False: a partition is being opened."""
        session, cursors = self._session, self._shared.cursors
        if self.pusher.count >= CONNECTION_CURSORS_MAX or len(self.topics) >= CONNECTION_TOPICS_MAX:
            raise PayloadError("too many subscriptions")
        if is_pattern(request.topic):
            session.count_subscription(request.topic)
            return self._subscribe_pattern(cid, request)
        partition = session.route(request.topic, "SUBSCRIBE", SUBSCRIBE)
        if not session.is_open(partition):
            return False
        session.count_subscription(request.topic)
        if not request.group:
            cursor = cursors.volatile(OWNER, partition, after_seq=_after(request, partition), qos=request.qos)
            session.answer(codec.ack(cid, cursor.id))
            TopicSubscription(self, session, cid, request, cursor.id).push(cursor)
            return True
        known = cursors.group(OWNER, request.group, partition)
        if known is not None:
            session.answer(codec.ack(cid, known.id))
            TopicSubscription(self, session, cid, request, known.id).push(known)
            return True
        self._new_group(cid, request, partition)
        return True

    def _new_group(self, cid: int, request: codec_v2.Subscribe, partition: Partition) -> None:
        promise = Promise()

        def stored(error: EngineError | None) -> None:
            if error is not None:
                self.left_topic(subscription)
            promise.settle(error)
            self._session.outstanding.look_soon()

        cursor = self.make_group(request, partition, _after(request, partition), stored)
        self._session.subscribing(promise, cid, cursor.id)
        subscription = TopicSubscription(self, self._session, cid, request, cursor.id)
        subscription.push(cursor)

    def make_group(
        self, request: codec_v2.Subscribe, partition: Partition, after_seq: int, on_durable: OnDone | None = None
    ) -> Cursor:
        """A new group.

        Raises:
            PayloadError: it cannot be made
        """
        cursors = self._shared.cursors
        if len(cursors) >= SUBSCRIPTIONS_MAX:
            raise PayloadError("too many subscriptions")
        try:
            return cursors.create(
                OWNER, partition, after_seq=after_seq, qos=request.qos, name=request.group, on_durable=on_durable
            )
        except EngineError as error:
            raise PayloadError(str(error)) from None

    def _subscribe_pattern(self, cid: int, request: codec_v2.Subscribe) -> bool:
        """A subscription of all topics that match, now and later."""
        if request.group or request.offset is not None:
            raise PayloadError("a pattern has no group and no offset")
        if len(self._patterns) >= CONNECTION_PATTERNS_MAX:
            raise PayloadError("too many patterns")
        pattern = Pattern(request.topic)
        shapes = {known.pattern.shape for known in self._patterns}
        if pattern.shape not in shapes and len(shapes) >= CONNECTION_SHAPES_MAX:
            raise PayloadError("patterns with wildcards in too many different places")
        PatternSubscription(self, self._session, cid, pattern, request.qos).start()
        return True

    def joined(self, subscription: PatternSubscription) -> None:
        """A pattern counts from now on."""
        self._patterns[subscription] = None
        self._shared.patterns.add(subscription.pattern, subscription)
        self._listen()

    def left(self, subscription: PatternSubscription) -> None:
        """It does no longer."""
        self._patterns.pop(subscription, None)
        self._shared.patterns.remove(subscription.pattern, subscription)

    def joined_topic(self, subscription: TopicSubscription) -> None:
        """A subscription of one topic counts from now on."""
        self.topics[subscription] = None
        self._shared.names.setdefault(subscription.topic, {})[subscription] = None
        self._listen()

    def left_topic(self, subscription: TopicSubscription) -> None:
        """It does no longer."""
        self.topics.pop(subscription, None)
        named = self._shared.names.get(subscription.topic, {})
        named.pop(subscription, None)
        if not named:
            self._shared.names.pop(subscription.topic, None)

    def _listen(self) -> None:
        """Hear of topics from now on."""
        self._shared.listen(self._topic_changed)

    def may_read(self, topic: Topic) -> bool:
        """Whether the client may, and the topic is there."""
        return not topic.deleting and self._session.connection.visitor.may(SUBSCRIBE, topic.name)

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change == "deleted":
            self.pusher.drop(topic)


class TopicSubscription:
    """A subscription of one topic, alone or as a member of a group.

    When the topic is deleted it waits for the next one of that name, and begins with its first message. When the group
    alone is deleted its members are told, by a NACK with the correlation id of their SUBSCRIBE.
    """

    def __init__(
        self,
        version_two: VersionTwo,
        session: BlipmqSession,
        cid: int,
        request: codec_v2.Subscribe,
        subscription_id: int,
    ) -> None:
        self.topic = request.topic
        self._version_two = version_two
        self._session = session
        self._cid = cid
        self._request = request
        self._id = subscription_id
        version_two.joined_topic(self)

    def push(self, cursor: Cursor) -> None:
        """Push its messages, after the answers that are outstanding."""
        pusher = self._version_two.pusher
        self._session.afterwards(lambda: pusher.push(self._id, cursor, self._gone))

    def topic_made(self, partition: Partition, after_seq: int) -> None:
        """There is a topic of its name again."""
        if not self._version_two.may_read(partition.topic):
            return
        cursors, request = self._session.shared.cursors, self._request
        if not request.group:
            self.push(cursors.volatile(OWNER, partition, after_seq=after_seq, qos=request.qos))
            return
        try:
            cursor = cursors.group(OWNER, request.group, partition)
            self.push(cursor or self._version_two.make_group(request, partition, after_seq, self._stored))
        except PayloadError as error:
            self._refuse(error.code, error.text)

    def _stored(self, error: EngineError | None) -> None:
        if error is not None:
            self._refuse(self._session.failure_code(error), f"durable subscribe failed: {error}")

    def _gone(self, cursor: Cursor) -> None:
        if not cursor.partition.topic.deleting:
            self._refuse(codec.NOT_FOUND, "the group was deleted")

    def _refuse(self, code: int, text: str) -> None:
        if self in self._version_two.topics:
            self._version_two.left_topic(self)
            self._session.nack(self._cid, code, text)
            self._session.flush()


class PatternSubscription:
    """A subscription of all topics that a pattern stands for; it may take several turns until it is answered.

    Those that are there are looked for and opened, then it is answered, and only then anything is pushed. Topics that
    are made meanwhile are part of it from their first message on.
    """

    def __init__(self, version_two: VersionTwo, session: BlipmqSession, cid: int, pattern: Pattern, qos: int) -> None:
        self.pattern = pattern
        self._version_two = version_two
        self._session = session
        self._shared = session.shared
        self._cid = cid
        self._qos = qos
        self._id = 0  # once it is answered
        self._found: dict[Partition, int | None] = {}  # and the number to begin after; None: its last one

    def start(self) -> None:
        """Look for topics; the connection is held until the answer is there."""
        self._session.connection.hold(MATCHING)
        self._version_two.joined(self)
        topics = list(self._shared.log.catalog)
        self._in_slices(self._search(topics))

    def topic_made(self, partition: Partition, after_seq: int) -> None:
        """There is a new topic that matches."""
        if not self._version_two.may_read(partition.topic):
            return
        if not self._id:
            self._found.setdefault(partition, after_seq)
        elif self._version_two.pusher.count < CONNECTION_CURSORS_MAX:
            self._push(partition, after_seq)
        else:
            peer, name = self._session.connection.peer, partition.topic.name
            log.warning("%s: too many topics for its patterns, %r is left out", peer, name)

    def _in_slices(self, steps: Iterator[object]) -> None:
        run = partial(self._shared.log.slices.run, steps)
        self._session.connection.guarded(run)()

    def _search(self, topics: list[Topic]) -> Iterator[None]:
        matches = self.pattern.matches
        for at in range(0, len(topics), TOPICS_A_STEP):
            yield
            for topic in [topic for topic in topics[at : at + TOPICS_A_STEP] if matches(topic.name)]:
                if self._version_two.may_read(topic):
                    self._found.setdefault(self._shared.log.partition(topic), None)
            if len(self._found) + self._version_two.pusher.count > CONNECTION_CURSORS_MAX:
                self._refuse("the pattern stands for too many topics")
                return
        self._open(iter(list(self._found)))

    def _open(self, partitions: Iterator[Partition]) -> None:
        """Open those that are closed, one after the other."""
        for partition in partitions:
            if partition.error is not None and not partition.is_deleted:
                self._refuse(f"durable subscribe failed: {partition.error}", codec.SERVER_ERROR)
                return
            if not (partition.is_open or partition.is_deleted):
                again = partial(self._open, chain([partition], partitions))
                partition.when_open(self._session.connection.guarded(again))
                return
        self._answer()

    def _refuse(self, text: str, code: int = codec.BAD_REQUEST) -> None:
        self._version_two.left(self)
        self._session.nack(self._cid, code, text)
        self._end()

    def _answer(self) -> None:
        self._id = self._shared.cursors.new_id()
        self._version_two.pusher.open(self._id)
        self._session.answer(codec.ack(self._cid, self._id))
        found, self._found = self._found, {}
        after = {
            partition: partition.last_seq if after_seq is None else after_seq
            for partition, after_seq in found.items()
            if not partition.is_deleted
        }
        self._end()
        self._in_slices(self._push_all(after))

    def _end(self) -> None:
        self._session.flush()
        self._session.connection.release(MATCHING)

    def _push_all(self, found: dict[Partition, int]) -> Iterator[None]:
        for partition, after_seq in found.items():
            yield
            if not partition.is_deleted:
                self._push(partition, after_seq)

    def _push(self, partition: Partition, after_seq: int) -> None:
        cursor = self._shared.cursors.volatile(OWNER, partition, after_seq=after_seq, qos=self._qos)
        subscription_id = self._id
        self._session.afterwards(lambda: self._version_two.pusher.push(subscription_id, cursor))


def _after(request: codec_v2.Subscribe, partition: Partition) -> int:
    """The number after which a subscription begins."""
    if request.offset is None:
        return partition.last_seq
    if request.offset == EARLIEST:
        return partition.log_start - 1
    return min(request.offset - 1, partition.last_seq)
