"""TANK requests about very many partitions: in slices, in bounded answers, without an object for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.partitions.partition import Partition
from netserver.tank import messages
from netserver.tank.consume import ConsumeJob
from tests.echo import until
from tests.tank_peer import Place, bundle, consume, values, with_server


def test_very_many_partitions_are_counted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40

    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", count) == 0
        log = place.server.log
        partitions = [log.partition(log.catalog.get_or_create(b"t"), index) for index in range(count)]
        put_off: list[object] = []
        later = log.slices.later
        monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
        monkeypatch.setattr(log.slices, "later", lambda work: (put_off.append(work), later(work)))
        peer.send(messages.StatusRequest(5), messages.StatusRequest(6))
        answers = [await peer.answer(messages.StatusResponse) for _ in range(2)]
        assert sorted((one.request_id, one.open_partitions) for one in answers) == [(5, count), (6, count)]
        assert len(put_off) > len(partitions)

    with_server(test)


def test_very_many_partitions_are_opened_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40
    entries = tuple(messages.ProducePartition(index, bundle(b"x"), 0) for index in range(count))
    everywhere = messages.ProduceRequest(1, (messages.ProduceTopic(b"t", entries),), False)

    async def first(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", count) == 0
        peer.send(everywhere)
        assert (await peer.answer(messages.ProduceResponse)).codes == bytes(count)

    async def second(place: Place) -> None:
        turns: set[int] = set()
        when_open, turn_of = Partition.when_open, place.server.log.slices.turn_of

        def watched(self: Partition, callback: Callable[[], None]) -> None:
            turns.add(turn_of())
            when_open(self, callback)

        monkeypatch.setattr(Partition, "when_open", watched)
        monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
        peer = await place.peer()
        peer.send(everywhere)
        assert (await peer.answer(messages.ProduceResponse)).codes == bytes(count)
        assert len(turns) > count // 4

    with_server(first, data_dir=tmp_path)
    with_server(second, data_dir=tmp_path)


def all_partitions(topic: bytes, count: int) -> list[messages.ConsumeTopic]:
    """Entries of a Consume for so many partitions (a multiple of 250)."""
    entries = [[(index, 0) for index in range(at, at + 250)] for at in range(0, count, 250)]
    return [consume(1, topic, *some).topics[0] for some in entries]


def test_a_consume_of_all_partitions_costs_no_object_for_those_without_records() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 3000) == 0
        assert await peer.produce(b"t", bundle(b"x"), partition_id=2999) == b"\0"
        topics = [
            consume(1, b"t", *((index, 0) for index in range(at, at + 250))).topics[0] for at in range(0, 3000, 250)
        ]
        request = messages.ConsumeRequest(1, tuple(topics), 0, 0)
        peer.send(request)
        answer = await peer.answer(messages.ConsumeResponse)
        found = [partition for topic in answer.topics for partition in topic.partitions]
        assert [partition.partition_id for partition in found if partition.chunk] == [2999]
        assert len(found) == 3000
        assert len(list(place.server.log.known_partitions())) == 1
        peer.send(request._replace(max_wait_ms=60_000, min_bytes=1, topics=tuple(topics[:4])))
        peer.send(messages.StatusRequest(2))
        await peer.answer(messages.StatusResponse)
        await until(lambda: len(list(place.server.log.known_partitions())) == 1001)  # it waits for these
        other = await place.peer()
        assert await other.produce(b"t", bundle(b"y"), partition_id=17) == b"\0"
        answer = await peer.answer(messages.ConsumeResponse)
        assert [p.partition_id for topic in answer.topics for p in topic.partitions if p.chunk] == [17]

    with_server(test)


def test_a_topic_is_deleted_while_its_partitions_are_gone_through() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 5000) == 0
        topics = [
            consume(1, b"t", *((index, 0) for index in range(at, at + 250))).topics[0] for at in range(0, 5000, 250)
        ]
        peer.send(messages.ConsumeRequest(1, tuple(topics), 60_000, 1))
        (connection,) = place.server.shell.connections
        await until(lambda: connection.session._jobs)  # type: ignore[attr-defined]
        topic = place.server.log.catalog.get(b"t")
        assert topic is not None
        place.server.log.catalog.delete(topic)
        answer = await peer.answer(messages.ConsumeResponse)
        codes = {partition.code for topic in answer.topics for partition in topic.partitions}
        assert codes <= {messages.ConsumeCode.UNKNOWN_PARTITION, messages.ConsumeCode.OK}
        assert len(codes) > 0

    with_server(test)


@pytest.mark.parametrize("gathered_bytes", [1, 500, 1 << 20])
def test_an_answer_is_bounded_and_gathered_in_several_buffers(
    gathered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netserver.tank.consume.ANSWER_BYTES_MAX", 3000)
    monkeypatch.setattr("netserver.tank.consume.GATHERED_BYTES", gathered_bytes)

    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        sent = [bundle(b"x" * 100), bundle(b"y" * 200)]
        for one in sent:
            assert await peer.produce(b"t", one) == b"\0"
        found = await peer.consume(b"t", *[(0, 1, 1000)] * 50)
        assert len(found) == 50
        assert [values(one) for one in found[:5]] == [sent] * 5
        assert {tuple(values(one)) for one in found} == {tuple(sent), ()}
        assert 2000 < sum(len(one.chunk) for one in found) <= 3000
        (nothing,) = await peer.consume(b"t", (0, 3))
        assert (nothing.code, nothing.high_water_mark, values(nothing)) == (0, 2, [])

    with_server(test)


def test_an_answer_of_very_many_pieces_is_gathered_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a few is written at once, before the answers to the requests behind it."""
    monkeypatch.setattr("netserver.tank.consume.PIECES_A_STEP", 8)
    steps: list[int] = []
    write = ConsumeJob._write

    def counted(self: ConsumeJob, *arguments: Any) -> Iterator[None]:
        steps.append(0)
        for _ in write(self, *arguments):
            steps[-1] += 1
            yield

    monkeypatch.setattr(ConsumeJob, "_write", counted)

    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        assert await peer.produce(b"t", bundle(b"x")) == b"\0"
        for count in (40, 8):
            found = await peer.consume(b"t", *[(0, 1, 1000)] * count)
            assert [values(one) for one in found] == [[bundle(b"x")]] * count
        assert steps == [4, 0]

    with_server(test)


