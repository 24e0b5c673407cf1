"""Twin of ``frames`` for where nothing is compiled: the same names and results by ``re``, ``json`` and slices."""

from __future__ import annotations

import re
from json.encoder import encode_basestring
from struct import Struct
from typing import Final, TypeAlias

from engine.formats.batch import BatchWriter, RecordCursor

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = False

_LENGTH: Final = Struct(">I")
_LINE: Final = re.compile(rb'\{"value": ?"([ !#-\[\]-\x7f]*)"\}\n')
_LINE_ROOM: Final = 160


def pack_lengths(
    src: Buffer, position: int, end: int, writer: BatchWriter, value_bytes_max: int, records_max: int
) -> tuple[int, int, int, bool]:
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    count = total = 0
    while end - position >= 4 and count < records_max:
        (size,) = _LENGTH.unpack_from(src, position)
        if size > value_bytes_max or size > end - position - 4:
            break
        if not writer.put(src, position + 4, position + 4 + size):
            return position, count, total, True
        total += size
        count += 1
        position += 4 + size
    return position, count, total, False


def pack_lines(
    src: Buffer, position: int, end: int, writer: BatchWriter, value_bytes_max: int, records_max: int
) -> tuple[int, int, int, bool]:
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    count = total = 0
    while count < records_max:
        line = _LINE.match(src, position, end)
        if line is None:
            break
        start, stop = line.span(1)
        if stop - start > value_bytes_max:
            break
        if not writer.put(src, start, stop):
            return position, count, total, True
        total += stop - start
        count += 1
        position = line.end()
    return position, count, total, False


def frame_lengths(
    batches: Buffer, from_seq: int, last_seq: int, bytes_max: int, records_max: int
) -> tuple[Buffer, int, int]:
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    parts: list[Buffer] = []
    used = count = 0
    next_seq = from_seq
    while cursor.next():
        if cursor.seq > last_seq:
            break
        size = cursor.value_end - cursor.value_start
        if count >= records_max or (count and used + size + 4 > bytes_max):
            return b"".join(parts), next_seq, count
        parts += (_LENGTH.pack(size), cursor.data[cursor.value_start : cursor.value_end])
        used += size + 4
        next_seq = cursor.seq + 1
        count += 1
    return b"".join(parts), last_seq + 1, count


def frame_lines(
    batches: Buffer, from_seq: int, last_seq: int, partition: int, bytes_max: int, records_max: int
) -> tuple[Buffer, int, int]:
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    parts: list[bytes] = []
    used = room = count = 0
    next_seq = from_seq
    while cursor.next():
        if cursor.seq > last_seq:
            break
        if count >= records_max or cursor.headers() or cursor.marks():
            return b"".join(parts), next_seq, count
        try:
            value = _text(cursor.data[cursor.value_start : cursor.value_end])
            key = _text(cursor.data[cursor.key_start : cursor.key_end])
        except UnicodeDecodeError:
            return b"".join(parts), next_seq, count
        room = max(room, bytes_max) if count else max(bytes_max, len(value) + len(key) + _LINE_ROOM)
        if count and len(value) + len(key) + _LINE_ROOM > room - used:
            return b"".join(parts), next_seq, count
        middle = b',"key":"%b"' % key if key else b""
        head = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (partition, cursor.seq, cursor.timestamp)
        parts.append(b'%b%b,"value":"%b"}\n' % (head, middle, value))
        used += len(parts[-1])
        next_seq = cursor.seq + 1
        count += 1
    return b"".join(parts), last_seq + 1, count


def _text(data: Buffer) -> bytes:
    return encode_basestring(bytes(data).decode()).encode()[1:-1]
