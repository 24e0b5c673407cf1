"""Fixtures that many unit tests use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cursor_log import CursorLog
from tools.logtool.run import run

Logtool: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def logtool(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Logtool:
    """Runs a command line; (exit code, stdout, stderr)."""
    for name in list(os.environ):
        if name.startswith("QUINTLOG_"):
            monkeypatch.delenv(name)

    def call(*args: str) -> tuple[int, str, str]:
        code = run(args)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def cursor_log(tmp_path: Path) -> Iterator[CursorLog]:
    """A log without records, and its cursors."""
    made = CursorLog(tmp_path / "d")
    yield made
    made.close()
