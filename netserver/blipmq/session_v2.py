"""What protocol version 2 adds to a session: PUBLISH and SUBSCRIBE with their further fields, and pushing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from engine.errors import EngineError, NotStored, TooLarge
from netserver.blipmq import codec, codec_v2
from netserver.blipmq.codec import FrameType, PayloadError
from netserver.blipmq.frames import TTL_HEADER
from netserver.blipmq.limits import CONNECTION_CURSORS_MAX, CONNECTION_PATTERNS_MAX, KEY_BYTES_MAX, SUBSCRIPTIONS_MAX
from netserver.blipmq.node import OWNER
from netserver.blipmq.polling import cid_at
from netserver.blipmq.push import Pusher
from netserver.shell.outstanding import Promise

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.state.catalog import Change
    from engine.state.topics import Topic
    from netserver.blipmq.session import BlipmqSession

log = logging.getLogger("quintlog.blipmq")

EARLIEST = 0


class VersionTwo:
    """The part of a session that exists once HELLO has asked for version 2."""

    def __init__(self, session: BlipmqSession) -> None:
        self.pusher = Pusher(session)
        self._session = session
        self._node = session.node
        self._patterns: list[tuple[int, codec_v2.Subscribe]] = []

    def close(self) -> None:
        """The connection is gone."""
        self._node.forget(self._topic_changed)
        self.pusher.close()

    def handle(self, kind: int, data: memoryview, position: int, behind: int) -> int:
        """A PUBLISH or SUBSCRIBE; the position behind it, or ``position`` while something has to be waited for."""
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
        partition = session.route(request.topic, "PUBLISH", publish=True)
        if len(request.key) > KEY_BYTES_MAX:
            raise PayloadError("partition key too long")
        if not session.is_open(partition):
            return False
        headers = (TTL_HEADER, b"%d" % request.ttl_ms) if request.ttl_ms else ()
        try:
            chunk = partition.append(
                [request.body],
                keys=[request.key],
                headers=[headers],
                qos0=not request.qos,
                waiter=session.outstanding,
            )
        except TooLarge:
            raise PayloadError("message too large") from None
        except NotStored:
            if request.qos:
                raise
            session.counters.skipped["not stored"] += 1
            return True
        session.published(chunk, cid.to_bytes(8, "big") if request.qos else b"", len(request.body), 1)
        return True

    # --- subscribing

    def _subscribe(self, cid: int, request: codec_v2.Subscribe) -> bool:
        """Make or join a subscription. False: a partition is being opened."""
        session, cursors = self._session, self._node.cursors
        if self.pusher.count >= CONNECTION_CURSORS_MAX:
            raise PayloadError("too many subscriptions")
        if codec_v2.is_pattern(request.topic):
            return self._subscribe_pattern(cid, request)
        partition = session.route(request.topic, "SUBSCRIBE", publish=False)
        if not session.is_open(partition):
            return False
        if not request.group:
            cursor = cursors.volatile(OWNER, partition, after_seq=_after(request, partition), qos=request.qos)
            session.answer(codec.ack(cid, cursor.id))
            self._listen()
            session.afterwards(lambda: self.pusher.push(cursor.id, cursor))
            return True
        known = cursors.group(OWNER, request.group, partition)
        if known is not None:
            session.answer(codec.ack(cid, known.id))
            session.afterwards(lambda: self.pusher.push(known.id, known))
            return True
        if len(cursors) >= SUBSCRIPTIONS_MAX:
            raise PayloadError("too many subscriptions")
        self._new_group(cid, request, partition)
        return True

    def _new_group(self, cid: int, request: codec_v2.Subscribe, partition: Partition) -> None:
        promise = Promise()

        def stored(error: EngineError | None) -> None:
            promise.settle(error)
            self._session.outstanding.look_soon()

        try:
            cursor = self._node.cursors.create(
                OWNER,
                partition,
                after_seq=_after(request, partition),
                qos=request.qos,
                name=request.group,
                on_durable=stored,
            )
        except EngineError as error:
            raise PayloadError(str(error)) from None
        self._session.subscribing(promise, cid, cursor.id)
        self._session.afterwards(lambda: self.pusher.push(cursor.id, cursor))

    def _subscribe_pattern(self, cid: int, request: codec_v2.Subscribe) -> bool:
        """A subscription of all topics that match, now and later."""
        session = self._session
        if request.group or request.offset is not None:
            raise PayloadError("a pattern has no group and no offset")
        if len(self._patterns) >= CONNECTION_PATTERNS_MAX:
            raise PayloadError("too many patterns")
        topics = [topic for topic in self._node.log.catalog if self._wants(request.topic, topic)]
        if len(topics) + self.pusher.count > CONNECTION_CURSORS_MAX:
            raise PayloadError("the pattern stands for too many topics")
        partitions = [self._node.log.partition(topic) for topic in topics]
        for partition in partitions:
            if not session.is_open(partition):
                return False
        subscription_id = self._node.cursors.new_id()
        self.pusher.open(subscription_id)
        self._patterns.append((subscription_id, request))
        session.answer(codec.ack(cid, subscription_id))
        self._listen()
        for partition in partitions:
            self._join(subscription_id, request.qos, partition)
        return True

    def _listen(self) -> None:
        """Hear of topics from now on."""
        self._node.listen(self._topic_changed)

    def _wants(self, pattern: bytes, topic: Topic) -> bool:
        identity = self._session.identity
        return (
            not topic.deleting
            and codec_v2.matches(pattern, topic.name)
            and identity is not None
            and identity.may_subscribe(topic.name)
        )

    def _join(self, subscription_id: int, qos: int, partition: Partition) -> None:
        cursor = self._node.cursors.volatile(OWNER, partition, after_seq=partition.last_seq, qos=qos)
        self._session.afterwards(lambda: self.pusher.push(subscription_id, cursor))

    def _has_room(self, topic: Topic) -> bool:
        """Whether one more topic can be pushed."""
        if self.pusher.count < CONNECTION_CURSORS_MAX:
            return True
        log.warning("%s: too many topics for its patterns, %r is left out", self._session.connection.peer, topic.name)
        return False

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change == "created":
            for subscription_id, request in self._patterns:
                if self._wants(request.topic, topic) and self._has_room(topic):
                    self._join(subscription_id, request.qos, self._node.log.partition(topic))
        elif change == "deleted":
            self.pusher.drop(topic)


def _after(request: codec_v2.Subscribe, partition: Partition) -> int:
    """The number behind which a subscription begins."""
    if request.offset is None:
        return partition.last_seq
    if request.offset == EARLIEST:
        return partition.log_start - 1
    return min(request.offset - 1, partition.last_seq)
