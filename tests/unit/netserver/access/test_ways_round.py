"""Ways round the rights and quotas that somebody might try."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from netserver.access.guard import Guard
from netserver.access.rights import Identity, Right
from netserver.blipmq import codec as blipmq
from netserver.limits import WRONG_KEY_DELAY_MAX_S
from netserver.tank import messages as tank
from tests import access_place, blipmq_peer, tank_peer
from tests.access_place import Place, key_of, place

pytestmark = pytest.mark.whole

EVERYTHING: Final[dict[str, Any]] = {right.value: ["*"] for right in Right}


@pytest.mark.parametrize(
    ("glob", "topic", "may"),
    [
        ("orders.*", b"orders.a", True),
        ("orders.*", b"orders.", True),
        ("orders.*", b"orders.a\nb", True),
        ("orders.*", b"orders.\xff\xfe", True),
        ("orders.*", b"orders", False),
        ("orders.*", b"ordersXa", False),
        ("orders.*", b"x\norders.a", False),
        ("orders.*", b"Orders.a", False),
        ("orders", b"orders\n", False),
        ("orders", b"orders\0", False),
        ("a?", "aß".encode(), True),
        ("a?", b"a\n", True),
        ("[ab]", b"[ab]", False),
        ("[!a]", b"a", False),
        ("a|b", b"b", False),
        ("a+", b"aa", False),
        ("(?i)a", b"A", False),
        ("", b"", True),
    ],
)
def test_a_pattern_is_of_the_whole_name_and_is_nothing_else(glob: str, topic: bytes, may: bool) -> None:
    assert Identity("a", publish=(glob,), subscribe=()).may(Right.PUBLISH, topic) == may


def test_a_request_about_several_topics_is_carried_out_for_those_alone_that_it_may_be(tmp_path: Path) -> None:
    async def test() -> None:
        identities = {"some": {"publish": ["a"], "subscribe": ["a"]}, "everything": EVERYTHING}
        async with place(tmp_path, identities) as here:
            for topic in (b"a", b"b"):
                assert await access_place.figg_publish(here, "everything", topic)
            peer = tank_peer.Peer(*await here.streams("tank", "some"))
            assert await peer.receive()
            entries = (tank.ProducePartition(0, tank_peer.bundle(b"x")),)
            names = (b"b", b"a", b"b")
            peer.send(tank.ProduceRequest(1, tuple(tank.ProduceTopic(name, entries) for name in names)))
            assert (await peer.answer(tank.ProduceResponse)).codes == b"\xff\0\xff"
            parts = (tank.ConsumePartition(0, 1, 1 << 20),)
            topics = tuple(tank.ConsumeTopic(name, parts) for name in (b"b", b"a"))
            peer.send(tank.ConsumeRequest(2, topics, 0, 0))
            found = {topic.name: topic.partitions for topic in (await peer.answer(tank.ConsumeResponse)).topics}
            assert found[b"a"][0].chunk
            assert not any(one.chunk for one in found.get(b"b", ()))
            assert here.server.log.partition(here.server.log.catalog.get(b"b")).last_seq == 1  # type: ignore[arg-type]

    asyncio.run(test())


def rewrite(here: Place, name: str, **fields: object) -> None:
    """Change a line of the access file, and reload it."""
    lines = [json.loads(line) for line in here.path.read_text().splitlines()]
    for line in lines:
        if line["name"] == name:
            line.update(fields)
    here.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    here.server.reload(here.server.config)


def test_a_quota_that_comes_later_holds_for_connections_that_are_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"early": EVERYTHING}) as here:
            peer = tank_peer.Peer(*await here.streams("tank", "early"))
            assert await peer.receive()
            assert await peer.create(b"t") == tank.CreateCode.CREATED
            rewrite(here, "early", quotas={"records_in_per_s": 1000, "topics": 1})
            meter = here.server.access.meters["early"]
            assert meter.connections == 1
            assert await peer.produce(b"t", tank_peer.bundle(*[b"x"] * 300)) == b"\0"
            assert meter.incoming.records == 300
            assert meter.incoming.waited_s > 0
            assert await peer.create(b"u") == tank.CreateCode.CREATED
            assert await peer.create(b"v") == tank.CreateCode.SYSTEM_ERROR
            rewrite(here, "early", quotas={"records_in_per_s": 10_000_000})
            assert here.server.access.meters["early"].quotas.records_in_per_s == 10_000_000
            assert await peer.create(b"v") == tank.CreateCode.CREATED

    asyncio.run(test())


def test_subscriptions_that_outlive_a_connection_count_until_they_are_gone(tmp_path: Path) -> None:
    async def test() -> None:
        identities = {"few": EVERYTHING | {"quotas": {"subscriptions": 2}}, "admin": {"role": "operator"}}
        async with place(tmp_path, identities) as here:

            async def subscribe() -> int | None:
                """The number of a new subscription, made on a connection of its own."""
                peer = blipmq_peer.AsyncPeer(*await here.streams("blipmq", "nobody"))
                peer.send(blipmq.hello(1) + blipmq.auth(2, key_of("few")) + blipmq.subscribe(3, b"t", 1))
                *_, answer = await peer.frames(3)
                peer.writer.close()
                return blipmq.parse_ack(answer.payload) if answer.type == blipmq.FrameType.ACK else None

            first, second = await subscribe(), await subscribe()
            assert first is not None
            assert second is not None
            assert await subscribe() is None
            assert (await here.http("DELETE", f"/v1/subscriptions/{first}", "admin"))[0] == 200
            assert await subscribe() is not None
            assert await subscribe() is None

    asyncio.run(test())


def test_a_poll_finds_no_more_what_its_connection_had_found_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"narrowed": EVERYTHING}) as here:
            peer = blipmq_peer.AsyncPeer(*await here.streams("blipmq", "narrowed"))
            peer.send(blipmq.hello(1) + blipmq.auth(2, "any"))
            await peer.frames(2)
            subscription = await peer.subscribe(b"t")
            await peer.publish(b"t", b"one", b"two")
            assert len(await peer.poll(subscription)) == 1
            rewrite(here, "narrowed", subscribe=["other"])
            peer.send(blipmq.poll(9, subscription))
            assert (await peer.nack())[:2] == (9, 401)

    asyncio.run(test())


def test_another_address_of_the_same_network_is_no_fresh_start() -> None:
    guard = Guard(lambda: 0.0)
    for number in range(1, 20):
        wait_s = guard.failed(f"[2001:db8::{number:x}]", f"guess {number}")
    assert wait_s == WRONG_KEY_DELAY_MAX_S
    assert guard.failed("2001:db8:0:1::1", "another network") == 0
    assert guard.failed("::ffff:10.0.0.1", "an IPv4 address") == 0


def test_a_group_that_has_become_another_one_while_the_body_came_is_left_alone(tmp_path: Path) -> None:
    """Whose topic the rights are asked for is the one that it has when it is reset, not when the request begins."""

    async def test() -> None:
        mine: dict[str, Any] = {right.value: ["mine"] for right in Right}
        async with place(tmp_path, {"me": mine, "all": {right.value: ["*"] for right in Right}}) as here:
            for topic in ("mine", "others"):
                await here.http("POST", "/v1/topics", "all", {"name": topic})
                for _ in range(3):
                    body = {"records": [{"value": "x"}]}
                    assert (await here.http("POST", f"/v1/topics/{topic}/records", "all", body))[0] == 200
            assert (await here.http("POST", "/v1/groups", "me", {"name": "g", "topic": "mine"}))[0] == 201
            reader, writer = await asyncio.open_connection(*here.address("admin"))
            here.writers.append(writer)
            head = f"POST /v1/groups/g/reset HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key_of('me')}\r\n"
            writer.write(f"{head}Expect: 100-continue\r\nContent-Length: 15\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"100", "the request has begun"
            assert (await here.http("DELETE", "/v1/groups/g", "me"))[0] == 200
            assert (await here.http("POST", "/v1/groups", "all", {"name": "g", "topic": "others"}))[0] == 201
            writer.write(b'{"to":"latest"}')
            assert (await reader.readline()).split()[1] == b"403"
            group = json.loads((await here.http("GET", "/v1/groups/g", "all"))[1])
            assert group["positions"][0]["next_offset"] == 1

    asyncio.run(test())
