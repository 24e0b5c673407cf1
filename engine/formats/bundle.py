# cython: annotation_typing=False
"""The bundle: the one encoding of records, on disk and on TANK's wire (tank_encoding.md; the twin is bundle_pure).

Little-endian; varint = LEB128 of a u32, 7 bits a byte, low bits first, at most 5 bytes::

    flags:u8        bit 7 refused ("extra flags", never sent), bit 6 SPARSE, bits 5..2 message count if 1..15 else 0,
                    bits 1..0 codec: 0 none, 1 snappy, 2 and 3 refused
    count:varint    only if bits 5..2 are 0
    if SPARSE:      first sequence number:u64
                    if count > 1: (last - first - 1):varint
    message set     count messages, one after the other; codec 1: the whole set as one raw snappy block

    message         flags:u8 (1 has a key, 2 the timestamp of the message before it, 4 sequence number is previous + 1)
                    SPARSE, neither first nor last, bit 4 not set: (seq - previous seq - 1):varint
                    bit 2 not set: timestamp:u64, ms since 1970
                    bit 1 set: key length:u8, key
                    content length:varint, content

A bundle does not hold its own length: whatever carries bundles puts it before each, as a varint. Messages of a bundle
that is not SPARSE are numbered from a first number that the carrier knows.
"""

from __future__ import annotations

from typing import TypeAlias

from cramjam import DecompressionError, snappy

from engine.formats import bundle_pure
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BundleError, Record
from engine.limits import BUNDLE_COUNT_MAX, BUNDLE_UNPACKED_BYTES_MAX, SNAPPY_INPUT_BYTES_MIN, SNAPPY_OUTPUT_BYTES_MAX

__all__ = ["COMPILED", "BundleInfo", "check_bundle", "decode_bundle", "encode_bundle"]

Buffer: TypeAlias = bytes | bytearray | memoryview

# If not, what this module exports is the twin's.
COMPILED = not __file__.endswith(".py")

_SPARSE = 0x40
_HAS_KEY = 1
_SAME_TIMESTAMP = 2
_SEQ_FOLLOWS = 4


class BundleInfo:
    """What the head of a valid bundle says, and the highest timestamp in it.

    Attributes:
        count: messages, at least 1.
        first_seq, last_seq: numbers of the first and last message; 0 unless ``sparse``.
        max_timestamp_ms: highest timestamp.
        sparse: whether the bundle brings its own numbers.
        codec: 0 none, 1 snappy.
    """

    count: int
    first_seq: int
    last_seq: int
    max_timestamp_ms: int
    sparse: bool
    codec: int

    def __repr__(self) -> str:
        return (
            f"BundleInfo(count={self.count}, first_seq={self.first_seq}, last_seq={self.last_seq}, "
            f"max_timestamp_ms={self.max_timestamp_ms}, sparse={bool(self.sparse)}, codec={self.codec})"
        )


