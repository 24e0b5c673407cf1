"""Named defects, each put into a copy of the code, and the tests that have to find it (design: D13).

::

    python -m tests.mutants              # all of them; exit code 1 when one is not found
    python -m tests.mutants NAME ...     # some
    python -m tests.mutants --list

A defect is a replacement of text that occurs exactly once in a file: when the code changes so that it does not any
more, that is an error here too. The tests run in a copy of the code, without the compiled form of a changed module.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import quintlog
from tests.mutant_list import MUTANTS, Mutant
from tests.mutant_list_clients import CLIENT_MUTANTS
from tests.mutant_list_copies import COPIES_MUTANTS
from tests.mutant_list_cursors import CURSOR_MUTANTS
from tests.mutant_list_quic import QUIC_MUTANTS
from tests.mutant_list_server import SERVER_MUTANTS
from tests.mutant_list_spark import SPARK_MUTANTS

ROOT = Path(__file__).resolve().parents[1]
ALL_MUTANTS = (
    *MUTANTS,
    *CURSOR_MUTANTS,
    *QUIC_MUTANTS,
    *SERVER_MUTANTS,
    *CLIENT_MUTANTS,
    *SPARK_MUTANTS,
    *COPIES_MUTANTS,
)
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
    """Changes the copy. Raises ValueError: the text to replace is not there exactly once; SyntaxError: the result is no
    Python, which any test would find."""
    path = root / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: the text occurs {text.count(mutant.old)} times in {mutant.file}, not once")
    changed = text.replace(mutant.old, mutant.new)
    if path.suffix == ".py":
        ast.parse(changed, mutant.name)
    path.write_text(changed)
    for compiled in path.parent.glob(f"{path.stem}.*.so"):
        compiled.unlink()


def run_tests(mutant: Mutant, root: Path) -> subprocess.CompletedProcess[str]:
    """The tests of a mutant, in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
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


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in ALL_MUTANTS if not arguments.names or mutant.name in arguments.names]
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
