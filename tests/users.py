"""Tests of several users: everything as somebody who is not root, in a place that he can reach."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: there are several users")


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """This process is nobody's for a while. He may not read our modules: import before what is needed."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A directory that everybody may enter (those of `tmp_path` are ours alone)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def owner_and_mode(path: Path) -> tuple[int, int]:
    """Of a file, or of a link itself."""
    found = path.lstat()
    return found.st_uid, found.st_mode & 0o7777
