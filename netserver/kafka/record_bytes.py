"""What ``records`` has in C, for where nothing is compiled: checksums and copies."""

from __future__ import annotations

from typing import TypeAlias

import crcmod.predefined

Buffer: TypeAlias = bytes | bytearray | memoryview

_crc = crcmod.predefined.mkCrcFun("crc-32c")


def crc32c(src: Buffer, start: int, size: int) -> int:
    """CRC32C of ``src[start : start + size]``."""
    return int(_crc(bytes(memoryview(src)[start : start + size])))


def copy(out: bytearray, position: int, src: Buffer, start: int, size: int) -> int:
    """Copies ``src[start : start + size]`` to ``out[position:]``; the position after it."""
    out[position : position + size] = src[start : start + size]
    return position + size
