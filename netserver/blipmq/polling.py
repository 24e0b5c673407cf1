# cython: annotation_typing=False
"""The consumer's half of a BlipMQ session: runs of POLL and ACK frames (compiled where there is a compiler)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from engine.errors import EngineError
from engine.record import BatchError, BundleError
from netserver.blipmq import codec
from netserver.blipmq.hot import END, FULL, SKIP, ack_ranges, deliver, scan

if TYPE_CHECKING:
    from engine.cursor import Cursor
    from engine.deliveries import Plan
    from netserver.auth import Identity
    from netserver.blipmq.node import Node
    from netserver.connection import Connection

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


class Polling:
    """POLLs and ACKs of one connection.

    Args:
        answer: sends frames in their turn.
        flush: hands what was answered to the connection, so that ``connection.writable`` tells whether the peer reads.

    Attributes:
        unstored: runs of publishes in front that are not stored yet: POLL and ACK wait for them.
        acked: acknowledgements were taken since this was last set to False.
    """

    def __init__(
        self, node: Node, connection: Connection, answer: Callable[[Frames], None], flush: Callable[[], None]
    ) -> None:
        self.unstored = 0
        self.acked = False
        self._node = node
        self._connection = connection
        self._answer = answer
        self._flush = flush
        self._identity: Identity | None = None
        self._cursor: Cursor | None = None  # the one used last
        self._waiting: Cursor | None = None  # one whose record is being read from the disk

    def allow(self, identity: Identity | None) -> None:
        """Whose rights count from now on."""
        self._identity = identity
        self._cursor = None

    def close(self) -> None:
        """The connection is gone."""
        if self._waiting is not None:
            self._waiting.forget(self._disk_answered)
            self._waiting = None
        self._cursor = None

    def run(self, data: memoryview, position: int, length: int, length_max: int) -> int:
        """Handle POLLs and ACKs as long as they come and nothing has to be waited for; the position behind them.

        Raises:
            FramingError: see ``codec.check_length`` and ``codec.check_type``
        """
        while True:
            kind, behind, count, subscription_id = scan(data, position, length, length_max)
            if not count or (kind != _POLL and kind != _ACK):
                return position
            if self.unstored:
                self._connection.hold(BARRIER)
                return position
            cursor = self._find(subscription_id)
            if cursor is None:
                self._refuse(data, position, behind, kind, subscription_id)
                position = behind
            elif kind == _POLL:
                position = self._poll(cursor, data, position, count)
            else:
                self._ack(cursor, data, position, count)
                position = behind
            if position != behind or self._connection.held:
                return position

    def _find(self, subscription_id: int) -> Cursor | None:
        """The subscription, if there is one that this connection may use."""
        cursor = self._cursor
        if cursor is not None and cursor.alive and cursor.id == subscription_id:
            return cursor
        cursor = self._node.cursor(subscription_id)
        if cursor is None or self._identity is None or not self._identity.may_subscribe(cursor.partition.topic.name):
            return None
        self._cursor = cursor
        return cursor

    def _refuse(self, data: memoryview, position: int, behind: int, kind: int, subscription_id: int) -> None:
        """Unknown subscription: silence to a POLL, as the original; a NACK when it is the key that forbids it."""
        forbidden = self._node.cursor(subscription_id) is not None
        code, text = (codec.UNAUTHORIZED, FORBIDDEN) if forbidden else (codec.NOT_FOUND, UNKNOWN)
        while position < behind and (forbidden or kind == _ACK):
            self._answer(codec.nack(cid_at(data, position), code, text))
            position += _ID_FRAME

    def _ack(self, cursor: Cursor, data: memoryview, position: int, count: int) -> None:
        self.acked = True
        deliveries = cursor.deliveries
        ranges = ack_ranges(data, position, count, cursor.base)
        for index in range(0, len(ranges), 2):
            first, last = ranges[index], ranges[index + 1]
            if deliveries.covers(first, last):
                cursor.acknowledge(first, last)
                position += (last - first + 1) * _ID_FRAME
                continue
            for seq in range(first, last + 1):
                if not cursor.acknowledge(seq, seq):
                    self._answer(codec.nack(cid_at(data, position), codec.NOT_FOUND, UNKNOWN))
                position += _ID_FRAME

    def _poll(self, cursor: Cursor, data: memoryview, position: int, count: int) -> int:
        """Answer a run of POLLs; the position behind those that were answered (or have no answer)."""
        connection = self._connection
        now_ms = self._node.clock_ms()
        used = answered = 0
        try:
            while answered < count:
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
                at = position + answered * _ID_FRAME
                used, taken = self._deliver(cursor, plan, used, data, at, count - answered, now_ms)
                answered += taken
                if answered < count and connection.held:
                    break
        except EngineError as error:
            self._reply(used)
            used = 0
            self._answer(codec.nack(cid_at(data, position + answered * _ID_FRAME), codec.SERVER_ERROR, str(error)))
            answered += 1
        if used:
            self._reply(used)
        return position + answered * _ID_FRAME

    def _deliver(
        self, cursor: Cursor, plan: Plan, used: int, polls: memoryview, position: int, limit: int, now_ms: int
    ) -> tuple[int, int]:
        """Deliver the first stretch of a plan.

        Returns:
            (bytes used of the node's output, POLLs answered)
        """
        node = self._node
        reader = cursor.reader
        records = reader.records
        assert records is not None
        topic = cursor.partition.topic.name
        oldest_ms = node.oldest_ms()
        first = records.seq
        out = node.out
        plan_last = plan.last
        try:
            end, taken, state, qos0 = deliver(
                out, used, records, plan_last, limit, cursor.base, cursor.qos, topic, polls, position, oldest_ms
            )
            if not taken and state == _FULL:
                if used:
                    self._reply(used)
                    return 0, 0
                out = bytearray(16 + len(topic) + records.value_end - records.value_start)
                end, taken, state, qos0 = deliver(
                    out, 0, records, plan_last, 1, cursor.base, cursor.qos, topic, polls, position, oldest_ms
                )
            if not taken and state == _SKIP:
                node.counters.skipped["expired" if records.timestamp < oldest_ms else "too large"] += 1
                reader.advance()
                reader.moved(first + 1, reader.current)
                cursor.finished(plan, first)
                return used, 0
        except (BatchError, BundleError) as problem:
            cursor.skip_slab(plan, problem)
            return used, 0
        last = first + taken - 1
        reader.moved(last + 1, state != _END)
        if qos0:
            cursor.finished(plan, last)
        else:
            cursor.delivered(plan, first, last, now_ms)
        node.counters.records_delivered += taken
        if out is not node.out:
            node.counters.delivered_bytes += len(out)
            self._answer(out)
            self._flush()
            return 0, taken
        node.counters.delivered_bytes += end - used
        return end, taken

    def _reply(self, used: int) -> None:
        """Send what the node's output holds."""
        out = self._node.out
        self._answer(bytes(memoryview(out)[:used]))
        if used * 2 >= len(out):
            self._flush()

    def _disk_answered(self) -> None:
        self._waiting = None
        self._connection.release(DISK)


def cid_at(data: memoryview, position: int) -> int:
    """The correlation id of the frame at ``position``."""
    return int.from_bytes(data[position + 5 : position + 13], "big")
