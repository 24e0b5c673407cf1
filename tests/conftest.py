"""What holds for all tests: none that needs root is skipped in CI, where it would be one that nobody ever runs;
examples that are drawn have as long as they need, and are the same in each CI run of the same tests. CI is told which
tests took most of the processor.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("QUINTLOG_CI") == "1"
SHOWN = 15
TAKEN_S: dict[str, float] = {}
# A deadline would measure the machine. New examples are looked for by every run elsewhere, and by the nightly one.
settings.register_profile(
    "quintlog", deadline=None, derandomize=IN_CI, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quintlog")

# The contexts of whoever runs the tests are none of theirs.
NO_SETTINGS = tempfile.TemporaryDirectory(prefix="quintlog-home-")
os.environ["XDG_CONFIG_HOME"] = NO_SETTINGS.name

# A server without bytecode takes three times as long to start, and tests start hundreds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a script runs in the background ignores SIGINT, what nohup runs SIGHUP; so would the commands that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Makes the skipping of a test marked `root` a failure where QUINTLOG_CI is set."""
    report = yield
    if report.skipped and IN_CI and item.get_closest_marker("root") is not None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} needs root and was skipped: CI has to run it"
    return report


def processor_s() -> float:
    """Of this process and of the children that it has waited for, with theirs."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Counts what a test took; a server that several share counts where it ends."""
    before_s = processor_s()
    try:
        return (yield)
    finally:
        TAKEN_S[item.nodeid] = processor_s() - before_s


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long a test waits depends on the machine; what it takes of the processor is what CI has least of."""
    if IN_CI:
        terminalreporter.section(f"{processor_s():.0f} s of processor time")
        for name in sorted(TAKEN_S, key=TAKEN_S.__getitem__, reverse=True)[:SHOWN]:
            terminalreporter.line(f"{TAKEN_S[name]:6.2f} s {name}")


@pytest.fixture
def replaceable_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit rounds go through the log's ``files``, so that a test can replace calls of it."""
    monkeypatch.setattr("engine.commit.native_rounds.COMPILED", False)
