"""Many BlipMQ subscriptions: what a start, a published record and an acknowledgement cost."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.cursors.stored_cursors import Entry, put_entry
from engine.cursors.table import NEXT_CURSOR_ID
from engine.state.store import Put
from netserver.blipmq import codec
from netserver.testing import server
from tests.blipmq_peer import Peer
from tests.engine_log import EngineLog

SETTINGS = {"blipmq": {"retry_backoff_ms": "1h", "retry_backoff_max_ms": "1h"}, "engine": {"tail_cache_bytes": "4 MiB"}}


def resident_mib(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def written_bytes(pid: int) -> int:
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["write_bytes"])


def subscribe(peer: Peer, topic: bytes, count: int) -> list[int]:
    """So many subscriptions, pipelined."""
    ids: list[int] = []
    reader = threading.Thread(target=lambda: ids.extend(codec.parse_ack(frame.payload) for frame in peer.frames(count)))
    reader.start()
    for _ in range(0, count, 1000):
        peer.send(b"".join(codec.subscribe(1, topic, 1) for _ in range(1000)))
    reader.join()
    return ids


@pytest.mark.slow
def test_a_hundred_thousand_idle_subscriptions(tmp_path: Path) -> None:
    count = 100_000
    with EngineLog(tmp_path / "data") as engine:
        engine.append([b"x"])
        topic = engine.partition().topic
        now_ms = engine.log.now_ms()  # one that nobody has used for long would expire
        entries = (Entry(n, "blipmq", b"", topic.id, 0, 1, 0, now_ms, now_ms, 1, [1]) for n in range(1, count + 1))
        puts = list(map(put_entry, entries))
        answers: list[object] = []
        engine.log.state.submit([*puts, Put(NEXT_CURSOR_ID, count + 1)], answers.append)
        engine.inbox.run_until(lambda: bool(answers))
    with EngineLog(tmp_path / "data") as engine:
        assert len(engine.log.cursors) == count
        assert engine.log.cursors.loaded() == []
    with server(tmp_path / "data", settings=SETTINGS) as process:
        assert resident_mib(process.pid) < 200
        with Peer(process.address("blipmq")) as peer:
            for subscription in (1, count // 2, count):
                assert peer.poll(subscription) == [(1, b"x")]
            assert peer.subscribe(b"t") > count, "ids leap at each start"


def test_ten_thousand_subscriptions_of_one_topic_cost_nothing_per_record() -> None:
    with server(settings=SETTINGS) as process, Peer(process.address("blipmq")) as peer:
        ids = subscribe(peer, b"t", 10_000)
        assert sorted(ids) == ids
        block = b"".join(codec.publish(1, 1, b"t", b"x" * 100) for _ in range(4000))

        def publish(blocks: int) -> float:
            for _ in range(blocks):
                peer.send(block)
                assert peer.until_pong() == []
            return resident_mib(process.pid)

        before = publish(25)
        assert publish(50) - before < 10, "20 MB in 200,000 records"
        assert [len(peer.poll(one, 10)) for one in ids[::1000]] == [10] * 10


@pytest.mark.slow
def test_acknowledgements_of_many_subscriptions_are_written_together() -> None:
    with server(settings=SETTINGS) as process, Peer(process.address("blipmq")) as peer:
        ids = subscribe(peer, b"t", 20_000)[::20]
        peer.publish(b"t", *(b"%d" % n for n in range(20)))
        before = written_bytes(process.pid)
        for tag in range(1, 21):
            peer.send(b"".join(codec.poll(1, one) for one in ids))
            assert len(peer.until_pong()) == len(ids)
            peer.send(b"".join(codec.ack(tag, one) for one in ids))
            assert peer.until_pong() == []
        time.sleep(0.3)  # the last ones are written within 100 ms
        assert (written_bytes(process.pid) - before) / (20 * len(ids)) < 1000, "a page for each would be 4096"


@pytest.mark.slow
def test_a_hundred_stalled_readers_and_two_hundred_slow_logins() -> None:
    """Neither costs more than its bound, and nobody else waits for them."""
    with ExitStack() as stack:
        patient = {**SETTINGS["blipmq"], "handshake_timeout": "5min"}
        process = stack.enter_context(server(settings={**SETTINGS, "blipmq": patient}))
        address = process.address("blipmq")
        peer = stack.enter_context(Peer(address))
        ids = [peer.subscribe(b"t") for _ in range(100)]
        block = b"".join(codec.publish(1, 1, b"t", bytes(64_000)) for _ in range(10))
        for _ in range(20):
            peer.send(block)
            assert peer.until_pong() == []
        before = resident_mib(process.pid)
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(200)]
        for byte in codec.hello(1) + codec.auth(2, "k")[:-1]:
            for connection in slow:
                connection.send(bytes((byte,)))
        stalled = [stack.enter_context(Peer(address)) for _ in ids]
        for reader, one in zip(stalled, ids, strict=True):
            reader.send(b"".join(codec.poll(1, one) for _ in range(200)))  # 12.8 MB each, and reads nothing of it
        subscription = peer.subscribe(b"quiet")
        for n in range(200):
            peer.publish(b"quiet", b"%d" % n)
            ((tag, body),) = peer.poll(subscription)
            assert body == b"%d" % n
            assert peer.ack(subscription, tag) == []
        assert resident_mib(process.pid) - before < 64, "up to the high-water mark of output and a portion each"
        assert [len(frame.payload) for frame in stalled[0].frames(200)] == [64_004] * 200, "who reads again gets it all"
        for connection in slow:
            connection.send(b"k")
        assert all(connection.recv(100)[4] == codec.FrameType.ACK for connection in slow)
