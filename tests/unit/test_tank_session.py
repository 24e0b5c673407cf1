"""The TANK session in a running server: order of answers, long polls, bounds, malformed input, restarts."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine import retention
from netserver.app import Server
from netserver.tank import codec, longpoll, messages, node, session, wire
from netserver.tank.limits import CHUNK_BYTES_TARGET, SILENT_CONNECTIONS_MAX
from netserver.tank.messages import SEQ_END, ConsumeCode, PartitionRange, ProduceCode
from netserver.testing import running
from tests.echo import LOOPS, run, until
from tests.tank_peer import Peer, bundle, bundles_of, consume, produce, sparse

Test = Callable[["Place"], Awaitable[None]]


class Place:
    """A running server and peers of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peers: list[Peer] = []

    async def peer(self) -> Peer:
        address = self.server.addresses["tank"]
        peer = await Peer.open((address.host, address.port))
        self.peers.append(peer)
        return peer

    def partition(self, name: bytes, index: int = 0) -> Any:
        topic = self.server.log.catalog.get(name)
        assert topic is not None
        return self.server.log.partition(topic, index)


def with_server(test: Test, loop: str = "asyncio", data_dir: Path | None = None) -> None:
    async def main() -> None:
        async with running(data_dir) as server:
            place = Place(server)
            try:
                await test(place)
            finally:
                for peer in place.peers:
                    peer.writer.transport.abort()

    run(loop, main())


def values(partition: messages.ConsumedPartition) -> list[bytes]:
    """The bundles of a chunk."""
    return list(bundles_of(partition.chunk))


# --- order of answers


@pytest.mark.parametrize("loop", LOOPS)
def test_one_ping_and_no_other(loop: str) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(messages.Ping(), b"\x03\x05\0\0\0abcde", messages.StatusRequest(5))
        assert (await peer.answer(messages.StatusResponse)).request_id == 5
        peer.send(messages.StatusRequest(6))
        assert (await peer.answer(messages.StatusResponse)).request_id == 6

    with_server(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_behind_a_produce_see_it(loop: str) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        peer.send(
            produce(1, b"t", bundle(b"one")),
            messages.DiscoverPartitionsRequest(2, b"t"),
            produce(3, b"t", bundle(b"two")),
            produce(4, b"t", bundle(b"three")),
            consume(5, b"t", (0, 0)),
            messages.StatusRequest(6),
        )
        assert await peer.answer(messages.ProduceResponse) == messages.ProduceResponse(1, b"\0")
        found = await peer.answer(messages.DiscoverPartitionsResponse)
        assert found.request_id == 2
        assert found.partitions[0].first_seq == 1
        assert (await peer.answer(messages.ProduceResponse)).request_id == 3
        assert (await peer.answer(messages.ProduceResponse)).request_id == 4
        (partition,) = (await peer.answer(messages.ConsumeResponse)).topics[0].partitions
        assert values(partition) == [bundle(b"one"), bundle(b"two"), bundle(b"three")]
        assert (await peer.answer(messages.StatusResponse)).open_partitions == 1

    with_server(test, loop)


def test_more_requests_behind_a_produce_than_are_kept() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        peer.send(produce(0, b"t", bundle(b"x")), *(messages.StatusRequest(n) for n in range(1, 2000)))
        assert (await peer.answer(messages.ProduceResponse)).request_id == 0
        for n in range(1, 2000):
            assert (await peer.answer(messages.StatusResponse)).request_id == n

    with_server(test)


def test_a_waiting_consume_holds_up_nobody() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 2) == 0
        peer.send(consume(1, b"t", (0, SEQ_END), max_wait_ms=60_000), messages.StatusRequest(2))
        assert (await peer.answer(messages.StatusResponse)).request_id == 2
        assert await peer.produce(b"t", bundle(b"other"), partition_id=1) == b"\0"
        peer.send(produce(3, b"t", bundle(b"mine")))
        answer = await peer.answer(messages.ConsumeResponse)  # before that of the Produce
        assert answer.request_id == 1
        assert values(answer.topics[0].partitions[0]) == [bundle(b"mine")]
        assert (await peer.answer(messages.ProduceResponse)).request_id == 3

    with_server(test)


# --- long polls


def test_wait_ends_in_time_with_the_mark_of_that_moment() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        assert await peer.produce(b"t", bundle(b"a")) == b"\0"
        since = time.monotonic()
        (partition,) = await peer.consume(b"t", (0, SEQ_END), max_wait_ms=200)
        assert 0.19 < time.monotonic() - since < 2
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


def test_too_many_waiting_requests_answer_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "WAITING_PARTITIONS_PER_CONNECTION_MAX", 10)
    monkeypatch.setattr(longpoll, "WAITING_PARTITIONS_MAX", 15)

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


def test_first_available_after_retention() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        for n in range(5):
            assert await peer.produce(b"t", bundle(b"%d" % n, b"x")) == b"\0"
        retention.trim(place.server.log, place.partition(b"t"), 6)
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


# --- malformed input

BAD_BUNDLES = [b"", b"\x04", b"\0\0", b"\x02\x01", b"\x84\x00" + bytes(9), bundle(b"a") + b"x", bundle(b"a")[:-1]]


