"""Unpacking of record batches: the four codecs, never beyond a bound.

snappy is a raw block, or blocks in the framing of snappy-java (xerial), big-endian::

    82 53 4e 41 50 50 59 00    version:i32    least version that reads it:i32    n x (size:i32, block)

gzip may have several members, lz4 is the frame format, zstd frames need not say their size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, TypeAlias

from cramjam import DecompressionError, lz4, snappy, zstd

from .limits import UNPACKED_BYTES_MAX, UNPACKED_GUESS, UNPACKED_GUESS_BYTES_MIN
from .record_errors import INVALID_RECORD, TOO_LARGE, UNKNOWN_CODEC, RecordsError

Buffer: TypeAlias = bytes | bytearray | memoryview
Into: TypeAlias = Callable[[Buffer, bytearray | mmap], int]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_BYTES: Final = 16
_FULL: Final = "failed to write whole buffer"  # what cramjam says of room that is too small


def unpacked(codec: int, packed: memoryview, bytes_max: int = UNPACKED_BYTES_MAX) -> Buffer:
    """What ``packed`` unpacks to.

    Raises:
        RecordsError: unknown codec; not what the codec makes; more than ``bytes_max``.
    """
    try:
        if codec == NONE:
            return packed
        if codec == GZIP:
            return _gunzipped(packed, bytes_max)
        if codec == SNAPPY:
            return _xerial(packed, bytes_max) if bytes(packed[:8]) == _XERIAL else _snappy(packed, bytes_max)
        if codec == LZ4:
            return _framed(lz4.decompress_into, packed, bytes_max)
        if codec == ZSTD:
            return _framed(zstd.decompress_into, packed, bytes_max)
    except (DecompressionError, zlib.error) as error:
        raise RecordsError(INVALID_RECORD, f"records are not {_NAMES[codec]}: {error}") from None
    raise RecordsError(UNKNOWN_CODEC, f"unknown codec {codec}")


def _too_large(bytes_max: int) -> RecordsError:
    return RecordsError(TOO_LARGE, f"records unpack to more than {bytes_max} bytes")


def _gunzipped(packed: Buffer, bytes_max: int) -> Buffer:
    out = bytearray()
    rest: Buffer = packed
    while len(rest):
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        out += member.decompress(rest, bytes_max + 1 - len(out))
        if len(out) > bytes_max:
            raise _too_large(bytes_max)
        if not member.eof:
            raise RecordsError(INVALID_RECORD, "records are cut short within gzip")
        rest = member.unused_data
    return out


def _snappy(packed: memoryview, bytes_max: int) -> Buffer:
    """One raw block, which begins with its unpacked size: no block unpacks to more than 64/3 of its own."""
    size = snappy.decompress_raw_len(packed)
    if size > bytes_max:
        raise _too_large(bytes_max)
    if size * 3 > len(packed) * 64:
        raise RecordsError(INVALID_RECORD, f"a snappy block of {len(packed)} bytes cannot unpack to {size}")
    out = bytearray(size)
    snappy.decompress_raw_into(packed, out)
    return out


def _xerial(packed: memoryview, bytes_max: int) -> Buffer:
    out = bytearray()
    at = _XERIAL_BYTES
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        at += 4
        if at + size > len(packed):
            raise RecordsError(INVALID_RECORD, "a snappy block is cut short")
        out += _snappy(packed[at : at + size], bytes_max - len(out))
        at += size
    return out


def _framed(decompress_into: Into, packed: memoryview, bytes_max: int) -> Buffer:
    """Frames that need not say how large their content is: into room that is enough for most, then into the bound."""
    room = min(max(UNPACKED_GUESS * len(packed), UNPACKED_GUESS_BYTES_MIN), bytes_max)
    out: bytearray | mmap = bytearray(room)
    try:
        return memoryview(out)[: decompress_into(packed, out)]
    except DecompressionError as error:
        if str(error) != _FULL:
            raise
    out = mmap(-1, bytes_max, MAP_PRIVATE | MAP_ANONYMOUS)  # its pages cost nothing before they are written
    try:
        return memoryview(out)[: decompress_into(packed, out)]
    except DecompressionError as error:
        if str(error) == _FULL:
            raise _too_large(bytes_max) from None
        raise
