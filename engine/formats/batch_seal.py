# cython: annotation_typing=False
"""Batches as wholes: sealing, verifying, finding (byte table: `engine.formats.batch`, which exports these)."""

from __future__ import annotations

from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from engine.formats.batch_header import HEADER_BYTES, MAGIC_BYTES, SEED_MASK, VERSION
from engine.formats.record import BatchError
from engine.limits import BUNDLES_BYTES_MAX, EXTENSION_BYTES_MAX, PADDING_BYTES_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview
Target: TypeAlias = bytearray | memoryview

COMPILED = not __file__.endswith(".py")

# C variables of the compiled module
HEADER = HEADER_BYTES
MAGIC = int.from_bytes(MAGIC_BYTES, "little")
FORMAT = VERSION
PADDING = PADDING_BYTES_MAX
BUNDLES_BOUND = BUNDLES_BYTES_MAX
EXTENSION_BOUND = EXTENSION_BYTES_MAX
MASK = SEED_MASK


def put_u64(out: Target, position: int, value: int) -> None:
    """Writes a little-endian u64."""
    for index in range(8):
        out[position + index] = value >> 8 * index & 0xFF


def number(src: Buffer, position: int, size: int) -> int:
    """Reads a little-endian number of ``size`` bytes."""
    value = 0
    for index in range(size):
        byte = src[position + index]
        value |= byte << 8 * index
    return value


def batch_end(src: Buffer, position: int, end: int) -> int:
    """Where the batch at ``position`` ends; 0 if no sound header is there, or the batch goes past ``end``.

    Looks at nothing but the header's fields: magic, version, reserved ones, sizes, count and numbers.
    """
    if end - position < HEADER or number(src, position, 4) != MAGIC or number(src, position + 36, 4):
        return 0
    padding = src[position + 6]
    if src[position + 4] != FORMAT or src[position + 7] or padding > PADDING:
        return 0
    bundles_bytes = number(src, position + 8, 4)
    extension_bytes = number(src, position + 12, 4)
    if bundles_bytes == 0 or bundles_bytes > BUNDLES_BOUND or extension_bytes > EXTENSION_BOUND:
        return 0
    count = number(src, position + 32, 4)
    span = number(src, position + 24, 8) - number(src, position + 16, 8)
    if count == 0 or number(src, position + 24, 8) < number(src, position + 16, 8) or span < count - 1:
        return 0
    size = HEADER + padding + bundles_bytes + extension_bytes
    return position + size if size <= end - position else 0


def seal(
    buffer: Target,
    start: int,
    end: int,
    segment_id: int,
    file_position: int,
    durable_mark: int,
    transaction_id: int = 0,
) -> None:
    """Fills marks and both hashes of every batch in ``buffer[start:end]``, which will be at ``file_position``.

    The interpreter is held but for the hashes of large batches: pass about 1 MiB a call.

    Raises:
        BatchError: the range is not whole batches, back to back.
    """
    view = memoryview(buffer)
    if start < 0 or end > len(buffer):
        raise BatchError("range outside the buffer")
    position = start
    while position < end:
        behind = batch_end(buffer, position, end)
        if behind == 0:
            raise BatchError("not a batch")
        put_u64(buffer, position + 56, durable_mark)
        put_u64(buffer, position + 64, transaction_id)
        body_hash = xxh3_64_intdigest(view[position + HEADER : behind], segment_id)
        put_u64(buffer, position + 72, body_hash)
        seed = segment_id + file_position + (position - start) & MASK
        header_hash = xxh3_64_intdigest(view[position : position + HEADER - 8], seed)
        put_u64(buffer, position + 80, header_hash)
        position = behind


def verify(buffer: Buffer, start: int, end: int, segment_id: int, file_position: int) -> tuple[int, int, int]:
    """Walks the valid batches from ``buffer[start]``, which is at ``file_position``, on.

    Returns:
        End of the last one before the first that is invalid, cut at ``end``, or not numbered above the one before it;
        first and last sequence number. (start, 0, 0) when there is none.
    """
    view = memoryview(buffer)
    if start < 0 or end > len(buffer):
        raise BatchError("range outside the buffer")
    position = start
    first_seq = 0
    last_seq = 0
    while position < end:
        behind = batch_end(buffer, position, end)
        if behind == 0:
            break
        seed = segment_id + file_position + (position - start) & MASK
        header_hash = xxh3_64_intdigest(view[position : position + HEADER - 8], seed)
        if header_hash != number(buffer, position + 80, 8):
            break
        body_hash = xxh3_64_intdigest(view[position + HEADER : behind], segment_id)
        if body_hash != number(buffer, position + 72, 8):
            break
        if position == start:
            first_seq = number(buffer, position + 16, 8)
        elif number(buffer, position + 16, 8) <= last_seq:
            break
        last_seq = number(buffer, position + 24, 8)
        position = behind
    return position, first_seq, last_seq


def locate(buffer: Buffer, start: int, end: int, seq: int) -> int:
    """The first batch of verified ``buffer[start:end]`` whose last number is ``seq`` or above, else ``end``."""
    if start < 0 or end > len(buffer):
        raise BatchError("range outside the buffer")
    position = start
    while position < end:
        behind = batch_end(buffer, position, end)
        if behind == 0:
            raise BatchError("not a batch")
        if number(buffer, position + 24, 8) >= seq:
            break
        position = behind
    return position
