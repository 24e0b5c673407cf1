"""The hot loops of ``frames.py`` with struct and slices: the same names, arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

from netserver.blipmq.codec import check_length, check_type
from netserver.blipmq.limits import TTL_DIGITS_MAX

if TYPE_CHECKING:
    from engine.formats.batch import BatchWriter, RecordCursor

Buffer: TypeAlias = bytes | bytearray | memoryview
Target: TypeAlias = bytearray | memoryview

_PUBLISH = 3
_ACK = 5
_POLL = 9
_DELIVER = 10
_ID_FRAME = 21
_LENGTH_MAX = 16 * 1024 * 1024
_TAG_BOUND = 1 << 62
_MASK = (1 << 64) - 1

_U32 = Struct(">I")
_U64 = Struct(">Q")
_ID = Struct(">IBQQ")
_PUBLISH_HEAD = Struct(">IBQBH")
_DELIVER_HEAD = Struct(">IBQBQH")
_PUBLISH_START = Struct(">IB8sBH")

TTL_HEADER = b"blipmq-ttl-ms"
PENDING = 0
END = 1
SKIP = 2
FULL = 3


def scan(src: Buffer, position: int, end: int, length_max: int) -> tuple[int, int, int, int]:
    available = end - position
    if position < 0 or end > len(src) or available < 4:
        return 0, position, 0, 0
    length = _U32.unpack_from(src, position)[0]
    check_length(length, length_max)
    if available == 4:
        return 0, position, 0, 0
    kind = src[position + 4]
    check_type(kind)
    if available - 4 < length:
        return 0, position, 0, 0
    behind = position + 4 + length
    if kind == _PUBLISH:
        if length < 12:
            return kind, behind, 0, 0
        _, _, _, qos, topic_bytes = _PUBLISH_HEAD.unpack_from(src, position)
        if qos > 1 or topic_bytes == 0 or topic_bytes > length - 12:
            return kind, behind, 0, 0
        return kind, behind, 1, topic_bytes
    if kind not in (_POLL, _ACK):
        return kind, behind, 1, 0
    ident = _ID.unpack_from(src, position)[3] if length == 17 else 0
    if ident == 0:
        return kind, behind, 0, 0
    head = bytes(src[position : position + 5])
    tail = bytes(src[position + 13 : position + 21])
    while end - behind >= _ID_FRAME and src[behind : behind + 5] == head and src[behind + 13 : behind + 21] == tail:
        behind += _ID_FRAME
    return kind, behind, (behind - position) // _ID_FRAME, ident


def pack_publishes(
    src: Buffer,
    position: int,
    end: int,
    writer: BatchWriter,
    topic: bytes,
    qos: int,
    record_bytes_max: int,
    cids: Target,
) -> tuple[int, int]:
    count = 0
    count_max = len(cids) // 8
    topic_bytes = len(topic)
    if position < 0 or end > len(src):
        return position, 0
    while count < count_max and end - position >= 16:
        length, kind, cid, its_qos, its_topic_bytes = _PUBLISH_START.unpack_from(src, position)
        body = position + 16 + topic_bytes
        behind = position + 4 + length
        if (
            kind != _PUBLISH
            or its_qos != qos
            or its_topic_bytes != topic_bytes
            or length > _LENGTH_MAX
            or behind > end
            or not 0 <= behind - body <= record_bytes_max
            or src[position + 16 : body] != topic
            or not writer.put(src, body, behind)
        ):
            break
        cids[8 * count : 8 * count + 8] = cid
        count += 1
        position = behind
    return position, count


def ack_ranges(src: Buffer, position: int, count: int, base: int) -> list[int]:
    ranges: list[int] = []
    if position < 0 or count * _ID_FRAME > len(src) - position:
        return ranges
    for start in range(position + 5, position + 5 + count * _ID_FRAME, _ID_FRAME):
        tag = _U64.unpack_from(src, start)[0]
        seq = base + tag & _MASK if 0 < tag < _TAG_BOUND else 0
        if seq >= _TAG_BOUND:
            seq = 0
        if ranges and ranges[-1] and seq == ranges[-1] + 1:
            ranges[-1] = seq
        else:
            ranges += (seq, seq)
    return ranges


def deliver(
    out: Target,
    position: int,
    records: RecordCursor,
    last_seq: int,
    limit: int,
    base: int,
    qos: int,
    topic: bytes,
    polls: Buffer,
    polls_position: int,
    expired_before_ms: int,
    age_ms: Callable[[int], int],
    push: bool = False,
) -> tuple[int, int, int, bool]:
    count = 0
    expected = records.seq
    qos0 = qos == 0 or records.qos0
    topic_bytes = len(topic)
    if position < 0 or polls_position < 0 or (not push and limit * _ID_FRAME > len(polls) - polls_position):
        return position, 0, PENDING, False
    head_bytes = 24 if push else 16
    while True:
        seq = records.seq
        if count == limit or seq > last_seq or seq != expected or (qos == 0 or records.qos0) != qos0:
            return position, count, PENDING, qos0
        length = head_bytes - 4 + topic_bytes + records.value_end - records.value_start
        if records.timestamp < expired_before_ms or length > _LENGTH_MAX:
            return position, count, SKIP, qos0
        headers = records.headers()
        if headers and has_expired(headers, records.timestamp, age_ms):
            return position, count, SKIP, qos0
        if length + 4 > len(out) - position:
            return position, count, FULL, qos0
        tag = 0 if qos0 else seq - base & _MASK
        if push:
            _DELIVER_HEAD.pack_into(out, position, length, _DELIVER, tag, not qos0, tag, topic_bytes)
        else:
            cid = _U64.unpack_from(polls, polls_position + count * _ID_FRAME + 5)[0] if qos0 else tag
            _PUBLISH_HEAD.pack_into(out, position, length, _PUBLISH, cid, not qos0, topic_bytes)
        value = position + head_bytes + topic_bytes
        out[position + head_bytes : value] = topic
        position += length + 4
        out[value:position] = records.data[records.value_start : records.value_end]
        count += 1
        expected = seq + 1
        if not records.next():
            return position, count, END, qos0


def has_expired(headers: tuple[bytes, ...], timestamp_ms: int, age_ms: Callable[[int], int]) -> bool:
    for name, text in zip(headers[::2], headers[1::2], strict=False):
        if name == TTL_HEADER:
            return len(text) <= TTL_DIGITS_MAX and text.isdigit() and age_ms(timestamp_ms) > int(text)
    return False
