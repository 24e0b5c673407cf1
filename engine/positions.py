"""Positions in a partition, as people write them: in requests and on command lines.

===========================  ==================================================================================
``earliest``                 the first record that is there
``latest``                   after the last committed record
``123``                      the record with this number, or the next one after it
``+10``                      10 numbers after the first
``-10``                      10 numbers before the end
``@2026-11-27T10:00Z``       the first record at or after this time; without a zone it is UTC; a date alone will do
``@1795822592``              the same in seconds since 1970 (13 digits: milliseconds)
``@-1h30m``                  the same, so long ago (ms, s, m, h, d, w)
===========================  ==================================================================================

As a beginning a position is inclusive, as an end (``--to``) exclusive.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

_AGE = re.compile(r"@-(?:[0-9]{1,9}(?:ms|s|m|h|d|w)){1,6}")
_AGE_PART = re.compile(r"([0-9]+)([a-z]+)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MILLISECOND_DIGITS = 13
_SEQ_END = 1 << 64


class Extent(Protocol):
    """What a position is resolved against."""

    @property
    def log_start(self) -> int:
        """The first number that is there."""

    @property
    def committed_seq(self) -> int:
        """The last one that readers see."""

    def seq_before_end(self, count: int) -> int:
        """The number from which so many records follow."""

    def seq_after_first(self, count: int) -> int:
        """The number after the first so many records."""

    def seq_at_time(self, timestamp_ms: int) -> int:
        """The first number at or after a time, the end's when there is none."""


@dataclass(frozen=True, slots=True)
class Position:
    """A parsed position; `value` is a number, a count of records or milliseconds since 1970."""

    kind: Literal["earliest", "latest", "seq", "after_first", "before_end", "time"]
    value: int = 0
    text: str = field(default="", compare=False)
    """As it was written."""

    def resolve(self, extent: Extent) -> int:
        """The sequence number that it means now, never below the first one that is there."""
        first, end = extent.log_start, extent.committed_seq + 1
        if self.kind == "latest":
            return end
        if self.kind == "seq":
            return max(self.value, first)
        if self.kind == "after_first":
            return max(first, extent.seq_after_first(self.value))
        if self.kind == "before_end":
            return max(first, extent.seq_before_end(self.value))
        if self.kind == "time":
            return extent.seq_at_time(self.value)
        return first


EARLIEST = Position("earliest", text="earliest")
LATEST = Position("latest", text="latest")


def parse(text: str, now_ms: int | None = None) -> Position:
    """Reads a position. Raises ValueError, saying what is expected."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if digits.isascii() and digits.isdigit() and int(digits[:21]) < _SEQ_END:
        value = int(digits)
        return Position({"+": "after_first", "-": "before_end", "": "seq"}[sign], value, text)  # type: ignore[arg-type]
    if text.startswith("@"):
        return Position("time", _time_ms(text, time.time_ns() // 1_000_000 if now_ms is None else now_ms), text)
    raise ValueError("expected earliest, latest, a number, +N, -N or @TIME")


def _time_ms(text: str, now_ms: int) -> int:
    age = _AGE.fullmatch(text)
    if age is not None:
        parts = _AGE_PART.findall(text)
        return max(0, now_ms - sum(int(count) * _UNIT_MS[unit] for count, unit in parts))
    digits = text[1:]
    if digits.isascii() and digits.isdigit() and len(digits) <= _MILLISECOND_DIGITS:
        return int(digits) if len(digits) == _MILLISECOND_DIGITS else int(digits) * 1000
    try:
        moment = datetime.fromisoformat(digits)
    except ValueError:
        raise ValueError("expected a time like @2026-11-27T10:00Z, @1795822592 or @-1h") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
