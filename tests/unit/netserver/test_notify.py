"""What a service manager is told, on a socket as systemd has it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from netserver.notify import Notifier


def heard(path: str) -> socket.socket:
    """A service manager's socket."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(path)
    listening.settimeout(10)
    return listening


@pytest.mark.parametrize("is_abstract", [False, True])
def test_each_message_is_a_datagram(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@quintlog-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with heard(name.replace("@", "\0", 1) if is_abstract else name) as manager:
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
        notifier = Notifier(environment)
        assert environment == {}, "children of ours are not our service manager's business"
        assert notifier.watchdog_s == 30
        assert notifier.environment == {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"}
        notifier.ready("5 connections")
        assert manager.recv(100) == b"READY=1\nSTATUS=5 connections"
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        notifier.reloading()
        first, moment, status = manager.recv(200).decode().split("\n")
        assert (first, status) == ("RELOADING=1", "STATUS=reading the configuration")
        assert before <= int(moment.removeprefix("MONOTONIC_USEC=")) <= before + 60_000_000
        notifier.stopping()
        assert manager.recv(100).startswith(b"STOPPING=1\n")


def test_nobody_is_told_and_nobody_waits(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "none")}, {"WATCHDOG_USEC": "1"}):
        Notifier(environment).ready("")
    assert Notifier({"WATCHDOG_USEC": "1"}).watchdog_s is None
    of_another = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert Notifier(of_another).watchdog_s is None
    name = str(tmp_path / "full")
    with heard(name) as manager:  # which does not read
        notifier = Notifier({"NOTIFY_SOCKET": name})
        for _ in range(10_000):
            notifier.tell("STATUS=again")
        assert manager.recv(100) == b"STATUS=again"
