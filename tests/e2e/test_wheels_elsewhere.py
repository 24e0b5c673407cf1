"""The wheels of other machines: cibuildwheel takes its settings, and makes those of each Python and C library there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("cp311", "cp312", "cp313", "cp314")

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        not os.environ.get("QUINTLOG_NIGHTLY"), reason="QUINTLOG_NIGHTLY=1, and pip install cibuildwheel"
    ),
    pytest.mark.skipif(importlib.util.find_spec("cibuildwheel") is None, reason="pip install cibuildwheel"),
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the sources of the package"),
]


def test_each_python_gets_its_wheels_on_each_machine() -> None:
    machines = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["linux"]["archs"]
    command = [sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--print-build-identifiers", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {
        f"{python}-{library}_{machine}"
        for python in PYTHONS
        for library in ("manylinux", "musllinux")
        for machine in machines
    }
