# cython: annotation_typing=False
"""The batch: a checksummed envelope around bundles, and the unit of writing, verifying and damage.

Little-endian. A batch begins at any byte of a segment file::

     0  magic d9 51 4c 42            4  version u8 (1)       5  attributes u8 (bit 0: every record is QoS 0)
     6  padding u8 (0..6)            7  reserved u8 (0)      8  bundles length u32 (with their length varints)
    12  extension length u32        16  first seq u64       24  last seq u64
    32  count u32 (records)         36  reserved u32 (0)    40  max timestamp u64, ms
    48  append time u64, ms         56  durable mark u64    64  transaction id u64
    72  body hash u64               80  header hash u64     88  padding zero bytes, bundles, extension

- A bundle (`engine.formats.bundle`) is preceded by its length as a varint. The first one of a batch has the number
  ``first seq`` or, if SPARSE, brings its own; the next one goes on after the one before it, or brings its own, higher
  one.
- body hash: xxh3-64, seed = the segment's id, of everything after the header. header hash: xxh3-64, seed = that id +
  the batch's position in its file (mod 2**64), of the 80 bytes before it: so a copy of a batch somewhere else, in a
  value for example, is not a batch. All-zero bytes are none either.
- max timestamp: the highest min(record timestamp, append time), so that one record dated far ahead moves nothing.
  Append time never goes backwards in a partition.
- durable mark: position in the file known to be on disk when this batch was written.
- extension: empty, or a msgpack map (`engine.formats.extension`): headers, and what else messages have no place for.

Records of ours are packed, one bundle a batch, in place: room for the longest head (7 bytes: length varint of 4, flags,
count varint of 2) is left behind the header, the head is put right before the messages at the end, and what is over
becomes padding. Bundles that came ready-made (TANK) are put in as they are, several in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from engine.formats import batch_pure
from engine.formats.batch_header import HEADER_BYTES, MAGIC_BYTES, VERSION, BatchHeader, check_body, read_header
from engine.formats.batch_seal import batch_end, locate, number, seal, verify
from engine.formats.bundle import MessageCursor
from engine.formats.extension import SEQUENCE_MASK, Producer, decode_headers, decode_marks, encode_extension
from engine.formats.record import BatchError, Marks, Record
from engine.limits import BATCH_BYTES_TARGET, BUNDLE_BYTES_MAX, BUNDLE_RECORDS_MAX, EXTENSION_BYTES_MAX

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
Target: TypeAlias = bytearray | memoryview

# If not, what this module exports is the twin's.
COMPILED = not __file__.endswith(".py")

HEAD_BYTES = 7  # longest head of a packed bundle: length varint 4, flags 1, count varint 2
PACKED_START = 95  # after header and head
MESSAGE_HEAD_BYTES = 14  # flags, timestamp, length varint of 4, nil in an extension; a key adds its own size and 1
CLOSED = 0  # states of a writer
PACKED = 1
RAW = 2
PRODUCER_BYTES = 32  # of an extension that names a producer: the map, the entry, and the list of headers
MARKS_BYTES = 48  # of a record's marks, at most, but its key and 5 for each null header
NO_PRODUCER = -1
# C variables of the compiled module
HEADER = HEADER_BYTES
MAGIC = int.from_bytes(MAGIC_BYTES, "little")
FORMAT = VERSION
EXTENSION_BOUND = EXTENSION_BYTES_MAX
SEQUENCES = SEQUENCE_MASK


class BatchWriter:
    """Builds batches back to back in one buffer.

    A batch is closed at 255 records, and before a record that would take it above about 64 KiB; a larger record goes
    alone. Packed records and ready-made bundles never share a batch.

    There is room for a record where ``size - position`` is at least 110 + value + key + (if it has headers) 13 + 5 for
    each header + headers + (if it is a producer's) 32 + (if it has marks) 61 + marked key + 5 for each null header, and
    for a bundle where it is at least 92 + bundle.

    Attributes:
        buffer: what it writes into.
        size: end of the room for records: the buffer's length less what the open batch's extension will take.
        position: end of what is written, the open batch included (but for its extension).
        next_seq: number of the next record.
        first_seq: number of the first record in the buffer (``next_seq`` while there is none).
        records, batches: how many there are in closed batches.
        max_timestamp_ms: highest "max timestamp" of closed batches.
        append_time_ms: as set by `begin`.
    """

    def __init__(self, buffer: bytearray, next_seq: int) -> None:
        self.buffer = buffer
        self.view = buffer
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
        self.target_bytes = BATCH_BYTES_TARGET
        self.records_max = BUNDLE_RECORDS_MAX
        self.bundle_bytes_max = BUNDLE_BYTES_MAX
        self.headers: list[tuple[bytes, ...]] = []  # of the first records of the open batch
        self.marks: dict[int, Marks] = {}  # by place in the open batch
        self.producer_id = NO_PRODUCER  # of what is put next
        self.producer_epoch = 0
        self.sequence_offset = 0  # what a record's sequence number is above its number
        self.batch_producer_id = NO_PRODUCER  # of the open batch

    def begin(self, now_ms: int, attributes: int = 0) -> None:
        """Sets append time and attributes of the records that follow; an earlier time than the last is taken as that.

        Other attributes than before end the open batch.
        """
        if attributes > 255:
            raise ValueError("attributes are one byte")
        if attributes != self.attributes:
            self.close_batch()
            self.attributes = attributes
        self.producer_id = NO_PRODUCER
        if now_ms > self.append_time_ms:
            self.append_time_ms = now_ms

    def produce(self, producer_id: int, epoch: int, sequence: int) -> None:
        """What is put from now on, until `begin`, are records of a producer, which counts the first as ``sequence``.

        They share a batch with no others, so that its extension can name them.
        """
        offset = (sequence - self.next_seq) & SEQUENCES
        if self.batch_producer_id != producer_id or self.producer_epoch != epoch or self.sequence_offset != offset:
            self.close_batch()
        self.producer_id = producer_id
        self.producer_epoch = epoch
        self.sequence_offset = offset

    def replace_buffer(self, buffer: bytearray) -> None:
        """Goes on in another, larger buffer: what is written so far is copied to its beginning.

        Raises ValueError if it is not larger.
        """
        if len(buffer) < len(self.buffer):
            raise ValueError("buffer is smaller than the one it replaces")
        memoryview(buffer)[: self.position] = memoryview(self.buffer)[: self.position]
        self.buffer = buffer
        self.view = buffer
        self.size = len(buffer) - self.extension_room

    def put(self, src: Buffer, start: int, end: int) -> bool:
        """Adds the record ``src[start:end]``: no key, its timestamp is the append time.

        False: no room, nothing was added. Raises ValueError if the range does not lie in ``src``.
        """
        size = end - start
        if start < 0 or size < 0 or end > len(src):
            raise ValueError("range outside the source")
        if not self.open_packed(size + MESSAGE_HEAD_BYTES):
            return False
        position = self.put_head(0, self.append_time_ms)
        self.put_value(position, src, start, size)
        return True

    def put_span(
        self, src: Buffer, value_start: int, value_end: int, key_start: int, key_end: int, timestamp_ms: int
    ) -> bool:
        """Adds the record ``src[value_start:value_end]`` with the key ``src[key_start:key_end]`` (empty: none).

        False: no room, nothing was added. Raises ValueError if a range does not lie in ``src``, or the key is longer
        than 255 bytes.
        """
        size = value_end - value_start
        key_size = key_end - key_start
        if value_start < 0 or size < 0 or value_end > len(src) or key_start < 0 or key_end > len(src):
            raise ValueError("range outside the source")
        if key_size < 0 or key_size > 255:
            raise ValueError("key of more than 255 bytes")
        if not self.open_packed(size + key_size + 1 + MESSAGE_HEAD_BYTES):
            return False
        position = self.put_key(src, key_start, key_size, timestamp_ms)
        self.put_value(position, src, value_start, size)
        return True

    def put_record(
        self,
        value: Buffer,
        key: Buffer,
        timestamp_ms: int,
        headers: tuple[bytes, ...] = (),
        marks: Marks | None = None,
    ) -> bool:
        """Adds a record with a key (``b""``: none), a timestamp, headers and marks of its own.

        False: no room, nothing was added. Raises ValueError if the key is longer than 255 bytes, or a record larger
        than a batch can hold.
        """
        size = len(value)
        key_size = len(key)
        if key_size > 255:
            raise ValueError("key of more than 255 bytes")
        need = size + key_size + 1 + MESSAGE_HEAD_BYTES
        if headers or marks is not None:
            if not self.open_extended(need, headers, marks):
                return False
        elif not self.open_packed(need):
            return False
        position = self.put_key(key, 0, key_size, timestamp_ms)
        self.put_value(position, value, 0, size)
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
        """Adds the bundle ``src[start:end]`` (without its length varint) as it is, which `check_bundle` has passed.

        Its records have the numbers first_seq..last_seq, at or above ``next_seq``. False: no room, nothing was added.
        Raises ValueError if range or numbers are impossible.
        """
        size = end - start
        if start < 0 or size <= 0 or end > len(src) or size > self.bundle_bytes_max:
            raise ValueError("range outside the source, or too large")
        if first_seq < self.next_seq or last_seq < first_seq or last_seq - first_seq < count - 1 or count == 0:
            raise ValueError("sequence numbers do not follow, or do not fit the count")
        need = size + 4
        if (
            self.kind != RAW
            or self.position - self.start + need > self.target_bytes
            or (not sparse and first_seq != self.next_seq)
        ):
            self.close_batch()
            if self.size - self.position < HEADER + need:
                return False
            self.open(RAW, HEADER, first_seq)
        elif self.size - self.position < need:
            return False
        if max_timestamp_ms > self.batch_max_timestamp:
            self.batch_max_timestamp = max_timestamp_ms
        position = put_varint(self.view, self.position, size)
        self.position = copy(self.view, position, src, start, size)
        self.count += count
        self.next_seq = last_seq + 1
        return True

    def close_batch(self, extension: bytes = b"") -> None:
        """Ends the open batch, if there is one, with all of its header but what `seal` fills in.

        Raises ValueError if an extension is given that has no room, or that its records' headers already need.
        """
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
        if size > self.size - self.position or size > EXTENSION_BOUND:
            raise ValueError("no room for the extension")
        padding = 0
        if self.kind == PACKED:
            padding = self.put_bundle_head()
        self.put_header(padding, size)
        memoryview(self.buffer)[self.position : self.position + size] = extension
        self.position += size
        self.records += self.count
        self.batches += 1
        self.kind = CLOSED
        self.batch_producer_id = NO_PRODUCER
        self.headers = []
        self.marks = {}

    def own_extension(self) -> bytes:
        """The extension of the open batch, as its records need it."""
        producer = None
        if self.batch_producer_id != NO_PRODUCER:
            first_sequence = (self.batch_first_seq + self.sequence_offset) & SEQUENCES
            producer = Producer(self.batch_producer_id, self.producer_epoch, first_sequence)
        return encode_extension(self.headers, self.marks, producer, self.count)

    def open(self, kind: int, reserved_bytes: int, first_seq: int) -> None:
        """Begins a batch whose messages, or bundles, begin after so many bytes."""
        self.kind = kind
        self.start = self.position
        self.position += reserved_bytes
        self.batch_first_seq = first_seq
        self.batch_max_timestamp = 0
        self.count = 0
        if self.batches == 0:
            self.first_seq = first_seq

    def open_packed(self, need: int) -> bool:
        """Sees to it that a packed batch is open that may take ``need`` more bytes; False: no room for them."""
        if (
            self.kind == PACKED
            and self.count < self.records_max
            and self.producer_id == self.batch_producer_id
            and self.position - self.start + self.extension_room + need <= self.target_bytes
        ):
            return self.size - self.position >= need
        self.close_batch()
        if need > self.bundle_bytes_max - HEAD_BYTES:
            raise ValueError("record larger than a bundle can be")
        room = 0 if self.producer_id == NO_PRODUCER else PRODUCER_BYTES
        if self.size - self.position < PACKED_START + room + need:
            return False
        self.open(PACKED, PACKED_START, self.next_seq)
        self.batch_producer_id = self.producer_id
        self.extension_room = room
        self.size -= room
        return True

    def open_extended(self, need: int, headers: tuple[bytes, ...], marks: Marks | None) -> bool:
        """`open_packed` for a record with headers or marks: they, and room for them, are kept until the batch closes.

        A batch that began without an extension gets none.
        """
        # At most, in msgpack: 8 for the map and the list in it, 5 for each list or byte string.
        if self.extension_room == 0:
            self.close_batch()
        reserve = sum([5 + len(header) for header in headers]) + 5
        if marks is not None:
            reserve += MARKS_BYTES + len(marks.key or b"") + 5 * len(marks.null_headers)
        if reserve > EXTENSION_BOUND - 8:
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
        """Writes flags and, unless it is that of the message before, timestamp; the position after them."""
        position = self.position
        if timestamp_ms == self.timestamp and self.count:
            self.view[position] = flags | 2
            return position + 1
        self.view[position] = flags
        self.timestamp = timestamp_ms
        if timestamp_ms > self.batch_max_timestamp:
            self.batch_max_timestamp = timestamp_ms
        return put_number(self.view, position + 1, timestamp_ms, 8)

    def put_key(self, src: Buffer, start: int, size: int, timestamp_ms: int) -> int:
        """Writes what is before the value of a record with this key (empty: none); the position after it."""
        if not size:
            return self.put_head(0, timestamp_ms)
        position = self.put_head(1, timestamp_ms)
        self.view[position] = size
        return copy(self.view, position + 1, src, start, size)

    def put_value(self, position: int, src: Buffer, start: int, size: int) -> None:
        """Writes length and bytes of a value, and counts the record."""
        position = put_varint(self.view, position, size)
        self.position = copy(self.view, position, src, start, size)
        self.count += 1
        self.next_seq += 1
        if self.extension_room:
            self.extension_room += 1
            self.size -= 1

    def put_bundle_head(self) -> int:
        """Writes the packed bundle's length, flags and count right before its messages; padding before them."""
        count_bytes = 0 if self.count < 16 else 1 if self.count < 128 else 2
        messages = self.start + PACKED_START
        size = self.position - messages + 1 + count_bytes
        length_bytes = 1 if size < 1 << 7 else 2 if size < 1 << 14 else 3 if size < 1 << 21 else 4
        padding = HEAD_BYTES - length_bytes - 1 - count_bytes
        position = self.start + HEADER
        put_number(self.view, position, 0, HEAD_BYTES)
        position = put_varint(self.view, position + padding, size)
        if count_bytes == 0:
            self.view[position] = self.count << 2
        else:
            self.view[position] = 0
            put_varint(self.view, position + 1, self.count)
        return padding

    def put_header(self, padding: int, extension_bytes: int) -> None:
        """Writes the header of the open batch, which ends at ``position``; marks and hashes are zero."""
        timestamp = self.batch_max_timestamp
        if timestamp > self.append_time_ms:
            timestamp = self.append_time_ms
        if timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp
        put_number(self.view, self.start, MAGIC, 4)
        put_number(self.view, self.start + 4, FORMAT | self.attributes << 8 | padding << 16, 4)
        put_number(self.view, self.start + 8, self.position - self.start - HEADER - padding, 4)
        put_number(self.view, self.start + 12, extension_bytes, 4)
        put_number(self.view, self.start + 16, self.batch_first_seq, 8)
        put_number(self.view, self.start + 24, self.next_seq - 1, 8)
        put_number(self.view, self.start + 32, self.count, 8)
        put_number(self.view, self.start + 40, timestamp, 8)
        put_number(self.view, self.start + 48, self.append_time_ms, 8)
        for index in range(56, HEADER, 8):
            put_number(self.view, self.start + index, 0, 8)


def put_number(out: Target, position: int, value: int, size: int) -> int:
    """Writes a little-endian number of ``size`` bytes; the position after it."""
    for index in range(size):
        out[position + index] = value >> 8 * index & 0xFF
    return position + size


def put_varint(out: Target, position: int, value: int) -> int:
    """Writes a varint; the position after it."""
    while value >= 0x80:
        out[position] = value & 0x7F | 0x80
        value >>= 7
        position += 1
    out[position] = value
    return position + 1


def copy(out: Target, position: int, src: Buffer, start: int, size: int) -> int:
    """Copies ``src[start : start + size]`` to ``out[position:]``; the position after it."""
    for index in range(size):
        out[position + index] = src[start + index]
    return position + size


class RecordCursor(MessageCursor):
    """Walks the records of whole batches back to back, whatever their bundles are: dense, SPARSE, snappy.

    It checks everything but hashes (`verify` does), and makes no object for a record::

        cursor = RecordCursor(batches, 0, len(batches), from_seq)
        while cursor.next():  # BatchError, BundleError
            ...  # cursor.data[cursor.value_start : cursor.value_end], cursor.seq, cursor.timestamp, cursor.qos0

    The key is ``data[key_start:key_end]`` (empty: none). ``data`` may be another buffer after each `next`: the batches,
    or an unpacked bundle. A record for which there is no room yet need not be taken: keep the cursor, its fields stay
    as they are until the next `next`.

    From compiled code: ``from engine.formats.batch cimport RecordCursor`` makes all fields C fields and ``data`` a
    typed memoryview. Copy values in a function of the module, ``copy(out, position, cursor.data, cursor.value_start,
    size)`` with typed arguments as `copy` here: then the C compiler makes a block copy of the loop (9 ns a record of
    100 bytes; 50 if the loop is written out where ``cursor.next()`` is called).
    """

    def __init__(self, batches: Buffer, start: int, end: int, from_seq: int = 0) -> None:
        if start < 0 or end > len(batches):
            raise BatchError("range outside the buffer")
        super().__init__()
        self.data = batches
        self.batches = batches
        self.batches_end = end
        self.from_seq = from_seq
        self.batch = start
        self.batch_end = start
        self.bundle = 0
        self.bundles_end = 0
        self.batch_left = 0
        self.batch_count = 0
        self.batch_last_seq = 0
        self.expected_seq = 0
        self.qos0 = False
        self.batch_headers: list[tuple[bytes, ...]] | None = None
        self.batch_marks: dict[int, Marks] | None = None

    def advance(self) -> bool:
        """Opens the next bundle that holds a number of at least ``from_seq``; False after the last batch."""
        while True:
            if self.bundle == self.bundles_end:
                if self.batch_left:
                    raise BatchError("fewer records than the header says")
                if not self.open_batch():
                    return False
            if self.open_bundle():
                return True

    def open_batch(self) -> bool:
        """Begins with the next batch that holds a number of at least ``from_seq``; False after the last one."""
        while self.batch_end < self.batches_end:
            self.batch = self.batch_end
            behind = batch_end(self.batches, self.batch, self.batches_end)
            if behind == 0:
                raise BatchError("not a whole batch")
            self.batch_end = behind
            self.batch_last_seq = number(self.batches, self.batch + 24, 8)
            if self.batch_last_seq < self.from_seq:
                continue
            self.expected_seq = number(self.batches, self.batch + 16, 8)
            self.batch_count = number(self.batches, self.batch + 32, 4)
            self.batch_left = self.batch_count
            self.qos0 = self.batches[self.batch + 5] & 1 != 0
            self.bundle = self.batch + HEADER + self.batches[self.batch + 6]
            self.bundles_end = self.bundle + number(self.batches, self.batch + 8, 4)
            self.batch_headers = None
            self.batch_marks = None
            return True
        return False

    def open_bundle(self) -> bool:
        """Begins with the next bundle of the batch; False if all its numbers are below ``from_seq``."""
        if self.unpacked:
            self.data = self.batches
            self.window = None
            self.unpacked = False
        self.data_end = self.bundles_end
        size = self.varint(self.bundle)
        if size > self.bundles_end - self.position:
            raise BatchError("bundle goes on behind the batch")
        self.bundle = self.position + size
        self.open_head(self.position, self.bundle, self.expected_seq)
        if self.seq < self.expected_seq or (self.batch_left == self.batch_count and self.seq != self.expected_seq):
            raise BatchError("sequence numbers of a bundle do not follow")
        if self.count > self.batch_left or self.last_seq > self.batch_last_seq:
            raise BatchError("more records than the header says")
        self.batch_left -= self.count
        self.expected_seq = self.last_seq + 1
        if self.bundle == self.bundles_end and (self.batch_left or self.last_seq != self.batch_last_seq):
            raise BatchError("fewer records than the header says")
        if self.last_seq < self.from_seq:
            return False
        self.open_set()
        return True

    def headers(self) -> tuple[bytes, ...]:
        """Headers of the current record. Raises BatchError if the batch's extension is not sound."""
        if self.batch_headers is None:
            extension = memoryview(self.batches)[self.bundles_end : self.batch_end]
            self.batch_headers = decode_headers(extension, self.batch_count)
        if not self.batch_headers:
            return ()
        return self.batch_headers[self.batch_count - self.batch_left - self.left - 1]

    def marks(self) -> Marks | None:
        """Marks of the current record, if it has any. Raises BatchError if the batch's extension is not sound."""
        if self.batch_marks is None:
            extension = memoryview(self.batches)[self.bundles_end : self.batch_end]
            self.batch_marks = decode_marks(extension, self.batch_count)
        if not self.batch_marks:
            return None
        return self.batch_marks.get(self.batch_count - self.batch_left - self.left - 1)

    def is_plain(self) -> bool:
        """Whether no record of the current one's batch has headers or marks. Raises BatchError as these do."""
        if self.bundles_end == self.batch_end:
            return True
        self.headers()
        self.marks()
        return not self.batch_headers and not self.batch_marks

    def record(self) -> Record:
        """The current record as an object. Raises BatchError if the batch's extension is not sound."""
        key = self.part(self.key_start, self.key_end)
        value = self.part(self.value_start, self.value_end)
        return Record(self.seq, self.timestamp, key, value, self.headers(), self.qos0, self.marks())


def records(buffer: Buffer, start: int = 0, end: int | None = None, from_seq: int = 0) -> Iterator[Record]:
    """All records with numbers of at least ``from_seq`` in the whole, verified batches of ``buffer[start:end]``.

    Raises:
        BatchError, BundleError: what verified as a batch does not hold what it says, so it was not written by us.
    """
    cursor = RecordCursor(buffer, start, len(buffer) if end is None else end, from_seq)
    while cursor.next():
        yield cursor.record()


if not COMPILED:
    globals().update({name: getattr(batch_pure, name) for name in __all__})
