"""`make test` runs folders of tests beside each other: one that fails fails all, and nothing is in none or in two. What
`make` starts keeps its bytecode. A test that fails leaves no program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import Started

ROOT = Path(__file__).resolve().parents[2]
PYTEST = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in *tests/crash*) ;; *tests/spark) exit "$SPARK" ;; esac
"""
pytestmark = pytest.mark.whole


def run(tmp_path: Path, *arguments: str, spark: int = 0) -> tuple[int, list[str]]:
    """The script's exit code, and what it had pytest do."""
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(PYTEST)
    python.chmod(0o755)
    calls.unlink(missing_ok=True)
    done = subprocess.run(
        [ROOT / ".ci" / "tests", python, *arguments],
        cwd=tmp_path,
        env={**os.environ, "CALLS": str(calls), "SPARK": str(spark)},
        capture_output=True,
        timeout=100,
    )
    return done.returncode, calls.read_text().splitlines()


def test_all_folders_of_tests_once(tmp_path: Path) -> None:
    code, calls = run(tmp_path, "quick", "tests")
    assert code == 0
    assert all("-m not slow" in call for call in calls)
    words = [call.split() for call in calls]
    for folder in ("tests/crash", "tests/spark", "tests/unit/engine", "tests/unit/netserver"):
        assert sum(folder in some for some in words) == 1, folder
    for parent in ("tests", "tests/unit"):  # the rest of these, without what has a job of its own
        [rest] = [some for some in words if parent in some]
        ignored = {word.removeprefix("--ignore=") for word in rest if word.startswith("--ignore=")}
        others = {word for some in words for word in some if word.startswith(f"{parent}/")}
        assert {name for name in others if Path(name).parent == Path(parent)} | ({"tests/unit"} - {parent}) == ignored


@pytest.mark.parametrize(("spark", "code"), [(5, 0), (1, 1), (2, 1)])
def test_one_that_fails_fails_all(tmp_path: Path, spark: int, code: int) -> None:
    assert run(tmp_path, "large", "tests", spark=spark)[0] == code  # 5: nothing in it is of this size


def test_ci_is_told_what_took_most_of_the_processor() -> None:
    test = f"{Path(__file__).relative_to(ROOT)}::test_one_that_fails_fails_all"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "QUINTLOG_CI": "1"}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100).stdout
    assert re.search(r" \d+ s of processor time ", said), said
    assert len(re.findall(rf"^ +\d\.\d\d s {re.escape(test)}", said, re.MULTILINE)) == 3, said


def test_chosen_ones_run_as_they_are_named(tmp_path: Path) -> None:
    assert run(tmp_path, "all", "tests/unit", "-k", "a or b") == (0, ["-m pytest tests/unit -k a or b"])


def test_what_make_starts_keeps_bytecode() -> None:
    words = [
        "make",
        "--no-print-directory",
        "-f",
        ROOT / "Makefile",
        "--eval",
        "shown: ; @echo [$$PYTHONDONTWRITEBYTECODE]",
        "shown",
    ]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr


def test_a_program_goes_with_the_test_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), Started(["sleep", "1000"]) as program:
        print(1 / 0)
    assert program.returncode == -signal.SIGKILL
    with Started(["sleep", "0"]) as program:
        pass
    assert program.returncode == 0
