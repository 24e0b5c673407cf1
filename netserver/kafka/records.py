# cython: annotation_typing=False
"""Hot loops of Kafka's records: those of a batch into the log, stored batches into batches of records.

A record, within what a batch holds once it is unpacked; varints are zigzag, 32 bits (the timestamp 64)::

    length:varint, attributes:i8, timestamp delta:varint, offset delta:varint, key length:varint (-1 null), key,
    value length:varint (-1 null), value, headers:varint, n x (name length:varint, name,
    value length:varint (-1 null), value)

No object is made for a record that has a key of at most 255 bytes (or none), a value and no headers. The same source
runs as plain Python; two functions are C, in the declarations beside it, or those of ``record_bytes``.
"""

# ruff: noqa: F821 - ql_crc32c and ql_copy are C, in the declarations

from __future__ import annotations

from typing import TypeAlias

from engine.formats.batch import BatchWriter, RecordCursor
from engine.formats.record import Marks

from . import record_bytes
from .limits import FETCHED_BATCH_BYTES, FETCHED_OBJECTS_MAX, HEADERS_MAX, PACKED_OBJECTS_MAX
from .record_errors import INVALID_RECORD, TOO_LARGE, RecordsError

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

_BATCH_HEADER = 61
_NO_TIME = 1 << 63  # a negative timestamp: there is none, or none that the log can hold
_U64_MAX = (1 << 64) - 1
_HEADERS_MAX = HEADERS_MAX
_BATCH_BYTES = FETCHED_BATCH_BYTES
_OBJECTS_MAX = FETCHED_OBJECTS_MAX
_PACKED_OBJECTS = PACKED_OBJECTS_MAX
_RECORD_ROOM = 46  # of a record on the wire but key, value and headers: length, and seven varints
_OFFSETS_MAX = (1 << 31) - 2


def crc32c(src: Buffer, start: int, end: int, tables: bool = False) -> int:
    """CRC32C (Castagnoli) of ``src[start:end]``.

    The processor has an instruction for it (SSE4.2); else, or when asked to, it is done by tables, 8 bytes at a time.
    """
    if start < 0 or end < start or end > len(src):
        raise ValueError("range outside the source")
    if tables:
        return ql_crc32c_by_tables(src, start, end - start)  # type: ignore[name-defined,no-any-return]
    return ql_crc32c(src, start, end - start)  # type: ignore[name-defined,no-any-return]


