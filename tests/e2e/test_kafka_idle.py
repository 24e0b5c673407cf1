"""Many Kafka consumers that wait for records: what each costs, and that all are answered when there are some."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import ExitStack

import pytest

from netserver.kafka.apis import APIS, Key
from netserver.kafka.codec import Head, encode_request
from netserver.testing import ServerProcess, server
from tests.kafka_peer import batch, fetch, metadata, produce
from tests.process_use import cpu_seconds, rss_bytes

pytestmark = pytest.mark.whole

NIGHTLY = bool(os.environ.get("QUINTLOG_NIGHTLY"))
WAIT_S = 20.0


def longest_turn_s(process: ServerProcess) -> float:
    found = re.search(r"^quintlog_loop_turn_seconds_max (\S+)$", process.admin("GET", "/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1])


def asked(key: Key, body: dict[str, object]) -> bytes:
    return bytes(encode_request(Head(key, APIS[key].last, 1), "idle", body))


def answer(peer: socket.socket) -> bytes:
    """The whole of the next answer."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        came = peer.recv(1 << 16)
        assert came, "the server has closed the connection"
        data += came
    return data


@pytest.mark.parametrize("count", [1000 if NIGHTLY else 100])
def test_consumers_that_wait_cost_little_and_are_all_answered(count: int) -> None:
    with ExitStack() as stack:
        process = stack.enter_context(server())
        connect = lambda: stack.enter_context(  # noqa: E731
            socket.create_connection(process.address("kafka"), WAIT_S)
        )
        producer = connect()
        producer.sendall(asked(Key.METADATA, metadata("awaited")))
        assert answer(producer)
        before = rss_bytes(process)
        peers = [connect() for _ in range(count)]
        for peer in peers:
            peer.sendall(asked(Key.FETCH, fetch("awaited", (0, 1), wait_ms=300_000)))
        while process.admin("GET", "/v1/status")["connections"]["kafka"] <= count:
            time.sleep(0.01)  # they are accepted when it has the time
        each = (rss_bytes(process) - before) / count
        cpu_s = cpu_seconds(process)
        time.sleep(1)  # what is measured is what silence costs
        idle_s = cpu_seconds(process) - cpu_s
        producer.sendall(asked(Key.PRODUCE, produce("awaited", batch(b"here"))))
        assert all(b"here" in answer(peer) for peer in peers)
        turn_s = longest_turn_s(process)
        print(f"{count} that wait: {each:.0f} bytes each, {idle_s * 1e3:.0f} ms of CPU a second, {turn_s * 1e3:.0f} ms")
        assert each < 25_000
        assert idle_s < 0.5
        assert "Traceback" not in process.log_text
