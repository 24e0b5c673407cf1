"""The hot loops of ``frames.py`` with struct and slices: the same names, arguments and results."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from engine.formats.batch import BatchWriter, RecordCursor

Buffer: TypeAlias = bytes | bytearray | memoryview
Target: TypeAlias = bytearray | memoryview

_U32 = Struct(">I")
_ID_STRING = Struct(">IIQ")
_WRITE_HEAD = Struct(">BII")
_WRITE_START = Struct(">B4sI")
_ANSWER = Struct(">BIB")

PENDING = 0
END = 1
SKIP = 2
FULL = 3


def pack_writes(
    src: Buffer, position: int, end: int, topic: bytes, writer: BatchWriter, message_bytes_max: int, answers: Target
) -> tuple[int, int, bool]:
    count = 0
    count_max = len(answers) // 6
    topic_bytes = len(topic)
    head = 13 + topic_bytes
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while count < count_max and end - position >= head:
        op, cid, its_topic_bytes = _WRITE_START.unpack_from(src, position)
        name_end = position + 9 + topic_bytes
        if op != 3 or its_topic_bytes != topic_bytes or src[position + 9 : name_end] != topic:
            break
        size = _U32.unpack_from(src, name_end)[0]
        if not 0 < size <= message_bytes_max or size > end - position - head:
            break
        if not writer.put(src, position + head, position + head + size):
            return position, count, True
        answers[6 * count : 6 * count + 6] = b"\x02%b\x00" % cid
        count += 1
        position += head + size
    return position, count, False


def frame_records(
    out: Target,
    position: int,
    records: RecordCursor,
    last_seq: int,
    limit: int,
    partition: int,
    is_push: bool,
    has_id: bool,
    message_bytes_max: int,
) -> tuple[int, int, int]:
    count = 0
    expected = records.seq
    head = 4 + (1 if is_push else 0) + (16 if has_id else 0)
    if position < 0:
        raise ValueError("position outside the output")
    while True:
        seq = records.seq
        if count == limit or seq > last_seq or seq != expected:
            return position, count, PENDING
        size = records.value_end - records.value_start
        if not 0 < size <= message_bytes_max:
            return position, count, SKIP
        if head + size > len(out) - position:
            return position, count, FULL
        if is_push:
            out[position] = 6
            position += 1
        if has_id:
            _ID_STRING.pack_into(out, position, 12, partition, seq)
            position += 16
        _U32.pack_into(out, position, size)
        position += 4
        out[position : position + size] = records.data[records.value_start : records.value_end]
        position += size
        count += 1
        expected = seq + 1
        if not records.next():
            return position, count, END


def id_ranges(src: Buffer, position: int, count: int, partition: int) -> tuple[int, list[int]]:
    ranges: list[int] = []
    taken = 0
    if position < 0:
        raise ValueError("position outside the source")
    while taken < count and len(src) - position >= 16:
        size, its_partition, seq = _ID_STRING.unpack_from(src, position)
        if size != 12 or its_partition != partition or not 0 < seq < 1 << 62:
            break
        if ranges and seq == ranges[-1] + 1:
            ranges[-1] = seq
        else:
            ranges += (seq, seq)
        taken += 1
        position += 16
    return taken, ranges


def ok_results(src: Buffer, position: int, count: int) -> bytearray:
    if position < 0 or count < 0 or count * 16 > len(src) - position:
        raise ValueError("range outside the source")
    ends = range(position + 16, position + 16 * count + 16, 16)
    return bytearray(b"".join([bytes(src[end - 16 : end]) + b"\x00" for end in ends]))


def pack_values(topic: bytes, cid: int, values: list[bytes], start: int, end: int, has_headers: bool) -> bytearray:
    between = b"\x00\x00" if has_headers else b""
    return bytearray(
        b"".join(
            [
                _WRITE_HEAD.pack(3, cid + index - start & 0xFFFFFFFF, len(topic))
                + topic
                + between
                + _U32.pack(len(values[index]))
                + values[index]
                for index in range(start, end)
            ]
        )
    )


def take_written(src: Buffer, position: int, end: int) -> tuple[int, int, int]:
    first = 0
    count = 0
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while end - position >= 6:
        kind, cid, flag = _ANSWER.unpack_from(src, position)
        if kind != 2 or flag:
            break
        if not count:
            first = cid
        elif cid != first + count & 0xFFFFFFFF:
            break
        count += 1
        position += 6
    return position, first, count


def take_messages(
    src: bytes, position: int, end: int, limit: int, is_push: bool, has_id: bool, ids: list[bytes], values: list[bytes]
) -> tuple[int, int]:
    count = 0
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while count < limit:
        at = id_at = position
        if is_push:
            if at >= end or src[at] != 6:
                break
            at += 1
        if has_id:
            if end - at < 4:
                break
            id_at = at + 4
            at = id_at + _U32.unpack_from(src, at)[0]
        if end - at < 4:
            break
        start = at + 4
        behind = start + _U32.unpack_from(src, at)[0]
        if behind > end:
            break
        if has_id:
            ids.append(src[id_at:at])
        values.append(src[start:behind])
        position = behind
        count += 1
    return position, count
