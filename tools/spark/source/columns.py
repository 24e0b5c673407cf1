"""Decoded records: one buffer for each column, in Arrow's layout. Arrow itself is not needed here."""

from __future__ import annotations

from dataclasses import dataclass


class ColumnsFull(ValueError):
    """A column would exceed 2 GiB in one record batch."""


@dataclass(slots=True)
class Columns:
    """Columns of so many rows. A column that was not asked for is empty.

    Attributes:
        seqs: int64, sequence numbers.
        timestamps_us: int64, microseconds since 1970.
        key_ends, value_ends: int32, one more than rows: where each key or value begins, and where the last one ends.
        keys, values: the bytes of all keys, of all values.
        headers: for each row its flat list name, value, name, value ...
    """

    rows: int
    seqs: bytes | bytearray
    timestamps_us: bytes | bytearray
    key_ends: bytes | bytearray
    keys: bytes | bytearray
    value_ends: bytes | bytearray
    values: bytes | bytearray
    headers: list[tuple[bytes, ...]]
