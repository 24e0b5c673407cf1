"""Output: data to stdout as table, JSON, JSON lines or CSV; everything else to stderr."""

from __future__ import annotations

import base64
import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import click

Form = Literal["table", "json", "jsonl", "csv"]
FORMS: tuple[Form, ...] = ("table", "json", "jsonl", "csv")
JSON_SCHEMA = 1
"""Goes up when a field changes its meaning or disappears; new fields may come at any time."""

MINUTE_S = 60
PADDED_WIDTH = 48
"""A wider cell shifts what stands after it in its own row, instead of pushing every row's columns that far apart."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the key of the items, its heading, and how a value is shown (only in tables)."""

    key: str
    title: str = ""
    right: bool = False
    show: Callable[[Any], str] = str

    @property
    def heading(self) -> str:
        """What stands above the column."""
        return self.title or self.key.upper().replace("_", " ")


def number(key: str, title: str = "", show: Callable[[Any], str] = str) -> Column:
    """A column aligned to the right."""
    return Column(key, title, True, show)


def size_text(size_bytes: int) -> str:
    """Bytes for people: 131072 -> 128.0 KiB."""
    value = float(size_bytes)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


def count_text(count: int, what: str) -> str:
    """A number of things: `1 record`, `2 records`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def behind_text(seconds: float | None) -> str:
    """How far something is behind: ``0s``, ``2.5s``, ``1h30m``."""
    if seconds is None:
        return "-"
    if seconds < MINUTE_S:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    left, parts = round(seconds), []
    for unit, size_s in (("d", 86_400), ("h", 3600), ("m", MINUTE_S), ("s", 1)):
        if left >= size_s:
            parts.append(f"{left // size_s}{unit}")
            left %= size_s
    return "".join(parts[:2])


def trend_text(records_per_second: float | None) -> str:
    """By how much a lag grows: ``+12/s``; ``-12/s`` catches up."""
    return "-" if records_per_second is None else f"{records_per_second:+g}/s" if records_per_second else "0/s"


def time_text(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC; the number itself when no calendar reaches it."""
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def printable(text: str, kept: str = "") -> str:
    """Text for people: what moves a cursor, changes colours or the direction of writing comes as an escape.

    Args:
        kept: characters that are none of that here, such as the end of a line.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def name_text(name: bytes) -> str:
    """A topic's name for people; bytes that are no UTF-8, and control characters, as escapes."""
    return printable(name.decode("utf-8", "backslashreplace"))


def bytes_fields(key: str, value: bytes) -> dict[str, str]:
    """`{key: text}` when the bytes are UTF-8, else `{key_base64: ...}`."""
    try:
        return {key: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{key}_base64": base64.b64encode(value).decode()}


def say(text: str) -> None:
    """Lines to stderr; names and answers in them may hold anything."""
    click.echo(printable(text, "\n\t"), err=True)


def json_bytes(value: object) -> bytes:
    """One line of JSON, without the line's end."""
    import msgspec

    return msgspec.json.encode(value)


@dataclass(slots=True)
class Output:
    """Where a command says things. `form` is what the user asked for."""

    form: Form = "table"
    quiet: bool = False
    verbose: bool = False
    color: bool = True
    escapes: bool = field(default_factory=lambda: sys.stdout.isatty())
    """Stdout is a terminal: it gets no control characters, whatever is written."""

    @property
    def on_terminal(self) -> bool:
        """Whether stdout is a terminal that can do more than plain text."""
        return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def write(self, data: bytes) -> None:
        """Bytes to stdout: as they are, but for what a terminal would obey."""
        if self.escapes:
            data = printable(data.decode("utf-8", "backslashreplace"), "\n\t").encode()
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        """Hands what was written to whoever reads stdout."""
        sys.stdout.buffer.flush()

    def note(self, text: str) -> None:
        """A line to stderr that `-q` suppresses."""
        if not self.quiet:
            say(text)

    def detail(self, text: str) -> None:
        """A line to stderr that only `-v` shows."""
        if self.verbose:
            say(text)

    def warn(self, text: str) -> None:
        """A line to stderr, always."""
        say(text)

    def items(self, columns: Sequence[Column], items: Iterable[dict[str, Any]], **more: Any) -> None:
        """A finished list of things; `more` goes into the JSON document beside them."""
        if self.form == "json":
            self.write(json_bytes({"schema": JSON_SCHEMA, **more, "items": list(items)}) + b"\n")
        elif self.form == "jsonl":
            for item in items:
                self.write(json_bytes(item) + b"\n")
        elif self.form == "csv":
            self._csv(columns, items)
        else:
            self._table(columns, list(items))
        self.flush()

    def fields(self, item: dict[str, Any], shows: dict[str, Callable[[Any], str]] | None = None) -> None:
        """One thing: a list of its fields as a table, else an item like any other."""
        if self.form != "table":
            self.items([Column(key) for key in item], [item])
            return
        width = max(map(len, item), default=0)
        for key, value in item.items():
            text = printable((shows or {}).get(key, _plain)(value))
            self.write(f"{key.replace('_', ' '):<{width}}  {text}".rstrip().encode("utf-8", "backslashreplace") + b"\n")
        self.flush()

    def _csv(self, columns: Sequence[Column], items: Iterable[dict[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows([_plain(item.get(column.key, "")) for column in columns] for item in items)
        self.write(text.getvalue().encode("utf-8", "backslashreplace"))

    def _table(self, columns: Sequence[Column], items: list[dict[str, Any]]) -> None:
        rows = [
            ["-" if item.get(one.key) is None else printable(one.show(item[one.key])) for one in columns]
            for item in items
        ]
        if self.on_terminal and self.color:
            self._rich_table(columns, rows)
            return
        widths = [
            max(len(column.heading), *(len(row[at]) for row in rows if len(row[at]) <= PADDED_WIDTH), 0)
            for at, column in enumerate(columns)
        ]
        for row in [[column.heading for column in columns], *rows]:
            cells = [
                cell.rjust(width) if column.right else cell.ljust(width)
                for cell, width, column in zip(row, widths, columns, strict=True)
            ]
            self.write("  ".join(cells).rstrip().encode("utf-8", "backslashreplace") + b"\n")

    @staticmethod
    def _rich_table(columns: Sequence[Column], rows: list[list[str]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        Console(file=sys.stdout).print(table)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{key}={_plain(inner)}" for key, inner in value.items())
    return str(value)
