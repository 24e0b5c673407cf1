"""The version is written down once, in netserver/version.py; whatever tells it tells that."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import quintlog
from netserver.testing import ServerProcess
from netserver.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.whole


def printed(*command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(quintlog.ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def test_one_version(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "netserver.version.VERSION"}
    assert importlib.metadata.version("quintlog") == VERSION
    assert quintlog.__version__ == VERSION
    assert printed(sys.executable, "-m", "quintlog", "logtool", "--version") == f"logtool {VERSION}\n"
    assert printed(sys.executable, "-m", "quintlog", "engine-server", "--version") == f"engine-server {VERSION}\n"
    assert printed("make", "-s", "help").splitlines()[0] == f"quintlog {VERSION}"
    with ServerProcess(tmp_path / "data") as server:
        assert f"quintlog {VERSION}" in server.output
        assert server.admin("GET", "/v1/version") == {"schema": 1, "version": VERSION}


def test_the_changelog_begins_with_this_version_and_older_ones_have_a_day() -> None:
    newest, *older = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest.partition(" ")[0] == VERSION
    assert older
    for heading in older:
        assert re.fullmatch(r"\d+\.\d+\.\d+ \(\d+ [A-Z][a-z]+ \d{4}\)", heading), heading
    numbers = [tuple(map(int, text.partition(" ")[0].split("."))) for text in (newest, *older)]
    assert numbers == sorted(set(numbers), reverse=True)
