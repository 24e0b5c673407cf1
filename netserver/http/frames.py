# cython: annotation_typing=False
"""Hot loops of records over HTTP: bodies into the log, stored batches into lines of JSON and lengths with values.

Compiled; the twin is ``frames_pure``, ``dispatch`` chooses. Each loop takes what is whole and of the usual form and
stops before the first record that is not: ``json_lines`` and ``splitting`` know all forms, and what is wrong.
"""

from __future__ import annotations

from typing import TypeAlias

from engine.formats.batch import BatchWriter, RecordCursor

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

_LINE_ROOM = 160  # of a line but its key and its value
_HEX = b"0123456789abcdef"
_SHORT = b"btn_fr"  # \\b \\t \\n (none for 11) \\f \\r, from 8 on
_BEGIN = b'{"value":'
_PARTITION = b'{"partition":'
_OFFSET = b',"offset":'
_TIME = b',"timestamp_ms":'
_KEY = b',"key":"'
_VALUE = b',"value":"'


def pack_lengths(
    src: Buffer, position: int, end: int, writer: BatchWriter, value_bytes_max: int, records_max: int
) -> tuple[int, int, int, bool]:
    """Puts values, each after its length (4 bytes, big-endian), into ``writer``.

    It stops before a value that is cut off or above ``value_bytes_max``, after ``records_max``, or without room.

    Returns:
        (position after the last value taken, values taken, their bytes, whether the writer had no room).
    """
    count = 0
    total = 0
    full = False
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while end - position >= 4 and count < records_max:
        size = src[position]
        size = size << 8 | src[position + 1]
        size = size << 8 | src[position + 2]
        size = size << 8 | src[position + 3]
        if size > value_bytes_max or size > end - position - 4:
            break
        if not writer.put(src, position + 4, position + 4 + size):
            full = True
            break
        total += size
        count += 1
        position += 4 + size
    return position, count, total, full


def pack_lines(
    src: Buffer, position: int, end: int, writer: BatchWriter, value_bytes_max: int, records_max: int
) -> tuple[int, int, int, bool]:
    """Puts the values of lines ``{"value":"TEXT"}`` into ``writer``: one space after the colon at most, and plain text.

    It stops before a line that is cut off or of another form (escapes and bytes above 127 included), with a value above
    ``value_bytes_max``, after ``records_max``, or without room.

    Returns:
        (position after the last line taken, lines taken, bytes of their values, whether the writer had no room).
    """
    count = 0
    total = 0
    full = False
    begin = _BEGIN
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while end - position >= 13 and count < records_max:
        at = position
        for index in range(9):
            if src[at + index] != begin[index]:
                return position, count, total, full
        at += 9
        if src[at] == 32:
            at += 1
        if src[at] != 34:
            break
        at += 1
        start = at
        while at < end and src[at] >= 32 and src[at] < 128 and src[at] != 34 and src[at] != 92:
            at += 1
        if end - at < 3 or src[at] != 34 or src[at + 1] != 125 or src[at + 2] != 10 or at - start > value_bytes_max:
            break
        if not writer.put(src, start, at):
            full = True
            break
        total += at - start
        count += 1
        position = at + 3
    return position, count, total, full


def frame_lengths(
    batches: Buffer, from_seq: int, last_seq: int, bytes_max: int, records_max: int
) -> tuple[Buffer, int, int]:
    """The values of records ``from_seq`` to ``last_seq``, each after its length; about ``bytes_max``, at least one.

    Args:
        batches: verified whole batches.
        last_seq: no higher than the last number of the batches.

    Returns:
        (bytes, number to go on with, records taken).

    Raises:
        BatchError, BundleError: the batches were not written by us.
    """
    room = bytes_max
    buffer = bytearray(room)
    out = buffer
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    used = 0
    count = 0
    next_seq = from_seq
    while cursor.next():
        if cursor.seq > last_seq:
            break
        if count >= records_max:
            return memoryview(buffer)[:used], next_seq, count
        start = cursor.value_start
        size = cursor.value_end - start
        if size + 4 > room - used:
            if count:
                return memoryview(buffer)[:used], next_seq, count
            room = size + 4
            buffer = bytearray(room)
            out = buffer
        out[used] = size >> 24 & 0xFF
        out[used + 1] = size >> 16 & 0xFF
        out[used + 2] = size >> 8 & 0xFF
        out[used + 3] = size & 0xFF
        used = copy(out, used + 4, cursor.data, start, size)
        next_seq = cursor.seq + 1
        count += 1
    return memoryview(buffer)[:used], last_seq + 1, count


