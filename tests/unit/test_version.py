"""The version is written down once, in pyproject.toml; whatever tells it tells that."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import quintlog
from netserver.testing import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.whole


def printed(*command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(quintlog.ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def test_one_version(tmp_path: Path) -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert importlib.metadata.version("quintlog") == written
    assert quintlog.__version__ == written
    assert printed(sys.executable, "-m", "quintlog", "logtool", "--version") == f"logtool {written}\n"
    assert printed(sys.executable, "-m", "quintlog", "engine-server", "--version") == f"engine-server {written}\n"
    assert printed("make", "-s", "help").splitlines()[0] == f"quintlog {written}"
    with ServerProcess(tmp_path / "data") as server:
        assert f"quintlog {written}" in server.output
        assert server.admin("GET", "/v1/version") == {"schema": 1, "version": written}
