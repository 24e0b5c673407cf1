"""``engine-server`` under a service manager: its messages, and sockets that others have opened."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from netserver.testing import ROOT, server
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole

ACTIVATE = """
import os, sys
for number, fd in enumerate(sys.argv[1:3], 3):
    os.dup2(int(fd), number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[3], sys.argv[3:])
"""
LISTENERS = ("figg", "reliably", "tank", "blipmq", "fujin", "kafka")


class Manager:
    """Reads what a service says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listening.bind(str(path))
        self.listening.settimeout(60)

    def wait(self, word: str) -> dict[str, str]:
        """The next message that has such a line."""
        while True:
            message = dict(line.partition("=")[::2] for line in self.listening.recv(4096).decode().split("\n"))
            if word in message:
                return message


def test_the_service_manager_hears_of_each_step(tmp_path: Path) -> None:
    manager = Manager(tmp_path / "notify")
    watched = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1000000"}
    with manager.listening, server(environment=watched) as process:
        assert manager.wait("READY")["STATUS"].startswith("0 connections on figg, reliably, tank, blipmq, fujin, kafka")
        assert manager.wait("WATCHDOG")["WATCHDOG"] == "1"
        os.kill(process.pid, signal.SIGHUP)
        assert int(manager.wait("RELOADING")["MONOTONIC_USEC"]) > 0
        assert "failed" not in manager.wait("READY")["STATUS"]
        manager.wait("WATCHDOG")
        os.kill(process.pid, signal.SIGTERM)
        manager.wait("STOPPING")
        assert process.wait() == 0


def test_a_loop_that_hangs_is_not_heard_of(tmp_path: Path) -> None:
    """The heart beats are the event loop's own; here the whole process stands still."""
    manager = Manager(tmp_path / "notify")
    watched = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "100000"}
    with manager.listening, server(environment=watched) as process:
        manager.wait("WATCHDOG")
        os.kill(process.pid, signal.SIGSTOP)
        manager.listening.settimeout(1)
        with pytest.raises(TimeoutError):
            manager.wait("none of the messages")
        os.kill(process.pid, signal.SIGCONT)
        manager.listening.settimeout(60)
        manager.wait("WATCHDOG")


def test_sockets_of_systemd(tmp_path: Path) -> None:
    """As systemd passes them: from descriptor 3 on, named or not; who connects before the start waits for it."""
    made = {name: socket.create_server(("127.0.0.1", 0)) for name in ("figg", "admin")}
    ports = {name: one.getsockname()[1] for name, one in made.items()}
    fds = [one.fileno() for one in made.values()]
    command = [sys.executable, "-c", ACTIVATE, *map(str, fds), sys.executable, "-P", str(ROOT / "quintlog.py")]
    command += ["engine-server"]
    command += ["--data-dir", str(tmp_path / "data"), "--figg", f"127.0.0.1:{ports['figg']}", "--admin", "127.0.0.1:0"]
    command += [part for name in LISTENERS[1:] for part in (f"--{name}", "off")]
    environment = {**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "quintlog.socket:admin"}
    with (
        socket.create_connection(("127.0.0.1", ports["admin"]), 60) as early,
        subprocess.Popen(command, env=environment, pass_fds=fds, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            for one in made.values():
                one.close()
            assert process.stdout is not None
            lines = list(itertools.takewhile(lambda line: line != "ready", map(str.strip, process.stdout)))
            assert f"figg 127.0.0.1:{ports['figg']}" in lines
            assert f"admin 127.0.0.1:{ports['admin']}" in lines
            early.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert early.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_units_are_valid_and_hardened(tmp_path: Path, logtool: Logtool) -> None:
    texts = {kind: logtool("--data-dir", "/srv/log", "generate", kind)[1] for kind in ("systemd", "systemd-socket")}
    service, sockets = tmp_path / "quintlog.service", tmp_path / "quintlog.socket"
    lines = ("ExecStart=/bin/true" if line.startswith("ExecStart=") else line for line in texts["systemd"].split("\n"))
    service.write_text("\n".join(lines))
    sockets.write_text(texts["systemd-socket"])
    command = ["systemd-analyze", "verify", "--man=no", str(service), str(sockets)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (verified.returncode, verified.stderr) == (0, ""), "an unknown key is told, but ends with 0"
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(service)]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert judged.returncode == 0, judged.stdout[-2000:]


def test_a_unit_says_when_it_opens_homes(logtool: Logtool) -> None:
    home = "/" + "home/ann/log"
    _, out, err = logtool("--data-dir", home, "generate", "systemd")
    assert "ProtectHome=read-only\n" in out
    assert f"{home}: homes are hidden from services, so this unit opens them" in " ".join(err.split())


def test_the_socket_unit_has_the_addresses_of_the_configuration(tmp_path: Path, logtool: Logtool) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text('[figg]\nlisten = "[::1]:7"\n[tank]\nlisten = "off"\n[fujin]\nlisten = "localhost:8"\n')
    out = logtool("generate", "systemd-socket", "--config", str(path))[1]
    for line in ("ListenStream=[::1]:7", "ListenDatagram=127.0.0.1:8", "ListenStream=127.0.0.1:9180"):
        assert f"{line}\n" in out
    assert ":11011" not in out
    assert json.dumps(out)
