"""What is handled once for each batch: its header (byte table: `engine.formats.batch`)."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

import xxhash

from engine.limits import BUNDLES_BYTES_MAX, EXTENSION_BYTES_MAX, PADDING_BYTES_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_BYTES = b"\xd9QLB"  # begins with a byte that no text holds
VERSION = 1
HEADER_BYTES = 88
HASHED_HEADER_BYTES = 80
QOS0_ATTRIBUTE = 1  # every record of the batch is QoS 0

HEADER = Struct("<4sBBBBIIQQIIQQQQQQ")
MARKS = Struct("<QQQ")  # durable mark, transaction id, body hash: 24 bytes at 56
MARKS_POSITION = 56
LENGTHS = Struct("<6xBxIIQQ")  # padding, bundles, extension, first and last number
NUMBERS = Struct("<QQ")  # first and last number: 16 bytes at 16
NUMBERS_POSITION = 16
TIME = Struct("<Q")
HIGHEST_TIME_POSITION = 40
APPEND_TIME_POSITION = 48
HASH = Struct("<Q")
SEED_MASK = (1 << 64) - 1


@dataclass(slots=True)
class BatchHeader:
    """A batch header whose hash was right: its fields in the order of the bytes, and where its parts lie.

    ``position`` is where the batch begins in the buffer that was read; ``end`` is where it ends there.
    """

    position: int
    version: int
    attributes: int
    padding_bytes: int
    bundles_bytes: int
    extension_bytes: int
    first_seq: int
    last_seq: int
    count: int
    max_timestamp_ms: int
    append_time_ms: int
    durable_mark: int
    transaction_id: int
    body_hash: int
    header_hash: int

    @property
    def size(self) -> int:
        """Length of the whole batch."""
        return HEADER_BYTES + self.padding_bytes + self.bundles_bytes + self.extension_bytes

    @property
    def end(self) -> int:
        """Position after the batch, in the buffer that the header was read from."""
        return self.position + self.size

    @property
    def bundles_start(self) -> int:
        """Position of the first bundle's length varint."""
        return self.position + HEADER_BYTES + self.padding_bytes

    @property
    def bundles_end(self) -> int:
        """Position after the last bundle: where the extension begins."""
        return self.bundles_start + self.bundles_bytes


def read_header(buffer: Buffer, position: int, segment_id: int, file_position: int) -> BatchHeader | None:
    """The header at ``buffer[position:]``, where ``file_position`` is the segment file's position of that byte.

    None if there is no valid header: too few bytes, wrong magic, version, reserved bytes, sizes or hash. The rest of
    the batch may be missing: compare ``end``, then `check_body`.
    """
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        return None
    magic, version, attributes, padding, reserved, *sizes = HEADER.unpack_from(buffer, position)
    bundles_bytes, extension_bytes, first_seq, last_seq, count, reserved_2, *times = sizes
    max_timestamp, append_time, mark, transaction, body_hash, own_hash = times
    if magic != MAGIC_BYTES or version != VERSION or reserved or reserved_2 or padding > PADDING_BYTES_MAX:
        return None
    if not 0 < bundles_bytes <= BUNDLES_BYTES_MAX or extension_bytes > EXTENSION_BYTES_MAX:
        return None
    if not count or last_seq < first_seq or last_seq - first_seq < count - 1:
        return None
    hashed = memoryview(buffer)[position : position + HASHED_HEADER_BYTES]
    if xxhash.xxh3_64_intdigest(hashed, (segment_id + file_position) & SEED_MASK) != own_hash:
        return None
    return BatchHeader(
        position,
        version,
        attributes,
        padding,
        bundles_bytes,
        extension_bytes,
        first_seq,
        last_seq,
        count,
        max_timestamp,
        append_time,
        mark,
        transaction,
        body_hash,
        own_hash,
    )


def check_body(buffer: Buffer, position: int, header: BatchHeader, segment_id: int) -> bool:
    """Whether all bytes of the batch at ``position`` are there and its body hash is right."""
    end = position + header.size
    if position < 0 or len(buffer) < end:
        return False
    body = memoryview(buffer)[position + HEADER_BYTES : end]
    return int(xxhash.xxh3_64_intdigest(body, segment_id)) == header.body_hash


def renumber(buffer: bytearray, end: int, behind_seq: int, append_time_ms: int) -> None:
    """Moves the numbers of all batches in ``buffer[:end]`` up by ``behind_seq``, and sets their append time:
    the highest timestamp is that of their records until then, and no later than it afterwards.

    For batches that were built from number 1 on and are not sealed yet.
    """
    position = 0
    while position < end:
        padding_bytes, bundles_bytes, extension_bytes, first_seq, last_seq = LENGTHS.unpack_from(buffer, position)
        NUMBERS.pack_into(buffer, position + NUMBERS_POSITION, first_seq + behind_seq, last_seq + behind_seq)
        (highest_ms,) = TIME.unpack_from(buffer, position + HIGHEST_TIME_POSITION)
        TIME.pack_into(buffer, position + HIGHEST_TIME_POSITION, min(highest_ms, append_time_ms))
        TIME.pack_into(buffer, position + APPEND_TIME_POSITION, append_time_ms)
        position += HEADER_BYTES + padding_bytes + bundles_bytes + extension_bytes
