"""The server's log on stderr, as text or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import sys
import time
from contextlib import suppress
from typing import Final, TextIO

from netserver.limits import LOG_PIECE_BYTES

OURS: Final = ("engine", "netserver", "tools", "quintlog")
"""Roots of this product's logger names."""

CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a peer could steer a terminal with, and how it is written."""


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> tuple[str, bool]:
    """What is told, and whether a traceback belongs to it: not to a want of memory, which is no defect of the place."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, MemoryError):
        return f"{record.getMessage()}: not enough memory", False
    return record.getMessage(), error is not None


class TextFormatter(logging.Formatter):
    """``2026-11-28T10:00:00.123Z INFO    figg 127.0.0.1:4711: closed``; other lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of the traceback."""
        message, is_defect = _message(record)
        text = f"{_time(record)} {record.levelname:<7} {message}"
        if is_defect and record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.translate(CONTROLS).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, and ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        message, is_defect = _message(record)
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if is_defect and record.exc_info:
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


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes lines without waiting for who reads them.

    A pipe that nobody reads, or a terminal that was stopped, would hold up the event loop and all clients with it: what
    it does not take now is left out, and the next line that goes through says how many were.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._left_out = 0
        self._rest = b""
        self._fd = -1
        with suppress(OSError, ValueError):  # no descriptor: it is in memory
            fd = stream.fileno()
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):  # writing to a file waits for the disk at most
                self._fd = fd
                self._piece_bytes = select.PIPE_BUF if stat.S_ISFIFO(mode) else LOG_PIECE_BYTES
                self._poll = select.poll()
                self._poll.register(fd, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line, or leaves it out."""
        if self._fd < 0:
            super().emit(record)
            return
        try:
            if not self._push() or not self._poll.poll(0):
                self._left_out += 1
                return
            line = self.format(record) + self.terminator
            if self._left_out:
                line = f"({self._left_out} lines were left out: nobody read them){self.terminator}{line}"
            self._left_out = 0
            self._rest = line.encode(errors="backslashreplace")
            self._push()
        except OSError:  # closed at the other end: nobody wants it
            self._rest = b""
        except Exception:  # noqa: BLE001 - as logging has it: a line that cannot be made must not end what it is about
            self.handleError(record)

    def _push(self) -> bool:
        """Writes on with a line that was begun; whether all of it is written."""
        while self._rest:
            if not self._poll.poll(0):
                return False
            self._rest = self._rest[os.write(self._fd, self._rest[: self._piece_bytes]) :]
        return True


def set_up(form: str, level: str, stream: TextIO | None = None) -> None:
    """Write the log to ``stream`` (stderr) from now on; also of libraries, from warnings up."""
    handler = LogHandler(stream if stream is not None else sys.stderr)
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
