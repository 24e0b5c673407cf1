"""Long polls of TANK in a running server."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from netserver.tank import messages, waiting_bounds
from netserver.tank.messages import SEQ_END, ConsumeCode
from tests.echo import until
from tests.tank_peer import Place, bundle, consume, produce, values, with_server

# --- long polls


def test_wait_ends_in_time_with_the_mark_of_that_moment() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        assert await peer.produce(b"t", bundle(b"a")) == b"\0"
        since = time.monotonic()
        (partition,) = await peer.consume(b"t", (0, SEQ_END), max_wait_ms=200)
        assert time.monotonic() - since > 0.19
        assert partition == messages.ConsumedPartition(0, 0, 1, 0)

    with_server(test)


def test_what_came_below_the_minimum_is_in_the_answer_when_the_time_is_over() -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t", 2) == 0
        peer.send(consume(1, b"t", (0, SEQ_END), (1, SEQ_END), max_wait_ms=400, min_bytes=1000))
        await until(lambda: len(place.server.log.known_partitions()) == 2)
        assert await other.produce(b"t", bundle(b"early"), partition_id=1) == b"\0"
        answer = await peer.answer(messages.ConsumeResponse)
        empty, full = answer.topics[0].partitions
        assert values(empty) == []
        assert values(full) == [bundle(b"early")]
        assert full.high_water_mark == 1

    with_server(test)


def test_minimum_counts_the_bundles_of_all_partitions() -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t", 2) == 0
        assert await other.produce(b"t", bundle(b"x" * 500)) == b"\0"  # was there before: does not count
        part = len(bundle(b"x" * 100)) + 1
        peer.send(consume(1, b"t", (0, SEQ_END), (1, SEQ_END), max_wait_ms=60_000, min_bytes=3 * part))
        for n in range(2):
            assert await other.produce(b"t", bundle(b"x" * 100), partition_id=n) == b"\0"
        peer.send(messages.StatusRequest(2))
        assert (await peer.answer(messages.StatusResponse)).request_id == 2  # two are not enough
        assert await other.produce(b"t", bundle(b"x" * 100), partition_id=1) == b"\0"
        first, second = (await peer.answer(messages.ConsumeResponse)).topics[0].partitions
        assert (len(values(first)), len(values(second))) == (1, 2)

    with_server(test)


def test_a_minimum_above_all_that_is_fetched_still_wakes() -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t") == 0
        peer.send(consume(1, b"t", (0, SEQ_END, 100), max_wait_ms=60_000, min_bytes=3000))
        for _ in range(40):
            assert await other.produce(b"t", bundle(b"x" * 100)) == b"\0"
        (partition,) = (await peer.answer(messages.ConsumeResponse)).topics[0].partitions
        assert (partition.base_seq, len(values(partition))) == (1, 1)

    with_server(test)


def test_following_the_end_misses_nothing() -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t") == 0
        wanted = [bundle(b"%d" % n) for n in range(300)]

        async def publish() -> None:
            for n, data in enumerate(wanted):
                other.send(produce(n, b"t", data))
                if n % 7 == 0:
                    await asyncio.sleep(0.001)
            for _ in wanted:
                assert (await other.answer(messages.ProduceResponse)).codes == b"\0"

        publishing = asyncio.ensure_future(publish())
        found: list[bytes] = []
        position = SEQ_END if not place.partition(b"t").last_seq else 1
        while len(found) < len(wanted):
            (partition,) = await peer.consume(b"t", (0, position), max_wait_ms=3, min_bytes=200)
            found += values(partition)
            position = partition.high_water_mark + 1 if not partition.chunk else len(found) + 1
        await publishing
        assert found == wanted

    with_server(test)


def test_a_closed_connection_leaves_nothing_to_the_next_one() -> None:
    async def test(place: Place) -> None:
        for _ in range(5):
            peer = await place.peer()
            await peer.create(b"t")
            peer.send(consume(1, b"t", (0, SEQ_END), max_wait_ms=60_000))
            await until(lambda: len(place.partition(b"t").readers) == 1)
            await peer.close()
            await until(lambda: len(place.partition(b"t").readers) == 0)
            following, other = await place.peer(), await place.peer()
            assert await other.produce(b"t", bundle(b"secret")) == b"\0"
            following.send(messages.StatusRequest(77))
            assert (await following.answer(messages.StatusResponse)).request_id == 77

    with_server(test)


@pytest.mark.parametrize("how", ["close", "eof", "drain", "delete"])
def test_very_many_that_wait_end_in_turns(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    count = 200

    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        assert await peer.create(b"u") == 0
        peer.send(*(consume(number, b"t", (0, SEQ_END), max_wait_ms=60_000) for number in range(count)))
        (connection,) = place.server.shell.connections
        waiting = connection.session.shared.waiting  # type: ignore[attr-defined]
        await until(lambda: len(waiting) == count)
        left = [len(waiting)]
        log = place.server.log
        if how == "close":
            peer.writer.transport.abort()
        elif how == "eof":
            peer.writer.write_eof()
        elif how == "drain":
            connection.drain()
        else:
            topics = {name: log.catalog.get(name) for name in (b"t", b"u")}
            for name in (b"u", b"t"):
                topic = topics[name]
                assert topic is not None
                assert len(waiting) == count, "nobody waits for the other one"
                deleted: list[object] = []
                log.catalog.delete(topic, deleted.append)
                await until(lambda deleted=deleted: bool(deleted))  # type: ignore[misc]
        while left[-1]:
            await asyncio.sleep(0)
            left.append(len(waiting))
        assert max(before - after for before, after in pairwise(left)) < count // 4
        assert waiting.partitions == 0
        if how in ("drain", "delete"):
            for _ in range(count):
                await peer.answer(messages.ConsumeResponse)

    with_server(test)


def test_too_many_waiting_requests_answer_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_bounds, "WAITING_PARTITIONS_PER_CONNECTION_MAX", 10)
    monkeypatch.setattr(waiting_bounds, "WAITING_PARTITIONS_MAX", 15)

    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t", 4) == 0
        ask = [consume(n, b"t", *((index, SEQ_END) for index in range(4)), max_wait_ms=60_000) for n in range(4)]
        peer.send(*ask)
        assert (await peer.answer(messages.ConsumeResponse)).request_id == 0
        assert (await peer.answer(messages.ConsumeResponse)).request_id == 1
        other.send(*ask[:2])  # together above what all may have: again the oldest
        assert (await peer.answer(messages.ConsumeResponse)).request_id == 2
        for user in (peer, other):
            user.send(messages.StatusRequest(9))
            assert (await user.answer(messages.StatusResponse)).request_id == 9

    with_server(test)


def test_deleting_a_topic_ends_the_waits_for_it() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        peer.send(consume(1, b"t", (0, SEQ_END), max_wait_ms=60_000))
        await until(lambda: len(place.partition(b"t").readers) == 1)
        topic = place.server.log.catalog.get(b"t")
        assert topic is not None
        place.server.log.catalog.delete(topic)
        (partition,) = (await peer.answer(messages.ConsumeResponse)).topics[0].partitions
        assert partition.code == ConsumeCode.UNKNOWN_PARTITION
        peer.send(consume(2, b"t", (0, 0)))
        assert (await peer.answer(messages.ConsumeResponse)).topics[0].unknown

    with_server(test)
