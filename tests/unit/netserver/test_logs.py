"""The log's two forms, and what keeps it from filling the disk."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator

import pytest

from netserver.logs import OURS, RepetitionFilter, set_level, set_up


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; the set-up of before is restored."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_text(stream: io.StringIO) -> None:
    set_up("text", "info", stream)
    logging.getLogger("netserver.x").info("one\nline")
    logging.getLogger("netserver.x").debug("hidden")
    logging.getLogger("library").info("hidden")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("engine.x").exception("failed")
    first, second, third, *rest = stream.getvalue().splitlines()
    assert first.endswith("Z INFO    one")
    assert second == "    line"
    assert third.endswith("ERROR   failed")
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-1] == "    ValueError: why"


def test_what_a_peer_says_steers_no_terminal(stream: io.StringIO) -> None:
    set_up("text", "info", stream)
    logging.getLogger("netserver.x").info("closed: %s", "bye\r\x1b[2J\x9b1A\x00\tä\n2026-11-28 ERROR")
    assert stream.getvalue().endswith("closed: bye\\x0d\\x1b[2J\\x9b1A\\x00\tä\n    2026-11-28 ERROR\n")


def test_json(stream: io.StringIO) -> None:
    set_up("json", "warning", stream)
    logging.getLogger("engine.x").info("hidden")
    set_level("debug")
    logging.getLogger("engine.x").debug("größe\n%s", 5)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("tools.x").exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["level"] == "debug"
    assert first["logger"] == "engine.x"
    assert first["message"] == "größe\n5"
    assert first["time"].endswith("Z")
    assert "ValueError: why" in second["exception"]


def line(second: float, level: int = logging.INFO) -> logging.LogRecord:
    record = logging.LogRecord("x", level, "file.py", 1, "text %d", (5,), None)
    record.created = second
    return record


def test_repetitions_are_left_out_and_counted() -> None:
    rule = RepetitionFilter(3)
    assert [rule.filter(line(10.1)) for _ in range(5)] == [True, True, True, False, False]
    assert rule.filter(line(10.9, logging.ERROR))
    later = line(11.0)
    assert rule.filter(later)
    assert later.getMessage() == "text 5 (2 lines like this were left out before)"
    following = line(12.0)
    assert rule.filter(following)
    assert following.getMessage() == "text 5"


def test_a_log_that_nobody_reads_holds_nothing_up(stream: io.StringIO) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(reader, "rb") as reading, os.fdopen(writer, "w") as writing:
        set_up("text", "info", writing)
        log = logging.getLogger("netserver.x")
        for number in range(1000):
            log.error("%d %s", number, "x" * 9000)  # would wait for ever with the eighth
        begun = reading.read()
        assert begun.startswith(b"2")
        log.error("goes through")
        lines = (begun + reading.read()).decode().splitlines()
        written = len(lines) - 2
        assert [line.split()[2] for line in lines[:written]] == [str(number) for number in range(written)]
        assert all(line.endswith("x" * 9000) for line in lines[:written]), "none is cut short"
        assert lines[-2] == f"({1000 - written} lines were left out: nobody read them)"
        assert lines[-1].endswith("goes through")
        reading.close()
        log.error("to nobody")
        log.error("to nobody")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_want_of_memory_is_one_line(stream: io.StringIO, form: str) -> None:
    """No traceback: it says nothing of the place where memory happened to run out."""
    set_up(form, "info", stream)
    try:
        raise MemoryError
    except MemoryError:
        logging.getLogger("netserver").exception("%s: error in the session", "figg")
    (line,) = stream.getvalue().splitlines()
    assert "figg: error in the session: not enough memory" in line
