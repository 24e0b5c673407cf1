"""Fields of the TANK protocol: a bounds-checked reader, and the writers for what ``struct`` does not know.

All integers are little-endian. ``str8`` is a u8 length and that many bytes. A ``varint`` is a u32 in groups of seven
bits, low group first, with the high bit set on all bytes but the last (at most five).
"""

from __future__ import annotations

import struct

from .errors import FormatError
from .limits import VARINT_BYTES_MAX

U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


def varint(value: int) -> bytes:
    """The shortest form of ``value``, which is a u32."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def str8(text: bytes) -> bytes:
    """``text`` with its length in front.

    Raises:
        FormatError: longer than 255 bytes.
    """
    if len(text) > 255:
        raise FormatError(f"{len(text)} bytes do not fit a one-byte length")
    return bytes((len(text),)) + text


class Reader:
    """Reads fields from ``data[position:end]``; each method raises FormatError when the field is cut off."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: memoryview, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return self.end - self.position

    def _advance(self, size_bytes: int) -> int:
        start = self.position
        if size_bytes > self.end - start:
            raise FormatError(f"field of {size_bytes} bytes at {start}, {self.end - start} left")
        self.position = start + size_bytes
        return start

    def u8(self) -> int:
        """A byte."""
        return self.data[self._advance(1)]

    def u16(self) -> int:
        """Two bytes."""
        value: int = U16.unpack_from(self.data, self._advance(2))[0]
        return value

    def u32(self) -> int:
        """Four bytes."""
        value: int = U32.unpack_from(self.data, self._advance(4))[0]
        return value

    def u64(self) -> int:
        """Eight bytes."""
        value: int = U64.unpack_from(self.data, self._advance(8))[0]
        return value

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """Several integers of fixed width at once."""
        return layout.unpack_from(self.data, self._advance(layout.size))

    def take(self, size_bytes: int) -> memoryview:
        """A view of the next bytes."""
        start = self._advance(size_bytes)
        return self.data[start : start + size_bytes]

    def str8(self) -> bytes:
        """A byte of length, and so many bytes."""
        return bytes(self.take(self.u8()))

    def varint(self) -> int:
        """A u32; FormatError also for more than five bytes or a value beyond a u32."""
        value = 0
        for index in range(VARINT_BYTES_MAX):
            byte = self.u8()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value > 0xFFFF_FFFF:
                    break
                return value
        raise FormatError(f"the number before byte {self.position} is no 32-bit varint")
