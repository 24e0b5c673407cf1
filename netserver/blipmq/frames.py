# cython: annotation_typing=False
"""Hot loops of BlipMQ: runs of PUBLISH, POLL and ACK frames, stored records into deliveries.

Compiled; where it is not, the names of this module are those of its twin, frames_pure. They handle frames of the usual
shape only and stop before anything else, which the codec then explains; layouts as in ``codec.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from engine.formats.batch import BatchWriter, RecordCursor
from netserver.blipmq import frames_pure
from netserver.blipmq.codec import check_length, check_type
from netserver.blipmq.limits import TTL_DIGITS_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview
Target: TypeAlias = bytearray | memoryview

COMPILED = not __file__.endswith(".py")

# C variables of the compiled module
_PUBLISH = 3
_ACK = 5
_POLL = 9
_DELIVER = 10
_HEAD = 13  # length word, type, correlation id
_PUBLISH_HEAD = 16  # and QoS, topic length
_ID_FRAME = 21  # a POLL or ACK: head and subscription id
_LENGTH_MAX = 16 * 1024 * 1024
_TAG_BOUND = 1 << 62  # no tag is as high: adding the base would leave 64 bits

TTL_HEADER = b"blipmq-ttl-ms"
"""A record's header: time to live in milliseconds from its timestamp on, as digits (protocol version 2)."""

PENDING = 0  # what deliver() ended with: the current record is not taken
END = 1  # no record is left in the batches
SKIP = 2  # the current record cannot be delivered: too old, or too large for a frame
FULL = 3  # the current record does not fit into what is left of the output


def scan(src: Buffer, position: int, end: int, length_max: int) -> tuple[int, int, int, int]:
    """Look at what stands at ``src[position:end]``.

    Returns:
        (type, position after, count, number): of one frame, or of a run of POLLs or ACKs of one subscription. Type 0:
        no whole frame is there. Count 0: it is not of the usual shape. Number: the subscription of POLLs and ACKs, the
        topic's length of a PUBLISH, else 0.

    Raises:
        FramingError: see ``codec.check_length`` and ``codec.check_type``
    """
    available = end - position
    if position < 0 or end > len(src) or available < 4:
        return 0, position, 0, 0
    length = u32(src, position)
    if length < 9 or length > length_max:
        check_length(length, length_max)
    if available == 4:
        return 0, position, 0, 0
    kind = src[position + 4]
    if kind == 0 or kind > _POLL:
        check_type(kind)
    if available - 4 < length:
        return 0, position, 0, 0
    behind = position + 4 + length
    if kind == _PUBLISH:
        if length < 12 or src[position + 13] > 1:
            return kind, behind, 0, 0
        topic_bytes = src[position + 14] << 8 | src[position + 15]
        if topic_bytes == 0 or topic_bytes > length - 12:
            return kind, behind, 0, 0
        return kind, behind, 1, topic_bytes
    if kind != _POLL and kind != _ACK:
        return kind, behind, 1, 0
    ident = u64_at(src, position + _HEAD) if length == 17 else 0
    if ident == 0:
        return kind, behind, 0, 0
    count = 1
    while (
        end - behind >= _ID_FRAME
        and src[behind + 4] == kind
        and u32(src, behind) == 17
        and u64_at(src, behind + _HEAD) == ident
    ):
        behind += _ID_FRAME
        count += 1
    return kind, behind, count, ident


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
    """Put the bodies of consecutive PUBLISH frames of one topic and QoS into the log's batch.

    Args:
        cids: their correlation ids go here, 8 bytes each as they came; its size bounds the run.

    Returns:
        (position after the last frame taken, how many). It stops at the first frame that is another one, is cut off,
        is too large, or for which the writer has no room.
    """
    count = 0
    count_max = len(cids) // 8
    topic_bytes = len(topic)
    if position < 0 or end > len(src):
        return position, 0
    while count < count_max and end - position >= _PUBLISH_HEAD:
        length = u32(src, position)
        if (
            length < 12 + topic_bytes
            or length > _LENGTH_MAX
            or end - position - 4 < length
            or src[position + 4] != _PUBLISH
            or src[position + 13] != qos
            or (src[position + 14] << 8 | src[position + 15]) != topic_bytes
            or length - 12 - topic_bytes > record_bytes_max
            or not same(src, position + _PUBLISH_HEAD, topic)
        ):
            break
        behind = position + 4 + length
        if not writer.put(src, position + _PUBLISH_HEAD + topic_bytes, behind):
            break
        copy(cids, 8 * count, src, position + 5, 8)
        count += 1
        position = behind
    return position, count


