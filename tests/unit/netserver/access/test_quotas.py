"""Quotas: rates are kept by waiting, numbers of things by refusing one more; other identities do not notice."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from engine.errors import LimitReached
from netserver.access.quotas import Meter, Pace
from netserver.access.rights import Quotas, Right
from netserver.blipmq import codec as blipmq
from netserver.fujin import codec as fujin
from netserver.fujin.codec import PULL
from netserver.limits import QUOTA_BURST_S
from netserver.tank import messages as tank
from tests import access_place, blipmq_peer, fujin_peer, kafka_peer, reliably_peer, tank_peer
from tests.access_place import Place, place
from tests.figg_peer import ATTACH, frame, publish_frame, text

EVERYTHING: Final[dict[str, Any]] = {right.value: ["*"] for right in Right}
RECORDS_PER_S: Final = 400


class Clock:
    """One that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_rate_is_kept_over_any_time_and_a_burst_is_free() -> None:
    clock = Clock()
    pace = Pace(clock)
    sent, began = 0, clock.now_s
    while clock.now_s - began < 10:
        clock.now_s += pace.took(4096, 1, 100_000, 0)
        sent += 4096
    assert abs(sent - 100_000 * (10 + QUOTA_BURST_S)) < 2 * 4096
    clock.now_s += 3600
    assert pace.took(int(100_000 * QUOTA_BURST_S), 1, 100_000, 0) == 0, "not more than the burst was saved up"
    assert pace.took(1000, 1, 100_000, 0) == pytest.approx(0.01)
    assert pace.took(10**9, 1, 0, 0) == 0, "no rate, no wait"


def test_the_tighter_of_two_rates_counts() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.took(1000, 1000, 1_000_000, 100) == pytest.approx(10 - QUOTA_BURST_S)
    assert (pace.size_bytes, pace.records) == (1000, 1000)


def test_one_more_than_allowed_is_refused_and_what_is_gone_makes_room() -> None:
    there = {b"a", b"b"}
    meter = Meter("m", Quotas(topics=2, partitions=5, sessions=1, subscriptions=1), there.__contains__)
    meter.make_topic(b"a", 2)
    meter.make_topic(b"b", 3)
    with pytest.raises(LimitReached, match="m may have 2 topics"):
        meter.make_topic(b"c")
    there.remove(b"b")
    with pytest.raises(LimitReached, match="5 partitions"):
        meter.make_topic(b"c", 4)
    meter.make_topic(b"c", 3)
    meter.make_session("u", lambda _uuid: True)
    meter.make_session("u", lambda _uuid: True)
    with pytest.raises(LimitReached):
        meter.make_session("v", lambda _uuid: True)
    meter.make_session("v", lambda _uuid: False)
    meter.subscribe()
    with pytest.raises(LimitReached):
        meter.subscribe()
    meter.unsubscribe()
    meter.subscribe()
    assert meter.refused == {"topics": 1, "partitions": 1, "sessions": 1, "subscriptions": 1}


# --- rates, through each protocol

Rate = Callable[[Place, str, float], Awaitable[int]]


async def figg_in(here: Place, who: str, until: float) -> int:
    reader, writer = await here.streams("figg", who)
    stored = 0
    while time.monotonic() < until:
        writer.write(b"".join(publish_frame(b"t", stored + at, b"x" * 50) for at in range(20)))
        while True:
            head = await reader.readexactly(8)
            payload = await reader.readexactly(struct.unpack(">HHI", head)[2])
            if int.from_bytes(payload, "big") >= stored + 19:
                break
        stored += 20
    return stored


async def tank_in(here: Place, who: str, until: float) -> int:
    peer = tank_peer.Peer(*await here.streams("tank", who))
    assert await peer.receive()
    stored = 0
    while time.monotonic() < until:
        assert await peer.produce(b"t", tank_peer.bundle(*[b"x" * 50] * 20)) == b"\0"
        stored += 20
    return stored


async def blipmq_in(here: Place, who: str, until: float) -> int:
    peer = blipmq_peer.AsyncPeer(*await here.streams("blipmq", who))
    peer.send(blipmq.hello(1) + blipmq.auth(2, "any"))
    await peer.frames(2)
    stored = 0
    while time.monotonic() < until:
        await peer.publish(b"t", *[b"x" * 50] * 20)
        stored += 20
    return stored


async def fujin_in(here: Place, who: str, until: float) -> int:
    async with fujin_peer.connect(here.address("fujin"), here.quic(who)) as peer:
        stream, stored = peer.writer(), 0
        while time.monotonic() < until:
            stream.send(b"".join(fujin.write(at, b"t", b"x" * 50) for at in range(20)))
            await stream.take(20 * 6)
            stored += 20
        return stored


