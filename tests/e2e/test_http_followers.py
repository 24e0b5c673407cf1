"""Many followers over HTTP, lines and WebSockets: all get all, whoever does not read holds nobody up, and neither the
loop nor memory moves. A thousand of them when QUINTLOG_NIGHTLY=1.
"""

from __future__ import annotations

import resource
import selectors
import socket
import time
from pathlib import Path

from netserver.testing import ServerProcess, server
from tests.e2e.test_fairness import NIGHTLY, slow_turns
from tests.figg_peer import FiggPeer
from tests.prober import Prober, percentile

FOLLOWERS = 1000 if NIGHTLY else 120
ROUNDS = 40
RECORDS = 200
"""In each round; the next one comes when all who read have the last one."""
FOLLOWER_BYTES_MAX = 300_000
"""Of memory: an answer that waits for its reader, and what the log keeps of its tail in memory for all of them."""
OFFSET = b'"offset":'
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
PONG = b"\x8a\x80\0\0\0\0"
"""A WebSocket's sign of life."""
PATIENCE_S = 300.0


class Follower:
    """One connection; ``reads`` False: it takes nothing until it is told to."""

    def __init__(self, process: ServerProcess, number: int) -> None:
        self.count = 0
        self.reads = number % 20 != 0
        self._tail = b""
        self._is_websocket, self._told_s = number % 2 == 1, time.monotonic()
        self.socket = socket.socket()
        self.socket.bind((f"127.3.{number % 8}.1", 0))
        self.socket.connect(process.address("admin"))
        upgrade = UPGRADE if self._is_websocket else ""
        self.socket.sendall(
            f"GET /v1/topics/t/records?follow=true&from=earliest&credit=1000000 HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {process.token}\r\n{upgrade}\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(1)
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")), head

    def read(self) -> int:
        """What is there; how many more records."""
        received = self.socket.recv(1 << 18)
        assert received, f"ended after {self.count} records"
        data = self._tail + received
        if self._is_websocket and time.monotonic() - self._told_s > 1:
            self._told_s = time.monotonic()
            self.socket.sendall(PONG)
        found = data.count(OFFSET)
        self._tail = data[1 - len(OFFSET) :]
        self.count += found
        return found


def memory_bytes(process: ServerProcess) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


def read_until(followers: list[Follower], count: int) -> None:
    """All of these have so many records."""
    until, left = time.monotonic() + PATIENCE_S, sum(follower.count < count for follower in followers)
    with selectors.DefaultSelector() as selector:
        for follower in followers:
            selector.register(follower.socket, selectors.EVENT_READ, follower)
        while left:
            assert time.monotonic() < until, f"{left} followers wait for record {count}"
            for key, _ in selector.select(1):
                before = key.data.count
                key.data.read()
                left -= before < count <= key.data.count
    assert {follower.count for follower in followers} == {count}


def test_many_followers_get_everything_and_hold_nobody_up() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with server() as process, FiggPeer(process.address("figg"), PATIENCE_S) as publisher:
        publisher.send(b"t", [b"x" * 200])
        assert publisher.wait_for_ack(0)
        followers = [Follower(process, number) for number in range(FOLLOWERS)]
        try:
            memory_before = memory_bytes(process)
            readers = [follower for follower in followers if follower.reads]
            with Prober("blipmq", process.address("blipmq")) as prober:
                quiet = prober.take(20)
                for number in range(ROUNDS):
                    publisher.send(b"t", [b"x" * 200] * RECORDS)
                    read_until(readers, (number + 1) * RECORDS + 1)
                beside = prober.take(1)
            grown = memory_bytes(process) - memory_before
            read_until(followers, ROUNDS * RECORDS + 1)  # those that did not read, too
            above, longest_s = slow_turns(process)
            print(
                f"\n{FOLLOWERS} followers: {grown / FOLLOWERS / 1e3:.0f} kB each; longest turn {longest_s * 1e3:.0f} ms"
            )
            print(f"p99 {percentile(quiet, 0.99):.1f} ms quiet, {percentile(beside, 0.99):.1f} ms beside them")
            assert above == 0, process.log_text[-2000:]
            assert grown < FOLLOWERS * FOLLOWER_BYTES_MAX
        finally:
            for follower in followers:
                follower.socket.close()
