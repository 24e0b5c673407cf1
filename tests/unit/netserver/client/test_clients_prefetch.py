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

from netserver import blipmq, figg, fujin, reliably, tank
from netserver.app import Server
from netserver.client import blocking
from netserver.testing import ServerProcess, running, server
from tests.echo import run, until

pytestmark = pytest.mark.whole

PATIENCE_S = 60
"""Only a call that hangs takes so long."""
SETTINGS = {"fujin": {"nack_delay": 0}}
LARGEST_BYTES = (16 << 20) - 100


@dataclass(frozen=True)
class Way:
    """A way to read.

    Attributes:
        name: of the row.
        connect: of the protocol's module.
        value_bytes, count: what is published.
        options: of ``subscribe``; the prefetch is one message.
        acknowledges: messages have ``ack``; ``gives_back``: and ``nack``.
        has_handlers: the subscription has ``run``.
        client: options of ``connect``.
        is_from_now: it sees what is published after it.
    """

    protocol: str
    name: str
    connect: Callable[..., Any]
    value_bytes: int
    count: int
    options: dict[str, Any] = field(default_factory=dict)
    acknowledges: bool = True
    gives_back: bool = False
    has_handlers: bool = False
    client: dict[str, Any] = field(default_factory=dict)
    is_from_now: bool = False

    def client_options(self, data_dir: Path) -> dict[str, Any]:
        return {"ca": data_dir / "fujin-certificate.pem"} if self.protocol == "fujin" else self.client

    def values(self) -> list[bytes]:
        return [b"%08d" % number + bytes(self.value_bytes - 8) for number in range(self.count)]


def fujin_way(mode: str, ack: str, size: str, value_bytes: int, count: int, **prefetch: int) -> Way:
    options = {"mode": mode, "ack": ack, **(prefetch or {"prefetch_records": 1})}
    is_manual = ack == "manual"
    name = f"fujin-{mode}-{ack}-{size}"
    return Way("fujin", name, fujin.connect, value_bytes, count, options, is_manual, is_manual, is_manual)


SIZES = (("small", 8, 1000), ("large", 65_536, 16), ("largest", LARGEST_BYTES, 2))


def log_ways(protocol: str, connect: Callable[..., Any], earliest: Any) -> list[Way]:
    """Of a client whose messages are not acknowledged."""
    options = {"start": earliest, "prefetch_records": 1}
    return [Way(protocol, f"{protocol}-{size}", connect, *what, options, False) for size, *what in SIZES]


def blipmq_ways(name: str, version: int, **options: Any) -> list[Way]:
    qos = options.get("qos", 1)
    return [
        Way(
            "blipmq",
            f"blipmq-{name}-{size}",
            blipmq.connect,
            *what,
            {"prefetch_records": 1, **options},
            acknowledges=qos == 1,
            has_handlers=qos == 1,
            client={"version": version},
            is_from_now=version == 1,
        )
        for size, *what in SIZES
    ]


WAYS = [
    *(
        fujin_way(mode, "manual", size, value_bytes, count)
        for mode in ("push", "pull")
        for size, value_bytes, count in SIZES[:2]
    ),
    fujin_way("push", "auto", "large", 65_536, 16),
    fujin_way("pull", "auto", "large", 65_536, 16),
    fujin_way("pull", "manual", "largest", 1 << 20, 4),
    fujin_way("push", "manual", "byte", 65_536, 16, prefetch_bytes=1),
    *log_ways("figg", figg.connect, figg.EARLIEST),
    *log_ways("tank", tank.connect, tank.EARLIEST),
    *blipmq_ways("1", 1),
    *blipmq_ways("1-qos0", 1, qos=0),
    *blipmq_ways("2", 2, start=blipmq.EARLIEST),
    *blipmq_ways("2-qos0", 2, start=blipmq.EARLIEST, qos=0),
    *blipmq_ways("2-group", 2, start=blipmq.EARLIEST, group="g"),
]
TOPICS = ("t", "u", "handled")
ID = attrgetter("name")
BETWEEN = [way for way in WAYS if way.name.endswith("-large") and way.protocol != "fujin"]
"""Smaller and larger messages show the like."""
EACH = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow) if way in BETWEEN else way for way in WAYS], ids=ID
)


