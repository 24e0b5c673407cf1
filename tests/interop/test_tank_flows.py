"""TANK beside Figg on one log, and the flows of TANK's own tools: create, produce, consume, tail, mirror."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from netserver import figg, tank
from netserver.app import Server
from netserver.testing import running
from tests.echo import LOOPS, run

Stored = list[tuple[int, bytes]]
"""(number, value) of each record."""


async def by_tank(client: tank.Client, topic: str, count: int, partition: int = 0) -> Stored:
    subscription = client.subscribe(topic, partition=partition, start=tank.EARLIEST)
    async with subscription:
        found = [await subscription.next(10) for _ in range(count)]
    return [(record.seq, record.value) for record in found]


async def by_figg(client: figg.Client, topic: str, count: int) -> Stored:
    async with client.subscribe(topic, start=figg.EARLIEST) as subscription:
        found = [await subscription.next(10) for _ in range(count)]
    return [(record.offset, record.value) for record in found]


def together(loop: str, test: Callable[[tank.Client, figg.Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            running() as server,
            tank.connect(str(server.addresses["tank"])) as one,
            figg.connect(str(server.addresses["figg"])) as two,
        ):
            await test(one, two)

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_figg_publishes_and_tank_consumes(loop: str) -> None:
    async def test(one: tank.Client, two: figg.Client) -> None:
        values = [random.Random(n).randbytes(n % 700) for n in range(1500)]
        await two.publish_many("orders", values)
        expected = list(enumerate(values, 1))
        assert await by_tank(one, "orders", 1500) == expected
        assert await by_figg(two, "orders", 1500) == expected
        assert await one.discover("orders") == (tank.PartitionRange(1, 1500),)
        (middle,) = await one.fetch([("orders", 0, 777)])
        assert middle.batch is not None
        assert (middle.batch.seqs[0], middle.batch.values[0]) == expected[776]

    together(loop, test)


@pytest.mark.parametrize("loop", LOOPS)
def test_tank_publishes_and_figg_reads(loop: str) -> None:
    async def test(one: tank.Client, two: figg.Client) -> None:
        await one.create_topic("orders", partitions=2)
        values = [random.Random(n).randbytes(n % 50) * 20 for n in range(600)]
        await one.publish_many("orders", values[:400], compress=True)
        await one.publish_many("orders", values[400:], keys=[b"key"] * 200, bundle_records=7)
        await one.publish_many("orders", [b"of partition 1"], partition=1)
        await one.publish_many("orders", [b"x", b"y", b"z"], seqs=[1000, 1005, 1006])
        expected = [*enumerate(values, 1), (1000, b"x"), (1005, b"y"), (1006, b"z")]
        assert await by_figg(two, "orders", 603) == expected
        assert await by_tank(one, "orders", 603) == expected
        await two.publish("orders", b"behind the gap")
        assert (await by_tank(one, "orders", 604))[-1] == (1007, b"behind the gap")

    together(loop, test)


def test_both_by_turns() -> None:
    async def test(one: tank.Client, two: figg.Client) -> None:
        chance = random.Random(3)
        await one.create_topic("mixed")
        expected: list[bytes] = []
        for turn in range(150):
            values = [b"%d/%d " % (turn, n) + b"." * chance.choice((0, 10, 2000)) for n in range(chance.randint(1, 12))]
            if chance.random() < 0.5:
                await one.publish_many("mixed", values, bundle_records=chance.choice((1, 3, 255)))
            else:
                await two.publish_many("mixed", values)
            expected += values
        numbered = list(enumerate(expected, 1))
        assert await by_tank(one, "mixed", len(expected)) == numbered
        assert await by_figg(two, "mixed", len(expected)) == numbered

    together("uvloop", test)


def test_both_follow_each_other_live() -> None:
    async def test(one: tank.Client, two: figg.Client) -> None:
        await one.create_topic("live")
        async with (
            one.subscribe("live", start=tank.EARLIEST) as of_tank,
            two.subscribe("live", start=figg.EARLIEST) as of_figg,
        ):
            for n in range(60):
                if n % 2:
                    await one.publish("live", b"%d" % n)
                else:
                    await two.publish("live", b"%d" % n)
                record, same = await of_tank.next(10), await of_figg.next(10)
                assert (record.seq, record.value) == (same.offset, same.value) == (n + 1, b"%d" % n)

    together("uvloop", test)


def test_mirror() -> None:
    """Copies keep numbers, keys and times, as tank-cli's mirror does it: by bundles with numbers of their own."""

    async def copy(source: tank.Client, target: tank.Client, until_seq: int) -> None:
        async with source.subscribe("t", start=tank.EARLIEST) as subscription:
            async for batch in subscription.batches():
                await target.publish_many(
                    "t", batch.values, keys=batch.keys, timestamps_ms=batch.timestamps_ms, seqs=batch.seqs
                )
                if batch.next_offset > until_seq:
                    return

    async def everything(server: Server) -> list[tank.Record]:
        async with tank.connect(str(server.addresses["tank"])) as client:
            last_seq = (await client.discover("t"))[0].last_seq
            found: list[tank.Record] = []
            async with client.subscribe("t", start=tank.EARLIEST) as subscription:
                while not found or found[-1].seq < last_seq:
                    found.append(await subscription.next(10))
            return found

    async def main() -> None:
        async with (
            running() as first,
            running() as second,
            tank.connect(str(first.addresses["tank"])) as source,
            tank.connect(str(second.addresses["tank"])) as target,
        ):
            for client in (source, target):
                await client.create_topic("t")
            await source.publish_many("t", [b"%d" % n for n in range(300)], keys=[b"k%d" % (n % 7) for n in range(300)])
            await source.publish_many("t", [b"far", b"further"], seqs=[5000, 6000], timestamps_ms=[1, 2])
            await source.publish("t", b"last")
            await copy(source, target, 6001)
            assert await everything(second) == await everything(first)
            assert (await target.discover("t"))[0] == tank.PartitionRange(1, 6001)

    asyncio.run(asyncio.wait_for(main(), 60))
