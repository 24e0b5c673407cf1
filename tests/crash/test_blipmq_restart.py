"""What a BlipMQ subscription remembers when its server is killed: positions, tags, acknowledgements, damage."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cursors.documents import entry_item, stored_entries
from engine.state.store import StateReader
from netserver.blipmq import codec
from netserver.blipmq.codec import FrameType
from netserver.testing import ServerProcess, server
from tests.blipmq_peer import Peer

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
SLOW_RETRY = {"blipmq": {"retry_backoff_ms": "1h", "retry_backoff_max_ms": "1h", "allowed_api_keys": "dev-key-1"}}
SYNCED = {"blipmq": {**SLOW_RETRY["blipmq"], "acks": "synced"}}


def body(number: int) -> bytes:
    return b"message %d" % number + b"." * (number % 300)


def poll_all(peer: Peer, subscription: int) -> list[tuple[int, bytes]]:
    """Everything that is pending, (tag, body)."""
    got: list[tuple[int, bytes]] = []
    while batch := peer.poll(subscription, 100):
        got += batch
    return got


def stored_acks(data_dir: Path, subscription: int) -> tuple[int, int]:
    """(number of the next message to deliver, delivered messages that are not acknowledged), as the files say."""
    state = StateReader.open(data_dir / "state")
    try:
        (entry,) = (entry for entry in stored_entries(state, pytest.fail) if entry.id == subscription)  # type: ignore[arg-type]
    finally:
        state.close()
    item = entry_item(entry, b"t", None)
    return int(item["next_offset"]), int(item["unacknowledged"])


def published(process: ServerProcess, count: int = 200) -> int:
    """A subscription to ``t`` and so many messages in rounds of 10, all stored."""
    with Peer(process.address("blipmq")) as peer:
        subscription = peer.subscribe(b"t")
        for first in range(1, count + 1, 10):
            peer.publish(b"t", *(body(n) for n in range(first, first + 10)))
    return subscription


@pytest.mark.parametrize("settings", [SLOW_RETRY, pytest.param(SYNCED, marks=pytest.mark.slow)], ids=["lazy", "synced"])
def test_what_was_not_acknowledged_comes_back(settings: dict[str, dict[str, str]]) -> None:
    with server(settings=settings) as process:
        subscription = published(process)
        with Peer(process.address("blipmq")) as peer:
            assert poll_all(peer, subscription) == [(n, body(n)) for n in range(1, 201)]
            for first in range(1, 81, 8):
                assert peer.ack(subscription, *range(first, first + 8)) == []
            process.kill()
        process.restart()
        with Peer(process.address("blipmq")) as peer:
            got = poll_all(peer, subscription)
            assert got[-120:] == [(n, body(n)) for n in range(81, 201)]
            if settings is SYNCED:
                assert len(got) == 120
            else:
                assert [tag for tag, _ in got] == list(range(201 - len(got), 201)), "the last ACKs may be lost, no more"
            assert peer.ack(subscription, *range(81, 201)) == []
            assert peer.subscribe(b"t") > subscription, "an id is never used again"
        process.restart()
        with Peer(process.address("blipmq")) as peer:
            left = poll_all(peer, subscription)
            assert (
                [tag for tag, _ in left] == [tag for tag, _ in got[: len(left)]] if settings is SLOW_RETRY else not left
            )


@pytest.mark.parametrize("settings", [SLOW_RETRY, pytest.param(SYNCED, marks=pytest.mark.slow)], ids=["lazy", "synced"])
def test_ten_thousand_acks_nats_streaming_server_72_nats_server_5482(settings: dict[str, dict[str, str]]) -> None:
    """None of them comes again, lazy ones a moment later; what nobody acknowledged does, to whoever asks later."""
    with server(settings=settings) as process:
        with Peer(process.address("blipmq")) as peer:
            subscription = peer.subscribe(b"t")
            peer.publish(b"t", *(b"%d" % n for n in range(10_002)))
            assert len(poll_all(peer, subscription)) == 10_002
            assert peer.ack(subscription, *range(1, 5000), *range(5001, 10_002)) == []
            # lazy ones are written in the next round of the state, without anybody asking for it
            end = time.monotonic() + 20
            while settings is SLOW_RETRY and stored_acks(process.data_dir, subscription) != (10_003, 2):
                assert time.monotonic() < end, "never written"
                time.sleep(0.05)
            process.kill()
        process.restart()
        with Peer(process.address("blipmq")) as peer:
            assert poll_all(peer, subscription) == [(5000, b"4999"), (10_002, b"10001")]


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[ServerProcess, int, Path]]:
    """A killed server whose subscription has 80 of 200 messages acknowledged, and its segment file."""
    with server(tmp_path / "data", settings=SYNCED) as process:
        subscription = published(process)
        with Peer(process.address("blipmq")) as peer:
            assert len(peer.poll(subscription, 80)) == 80
            assert peer.ack(subscription, *range(1, 81)) == []
        process.kill()
        (segment,) = (tmp_path / "data" / "topics" / "1" / "0").glob("*.log")
        yield process, subscription, segment


@pytest.mark.parametrize(
    "tail",
    [
        b"\xd9QLB" + b"\1" * 200,
        pytest.param(b"\0" * 100, marks=pytest.mark.slow),
        pytest.param(b"garbage" * 500, marks=pytest.mark.slow),
    ],
    ids=["like a batch", "zeros", "garbage"],
)
def test_torn_tail(stopped: tuple[ServerProcess, int, Path], tail: bytes) -> None:
    process, subscription, segment = stopped
    with segment.open("ab") as file:
        file.write(tail)
    process.restart()
    with Peer(process.address("blipmq")) as peer:
        assert poll_all(peer, subscription) == [(n, body(n)) for n in range(81, 201)]
        peer.publish(b"t", b"new")
        assert poll_all(peer, subscription) == [(201, b"new")]
    process.restart()
    with Peer(process.address("blipmq")) as peer:
        assert len(poll_all(peer, subscription)) == 121


@pytest.mark.slow
def test_damaged_batch(stopped: tuple[ServerProcess, int, Path]) -> None:
    process, subscription, segment = stopped
    data = bytearray(segment.read_bytes())
    at = data.index(body(125))
    data[at] ^= 1
    segment.write_bytes(data)
    process.restart()
    with Peer(process.address("blipmq")) as peer:
        got = poll_all(peer, subscription)
        missing = sorted(set(range(81, 201)) - {tag for tag, _ in got})
        assert 125 in missing
        assert missing == list(range(missing[0], missing[-1] + 1))
        assert len(missing) <= 20, "one batch"
        assert got == [(n, body(n)) for n in range(81, 201) if n not in missing]
        assert peer.ack(subscription, *(tag for tag, _ in got)) == []
        peer.publish(b"t", b"new")
        assert poll_all(peer, subscription) == [(201, b"new")]
    assert process.log_text.count("damage took records") == 1


def test_rounds_of_kill_9(tmp_path: Path) -> None:
    """Publisher and consumer through kills: what was confirmed is delivered, what was acknowledged never again."""
    chance = random.Random(1)
    confirmed: list[bytes] = []  # a PONG came behind them
    delivered: set[bytes] = set()
    acknowledged: set[bytes] = set()
    with server(tmp_path / "data", settings=SYNCED) as process:
        with Peer(process.address("blipmq")) as peer:
            subscription = peer.subscribe(b"t")
        for number in range(200 if NIGHTLY else 5):
            killer = threading.Timer(chance.uniform(0.05, 0.4), process.kill)
            killer.start()
            with contextlib.suppress(EOFError, OSError):
                work(process, subscription, number, chance, confirmed, delivered, acknowledged)
            killer.join()
            process.restart()
        with Peer(process.address("blipmq")) as peer:
            left = poll_all(peer, subscription)
    bodies = [one for _, one in left]
    assert not acknowledged.intersection(bodies), "an acknowledged message came again"
    assert set(confirmed) <= delivered.union(bodies), "a confirmed message was lost"
    assert len(confirmed) > 100


def work(
    process: ServerProcess,
    subscription: int,
    number: int,
    chance: random.Random,
    confirmed: list[bytes],
    delivered: set[bytes],
    acknowledged: set[bytes],
) -> None:
    """Publish, poll, acknowledge until the server is gone."""
    with Peer(process.address("blipmq")) as peer:
        for step in range(1_000_000):
            sent = [b"%d-%d-%d" % (number, step, n) for n in range(chance.randrange(1, 50))]
            peer.publish(b"t", *sent)
            confirmed += sent
            got = peer.poll(subscription, 30)
            for _, one in got:
                assert one not in acknowledged, f"tag of an acknowledged message: {one!r}"
                delivered.add(one)
            taken = got[: chance.randrange(len(got) + 1)]
            peer.send(b"".join(codec.ack(tag, subscription) for tag, _ in taken))
            assert [frame for frame in peer.until_pong() if frame.type == FrameType.NACK] == []
            acknowledged.update(one for _, one in taken)
