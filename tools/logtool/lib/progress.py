"""Progress of long work: one line on the terminal that is rewritten; nothing where stderr is not a terminal."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import click

from tools.logtool.lib.output import Output, count_text, size_text

EVERY_S = 0.2


def stored_bytes(data_dir: Path) -> int:
    """Bytes of all segment files of a directory, about: a server may write them."""
    total = 0
    for folder, _, names in os.walk(data_dir / "topics"):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


class BytesProgress:
    """Bytes done of bytes in all, speed, and the time that is left.

    Args:
        what: a word before the figures.
        total_bytes: 0: not known.
    """

    def __init__(self, output: Output, what: str, total_bytes: int = 0) -> None:
        self.done_bytes = 0
        self.total_bytes = total_bytes
        self._what = what
        self._shown = sys.stderr.isatty() and not output.quiet
        self._began = self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def add(self, size_bytes: int) -> None:
        """So much more is done."""
        self.done_bytes += size_bytes
        now = time.monotonic()
        if self._shown and now - self._last >= EVERY_S:
            self._last = now
            click.echo(f"\r\x1b[K{self.text(now - self._began)}", nl=False, err=True)

    def text(self, seconds: float) -> str:
        """The line after so many seconds."""
        speed = self.done_bytes / max(seconds, 1e-9)
        line = f"{self._what} {size_text(self.done_bytes)}"
        if self.total_bytes:
            left_s = max(self.total_bytes - self.done_bytes, 0) / max(speed, 1)
            share = min(self.done_bytes / self.total_bytes, 1)
            line = f"{line} of {size_text(self.total_bytes)} ({share:.0%}), {left_s:.0f} s left"
        return f"{line}, {size_text(int(speed))}/s"


class SearchProgress:
    """How far a search is, on the terminal while it lasts; with `-v` what it has looked at stays."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._shown = sys.stderr.isatty() and not output.quiet
        self._is_there = False
        self._scanned = self._total = 0

    def show(self, scanned: int, total: int, found: int) -> None:
        """So many records were looked at, of so many."""
        self._scanned, self._total = scanned, total
        if self._shown:
            self._is_there = True
            click.echo(f"\r\x1b[K{self.text(found)}", nl=False, err=True)

    def text(self, found: int) -> str:
        """The line."""
        return f"scanned {self._scanned} of {count_text(self._total, 'record')}, found {found}"

    def clear(self) -> None:
        """Something else is written."""
        if self._is_there:
            self._is_there = False
            click.echo("\r\x1b[K", nl=False, err=True)

    def end(self, found: int) -> None:
        """It is over."""
        self.clear()
        if self._scanned:
            self._output.detail(self.text(found))
