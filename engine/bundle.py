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

from collections.abc import Sequence
from typing import TypeAlias

from cramjam import DecompressionError, snappy

from engine.limits import (
    BUNDLE_UNPACKED_BYTES_MAX,
    SNAPPY_INPUT_BYTES_MIN,
    SNAPPY_OUTPUT_BYTES_MAX,
)
from engine.record import BundleError, Record

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

_SPARSE = 0x40
_HAS_KEY = 1
_SAME_TIMESTAMP = 2
_SEQ_FOLLOWS = 4


class BundleInfo:
    """What the head of a valid bundle says, and the highest timestamp in it.

    ``first_seq`` and ``last_seq`` are 0 unless ``sparse``.
    """

    def __init__(
        self, count: int, first_seq: int, last_seq: int, max_timestamp_ms: int, sparse: bool, codec: int
    ) -> None:
        self.count = count
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.max_timestamp_ms = max_timestamp_ms
        self.sparse = sparse
        self.codec = codec

    def __repr__(self) -> str:
        return (
            f"BundleInfo(count={self.count}, first_seq={self.first_seq}, last_seq={self.last_seq}, "
            f"max_timestamp_ms={self.max_timestamp_ms}, sparse={self.sparse}, codec={self.codec})"
        )


class MessageCursor:
    """Walks the messages of one bundle, unpacking it first if need be; no object is made for a message.

    ``next()`` moves to the next message and says whether there was one. Then ``data[value_start:value_end]`` is its
    value, ``data[key_start:key_end]`` its key (empty: none), ``seq`` and ``timestamp`` (ms) its numbers. ``data`` is
    the buffer given, or the unpacked set of a snappy bundle.
    """

    def __init__(self) -> None:
        self.data: Buffer = b""
        self.value_start = 0
        self.value_end = 0
        self.key_start = 0
        self.key_end = 0
        self.seq = 0
        self.timestamp = 0
        self.from_seq = 0
        self.data_number = 0
        self.unpacked = False
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
        if size > BUNDLE_UNPACKED_BYTES_MAX:
            raise BundleError(f"unpacks to {size} bytes, more than {BUNDLE_UNPACKED_BYTES_MAX}")
        if size * SNAPPY_INPUT_BYTES_MIN > packed_bytes * SNAPPY_OUTPUT_BYTES_MAX:
            raise BundleError(f"{packed_bytes} bytes cannot unpack to {size}")
        try:
            unpacked = snappy.decompress_raw(memoryview(self.data)[position : self.data_end])
        except DecompressionError as error:
            raise BundleError(str(error)) from None
        self.data = memoryview(unpacked)
        self.data_number += 1
        self.unpacked = True
        self.position = 0
        self.data_end = size

    def varint(self, position: int) -> int:
        """The varint at ``data[position:data_end]``; ``self.position`` is then behind it."""
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
        """Sets ``seq`` of a message of a SPARSE bundle whose flags were at ``position - 1``; position behind it.

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


def check_bundle(src: Buffer, start: int, end: int) -> BundleInfo:
    """What the bundle ``src[start:end]`` (without its length varint) says of itself, once it is known to be valid.

    Valid: known flags and codec, at least one message, and a message set that holds exactly as many messages as stated.
    The size that a snappy block announces is checked before anything is allocated for it.

    Raises:
        BundleError: it is not valid.
    """
    cursor = MessageCursor()
    cursor.open(src, start, end)
    first_seq = cursor.seq
    max_timestamp = 0
    while cursor.next():
        if cursor.timestamp > max_timestamp:
            max_timestamp = cursor.timestamp
    if not cursor.sparse:
        return BundleInfo(cursor.count, 0, 0, max_timestamp, False, cursor.codec)
    return BundleInfo(cursor.count, first_seq, cursor.last_seq, max_timestamp, True, cursor.codec)


def decode_bundle(src: Buffer, start: int, end: int, first_seq: int) -> list[Record]:
    """All records of the bundle ``src[start:end]``; ``first_seq`` numbers them unless it is SPARSE.

    Raises:
        BundleError: see `check_bundle`.
    """
    cursor = MessageCursor()
    cursor.open(src, start, end, first_seq)
    data = memoryview(cursor.data)
    records = []
    while cursor.next():
        key = bytes(data[cursor.key_start : cursor.key_end])
        value = bytes(data[cursor.value_start : cursor.value_end])
        records.append(Record(cursor.seq, cursor.timestamp, key, value))
    return records


def encode_bundle(
    values: Sequence[bytes],
    keys: Sequence[bytes] | None,
    timestamps_ms: Sequence[int],
    *,
    sparse_seqs: Sequence[int] | None = None,
    codec: int = 0,
) -> bytes:
    """The canonical (shortest) bundle of these records, without its length varint.

    Args:
        values, keys, timestamps_ms: one of each a record; ``b""`` is no key, None none at all.
        sparse_seqs: rising sequence numbers, which make it a SPARSE bundle.
        codec: 0 as it is, 1 message set compressed with snappy.

    Raises:
        ValueError: no records, lists of different lengths, a key above 255 bytes, numbers that do not rise, or are
            above what the encoding can hold; another codec.
    """
    count = len(values)
    if not count or len(timestamps_ms) != count or (keys is not None and len(keys) != count):
        raise ValueError("not one value, key and timestamp a record")
    if codec not in (0, 1):
        raise ValueError(f"unknown codec {codec}")
    out = bytearray([codec | (_SPARSE if sparse_seqs is not None else 0) | (count << 2 if count < 16 else 0)])
    if count > 15:
        _append_varint(out, count)
    if sparse_seqs is not None:
        if len(sparse_seqs) != count:
            raise ValueError("not one sequence number a record")
        out += sparse_seqs[0].to_bytes(8, "little")
        if count > 1:
            _append_varint(out, sparse_seqs[count - 1] - sparse_seqs[0] - 1)
    messages = out if codec == 0 else bytearray()
    last_timestamp = -1
    for index in range(count):
        key = keys[index] if keys is not None else b""
        timestamp = timestamps_ms[index]
        flags = (_HAS_KEY if key else 0) | (_SAME_TIMESTAMP if timestamp == last_timestamp else 0)
        delta = 0
        if sparse_seqs is not None and index:
            delta = sparse_seqs[index] - sparse_seqs[index - 1] - 1
            if delta < 0:
                raise ValueError("sequence numbers do not rise")
            if delta == 0 and index < count - 1:
                flags |= _SEQ_FOLLOWS
        messages.append(flags)
        if delta and index < count - 1:
            _append_varint(messages, delta)
        if timestamp != last_timestamp:
            messages += timestamp.to_bytes(8, "little")
            last_timestamp = timestamp
        if key:
            messages.append(len(key))
            messages += key
        _append_varint(messages, len(values[index]))
        messages += values[index]
    if codec:
        out += snappy.compress_raw(messages)
    return bytes(out)


def _append_varint(out: bytearray, value: int) -> None:
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{value} is not a 32-bit number")
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
