"""The long sizes, one file of tests after the other, each in a process of its own: what fails, hangs or crashes in one
costs the others nothing. Ends with a summary of results, times and figures; the exit code is 1 when anything failed.

::

    python -m tests.nightly                          # everything (make nightly)
    python -m tests.nightly tests/crash tests/fuzz/test_fuzz_figg.py
    python -m tests.nightly --timeout-s 600          # for each test that has no limit of its own

What each file printed stands in ``build/nightly``. It does not fail for being slow; the load of the machine is stated.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "nightly"
NOTHING_COLLECTED = 5
SETTINGS = {"QUINTLOG_NIGHTLY": "1", "COLUMNS": "200"}
SUMMARY = re.compile(r"^(FAILED|ERROR|SKIPPED)\b")
NOISE = re.compile(r"^([.sxFEX]+|=+.*=+|\s*|-- Docs: .*|\d+ (passed|failed|skipped|deselected).*)$")
FIGURES_MAX = 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one file."""

    path: Path
    code: int
    seconds: float
    load: float
    figures: list[str]
    failures: list[str]

    @property
    def line(self) -> str:
        """For the summary."""
        result = {0: "passed", NOTHING_COLLECTED: "nothing"}.get(self.code, f"FAILED ({self.code})")
        return f"{result:12} {self.seconds:8.0f} s  load {self.load:5.1f}  {self.path}"


def files_of(paths: list[Path]) -> list[Path]:
    """The files of tests among, or below, some paths."""
    found = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    return [file.resolve().relative_to(ROOT) for file in found]


def run(path: Path, timeout_s: int) -> Outcome:
    log = LOGS / f"{'-'.join(path.with_suffix('').parts[1:])}.log"
    command = [sys.executable, "-m", "pytest", "-q", "-s", f"--timeout={timeout_s}", str(path)]
    begun = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **SETTINGS}, stdout=out, stderr=out, check=False)
    seconds = time.monotonic() - begun
    lines = log.read_text("utf-8", "replace").splitlines()
    head = next((at for at, line in enumerate(lines) if "= FAILURES =" in line or "= ERRORS =" in line), len(lines))
    texts = [line.lstrip(".sx") for line in lines[:head] if not NOISE.match(line)]
    failures = [line for line in lines if SUMMARY.match(line) and not line.startswith("SKIPPED")]
    return Outcome(path, done.returncode, seconds, os.getloadavg()[0], texts[-FIGURES_MAX:], failures)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "tests"])
    parser.add_argument("--timeout-s", type=int, default=7200)
    options = parser.parse_args(arguments)
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for path in files_of(options.paths):
        print(f"{path} ...", flush=True)
        outcome = run(path, options.timeout_s)
        outcomes.append(outcome)
        for text in (outcome.line, *outcome.figures, *outcome.failures):
            print(f"    {text}", flush=True)
    failed = [outcome for outcome in outcomes if outcome.code not in (0, NOTHING_COLLECTED)]
    print(f"\n{len(outcomes)} files, {len(failed)} failed, {sum(one.seconds for one in outcomes) / 60:.0f} minutes")
    for outcome in (*(one for one in outcomes if one not in failed), *failed):
        print(outcome.line)
    for outcome in failed:
        for failure in outcome.failures:
            print(failure)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