async def kafka_in(here: Place, who: str, until: float) -> int:
    peer, stored = kafka_peer.Peer(*await here.streams("kafka", who)), 0
    while time.monotonic() < until:
        assert (await peer.produce("t", *[b"x" * 50] * 20))["error"] == 0
        stored += 20
    return stored


async def figg_out(here: Place, who: str, until: float) -> int:
    reader, writer = await here.streams("figg", who)
    writer.write(frame(ATTACH, struct.pack(">H", 0x8000) + text(b"full") + bytes(8)))
    count = -1
    while (left := until - time.monotonic()) > 0:
        try:
            head = await asyncio.wait_for(reader.readexactly(8), left)
        except TimeoutError:
            break
        await reader.readexactly(struct.unpack(">HHI", head)[2])
        count += 1
    return count


async def tank_out(here: Place, who: str, until: float) -> int:
    peer = tank_peer.Peer(*await here.streams("tank", who))
    assert await peer.receive()
    count, seq = 0, 1
    while time.monotonic() < until:
        peer.send(tank_peer.consume(3, b"full", (0, seq, 4096)))
        chunk = (await peer.answer(tank.ConsumeResponse)).topics[0].partitions[0].chunk
        got = len(list(tank_peer.bundles_of(chunk)))
        count, seq = count + got, seq + got
    return count


async def kafka_out(here: Place, who: str, until: float) -> int:
    peer, count = kafka_peer.Peer(*await here.streams("kafka", who)), 0
    while time.monotonic() < until:
        count += len(await peer.records("full", 1 + count, max_bytes=4096))
    return count


async def reliably_out(here: Place, who: str, until: float) -> int:
    peer = reliably_peer.Peer(*await here.streams("reliably", who))
    peer.send({"uuid": who, "params": {"topic": "full", "offset": "earliest"}})
    count = 0
    while (left := until - time.monotonic()) > 0:
        try:
            assert await asyncio.wait_for(peer.reader.readline(), left)
        except TimeoutError:
            break
        count += 1
    return count


async def fujin_out(here: Place, who: str, until: float) -> int:
    async with fujin_peer.connect(here.address("fujin"), here.quic(who)) as peer:
        stream, count = await peer.reader(b"full", PULL, auto=True), 0
        while time.monotonic() < until:
            stream.send(fujin.fetch(1, 20))
            event: Any = await stream.event(auto=True)
            count += len(event.messages)
        return count


RATES: Final[tuple[Rate, ...]] = (
    figg_in, tank_in, blipmq_in, fujin_in, kafka_in, figg_out, tank_out, reliably_out, fujin_out, kafka_out,
)  # fmt: skip


@pytest.mark.parametrize("go", RATES, ids=lambda one: str(one.__name__))
def test_an_identity_keeps_to_its_rate(tmp_path: Path, go: Rate) -> None:
    quotas = {"records_in_per_s": RECORDS_PER_S, "records_out_per_s": RECORDS_PER_S}
    seconds = 1.5

    async def test() -> None:
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": quotas}, "everything": EVERYTHING}) as here:
            peer = tank_peer.Peer(*await here.streams("tank", "everything"))
            assert await peer.receive()
            assert await peer.create(b"t") == tank.CreateCode.CREATED
            assert await peer.create(b"full") == tank.CreateCode.CREATED
            for _ in range(20):  # bundles of one, so that they can be counted
                assert await peer.produce(b"full", *[tank_peer.bundle(b"y" * 50)] * 100)
            began = time.monotonic()
            count = await go(here, "slow", began + seconds)
            taken_s = time.monotonic() - began
            allowed = RECORDS_PER_S * (taken_s + QUOTA_BURST_S)
            slack = 1000 if go in (figg_out, reliably_out) else 120  # what lies in sockets on the way
            assert RECORDS_PER_S * seconds / 4 < count <= allowed + slack, f"{count} records in {taken_s:.2f} s"
            meter = here.server.access.meters["slow"]
            pace = meter.incoming if go.__name__.endswith("_in") else meter.outgoing
            assert pace.waited_s > 0
            assert pace.records <= allowed + 300
            assert (
                b'quintlog_identity_records_total{direction="in",identity="slow"}'
                in (await here.http("GET", "/metrics", ""))[1]
            )

    asyncio.run(test())


# --- numbers


