"""Twin of ``mersenne`` for plain Python: the same functions and results; slow in the values, not in the lines."""

from __future__ import annotations

import struct
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
_STEPS = range(2, 398)


def next_value(seed: int) -> int:
    seed &= 0xFFFFFFFF
    word = second = (1812433253 * (seed ^ seed >> 30) + 1) & 0xFFFFFFFF
    for i in _STEPS:
        word = (1812433253 * (word ^ word >> 30) + i) & 0xFFFFFFFF
    mixed = (seed & 0x80000000) | (second & 0x7FFFFFFF)
    out = word ^ mixed >> 1 ^ (0x9908B0DF if mixed & 1 else 0)
    out ^= out >> 11
    out ^= out << 7 & 0x9D2C5680
    out ^= out << 15 & 0xEFC60000
    return out ^ out >> 18


def fill_values(seed: int, out: bytearray, count: int) -> int:
    if count < 0 or len(out) < 4 * count:
        raise ValueError("no room for the values")
    values = []
    for _ in range(count):
        seed = next_value(seed)
        values.append(seed)
    struct.pack_into(f">{count}I", out, 0, *values)
    return seed


def put_decimal(out: bytearray, position: int, value: int) -> int:
    digits = b"%d" % value
    out[position : position + len(digits)] = digits
    return position + len(digits)


LINE_HEAD = b'{"id":'
LINE_MIDDLE = b',"data":{"value":'
LINE_END = b"}}\n"
LINE_ROOM = len(LINE_HEAD) + 10 + len(LINE_MIDDLE) + 10 + len(LINE_END)


def put_lines(out: bytearray, values: Buffer, first_id: int) -> int:
    count = len(values) // 4
    if len(out) < LINE_ROOM * count:
        raise ValueError("no room for the lines")
    numbers = struct.unpack_from(f">{count}I", values)
    pairs = zip(range(first_id, first_id + count), numbers, strict=True)
    text = b"".join([b'{"id":%d,"data":{"value":%d}}\n' % pair for pair in pairs])
    out[: len(text)] = text
    return len(text)
