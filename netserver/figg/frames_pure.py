"""Twin of ``frames`` for where nothing is compiled: the same names and results by ``struct`` and slices."""

from __future__ import annotations

from struct import Struct
from typing import TypeAlias

from engine.formats.batch import BatchWriter, RecordCursor

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = False

_PREFIX = Struct(">HHII")  # type, version, payload size, topic length
_MIDDLE = Struct(">QI")  # seq_num or offset, data length
_HEADER = 8
_FIXED = 24


def pack_publishes(
    src: Buffer, position: int, end: int, topic: bytes, writer: BatchWriter, frame_bytes_max: int, value_bytes_max: int
) -> tuple[int, int, int, int, int, bool]:
    count = lowest = highest = total = 0
    topic_size = len(topic)
    head = _FIXED + topic_size
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    open_prefix, open_middle, put = _PREFIX.unpack_from, _MIDDLE.unpack_from, writer.put
    while end - position >= head:
        kind, _, size, name_size = open_prefix(src, position)
        at = position + 12 + topic_size
        behind = position + _HEADER + size
        if (
            kind != 5
            or name_size != topic_size
            or behind > end
            or size > frame_bytes_max
            or src[position + 12 : at] != topic
            or size < head - _HEADER
        ):
            break
        number, value_size = open_middle(src, at)
        if at + 12 + value_size > behind or value_size > value_bytes_max:
            break
        if not put(src, at + 12, at + 12 + value_size):
            return position, count, lowest, highest, total, True
        if number > highest:
            highest = number
        if number < lowest or not count:
            lowest = number
        total += value_size
        count += 1
        position = behind
    return position, count, lowest, highest, total, False


def frame_data(
    batches: Buffer, from_seq: int, last_seq: int, topic: bytes, value_bytes_max: int, bytes_max: int
) -> tuple[Buffer, int, int, int]:
    topic_size = len(topic)
    head = _FIXED + topic_size
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    parts: list[Buffer] = []
    used = count = skipped = 0
    next_seq = from_seq
    while cursor.next():
        start, stop = cursor.value_start, cursor.value_end
        size = stop - start
        if size > value_bytes_max:
            skipped += 1
        elif count and used + head + size > bytes_max:
            return b"".join(parts), next_seq, count, skipped
        else:
            parts += (
                _PREFIX.pack(7, 1, 16 + topic_size + size, topic_size),
                topic,
                _MIDDLE.pack(cursor.seq, size),
                cursor.data[start:stop],
            )
            used += head + size
            count += 1
        next_seq = cursor.seq + 1
    return b"".join(parts), max(last_seq + 1, next_seq), count, skipped


def pack_values(topic: bytes, seq_num: int, values: list[bytes], start: int, end: int) -> bytearray:
    topic_size = len(topic)
    parts: list[bytes] = []
    for value in values[start:end]:
        size = len(value)
        parts += (_PREFIX.pack(5, 1, 16 + topic_size + size, topic_size), topic, _MIDDLE.pack(seq_num, size), value)
        seq_num += 1
    return bytearray().join(parts)


def take_data(src: bytes, position: int, end: int, topic: bytes) -> tuple[int, list[int], list[bytes]]:
    offsets: list[int] = []
    values: list[bytes] = []
    topic_size = len(topic)
    head = _FIXED + topic_size
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    open_prefix, open_middle = _PREFIX.unpack_from, _MIDDLE.unpack_from
    while end - position >= head:
        kind, _, size, name_size = open_prefix(src, position)
        at = position + 12 + topic_size
        behind = position + _HEADER + size
        if (
            kind != 7
            or name_size != topic_size
            or behind > end
            or src[position + 12 : at] != topic
            or size < head - _HEADER
        ):
            break
        offset, value_size = open_middle(src, at)
        if at + 12 + value_size > behind:
            break
        offsets.append(offset)
        values.append(src[at + 12 : at + 12 + value_size])
        position = behind
    return position, offsets, values
