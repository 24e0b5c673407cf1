"""The server's log on stderr, as text or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, TextIO

OURS: Final = ("engine", "netserver", "tools", "quintlog")
"""Roots of this product's logger names."""

CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a peer could steer a terminal with, and how it is written."""


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """``2026-11-28T10:00:00.123Z INFO    figg 127.0.0.1:4711: closed``; other lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of the traceback."""
        text = f"{_time(record)} {record.levelname:<7} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.translate(CONTROLS).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, and ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class RepetitionFilter(logging.Filter):
    """Lets at most ``lines_max`` lines of one call site through per second, then says how many were left out.

    Hostile peers can cause a line with each connection; the log must neither fill the disk nor slow the server.
    """

    def __init__(self, lines_max: int = 20) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.levelno >= logging.ERROR:
            return True
        place = (record.pathname, record.lineno)
        second = int(record.created)
        since, count = self._seen.get(place, (second, 0))
        if since != second:
            left_out = count - self._lines_max
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} lines like this were left out before)"
                record.args = ()
            since, count = second, 0
        self._seen[place] = (since, count + 1)
        return count < self._lines_max


def set_up(form: str, level: str, stream: TextIO | None = None) -> None:
    """Write the log to ``stream`` (stderr) from now on; also of libraries, from warnings up."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(RepetitionFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    set_level(level)


def set_level(level: str) -> None:
    """Least severe lines of this product that are written."""
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
