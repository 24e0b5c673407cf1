"""The twin of `engine.formats.bundle` for where nothing is compiled: same names, same results; documented there."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from struct import Struct
from typing import TypeAlias

from cramjam import DecompressionError, snappy

from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BundleError, Record
from engine.limits import BUNDLE_COUNT_MAX, BUNDLE_UNPACKED_BYTES_MAX, SNAPPY_INPUT_BYTES_MIN, SNAPPY_OUTPUT_BYTES_MAX

__all__ = ["COMPILED", "BundleInfo", "check_bundle", "decode_bundle", "encode_bundle"]

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = False

TIMESTAMP = itemgetter(1)  # in a row of Bundle.messages()
U64 = Struct("<Q").unpack_from


class BundleInfo:
    __slots__ = ("codec", "count", "first_seq", "last_seq", "max_timestamp_ms", "sparse")

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


class Bundle:
    """The head of one bundle, and its message set, unpacked when `unpack` was called."""

    __slots__ = ("codec", "count", "data", "end", "first_seq", "last_seq", "sparse", "start")

    def __init__(self, src: Buffer, start: int, end: int, first_seq: int) -> None:
        if start < 0 or end > len(src) or end <= start:
            raise BundleError("no bytes")
        flags = src[start]
        position = start + 1
        if flags & 0x82:
            raise BundleError(f"unknown flags {flags:#x}")
        count = flags >> 2 & 15
        if not count:
            count, position = varint(src, position, end)
            if not count:
                raise BundleError("no messages")
        span = count - 1
        if flags & 0x40:
            if end - position < 8:
                raise BundleError("cut in a number")
            (first_seq,) = U64(src, position)
            position += 8
            if count > 1:
                span, position = varint(src, position, end)
                span += 1
                if span < count - 1:
                    raise BundleError("sequence numbers do not fit the count")
        self.last_seq = first_seq + span
        if self.last_seq >> 64:
            raise BundleError("sequence numbers above 64 bits")
        self.codec = flags & 3
        self.sparse = flags & 0x40 != 0
        self.count = count
        self.first_seq = first_seq
        self.data = src
        self.start = position
        self.end = end

    def unpack(self, unpacked_bytes_max: int) -> None:
        if self.codec == 1:
            packed_bytes = self.end - self.start
            size, _ = varint(self.data, self.start, self.end)
            if size > unpacked_bytes_max:
                raise BundleError(f"unpacks to {size} bytes, more than {unpacked_bytes_max}")
            if size * SNAPPY_INPUT_BYTES_MIN > packed_bytes * SNAPPY_OUTPUT_BYTES_MAX:
                raise BundleError(f"{packed_bytes} bytes cannot unpack to {size}")
            try:
                self.data = bytes(snappy.decompress_raw(memoryview(self.data)[self.start : self.end]))
            except DecompressionError as error:
                raise BundleError(str(error)) from None
            self.start = 0
            self.end = size
        if self.end - self.start < 2 * self.count:
            raise BundleError("fewer bytes than messages need")

    def messages(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Of each message: seq, timestamp, start and end of the key, start and end of the value."""
        data, position, end = self.data, self.start, self.end
        seq, sparse = self.first_seq, self.sparse
        left = count = self.count
        timestamp = 0
        try:
            while left:
                flags = data[position]
                position += 1
                if left != count:
                    if sparse:
                        seq, position = self.sparse_seq(flags, position, seq + 1, left)
                    else:
                        seq += 1
                if not flags & 2:
                    if end - position < 8:
                        raise BundleError("cut in a number")
                    (timestamp,) = U64(data, position)
                    position += 8
                elif left == count:
                    raise BundleError("first message without a timestamp")
                key_start = key_end = position
                if flags & 1:
                    key_start += 1
                    position = key_end = key_start + data[position]
                size = data[position]
                position += 1
                if size >= 0x80:
                    size, position = varint(data, position - 1, end)
                value_end = position + size
                if value_end > end:
                    raise BundleError("cut in a message")
                left -= 1
                if not left and value_end != end:
                    raise BundleError("bytes behind the last message")
                yield seq, timestamp, key_start, key_end, position, value_end
                position = value_end
        except IndexError:
            raise BundleError("cut in a message") from None

    def sparse_seq(self, flags: int, position: int, follows: int, left: int) -> tuple[int, int]:
        if flags & 4:
            seq = follows
        elif left == 1:
            seq = self.last_seq
        else:
            skipped, position = varint(self.data, position, self.end)
            seq = follows + skipped
        if seq < follows or self.last_seq - seq < left - 1:
            raise BundleError("sequence numbers do not rise")
        if left == 1 and seq != self.last_seq:
            raise BundleError("last sequence number is not the stated one")
        return seq, position


def varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift <= 28:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                break
            return value, position
        shift += 7
    raise BundleError("cut or overlong varint")


class MessageCursor:
    def __init__(self) -> None:
        self.data: Buffer = b""
        self.value_start = 0
        self.value_end = 0
        self.key_start = 0
        self.key_end = 0
        self.seq = 0
        self.timestamp = 0
        self.from_seq = 0
        self.rows: Iterator[tuple[int, int, int, int, int, int]] = iter(())

    def next(self) -> bool:
        for row in self.rows:
            self.seq, self.timestamp, self.key_start, self.key_end, self.value_start, self.value_end = row
            if self.seq >= self.from_seq:
                return True
        return False


def check_bundle(
    src: Buffer,
    start: int,
    end: int,
    unpacked_bytes_max: int = BUNDLE_UNPACKED_BYTES_MAX,
    count_max: int = BUNDLE_COUNT_MAX,
) -> BundleInfo:
    bundle = Bundle(src, start, end, 0)
    if bundle.count > count_max:
        raise BundleError(f"{bundle.count} messages, more than {count_max}")
    bundle.unpack(unpacked_bytes_max)
    max_timestamp = max(map(TIMESTAMP, bundle.messages()))
    if not bundle.sparse:
        return BundleInfo(bundle.count, 0, 0, max_timestamp, False, bundle.codec)
    return BundleInfo(bundle.count, bundle.first_seq, bundle.last_seq, max_timestamp, True, bundle.codec)


def decode_bundle(src: Buffer, start: int, end: int, first_seq: int) -> list[Record]:
    bundle = Bundle(src, start, end, first_seq)
    bundle.unpack(BUNDLE_UNPACKED_BYTES_MAX)
    data = memoryview(bundle.data)
    return [
        Record(seq, timestamp, bytes(data[key_start:key_end]), bytes(data[start:end]))
        for seq, timestamp, key_start, key_end, start, end in bundle.messages()
    ]
