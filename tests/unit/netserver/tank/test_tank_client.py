"""The TANK client against our server: publishing, reading, questions, reconnecting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from netserver import errors, tank
from netserver.app import Server
from netserver.tank import messages
from netserver.tank.publisher import encode_part
from netserver.testing import ServerProcess, running, server
from tests.echo import LOOPS, run, until

pytestmark = pytest.mark.whole

Test = Callable[[Server, tank.Client], Awaitable[None]]


def address_of(quintlog: Server) -> str:
    return str(quintlog.addresses["tank"])


def with_client(test: Test, loop: str = "asyncio", **options: object) -> None:
    async def main() -> None:
        async with running() as quintlog, tank.connect(address_of(quintlog), **options) as client:  # type: ignore[arg-type]
            await test(quintlog, client)

    run(loop, main())


async def read(subscription: tank.Subscription, count: int) -> list[tank.Record]:
    """The next records."""
    return [await subscription.next(10) for _ in range(count)]


# --- publishing


@pytest.mark.parametrize("loop", LOOPS)
def test_publish_and_read(loop: str) -> None:
    async def test(_: Server, client: tank.Client) -> None:
        assert await client.create_topic("t", partitions=2)
        await client.publish("t", b"one")
        await client.publish("t", b"two", key=b"k", timestamp_ms=5)
        await client.publish(b"t", b"other", partition=1)
        async with client.subscribe("t", start=tank.EARLIEST) as subscription:
            first, second = await read(subscription, 2)
        assert (first.seq, first.value, first.key, first.partition) == (1, b"one", b"", 0)
        assert second == tank.Record(2, 5, b"k", b"two", 0)
        assert await client.discover("t") == (tank.PartitionRange(1, 2), tank.PartitionRange(1, 1))

    with_client(test, loop)


def test_publish_many_makes_bundles_and_keeps_the_order() -> None:
    async def test(quintlog: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        values = [b"%d" % n for n in range(2000)]
        await client.publish_many("t", values, keys=[b"k%d" % (n % 3) for n in range(2000)])
        async with client.subscribe("t", start=tank.EARLIEST) as subscription:
            records = await read(subscription, 2000)
        assert [record.value for record in records] == values
        assert [record.seq for record in records] == list(range(1, 2001))
        assert records[4].key == b"k1"
        await client.publish_many("t", [])
        (last,) = await client.fetch([("t", 0, 2000)])
        assert last.batch is not None
        assert last.batch.values == values[-1:]

    with_client(test, window=512)


def test_own_numbers_and_parts_for_several_partitions() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("a", partitions=2)
        await client.create_topic("b")
        outcome = await client.publish_parts(
            [
                tank.Part("a", [b"1"], 1),
                tank.Part("nosuch", [b"x"]),
                tank.Part("b", [b"2", b"3"], seqs=[10, 20]),
                tank.Part("a", [b"4"], 7),
                tank.Part("a", [b"5"], 1, keys=[b"k"]),
                tank.Part("b", [b"6"], seqs=[20]),
            ]
        )
        assert [None if error is None else error.code for error in outcome] == [  # type: ignore[attr-defined]
            None, messages.ProduceCode.UNKNOWN_TOPIC, None, messages.ProduceCode.UNKNOWN_PARTITION, None,
            messages.ProduceCode.INVALID_SEQ,
        ]  # fmt: skip
        assert await client.publish_parts([]) == []
        await client.publish_many("b", [b"7", b"8", b"9"], seqs=[30, 31, 40], bundle_records=2)
        async with client.subscribe("b", start=tank.EARLIEST) as subscription:
            found = await read(subscription, 5)
        assert [(record.seq, record.value) for record in found] == [
            (10, b"2"), (20, b"3"), (30, b"7"), (31, b"8"), (40, b"9"),
        ]  # fmt: skip
        first, second = await client.fetch([("a", 1, 0), ("b", 0, 11)])
        assert first.batch is not None
        assert second.batch is not None
        assert first.batch.values == [b"1", b"5"]
        assert second.batch.seqs == [20, 30, 31, 40]

    with_client(test)


@pytest.mark.parametrize(
    ("values", "compress", "is_packed"),
    [
        ([b"x" * 1024], "auto", False),
        ([b"x" * 1025], "auto", True),
        ([b""] * 512, "auto", False),
        ([b""] * 513, "auto", True),
        ([bytes(range(256)) * 5], "auto", None),
        ([b"x"], True, True),
        ([b"x" * 5000], False, False),
    ],
)
def test_compression(values: list[bytes], compress: bool | str, is_packed: bool | None) -> None:
    data = encode_part(tank.Part("t", values, compress=compress))
    assert is_packed is None or (data[0] & 3 == 1) == is_packed


def test_records_that_cannot_be_sent_are_refused_at_once() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        with pytest.raises(errors.TooLarge):
            await client.publish("x" * 256, b"")
        with pytest.raises(ValueError, match="255"):
            await client.publish("t", b"", key=b"k" * 256)
        with pytest.raises(ValueError, match="not one"):
            await client.publish_many("t", [b"a", b"b"], keys=[b"k"])
        with pytest.raises(ValueError, match="rise"):
            await client.publish_many("t", [b"a", b"b"], seqs=[5, 5])
        with pytest.raises(ValueError, match="compress"):
            await client.publish("t", b"", compress="gzip")
        with pytest.raises(ValueError, match="at most 255"):
            await client.publish_parts([tank.Part("t", [b"x"])] * 256)
        with pytest.raises(ValueError, match="255"):
            await client.publish_many("t", [b""] * 300, keys=[b"k"] * 299 + [b"k" * 256])
        with pytest.raises(ValueError, match="rise"):
            await client.publish_many("t", [b""] * 300, seqs=[*range(1, 300), 299])
        with pytest.raises(ValueError, match="64-bit"):
            await client.publish_many("t", [b""] * 300, timestamps_ms=[0] * 299 + [-1])
        with pytest.raises(TypeError):
            await client.publish_many("t", [b""] * 299 + ["text"])  # type: ignore[list-item]
        assert client.window.records == 0, "nor was anything before it"
        await client.publish("t", b"fine")
        assert [known.last_seq for known in await client.discover("t")] == [1]

    with_client(test)


def test_gathered_records_that_cannot_be_sent_are_told_and_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        with pytest.raises(ValueError, match="compress"):
            await client.publish("t", b"", compress="gzip")
        with pytest.raises(ValueError, match="0 to 65535"):
            await client.publish("t", b"", partition=1 << 16)
        with monkeypatch.context() as limits:
            limits.setattr("netserver.tank.publisher.FRAME_PAYLOAD_BYTES_MAX", 1000)
            futures = [await client.send("t", b"." * 600, compress=False) for _ in range(2)]
            await client.flush(5)
            for future in futures:
                with pytest.raises(errors.TooLarge):
                    await future
        assert client.window.records == 0
        await client.publish("t", b"fine")

    with_client(test, batching=tank.Batching())


def test_refusals() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        with pytest.raises(errors.Refused) as refused:
            await client.publish("gone", b"x")
        assert refused.value.code == messages.ProduceCode.UNKNOWN_TOPIC
        assert not refused.value.retryable
        with pytest.raises(errors.Refused):
            await client.publish_many("t", [b"x"] * 10, partition=3)
        ignored = await client.send("gone", b"x")
        await client.flush()
        assert isinstance(ignored.exception(), errors.Refused)

    with_client(test)


def test_batching_fills_bundles_and_sends_the_rest_in_time() -> None:
    async def test(quintlog: Server, client: tank.Client) -> None:
        await client.create_topic("t", partitions=3)
        acks = [await client.send("t", b"%d" % n, partition=n % 3) for n in range(100)]
        assert not any(ack.done() for ack in acks[:3])
        await asyncio.gather(*acks)
        for partition in range(3):
            (found,) = await client.fetch([("t", partition, 0)])
            assert found.batch is not None
            assert found.batch.values == [b"%d" % n for n in range(partition, 100, 3)]
        # 33 or 34 records a partition make two full bundles of 16 and a rest
        assert quintlog.counters["tank"].records_published == 100
        bad = await client.send("nosuch", b"x")
        await client.publish("t", b"good")
        assert isinstance(bad.exception(), errors.Refused)
        with pytest.raises(errors.TooLarge):
            await client.send("t", b"x", key=b"k" * 256)
        late = await client.send("t", b"last")
        await client.flush()
        await late

    with_client(test, batching=tank.Batching(linger_s=0.01, records_max=16))


def test_batching_with_a_small_window_does_not_wait_for_itself() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        for n in range(50):
            await client.send("t", b"%d" % n)
        await client.flush()
        (found,) = await client.fetch([("t", 0, 0)])
        assert found.batch is not None
        assert len(found.batch) == 50

    with_client(test, batching=tank.Batching(linger_s=60, records_max=1000), window=8)


def test_closing_sends_what_was_gathered() -> None:
    async def main() -> None:
        async with running() as quintlog:
            async with tank.connect(address_of(quintlog), batching=tank.Batching(linger_s=60)) as client:
                await client.create_topic("t")
                ack = await client.send("t", b"x")
            assert ack.done()
            assert ack.exception() is None
            with pytest.raises(errors.Closed):
                await client.publish("t", b"y")

    run("asyncio", main())


# --- reading


def test_starts() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        await client.publish_many("t", [b"%d" % n for n in range(1, 11)])
        for start, first in ((tank.EARLIEST, 1), (4, 4), (tank.after(4), 5), (0, 1), ({0: 7}, 7)):
            async with client.subscribe("t", start=start) as subscription:
                assert (await subscription.next(5)).seq == first
                assert subscription.position == first + 1
                assert subscription.lag == 10 - first
        async with client.subscribe("t", start=tank.LATEST) as subscription:
            assert subscription.position == 11
            with pytest.raises(errors.Timeout):
                await subscription.next(0.05)
            await client.publish("t", b"new")
            assert (await subscription.next(5)).value == b"new"

    with_client(test)


def test_several_partitions_and_batches() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t", partitions=3)
        for partition in range(3):
            await client.publish_many("t", [b"%d/%d" % (partition, n) for n in range(300)], partition=partition)
        subscription = client.subscribe("t", partitions=[0, 2], start=tank.EARLIEST)
        found: dict[int, list[bytes]] = {0: [], 2: []}
        async for batch in subscription.batches(max_records=100):
            assert len(batch) <= 100
            found[batch.partition] += batch.values
            if batch.partition in subscription.positions and sum(map(len, found.values())) == 600:
                break
        assert found == {p: [b"%d/%d" % (p, n) for n in range(300)] for p in (0, 2)}
        assert subscription.positions == {0: 301, 2: 301}
        assert subscription.lag == 0
        with pytest.raises(ValueError, match="several"):
            _ = subscription.position
        await subscription.close()
        # another one goes on from there
        await client.publish("t", b"more", partition=2)
        async with client.subscribe("t", partitions=[0, 2], start=subscription.positions) as second:
            assert (await second.next(5)).value == b"more"

    with_client(test)


def test_seek() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        await client.publish_many("t", [b"%d" % n for n in range(1, 101)])
        async with client.subscribe("t", start=50) as subscription:
            assert (await subscription.next(5)).seq == 50
            await subscription.seek(tank.EARLIEST)
            assert (await subscription.next(5)).seq == 1
            await subscription.seek(tank.LATEST)
            assert subscription.position == 101
            await client.publish("t", b"new")
            assert (await subscription.next(5)).seq == 101

    with_client(test)


def test_a_slow_reader_is_not_flooded() -> None:
    async def test(quintlog: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        await client.publish_many("t", [b"x" * 1000] * 4000, compress=False)
        delivered = quintlog.counters["tank"]
        async with client.subscribe("t", start=1, prefetch_records=500, fetch_bytes=100_000) as subscription:
            first = await subscription.next(5)
            await asyncio.sleep(0.05)
            assert delivered.records_delivered < 2000
            rest = await read(subscription, 3999)
        assert [first.seq, *(record.seq for record in rest)] == list(range(1, 4001))

    with_client(test)


def test_bundles_larger_than_the_fetch_size() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        await client.publish_many("t", [b"x" * 50_000] * 20, compress=False, bundle_records=2)
        async with client.subscribe("t", start=1, fetch_bytes=100) as subscription:
            assert [record.seq for record in await read(subscription, 20)] == list(range(1, 21))

    with_client(test)


def test_what_retention_took_is_told() -> None:
    async def test(quintlog: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        for n in range(10):
            await client.publish("t", b"%d" % n)
        topic = quintlog.log.catalog.get(b"t")
        assert topic is not None
        quintlog.log.partition(topic).trim(6)
        told: list[object] = []

        async def listen() -> None:
            async for event in client.events():
                if event.name == "gap":
                    told.append(event.detail)

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0)
        async with client.subscribe("t", start=2) as subscription:
            assert (await subscription.next(5)).seq == 6
        await until(lambda: told == [(b"t", 0, 2, 6)])
        listening.cancel()
        strict = client.subscribe("t", start=2, raise_out_of_range=True)
        with pytest.raises(errors.OutOfRange) as problem:
            await strict.next(5)
        assert problem.value.first == 6
        async with client.subscribe("t", start=500) as beyond:
            await client.publish("t", b"next")
            assert (await beyond.next(5)).seq == 11

    with_client(test)


def test_reading_what_is_not_there() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        with pytest.raises(errors.Refused):
            await client.subscribe("gone")
        with pytest.raises(ValueError, match="no partition 5"):
            await client.subscribe("t", partition=5)
        with pytest.raises(errors.Refused):
            await client.fetch([("gone", 0, 0)])
        with pytest.raises(errors.Refused) as refused:
            await client.fetch([("t", 0, 0), ("t", 1, 0)])
        assert refused.value.code == messages.ConsumeCode.UNKNOWN_PARTITION
        (nothing,) = await client.fetch([("t", 0, 0)])
        assert (nothing.batch, nothing.next_offset, nothing.high_water_mark) == (None, 1, 0)

    with_client(test)


# --- questions


def test_topics_and_server() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        assert await client.create_topic("a", partitions=3, config={"log.retention.secs": "1d"})
        assert not await client.create_topic("a", exist_ok=True)
        for arguments, code in (
            ({"topic": "a"}, 1),
            ({"topic": "not.fine"}, 10),
            ({"topic": "b", "config": "log.segment.bytes=1"}, 4),
        ):
            with pytest.raises(errors.Refused) as refused:
                await client.create_topic(**arguments)  # type: ignore[arg-type]
            assert refused.value.code == code
        assert await client.topics() == (tank.TopicEntry(b"a", 3),)
        status = await client.status()
        assert (status.topics, status.partitions, status.version) == (1, 3, 400)
        with pytest.raises(errors.Refused):
            await client.discover("gone")
        for topic, partition, code in (("a", 0, 2), ("a", 3, 10), ("gone", 0, 11)):
            with pytest.raises(errors.Refused) as refused:
                await client.reload_conf(topic, partition)
            assert refused.value.code == code

    with_client(test)


def test_numbers_by_time() -> None:
    async def test(_: Server, client: tank.Client) -> None:
        await client.create_topic("t")
        await client.publish_many("t", [b""] * 500, timestamps_ms=[n * 10 for n in range(500)], bundle_records=7)
        for timestamp_ms, seq in ((0, 1), (1, 2), (10, 2), (2505, 252), (4990, 500), (5000, 501)):
            assert await client.seq_at_time("t", timestamp_ms) == seq
        await client.create_topic("empty")
        assert await client.seq_at_time("empty", 5) == 1

    with_client(test)


# --- connections


def test_a_server_that_restarts(tmp_path: Path) -> None:
    async def main(quintlog: ServerProcess) -> None:
        host, port = quintlog.address("tank")
        client = await tank.connect(f"{host}:{port}", backoff=lambda failures: failures / 2)  # a start may take long
        await client.create_topic("t")
        subscription = await client.subscribe("t", start=tank.EARLIEST)
        await client.publish("t", b"before")
        assert (await subscription.next(10)).value == b"before"
        await asyncio.to_thread(quintlog.kill)
        await until(lambda: not client.connected)
        question = asyncio.ensure_future(client.discover("t"))
        publishing = asyncio.ensure_future(client.publish("t", b"after"))  # not sent yet: it waits
        await asyncio.to_thread(quintlog.restart)
        await publishing
        assert (await question)[0].first_seq == 1
        assert (await subscription.next(10)).value == b"after"
        assert subscription.position == 3
        await client.close()
        with pytest.raises(errors.Closed):
            await subscription.next(1)

    with server(tmp_path) as quintlog:
        asyncio.run(asyncio.wait_for(main(quintlog), 60))


def test_a_seek_that_fails_leaves_the_subscription_where_it_stands(tmp_path: Path) -> None:
    async def main(quintlog: ServerProcess) -> None:
        host, port = quintlog.address("tank")
        client = await tank.connect(f"{host}:{port}", backoff=lambda _: 0.1)
        await client.create_topic("t")
        subscription = await client.subscribe("t", start=tank.EARLIEST)
        await client.publish("t", b"before")
        assert (await subscription.next(10)).value == b"before"
        await asyncio.to_thread(quintlog.kill)
        await until(lambda: not client.connected)
        with pytest.raises(errors.ConnectionFailed):
            await subscription.seek(tank.EARLIEST)
        await asyncio.to_thread(quintlog.restart)
        await until(lambda: client.connected)
        await client.publish("t", b"after")
        assert (await subscription.next(30)).value == b"after"
        await subscription.seek(tank.EARLIEST)
        assert (await subscription.next(30)).value == b"before"
        await client.close()

    with server(tmp_path) as quintlog:
        asyncio.run(asyncio.wait_for(main(quintlog), 60))


def test_no_server() -> None:
    async def main() -> None:
        with pytest.raises(errors.ConnectionFailed):
            await tank.connect("127.0.0.1:1")

    asyncio.run(main())
