"""What TANK stores and serves: numbers, gaps, topics and partitions."""

from __future__ import annotations

import pytest

from netserver.tank import messages
from netserver.tank.limits import SEQUENCE_MAX
from netserver.tank.messages import ConsumeCode, PartitionRange, ProduceCode
from tests.echo import until
from tests.tank_peer import Place, bundle, sparse, values, with_server

# --- what is stored and where reading begins


def test_high_water_mark_after_a_bundle_of_more_than_65536() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        large = bundle(*[b""] * 70_000)
        assert await peer.produce(b"t", large) == b"\0"
        for seq, wait in ((1, 0), (70_000, 0), (70_001, 0), (70_001, 10)):
            (partition,) = await peer.consume(b"t", (0, seq, 10), max_wait_ms=wait)
            assert partition.high_water_mark == 70_000
            assert values(partition) == ([large] if seq <= 70_000 else [])
        assert await peer.ranges(b"t") == (PartitionRange(1, 70_000),)

    with_server(test)


def test_explicit_and_sparse_numbers() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        assert await peer.produce(b"t", bundle(b"a"), base_seq=10) == b"\0"
        assert await peer.produce(b"t", bundle(b"b"), base_seq=10) == bytes((ProduceCode.INVALID_SEQ,))
        assert await peer.produce(b"t", bundle(b"b"), base_seq=0) == b"\0"
        assert await peer.produce(b"t", sparse(20, 30), base_seq=7) == b"\0"
        assert await peer.produce(b"t", sparse(30)) == bytes((ProduceCode.INVALID_SEQ,))
        assert await peer.produce(b"t", sparse(0)) == bytes((ProduceCode.INVALID_SEQ,))
        assert await peer.produce(b"t", bundle(b"c"), base_seq=31 + (1 << 32)) == bytes((ProduceCode.INVALID_SEQ,))
        assert await peer.produce(b"t", bundle(b"c"), base_seq=30 + (1 << 32)) == b"\0"
        last_seq = 30 + (1 << 32)
        assert await peer.ranges(b"t") == (PartitionRange(10, last_seq),)
        (partition,) = await peer.consume(b"t", (0, 0))
        assert (partition.code, partition.base_seq) == (0, 10)
        assert values(partition) == [bundle(b"a"), bundle(b"b"), sparse(20, 30)]  # ends before the jump
        (partition,) = await peer.consume(b"t", (0, 12))
        assert (partition.code, values(partition)) == (ConsumeCode.SPARSE_FIRST, [sparse(20, 30)])
        (partition,) = await peer.consume(b"t", (0, 31))
        assert (partition.base_seq, values(partition)) == (last_seq, [bundle(b"c")])
        (partition,) = await peer.consume(b"t", (0, 9), max_wait_ms=60_000)
        assert (partition.code, partition.first_available) == (ConsumeCode.OUT_OF_RANGE, 10)
        (partition,) = await peer.consume(b"t", (0, last_seq + 2))
        assert (partition.code, partition.high_water_mark) == (ConsumeCode.OUT_OF_RANGE, last_seq)

    with_server(test)


def test_numbers_end_before_those_of_cursors_do() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        assert await peer.produce(b"t", bundle(b"a")) == b"\0"
        place.partition(b"t").last_seq = SEQUENCE_MAX - 10  # it takes 2^30 jumps to get there
        invalid = bytes((ProduceCode.INVALID_SEQ,))
        assert await peer.produce(b"t", bundle(b"b", b"c"), base_seq=SEQUENCE_MAX) == invalid
        assert await peer.produce(b"t", sparse(SEQUENCE_MAX, SEQUENCE_MAX + 5)) == invalid
        assert await peer.produce(b"t", bundle(b"b"), base_seq=SEQUENCE_MAX) == b"\0"
        assert await peer.ranges(b"t") == (PartitionRange(1, SEQUENCE_MAX),)

    with_server(test)


def test_first_available_after_retention() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        for n in range(5):
            assert await peer.produce(b"t", bundle(b"%d" % n, b"x")) == b"\0"
        place.partition(b"t").trim(6)
        (partition,) = await peer.consume(b"t", (0, 5))
        assert (partition.code, partition.first_available) == (ConsumeCode.OUT_OF_RANGE, 6)
        (partition,) = await peer.consume(b"t", (0, 0))
        assert values(partition) == [bundle(b"2", b"x"), bundle(b"3", b"x"), bundle(b"4", b"x")]
        assert partition.base_seq == 5  # a bundle is served whole
        assert await peer.ranges(b"t") == (PartitionRange(6, 10),)

    with_server(test)