class RecordWalk:
    """The records of one unpacked batch, one after the other, each checked when it is reached.

    Attributes:
        index: how many were reached; the last of them is the current one.
        key_start, key_size, value_start, value_size: where it lies in the buffer; size -1: null.
        timestamp: its time in ms, as a u64; from 2^63 on there is none.
        headers_start, headers: where its headers begin, and how many.
        held: the current one is still to be taken.
        objects: headers, and records that a message has no place for, as far as `check_walk` has come.
    """

    def __init__(self, data: Buffer, start: int, end: int, count: int, base_timestamp_ms: int) -> None:
        if start < 0 or end < start or end > len(data):
            raise ValueError("range outside the source")
        self.data = data
        self.window = memoryview(data)
        self.position = start
        self.end = end
        self.count = count
        self.base_timestamp = base_timestamp_ms & _U64_MAX
        self.index = 0
        self.held = False
        self.objects = 0
        self.key_start = 0
        self.key_size = 0
        self.value_start = 0
        self.value_size = 0
        self.timestamp = 0
        self.headers_start = 0
        self.headers = 0
        self.at = start
        self.stop = end

    def next(self) -> bool:
        """Goes on to the next record; False behind the last one. Raises RecordsError: there is none, or more."""
        if self.index == self.count:
            if self.position != self.end:
                raise RecordsError(INVALID_RECORD, "bytes behind the last record")
            return False
        self.at = self.position
        self.stop = self.end
        size = self.small()
        if size < 0 or size > self.end - self.at:
            raise self.invalid("is cut short")
        self.stop = self.at + size
        self.at += 1  # attributes: none are known
        delta = self.varint(64)
        self.timestamp = (self.base_timestamp + (delta >> 1 ^ -(delta & 1))) & _U64_MAX
        offset = self.small()
        self.key_size = self.field()
        self.key_start = self.at - (self.key_size if self.key_size > 0 else 0)
        self.value_size = self.field()
        self.value_start = self.at - (self.value_size if self.value_size > 0 else 0)
        self.headers = self.small()
        self.headers_start = self.at
        if self.headers:
            self.pass_headers()
        if self.at != self.stop:
            raise self.invalid("has another length" if self.at < self.stop else "is cut, or has too long a varint")
        if offset != self.index:
            raise self.invalid("has another offset delta")
        self.position = self.at
        self.index += 1
        return True

    def invalid(self, problem: str) -> RecordsError:
        """What is raised about the record that was to be the next one."""
        return RecordsError(INVALID_RECORD, f"record {self.index} {problem}")

    def pass_headers(self) -> None:
        """Checks the headers of the record, and goes behind them."""
        if self.headers < 0 or self.headers > _HEADERS_MAX:
            raise self.invalid(f"has {self.headers} headers")
        for _ in range(self.headers):
            if self.field() < 0:
                raise self.invalid("has a header without a name")
            self.field()

    # These three are short, and go behind `stop` where there is no such thing; `next` looks once, in the end.

    def field(self) -> int:
        """Goes behind a field with its length before it; the length, -1: null."""
        size = self.small()
        if size > 0:
            self.at += size
        elif size < -1:
            self.at = self.stop + 1
        return size

    def small(self) -> int:
        """The zigzag varint of 32 bits at ``at``, which is then behind it."""
        if self.at < self.stop:
            byte = self.data[self.at]
            if byte < 0x80:
                self.at += 1
                return (byte >> 1) ^ -(byte & 1)
        value = self.varint(32)
        return (value >> 1) ^ -(value & 1)

    def varint(self, bits: int) -> int:
        """The varint at ``at`` as it is written; 0 where there is none."""
        value = 0
        shift = 0
        at = self.at
        while at < self.stop and shift < bits:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift + 7 > bits and byte >> (bits - shift):
                    break
                self.at = at
                return value
            shift += 7
        self.at = self.stop + 1
        return 0

    def is_plain(self) -> bool:
        """Whether a message can hold all of the current record."""
        return self.headers == 0 and self.value_size >= 0 and self.key_size != 0 and self.key_size <= 255

    def stored_size(self) -> int:
        """Bytes of the current record that count as its size: value, headers, and a key beyond the usual."""
        size = self.position - self.headers_start
        if self.value_size > 0:
            size += self.value_size
        if self.key_size > 255:
            size += self.key_size
        return size

    def room(self) -> int:
        """What to ask a partition's writer for, so that the current record fits."""
        return 2 * (self.position - self.value_start) + 2 * self.key_size + 16 * self.headers + 128

    def header_list(self) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
        """Headers of the current record (name, value, ...), and the places of those whose value is null."""
        data = self.window
        flat = []
        nulls = []
        self.at = self.headers_start
        self.stop = self.position
        for index in range(self.headers):
            size = self.field()
            flat.append(bytes(data[self.at - size : self.at]))
            size = self.field()
            if size < 0:
                nulls.append(index)
                size = 0
            flat.append(bytes(data[self.at - size : self.at]))
        return tuple(flat), tuple(nulls)


def check_walk(walk: RecordWalk, record_bytes_max: int, records_max: int) -> bool:
    """Walks on by so many records: whether there may be more. Raises RecordsError: one is not valid, or larger."""
    stop = walk.index + records_max
    while walk.index < stop:
        if not walk.next():
            return False
        if walk.stored_size() > record_bytes_max:
            raise RecordsError(TOO_LARGE, f"a record of more than {record_bytes_max} bytes")
        if not walk.is_plain():
            walk.objects += 1 + walk.headers
    return True


def pack_records(walk: RecordWalk, writer: BatchWriter, stop: int, now_ms: int) -> tuple[int, int, bool]:
    """Puts records into ``writer`` until ``stop`` of the batch were reached, or there is no room, or it takes long.

    One for which there is no room is held; the next call begins with it. Those without a time get ``now_ms``.

    Returns:
        (records taken, bytes of their keys and values, whether the writer had no room).
    """
    count = 0
    total = 0
    objects = 0
    while walk.held or walk.index < stop:
        if not walk.held:
            walk.next()
        timestamp = walk.timestamp
        if timestamp >= _NO_TIME:
            timestamp = now_ms
        walk.held = True
        key_size = walk.key_size if walk.key_size > 0 else 0
        if walk.is_plain():
            if not writer.put_span(
                walk.data,
                walk.value_start,
                walk.value_start + walk.value_size,
                walk.key_start,
                walk.key_start + key_size,
                timestamp,
            ):
                return count, total, True
        elif objects > _PACKED_OBJECTS:
            break
        elif not put_marked(walk, writer, timestamp):
            return count, total, True
        else:
            objects += 1 + walk.headers
        walk.held = False
        total += key_size + walk.stored_size()
        count += 1
    return count, total, False


