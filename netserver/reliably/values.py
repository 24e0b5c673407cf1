"""Streams of numbers: each value is made from the one before it, the last message carries a checksum of all values.

The state of a stream is how many messages are left, the last value (at first: the random start, which is never sent)
and the checksum so far: CRC-32 over every value as 4 bytes, big-endian, starting at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom
from types import ModuleType
from typing import Final, overload

import crcmod.predefined

from netserver.reliably import mersenne, mersenne_pure

_mersenne: Final[ModuleType] = mersenne_pure if str(mersenne.__file__).endswith(".py") else mersenne
update_crc: Final[Callable[[bytes, int], int]] = crcmod.predefined.mkCrcFun("crc-32")
"""``update_crc(data, crc)``: the CRC-32 of what ``crc`` stands for, followed by ``data``; the start is 0."""


@dataclass(frozen=True, slots=True)
class NumbersState:
    """What the next message of a stream is made from."""

    count: int
    value: int
    crc: int


class Numbers(Sequence[dict[str, int]]):
    """Messages that follow each other.

    ``values`` holds 4 bytes for each, big-endian; ``crc`` is None unless the last of them ends its stream. An item is a
    message's data: ``{"value": ...}``, and ``"crc"`` in the last one.
    """

    __slots__ = ("crc", "values")

    def __init__(self, values: bytes, crc: int | None = None) -> None:
        self.values = values
        self.crc = crc

    def __len__(self) -> int:
        return len(self.values) // 4

    @overload
    def __getitem__(self, index: int) -> dict[str, int]: ...

    @overload
    def __getitem__(self, index: slice) -> Numbers: ...

    def __getitem__(self, index: int | slice) -> dict[str, int] | Numbers:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("numbers are cut in one piece only")
            crc = self.crc if start < stop == len(self) else None
            return Numbers(self.values[4 * start : 4 * stop], crc)
        at = range(len(self))[index]
        data = {"value": int.from_bytes(self.values[4 * at : 4 * at + 4], "big")}
        if self.crc is not None and at == len(self) - 1:
            data["crc"] = self.crc
        return data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Numbers):
            return NotImplemented
        return self.values == other.values and self.crc == other.crc

    __hash__ = None  # type: ignore[assignment]

    def lines(self, first_id: int) -> bytes | bytearray:
        """The messages as they go to the client; the first one has id ``first_id``."""
        values = self.values if self.crc is None else self.values[:-4]
        out = bytearray(_mersenne.LINE_ROOM * (len(values) // 4))
        del out[_mersenne.put_lines(out, values, first_id) :]
        if self.crc is not None:
            value = int.from_bytes(self.values[-4:], "big")
            out += b'{"id":%d,"data":{"value":%d,"crc":%d}}\n' % (first_id + len(self) - 1, value, self.crc)
        return out


def random_seed() -> int:
    """The start of a stream: any unsigned 32-bit integer, which no client can guess."""
    return SystemRandom().getrandbits(32)


def random_start() -> int:
    """The first value of a stateless stream: 1..255. Zero would give a stream of zeros."""
    return SystemRandom().randrange(1, 256)


def next_value(seed: int) -> int:
    """The value after ``seed``."""
    value: int = _mersenne.next_value(seed)
    return value


def next_number(state: NumbersState) -> tuple[dict[str, int], NumbersState]:
    """One message and the state after it, as the specification has it: the rule that next_numbers() repeats."""
    value = next_value(state.value)
    crc = update_crc(value.to_bytes(4, "big"), state.crc)
    data = {"value": value, "crc": crc} if state.count == 1 else {"value": value}
    return data, NumbersState(state.count - 1, value, crc)


def next_numbers(state: NumbersState, limit: int) -> tuple[Numbers, NumbersState]:
    """Up to ``limit`` messages and the state after them; none when the stream has ended."""
    count = min(limit, state.count)
    if count < 1:
        return Numbers(b""), state
    out = bytearray(4 * count)
    value: int = _mersenne.fill_values(state.value, out, count)
    values = bytes(out)
    crc = update_crc(values, state.crc)
    left = state.count - count
    return Numbers(values, None if left else crc), NumbersState(left, value, crc)