def ack_ranges(src: Buffer, position: int, count: int, base: int) -> list[int]:
    """The sequence numbers that a run of ACKs (see ``scan``) names: first, last, first, last ... in order.

    Args:
        base: what a tag counts from, modulo 2**64; a tag that cannot be one gives the number 0.
    """
    ranges: list[int] = []
    if position < 0 or count * _ID_FRAME > len(src) - position:
        return ranges
    first = 0
    last = 0
    for index in range(count):
        tag = u64_at(src, position + index * _ID_FRAME + 5)
        seq = base + tag if 0 < tag < _TAG_BOUND else 0
        if seq >= _TAG_BOUND:
            seq = 0
        if index and seq == last + 1 and last:
            last = seq
            continue
        if index:
            ranges.append(first)
            ranges.append(last)
        first = seq
        last = seq
    if count:
        ranges.append(first)
        ranges.append(last)
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
    """Write PUBLISH frames for the current record and those that follow it without a gap and with the same QoS.

    Args:
        out, position: where they go.
        records: its current record is the first one.
        last_seq: no record above it is delivered.
        limit: most frames.
        base: what tags count from, modulo 2**64.
        qos: the subscription's.
        polls, polls_position: the POLL frames that these deliveries answer, one each; their correlation ids are used
            by deliveries with QoS 0.
        expired_before_ms: older records are not delivered.
        age_ms: of what was stamped at a time, for messages with a time to live of their own.
        push: write DELIVER frames (version 2), which answer no POLLs.

    Returns:
        (position after the last frame, how many, why it ended, whether they have QoS 0)
    """
    count = 0
    expected = records.seq
    qos0 = qos == 0 or records.qos0
    topic_bytes = len(topic)
    out_bytes = len(out)
    tag_bytes = 8 if push else 0
    tag = 0
    if position < 0 or polls_position < 0 or (not push and limit * _ID_FRAME > len(polls) - polls_position):
        return position, 0, PENDING, False
    while True:
        seq = records.seq
        if count == limit or seq > last_seq or seq != expected or (qos == 0 or records.qos0) != qos0:
            return position, count, PENDING, qos0
        value_bytes = records.value_end - records.value_start
        length = 12 + tag_bytes + topic_bytes + value_bytes
        if records.timestamp < expired_before_ms or length > _LENGTH_MAX:
            return position, count, SKIP, qos0
        if records.bundles_end != records.batch_end and has_expired(records.headers(), records.timestamp, age_ms):
            return position, count, SKIP, qos0
        if length + 4 > out_bytes - position:
            return position, count, FULL, qos0
        put_big(out, position, length, 4)
        tag = 0 if qos0 else seq - base
        out[position + 13] = 0 if qos0 else 1
        if push:
            out[position + 4] = _DELIVER
            put_big(out, position + 5, tag, 8)
            put_big(out, position + 14, tag, 8)
        else:
            out[position + 4] = _PUBLISH
            if qos0:
                copy(out, position + 5, polls, polls_position + count * _ID_FRAME + 5, 8)
            else:
                put_big(out, position + 5, tag, 8)
        put_big(out, position + 14 + tag_bytes, topic_bytes, 2)
        position = copy(out, position + _PUBLISH_HEAD + tag_bytes, topic, 0, topic_bytes)
        position = copy(out, position, records.data, records.value_start, value_bytes)
        count += 1
        expected = seq + 1
        if not records.next():
            return position, count, END, qos0


def u32(src: Buffer, position: int) -> int:
    """A big-endian number of 4 bytes."""
    value = 0
    for index in range(4):
        byte = src[position + index]
        value = value << 8 | byte
    return value


def u64_at(src: Buffer, position: int) -> int:
    """A big-endian number of 8 bytes."""
    value = 0
    for index in range(8):
        byte = src[position + index]
        value = value << 8 | byte
    return value


def put_big(out: Target, position: int, value: int, size: int) -> None:
    """Write a big-endian number of ``size`` bytes."""
    for index in range(size):
        out[position + index] = value >> 8 * (size - 1 - index) & 0xFF


def copy(out: Target, position: int, src: Buffer, start: int, size: int) -> int:
    """Copy ``src[start : start + size]`` to ``out[position:]``; the position after it."""
    for index in range(size):
        out[position + index] = src[start + index]
    return position + size


def same(src: Buffer, position: int, text: Buffer) -> bool:
    """Whether ``src`` has ``text`` at ``position``."""
    for index in range(len(text)):  # noqa: SIM110  (a generator would not compile to a loop)
        if src[position + index] != text[index]:
            return False
    return True


def has_expired(headers: tuple[bytes, ...], timestamp_ms: int, age_ms: Callable[[int], int]) -> bool:
    """Whether a message has outlived the time that its publisher gave it (see ``TTL_HEADER``)."""
    for name, text in zip(headers[::2], headers[1::2], strict=False):
        if name == TTL_HEADER:  # other protocols' publishers may write anything into it
            return len(text) <= TTL_DIGITS_MAX and text.isdigit() and age_ms(timestamp_ms) > int(text)
    return False


if not COMPILED:
    globals().update({name: getattr(frames_pure, name) for name in ("ack_ranges", "deliver", "pack_publishes", "scan")})
