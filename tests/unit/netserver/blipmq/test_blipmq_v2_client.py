"""The client of protocol version 2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from netserver import blipmq
from netserver.app import Server
from tests.blipmq_place import Place, with_server_2
from tests.wrong_clock import DAY, MINUTE, YEAR, Time


def with_client(test: Callable[[blipmq.Client, Server], Awaitable[None]], **sections: dict[str, Any]) -> None:
    async def with_place(place: Place) -> None:
        address = str(place.server.addresses["blipmq"])
        async with blipmq.connect(address, version=2, backoff=lambda _: 0.01) as client:
            await test(client, place.server)

    with_server_2(with_place, **sections)


def test_client() -> None:
    async def test(client: blipmq.Client, _server: Server) -> None:
        await client.publish("a.1", b"early")
        async with client.subscribe("a.>", prefetch_records=50) as everything:
            grouped = await client.subscribe("a.1", group="g", start=blipmq.EARLIEST)
            await client.publish_many("a.1", [b"%d" % n for n in range(3000)])
            await client.publish("a.2", b"last", ttl_ms=60_000, key=b"k")
            seen = []
            for _ in range(3001):
                message = await everything.next(10)
                seen.append(message.value)
                await message.ack()
            assert sorted(seen) == sorted([b"last", *(b"%d" % n for n in range(3000))])
            for n in range(-1, 3000):
                message = await grouped.next(10)
                assert message.value == (b"early" if n < 0 else b"%d" % n)
                await message.ack()
            await grouped.flush()
        with pytest.raises(ValueError, match="group"):
            client.subscribe("t", resume=5)

    with_client(test)


def test_client_of_version_1_has_none_of_it() -> None:
    async def test(place: Place) -> None:
        async with blipmq.connect(str(place.server.addresses["blipmq"])) as client:
            with pytest.raises(ValueError, match="version=2"):
                await client.publish("t", b"x", ttl_ms=5)
            with pytest.raises(ValueError, match="version=2"):
                client.subscribe("t", group="g")

    with_server_2(test)


def test_client_group_goes_on_after_a_lost_connection() -> None:
    async def test(client: blipmq.Client, server: Server) -> None:
        subscription = await client.subscribe("t", group="g")
        await client.publish_many("t", [b"%d" % n for n in range(100)])
        seen = set()
        for _ in range(50):
            message = await subscription.next(10)
            seen.add(message.value)
            await message.ack()
        await subscription.flush()
        for connection in tuple(server.shell.connections):
            connection.abort("test")
        await client.publish_many("t", [b"%d" % n for n in range(100, 150)])
        while len(seen) < 150:
            message = await subscription.next(10)
            seen.add(message.value)
            await message.ack()

    with_client(test)


def test_a_clock_that_is_ahead_for_a_while_passes_over_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)

    async def test(client: blipmq.Client, server: Server) -> None:
        await client.publish_many("t", [b"%d" % n for n in range(10)])
        await client.publish("own", b"its own time to live", ttl_ms=DAY)

        async def found(group: str) -> list[bytes]:
            subscription = await client.subscribe("t", group=group, start=blipmq.EARLIEST)
            own = await client.subscribe("own", group=group, start=blipmq.EARLIEST)
            return [(await own.next(10)).value, *[(await subscription.next(10)).value for _ in range(10)]]

        for number, jump in enumerate((2 * DAY, 10 * YEAR, -2 * DAY)):
            time.offset_ms += jump
            time.pass_on(MINUTE)
            server.log.clock.look()
            assert await found(f"g{number}") == [b"its own time to live", *(b"%d" % n for n in range(10))]
            time.offset_ms -= jump
        time.pass_on(2 * DAY)
        server.log.clock.look()
        await client.publish("t", b"young")
        late = await client.subscribe("t", group="late", start=blipmq.EARLIEST)
        assert (await late.next(10)).value == b"young"

    with_client(test, blipmq={"message_ttl": "1d"})