def frame_lines(
    batches: Buffer, from_seq: int, last_seq: int, partition: int, bytes_max: int, records_max: int
) -> tuple[Buffer, int, int]:
    """Records ``from_seq`` to ``last_seq`` as lines of JSON (``rows.line_of``); about ``bytes_max``, at least one.

    It stops before a record that has headers or marks, or a key or value that is no UTF-8.

    Args:
        batches: verified whole batches.
        last_seq: no higher than the last number of the batches.

    Returns:
        (bytes, number to go on with, records taken).

    Raises:
        BatchError, BundleError: the batches were not written by us.
    """
    room = bytes_max
    buffer = bytearray(room)
    out = buffer
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    used = 0
    count = 0
    next_seq = from_seq
    while cursor.next():
        if cursor.seq > last_seq:
            break
        if count >= records_max or (cursor.bundles_end != cursor.batch_end and (cursor.headers() or cursor.marks())):
            return memoryview(buffer)[:used], next_seq, count
        size = text_size(cursor.data, cursor.value_start, cursor.value_end)
        key_size = text_size(cursor.data, cursor.key_start, cursor.key_end)
        if size < 0 or key_size < 0:
            return memoryview(buffer)[:used], next_seq, count
        if size + key_size + _LINE_ROOM > room - used:
            if count:
                return memoryview(buffer)[:used], next_seq, count
            room = size + key_size + _LINE_ROOM
            buffer = bytearray(room)
            out = buffer
        used = put_bytes(out, used, _PARTITION, 13)
        used = put_decimal(out, used, partition)
        used = put_bytes(out, used, _OFFSET, 10)
        used = put_decimal(out, used, cursor.seq)
        used = put_bytes(out, used, _TIME, 16)
        used = put_decimal(out, used, cursor.timestamp)
        if key_size:
            used = put_bytes(out, used, _KEY, 8)
            used = put_text(out, used, cursor.data, cursor.key_start, cursor.key_end, key_size)
            out[used] = 34
            used += 1
        used = put_bytes(out, used, _VALUE, 10)
        used = put_text(out, used, cursor.data, cursor.value_start, cursor.value_end, size)
        out[used] = 34
        out[used + 1] = 125
        out[used + 2] = 10
        used += 3
        next_seq = cursor.seq + 1
        count += 1
    return memoryview(buffer)[:used], last_seq + 1, count


def text_size(src: Buffer, start: int, end: int) -> int:
    """Bytes of ``src[start:end]`` within a JSON string; -1: it is no UTF-8 (RFC 3629)."""
    size = end - start
    at = start
    while at < end:
        byte = src[at]
        at += 1
        if byte < 128:
            if byte < 32:
                size += 1 if 8 <= byte <= 13 and byte != 11 else 5
            elif byte == 34 or byte == 92:
                size += 1
            continue
        if byte < 0xC2 or byte > 0xF4:
            return -1
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if more > end - at:
            return -1
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if src[at] < low or src[at] > high:
            return -1
        for index in range(1, more):
            if src[at + index] < 0x80 or src[at + index] > 0xBF:
                return -1
        at += more
    return size


def put_text(out: bytearray, position: int, src: Buffer, start: int, end: int, size: int) -> int:
    """Writes UTF-8 as the inside of a JSON string of ``size`` bytes; the position after it."""
    if size == end - start:
        return copy(out, position, src, start, size)
    for index in range(start, end):
        byte = src[index]
        if byte >= 32 and byte != 34 and byte != 92:
            out[position] = byte
            position += 1
            continue
        out[position] = 92
        if byte >= 32:
            out[position + 1] = byte
            position += 2
        elif 8 <= byte <= 13 and byte != 11:
            out[position + 1] = short_escape(byte)
            position += 2
        else:
            out[position + 1] = 117
            out[position + 2] = 48
            out[position + 3] = 48
            out[position + 4] = 48 + (byte >> 4)
            out[position + 5] = hex_digit(byte & 15)
            position += 6
    return position


def short_escape(byte: int) -> int:
    """The letter of an escape of two characters."""
    letters = _SHORT
    return letters[byte - 8]


def hex_digit(value: int) -> int:
    """The digit of a number below 16."""
    digits = _HEX
    return digits[value]


def put_decimal(out: bytearray, position: int, value: int) -> int:
    """Writes a number; the position after it."""
    size = 1
    rest = value // 10
    while rest:
        rest //= 10
        size += 1
    at = position + size
    rest = value
    while at > position:
        at -= 1
        out[at] = 48 + rest % 10
        rest //= 10
    return position + size


def put_bytes(out: bytearray, position: int, text: bytes, size: int) -> int:
    """Copies ``text[:size]`` to ``out[position:]``; the position after it."""
    for index in range(size):
        out[position + index] = text[index]
    return position + size


def copy(out: bytearray, position: int, src: Buffer, start: int, size: int) -> int:
    """Copies ``src[start : start + size]`` to ``out[position:]``; the position after it."""
    for index in range(size):
        out[position + index] = src[start + index]
    return position + size
