# cython: annotation_typing=False
"""Hot loops of Figg: runs of PUBLISH into the log, stored batches into DATA, and both from the client's side.

Compiled; the twin is ``frames_pure``, ``dispatch`` chooses. The layouts are those of ``codec``. Each loop takes the
frames that are whole and of the usual form, and stops before the first one that is not. The caller gives that one to
``codec``, which knows what is wrong with it.
"""

from __future__ import annotations

from typing import TypeAlias

from engine.formats.batch import BatchWriter, RecordCursor

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

_HEADER = 8
_FIXED = 24  # header, topic length, number, data length
MANY = 1 << 20  # records above which their number says nothing about its size (gaps)


def pack_publishes(
    src: Buffer, position: int, end: int, topic: bytes, writer: BatchWriter, frame_bytes_max: int, value_bytes_max: int
) -> tuple[int, int, int, int, int, bool]:
    """Puts the data of consecutive whole PUBLISH frames of ``topic`` into ``writer``.

    It stops before a frame that is cut off, malformed, of another type or topic, with a payload or data above the
    limits, or for which the writer has no room.

    Returns:
        (position after the last frame taken, frames taken, their lowest and highest seq_num, bytes of their data,
        whether it stopped because the writer had no room).
    """
    count = 0
    lowest = 0
    highest = 0
    total = 0
    full = False
    name = topic
    topic_size = len(topic)
    head = _FIXED + topic_size
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while end - position >= head and src[position] == 0 and src[position + 1] == 5:
        size = u32(src, position + 4)
        if size > frame_bytes_max or size > end - position - _HEADER or size < head - _HEADER:
            break
        if not same(src, position + _HEADER, name):
            break
        at = position + 12 + topic_size
        value_size = u32(src, at + 8)
        if value_size > size + _HEADER - head or value_size > value_bytes_max:
            break
        if not writer.put(src, at + 12, at + 12 + value_size):
            full = True
            break
        number = u64_at(src, at)
        if number > highest:
            highest = number
        if number < lowest or count == 0:
            lowest = number
        total += value_size
        count += 1
        position += _HEADER + size
    return position, count, lowest, highest, total, full


def frame_data(
    batches: Buffer, from_seq: int, last_seq: int, topic: bytes, value_bytes_max: int, bytes_max: int
) -> tuple[Buffer, int, int, int]:
    """DATA frames of the records of ``batches`` from number ``from_seq`` on, about ``bytes_max`` bytes, at least one.

    Records above ``value_bytes_max`` are left out.

    Args:
        batches: verified whole batches.
        last_seq: number of its last record.

    Returns:
        (frames, number to go on with, frames made, records left out).

    Raises:
        BatchError, BundleError: the batches were not written by us.
    """
    name = topic
    topic_size = len(topic)
    head = _FIXED + topic_size
    room = bytes_max
    if last_seq >= from_seq and last_seq - from_seq < MANY:
        span = last_seq - from_seq
        room = len(batches) + (span + 1) * head
        if room > bytes_max:
            room = bytes_max
    buffer = bytearray(room)
    out = buffer
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    used = 0
    count = 0
    skipped = 0
    next_seq = from_seq
    while cursor.next():
        start = cursor.value_start
        size = cursor.value_end - start
        if size > value_bytes_max:
            skipped += 1
            next_seq = cursor.seq + 1
            continue
        need = head + size
        if need > room - used:
            if count and used + need > bytes_max:
                return memoryview(buffer)[:used], next_seq, count, skipped
            larger = 2 * room if 2 * room < bytes_max else bytes_max
            room = used + need if used + need > larger else larger
            buffer = enlarged(buffer, used, room)
            out = buffer
        used = put_head(out, used, 7, name, topic_size, cursor.seq, size)
        used = copy(out, used, cursor.data, start, size)
        next_seq = cursor.seq + 1
        count += 1
    return memoryview(buffer)[:used], last_seq + 1 if last_seq >= next_seq else next_seq, count, skipped


