"""The BlipMQ client against the server: publishing, subscriptions, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from netserver import blipmq
from netserver.access.key_file import add_key
from netserver.app import Server
from netserver.errors import Closed, Refused, TooLarge
from netserver.testing import running, server
from tests.blipmq_place import FAST, take
from tests.echo import ALONE, LOOPS, run, until

pytestmark = pytest.mark.whole


def with_client(
    test: Callable[[blipmq.Client, Server], Awaitable[None]], loop: str = "asyncio", **sections: dict[str, Any]
) -> None:
    """Run ``test`` with a server in the same event loop and a client of it."""
    # a busy machine must not make messages come twice where a test does not want it
    own = {"listen": "127.0.0.1:0", "retry_backoff_ms": "20s", **sections.get("blipmq", {})}
    settings = {**ALONE, **sections, "blipmq": own}

    async def main() -> None:
        async with (
            running(settings=settings) as quintlog,
            blipmq.connect(str(quintlog.addresses["blipmq"]), **FAST) as client,
        ):
            await test(client, quintlog)

    run(loop, main())


# --- publishing


@pytest.mark.parametrize("loop", LOOPS)
def test_published_messages_arrive_in_order(loop: str) -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        assert subscription.id > 0
        await client.publish("t", b"one")
        await client.publish(b"t", b"two", qos=0)
        futures = [await client.send("t", b"%d" % n) for n in range(500)]
        await client.publish_many("t", [b"m%d" % n for n in range(5000)])
        assert all(future.done() and future.exception() is None for future in futures)
        await client.publish_many("t", [b"last"], qos=0)
        await client.publish_many("t", [])
        await client.flush()
        expected = [b"one", b"two", *(b"%d" % n for n in range(500)), *(b"m%d" % n for n in range(5000)), b"last"]
        assert await take(subscription, len(expected)) == expected

    with_client(test, loop)


def test_a_publish_returns_when_the_record_is_stored() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        for n in range(20):
            await client.publish("t", b"x")
            topic = quintlog.log.catalog.get(b"t")
            assert topic is not None
            assert quintlog.log.partition(topic).committed_seq == n + 1

    with_client(test)


def test_large_messages() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        largest = (16 << 20) - 12 - len("t")  # one whose frame is as large as a frame may be
        for size in (0, 1 << 20, largest):
            await client.publish("t", bytes(size))
            assert await take(subscription, 1) == [bytes(size)]
        with pytest.raises(TooLarge):
            await client.publish("t", bytes(largest + 1))
        async with blipmq.connect(str(quintlog.addresses["blipmq"]), version=2) as pushed:
            over = await pushed.subscribe("u")
            await pushed.publish("u", bytes(largest - 8))
            assert (await over.next(10)).value == bytes(largest - 8)
            for more in ({}, {"ttl_ms": 5}):
                with pytest.raises(Refused, match="too large to be delivered") as refused:
                    await pushed.publish("u", bytes(largest - 7), **more)
                assert (refused.value.code, refused.value.retryable) == (400, False)

    with_client(test)


def test_refusals_concern_their_message_only() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        good = await client.send("t", b"good")
        bad = await client.send("t", b"x" * 2000)
        behind = await client.send("t", b"behind")
        with pytest.raises(Refused):
            await client.publish_many("t", [b"a", b"y" * 2000, b"b"])
        await client.flush()
        assert good.exception() is None
        assert behind.exception() is None
        assert isinstance(bad.exception(), Refused)

    with_client(test, topics={"record_bytes_max": "1000"})


def test_what_cannot_be_sent() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        with pytest.raises(ValueError, match="QoS"):
            await client.publish("t", b"x", qos=2)
        with pytest.raises(ValueError, match="topic"):
            await client.publish("", b"x")
        with pytest.raises(ValueError, match="UTF-8"):
            await client.publish(b"\xff", b"x")
        with pytest.raises(TypeError):
            await client.publish("t", "text")  # type: ignore[arg-type]

    with_client(test)


def test_rights(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret = tmp_path / "secret"
    secret.write_text(add_key(path, "writer", publish=["ok.*"], subscribe=[]) + "\n")

    async def main() -> None:
        settings = {**ALONE, "blipmq": {"listen": "127.0.0.1:0", "key_file": str(path)}}
        async with running(settings=settings) as quintlog:
            address = str(quintlog.addresses["blipmq"])
            with pytest.raises(Refused, match="invalid API key") as refused:
                async with blipmq.connect(address, api_key="wrong"):
                    pass
            assert refused.value.code == 401
            async with blipmq.connect(address, api_key=secret, **FAST) as client:
                await client.publish("ok.1", b"x")
                with pytest.raises(Refused, match="not allowed"):
                    await client.publish("other", b"x")
                with pytest.raises(Refused, match="not allowed"):
                    await client.subscribe("ok.1")
                await client.publish("ok.1", b"y")

    asyncio.run(main())


# --- subscriptions


def test_a_subscription_goes_on_with_its_id() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        async with client.subscribe("t") as first:
            await client.publish_many("t", [b"%d" % n for n in range(10)])
            assert await take(first, 4) == [b"0", b"1", b"2", b"3"]
        async with blipmq.connect(str(quintlog.addresses["blipmq"])) as other:
            again = await other.subscribe("t", resume=first.id)
            assert again.id == first.id
            assert await take(again, 6) == [b"%d" % n for n in range(4, 10)]

    with_client(test, blipmq={"retry_backoff_ms": "50"})


def test_what_is_not_acknowledged_comes_again() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        async with client.subscribe("t") as subscription:
            await client.publish("t", b"x")
            first = await subscription.next(5)
            again = await subscription.next(5)
            assert first == again
            assert first.tag == 1
            await again.ack()
            await first.ack()  # the second one is refused; nobody minds
            await subscription.flush()
            await client.publish("t", b"y")
            assert (await subscription.next(5)).value == b"y"

    with_client(test, blipmq={"retry_backoff_ms": "30"})


def test_acknowledgements_are_sent_before_closing() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        async with client.subscribe("t") as subscription:
            await client.publish_many("t", [b"x"] * 100)
            await take(subscription, 100)
        cursor = quintlog.log.cursors.get(subscription.id)
        assert cursor is not None
        assert cursor.deliveries.floor == 100

    with_client(test)


def test_qos_0() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        async with client.subscribe("t", qos=0) as subscription:
            await client.publish_many("t", [b"1", b"2"])
            message = await subscription.next(5)
            assert (message.value, message.tag, message.topic) == (b"1", None, b"t")
            await message.ack()
            assert await take(subscription, 1) == [b"2"]

    with_client(test)


def test_batches_and_forms_of_a_value() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        subscription = client.subscribe("t")
        async with subscription:
            await client.publish_many("t", [b'{"n": %d}' % n for n in range(300)])
            seen: list[int] = []
            async for batch in subscription.batches(max_records=50):
                assert 1 <= len(batch) <= 50
                seen += [message.json()["n"] for message in batch]
                assert batch.records()[0].text.startswith("{")
                await batch.ack()
                if len(seen) == 300:
                    break
            assert seen == list(range(300))
            assert subscription.position == 301
            with pytest.raises(TypeError, match="reset"):
                await subscription.seek(1)

    with_client(test)


def test_handlers() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        await client.publish_many("t", [b"%d" % n for n in range(50)])
        failed: set[bytes] = set()
        handled: set[bytes] = set()
        busy = most = 0

        async def handle(message: blipmq.Message) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.001)
            busy -= 1
            if message.value.endswith(b"7") and message.value not in failed:
                failed.add(message.value)
                raise RuntimeError("not this time")
            handled.add(message.value)
            if len(handled) == 50:
                asyncio.get_running_loop().call_soon(lambda: tasks.append(asyncio.ensure_future(subscription.close())))

        tasks: list[asyncio.Future[None]] = []
        await subscription.run(handle, concurrency=4)
        await tasks[0]
        assert most == 4
        assert subscription.failures == len(failed) == 5
        cursor = quintlog.log.cursors.get(subscription.id)
        assert cursor is not None
        assert cursor.deliveries.floor == 50

    with_client(test, blipmq={"retry_backoff_ms": "40"})


def test_a_slow_application_is_not_flooded() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        await client.publish_many("t", [b"%d" % n for n in range(200)])
        values = []
        for _ in range(40):
            message = await subscription.next(5)
            await asyncio.sleep(0.02)
            values.append(message.value)
            await message.ack()
        assert quintlog.log.cursors.totals("blipmq").redelivered == 0
        assert values == [b"%d" % n for n in range(40)]

    with_client(test, blipmq={"retry_backoff_ms": "200"})


def test_the_end_of_the_client_ends_its_subscriptions() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        async with blipmq.connect(str(quintlog.addresses["blipmq"])) as other:
            subscription = await other.subscribe("t")
            waiting = asyncio.ensure_future(subscription.next())
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await other.publish("t", b"x")
        with pytest.raises(Closed):
            await other.subscribe("t")

    with_client(test)


# --- through restarts


def test_everything_goes_on_after_a_restart_of_the_server() -> None:
    with server(settings={**ALONE, "blipmq": {"listen": "127.0.0.1:0", "retry_backoff_ms": "50"}}) as process:

        async def main() -> None:
            host, port = process.address("blipmq")
            async with blipmq.connect(f"{host}:{port}", **FAST) as client:
                subscription = await client.subscribe("t")
                seen: set[bytes] = set()
                sent: list[bytes] = []
                events: list[str] = []

                async def watch() -> None:
                    async for event in client.events():
                        events.append(event.name)

                async def publish() -> None:
                    for n in range(300):
                        await client.publish("t", b"%d" % n)
                        sent.append(b"%d" % n)

                watcher = asyncio.ensure_future(watch())
                publisher = asyncio.ensure_future(publish())
                for _ in range(2):
                    count = len(sent)
                    await until(lambda count=count: len(sent) >= count + 30)
                    await asyncio.to_thread(process.kill)
                    await asyncio.to_thread(process.restart)
                await asyncio.wait_for(publisher, 30)
                while len(seen) < 300:
                    message = await subscription.next(10)
                    seen.add(message.value)
                    await message.ack()
                assert events.count("disconnected") == 2
                watcher.cancel()

        asyncio.run(main())


# --- subscriptions that are gone


async def delete_topic(server: Server, name: bytes) -> None:
    catalog = server.log.catalog
    topic = catalog.get(name)
    assert topic is not None
    catalog.delete(topic)
    await until(lambda: catalog.get(name) is None)


def test_an_unknown_subscription_is_refused() -> None:
    async def test(client: blipmq.Client, server: Server) -> None:
        with pytest.raises(Refused, match="unknown subscription: 12345"):
            await client.subscribe("t", resume=12345)
        known = await client.subscribe("t")
        await known.close()
        await client.publish("t", b"x")
        assert await take(await client.subscribe("t", resume=known.id), 1) == [b"x"]

    with_client(test)


@pytest.mark.parametrize("what", ["subscription", "topic"])
def test_a_subscription_that_is_deleted_is_refused(what: str) -> None:
    async def test(client: blipmq.Client, server: Server) -> None:
        await client.publish("t", b"of a topic that is there")
        subscription = await client.subscribe("t")
        again = await client.subscribe("t", forgotten_on_restart=True)
        if what == "topic":
            await delete_topic(server, b"t")
        else:
            for one in (subscription, again):
                cursor = server.log.cursors.get(one.id)
                assert cursor is not None
                server.log.cursors.delete(cursor)
        with pytest.raises(Refused, match="unknown subscription") as raised:
            await subscription.next(20)
        assert raised.value.code == 404
        before = subscription.id
        await until(lambda: again.id > before + 1)
        await client.publish("t", b"new")
        assert await take(again, 1) == [b"new"]

    with_client(test)