@pytest.mark.parametrize("bad", BAD_BUNDLES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_malformed_bundle_closes_its_connection_and_writes_nothing(bad: bytes, loop: str) -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t", 2) == 0
        peer.send(
            produce(1, b"t", bundle(b"before")),
            produce(2, b"t", bundle(b"not written"), bad),
            produce(3, b"t", bundle(b"never read")),
        )
        assert (await peer.answer(messages.ProduceResponse)).request_id == 1
        await peer.closed_by_server()
        (partition,) = await other.consume(b"t", (0, 0))
        assert values(partition) == [bundle(b"before")]

        alone = await place.peer()
        alone.send(produce(2, b"t", bad))
        await alone.closed_by_server()
        assert await other.ranges(b"t") == (PartitionRange(1, 1), PartitionRange(0, 0))

    with_server(test, loop)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0\0",
        b"\x04\0\0\0\0",
        b"\x09\x05\0\0\0hello",
        b"\x0d\xff\xff\0\0",  # refused before its payload is there
        b"\x02\x01\0\0\x10",
        b"\x0a\x03\0\0\0abc",
        b"GET / HTTP/1.0\r\n\r\n",
        codec.encode_request(consume(1, b"t", (0, 0)))[:1] + wire.U32.pack(19) + bytes(19),
    ],
)
def test_malformed_frames_close_silently(data: bytes) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(messages.StatusRequest(1), data, messages.StatusRequest(2))
        assert (await peer.answer(messages.StatusResponse)).request_id == 1
        await peer.closed_by_server()
        other = await place.peer()
        other.send(messages.StatusRequest(3))
        await other.answer(messages.StatusResponse)
        assert sum(place.server.counters["tank"].protocol_errors.values()) == 1

    with_server(test)


def test_frames_cut_at_every_byte() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        requests = produce(1, b"t", bundle(b"a", b"b")), produce(2, b"t", sparse(9)), consume(3, b"t", (0, 0))
        stream = b"".join(map(codec.encode_request, requests))
        for byte in stream:
            peer.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await peer.answer(messages.ProduceResponse)).codes == b"\0"
        assert (await peer.answer(messages.ProduceResponse)).codes == b"\0"
        answer = await peer.answer(messages.ConsumeResponse)
        assert values(answer.topics[0].partitions[0]) == [bundle(b"a", b"b"), sparse(9)]

    with_server(test)


def test_silent_connections_are_few() -> None:
    async def test(place: Place) -> None:
        talking = await place.peer()
        talking.send(messages.StatusRequest(1))
        await talking.answer(messages.StatusResponse)
        silent = [await place.peer() for _ in range(SILENT_CONNECTIONS_MAX + 2)]
        await silent[0].closed_by_server()
        await silent[1].closed_by_server()
        for peer in (talking, silent[2], silent[-1]):
            peer.send(messages.StatusRequest(2))
            await peer.answer(messages.StatusResponse)

    with_server(test)


def test_silent_connections_do_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "SILENT_CONNECTION_S", 0.2)

    async def test(place: Place) -> None:
        first = await place.peer()
        talking = await place.peer()
        talking.send(b"\x0a")  # one byte is enough, for ever
        await first.closed_by_server()
        second = await place.peer()
        await second.closed_by_server()
        talking.send(b"\x04\0\0\0\x07\0\0\0")
        assert (await talking.answer(messages.StatusResponse)).request_id == 7

    with_server(test)


# --- output


def test_who_does_not_read_gets_no_more_than_the_output_may_hold() -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t") == 0
        for _ in range(8):
            assert await other.produce(b"t", bundle(b"x" * (1 << 20))) == b"\0"
        peer.send(*(consume(n, b"t", (0, n % 8 + 1)) for n in range(400)))
        await until(lambda: any(connection.held for connection in place.server.shell.connections))
        (served,) = [connection for connection in place.server.shell.connections if connection.held]
        for n in range(20):
            peer.send(consume(1000 + n, b"t", (0, SEQ_END), max_wait_ms=1))
        await asyncio.sleep(0.1)
        assert served.bytes_out < 60 * CHUNK_BYTES_TARGET
        for n in range(400):
            answer = await peer.answer(messages.ConsumeResponse)
            assert answer.request_id == n
            assert values(answer.topics[0].partitions[0]) == [bundle(b"x" * (1 << 20))]
        for n in range(20):
            assert (await peer.answer(messages.ConsumeResponse)).request_id == 1000 + n

    with_server(test, "uvloop")


def test_many_waiting_requests_of_who_does_not_read() -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t") == 0
        peer.send(*(consume(n, b"t", (0, SEQ_END), max_wait_ms=60_000) for n in range(100)))
        await until(lambda: len(place.partition(b"t").readers) == 100)
        assert await other.produce(b"t", bundle(b"x" * (1 << 20))) == b"\0"
        await asyncio.sleep(0.1)
        assert sum(c.bytes_out for c in place.server.shell.connections) < 60 << 20
        for n in range(100):
            answer = await peer.answer(messages.ConsumeResponse)
            assert answer.request_id == n
            assert len(values(answer.topics[0].partitions[0])) == 1

    with_server(test, "uvloop")