def pack_values(topic: bytes, seq_num: int, values: list[bytes], start: int, end: int) -> bytearray:
    """PUBLISH frames of ``values[start:end]``, back to back, numbered from ``seq_num`` on."""
    name = topic
    topic_size = len(topic)
    head = _FIXED + topic_size
    total = 0
    for index in range(start, end):
        value = values[index]
        total += head + len(value)
    buffer = bytearray(total)
    out = buffer
    position = 0
    for index in range(start, end):
        value = values[index]
        size = len(value)
        position = put_head(out, position, 5, name, topic_size, seq_num, size)
        position = put_bytes(out, position, value, size)
        seq_num += 1
    return buffer


def take_data(src: bytes, position: int, end: int, topic: bytes) -> tuple[int, list[int], list[bytes]]:
    """The messages of consecutive whole DATA frames of ``topic``.

    Returns:
        (position after the last frame taken, offsets, data).
    """
    offsets: list[int] = []
    values: list[bytes] = []
    topic_size = len(topic)
    head = _FIXED + topic_size
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    name = topic
    view = src
    text = src
    while end - position >= head and view[position] == 0 and view[position + 1] == 7:
        size = u32(view, position + 4)
        if size > end - position - _HEADER or size < head - _HEADER:
            break
        if not same(view, position + _HEADER, name):
            break
        at = position + 12 + topic_size
        value_size = u32(view, at + 8)
        if value_size > size + _HEADER - head:
            break
        offsets.append(u64_at(view, at))
        values.append(text[at + 12 : at + 12 + value_size])
        position += _HEADER + size
    return position, offsets, values


def u32(src: Buffer, position: int) -> int:
    """The big-endian u32 there."""
    high = src[position] << 8
    high |= src[position + 1]
    low = src[position + 2] << 8
    low |= src[position + 3]
    return high << 16 | low


def u64_at(src: Buffer, position: int) -> int:
    """The big-endian u64 there."""
    high = u32(src, position)
    low = u32(src, position + 4)
    return high << 32 | low


def same(src: Buffer, position: int, name: Buffer) -> bool:
    """Whether the ``bytes`` field at ``position`` is ``name``; the caller has checked that so many bytes are there."""
    size = len(name)
    if u32(src, position) != size:
        return False
    for index in range(size):  # noqa: SIM110 (a generator would be a Python object)
        if src[position + 4 + index] != name[index]:
            return False
    return True


def put_head(out: bytearray, position: int, kind: int, name: bytes, topic_size: int, number: int, size: int) -> int:
    """Writes a PUBLISH or DATA frame up to its data; the position after it."""
    out[position] = 0
    out[position + 1] = kind
    out[position + 2] = 0
    out[position + 3] = 1
    put_u32(out, position + 4, 16 + topic_size + size)
    put_u32(out, position + 8, topic_size)
    position += 12
    for index in range(topic_size):
        out[position + index] = name[index]
    position += topic_size
    put_u32(out, position, number >> 32)
    put_u32(out, position + 4, number)
    put_u32(out, position + 8, size)
    return position + 12


def put_u32(out: bytearray | memoryview, position: int, value: int) -> None:
    """Writes the low 32 bits of a number, big-endian."""
    out[position] = value >> 24 & 0xFF
    out[position + 1] = value >> 16 & 0xFF
    out[position + 2] = value >> 8 & 0xFF
    out[position + 3] = value & 0xFF


def put_bytes(out: bytearray | memoryview, position: int, text: bytes, size: int) -> int:
    """Copies ``text[:size]`` to ``out[position:]``; the position after it."""
    for index in range(size):
        out[position + index] = text[index]
    return position + size


def enlarged(buffer: bytearray, used: int, size_bytes: int) -> bytearray:
    """A larger buffer that begins with the same ``used`` bytes."""
    larger = bytearray(size_bytes)
    memoryview(larger)[:used] = memoryview(buffer)[:used]
    return larger


def copy(out: bytearray | memoryview, position: int, src: Buffer, start: int, size: int) -> int:
    """Copies ``src[start : start + size]`` to ``out[position:]``; the position after it."""
    for index in range(size):
        out[position + index] = src[start + index]
    return position + size