def test_one_bad_partition_does_not_stop_the_others() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 2) == 0

        def part(index: int, data: bytes) -> messages.ProducePartition:
            return messages.ProducePartition(index, data)

        topics = (
            messages.ProduceTopic(b"t", (part(0, bundle(b"a")), part(2, bundle(b"b")), part(0, sparse(1)))),
            messages.ProduceTopic(b"gone", (part(0, bundle(b"c")), part(1, bundle(b"d")))),
            messages.ProduceTopic(b"gone", (part(0, bundle(b"c")),)),
            messages.ProduceTopic(b"t", (part(0, bundle(b"e")), part(1, bundle(b"f")))),
        )
        peer.send(messages.ProduceRequest(8, topics))
        assert await peer.answer(messages.ProduceResponse) == messages.ProduceResponse(8, b"\0\x01\x0a\xff\0\0")
        assert await peer.ranges(b"t") == (PartitionRange(1, 2), PartitionRange(1, 1))

    with_server(test)


# --- topics


def test_as_many_partitions_as_there_are_numbers() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"wide", 65_535) == 0
        assert await peer.ranges(b"wide") == (PartitionRange(0, 0),) * 65_535
        assert place.server.log.known_partitions() == []  # nothing was made for them
        assert await peer.produce(b"wide", bundle(b"last"), partition_id=65_534) == b"\0"
        (partition,) = await peer.consume(b"wide", (65_534, 0))
        assert values(partition) == [bundle(b"last")]
        assert (await peer.ranges(b"wide", 65_534, 0))[0] == PartitionRange(1, 1)
        assert await peer.produce(b"wide", bundle(b"none"), partition_id=65_535) == b"\x01"

    with_server(test)


@pytest.mark.parametrize(
    ("name", "partitions", "config", "code"),
    [
        (b"a", 1, b"", 0),
        (b"A-b_9", 1, b"log.retention.secs=60", 0),
        (b"x" * 64, 1, b"", 0),
        (b"x" * 65, 1, b"", 10),
        (b"", 1, b"", 10),
        (b"_a", 1, b"", 10),
        (b"a-", 1, b"", 10),
        (b"a.b", 1, b"", 10),
        (b"a\n", 1, b"", 10),
        (b"a", 0, b"", 10),
        (b"a", 1, b"log.segment.bytes=1", 4),
        (b"a", 1, b"not a setting", 4),
    ],
)
def test_create_topic(name: bytes, partitions: int, config: bytes, code: int) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(name, partitions, config) == code
        assert await peer.create(name, partitions, config) == (code or 1)
        assert (place.server.log.catalog.get(name) is not None) == (code == 0)

    with_server(test)


def test_topics_that_tank_cannot_spell_are_not_there() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        place.server.log.catalog.create(b"not.for/tank")
        place.server.log.catalog.create(b"fine", partition_count=3)
        peer.send(messages.DiscoverTopicsRequest(1), messages.StatusRequest(2))
        answer = await peer.answer(messages.DiscoverTopicsResponse)
        assert answer == messages.DiscoverTopicsResponse(1, (messages.TopicEntry(b"fine", 3),))
        status = await peer.answer(messages.StatusResponse)
        assert (status.topics, status.partitions) == (1, 3)
        assert await peer.ranges(b"not.for/tank") == ()
        assert await peer.produce(b"not.for/tank", bundle(b"x")) == b"\xff"
        topic = place.server.log.catalog.get(b"fine")
        assert topic is not None
        place.server.log.catalog.delete(topic)
        await until(lambda: place.server.log.catalog.get(b"fine") is None)
        peer.send(messages.DiscoverTopicsRequest(1), messages.StatusRequest(2))
        assert (await peer.answer(messages.DiscoverTopicsResponse)).topics == ()
        assert (await peer.answer(messages.StatusResponse)).partitions == 0

    with_server(test)


def test_unknown_partitions_are_a_fault_not_the_end() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 2) == 0
        assert await peer.produce(b"t", bundle(b"a")) == b"\0"
        fault = PartitionRange(0, 0, messages.FaultCode.SYSTEM_ERROR)
        assert await peer.ranges(b"t", 9, 0, 2, 1) == (fault, PartitionRange(1, 1), fault, PartitionRange(0, 0))
        assert await peer.ranges(b"nosuch", 1) == ()

    with_server(test)