# --- life


def test_half_closed_connections_get_their_answers() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        peer.send(
            consume(1, b"t", (0, SEQ_END), max_wait_ms=60_000),
            produce(2, b"t", bundle(b"x"), sparse(5)),
            messages.StatusRequest(3),
            consume(4, b"t", (0, SEQ_END), max_wait_ms=60_000),
        )
        peer.writer.write_eof()
        found = []
        while frame := await peer.receive():
            found.append(frame[0])
        assert [kind for kind in found if kind != messages.MessageId.CONSUME] == [1, 10]

    with_server(test)


def test_drain_answers_what_waits() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t") == 0
        peer.send(consume(1, b"t", (0, SEQ_END), max_wait_ms=60_000))
        await until(lambda: len(place.partition(b"t").readers) == 1)
        draining = asyncio.ensure_future(place.server.listeners["tank"].drain(asyncio.get_running_loop().time() + 5))
        assert (await peer.answer(messages.ConsumeResponse)).request_id == 1
        await peer.closed_by_server()
        await draining

    with_server(test)


def test_partitions_open_on_first_use_after_a_restart(tmp_path: Path) -> None:
    async def first(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 6) == 0
        for index in range(5):
            assert await peer.produce(b"t", bundle(b"%d" % index), partition_id=index) == b"\0"

    async def second(place: Place) -> None:
        peer = await place.peer()
        peer.send(
            produce(1, b"t", bundle(b"more"), partition_id=0),
            consume(2, b"t", (1, 0), (2, SEQ_END)),
            messages.DiscoverPartitionsRequest(3, b"t", (3, 5)),
        )
        peer.writer.write_eof()  # opening goes on although nothing more comes
        assert (await peer.answer(messages.ProduceResponse)).codes == b"\0"
        one, two = (await peer.answer(messages.ConsumeResponse)).topics[0].partitions
        assert (values(one), two.high_water_mark) == ([bundle(b"1")], 1)
        found = (await peer.answer(messages.DiscoverPartitionsResponse)).partitions
        assert found == (PartitionRange(1, 1), PartitionRange(0, 0))
        await peer.closed_by_server()
        peer = await place.peer()
        assert await peer.ranges(b"t") == (PartitionRange(1, 2), *(PartitionRange(1, 1),) * 4, PartitionRange(0, 0))

    with_server(first, data_dir=tmp_path)
    with_server(second, data_dir=tmp_path)


def test_old_records_come_from_the_files(tmp_path: Path) -> None:
    wanted = [bundle(b"%d" % n * 1000) for n in range(200)]

    async def first(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 1, b"log.segment.bytes=64k") == 0
        peer.send(*(produce(n, b"t", data) for n, data in enumerate(wanted)))
        for _ in wanted:
            assert (await peer.answer(messages.ProduceResponse)).codes == b"\0"

    async def second(place: Place) -> None:
        peer = await place.peer()
        for fetch_bytes in (1, 5000, 1 << 20):
            found: list[bytes] = []
            while len(found) < len(wanted):
                (partition,) = await peer.consume(b"t", (0, len(found) + 1, fetch_bytes), max_wait_ms=60_000)
                assert partition.base_seq == len(found) + 1
                found += values(partition)
            assert found == wanted

    with_server(first, data_dir=tmp_path)
    with_server(second, data_dir=tmp_path)


def test_a_failing_disk_is_an_io_error_and_reading_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 2) == 0
        assert await peer.produce(b"t", bundle(b"kept")) == b"\0"
        files = place.server.log.files

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(files, "write", fail)
            peer.send(produce(1, b"t", bundle(b"lost")), produce(2, b"t", bundle(b"lost"), bundle(b"too")))
            assert (await peer.answer(messages.ProduceResponse)).codes == b"\x02"
            assert (await peer.answer(messages.ProduceResponse)).codes == b"\x02\x02"
        assert await peer.produce(b"t", bundle(b"again")) == b"\0"
        (partition,) = await peer.consume(b"t", (0, 0))
        assert values(partition) == [bundle(b"kept")]  # what failed is a gap
        (partition,) = await peer.consume(b"t", (0, 2))
        assert values(partition) == [bundle(b"again")]
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_data", fail)
            assert await peer.produce(b"t", bundle(b"lost")) == b"\x02"
        assert await peer.produce(b"t", bundle(b"read-only")) == b"\x02"
        (partition,) = await peer.consume(b"t", (0, 0))
        assert values(partition) == [bundle(b"kept")]

    with_server(test)


def test_reload_has_nothing_to_reload() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 2) == 0
        for topic, index, code in ((b"t", 0, 2), (b"t", 2, 10), (b"u", 0, 11)):
            peer.send(messages.ReloadConfRequest(5, topic, index))
            assert await peer.answer(messages.ReloadConfResponse) == messages.ReloadConfResponse(5, topic, index, code)

    with_server(test)


def test_session_is_what_the_shell_asks_for() -> None:
    assert session.TankSession.frame_bytes_max == (256 << 20) + 5
