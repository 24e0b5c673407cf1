"""The twin of `engine.formats.batch` for where nothing is compiled: same names, same results; documented there."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from engine.formats.batch_header import (
    HASH,
    HASHED_HEADER_BYTES,
    HEADER,
    HEADER_BYTES,
    MAGIC_BYTES,
    MARKS,
    MARKS_POSITION,
    QOS0_ATTRIBUTE,
    SEED_MASK,
    VERSION,
    BatchHeader,
    check_body,
    read_header,
)
from engine.formats.bundle_pure import Bundle, MessageCursor, varint
from engine.formats.extension import SEQUENCE_MASK, Producer, decode_headers, decode_marks, encode_extension
from engine.formats.record import BatchError, Marks, Record
from engine.limits import (
    BATCH_BYTES_TARGET,
    BUNDLE_BYTES_MAX,
    BUNDLE_RECORDS_MAX,
    BUNDLE_UNPACKED_BYTES_MAX,
    BUNDLES_BYTES_MAX,
    EXTENSION_BYTES_MAX,
    KEY_BYTES_MAX,
    PADDING_BYTES_MAX,
)

__all__ = [
    "COMPILED",
    "HEADER_BYTES",
    "MAGIC_BYTES",
    "BatchHeader",
    "BatchWriter",
    "RecordCursor",
    "check_body",
    "locate",
    "read_header",
    "records",
    "seal",
    "verify",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = False

HEAD_BYTES = 7
MESSAGE_HEAD_BYTES = 14
PRODUCER_BYTES = 32
MARKS_BYTES = 48
NO_PRODUCER = -1
CLOSED = 0
PACKED = 1
RAW = 2

FLAGS_AND_TIMESTAMP = Struct("<BQ").pack_into
SIZES = Struct("<4sBBBBIIQQII")


class BatchWriter:
    def __init__(self, buffer: bytearray, next_seq: int) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer)  # so that its length cannot change
        self.size = len(buffer)
        self.position = 0
        self.next_seq = next_seq
        self.first_seq = next_seq
        self.records = 0
        self.batches = 0
        self.max_timestamp_ms = 0
        self.append_time_ms = 0
        self.kind = CLOSED
        self.start = 0
        self.batch_first_seq = 0
        self.batch_max_timestamp = 0
        self.count = 0
        self.timestamp = 0
        self.attributes = 0
        self.extension_room = 0
        self.headers: list[tuple[bytes, ...]] = []  # of the first records of the open batch
        self.marks: dict[int, Marks] = {}
        self.producer_id = NO_PRODUCER
        self.producer_epoch = 0
        self.sequence_offset = 0
        self.batch_producer_id = NO_PRODUCER

    def begin(self, now_ms: int, attributes: int = 0) -> None:
        if attributes > 255:
            raise ValueError("attributes are one byte")
        if attributes != self.attributes:
            self.close_batch()
            self.attributes = attributes
        self.producer_id = NO_PRODUCER
        if now_ms > self.append_time_ms:
            self.append_time_ms = now_ms

    def produce(self, producer_id: int, epoch: int, sequence: int) -> None:
        offset = (sequence - self.next_seq) & SEQUENCE_MASK
        if (self.batch_producer_id, self.producer_epoch, self.sequence_offset) != (producer_id, epoch, offset):
            self.close_batch()
        self.producer_id = producer_id
        self.producer_epoch = epoch
        self.sequence_offset = offset

    def replace_buffer(self, buffer: bytearray) -> None:
        if len(buffer) < len(self.buffer):
            raise ValueError("buffer is smaller than the one it replaces")
        buffer[: self.position] = self.view[: self.position]
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.size = len(buffer) - self.extension_room

    def put(self, src: Buffer, start: int, end: int) -> bool:
        if start < 0 or end < start or end > len(src):
            raise ValueError("range outside the source")
        if not self.open_packed(end - start + MESSAGE_HEAD_BYTES):
            return False
        self._put_value(self.put_head(0, self.append_time_ms), src[start:end])
        return True

    def put_span(
        self, src: Buffer, value_start: int, value_end: int, key_start: int, key_end: int, timestamp_ms: int
    ) -> bool:
        if not 0 <= value_start <= value_end <= len(src) or key_start < 0 or key_end > len(src):
            raise ValueError("range outside the source")
        if key_end < key_start:
            raise ValueError("key of more than 255 bytes")
        return self.put_record(src[value_start:value_end], src[key_start:key_end], timestamp_ms)

    def put_record(
        self,
        value: Buffer,
        key: Buffer,
        timestamp_ms: int,
        headers: tuple[bytes, ...] = (),
        marks: Marks | None = None,
    ) -> bool:
        if len(key) > KEY_BYTES_MAX:
            raise ValueError("key of more than 255 bytes")
        if timestamp_ms >> 64:
            raise OverflowError("timestamp is not a 64-bit number")
        need = len(value) + len(key) + 1 + MESSAGE_HEAD_BYTES
        if headers or marks is not None:
            if not self.open_extended(need, headers, marks):
                return False
        elif not self.open_packed(need):
            return False
        if key:
            position = self.put_head(1, timestamp_ms)
            self.buffer[position] = len(key)
            self.buffer[position + 1 : position + 1 + len(key)] = key
            position += 1 + len(key)
        else:
            position = self.put_head(0, timestamp_ms)
        self._put_value(position, value)
        return True

    def put_bundle(
        self,
        src: Buffer,
        start: int,
        end: int,
        count: int,
        first_seq: int,
        last_seq: int,
        max_timestamp_ms: int,
        sparse: bool,
    ) -> bool:
        size = end - start
        if start < 0 or size <= 0 or end > len(src) or size > BUNDLE_BYTES_MAX:
            raise ValueError("range outside the source, or too large")
        if first_seq < self.next_seq or last_seq < first_seq or last_seq - first_seq < count - 1 or count <= 0:
            raise ValueError("sequence numbers do not follow, or do not fit the count")
        need = size + 4
        if (
            self.kind != RAW
            or self.position - self.start + need > BATCH_BYTES_TARGET
            or (not sparse and first_seq != self.next_seq)
        ):
            self.close_batch()
            if self.size - self.position < HEADER_BYTES + need:
                return False
            self.open(RAW, HEADER_BYTES, first_seq)
        elif self.size - self.position < need:
            return False
        if max_timestamp_ms > self.batch_max_timestamp:
            self.batch_max_timestamp = max_timestamp_ms
        position = _put_varint(self.buffer, self.position, size)
        self.buffer[position : position + size] = src[start:end]
        self.position = position + size
        self.count += count
        self.next_seq = last_seq + 1
        return True

    def close_batch(self, extension: bytes = b"") -> None:
        if self.kind == CLOSED:
            if extension:
                raise ValueError("no batch is open for the extension")
            return
        if self.headers or self.marks or self.batch_producer_id != NO_PRODUCER:
            if extension:
                raise ValueError("the records' headers are the extension")
            extension = self.own_extension()
        self.size += self.extension_room
        self.extension_room = 0
        size = len(extension)
        if size > self.size - self.position or size > EXTENSION_BYTES_MAX:
            raise ValueError("no room for the extension")
        padding = self.put_bundle_head() if self.kind == PACKED else 0
        self.put_header(padding, size)
        self.buffer[self.position : self.position + size] = extension
        self.position += size
        self.records += self.count
        self.batches += 1
        self.kind = CLOSED
        self.batch_producer_id = NO_PRODUCER
        self.headers = []
        self.marks = {}

    def own_extension(self) -> bytes:
        producer = None
        if self.batch_producer_id != NO_PRODUCER:
            first_sequence = (self.batch_first_seq + self.sequence_offset) & SEQUENCE_MASK
            producer = Producer(self.batch_producer_id, self.producer_epoch, first_sequence)
        return encode_extension(self.headers, self.marks, producer, self.count)

    def open(self, kind: int, reserved_bytes: int, first_seq: int) -> None:
        self.kind = kind
        self.start = self.position
        self.position += reserved_bytes
        self.batch_first_seq = first_seq
        self.batch_max_timestamp = 0
        self.count = 0
        if not self.batches:
            self.first_seq = first_seq

    def open_packed(self, need: int) -> bool:
        if (
            self.kind == PACKED
            and self.count < BUNDLE_RECORDS_MAX
            and self.producer_id == self.batch_producer_id
            and self.position - self.start + self.extension_room + need <= BATCH_BYTES_TARGET
        ):
            return self.size - self.position >= need
        self.close_batch()
        if need > BUNDLE_BYTES_MAX - HEAD_BYTES:
            raise ValueError("record larger than a bundle can be")
        room = 0 if self.producer_id == NO_PRODUCER else PRODUCER_BYTES
        if self.size - self.position < HEADER_BYTES + HEAD_BYTES + room + need:
            return False
        self.open(PACKED, HEADER_BYTES + HEAD_BYTES, self.next_seq)
        self.batch_producer_id = self.producer_id
        self.extension_room = room
        self.size -= room
        return True

    def open_extended(self, need: int, headers: tuple[bytes, ...], marks: Marks | None) -> bool:
        if self.extension_room == 0:
            self.close_batch()
        reserve = sum([5 + len(header) for header in headers]) + 5
        if marks is not None:
            reserve += MARKS_BYTES + len(marks.key or b"") + 5 * len(marks.null_headers)
        if reserve > EXTENSION_BYTES_MAX - 8:
            raise ValueError("headers larger than an extension can be")
        if not self.open_packed(need + 8 + reserve):
            return False
        if self.extension_room == 0:
            reserve += 8
        self.extension_room += reserve
        self.size -= reserve
        if headers:
            self.headers += [()] * (self.count - len(self.headers))
            self.headers.append(headers)
        if marks is not None:
            self.marks[self.count] = marks
        return True

    def put_head(self, flags: int, timestamp_ms: int) -> int:
        position = self.position
        if timestamp_ms == self.timestamp and self.count:
            self.buffer[position] = flags | 2
            return position + 1
        FLAGS_AND_TIMESTAMP(self.buffer, position, flags, timestamp_ms)
        self.timestamp = timestamp_ms
        if timestamp_ms > self.batch_max_timestamp:
            self.batch_max_timestamp = timestamp_ms
        return position + 9

    def _put_value(self, position: int, value: Buffer) -> None:
        size = len(value)
        if size < 0x80:
            self.buffer[position] = size
            position += 1
        else:
            position = _put_varint(self.buffer, position, size)
        self.position = position + size
        self.buffer[position : position + size] = value
        self.count += 1
        self.next_seq += 1
        if self.extension_room:
            self.extension_room += 1
            self.size -= 1

    def put_bundle_head(self) -> int:
        head = bytearray(8)
        end = _put_varint(head, 5, self.count) if self.count > 15 else 5
        head[4] = self.count << 2 if self.count < 16 else 0
        size = self.position - self.start - HEADER_BYTES - HEAD_BYTES + end - 4
        length = bytearray(4)
        length_bytes = _put_varint(length, 0, size)
        padding = HEAD_BYTES - length_bytes - (end - 4)
        position = self.start + HEADER_BYTES
        self.buffer[position : position + HEAD_BYTES] = bytes(padding) + length[:length_bytes] + head[4:end]
        return padding

    def put_header(self, padding: int, extension_bytes: int) -> None:
        timestamp = min(self.batch_max_timestamp, self.append_time_ms)
        self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp)
        HEADER.pack_into(
            self.buffer,
            self.start,
            MAGIC_BYTES,
            VERSION,
            self.attributes,
            padding,
            0,
            self.position - self.start - HEADER_BYTES - padding,
            extension_bytes,
            self.batch_first_seq,
            self.next_seq - 1,
            self.count,
            0,
            timestamp,
            self.append_time_ms,
            *(0, 0, 0, 0),
        )


def _put_varint(out: bytearray, position: int, value: int) -> int:
    while value >= 0x80:
        out[position] = value & 0x7F | 0x80
        value >>= 7
        position += 1
    out[position] = value
    return position + 1


def batch_end(src: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """Where the batch at ``position`` ends (0: no sound header, or past ``end``), its first and last number."""
    if end - position < HEADER_BYTES:
        return 0, 0, 0
    fields = SIZES.unpack_from(src, position)
    magic, version, _, padding, reserved, bundles_bytes, extension_bytes, first_seq, last_seq, count, reserved_2 = (
        fields
    )
    if magic != MAGIC_BYTES or version != VERSION or reserved or reserved_2 or padding > PADDING_BYTES_MAX:
        return 0, 0, 0
    if not 0 < bundles_bytes <= BUNDLES_BYTES_MAX or extension_bytes > EXTENSION_BYTES_MAX:
        return 0, 0, 0
    if not count or last_seq - first_seq < count - 1:
        return 0, 0, 0
    behind = position + HEADER_BYTES + padding + bundles_bytes + extension_bytes
    return (behind, first_seq, last_seq) if behind <= end else (0, 0, 0)


def seal(
    buffer: bytearray | memoryview,
    start: int,
    end: int,
    segment_id: int,
    file_position: int,
    durable_mark: int,
    transaction_id: int = 0,
) -> None:
    view = memoryview(buffer)
    if start < 0 or end > len(view):
        raise BatchError("range outside the buffer")
    position = start
    while position < end:
        behind, _, _ = batch_end(view, position, end)
        if not behind:
            raise BatchError("not a batch")
        body_hash = xxh3_64_intdigest(view[position + HEADER_BYTES : behind], segment_id)
        MARKS.pack_into(view, position + MARKS_POSITION, durable_mark, transaction_id, body_hash)
        seed = segment_id + file_position + position - start & SEED_MASK
        header_hash = xxh3_64_intdigest(view[position : position + HASHED_HEADER_BYTES], seed)
        HASH.pack_into(view, position + HASHED_HEADER_BYTES, header_hash)
        position = behind


def verify(buffer: Buffer, start: int, end: int, segment_id: int, file_position: int) -> tuple[int, int, int]:
    view = memoryview(buffer)
    if start < 0 or end > len(view):
        raise BatchError("range outside the buffer")
    position = start
    lowest_seq = highest_seq = 0
    while position < end:
        behind, first_seq, last_seq = batch_end(view, position, end)
        if not behind or (position > start and first_seq <= highest_seq):
            break
        seed = segment_id + file_position + position - start & SEED_MASK
        hashes = MARKS.unpack_from(view, position + HASHED_HEADER_BYTES - 16)
        if xxh3_64_intdigest(view[position : position + HASHED_HEADER_BYTES], seed) != hashes[2]:
            break
        if xxh3_64_intdigest(view[position + HEADER_BYTES : behind], segment_id) != hashes[1]:
            break
        if position == start:
            lowest_seq = first_seq
        highest_seq = last_seq
        position = behind
    return position, lowest_seq, highest_seq


def locate(buffer: Buffer, start: int, end: int, seq: int) -> int:
    if start < 0 or end > len(buffer):
        raise BatchError("range outside the buffer")
    position = start
    while position < end:
        behind, _, last_seq = batch_end(buffer, position, end)
        if not behind:
            raise BatchError("not a batch")
        if last_seq >= seq:
            break
        position = behind
    return position


class RecordCursor(MessageCursor):
    def __init__(self, batches: Buffer, start: int, end: int, from_seq: int = 0) -> None:
        super().__init__()
        if start < 0 or end > len(batches):
            raise BatchError("range outside the buffer")
        self.data = self.batches = batches
        self.from_seq = from_seq
        self.qos0 = False
        self.batch_count = 0
        self.bundles_end = self.batch_end = start
        self.batch_headers: list[tuple[bytes, ...]] | None = None
        self.batch_marks: dict[int, Marks] | None = None
        self.index = -1
        self.rows = self.walk(start, end)

    def walk(self, position: int, end: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        batches = self.batches
        while position < end:
            start = position
            position, first_seq, last_seq = batch_end(batches, start, end)
            if not position:
                raise BatchError("not a whole batch")
            if last_seq < self.from_seq:
                continue
            fields = HEADER.unpack_from(batches, start)
            self.qos0 = fields[2] & QOS0_ATTRIBUTE != 0
            self.batch_count = left = fields[9]
            bundle = start + HEADER_BYTES + fields[3]
            self.bundles_end = bundles_end = bundle + fields[5]
            self.batch_end = position
            self.batch_headers = self.batch_marks = None
            self.index = -1
            expected_seq = first_seq
            while bundle < bundles_end:
                size, bundle = varint(batches, bundle, bundles_end)
                if size > bundles_end - bundle:
                    raise BatchError("bundle goes on behind the batch")
                opened = Bundle(batches, bundle, bundle + size, expected_seq)
                bundle += size
                if opened.first_seq < expected_seq or (left == self.batch_count and opened.first_seq != first_seq):
                    raise BatchError("sequence numbers of a bundle do not follow")
                left -= opened.count
                expected_seq = opened.last_seq + 1
                if left < 0 or opened.last_seq > last_seq:
                    raise BatchError("more records than the header says")
                if bundle == bundles_end and (left or opened.last_seq != last_seq):
                    raise BatchError("fewer records than the header says")
                if opened.last_seq < self.from_seq:
                    self.index += opened.count
                    continue
                opened.unpack(BUNDLE_UNPACKED_BYTES_MAX)
                self.data = opened.data
                yield from self.counted(opened)

    def counted(self, bundle: Bundle) -> Iterator[tuple[int, int, int, int, int, int]]:
        for row in bundle.messages():
            self.index += 1
            yield row

    def headers(self) -> tuple[bytes, ...]:
        if self.batch_headers is None:
            extension = memoryview(self.batches)[self.bundles_end : self.batch_end]
            self.batch_headers = decode_headers(extension, self.batch_count)
        return self.batch_headers[self.index] if self.batch_headers else ()

    def marks(self) -> Marks | None:
        if self.batch_marks is None:
            extension = memoryview(self.batches)[self.bundles_end : self.batch_end]
            self.batch_marks = decode_marks(extension, self.batch_count)
        return self.batch_marks.get(self.index)

    def is_plain(self) -> bool:
        if self.bundles_end == self.batch_end:
            return True
        self.headers()
        self.marks()
        return not self.batch_headers and not self.batch_marks

    def record(self) -> Record:
        key = bytes(self.data[self.key_start : self.key_end])
        value = bytes(self.data[self.value_start : self.value_end])
        return Record(self.seq, self.timestamp, key, value, self.headers(), self.qos0, self.marks())


def records(buffer: Buffer, start: int = 0, end: int | None = None, from_seq: int = 0) -> Iterator[Record]:
    cursor = RecordCursor(buffer, start, len(buffer) if end is None else end, from_seq)
    while cursor.next():
        yield cursor.record()