def with_client(way: Way, test: Callable[[Any, Any], Awaitable[None]]) -> None:
    """``test(client, subscription)``: everything is published, the subscription is open and full."""

    async def main() -> None:
        others = {name: {"listen": "off"} for name in blocking.PROTOCOLS}
        others[way.protocol] = dict(SETTINGS.get(way.protocol, {}))
        async with (
            asyncio.timeout(PATIENCE_S),
            running(settings=others) as quintlog,
            opened(way, quintlog) as client,
        ):
            for topic in TOPICS if way.protocol == "tank" else ():
                await client.create_topic(topic)
            subscription = client.subscribe("t", **way.options)
            if way.is_from_now:
                await subscription
            await client.publish_many("t", way.values())
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
            if way.protocol == "blipmq":
                await subscription.flush()
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
        if way.is_from_now:
            await other
            await client.publish("u", b"three")
        assert (await other.next()).value == b"three"
        await other.close()
        await subscription.close()

    with_client(way, test)


@pytest.mark.parametrize("way", [way for way in WAYS if way.protocol in ("figg", "tank")], ids=ID)
def test_seeking_while_nothing_is_taken(way: Way) -> None:
    async def test(client: Any, subscription: Any) -> None:
        first, *_ = way.values()
        for _ in range(3):
            await subscription.seek(way.options["start"])
            await until(lambda: subscription._queue.full)
        assert (await subscription.next()).value == first
        if way.protocol == "tank":
            assert [known.last_seq for known in await client.discover("t")] == [way.count]
            assert await client.seq_at_time("t", 0) == 1
            assert (await client.fetch([("t", 0, 1)]))[0].high_water_mark == way.count

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


@pytest.mark.parametrize("way", [way for way in WAYS if way.has_handlers], ids=ID)
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


@pytest.mark.parametrize("way", [way for way in WAYS if "push" in way.name and way.name.endswith("large")], ids=ID)
def test_many_full_subscriptions_leave_room_for_answers(way: Way) -> None:
    """What one connection lets through, and what waits in its server, is not used up by data that nobody takes."""

    async def test(client: Any, subscription: Any) -> None:
        others = []
        for number in range(20):  # more than 4 MiB wait, 256 KiB of each
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
    with server(tmp_path_factory.mktemp("log") / "data", settings=SETTINGS) as process:
        yield process


@EACH
def test_blocking(way: Way, process: ServerProcess) -> None:
    address = "{}:{}".format(*process.address(way.protocol))

    def use() -> int:
        count = min(way.count, 200)
        with blocking.connect(way.protocol, address, **way.client_options(process.data_dir)) as client:
            for topic in (way.name, f"{way.name}-seen") if way.protocol == "tank" else ():
                client.create_topic(topic)
            subscription = client.subscribe(way.name, **way.options)
            if way.is_from_now:
                subscription.__enter__()
            client.publish_many(way.name, way.values()[:count])
            seen = set()
            for message in subscription:
                seen.add(message.value[:8])
                if way.acknowledges:
                    message.ack()
                if way.protocol == "blipmq":
                    subscription.flush()
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


@pytest.mark.parametrize(
    ("size", "value_bytes", "count"),
    [pytest.param(*row, id=row[0], marks=[pytest.mark.slow] if row[0] == "largest" else []) for row in SIZES],
)
@pytest.mark.parametrize("ack_every", [0, 1])
def test_reliably(size: str, value_bytes: int, count: int, ack_every: int, process: ServerProcess) -> None:
    """Its client reads only: each message of a session is acknowledged, and it closes while it is full."""
    topic = f"reliably-{size}-{ack_every}"
    values = [b"%08d" % number + b"x" * (value_bytes - 8) for number in range(count)]
    with blocking.connect("figg", "{}:{}".format(*process.address("figg"))) as publisher:
        publisher.publish_many(topic, values)
    options: dict[str, Any] = {"params": {"topic": topic, "offset": 0, "count": count}, "ack_every": ack_every}

    def connect() -> Any:
        return reliably.connect("{}:{}".format(*process.address("reliably")), prefetch_messages=1, **options)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), connect() as session:
            found = []
            async for message in session:
                found.append(message.data["value"].encode())
                if not ack_every:
                    await session.ack()
            assert found == values
        async with asyncio.timeout(PATIENCE_S / 2), connect() as session:
            await until(lambda: bool(session._queue))

    run("uvloop", main())
    address = "{}:{}".format(*process.address("reliably"))
    with blocking.connect("reliably", address, prefetch_messages=1, **options) as session:
        for number, message in enumerate(session):
            assert message.data["value"].encode() == values[number]
            if not ack_every:
                session.ack()
