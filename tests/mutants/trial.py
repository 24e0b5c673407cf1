"""Runs the tests of a defect on a copy of the code that has it, without the compiled form of the changed module."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import quintlog
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "netserver", "tools")
TIMEOUT_S = 300


def copy_of_checkout(target: Path) -> None:
    """Everything that the tests need, compiled modules included; the packages from where they are imported."""
    ignored = shutil.ignore_patterns("__pycache__", "*.c")
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.submodule_search_locations is not None
        shutil.copytree(found.submodule_search_locations[0], target / name, ignore=ignored)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", target)
    shutil.copy(quintlog.__file__, target)


def apply(mutant: Mutant, root: Path) -> None:
    """Changes the copy. Raises what `Mutant.changed` raises."""
    path = root / mutant.file
    path.write_text(mutant.changed(path.read_text()))
    for compiled in path.parent.glob(f"{path.stem}.*.so"):
        compiled.unlink()


def run_tests(mutant: Mutant, root: Path) -> subprocess.CompletedProcess[str]:
    """The tests of a mutant, in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": ""}
    if mutant.pure:
        environment["QUINTLOG_PURE"] = "1"
    if mutant.seeds:
        environment["QUINTLOG_CRASHES"] = str(mutant.seeds)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests.split()]
    return subprocess.run(
        command, cwd=root, env=environment, text=True, capture_output=True, timeout=TIMEOUT_S, check=False
    )


def is_found(mutant: Mutant) -> tuple[bool, str]:
    """Whether a test fails because of it, and the end of what the tests wrote."""
    with tempfile.TemporaryDirectory(prefix="quintlog-mutant-") as directory:
        root = Path(directory)
        copy_of_checkout(root)
        apply(mutant, root)
        if mutant.pure:
            for compiled in root.rglob("*.so"):
                compiled.unlink()
        result = run_tests(mutant, root)
    return result.returncode == 1, result.stdout[-2000:]