def test_requests_that_look_at_many_partitions_count_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.tank.listener_state.PARTITIONS_PER_REQUEST", 10)
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)

    async def test(place: Place) -> None:
        flood, other = await place.peer(), await place.peer()
        assert await flood.create(b"t", 1000) == 0
        first = min(place.server.shell.connections, key=lambda connection: connection.number)
        before = first.bytes_out
        flood.send(*[messages.DiscoverPartitionsRequest(number, b"t") for number in range(12)])
        other.send(messages.StatusRequest(7))
        assert (await other.answer(messages.StatusResponse)).request_id == 7
        assert first.bytes_out - before < 12 * 16_000
        for number in range(12):
            answer = await flood.answer(messages.DiscoverPartitionsResponse)
            assert (answer.request_id, len(answer.partitions)) == (number, 1000)
        shared = first.session.shared  # type: ignore[attr-defined]
        weights = [
            shared.weight(messages.DiscoverPartitionsRequest(1, b"gone", (1,) * 25)),
            shared.weight(consume(1, b"t", *((index, 0) for index in range(30)))),
            shared.weight(messages.StatusRequest(1)),
            shared.weight(messages.DiscoverTopicsRequest(1, 0)),
        ]
        assert weights == [3, 4, 1, 1]

    with_server(test)


def test_more_partition_ids_than_there_can_be_end_the_connection() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 3) == 0
        peer.send(messages.DiscoverPartitionsRequest(1, b"t", (1,) * 65_535))
        assert len((await peer.answer(messages.DiscoverPartitionsResponse)).partitions) == 65_535
        peer.send(messages.DiscoverPartitionsRequest(2, b"t", (1,) * 65_536))
        await until(lambda: place.server.counters["tank"].protocol_errors["malformed"] == 1)
        assert place.server.counters["tank"].session_errors == 0

    with_server(test)
