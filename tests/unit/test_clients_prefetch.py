"""No client waits for an answer behind data that it holds back itself.

Each row is a way to read with a client. While the application has taken nothing, or has just taken one message, of a
subscription whose prefetch is full, every other call of the client has to return.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from netserver import blocking, fujin
from netserver.app import Server
from netserver.testing import ServerProcess, running, server
from tests.echo import run, until

PATIENCE_S = 60
"""Only a call that hangs takes so long."""
FUJIN = {"fujin": {"nack_delay": 0}}


@dataclass(frozen=True)
class Way:
    """A way to read.

    Attributes:
        name: of the row.
        connect: of the protocol's module.
        value_bytes, count: what is published.
        options: of ``subscribe``; the prefetch is one message.
        acknowledges: messages have ``ack``; ``gives_back``: and ``nack``.
    """

    protocol: str
    name: str
    connect: Callable[..., Any]
    value_bytes: int
    count: int
    options: dict[str, Any] = field(default_factory=dict)
    acknowledges: bool = True
    gives_back: bool = True

    def client_options(self, data_dir: Path) -> dict[str, Any]:
        return {"ca": data_dir / "fujin-certificate.pem"} if self.protocol == "fujin" else {}

    def values(self) -> list[bytes]:
        return [b"%08d" % number + bytes(self.value_bytes - 8) for number in range(self.count)]


def fujin_way(mode: str, ack: str, size: str, value_bytes: int, count: int, **prefetch: int) -> Way:
    options = {"mode": mode, "ack": ack, **(prefetch or {"prefetch_records": 1})}
    is_manual = ack == "manual"
    return Way("fujin", f"fujin-{mode}-{ack}-{size}", fujin.connect, value_bytes, count, options, is_manual, is_manual)


WAYS = [
    *(
        fujin_way(mode, "manual", size, value_bytes, count)
        for mode in ("push", "pull")
        for size, value_bytes, count in (("small", 8, 1000), ("large", 65_536, 16))
    ),
    fujin_way("push", "auto", "large", 65_536, 16),
    fujin_way("pull", "auto", "large", 65_536, 16),
    fujin_way("pull", "manual", "largest", 1 << 20, 4),
    fujin_way("push", "manual", "byte", 65_536, 16, prefetch_bytes=1),
]
ID = attrgetter("name")
EACH = pytest.mark.parametrize("way", WAYS, ids=ID)


def with_client(way: Way, test: Callable[[Any, Any], Awaitable[None]]) -> None:
    """``test(client, subscription)``: everything is published, the subscription is open and full."""

    async def main() -> None:
        others = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "fujin")}
        others[way.protocol] = dict(FUJIN.get(way.protocol, {}))
        async with (
            asyncio.timeout(PATIENCE_S),
            running(settings=others) as quintlog,
            opened(way, quintlog) as client,
        ):
            await client.publish_many("t", way.values())
            subscription = client.subscribe("t", **way.options)
            await subscription
            await until(lambda: subscription._queue.full)
            await test(client, subscription)

    run("uvloop", main())


def opened(way: Way, quintlog: Server) -> Any:
    return way.connect(str(quintlog.addresses[way.protocol]), **way.client_options(quintlog.data_dir))


@EACH
def test_each_message_is_acknowledged(way: Way) -> None:
    async def test(client: Any, subscription: Any) -> None:
        seen = set()
        async for message in subscription:
            seen.add(bytes(message.value[:8]))
            if way.acknowledges:
                await message.ack()
            if len(seen) == way.count:
                break
        await subscription.close()

    with_client(way, test)


@EACH
def test_other_calls_while_nothing_is_taken(way: Way) -> None:
    async def test(client: Any, subscription: Any) -> None:
        await client.publish("t", b"one")
        await (await client.send("t", b"two"))
        await client.publish_many("u", [b"three", b"four"])
        await client.flush()
        other = client.subscribe("u", **way.options)
        assert (await other.next()).value == b"three"
        await other.close()
        await subscription.close()

    with_client(way, test)


@EACH
def test_closing_while_nothing_is_taken(way: Way) -> None:
    async def test(client: Any, subscription: Any) -> None:
        loop = asyncio.get_running_loop()
        lost = client._link.lost
        started_at = loop.time()
        await client.close()
        assert lost.done()
        assert loop.time() - started_at < PATIENCE_S / 2

    with_client(way, test)


@pytest.mark.parametrize("way", [way for way in WAYS if way.gives_back], ids=ID)
def test_batches_are_given_back_and_acknowledged(way: Way) -> None:
    async def test(client: Any, subscription: Any) -> None:
        given_back: set[bytes] = set()
        done: set[bytes] = set()
        async for batch in subscription.batches(max_records=7):
            first = [message for message in batch.records() if message.value[:8] not in given_back][:1]
            given_back.update(message.value[:8] for message in first)
            await batch.nack(first)
            await batch.ack(except_for=first)
            done.update(message.value[:8] for message in batch.records() if message not in first)
            if len(done) == way.count:
                return

    with_client(way, test)


@pytest.mark.parametrize("way", [way for way in WAYS if way.gives_back], ids=ID)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_handlers(way: Way, concurrency: int) -> None:
    async def test(client: Any, subscription: Any) -> None:
        done: set[bytes] = set()

        async def handle(message: Any) -> None:
            if len(done) % 100 == 0:
                await client.publish("handled", message.value[:8])
            done.add(bytes(message.value[:8]))
            if len(done) == way.count:
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(subscription.close()))

        await subscription.run(handle, concurrency=concurrency)
        assert len(done) == way.count

    with_client(way, test)


@pytest.mark.parametrize("way", [way for way in WAYS if "push" in way.name and "large" in way.name], ids=ID)
def test_many_full_subscriptions_leave_room_for_answers(way: Way) -> None:
    """What one connection lets through, and what waits in its server, is not used up by data that nobody takes."""

    async def test(client: Any, subscription: Any) -> None:
        others = []
        for number in range(20):
            await client.publish_many(f"t{number}", way.values())
            others.append(client.subscribe(f"t{number}", **way.options))
            await others[-1]
        for other in others:
            await until(lambda other=other: other._queue.full)
        await client.publish("t", b"x")
        async with client.transaction() as transaction:
            await transaction.publish("t", b"y")
        for other in others:
            await other.next()

    with_client(way, test)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("log") / "data", settings=dict(FUJIN)) as process:
        yield process


@EACH
def test_blocking(way: Way, process: ServerProcess) -> None:
    address = "{}:{}".format(*process.address(way.protocol))

    def use() -> int:
        count = min(way.count, 200)
        with blocking.connect(way.protocol, address, **way.client_options(process.data_dir)) as client:
            client.publish_many(way.name, way.values()[:count])
            seen = set()
            for message in client.subscribe(way.name, **way.options):
                seen.add(message.value[:8])
                if way.acknowledges:
                    message.ack()
                if len(seen) == count // 2:
                    client.publish(f"{way.name}-seen", b"half")
                if len(seen) == count:
                    break
        return len(seen)

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(use()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert found == [min(way.count, 200)]
