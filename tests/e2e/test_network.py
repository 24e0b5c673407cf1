"""The server as a process under unfriendly clients: stalled readers, half-sent frames, idle crowds, its own end."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.figg_peer import ATTACH, FiggPeer, frame, text

NIGHTLY = bool(os.environ.get("QUINTLOG_NIGHTLY"))
MB = 1_000_000


def rss_bytes(process: ServerProcess) -> int:
    """Resident memory of the server."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def attach_frame(topic: bytes, offset: int) -> bytes:
    return frame(ATTACH, struct.pack(">H", 0x8000) + text(topic) + struct.pack(">Q", offset))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as opened:
        yield opened


def test_stop_with_idle_streaming_and_stalled_clients_cpython_104344_hypercorn_308(stack: ExitStack) -> None:
    """Row 24 of the known faults of others: exit 0 in less than 5 s, and every acknowledged record is there."""
    process = stack.enter_context(server())
    for _ in range(20):  # idle
        stack.enter_context(socket.create_connection(process.address("figg")))
    for _ in range(20):  # stalled: they ask for everything and never read
        stalled = stack.enter_context(socket.create_connection(process.address("figg")))
        stalled.sendall(attach_frame(b"orders", 0))
    half = stack.enter_context(socket.create_connection(process.address("figg")))
    half.sendall(frame(5, bytes(100_000))[:50_000])
    peers = [stack.enter_context(FiggPeer(process.address("figg"))) for _ in range(3)]
    errors: list[AssertionError] = []

    def stream(number: int, peer: FiggPeer) -> None:
        """Publish without a pause until the connection ends."""
        try:
            for turn in range(1_000_000):
                peer.send(b"orders", [b"%d:%d:%d" % (number, turn, at) + bytes(200) for at in range(500)])
                if not peer.wait_for_ack(peer.sent - 2000):
                    return
        except OSError:
            return
        except AssertionError as error:
            errors.append(error)

    threads = [threading.Thread(target=stream, args=pair) for pair in enumerate(peers)]
    for thread in threads:
        thread.start()
    while min(peer.acked for peer in peers) < 20_000:
        time.sleep(0.01)
    started = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - started < 5
    for thread in threads:
        thread.join(20)
    assert not errors

    process.restart()
    with FiggPeer(process.address("figg")) as reader:
        end = process.admin("GET", "/v1/topics/orders")["partition_details"][0]["next_offset"] - 1
        stored = reader.read(b"orders", 0, end)
    for number, peer in enumerate(peers):
        own = [value for _, value in stored if value.startswith(b"%d:" % number)]
        assert len(own) > peer.acked
        expected = [b"%d:%d:%d" % (number, at // 500, at % 500) + bytes(200) for at in range(len(own))]
        assert own == expected


def test_half_sent_frames_of_200_peers_do_not_starve_the_rest(stack: ExitStack) -> None:
    """Each holds 4 MiB of a 15 MiB frame: memory stays below the budget, others publish large frames as before."""
    process = stack.enter_context(server(settings={"server": {"receive_bytes_max": "64 MiB"}}))
    before = rss_bytes(process)
    head = frame(5, bytes(0))[:4] + struct.pack(">I", 15 << 20)
    peers = []
    for _ in range(200):
        peer = stack.enter_context(socket.create_connection(process.address("figg")))
        peer.setblocking(False)
        peers.append(peer)
    content = bytes(4 << 20)
    for peer in peers:
        peer.send(head)
        try:
            while peer.send(content) == len(content):
                pass
        except BlockingIOError:
            continue
    with FiggPeer(process.address("figg")) as honest:
        slowest = 0.0
        for _ in range(50):
            started = time.monotonic()
            honest.send(b"orders", [bytes(1000)])
            assert honest.wait_for_ack(honest.sent - 1)
            slowest = max(slowest, time.monotonic() - started)
        assert slowest < 1
        honest.send(b"orders", [bytes(5 << 20)])  # needs the budget: waits until stalled ones are closed
        assert honest.wait_for_ack(honest.sent - 1)
    assert rss_bytes(process) - before < 200 * MB


@pytest.mark.parametrize("megabytes", [1000 if NIGHTLY else 150])
def test_stalled_readers_nats_go_1163_influxdb_21733(stack: ExitStack, megabytes: int) -> None:
    """Row 21: 100 readers that never read while much is published cost no more memory than their output marks."""
    process = stack.enter_context(server(settings={"engine": {"tail_cache_bytes": "8 MiB"}}))
    peer = stack.enter_context(FiggPeer(process.address("figg")))

    def publish(count: int) -> float:
        started = time.monotonic()
        for _ in range(count):
            peer.send(b"orders", [bytes(1000)] * 1000)
            assert peer.wait_for_ack(peer.sent - 8000)
        assert peer.wait_for_ack(peer.sent - 1)
        return time.monotonic() - started

    publish(30)
    alone = publish(30)
    before = rss_bytes(process)
    for _ in range(100):
        stalled = stack.enter_context(socket.create_connection(process.address("figg")))
        stalled.sendall(attach_frame(b"orders", 0))
    beside = publish(megabytes) * 30 / megabytes
    grown = rss_bytes(process) - before
    assert grown < 64 * MB, f"{grown / MB:.0f} MB more"
    assert beside < 10 * alone + 1


@pytest.mark.parametrize("count", [9_000 if NIGHTLY else 1_000])
def test_idle_connections(stack: ExitStack, count: int) -> None:
    """Many connections that do nothing: little memory, no CPU, a publisher beside them does not notice."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    process = stack.enter_context(server(settings={"server": {"connections_max": 20_000}}))
    before = rss_bytes(process)
    for _ in range(count):
        idle = stack.enter_context(socket.create_connection(process.address("figg"), 20))
        idle.sendall(attach_frame(b"orders", 0))
    with FiggPeer(process.address("figg")) as peer:
        waits = []
        for _ in range(200):
            started = time.monotonic()
            peer.send(b"other", [b"x" * 100])
            assert peer.wait_for_ack(peer.sent - 1)
            waits.append(time.monotonic() - started)
    assert process.admin("GET", "/v1/status")["connections"]["figg"] >= count
    per_connection = (rss_bytes(process) - before) / count
    assert per_connection < 25_000
    assert sorted(waits)[100] < 0.05