class MessageCursor:
    """Walks the messages of one bundle, unpacking it first if need be; no object is made for a message.

    `next` moves to the next message and says whether there was one. Then ``data[value_start:value_end]`` is its value,
    ``data[key_start:key_end]`` its key (empty: none), ``seq`` and ``timestamp`` (ms) its numbers. ``data`` is the
    buffer given, or the unpacked set of a snappy bundle. After an error the cursor is of no use.
    """

    data: Buffer

    def __init__(self) -> None:
        self.value_start = 0
        self.value_end = 0
        self.key_start = 0
        self.key_end = 0
        self.seq = 0
        self.timestamp = 0
        self.from_seq = 0
        self.unpacked = False
        self.unpacked_bytes_max = BUNDLE_UNPACKED_BYTES_MAX
        self.window: memoryview | None = None
        self.position = 0
        self.data_end = 0
        self.left = 0
        self.count = 0
        self.last_seq = 0
        self.sparse = False
        self.codec = 0

    def open(self, src: Buffer, start: int, end: int, first_seq: int = 0) -> None:
        """Begins with the bundle ``src[start:end]``, without its length varint; see `check_bundle` for the errors."""
        self.data = src
        self.window = None
        self.open_head(start, end, first_seq)
        self.open_set()

    def open_head(self, start: int, end: int, first_seq: int) -> None:
        """Reads the head of the bundle at ``data[start:end]``: count, codec, first and last number."""
        if start < 0 or end > len(self.data) or end <= start:
            raise BundleError("no bytes")
        flags = self.data[start]
        position = start + 1
        self.data_end = end
        if flags & 0x80 or flags & 2:
            raise BundleError(f"unknown flags {flags:#x}")
        self.codec = flags & 3
        self.sparse = flags & _SPARSE != 0
        count = flags >> 2 & 15
        if count == 0:
            count = self.varint(position)
            position = self.position
        if count == 0:
            raise BundleError("no messages")
        self.count = count
        self.left = 0
        if self.sparse:
            first_seq = self.number64(position)
            position += 8
        last_seq = first_seq + (count - 1)
        if self.sparse and count > 1:
            last_seq = first_seq + self.varint(position) + 1
            position = self.position
            if last_seq - first_seq < count - 1:
                raise BundleError("sequence numbers do not fit the count")
        if last_seq < first_seq:
            raise BundleError("sequence numbers above 64 bits")
        self.seq = first_seq
        self.last_seq = last_seq
        self.position = position

    def open_set(self) -> None:
        """Gets ready for the first message: unpacks the set if it is compressed."""
        if self.codec == 1:
            self.unpack()
        size = 2 * self.count
        if self.data_end - self.position < size:
            raise BundleError("fewer bytes than messages need")
        self.left = self.count

    def unpack(self) -> None:
        """Replaces ``data`` by the unpacked set; what it claims to be is checked before anything is allocated."""
        position = self.position
        packed_bytes = self.data_end - position
        size = self.varint(position)
        if size > self.unpacked_bytes_max:
            raise BundleError(f"unpacks to {size} bytes, more than {self.unpacked_bytes_max}")
        if size * SNAPPY_INPUT_BYTES_MIN > packed_bytes * SNAPPY_OUTPUT_BYTES_MAX:
            raise BundleError(f"{packed_bytes} bytes cannot unpack to {size}")
        try:
            unpacked = snappy.decompress_raw(memoryview(self.data)[position : self.data_end])
        except DecompressionError as error:
            raise BundleError(str(error)) from None
        self.data = memoryview(unpacked)
        self.window = None
        self.unpacked = True
        self.position = 0
        self.data_end = size

    def varint(self, position: int) -> int:
        """The varint at ``data[position:data_end]``; ``self.position`` is then after it."""
        value = 0
        shift = 0
        while position < self.data_end:
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift == 28 and byte > 0x0F:
                    break
                self.position = position
                return value
            shift += 7
            if shift > 28:
                break
        raise BundleError("cut or overlong varint")

    def number64(self, position: int) -> int:
        """The little-endian u64 at ``data[position:data_end]``."""
        if self.data_end - position < 8:
            raise BundleError("cut in a number")
        value = 0
        for index in range(8):
            byte = self.data[position + index]
            value |= byte << 8 * index
        return value

    def advance(self) -> bool:
        """Opens what comes after a bundle; False when nothing does."""
        return False

    def next(self) -> bool:
        """Moves to the next message with a number of at least ``from_seq``; False when there is none.

        Raises:
            BundleError: there is no message where the bundle says so, or bytes are left behind the last one.
        """
        while True:
            if self.left == 0 and not self.advance():
                return False
            position = self.position
            if self.data_end - position < 2:
                raise BundleError("cut before a message")
            flags = self.data[position]
            position += 1
            if self.sparse:
                position = self.sparse_seq(flags, position)
            elif self.left != self.count:
                self.seq += 1
            if not flags & _SAME_TIMESTAMP:
                self.timestamp = self.number64(position)
                position += 8
            elif self.left == self.count:
                raise BundleError("first message without a timestamp")
            self.key_start = position
            self.key_end = position
            if position >= self.data_end:
                raise BundleError("cut in a message")
            if flags & _HAS_KEY:
                self.key_start = position + 1
                self.key_end = position = position + 1 + self.data[position]
                if position >= self.data_end:
                    raise BundleError("cut in a key")
            size = self.data[position]
            position += 1
            if size >= 0x80:
                size = self.varint(position - 1)
                position = self.position
            if size > self.data_end - position:
                raise BundleError("cut in a value")
            self.value_start = position
            self.value_end = self.position = position + size
            self.left -= 1
            if self.left == 0 and self.position != self.data_end:
                raise BundleError("bytes behind the last message")
            if self.seq >= self.from_seq:
                return True

    def sparse_seq(self, flags: int, position: int) -> int:
        """Sets ``seq`` of a message of a SPARSE bundle whose flags were at ``position - 1``; position after it.

        Readers look in this order: first of the set, bit 4, last of the set, difference.
        """
        if self.left == self.count:
            return position
        follows = self.seq + 1
        if flags & _SEQ_FOLLOWS:
            self.seq = follows
        elif self.left == 1:
            self.seq = self.last_seq
        else:
            self.seq = follows + self.varint(position)
            position = self.position
        if self.seq < follows or self.last_seq - self.seq < self.left - 1 or self.seq > self.last_seq:
            raise BundleError("sequence numbers do not rise")
        if self.left == 1 and self.seq != self.last_seq:
            raise BundleError("last sequence number is not the stated one")
        return position

    def part(self, start: int, end: int) -> bytes:
        """A copy of ``data[start:end]``."""
        if start == end:
            return b""
        if self.window is None:
            self.window = memoryview(self.data)
        return bytes(self.window[start:end])


