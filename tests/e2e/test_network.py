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

import pytest

from netserver.testing import server
from tests.figg_peer import ATTACH, FiggPeer, frame, text
from tests.process_use import cpu_seconds, rss_bytes

NIGHTLY = bool(os.environ.get("QUINTLOG_NIGHTLY"))
MB = 1_000_000


def attach_frame(topic: bytes, offset: int) -> bytes:
    return frame(ATTACH, struct.pack(">H", 0x8000) + text(topic) + struct.pack(">Q", offset))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as opened:
        yield opened


def test_stop_with_idle_streaming_and_stalled_clients_cpython_104344_hypercorn_308(stack: ExitStack) -> None:
    """Row 24 of the known faults of others: it exits with 0, in 5 s, and every acknowledged record is there."""
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
    print(f"stopped after {time.monotonic() - started:.2f} s")
    # The drain itself ends after DRAIN_S and DRAIN_LOG_S; stop() gives up after 15 s on a busy machine.
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
        for _ in range(50):
            honest.send(b"orders", [bytes(1000)])
            assert honest.wait_for_ack(honest.sent - 1)
        connections = process.admin("GET", "/v1/status")["connections"]["figg"]
        assert connections == 201, "none of them had to be closed for that"
        honest.send(b"orders", [bytes(5 << 20)])  # needs the budget: waits until stalled ones are closed
        assert honest.wait_for_ack(honest.sent - 1)
    assert rss_bytes(process) - before < 200 * MB


@pytest.mark.parametrize("megabytes", [1000 if NIGHTLY else 150])
def test_stalled_readers_nats_go_1163_influxdb_21733(stack: ExitStack, megabytes: int) -> None:
    """Row 21: 100 readers that never read while much is published: with default settings and from the first record on,
    memory grows by less than 64 MB (the tail cache and their output up to its mark), and nobody else is affected."""
    process = stack.enter_context(server())
    peer = stack.enter_context(FiggPeer(process.address("figg")))

    def publish(count: int) -> tuple[float, int]:
        """Processor time and most memory that the server has used meanwhile."""
        cpu, most = cpu_seconds(process), 0
        for _ in range(count):
            peer.send(b"orders", [bytes(1000)] * 1000)
            assert peer.wait_for_ack(peer.sent - 8000)
            most = max(most, rss_bytes(process))
        assert peer.wait_for_ack(peer.sent - 1)
        return cpu_seconds(process) - cpu, most

    publish(1)
    before = rss_bytes(process)
    alone_s, _ = publish(50)
    for _ in range(100):
        stalled = stack.enter_context(socket.create_connection(process.address("figg")))
        stalled.sendall(attach_frame(b"orders", 0))
    beside_s, most = publish(megabytes)
    grown = most - before
    per_mb = [alone_s / 50, beside_s / megabytes]
    figures = " and ".join(f"{seconds * 1e3:.1f}" for seconds in per_mb)
    print(f"{megabytes} MB beside 100 stalled readers: {grown / MB:.0f} MB more memory; ms of CPU per MB: {figures}")
    assert grown < 64 * MB
    assert per_mb[1] < 5 * per_mb[0], "what they do not read costs nothing"
    with FiggPeer(process.address("figg")) as reader:
        offsets = [offset for offset, _ in reader.read(b"orders", peer.sent - 5000, 5000)]
    assert offsets == list(range(peer.sent - 4999, peer.sent + 1))


@pytest.mark.parametrize("count", [10_000 if NIGHTLY else 1_000])
def test_idle_connections(stack: ExitStack, count: int) -> None:
    """Many connections that do nothing: 10,000 of them in less than 400 MB for all, and a publisher beside them costs
    the server no more than without them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    process = stack.enter_context(server(settings={"server": {"connections_max": 20_000}}))
    peer = stack.enter_context(FiggPeer(process.address("figg")))

    def publish() -> tuple[float, list[float]]:
        """Processor time of the server, and how long each acknowledgement took."""
        cpu = cpu_seconds(process)
        waits = []
        for _ in range(1000):
            started = time.monotonic()
            peer.send(b"other", [b"x" * 100])
            assert peer.wait_for_ack(peer.sent - 1)
            waits.append(time.monotonic() - started)
        return cpu_seconds(process) - cpu, sorted(waits)

    publish()
    before = rss_bytes(process)
    alone_s, alone = publish()
    for _ in range(count):
        idle = stack.enter_context(socket.create_connection(process.address("figg"), 20))
        idle.sendall(attach_frame(b"orders", 0))
    while process.admin("GET", "/v1/status")["connections"]["figg"] <= count:
        time.sleep(0.01)  # they are accepted when it has the time
    beside_s, beside = publish()
    rss = rss_bytes(process)
    print(f"{count} idle connections: {rss / MB:.0f} MB in all, {(rss - before) / count:.0f} bytes each; a publish:")
    for what, waits in (("without", alone), ("beside", beside)):
        print(f"  {what} them p50 {waits[500] * 1e3:.2f} ms, p99 {waits[990] * 1e3:.2f} ms")
    assert (rss - before) / count < 25_000
    assert rss < 400 * MB
    assert beside_s < 5 * alone_s + 0.1