def put_marked(walk: RecordWalk, writer: BatchWriter, timestamp_ms: int) -> bool:
    """Puts a record with headers, or that a message cannot hold. False: no room."""
    data = walk.window
    flat, null_headers = walk.header_list() if walk.headers else ((), ())
    key = bytes(data[walk.key_start : walk.key_start + walk.key_size]) if walk.key_size >= 0 else None
    value = data[walk.value_start : walk.value_start + max(walk.value_size, 0)]
    is_odd_key = key is not None and not 0 < len(key) <= 255
    marks = None
    if walk.value_size < 0 or is_odd_key or null_headers:
        marks = Marks(walk.value_size < 0, key if is_odd_key else None, null_headers)
    return writer.put_record(value, b"" if is_odd_key or key is None else key, timestamp_ms, flat, marks)


class RecordBuilder:
    """Writes batches of records, one after the other, into a buffer of its own.

    Attributes:
        used: bytes of whole batches, and of the open one.
        records: how many there are.
    """

    def __init__(self, size_bytes: int) -> None:
        self.buffer = bytearray(size_bytes)
        self.size = size_bytes
        self.used = 0
        self.records = 0
        self.start = -1
        self.base_seq = 0
        self.last_seq = 0
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = 0

    def make_room(self, size_bytes: int) -> None:
        """Sees to it that so many bytes more fit."""
        if self.used + size_bytes > self.size:
            self.size = max(self.used + size_bytes, 2 * self.size)
            self.buffer += bytes(self.size - len(self.buffer))

    def begin(self, seq: int, timestamp_ms: int, size_bytes: int) -> None:
        """Ends the open batch if a record of this size does not go into it, and begins one if none is open."""
        if self.start >= 0 and (
            self.used - self.start + size_bytes > _BATCH_BYTES or seq - self.base_seq > _OFFSETS_MAX
        ):
            self.end_batch()
        if self.start < 0:
            self.make_room(_BATCH_HEADER + size_bytes)
            self.start = self.used
            self.used += _BATCH_HEADER
            self.base_seq = seq
            self.base_timestamp = timestamp_ms
            self.max_timestamp = timestamp_ms
            self.count = 0
        else:
            self.make_room(size_bytes)

    def put(self, cursor: RecordCursor, key_size: int, key: bytes | None, value_size: int, headers: bytes) -> None:
        """Adds the cursor's record, for which `begin` has made room.

        Args:
            key_size, value_size: -1: null.
            key: one that the message does not have.
            headers: with their count before them.
        """
        timestamp = clamped(cursor.timestamp)
        delta = timestamp - self.base_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        offset = cursor.seq - self.base_seq
        header_bytes = len(headers)
        size = 1 + zigzag_size(delta) + zigzag_size(offset) + zigzag_size(key_size) + zigzag_size(value_size)
        size += header_bytes
        if key_size > 0:
            size += key_size
        if value_size > 0:
            size += value_size
        out = self.buffer
        at = put_zigzag(out, self.used, size)
        out[at] = 0
        at = put_zigzag(out, at + 1, delta)
        at = put_zigzag(out, at, offset)
        at = put_zigzag(out, at, key_size)
        if key_size > 0:
            if key is None:
                at = ql_copy(out, at, cursor.data, cursor.key_start, key_size)  # type: ignore[name-defined]
            else:
                at = ql_copy(out, at, key, 0, key_size)  # type: ignore[name-defined]
        at = put_zigzag(out, at, value_size)
        if value_size > 0:
            at = ql_copy(out, at, cursor.data, cursor.value_start, value_size)  # type: ignore[name-defined]
        if header_bytes == 1:
            out[at] = 0
            at += 1
        else:
            at = ql_copy(out, at, headers, 0, header_bytes)  # type: ignore[name-defined]
        self.used = at
        self.count += 1
        self.records += 1
        self.last_seq = cursor.seq

    def end_batch(self) -> None:
        """Writes the header of the open batch, if there is one."""
        if self.start < 0:
            return
        out = self.buffer
        at = put_number(out, self.start, self.base_seq, 8)
        at = put_number(out, at, self.used - self.start - 12, 4)
        at = put_number(out, at, 0xFFFF_FFFF, 4)  # leader epoch: none
        out[at] = 2
        at = put_number(out, at + 5, 0, 2)
        at = put_number(out, at, self.last_seq - self.base_seq, 4)
        at = put_number(out, at, self.base_timestamp, 8)
        at = put_number(out, at, self.max_timestamp, 8)
        at = put_number(out, at, 0xFFFF_FFFF_FFFF_FFFF, 8)  # producer, its epoch and its sequence: none
        at = put_number(out, at, 0xFFFF_FFFF_FFFF_FFFF, 6)
        put_number(out, at, self.count, 4)
        put_number(out, self.start + 17, ql_crc32c(self.buffer, self.start + 21, self.used - self.start - 21), 4)  # type: ignore[name-defined]
        self.start = -1


