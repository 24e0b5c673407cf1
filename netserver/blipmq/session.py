"""A BlipMQ connection: frames into engine calls, in order, one after another.

States: NEW -- HELLO --> GREETED -- AUTH --> READY. Nothing goes back, and nothing but broken framing closes the
connection: any other mistake is answered by a NACK.

Order. Answers leave in the order of the frames. PUBLISH has no answer, but what comes after it waits for it: a PONG
leaves only when every publish before it on the connection is stored (or was refused, by a NACK 500 in front of the
PONG), so a PING after publishes is their acknowledgement. POLL and ACK are carried out only then: a POLL sees what was
published before it, and the ACK of a message never outlives the publish that resulted from it. Until then the
connection is not parsed any further, as when it has too much on the way to the disk: a fast client is slowed down,
never refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.errors import DiskFull, EngineError, LimitReached, NotStored, too_large
from engine.formats.batch_header import QOS0_ATTRIBUTE
from netserver.access.table import right_of
from netserver.blipmq import codec, codec_v2
from netserver.blipmq.codec import FrameType, PayloadError
from netserver.blipmq.frames import pack_publishes, scan
from netserver.blipmq.limits import (
    ANSWERS_BYTES_MAX,
    AUTH_LENGTH_MAX,
    FRAME_LENGTH_MAX,
    LENGTH_BYTES,
    SUBSCRIPTIONS_MAX,
)
from netserver.blipmq.listener_state import OWNER, ListenerState
from netserver.blipmq.polling import BARRIER, FORBIDDEN, OUTPUT, SUBSCRIBE, ConsumingSession, Frames, cid_at
from netserver.blipmq.session_v2 import VersionTwo
from netserver.shell.outstanding import Outstanding, Promise, Released

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.segments.batches import WriteBatch
    from netserver.access.rights import Right
    from netserver.shell.connection import Connection, Services, SessionFactory

# Reasons for which a connection is not parsed (others: polling.py).
WRONG_KEY: Final = "a wrong key waits for its answer"
OPENING: Final = "a partition is being opened"
ANSWERS: Final = "too many answers wait"

CID_BYTES: Final = 8
PUBLISH: Final = right_of("blipmq", "PUBLISH")


class Published(NamedTuple):
    """Token of a run of publishes: what is needed to refuse them. ``cids`` is empty with QoS 0."""

    cids: bytes

    def nacks(self, code: int, error: Exception) -> list[bytes]:
        """A NACK for each of them."""
        cids = (self.cids[at : at + CID_BYTES] for at in range(0, len(self.cids), CID_BYTES))
        return [codec.nack(int.from_bytes(cid, "big"), code, _text(error)) for cid in cids]


class Subscribed(NamedTuple):
    """Token of a subscription that is being stored."""

    cid: int
    subscription_id: int


class After(NamedTuple):
    """Token of something to do when everything in front of it was answered."""

    callback: Callable[[], None]


class BlipmqSession(ConsumingSession):
    """See the module, and ``netserver.shell.connection.Session`` for the methods that the connection calls."""

    def __init__(self, shared: ListenerState, connection: Connection) -> None:
        super().__init__(shared, connection)
        self.frame_bytes_max = AUTH_LENGTH_MAX + LENGTH_BYTES
        self._is_greeted = False
        self.outstanding = Outstanding(connection, self._released, shared.log.slices)
        self._waiting_bytes = 0  # of answers that wait
        self._opening: Partition | None = None
        self._is_ending = False
        self._v2: VersionTwo | None = None
        connection.on_narrowed = self._narrowed
        self._timer: asyncio.TimerHandle | None = connection.loop.call_later(
            shared.handshake_timeout_ms / 1000, connection.guarded(self._too_slow)
        )

    # --- netserver.shell.connection.Session (received() is in the base class)

    def other(self, data: memoryview, position: int, length: int) -> int:
        if not self.connection.has_turn():
            return position
        kind, behind, count, number = scan(data, position, length, self.length_max)
        if kind == 0:
            if length - position >= LENGTH_BYTES:
                self.connection.expect(LENGTH_BYTES + int.from_bytes(data[position : position + LENGTH_BYTES], "big"))
            return position
        if (
            self.is_ready
            and self._v2 is not None
            and (kind == FrameType.SUBSCRIBE or (kind == FrameType.PUBLISH and not count))
        ):
            return self._v2.handle(kind, data, position, behind)
        if self.is_ready and count:
            if kind == FrameType.PUBLISH:
                return self._publish(data, position, behind, length, number)
            if kind == FrameType.SUBSCRIBE:
                return self._subscribe(data, position, behind)
        self._one_frame(kind, data, position, behind)
        return behind

    def eof(self) -> None:
        self._is_ending = True
        self._close_when_idle()

    def resume_output(self) -> None:
        self.connection.release(OUTPUT)
        if self._v2 is not None:
            self._v2.pusher.schedule()

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.stop_reading()
        self.outstanding.close()
        if self._v2 is not None:
            self._v2.close()
            self._v2 = None

    def idle(self) -> bool:
        return not self.owed

    def drain(self) -> None:
        self.eof()

    def own_acks(self, kind: int, subscription_id: int, data: memoryview, position: int, count: int) -> bool:
        assert self._v2 is not None
        pusher = self._v2.pusher
        if kind == FrameType.POLL or not pusher.acked(subscription_id, data, position, count):
            return kind == FrameType.POLL
        return True

    def confirm(self) -> None:
        # The original's clients leave Nagle's algorithm on: their next POLL waits for our kernel to confirm the ACK in
        # front of it, which it would put off by up to 40 ms because it has no answer to send along.
        self.connection.confirm()

    def pushed_on(self) -> None:
        assert self._v2 is not None
        self._v2.pusher.unstall()

    # --- answers

    def answer_later(self, frame: Frames) -> None:
        self.outstanding.add_done(frame)
        self.owed += 1
        self._waiting_bytes += len(frame)
        if self._waiting_bytes > ANSWERS_BYTES_MAX:
            self.connection.hold(ANSWERS)

    def afterwards(self, callback: Callable[[], None]) -> None:
        """Call back when everything that was to be answered so far has been."""
        if self.owed:
            self.outstanding.add_done(After(callback))
            self.owed += 1
        else:
            self.flush()
            callback()

    def nack(self, cid: int, code: int, text: str) -> None:
        """Refuse the frame with this correlation id, in its turn."""
        self.answer(codec.nack(cid, code, text))

    def failure_code(self, error: Exception) -> int:
        """What to refuse with when something cannot be stored: version 2 tells whether it may be possible later."""
        return codec_v2.BUSY if self._v2 is not None and isinstance(error, DiskFull) else codec.SERVER_ERROR

    def _released(self, released: Released) -> None:
        """What was outstanding is stored or refused."""
        self.owed -= len(released)
        frames: list[Frames] = []
        callbacks: list[Callable[[], None]] = []
        for token, error in released:
            if isinstance(token, bytes | bytearray):
                self._waiting_bytes -= len(token)
                frames.append(token)
            elif isinstance(token, After):
                callbacks.append(token.callback)
            elif isinstance(token, Published):
                self.unstored -= 1
                if error is not None:
                    frames += token.nacks(self.failure_code(error), error)
                    if not token.cids:
                        self.counters.skipped["not stored"] += 1
            elif isinstance(token, Subscribed):
                frames.append(
                    codec.ack(token.cid, token.subscription_id)
                    if error is None
                    else codec.nack(token.cid, self.failure_code(error), f"durable subscribe failed: {error}")
                )
        self.flush()
        if frames:
            self.connection.write(b"".join(frames))
        for callback in callbacks:
            callback()
        if not self.unstored:
            self.connection.release(BARRIER)
        if self._waiting_bytes <= ANSWERS_BYTES_MAX // 2:
            self.connection.release(ANSWERS)
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._is_ending and self.idle():
            self.connection.close()

    # --- frames of all kinds, one at a time

    def _one_frame(self, kind: int, data: memoryview, position: int, behind: int) -> None:
        """A frame that is not one of a run of the usual shape, or comes before READY."""
        cid = int.from_bytes(data[position + 5 : position + 13], "big")
        payload = data[position + 13 : behind]
        try:
            if kind == FrameType.HELLO:
                self._hello(cid, payload)
            elif kind == FrameType.AUTH:
                self._auth(cid, payload)
            elif not self.is_ready:
                raise PayloadError("unauthenticated", codec.UNAUTHORIZED)
            elif kind == FrameType.PING:
                self._ping(cid)
            elif kind == FrameType.PUBLISH:
                codec.parse_publish(payload)  # raises: a sound one is not handled here
            elif kind in (FrameType.POLL, FrameType.ACK):
                codec.parse_subscription_id(payload, FrameType(kind).name)  # as above
        except PayloadError as error:
            self.nack(cid, error.code, error.text)

    def _hello(self, cid: int, payload: memoryview) -> None:
        if self._is_greeted:
            raise PayloadError("HELLO already performed")
        version = codec.parse_hello(payload)
        if version == codec_v2.VERSION and self.shared.speaks_version_2:
            self._v2 = VersionTwo(self)
            self.is_pushing = True
        elif version != codec.VERSION:
            raise PayloadError("unsupported protocol version", codec.VERSION_MISMATCH)
        self._is_greeted = True
        self.answer(codec.ack(cid))

    def _auth(self, cid: int, payload: memoryview) -> None:
        if not self._is_greeted:
            raise PayloadError("HELLO not performed")
        if self.is_ready:
            raise PayloadError("already authenticated")
        visitor = self.connection.visitor
        delay_s = visitor.log_in(codec.parse_auth(payload))
        if visitor.identity is None:
            self.counters.auth_failures += 1
            refusal = PayloadError(visitor.why_nobody or "invalid API key", codec.UNAUTHORIZED)
            if not delay_s:
                raise refusal
            self.connection.hold(WRONG_KEY)
            self.connection.loop.call_later(delay_s, self.connection.guarded(partial(self._refuse_late, cid, refusal)))
            return
        self.connection.known()
        self.is_ready = True
        self.length_max = FRAME_LENGTH_MAX
        self.frame_bytes_max = FRAME_LENGTH_MAX + LENGTH_BYTES
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.answer(codec.ack(cid))

    def _refuse_late(self, cid: int, refusal: PayloadError) -> None:
        """The answer to a wrong key of somebody who has sent some."""
        self.nack(cid, refusal.code, refusal.text)
        self.flush()
        self.connection.release(WRONG_KEY)

    def _ping(self, cid: int) -> None:
        if self.acked and self.shared.is_synced:
            self.acked = False
            promise = Promise()
            self.outstanding.add_promise(promise, b"")
            self.owed += 1

            def written(error: EngineError | None) -> None:
                if error is not None:
                    self.acked = True  # the next PING tries again; a crash only repeats messages
                promise.settle(error)
                self.outstanding.look_soon()

            self.shared.cursors.flush(written)
        self.answer(codec.pong(cid))

    # --- publishing

    def _publish(self, data: memoryview, position: int, behind: int, length: int, topic_bytes: int) -> int:
        """Append a run of publishes of one topic and QoS; returns the position after what was handled."""
        body = position + 16 + topic_bytes
        topic = bytes(data[position + 16 : body])
        qos = data[position + 13]
        try:
            partition = self.route(topic, "PUBLISH", PUBLISH)
            if not self.is_open(partition):
                return position
            writer = partition.writer(behind - body, 0 if qos else QOS0_ATTRIBUTE)
        except PayloadError as error:
            self.nack(cid_at(data, position), error.code, error.text)
            return behind
        except NotStored as error:
            if qos:
                self.nack(cid_at(data, position), self.failure_code(error), _text(error))
            else:
                self.counters.skipped["not stored"] += 1
            return behind
        shared = self.shared
        limit_bytes = partition.config.record_bytes_max
        if self._v2 is not None:
            limit_bytes = min(limit_bytes, FRAME_LENGTH_MAX - codec_v2.DELIVER_HEAD_BYTES - topic_bytes)
        end, count = pack_publishes(data, position, length, writer, topic, qos, limit_bytes, shared.cids)
        if not count:
            text = "message too large to be delivered in a frame"
            if behind - body > partition.config.record_bytes_max:
                text = too_large(behind - body, partition.config.record_bytes_max)
            self.nack(cid_at(data, position), codec.BAD_REQUEST, text)
            return behind
        size_bytes = end - position
        write_batch = partition.appended(self.outstanding, size_bytes)
        self.published(write_batch, bytes(shared.cids[: CID_BYTES * count]) if qos else b"", size_bytes, count)
        return end

    def published(self, write_batch: WriteBatch, cids: bytes, size_bytes: int, count: int) -> None:
        """Messages were appended: what comes after them waits; ``cids`` are refused if they cannot be stored."""
        self.owed += 1
        self.unstored += 1
        self.outstanding.add(write_batch, Published(cids), size_bytes, count)

    def route(self, topic: bytes, frame: str, right: Right) -> Partition:
        """The partition of a topic that this connection may use.

        Raises:
            PayloadError: with the NACK
        """
        if not codec.is_utf8(topic):
            raise PayloadError(f"invalid {frame} payload")
        if not self.connection.visitor.check(frame, right, topic, is_there=self.shared.is_there(topic)):
            raise PayloadError(FORBIDDEN, codec.UNAUTHORIZED)
        try:
            partition = self.shared.route(topic, self.connection.maker, to_read=right is SUBSCRIBE)
        except EngineError as error:
            raise PayloadError(str(error)) from None
        if partition is None or partition.topic.deleting:
            raise PayloadError("unknown topic", codec.NOT_FOUND)
        return partition

    def is_open(self, partition: Partition) -> bool:
        """Whether the partition can be used; else it is being opened, and nothing is parsed until it is.

        Raises:
            NotStored: it cannot be opened
        """
        if partition.is_open:
            return True
        if self._opening is partition and partition.error is not None:
            self._opening = None
            raise NotStored(str(partition.error))
        self._opening = partition
        self.connection.hold(OPENING)
        partition.when_open(self._opened)
        return False

    def _opened(self) -> None:
        self.connection.release(OPENING)

    # --- subscribing

    def _subscribe(self, data: memoryview, position: int, behind: int) -> int:
        cid = cid_at(data, position)
        try:
            request = codec.parse_subscribe(data[position + 13 : behind])
            partition = self.route(request.topic, "SUBSCRIBE", SUBSCRIBE)
            if not self.is_open(partition):
                return position
            if len(self.shared.cursors) >= SUBSCRIPTIONS_MAX:
                raise PayloadError("too many subscriptions")
            self._count_durable(request.topic)
        except PayloadError as error:
            self.nack(cid, error.code, error.text)
            return behind
        except NotStored as error:
            self.nack(cid, codec.SERVER_ERROR, f"durable subscribe failed: {error}")
            return behind
        promise = Promise()

        def stored(error: EngineError | None) -> None:
            promise.settle(error)
            self.outstanding.look_soon()

        cursor = self.shared.cursors.create(
            OWNER, partition, after_seq=partition.last_seq, qos=request.qos, on_durable=stored
        )
        self.connection.visitor.made_durable(cursor.id)
        self.subscribing(promise, cid, cursor.id)
        return behind

    def _count_durable(self, topic: bytes) -> None:
        """One more, as long as it is there. Raises PayloadError: as `count_subscription`."""
        try:
            self.connection.visitor.subscribe_durably("SUBSCRIBE", topic, self.shared.cursors.has)
        except LimitReached as problem:
            raise PayloadError(str(problem)) from None

    def count_subscription(self, topic: bytes) -> None:
        """One more, until the connection ends. Raises PayloadError: the client's identity has as many as it may."""
        try:
            self.connection.visitor.subscribe("SUBSCRIBE", topic)
        except LimitReached as problem:
            raise PayloadError(str(problem)) from None

    def subscribing(self, promise: Promise, cid: int, subscription_id: int) -> None:
        """A SUBSCRIBE is answered when ``promise`` is settled."""
        self.outstanding.add_promise(promise, Subscribed(cid, subscription_id))
        self.owed += 1

    # --- time and rights

    def _narrowed(self) -> None:
        """Each request is looked at again; whoever is sent messages unasked comes again."""
        self.narrowed()
        if self._v2 is not None:
            self.connection.abort("its rights were withdrawn", "revoked")

    def _too_slow(self) -> None:
        self._timer = None
        self.counters.protocol_errors["handshake_timeout"] += 1
        self.connection.close("no HELLO and AUTH in time", "handshake")


def _text(error: Exception) -> str:
    return f"durable publish failed: {error}"


def factory(services: Services) -> SessionFactory:
    """The function that makes the session of a connection; see ``netserver.app``."""
    shared = ListenerState(services)
    return lambda connection: BlipmqSession(shared, connection)
