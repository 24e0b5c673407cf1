"""Named defects, each put into a copy of the code, and the tests that have to find it (design: D13).

::

    python -m tests.mutants              # all of them; exit code 1 when one is not found
    python -m tests.mutants NAME ...     # some
    python -m tests.mutants --list

A defect is a replacement of text that occurs exactly once in a file: when the code changes so that it does not any
more, that is an error here too. The tests run in a copy of the checkout, with the compiled form of a changed module
removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("engine", "netserver", "tools", "tests", "pyproject.toml")
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: `new` instead of `old` in `file`; `tests` (arguments of pytest) must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    seeds: int = 0
    """Worlds of the power cut test, if that is to find it."""


def copy_of_checkout(target: Path) -> None:
    """Everything that the tests need, compiled modules included."""
    ignored = shutil.ignore_patterns("__pycache__", "*.c")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)


def apply(mutant: Mutant, root: Path) -> None:
    """Changes the copy. Raises ValueError: the text to replace is not there exactly once."""
    path = root / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: the text occurs {text.count(mutant.old)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.old, mutant.new))
    for compiled in path.parent.glob(f"{path.stem}.*.so"):
        compiled.unlink()


def run_tests(mutant: Mutant, root: Path) -> subprocess.CompletedProcess[str]:
    """The tests of a mutant, in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
    if mutant.seeds:
        environment["QUINTLOG_POWER_CUT_SEEDS"] = str(mutant.seeds)
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
        result = run_tests(mutant, root)
    return result.returncode == 1, result.stdout[-2000:]


RECOVERY = "tests/unit/test_recovery_damage.py tests/unit/test_recovery.py"
POWER = "tests/crash/test_power_cut.py"

MUTANTS = (
    Mutant(
        "rewrite nothing above the floor",
        "engine/recovery.py",
        "            if end > floor:\n                self._write_again(fd, floor, end)\n",
        "",
        "tests/crash/test_page_cache.py",
    ),
    Mutant(
        "do not sync the directory that a killed process changed",
        "engine/recovery.py",
        "            self.files.sync_dir(self.place.directory)\n        self._drop_unused(found)\n",
        "            pass\n        self._drop_unused(found)\n",
        "tests/crash/test_every_call.py",
    ),
)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not arguments.names or mutant.name in arguments.names]
    missed = 0
    for mutant in chosen:
        if arguments.list:
            print(f"{mutant.name}  ({mutant.file}; {mutant.tests})")
            continue
        started = time.monotonic()
        found, output = is_found(mutant)
        missed += not found
        print(f"{'found ' if found else 'MISSED'} {time.monotonic() - started:5.1f} s  {mutant.name}", flush=True)
        if not found:
            print(output)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