def test_connections_topics_subscriptions_and_sessions_are_bounded(tmp_path: Path) -> None:
    quotas = {"connections": 6, "topics": 2, "partitions": 3, "subscriptions": 1, "sessions": 1}

    async def test() -> None:
        async with place(tmp_path, {"few": EVERYTHING | {"quotas": quotas}, "everything": EVERYTHING}) as here:
            peer = tank_peer.Peer(*await here.streams("tank", "few"))
            assert await peer.receive()
            assert await peer.create(b"a", partitions=4) == tank.CreateCode.SYSTEM_ERROR
            assert await peer.create(b"a", partitions=2) == tank.CreateCode.CREATED
            assert await access_place.figg_publish(here, "few", b"b")
            assert not await access_place.figg_publish(here, "few", b"c")
            assert not await access_place.fujin_write(here, "few", b"c")
            assert await access_place.figg_publish(here, "everything", b"c")
            assert await access_place.figg_publish(here, "few", b"c"), "it is there now"
            async with fujin_peer.connect(here.address("fujin"), here.quic("few")) as client:
                await client.puller(b"a")
                assert not await access_place.figg_attach(here, "few", b"a"), "it has its one subscription"
                refused = client.open(fujin.connect_reader(PULL, True, b"b"))
                assert b"few may have 1 subscriptions" in await refused.rest()
            while here.server.access.meters["few"].subscriptions:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert await access_place.figg_attach(here, "few", b"a")
            assert await access_place.reliably_start(here, "few", b"b")
            assert not await access_place.reliably_start(here, "few", b"c")
            meter = here.server.access.meters["few"]
            for writer in here.writers:
                writer.transport.abort()
            while meter.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            held = [await here.streams("tank", "few") for _ in range(6)]
            assert all([await reader.readexactly(5) for reader, _ in held])
            assert not await access_place.figg_publish(here, "few", b"a"), "the seventh connection"
            assert await access_place.figg_publish(here, "everything", b"a")
            assert meter.refused["connections"] == 1

    asyncio.run(test())


def test_other_identities_do_not_wait_for_one_at_its_rate(tmp_path: Path) -> None:
    """What is sent is bounded for the one; the time that another one needs for a publish stays short meanwhile."""

    async def test() -> None:
        quotas = {"bytes_in_per_s": 100_000}
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": quotas}, "quick": EVERYTHING}) as here:
            until = time.monotonic() + 2
            floods = [asyncio.ensure_future(figg_in(here, "slow", until)) for _ in range(8)]
            reader, writer = await here.streams("figg", "quick")
            taken: list[float] = []
            number = 0
            while time.monotonic() < until:
                began = time.monotonic()
                writer.write(publish_frame(b"q", number, b"x"))
                await reader.readexactly(16)
                taken.append(time.monotonic() - began)
                number += 1
            await asyncio.gather(*floods)
            assert here.server.access.meters["slow"].incoming.waited_s > 1
            taken.sort()
            assert taken[len(taken) // 2] < 0.1
            assert len(taken) > 20

    asyncio.run(test())


async def _figg_once(here: Place, who: str, number: int) -> None:
    """A publish of more than is free at once, on a connection of its own."""
    reader, writer = await here.streams("figg", who)
    writer.write(b"".join(publish_frame(b"t", at, b"x" * 50) for at in range(300)))
    await reader.readexactly(16)
    writer.close()


async def _blipmq_once(here: Place, who: str, number: int) -> None:
    peer = blipmq_peer.AsyncPeer(*await here.streams("blipmq", "nobody"))
    peer.send(blipmq.hello(1) + blipmq.auth(2, access_place.key_of(who)))
    await peer.frames(2)
    await peer.publish(b"t", *[b"x" * 50] * 300)


async def _fujin_once(here: Place, who: str, number: int) -> None:
    async with fujin_peer.connect(here.address("fujin"), here.quic(who)) as peer:
        for _ in range(2):  # on streams of their own
            stream = peer.writer()
            stream.send(b"".join(fujin.write(at, b"t", b"x" * 50) for at in range(150)))
            await stream.take(6)


@pytest.mark.parametrize("once", [_figg_once, _blipmq_once, _fujin_once])
def test_coming_again_is_no_way_to_a_higher_rate(
    tmp_path: Path, once: Callable[[Place, str, int], Awaitable[None]]
) -> None:
    async def test() -> None:
        quotas = {"records_in_per_s": 1000}
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": quotas}}) as here:
            began = time.monotonic()
            for number in range(6):
                await once(here, "slow", number)
            taken_s = time.monotonic() - began
            records = here.server.access.meters["slow"].incoming.records
            assert records >= 6 * 150
            assert records <= 1000 * (taken_s + QUOTA_BURST_S) + 300

    asyncio.run(test())
