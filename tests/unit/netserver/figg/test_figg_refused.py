"""A publish that the server does not take: what its client learns, in a protocol that has no words for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from netserver import figg
from netserver.access.key_file import add_identity
from netserver.errors import ConnectionFailed, PublishRefused, Unknown
from netserver.figg import client as client_module
from netserver.figg import codec, listener_state
from netserver.figg import session as session_module
from netserver.figg.codec import Ack, Attach, Attached, Ping, Publish
from tests.echo import until
from tests.figg_support import OldServer, Place, with_server

pytestmark = pytest.mark.whole

PUBLIC: Final = {"name": "reader", "publish": ["open*"], "subscribe": ["open*"], "networks": ["127.0.0.0/8"]}
NO_TOPICS: Final[dict[str, Any]] = {"topics": {"auto_create": False}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RESENT_S", 0.2)
    monkeypatch.setattr(listener_state, "UNREADABLE_S", 0.2)
    monkeypatch.setattr(client_module, "UNACKNOWLEDGED_S", 0.1)


def governed(directory: Path, test: Callable[[Place], Awaitable[None]]) -> None:
    """Run a test with a server where whoever comes may publish to some topics only."""
    path = directory / "access"
    path.touch(0o600)
    add_identity(path, dict(PUBLIC))
    with_server(test, {"access": {"file": str(path)}})


def client_of(address: str, **options: Any) -> figg.Client:
    return figg.connect(address, backoff=lambda failures: 0.001, **options)


def at(place: Place, **options: Any) -> figg.Client:
    host, port = place.address
    return client_of(f"{host}:{port}", **options)


def test_what_came_before_is_acknowledged_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test(place: Place) -> None:
        peer = await place.peer()
        begun = asyncio.get_running_loop().time()
        peer.send(Publish(b"open", 0, b"x"), Publish(b"orders", 1, b"x"), Publish(b"open", 2, b"x"))
        assert await peer.closed_by_server() == [Ack(0)]
        assert asyncio.get_running_loop().time() - begun >= 0.15, "its client redials at once"
        assert place.partition(b"open").last_seq == 1
        assert place.server.log.catalog.get(b"orders") is None

    governed(tmp_path, test)
    assert "reader may not publish 'orders'" in caplog.text
    assert "may be stored" not in caplog.text


@pytest.mark.parametrize("give_up_after_s", [None, 0.0])
def test_a_client_without_the_right_ends_with_an_error(tmp_path: Path, give_up_after_s: float | None) -> None:
    """It used to dial again for ever; one that never redials knew only that the connection was lost."""

    async def test(place: Place) -> None:
        client = await at(place, give_up_after_s=give_up_after_s)
        await client.publish("open", b"x")
        with pytest.raises(PublishRefused, match="no right to publish") as caught:
            async with asyncio.timeout(20):
                await client.publish("orders", b"x")
        assert caught.value.stored is False
        with pytest.raises(PublishRefused):
            await client.publish("open", b"x")
        await client.close()
        assert place.partition(b"open").last_seq == 1

    governed(tmp_path, test)


def test_a_topic_that_nobody_makes_is_an_error_too() -> None:
    async def test(place: Place) -> None:
        async with asyncio.timeout(20), at(place) as client:
            with pytest.raises(PublishRefused, match="does not take such a topic"):
                await client.publish_many("never_made", [b"x"] * 1000)

    with_server(test, NO_TOPICS)


def test_a_subscription_without_the_right_ends_its_connection_whether_the_topic_is_there_or_not(
    tmp_path: Path,
) -> None:
    async def test(place: Place) -> None:
        for topic in (b"secret", b"not there"):
            peer = await place.peer()
            peer.send(Attach(b"open"), Attach(topic))
            await peer.expect(Attached)
            assert await peer.closed_by_server() == []
            place.server.log.catalog.get_or_create(b"secret")

    governed(tmp_path, test)


def refuses_from(connection: int) -> OldServer:
    """A server that answers nothing but its first connection's pings; from a connection on it closes a little later."""

    def answer(message: codec.Message) -> bytes | None:
        writer = server.writers[-1]
        if isinstance(message, Ping):
            return codec.pong(message.timestamp)
        if not isinstance(message, Publish):
            return None
        if len(server.connections) < connection:
            writer.transport.abort()
        else:
            asyncio.get_running_loop().call_later(0.2, writer.close)
        return None

    server = OldServer(answer)
    return server


def test_what_was_on_a_connection_that_broke_may_be_stored() -> None:
    async def main() -> None:
        async with asyncio.timeout(20), refuses_from(connection=2) as server:
            client = await client_of(server.address, ping_interval_s=0.05)
            await until(lambda: client.round_trip_s is not None)
            with pytest.raises(Unknown, match="does not take such a topic"):
                await client.publish("t", b"x")
            assert len(server.connections) >= 4
            await client.close()

    asyncio.run(main())


def test_a_server_that_is_gone_refuses_nothing() -> None:
    """It may have died with a sync under way: nobody can know."""

    async def main() -> None:
        async with asyncio.timeout(20), refuses_from(connection=1) as server:
            client = await client_of(server.address, ping_interval_s=0.05, give_up_after_s=0)
            await until(lambda: client.round_trip_s is not None)
            published = asyncio.ensure_future(client.publish("t", b"x"))
            await until(lambda: any(isinstance(one, Publish) for one in server.received))
            server._server.close()  # type: ignore[union-attr]
            with pytest.raises(Unknown) as caught:
                await published
            assert not isinstance(caught.value, ConnectionFailed)
            await client.close()

    asyncio.run(main())