def build_records(batches: Buffer, from_seq: int, bytes_max: int) -> tuple[memoryview, int, int]:
    """Batches of the records from ``from_seq`` on; about ``bytes_max``, at least one record if there is any.

    Args:
        batches: verified whole batches of the log.

    Returns:
        (bytes, number to go on with, records taken).

    Raises:
        BatchError, BundleError: the batches were not written by us.
    """
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    size = len(batches) + (len(batches) >> 3) + 256  # records are about as long there as here
    builder = RecordBuilder(size if size < bytes_max else bytes_max)
    next_seq = from_seq
    objects = 0
    none = b"\x00"
    while cursor.next():
        if cursor.is_plain():
            value_size = cursor.value_end - cursor.value_start
            key_size = cursor.key_end - cursor.key_start
            size = value_size + key_size + _RECORD_ROOM
            if builder.records and builder.used + size > bytes_max:
                break
            builder.begin(cursor.seq, clamped(cursor.timestamp), size)
            builder.put(cursor, key_size if key_size else -1, None, value_size, none)
        else:
            objects += 1
            if objects > _OBJECTS_MAX or not put_odd(builder, cursor, bytes_max):
                break
        next_seq = cursor.seq + 1
    builder.end_batch()
    del builder.buffer[builder.used :]  # it may be long until the client has read the rest
    return memoryview(builder.buffer), next_seq, builder.records


def put_odd(builder: RecordBuilder, cursor: RecordCursor, bytes_max: int) -> bool:
    """Adds a record of a batch that has headers or marks. False: it does not go into ``bytes_max``."""
    marks = cursor.marks() or Marks()
    headers = packed_headers(cursor.headers(), marks.null_headers)
    key_size = len(marks.key) if marks.key is not None else cursor.key_end - cursor.key_start or -1
    value_size = -1 if marks.is_null else cursor.value_end - cursor.value_start
    size = max(key_size, 0) + max(value_size, 0) + len(headers) + _RECORD_ROOM
    if builder.records and builder.used + size > bytes_max:
        return False
    builder.begin(cursor.seq, clamped(cursor.timestamp), size)
    builder.put(cursor, key_size, marks.key, value_size, headers)
    return True


def packed_headers(flat: tuple[bytes, ...], nulls: tuple[int, ...]) -> bytes:
    """Headers as they are on the wire, with their count; a last name without a value has an empty one."""
    count = (len(flat) + 1) // 2
    out = bytearray(5 + sum(map(len, flat)) + 10 * count)
    at = put_zigzag(out, 0, count)
    for index, part in enumerate(flat):
        if index & 1 and index >> 1 in nulls:
            at = put_zigzag(out, at, -1)
        else:
            at = put_zigzag(out, at, len(part))
            out[at : at + len(part)] = part
            at += len(part)
    if len(flat) & 1:
        at = put_zigzag(out, at, 0)
    return bytes(out[:at])


def clamped(timestamp_ms: int) -> int:
    """A time of the log as one of the protocol, which has a bit less."""
    return timestamp_ms if timestamp_ms < _NO_TIME else _NO_TIME - 1


def zigzag_size(value: int) -> int:
    """Bytes of a zigzag varint."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    size = 1
    while left >= 0x80:
        left >>= 7
        size += 1
    return size


def put_zigzag(out: bytearray, position: int, value: int) -> int:
    """Writes a zigzag varint; the position after it."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    while left >= 0x80:
        out[position] = left & 0x7F | 0x80
        left >>= 7
        position += 1
    out[position] = left
    return position + 1


def put_number(out: bytearray, position: int, value: int, size: int) -> int:
    """Writes a big-endian number of ``size`` bytes; the position after it."""
    for index in range(size):
        out[position + index] = value >> 8 * (size - 1 - index) & 0xFF
    return position + size


def first_at_time(batches: Buffer, from_seq: int, timestamp_ms: int) -> tuple[int, int] | None:
    """Number and time of the first record from ``from_seq`` on that is not older; None: there is none."""
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    while cursor.next():
        if cursor.timestamp >= timestamp_ms:
            return cursor.seq, clamped(cursor.timestamp)
    return None


def latest_in(batches: Buffer, from_seq: int) -> tuple[int, int] | None:
    """Number and time of the newest record from ``from_seq`` on, the first of several; None: there is none."""
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    found = False
    seq = 0
    timestamp = 0
    while cursor.next():
        if not found or cursor.timestamp > timestamp:
            found = True
            seq = cursor.seq
            timestamp = cursor.timestamp
    return (seq, clamped(timestamp)) if found else None


if not COMPILED:
    globals().update(ql_copy=record_bytes.copy, ql_crc32c=record_bytes.crc32c, ql_crc32c_by_tables=record_bytes.crc32c)
