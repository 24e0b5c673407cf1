"""One topic, three protocols: what BlipMQ, Figg and TANK publish is read by each, in one order with one number."""

from __future__ import annotations

import asyncio

from netserver import blipmq, figg, tank
from netserver.testing import running

ROUNDS = 20


def test_each_reads_what_each_publishes() -> None:
    async def main() -> None:
        async with running(settings={"blipmq": {"retry_backoff_ms": "1min"}}) as quintlog:
            at = {name: str(address) for name, address in quintlog.addresses.items()}
            async with (
                blipmq.connect(at["blipmq"]) as blip,
                figg.connect(at["figg"]) as fig,
                tank.connect(at["tank"]) as tan,
            ):
                await tan.create_topic("shared")
                subscription = await blip.subscribe("shared")
                expected: list[bytes] = []
                for n in range(ROUNDS):
                    await blip.publish("shared", b"blipmq %d" % n)
                    await blip.publish("shared", b"blipmq, QoS 0, %d" % n, qos=0)
                    await blip.flush()
                    await fig.publish("shared", b"figg %d" % n)
                    await tan.publish("shared", b"tank %d" % n, key=b"key")
                    await tan.publish_many("shared", [b"snappy " * 40, b"tank, a bundle, %d" % n], compress=True)
                    expected += [
                        b"blipmq %d" % n, b"blipmq, QoS 0, %d" % n, b"figg %d" % n, b"tank %d" % n, b"snappy " * 40,
                        b"tank, a bundle, %d" % n,
                    ]  # fmt: skip
                by_blipmq = [await subscription.next(10) for _ in expected]
                assert [message.value for message in by_blipmq] == expected
                for number, message in enumerate(by_blipmq, 1):
                    assert message.tag == (None if b"QoS 0" in message.value else number)
                async with fig.subscribe("shared", start=figg.EARLIEST) as subscribed:
                    by_figg = [await subscribed.next(10) for _ in expected]
                assert [record.value for record in by_figg] == expected
                async with tan.subscribe("shared", start=tank.EARLIEST) as consumer:
                    by_tank = [await consumer.next(10) for _ in expected]
                assert [record.value for record in by_tank] == expected
                numbers = [record.seq for record in by_tank]
                assert numbers == [record.offset for record in by_figg] == list(range(1, len(expected) + 1))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_topics_that_only_blipmq_can_spell() -> None:
    async def main() -> None:
        async with running() as quintlog, blipmq.connect(str(quintlog.addresses["blipmq"])) as client:
            for topic in ("wörter mit Blanks/und Strichen", "../../etc", "a\0b\n", "*", "x" * 65_000):
                subscription = await client.subscribe(topic)
                await client.publish(topic, topic.encode()[:100])
                message = await subscription.next(10)
                assert (message.topic, message.value) == (topic.encode(), topic.encode()[:100])

    asyncio.run(asyncio.wait_for(main(), 60))
