# cython: annotation_typing=False
"""The consumer's half of a BlipMQ session: runs of POLL and ACK frames (compiled where there is a compiler)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from engine.errors import EngineError
from engine.formats.record import BatchError, BundleError
from netserver.access.table import right_of
from netserver.blipmq import codec
from netserver.blipmq.codec import FramingError
from netserver.blipmq.frames import END, FULL, SKIP, ack_ranges, deliver, scan
from netserver.blipmq.limits import AUTH_LENGTH_MAX, FRAME_LENGTH_MAX, PASSED_RECORDS_MAX, PUBLISH_HEAD_BYTES
from netserver.errors import ProtocolError

if TYPE_CHECKING:
    from engine.cursors.cursor import Cursor
    from engine.cursors.deliveries import Plan
    from netserver.blipmq.listener_state import ListenerState
    from netserver.shell.connection import Connection

SUBSCRIBE = right_of("blipmq", "POLL")
COMPILED = not __file__.endswith(".py")

# Reasons for which a connection is not parsed.
BARRIER = "publishes in front are not stored yet"
DISK = "records are being read from the disk"
OUTPUT = "the peer does not read its deliveries"

UNKNOWN = "unknown subscription or delivery tag"
FORBIDDEN = "not allowed by this API key"

Frames: TypeAlias = bytes | bytearray

# C variables of the compiled module
_ID_FRAME = 21
_POLL = 9
_ACK = 5
_END = END
_FULL = FULL
_SKIP = SKIP
_MASK = (1 << 64) - 1
_PASSED_MAX = PASSED_RECORDS_MAX


class ConsumingSession:
    """A session as far as deliveries go: it reads, carries out POLLs and ACKs, and sends answers in their turn.

    The rest of the protocol is in the class derived from it, which has ``other()``.

    Attributes:
        is_ready: logged in: POLLs and ACKs are carried out.
        is_pushing: version 2: messages are pushed, POLLs passed over.
        length_max: largest length word at present.
        owed: answers (and publishes) that are outstanding: what is answered now has to wait behind them.
        unstored: of these, runs of publishes that are not stored yet: POLL and ACK wait for them.
        acked: acknowledgements were taken since this was last set to False.
        acked_last: they were, and nothing was sent since then.
        out: answers that leave at the next ``flush``.
    """

    def __init__(self, shared: ListenerState, connection: Connection) -> None:
        self.is_ready = False
        self.is_pushing = False
        self.length_max = AUTH_LENGTH_MAX
        self.owed = 0
        self.unstored = 0
        self.acked = False
        self.acked_last = False
        self.out: list[Frames] = []
        self.shared = shared
        self.connection = connection
        self.counters = shared.counters
        self._cursor: Cursor | None = None  # the one used last
        self._waiting: Cursor | None = None  # one whose record is being read from the disk
        self._buffer = self._room = shared.out  # deliveries are gathered here, all within one call
        self._used = 0
        self._passed = 0  # records that could not be delivered, since the last look at the clock

    def received(self, data: memoryview, length: int) -> int:
        position = 0
        view = data  # compiled: looked at once, not at each step
        try:
            while True:
                if self.is_ready:
                    position = self._run(view, position, length)
                    if position == length or self.connection.held:
                        break
                before = position
                position = self.other(data, position, length)
                if position in (before, length) or self.connection.held:
                    break
        except FramingError as error:
            raise ProtocolError(str(error), error.kind) from None
        finally:
            self.flush()
        if self.acked_last:
            self.acked_last = False
            self.confirm()
        if self.is_pushing:
            self.pushed_on()
        return position

    def confirm(self) -> None:
        """ACKs were taken, which have no answer: tell the peer's kernel at once that they have arrived."""

    def pushed_on(self) -> None:
        """Version 2: acknowledgements may have been taken, so that there is room for further messages."""

    def other(self, data: memoryview, position: int, length: int) -> int:
        """Handle what stands at ``position`` and is no POLL or ACK of the usual shape; the position after it."""
        return position

    def own_acks(self, kind: int, subscription_id: int, data: memoryview, position: int, count: int) -> bool:
        """Version 2: take POLLs or ACKs of a subscription of this connection alone; False: it is none."""
        return False

    def answer(self, frame: Frames) -> None:
        """Send a frame after everything that is outstanding."""
        if self.owed:
            self.answer_later(frame)
        else:
            self.out.append(frame)

    def answer_later(self, frame: Frames) -> None:
        """Send a frame when what is outstanding now has been settled."""

    def flush(self) -> None:
        """Hand what was answered to the connection."""
        out = self.out
        if out:
            self.connection.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
            self.acked_last = False

    def narrowed(self) -> None:
        """The client may do less than before: what it used last is looked at again."""
        self._cursor = None

    def stop_reading(self) -> None:
        """The connection is gone: wait for no record."""
        if self._waiting is not None:
            self._waiting.forget(self._disk_answered)
            self._waiting = None
        self._cursor = None

    def _run(self, data: memoryview, position: int, length: int) -> int:
        """Handle POLLs and ACKs as long as they come and nothing has to be waited for; the position after them.

        Raises:
            FramingError: see ``codec.check_length`` and ``codec.check_type``
        """
        runs = 0
        while position < length:
            kind, behind, count, subscription_id = scan(data, position, length, self.length_max)
            if not count or (kind != _POLL and kind != _ACK):
                return position
            if runs >= 2 and not self.connection.has_turn():  # one POLL and one ACK are the usual
                return position
            runs += 1
            if self.unstored:
                self.connection.hold(BARRIER)
                return position
            if self.is_pushing and self.own_acks(kind, subscription_id, data, position, count):
                position = behind
                continue
            cursor = self._find(subscription_id)
            if cursor is None:
                self._refuse(data, position, behind, kind, subscription_id)
                position = behind
            elif kind == _POLL and self.is_pushing:
                position = behind  # messages come by themselves
            elif kind == _POLL:
                position = self._poll(cursor, data, position, count)
                if position != behind and self.connection.held:
                    return position
            else:
                self._ack(cursor, data, position, count)
                position = behind
            if self.owed and self.connection.held:
                return position
        return position

    def _find(self, subscription_id: int) -> Cursor | None:
        """The subscription, if there is one that this connection may use."""
        cursor = self._cursor
        if cursor is not None and cursor.alive and cursor.id == subscription_id:
            return cursor
        cursor = self.shared.cursor(subscription_id)
        if cursor is None or not self.connection.visitor.may(SUBSCRIBE, cursor.topic_name):
            return None
        self._cursor = cursor
        return cursor

    def _refuse(self, data: memoryview, position: int, behind: int, kind: int, subscription_id: int) -> None:
        """Unknown subscription: silence to a POLL, as the original; a NACK when it is the key that forbids it.

        Tag 0, which no message has, asks whether there is the subscription: only then the text says that there is none.
        """
        known = self.shared.cursor(subscription_id)
        forbidden = known is not None
        if known is not None:
            self.connection.visitor.refused("POLL" if kind == _POLL else "ACK", known.topic_name)
        while position < behind and (forbidden or kind == _ACK):
            cid = cid_at(data, position)
            if forbidden:
                self.answer(codec.nack(cid, codec.UNAUTHORIZED, FORBIDDEN))
            else:
                self.answer(codec.nack(cid, codec.NOT_FOUND, UNKNOWN if cid else codec.UNKNOWN_SUBSCRIPTION))
            position += _ID_FRAME

    def _ack(self, cursor: Cursor, data: memoryview, position: int, count: int) -> None:
        self.acked = self.acked_last = True
        deliveries = cursor.deliveries
        ranges = ack_ranges(data, position, count, cursor.base & _MASK)
        for index in range(0, len(ranges), 2):
            first, last = ranges[index], ranges[index + 1]
            if deliveries.covers(first, last):
                cursor.acknowledge(first, last)
                position += (last - first + 1) * _ID_FRAME
                continue
            for seq in range(first, last + 1):
                if not cursor.acknowledge(seq, seq):
                    self.answer(codec.nack(cid_at(data, position), codec.NOT_FOUND, UNKNOWN))
                position += _ID_FRAME

    def _poll(self, cursor: Cursor, data: memoryview, position: int, count: int) -> int:
        """Answer a run of POLLs; the position after those that were answered (or have no answer)."""
        connection = self.connection
        now_ms = int(monotonic() * 1000)  # the clock of cursors
        answered = 0
        self._passed = 0
        try:
            while answered < count:
                if self._passed >= _PASSED_MAX:
                    self._passed = 0
                    if not connection.has_turn():
                        break
                if not connection.writable:
                    connection.hold(OUTPUT)
                    break
                plan = cursor.next(now_ms)
                if plan is None:
                    if cursor.waiting:
                        self._waiting = cursor
                        connection.hold(DISK)
                        cursor.wait(self._disk_answered)
                        break
                    if not answered:
                        cursor.used()
                    answered = count  # nothing is left: silence
                    break
                answered += self._deliver(cursor, plan, data, position + answered * _ID_FRAME, count - answered, now_ms)
                if answered < count and connection.held:
                    break
        except EngineError as error:
            self._reply()
            self.answer(codec.nack(cid_at(data, position + answered * _ID_FRAME), codec.SERVER_ERROR, str(error)))
            answered += 1
        self._reply()
        return position + answered * _ID_FRAME

    def _deliver(self, cursor: Cursor, plan: Plan, polls: memoryview, position: int, limit: int, now_ms: int) -> int:
        """Gather deliveries of the first stretch of a plan; returns how many POLLs that answers."""
        reader = cursor.reader
        records = reader.records
        assert records is not None
        topic = cursor.topic_name
        age_ms = self.shared.age_ms
        oldest_ms = self.shared.oldest_ms() if self.shared.message_ttl_ms else 0
        first, base = records.seq, cursor.base & _MASK
        out = self._room
        large: bytearray | None = None  # a delivery that has no room there even alone
        start = self._used
        plan_last = plan.last
        try:
            end, taken, state, qos0 = deliver(
                out, start, records, plan_last, limit, base, cursor.qos, topic, polls, position, oldest_ms, age_ms
            )
            if not taken and state == _FULL:
                if start:
                    self._reply()
                    return 0
                large = bytearray(16 + len(topic) + records.value_end - records.value_start)
                end, taken, state, qos0 = deliver(
                    large, 0, records, plan_last, 1, base, cursor.qos, topic, polls, position, oldest_ms, age_ms
                )
            if not taken and state == _SKIP:
                size_bytes = len(topic) + records.value_end - records.value_start + PUBLISH_HEAD_BYTES
                self.counters.skipped["too large" if size_bytes > FRAME_LENGTH_MAX else "expired"] += 1
                reader.advance()
                reader.moved(first + 1, reader.current)
                cursor.finished(plan, first)
                self._passed += 1
                return 0
        except (BatchError, BundleError) as problem:
            cursor.skip_read_batch(plan, problem)
            return 0
        last = first + taken - 1
        reader.moved(last + 1, state != _END)
        if qos0:
            cursor.finished(plan, last)
        else:
            cursor.delivered(plan, first, last, now_ms)
        self.counters.records_delivered += taken
        self.connection.delivered(taken)
        self.counters.delivered_bytes += end - start
        if large is None:
            self._used = end
        else:
            self.answer(large)
            self.flush()
            self._passed = _PASSED_MAX  # copying a large one takes milliseconds: the next one asks for its turn
        return taken

    def _reply(self) -> None:
        """Send what was gathered."""
        used = self._used
        if used:
            self._used = 0
            self.answer(self._buffer[:used])
            if used * 2 >= len(self._buffer):
                self.flush()  # so that the connection's ``writable`` tells whether the peer reads

    def _disk_answered(self) -> None:
        self._waiting = None
        self.connection.release(DISK)


def cid_at(data: memoryview, position: int) -> int:
    """The correlation id of the frame at ``position``."""
    return int.from_bytes(data[position + 5 : position + 13], "big")
