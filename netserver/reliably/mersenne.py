# cython: annotation_typing=False
"""Values and lines of a stream of numbers (compiled; ``mersenne_pure`` is the twin for plain Python).

The value after ``seed`` is the first output of the 32-bit Mersenne Twister MT19937 seeded with that one word (Matsumoto
and Nishimura, 1998; ``init_genrand`` of their code). Of its 624 words of state the first output depends on three:
number 0, which is the seed, number 1 and number 397.
"""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


def next_value(seed: int) -> int:
    """The value after ``seed`` (0..2^32-1)."""
    # constants in variables: a literal above 2^31 in the loop would compile to Python integers
    mask = 0xFFFFFFFF
    factor = 1812433253
    high = 0x80000000
    twist = 0x9908B0DF
    temper_b = 0x9D2C5680
    temper_c = 0xEFC60000
    word = seed & mask
    second = 0
    i = 1
    while i <= 397:
        word = (factor * (word ^ word >> 30) + i) & mask
        if i == 1:
            second = word
        i += 1
    mixed = (seed & high) | (second & 0x7FFFFFFF)
    out = word ^ mixed >> 1
    if mixed & 1:
        out ^= twist
    out ^= out >> 11
    out ^= (out << 7) & temper_b
    out ^= (out << 15) & temper_c
    out ^= out >> 18
    return out


def fill_values(seed: int, out: bytearray, count: int) -> int:
    """The ``count`` values after ``seed`` into ``out``, 4 bytes each, big-endian; returns the last one.

    Raises:
        ValueError: ``out`` is too small.
    """
    if count < 0 or len(out) < 4 * count:
        raise ValueError("no room for the values")
    value = seed
    position = 0
    while count > 0:
        value = next_value(value)
        out[position] = value >> 24
        out[position + 1] = (value >> 16) & 0xFF
        out[position + 2] = (value >> 8) & 0xFF
        out[position + 3] = value & 0xFF
        position += 4
        count -= 1
    return value


def put_decimal(out: bytearray, position: int, value: int) -> int:
    """The decimal digits of ``value`` (0..2^32-1) at ``position``; returns the position after them."""
    size = 1
    rest = value
    while rest >= 10:
        rest = rest // 10
        size += 1
    end = position + size
    rest = value
    at = end - 1
    while at >= position:
        out[at] = 48 + rest % 10
        rest = rest // 10
        at -= 1
    return end


LINE_HEAD = b'{"id":'
LINE_MIDDLE = b',"data":{"value":'
LINE_END = b"}}\n"
LINE_ROOM = len(LINE_HEAD) + 10 + len(LINE_MIDDLE) + 10 + len(LINE_END)
"""Bytes of the longest line that put_lines() makes."""


def put_lines(out: bytearray, values: Buffer, first_id: int) -> int:
    """A line for each of ``values`` (4 bytes each, big-endian), ids from ``first_id`` on; returns the bytes written.

    Layout of a line: ``{"id":ID,"data":{"value":VALUE}}`` and a line feed.

    Raises:
        ValueError: ``out`` has less than LINE_ROOM bytes for each value.
    """
    count = len(values) // 4
    if len(out) < LINE_ROOM * count:
        raise ValueError("no room for the lines")
    head: Buffer = LINE_HEAD
    middle: Buffer = LINE_MIDDLE
    tail: Buffer = LINE_END
    at = 0
    n = 0
    while n < count:
        at = _copy(out, at, head)
        at = put_decimal(out, at, first_id + n)
        at = _copy(out, at, middle)
        b0 = values[4 * n]
        b1 = values[4 * n + 1]
        b2 = values[4 * n + 2]
        b3 = values[4 * n + 3]
        at = put_decimal(out, at, b0 << 24 | b1 << 16 | b2 << 8 | b3)
        at = _copy(out, at, tail)
        n += 1
    return at


def _copy(out: bytearray, position: int, text: Buffer) -> int:
    i = 0
    while i < len(text):
        out[position] = text[i]
        position += 1
        i += 1
    return position
