"""How the console writes bytes, numbers, sizes and times. Numbers are exact, whatever their size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from engine.config import TopicConfig

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_KEPT: Final = frozenset("\n\t")
_BEYOND_MS: Final = 253_402_300_800_000
"""Year 10000, which `datetime` does not have."""
HEX_ROW: Final = 16
NOTHING: Final = "-"


NULL: Final = "(null)"
"""Stands for the value of a record that has none."""


def text_of(value: bytes) -> str:
    """Bytes as text that shows what is in it: no character of it acts on the page, or hides.

    Control characters, marks of writing direction and what is not UTF-8 are written as escapes; line ends and tabs
    stay.
    """
    text = value.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else _escaped(char) for char in text)


def name_text(value: bytes) -> str:
    """The same in one line."""
    text = text_of(value)
    return text.replace("\n", "\\n").replace("\t", "\\t") if "\n" in text or "\t" in text else text


def _escaped(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def part_of_path(name: bytes) -> str:
    """Bytes as a part of a path. Browsers resolve `.` and `..` also when they are escaped: a backslash goes before."""
    if name in (b".", b"..") or name.startswith(b"\\"):
        return "%5C" + quote(name, safe="")
    return quote(name, safe="")


def name_of_part(part: bytes) -> bytes:
    """The bytes that `part_of_path` was given."""
    return part.removeprefix(b"\\")


def count_text(value: int | float | None) -> str:
    """A number with its thousands apart."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) < 10 else f"{value:,.0f}"


def size_text(value: int | float | None) -> str:
    """Bytes in units of 1024."""
    if value is None:
        return NOTHING
    number = float(value)
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def time_text(milliseconds: int | None) -> str:
    """A time in UTC to the millisecond."""
    if milliseconds is None:
        return NOTHING
    if milliseconds >= _BEYOND_MS:
        return f"{milliseconds} ms"
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{milliseconds % 1000:03d}Z"


def span_text(seconds: float | None) -> str:
    """A duration, roughly."""
    if seconds is None:
        return NOTHING
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 0.001
        else f"{seconds * 1000:.0f} ms"
        if seconds < 1
        else f"{seconds:.0f} s"
    )


def paused_text(positions: Sequence[Mapping[str, Any]]) -> str:
    """Whether a group's positions are paused: it may be some of them only."""
    count = sum(bool(one["paused"]) for one in positions)
    return "no" if not count else "yes" if count == len(positions) else f"{count} of {len(positions)}"


def retention_text(config: TopicConfig) -> str:
    """How long a topic's records are kept: by age, bytes and number, as far as each is bounded."""
    texts = config.to_mapping()
    bounds = [
        texts["retention_ms"] if config.retention_ms else "",
        f"{texts['retention_bytes']} a partition" if config.retention_bytes else "",
        f"{config.retention_records} records a partition" if config.retention_records else "",
    ]
    return ", ".join(filter(None, bounds)) or "no limit"


def hex_dump(value: bytes) -> str:
    """Rows of position, bytes and ASCII."""
    rows = []
    for at in range(0, len(value), HEX_ROW):
        row = value[at : at + HEX_ROW]
        ascii_text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{HEX_ROW * 3}} {ascii_text}")
    return "\n".join(rows)


def pretty_json(value: bytes) -> str | None:
    """JSON in lines, its numbers as they were written; None: it is none."""
    try:
        document: Any = json.loads(value, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        return "".join(_lines(document, "\n"))
    except (ValueError, RecursionError):
        return None


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _lines(value: Any, line_end: str) -> list[str]:
    if isinstance(value, _Number):
        return [value]
    inner = line_end + "  "
    if isinstance(value, dict) and value:
        out = ["{"]
        for number, (key, item) in enumerate(value.items()):
            out += ["," if number else "", inner, json.dumps(key, ensure_ascii=False), ": ", *_lines(item, inner)]
        return [*out, line_end, "}"]
    if isinstance(value, list) and value:
        out = ["["]
        for number, item in enumerate(value):
            out += ["," if number else "", inner, *_lines(item, inner)]
        return [*out, line_end, "]"]
    return [json.dumps(value, ensure_ascii=False)]