def check_bundle(
    src: Buffer,
    start: int,
    end: int,
    unpacked_bytes_max: int = BUNDLE_UNPACKED_BYTES_MAX,
    count_max: int = BUNDLE_COUNT_MAX,
) -> BundleInfo:
    """What the bundle ``src[start:end]`` (without its length varint) says of itself, once it is known to be valid.

    Valid: known flags and codec, at least one message, and a message set that holds exactly as many messages as stated
    and nothing else. The number of messages, at most ``count_max``, and the size that a snappy block announces, at most
    ``unpacked_bytes_max``, are checked before anything is done for them.

    Raises:
        BundleError: it is not valid.
    """
    cursor = MessageCursor()
    cursor.unpacked_bytes_max = unpacked_bytes_max
    cursor.data = src
    cursor.open_head(start, end, 0)
    if cursor.count > count_max:
        raise BundleError(f"{cursor.count} messages, more than {count_max}")
    cursor.open_set()
    first_seq = cursor.seq
    max_timestamp = 0
    while cursor.next():
        if cursor.timestamp > max_timestamp:
            max_timestamp = cursor.timestamp
    info = BundleInfo.__new__(BundleInfo)
    info.count = cursor.count
    info.first_seq = first_seq if cursor.sparse else 0
    info.last_seq = cursor.last_seq if cursor.sparse else 0
    info.max_timestamp_ms = max_timestamp
    info.sparse = cursor.sparse
    info.codec = cursor.codec
    return info


def decode_bundle(src: Buffer, start: int, end: int, first_seq: int) -> list[Record]:
    """All records of the bundle ``src[start:end]``; ``first_seq`` numbers them unless it is SPARSE.

    Raises:
        BundleError: see `check_bundle`.
    """
    cursor = MessageCursor()
    cursor.open(src, start, end, first_seq)
    records = []
    while cursor.next():
        key = cursor.part(cursor.key_start, cursor.key_end)
        value = cursor.part(cursor.value_start, cursor.value_end)
        records.append(Record(cursor.seq, cursor.timestamp, key, value))
    return records


if not COMPILED:
    globals().update({name: getattr(bundle_pure, name) for name in __all__})
