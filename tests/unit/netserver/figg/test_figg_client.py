"""The Figg client against a real server, a proxy that cuts connections, and servers as old as the original."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from netserver import figg
from netserver.client.base import ClientEvent
from netserver.errors import Closed, ConnectionFailed, Refused, Timeout, TooLarge, Unknown
from netserver.figg import codec
from netserver.figg.codec import Attach, Detach, Message, Ping, Publish
from netserver.testing import running
from tests.echo import LOOPS, run, until
from tests.figg_support import ONLY_FIGG, OldServer, Place, Proxy, proxied, with_server

pytestmark = pytest.mark.whole

QUICK: dict[str, Any] = {"backoff": lambda failures: 0.001}
BOTH_LOOPS = pytest.mark.parametrize("loop", LOOPS)


def at(place: Place, **options: Any) -> figg.Client:
    host, port = place.address
    return figg.connect(f"{host}:{port}", **options)


def through(test: Callable[[Place, Proxy], Awaitable[None]]) -> None:
    """Run ``test`` with a server and a proxy in front of it."""

    async def main(place: Place) -> None:
        async with proxied(place) as proxy:
            await test(place, proxy)

    with_server(main)


async def listen(client: figg.Client, events: list[ClientEvent]) -> None:
    async for event in client.events():
        events.append(event)


def sent_by(connection: bytearray) -> list[Message]:
    """What a client sent on one connection, without pings."""
    return [message for message in codec.Decoder("server").feed(bytes(connection)) if not isinstance(message, Ping)]


# --- publishing


@BOTH_LOOPS
def test_publish_send_and_many(loop: str) -> None:
    async def main() -> None:
        async with running(settings=ONLY_FIGG) as server:
            place = Place(server)
            async with at(place) as client:
                await client.publish("orders", b"one")
                assert place.partition(b"orders").committed_seq == 1
                acks = [await client.send(b"orders", b"%d" % number) for number in range(2000)]
                await client.publish_many("orders", (b"many %d" % number for number in range(5000)))
                assert all(ack.done() for ack in acks)
                assert (await client.send_many("orders", [])).done()
                large = [bytes(400_000), b"", bytes(300_000)]
                await client.publish_many("orders", large)
                values = [b"one", *(b"%d" % n for n in range(2000)), *(b"many %d" % n for n in range(5000)), *large]
                async with client.subscribe("orders", start=figg.EARLIEST) as orders:
                    assert [await orders.next(10) for _ in range(len(values))] == list(enumerate(values, 1))

    run(loop, main())


def test_the_window_bounds_what_is_outstanding() -> None:
    async def main() -> None:
        published: list[int] = []

        def answer(message: Message) -> bytes | None:
            if isinstance(message, Publish):
                published.append(message.seq_num)
            return None

        async with OldServer(answer) as server:
            client = await figg.connect(server.address, window=8)
            acks = [await client.send("t", b"x") for _ in range(8)]
            waiting = asyncio.create_task(client.send("t", b"y"))
            many = asyncio.create_task(client.publish_many("t", [b"z"] * 5))
            await until(lambda: len(published) == 8)
            await asyncio.sleep(0.01)
            assert not waiting.done()
            server.writers[0].write(codec.ack(3))
            await waiting
            assert [ack.done() for ack in acks] == [True] * 4 + [False] * 4
            await until(lambda: len(published) == 11)
            server.writers[0].write(codec.ack(10))
            await until(lambda: len(published) == 14)
            server.writers[0].write(codec.ack(13))
            await many
            assert published == list(range(14))
            await client.close()

    run("asyncio", main())


def test_what_cannot_be_sent_is_refused_before() -> None:
    async def test(place: Place) -> None:
        async with at(place, value_bytes_max=100) as client:
            for call in (
                client.publish("t", bytes(101)),
                client.send_many("t", [b"", bytes(101)]),
                client.send("t" * 1025, b""),
            ):
                with pytest.raises(TooLarge) as caught:
                    await call
                assert (caught.value.stored, caught.value.retryable) == (False, False)
            with pytest.raises(TypeError):
                await client.send("t", "text")  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await client.publish_many("t", [b"", "text"])  # type: ignore[list-item]
            assert client.window.records == 0, "nor was anything before it"
            await client.publish("t", bytes(100))

    with_server(test)


def test_cut_connections_lose_and_reorder_nothing() -> None:
    async def test(place: Place, proxy: Proxy) -> None:
        async with figg.connect(proxy.address, window=64, **QUICK) as client:
            for number in range(0, 3000, 3):
                await client.send("t", b"%d" % number)
                await client.send_many("t", [b"%d" % (number + 1), b"%d" % (number + 2)])
                if number % 300 == 150:
                    await asyncio.sleep(0.002)
                    proxy.cut()
            await client.flush()
            async with client.subscribe("t", start=figg.EARLIEST) as topic:
                seen: list[int] = []
                while not seen or seen[-1] != 2999:
                    seen.append(int((await topic.next(10)).value))
        first: dict[int, int] = {}
        for position, number in enumerate(seen):
            first.setdefault(number, position)
        assert sorted(first) == list(range(3000)), "nothing is lost"
        assert sorted(first, key=first.__getitem__) == list(range(3000)), "nothing overtakes"
        assert proxy.accepted > 5

    through(test)


def test_a_new_connection_is_told_everything_in_order() -> None:
    """Attaching topics, attached ones with the offset last received, detaching ones, then the window, oldest first."""

    async def main() -> None:
        def answer(message: Message) -> bytes | None:
            if isinstance(message, Attach) and message.topic == b"on":
                return codec.attached(b"on", 5) + codec.data(b"on", 6, b"x") + codec.data(b"on", 9, b"y")
            return None

        async with OldServer(answer) as server:
            client = await figg.connect(server.address, window=100, **QUICK)
            on = await client.subscribe("on", start=5)
            assert [await on.next(), await on.next()] == [(6, b"x"), (9, b"y")]
            gone = client.subscribe("gone")
            attaching = [client.subscribe("coming", start=3), client.subscribe("late")]
            tasks = [asyncio.ensure_future(one._opened()) for one in (gone, *attaching)]
            await until(lambda: len(server.received) == 4)
            await gone.close()
            acks = [await client.send("t", b"1"), await client.send_many("t", [b"2", b"3", b"4"])]
            await until(lambda: len(server.received) == 9)
            server.writers[0].write(codec.ack(1))
            await acks[0]
            server.cut()
            await client.send("t", b"5")
            await until(lambda: len(server.received) == 9 + 4 + 3)
            await asyncio.sleep(0.01)
            assert server.received[9:11] == [Attach(b"coming", 3), Attach(b"late")]
            assert server.received[11:] == [
                Attach(b"on", 9),
                Detach(b"gone"),
                Publish(b"t", 2, b"3"),
                Publish(b"t", 3, b"4"),
                Publish(b"t", 4, b"5"),
            ]
            server.writers[0].write(codec.ack(4) + codec.attached(b"coming", 3) + codec.attached(b"late", 0))
            await asyncio.gather(*tasks[1:])
            await client.close()
            with pytest.raises(Closed):
                await tasks[0]

    run("asyncio", main())


def test_giving_up_tells_topic_and_value_of_what_is_unknown() -> None:
    async def main() -> None:
        async with OldServer(lambda message: None) as server:
            client = await figg.connect(server.address, give_up_after_s=0.05, **QUICK)
            subscription = client.subscribe("t")
            opening = asyncio.ensure_future(subscription._opened())
            ack = await client.send("t", b"one")
            pack = await client.send_many("u", [b"two", b"three"])
            await until(lambda: len(server.received) == 4)
            await server.__aexit__()
            with pytest.raises(Unknown) as caught:
                await ack
            assert list(caught.value.records) == [(b"t", b"one")]
            with pytest.raises(Unknown) as caught:
                await pack
            assert list(caught.value.records) == [(b"u", b"two"), (b"u", b"three")]
            with pytest.raises(ConnectionFailed):
                await opening
            with pytest.raises(ConnectionFailed):
                await client.publish("t", b"four")

    run("asyncio", main())


# --- subscribing


def test_what_was_acknowledged_of_many_is_not_unknown() -> None:
    async def main() -> None:
        async with OldServer(lambda message: codec.ack(0) if message == Publish(b"t", 1, b"1") else None) as server:
            client = await figg.connect(server.address, give_up_after_s=0.05, window=8, **QUICK)
            future = await client.send_many("t", [b"0", b"1"])
            await until(lambda: client._acknowledged == 0)
            await server.__aexit__()
            with pytest.raises(Unknown) as caught:
                await future
            assert list(caught.value.records) == [(b"t", b"1")]

    run("asyncio", main())


def test_a_call_that_ends_amid_its_records_tells_which_are_unknown() -> None:
    """That nothing was stored would be wrong: some were sent, and of these some were acknowledged."""

    async def main() -> None:
        async with OldServer(lambda message: codec.ack(0) if message == Publish(b"t", 3, b"3") else None) as server:
            client = await figg.connect(server.address, give_up_after_s=0.05, window=4, **QUICK)
            sending = asyncio.ensure_future(client.publish_many("t", [b"%d" % n for n in range(9)]))
            await until(lambda: client._acknowledged == 0 and len(server.received) == 5)
            await server.__aexit__()
            with pytest.raises(Unknown, match="4 of them were not acknowledged") as caught:
                await sending
            assert list(caught.value.records) == [(b"t", b"%d" % n) for n in range(1, 5)]
            assert caught.value.stored is None

    run("asyncio", main())


def test_start_positions_and_seek() -> None:
    async def test(place: Place) -> None:
        async with at(place) as client:
            await client.publish_many("t", [b"%d" % number for number in range(1, 11)])
            async with client.subscribe("t") as latest:
                assert latest.position == 10
                await client.publish("t", b"11")
                assert await latest.next(5) == figg.Record(11, b"11")
                await latest.seek(figg.EARLIEST)
                assert latest.position == 0
                assert await latest.next(5) == (1, b"1")
                await latest.seek(9)
                assert [await latest.next(5), await latest.next(5)] == [(10, b"10"), (11, b"11")]
                await latest.seek(figg.LATEST)
                assert latest.position == 11
                await latest.seek(2**64 - 1)
                with pytest.raises(Timeout):
                    await latest.next(0.01)
                assert latest.position == 11
            async with client.subscribe("t", start=7) as middle:
                assert await middle.next(5) == (8, b"8")
            for bad in (-1, 2**64):
                with pytest.raises(ValueError, match="offset"):
                    client.subscribe("t", start=bad)

    with_server(test)


def test_one_subscription_per_topic() -> None:
    async def test(place: Place) -> None:
        async with at(place) as client:
            async with client.subscribe("t"):
                with pytest.raises(Refused, match="already"):
                    await client.subscribe("t")
            async with client.subscribe("t", start=figg.EARLIEST) as again:
                await client.publish("t", b"x")
                assert await again.next(5) == (1, b"x")
                await client.publish("t", b"y")
                assert await again.next(5) == (2, b"y")

    with_server(test)


def test_subscriptions_survive_cuts() -> None:
    async def test(place: Place, proxy: Proxy) -> None:
        events: list[ClientEvent] = []
        async with figg.connect(proxy.address, **QUICK) as client, at(place) as publisher:
            listener = asyncio.create_task(listen(client, events))
            async with client.subscribe("t", start=figg.EARLIEST) as topic:

                async def publish() -> None:
                    for number in range(100):
                        await publisher.publish("t", b"%d" % number)
                        if number % 20 == 10:
                            proxy.cut()

                publishing = asyncio.create_task(publish())
                assert [await topic.next(10) for _ in range(100)] == [(n + 1, b"%d" % n) for n in range(100)]
                await publishing
        await listener
        names = [event.name for event in events if event.name != "failed"]
        assert names == ["connected", "disconnected"] * (len(names) // 2 - 1) + ["connected", "closed"]
        assert len(names) >= 12
        resumed = [message for one in proxy.to_server[1:] for message in sent_by(one) if isinstance(message, Attach)]
        assert all(message.offset is not None for message in resumed)

    through(test)


def test_publishing_inside_a_loop_over_a_full_prefetch_is_no_deadlock() -> None:
    async def test(place: Place) -> None:
        async with at(place) as client:
            values = [b"%d" % number for number in range(30_000)]
            await client.publish_many("t", values)
            count = 0
            async with client.subscribe("t", start=figg.EARLIEST, prefetch_records=100) as topic:
                async for record in topic:
                    count += 1
                    assert record == (count, values[count - 1])
                    if count % 1000 == 1:
                        await client.publish("copy", record.value)
                        assert topic._queue.records < 60_000
                    if count == len(values):
                        break
            async with client.subscribe("copy", start=figg.EARLIEST) as copy:
                assert [int((await copy.next(5)).value) for _ in range(30)] == list(range(0, 30_000, 1000))

    with_server(test)


def test_a_full_prefetch_stops_the_reading_and_nothing_is_lost() -> None:
    async def test(place: Place) -> None:
        async with at(place) as client, at(place) as publisher:
            await publisher.publish_many("t", [bytes(1000)] * 100_000)
            async with client.subscribe("t", start=figg.EARLIEST, prefetch_records=500) as topic:
                await until(lambda: client._paused)
                held = topic._queue.records
                await asyncio.sleep(0.05)
                assert topic._queue.records == held < 10_000
                count = 0
                async for batch in topic.batches():
                    assert batch.offsets == list(range(count + 1, count + len(batch) + 1))
                    count += len(batch)
                    if count == 100_000:
                        break

    with_server(test)


def test_a_slow_subscription_does_not_hold_up_a_new_one() -> None:
    async def test(place: Place) -> None:
        async with at(place) as client, at(place) as publisher:
            await publisher.publish_many("slow", [bytes(1000)] * 50_000)
            await publisher.publish("quick", b"x")
            async with client.subscribe("slow", start=figg.EARLIEST, prefetch_records=10) as slow:
                await until(lambda: client._paused)
                async with client.subscribe("quick", start=figg.EARLIEST) as quick:
                    assert await quick.next(5) == (1, b"x")
                count = 0
                async for batch in slow.batches():
                    assert batch.offsets[0] == count + 1
                    count += len(batch)
                    if count == 50_000:
                        break

    with_server(test)


def test_a_gap_is_told() -> None:
    async def main() -> None:
        ends = {0: 5, 1: 100, 2: 3}

        def answer(message: Message) -> bytes | None:
            return codec.attached(b"t", ends[len(server.connections) - 1]) if isinstance(message, Attach) else None

        events: list[ClientEvent] = []
        async with OldServer(answer) as server, figg.connect(server.address, **QUICK) as client:
            listener = asyncio.create_task(listen(client, events))
            async with client.subscribe("t") as topic:
                server.cut()
                await until(lambda: "gap" in [event.name for event in events])
                server.writers[0].write(codec.data(b"t", 101, b"behind the gap"))
                assert await topic.next(5) == (101, b"behind the gap")
                server.cut()  # and now the server has lost what it had
                await until(lambda: [event.name for event in events].count("gap") == 2)
                server.writers[0].write(codec.data(b"t", 4, b"anew"))
                assert await topic.next(5) == (4, b"anew")
        await listener
        assert [event.detail for event in events if event.name == "gap"] == [(b"t", 5, 100), (b"t", 101, 3)]

    run("asyncio", main())


@pytest.mark.parametrize(("wanted", "given", "told"), [(900, 5, True), (3, 5, True), (0, 5, False), (5, 5, False)])
def test_a_beginning_that_is_not_there_is_told(wanted: int, given: int, told: bool) -> None:
    async def main() -> None:
        def answer(message: Message) -> bytes | None:
            return codec.attached(b"t", given) if isinstance(message, Attach) else None

        events: list[ClientEvent] = []
        async with OldServer(answer) as server, figg.connect(server.address, **QUICK) as client:
            listener = asyncio.create_task(listen(client, events))
            async with client.subscribe("t", start=wanted) as topic:
                server.writers[0].write(codec.data(b"t", 6, b"next"))
                assert await topic.next(5) == (6, b"next")
        await listener
        assert [event.detail for event in events if event.name == "gap"] == [(b"t", wanted, given)] * told

    run("asyncio", main())


def test_records_are_plain_and_cheap() -> None:
    batch = figg.RecordBatch([1, 2, 5], [b"a", b"b", b"c"])
    assert (len(batch), batch.next_offset) == (3, 5)
    assert list(batch) == [figg.Record(1, b"a"), figg.Record(2, b"b"), figg.Record(5, b"c")]
    assert batch.part(1, 2).values == [b"b"]
    with pytest.raises(AttributeError):
        batch.records()[0].offset = 7  # type: ignore[misc]


# --- pings


def test_a_dead_connection_is_noticed_by_pings() -> None:
    async def test(place: Place, proxy: Proxy) -> None:
        events: list[ClientEvent] = []
        async with figg.connect(proxy.address, ping_interval_s=0.02, **QUICK) as client:
            listener = asyncio.create_task(listen(client, events))
            await until(lambda: client.round_trip_s is not None)
            assert client.round_trip_s is not None
            assert 0 < client.round_trip_s < 5
            proxy.dropping = True
            ack = await client.send("t", b"x")
            await until(lambda: "disconnected" in [event.name for event in events])
            proxy.dropping = False
            await ack
        await listener
        assert events[1].name == "disconnected"
        assert "ping" in str(events[1].reason)

    through(test)


def test_an_old_server_need_not_answer_pings() -> None:
    async def main() -> None:
        def answer(message: Message) -> bytes | None:
            return codec.ack(message.seq_num) if isinstance(message, Publish) else None

        async with OldServer(answer) as server, figg.connect(server.address, ping_interval_s=0.01) as client:
            await until(lambda: [type(message) for message in server.received].count(Ping) == 2)
            await asyncio.sleep(0.1)
            await client.publish("t", b"x")
            assert len(server.connections) == 1

    run("asyncio", main())


def test_no_pings_while_nothing_is_read() -> None:
    async def test(place: Place) -> None:
        async with at(place, ping_interval_s=0.01, pings_max=1) as client, at(place) as publisher:
            await client.publish("t", b"first")
            await until(lambda: client._answers_pings)
            await publisher.publish_many("t", [bytes(1000)] * 20_000)
            async with client.subscribe("t", start=figg.EARLIEST, prefetch_records=10) as topic:
                await until(lambda: client._paused)
                await asyncio.sleep(0.1)
                assert client.connected
                assert [record.offset for record in [await topic.next() for _ in range(20_001)]][-1] == 20_001

    with_server(test)


# --- as old as the original


def test_the_originals_order_and_doubles_are_tolerated() -> None:
    """DATA before ATTACHED; DETACH never answered, and every message twice after another ATTACH."""

    async def main() -> None:
        def answer(message: Message) -> bytes | None:
            if isinstance(message, Attach) and message.topic == b"early":
                return codec.data(b"early", 7, b"a") + codec.data(b"early", 14, b"b") + codec.attached(b"early", 0)
            if isinstance(message, Attach):
                return codec.attached(message.topic, message.offset or 0)
            return None

        async with OldServer(answer) as server, figg.connect(server.address) as client:
            early = await client.subscribe("early", start=figg.EARLIEST)
            assert [await early.next(5), await early.next(5)] == [(7, b"a"), (14, b"b")]
            twice = await client.subscribe("t", start=figg.EARLIEST)
            await twice.close()
            twice = await client.subscribe("t", start=figg.EARLIEST)
            first, second = codec.data(b"t", 7, b"x"), codec.data(b"t", 14, b"y")
            server.writers[0].write(first + first + second + second + first + codec.data(b"other", 1, b"?"))
            server.writers[0].write(codec.data(b"t", 21, b"z"))
            assert [await twice.next(5) for _ in range(3)] == [(7, b"x"), (14, b"y"), (21, b"z")]

    run("asyncio", main())


def test_data_from_a_place_that_was_left_is_dropped() -> None:
    async def main() -> None:
        async with OldServer(lambda message: None) as server, figg.connect(server.address) as client:
            subscription = client.subscribe("t", start=5)
            opening = asyncio.ensure_future(subscription._opened())
            await until(lambda: len(server.received) == 1)
            server.writers[0].write(codec.attached(b"t", 5) + codec.data(b"t", 6, b"old"))
            await opening
            assert await subscription.next(5) == (6, b"old")
            seeking = asyncio.ensure_future(subscription.seek(100))
            await until(lambda: len(server.received) == 2)
            server.writers[0].write(codec.data(b"t", 101, b"of the old place") + codec.attached(b"t", 100))
            await seeking
            server.writers[0].write(codec.data(b"t", 103, b"new"))
            assert await subscription.next(5) == (103, b"new")

    run("asyncio", main())


@pytest.mark.parametrize(
    "raw",
    [
        codec.data(b"t", 1, b"x")[:-5] + b"\xff\xff\xff\xffx",
        b"\0\6\0\1\0\0\0\0",
        b"\0\7\0\1\xff\xff\xff\xff",
        codec.ack(1),
        codec.ack((1 << 64) - 1),
    ],
    ids=["data", "ack", "size", "ack of the next publish", "ack of all publishes ever"],
)
def test_a_broken_server_is_left_and_dialled_again(raw: bytes) -> None:
    async def main() -> None:
        def answer(message: Message) -> bytes | None:
            if not isinstance(message, Publish):
                return None
            return codec.pong(0) + raw if len(server.connections) == 1 else codec.ack(message.seq_num)

        async with OldServer(answer) as server, figg.connect(server.address, **QUICK) as client:
            await client.publish("t", b"x")
            assert len(server.connections) == 2
            assert server.received == [Publish(b"t", 0, b"x")] * 2

    run("asyncio", main())


def test_messages_that_only_clients_send_are_skipped() -> None:
    async def main() -> None:
        def answer(message: Message) -> bytes | None:
            assert isinstance(message, Publish)
            rest: list[Message] = [Ping(1), Publish(b"t", 1, b"x"), Attach(b"t"), Detach(b"t")]
            return b"".join(map(codec.encode, rest)) + b"\0\x4d\0\1\0\0\0\1?" + codec.ack(message.seq_num)

        async with OldServer(answer) as server, figg.connect(server.address) as client:
            await client.publish("t", b"x")

    run("asyncio", main())


# --- a topic that is deleted and made anew


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "as an old server"])
def test_a_topic_made_anew_is_read_from_its_beginning(announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        events: list[ClientEvent] = []
        async with at(place) as client, at(place) as publisher:
            listening = asyncio.ensure_future(listen(client, events))
            subscription = await client.subscribe("t", start=figg.EARLIEST)
            await publisher.publish_many("t", [b"old %d" % n for n in range(10)])
            assert [(await subscription.next(10)).offset for _ in range(10)] == list(range(1, 11))
            if not announced:
                monkeypatch.setattr(codec, "attached", lambda topic, position: b"")
            catalog = place.server.log.catalog
            topic = catalog.get(b"t")
            assert topic is not None
            catalog.delete(topic)
            await until(lambda: catalog.get(b"t") is None)
            await publisher.publish_many("t", [b"new %d" % n for n in range(12)])
            found = [await subscription.next(10) for _ in range(12)]
            assert found == [(n + 1, b"new %d" % n) for n in range(12)]
            assert subscription.position == 12
            await until(lambda: any(event.name == "gap" for event in events))
            assert [event.detail for event in events if event.name == "gap"] == [(b"t", 10, 0)]
            listening.cancel()

    with_server(test)
