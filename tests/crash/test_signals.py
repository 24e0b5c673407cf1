"""A signal at every moment of a command: it ends in order or goes on, says no traceback and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import quintlog
from engine.files.lock import is_in_use
from netserver.testing import server
from tests.engine_log import EngineLog, fill
from tests.server_support import FIGG_ONLY, publish

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
STEP_S = 0.02
MOMENTS = 3
"""In the commit run, of each signal."""
GOES_ON = (signal.SIGHUP, signal.SIGPIPE)
ALL = (*GOES_ON, signal.SIGINT, signal.SIGTERM)
QUICK = (signal.SIGHUP, signal.SIGTERM)
"""One that it goes on after, one that ends it."""
PORTS = [
    part
    for name in ("figg", "reliably", "tank", "blipmq", "fujin", "kafka", "admin")
    for part in (f"--{name}", "127.0.0.1:0")
]


class Command:
    """A command with our handlers in place; what it says goes to a file."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self._said = tmp_path / "said"
        with self._said.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(quintlog.ROOT / "quintlog.py"), *arguments], stdout=file, stderr=file
            )
        self._wait_for(lambda: self._is_handled(signal.SIGTERM))
        self.began_s = time.monotonic()

    def _is_handled(self, number: int) -> bool:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return False

    def _wait_for(self, condition: object) -> None:
        deadline = time.monotonic() + 60
        while not condition() and self.process.poll() is None:  # type: ignore[operator]
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(self.said)
            threading.Event().wait(0.001)

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def wait_for(self, text: str) -> float:
        """Seconds that it took to say so (or to end)."""
        self._wait_for(lambda: text in self.said)
        return time.monotonic() - self.began_s

    def send_at(self, moment_s: float, number: signal.Signals) -> None:
        threading.Event().wait(max(0.0, self.began_s + moment_s - time.monotonic()))
        self.process.send_signal(number)

    def end(self) -> int:
        try:
            code = self.process.wait(60)
        finally:
            self.process.kill()
        assert "Traceback" not in self.said, self.said
        assert "Exception ignored" not in self.said, self.said
        return code


def moments(whole_s: float) -> list[float]:
    count = int(whole_s / STEP_S) + 2 if NIGHTLY else MOMENTS
    return [whole_s * number / (count - 1) for number in range(count)]


@pytest.mark.timeout(3600 if NIGHTLY else 120)
@pytest.mark.parametrize(
    "number",
    [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in ALL],
    ids=lambda one: one.name,
)
def test_a_server_that_starts(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    arguments = ("engine-server", "--data-dir", str(data), *PORTS)
    with EngineLog(data) as engine:
        engine.append([b"first"])
    usual = Command(tmp_path, *arguments)
    whole_s = usual.wait_for("\nready\n")
    usual.process.terminate()
    assert usual.end() == 0
    print(f"{number.name}: {len(moments(whole_s))} moments within {whole_s:.2f} s")
    for moment_s in moments(whole_s):
        command = Command(tmp_path, *arguments)
        command.send_at(moment_s, number)
        if number in GOES_ON:
            command.wait_for("\nready\n")
            if number == signal.SIGHUP:
                command.wait_for("configuration reloaded")
            command.process.terminate()
        assert command.end() == 0, (moment_s, command.said)
        assert not (data / "server.json").exists(), (moment_s, command.said)
        assert not is_in_use(data)
    with EngineLog(data) as engine:
        assert engine.values() == [b"first"]


def test_whoever_asks_twice_does_not_wait(tmp_path: Path) -> None:
    """Also before anything is loaded."""
    command = Command(tmp_path, "engine-server", "--data-dir", str(tmp_path / "data"), *PORTS)
    command.process.send_signal(signal.SIGTERM)
    while command.process.poll() is None:  # two of a kind that wait are one
        command.process.send_signal(signal.SIGTERM)
    assert command.end() in (0, 128 + signal.SIGTERM), command.said


@pytest.mark.timeout(3600 if NIGHTLY else 120)
@pytest.mark.parametrize("number", ALL, ids=lambda number: number.name)
def test_logtool(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    with EngineLog(data) as engine:
        fill(engine, 40)
    arguments = ("logtool", "--data-dir", str(data), "cat", "t")
    usual = Command(tmp_path, *arguments)
    assert usual.end() == 0
    whole_s = time.monotonic() - usual.began_s
    print(f"{number.name}: {len(moments(whole_s))} moments within {whole_s:.2f} s")
    for moment_s in moments(whole_s):
        command = Command(tmp_path, *arguments)
        command.send_at(moment_s, number)
        wanted = {0} if number == signal.SIGPIPE else {0, 128 + number}
        assert command.end() in wanted, (moment_s, command.said[-2000:])


LATE = """
import os, signal, sys
import quintlog
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=int(sys.argv.pop())):
        kill(pid, number)
late = Late()
quintlog.logtool()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_while_the_interpreter_takes_itself_down(number: signal.Signals) -> None:
    """The work is done, and the exit code says so."""
    command = [sys.executable, "-c", LATE, "--version", str(int(number))]
    done = subprocess.run(command, cwd=quintlog.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_logtool_cleans_up_behind_itself(tmp_path: Path, number: signal.Signals) -> None:
    """What waits for more is ended like by Ctrl-C, whichever the signal is."""
    data = tmp_path / "data"
    with server(data, FIGG_ONLY) as process:
        assert publish(process, b"t", b"first")
        command = Command(tmp_path, "logtool", "--data-dir", str(data), "tail", "t")
        command.wait_for("first")
        command.process.send_signal(number)
        assert command.end() == 128 + number
        assert command.said == "first\n"
