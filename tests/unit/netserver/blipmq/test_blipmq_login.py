"""Who may come in to BlipMQ and what he may do there; settings that a reload changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from netserver.access.access import is_loopback
from netserver.access.key_file import add_key, revoke_key
from netserver.blipmq import codec
from netserver.blipmq.codec import FrameType
from netserver.blipmq.limits import AUTH_LENGTH_MAX
from netserver.config import loading as config_reading
from netserver.config import sections as configuration
from netserver.errors import ConfigError
from tests.blipmq_place import FORBIDDEN, Place, Settings, with_server


@pytest.mark.parametrize("early", [codec.ping(1), codec.hello(1)])
def test_login_has_a_deadline(early: bytes) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer(login=False)
        quick = await place.peer()
        peer.send(early)
        await peer.frame()
        assert await peer.at_eof()
        assert await quick.until_pong() == []
        assert place.server.counters["blipmq"].protocol_errors == {"handshake_timeout": 1}

    with_server(test, blipmq={"handshake_timeout": "150"})


def test_a_stranger_cannot_announce_a_large_frame() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer(login=False)
        peer.send(codec.hello(1) + codec.auth(2, "k" * 0xFFFF))
        assert [frame.type for frame in await peer.frames(2)] == [FrameType.ACK, FrameType.ACK]
        peer = await place.peer(login=False)
        peer.send(codec.hello(1) + (AUTH_LENGTH_MAX + 1).to_bytes(4, "big"))
        assert (await peer.frame()).type == FrameType.ACK
        assert await peer.at_eof()

    with_server(test)


@pytest.mark.parametrize(
    ("peer", "near"),
    [
        ("127.0.0.1:5", True), ("127.8.9.1:5", True), ("[::1]:5", True), ("[::ffff:127.0.0.1]:5", True),
        ("10.0.0.1:5", False), ("[::ffff:10.0.0.1]:5", False), ("[fe80::1]:5", False), ("?", False),
    ],
)  # fmt: skip
def test_who_is_near(peer: str, near: bool) -> None:
    assert is_loopback(peer) == near


def test_without_keys_anybody_from_this_machine_may_come_in() -> None:
    async def test(place: Place) -> None:
        for key in ("", "anything"):
            await place.peer(key=key)

    with_server(test)


def test_keys_and_rights(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    writer_key = add_key(path, "writer", publish=["orders.*"], subscribe=[])
    reader_key = add_key(path, "reader", publish=[], subscribe=["orders.*"])

    async def test(place: Place) -> None:
        stranger = await place.peer(login=False)
        stranger.send(codec.hello(1) + codec.auth(2, "x") + codec.auth(3, "") + codec.auth(4, writer_key))
        assert (await stranger.frame()).type == FrameType.ACK
        assert await stranger.nack() == (2, 401, "invalid API key")
        assert await stranger.nack() == (3, 401, "invalid API key")
        assert (await stranger.frame()).type == FrameType.ACK
        assert place.server.counters["blipmq"].auth_failures == 2
        writer, reader, admin = stranger, await place.peer(key=reader_key), await place.peer(key="root-key")
        subscription = await reader.subscribe(b"orders.1")
        other = await admin.subscribe(b"other")
        await writer.publish(b"orders.1", b"x")
        await admin.publish(b"other", b"y")
        writer.send(codec.publish(5, 1, b"other", b"x") + codec.subscribe(6, b"orders.1", 1))
        assert await writer.nack() == (5, *FORBIDDEN)
        assert await writer.nack() == (6, *FORBIDDEN)
        writer.send(codec.poll(7, subscription) + codec.ack(1, subscription))
        assert await writer.nack() == (7, *FORBIDDEN)
        assert await writer.nack() == (1, *FORBIDDEN)
        reader.send(codec.publish(8, 0, b"orders.1", b"x") + codec.poll(9, other))
        assert await reader.nack() == (8, *FORBIDDEN)
        assert await reader.nack() == (9, *FORBIDDEN)
        assert await reader.poll(subscription, 3) == [(1, b"x")]
        assert await reader.ack(subscription, 1) == []
        assert await admin.poll(other) == [(1, b"y")]

    with_server(test, blipmq={"key_file": str(path), "allowed_api_keys": "root-key"})


def test_revoked_keys_lose_their_connections(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first_key, second_key = add_key(path, "first"), add_key(path, "second", publish=["a"], subscribe=["a"])
    third_key = add_key(path, "third")

    async def test(place: Place) -> None:
        first, second = await place.peer(key=first_key), await place.peer(key=second_key)
        await second.publish(b"a", b"x")
        third = await place.peer(key=third_key)
        revoke_key(path, "first")
        revoke_key(path, "third")
        add_key(path, "third")  # another key, though it has the name
        line = next(line for line in path.read_text().splitlines() if '"second"' in line)
        changed = json.dumps(json.loads(line) | {"publish": ["b"], "subscribe": []})
        path.write_text(path.read_text().replace(line, changed))
        reload(place, {"blipmq": {"key_file": str(path)}})
        assert await first.at_eof()
        assert await third.at_eof()
        await second.publish(b"b", b"x")
        second.send(codec.publish(1, 1, b"a", b"x"))
        assert await second.nack() == (1, *FORBIDDEN)
        await place.peer(key=second_key)
        path.write_text("nonsense")
        with pytest.raises(ConfigError, match="line 1"):
            reload(place, {"blipmq": {"key_file": str(path)}})
        await place.peer(key=second_key)

    with_server(test, blipmq={"key_file": str(path)})


def reload(place: Place, settings: Settings) -> None:
    """As SIGHUP does, with these settings beside those at the start."""
    now = place.server.config
    start = {"server": {"data_dir": now.server.data_dir}}
    listen = {name: {"listen": str(now.listener(name).listen or "off")} for name in configuration.PROTOCOL_SECTIONS}
    place.server.reload(config_reading.build(("test", start), ("test", listen), ("test", settings)))


def test_a_reload_changes_how_subscriptions_behave() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", *(b"%d" % n for n in range(10)))
        assert len(await peer.poll(subscription)) == 1
        reload(place, {"blipmq": {"queue_capacity": "3", "retry_backoff_ms": "60000"}})
        assert await peer.poll(subscription, 10) == [(9, b"8"), (10, b"9")]
        reload(place, {"blipmq": {"message_ttl": "1ms"}})
        await peer.publish(b"t", b"old")
        await asyncio.sleep(0.01)
        assert await peer.poll(subscription) == []
        assert place.server.counters["blipmq"].skipped["expired"] == 1

    with_server(test)


def test_the_durability_of_the_original() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.publish(b"t", b"x")
        topic = place.server.log.catalog.get(b"t")
        assert topic is not None
        assert (topic.config.durability, topic.config.sync_interval_ms) == ("interval", 20)

    with_server(test, blipmq={"wal_path": "blipmq.wal", "metrics_port": "9100", "fsync_policy": "interval_ms:20"})
