"""Servers that begin as a fork of a process that has loaded their modules: a tenth of a start's processor time.

Most of a start are imports. Where it is not the start that is tried, and where dozens are needed, one process loads
everything, once, and each server is forked from it: with arguments, environment, output and signals of its own, and
from there on as the command. What gives `ServerProcess` a command or an environment gets a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Final, cast

import pytest

import quintlog
from netserver.testing import COMMAND, ServerProcess
from tools import engine_server

MESSAGE_BYTES: Final = 1 << 17
"""Arguments and environment: the limit of a packet is above it."""
NUMBER_BYTES: Final = 4
LAUNCHED: Final = ServerProcess._launched


class Forked:
    """What `ServerProcess` uses of `subprocess.Popen`.

    Attributes:
        pid: of the server.
        stdout: what it prints.
        returncode: as `Popen` has it; None while it runs.
    """

    def __init__(self, stdout: IO[str], status: int) -> None:
        self._status = status
        self.stdout = stdout
        self.pid = _number(status)
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._status)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            end = select.poll()
            end.register(self._status, select.POLLIN)
            if not end.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("engine-server", timeout or 0.0)
            with self._lock:  # two threads may wait
                if self.returncode is None:
                    self.returncode = _number(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)


def _number(pipe: int) -> int:
    number = os.read(pipe, NUMBER_BYTES)
    if not number:
        raise RuntimeError("the process that servers are forked from has ended")
    return int.from_bytes(number, "little", signed=True)


class ServerForks:
    """The process that servers are forked from; it begins with the first."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, command: list[str], environment: dict[str, str], log: IO[str]) -> subprocess.Popen[str]:
        """See `netserver.testing.ServerProcess`."""
        control = self._control or self._begin()
        out, their_out = os.pipe()
        status, their_status = os.pipe()
        message = json.dumps([command, environment, str(Path.cwd())]).encode()
        socket.send_fds(control, [message], [their_out, log.fileno(), their_status])
        os.close(their_out)
        os.close(their_status)
        return cast("subprocess.Popen[str]", Forked(open(out), status))

    def close(self) -> None:
        """No more."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait()

    def _begin(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            begin = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({theirs.fileno()})"
            self._process = subprocess.Popen([sys.executable, "-P", "-c", begin], pass_fds=[theirs.fileno()])
        return self._control


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for whoever asks, and tell them how it ended. In the fork: its command; None: nobody asks any more."""
    running: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                poll.unregister(fd)
                pid, status = running.pop(fd)
                _tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(fd)
                os.close(status)
                continue
            message, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
            if not message:
                return None
            pid = os.fork()
            if not pid:
                control.detach()
                return _become(message, *fds)
            out, log, status = fds
            os.close(out)
            os.close(log)
            _tell(status, pid)
            watched = os.pidfd_open(pid)
            running[watched] = pid, status
            poll.register(watched, select.POLLIN)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test has ended
        os.write(status, number.to_bytes(NUMBER_BYTES, "little", signed=True))


def _become(message: bytes, out: int, log: int, _status: int) -> list[str]:
    command, environment, folder = json.loads(message)
    os.dup2(out, 1)
    os.dup2(log, 2)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    found: list[str] = command
    return found


@pytest.fixture(scope="session", autouse=True)
def forked_servers() -> Iterator[None]:
    """`ServerProcess` forks, for tests whose `conftest` has this."""
    forks = ServerForks()

    def launch(process: ServerProcess, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        if process._command != COMMAND or process._environment:
            return LAUNCHED(process, command, environment)
        return forks.launch(command, environment, process._log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerProcess, "_launched", launch)
        yield
    forks.close()


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fork: its command line is looked at."""
    monkeypatch.setattr(ServerProcess, "_launched", LAUNCHED)


def main(control: int) -> None:
    """Load, then serve; in a fork, be the command."""
    engine_server.load_aiohttp()
    for name in ("netserver.app", "uvloop", *engine_server.PROTOCOL_MODULES):
        import_module(name)
    gc.collect()
    gc.freeze()
    command = _serve(socket.socket(fileno=control))
    if command is not None:
        sys.orig_argv[:] = command
        sys.argv[:] = command[command.index("engine-server") :]
        quintlog.engine_server()
