"""The TANK session in a running server: order of answers, malformed input, output, end of connections."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from engine.limits import READ_BYTES_MIN
from netserver.tank import codec, listener_state, messages, session, wire
from netserver.tank.limits import CHUNK_BYTES_TARGET, SILENT_CONNECTIONS_MAX
from netserver.tank.messages import SEQ_END, PartitionRange
from tests.echo import LOOPS, until
from tests.tank_peer import Place, bundle, consume, produce, sparse, values, with_server

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

    with_server(test, server={"connections_max": 2 * SILENT_CONNECTIONS_MAX})


def test_silent_connections_are_kept_while_there_is_room() -> None:
    """Pools of clients open more than they use."""

    async def test(place: Place) -> None:
        silent = [await place.peer() for _ in range(2 * SILENT_CONNECTIONS_MAX)]
        for peer in silent:
            peer.send(messages.StatusRequest(2))
            await peer.answer(messages.StatusResponse)

    with_server(test, server={"connections_max": 5 * SILENT_CONNECTIONS_MAX})


def test_silent_connections_do_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_state, "SILENT_CONNECTION_S", 0.2)

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
        answered: list[int] = []  # in the order of completion: one that is read from its file takes longer
        for _ in range(400):
            answer = await peer.answer(messages.ConsumeResponse)
            answered.append(answer.request_id)
            assert values(answer.topics[0].partitions[0]) == [bundle(b"x" * (1 << 20))]
        answered += [(await peer.answer(messages.ConsumeResponse)).request_id for _ in range(20)]
        assert sorted(answered) == [*range(400), *range(1000, 1020)]

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
        answers = [await peer.answer(object), await peer.answer(object)]  # the first may wait longer for the disk
        (consumed,) = [one for one in answers if isinstance(one, messages.ConsumeResponse)]
        (discovered,) = [one for one in answers if isinstance(one, messages.DiscoverPartitionsResponse)]
        one, two = consumed.topics[0].partitions
        assert (values(one), two.high_water_mark) == ([bundle(b"1")], 1)
        assert discovered.partitions == (PartitionRange(1, 1), PartitionRange(0, 0))
        await peer.closed_by_server()
        peer = await place.peer()
        assert await peer.ranges(b"t") == (PartitionRange(1, 2), *(PartitionRange(1, 1),) * 4, PartitionRange(0, 0))

    with_server(first, data_dir=tmp_path)
    with_server(second, data_dir=tmp_path)


def test_small_fetches_of_old_records_read_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks for a KB at a time does not have a MB read and verified for each."""
    wanted = [bundle(b"%d" % n * 1000) for n in range(500)]

    async def first(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 1) == 0
        peer.send(*(produce(n, b"t", data) for n, data in enumerate(wanted)))
        for _ in wanted:
            assert (await peer.answer(messages.ProduceResponse)).codes == b"\0"

    async def second(place: Place) -> None:
        peer = await place.peer()
        await peer.consume(b"t", (0, 1))
        files = place.server.log.files
        sizes: list[int] = []
        read_nowait = files.read_nowait

        def counted(fd: int, buffer: bytearray, position: int) -> int:
            sizes.append(len(buffer))
            return read_nowait(fd, buffer, position)

        monkeypatch.setattr(files, "read_nowait", counted)
        for seq in range(1, len(wanted) + 1, 50):
            (partition,) = await peer.consume(b"t", (0, seq, 1000))
            assert values(partition) == wanted[seq - 1 : seq]
        assert sizes
        assert max(sizes) <= READ_BYTES_MIN

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


@pytest.mark.usefixtures("replaceable_files")
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
            parts = tuple(messages.ProducePartition(0, bundle(b"lost%d" % n)) for n in range(3))
            gathered = messages.ProduceRequest(3, (messages.ProduceTopic(b"t", parts),))
            peer.send(gathered, produce(4, b"t", bundle(b"lost")))
            assert await peer.answer(messages.ProduceResponse) == messages.ProduceResponse(3, b"\x02" * 3)
            assert await peer.answer(messages.ProduceResponse) == messages.ProduceResponse(4, b"\x02")
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


def test_a_partition_whose_files_cannot_be_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place) -> None:
        log = place.server.log
        topic = log.catalog.create(b"t")
        directory = log.data_dir / "topics" / str(topic.id)
        directory.mkdir()
        (directory / "0").write_bytes(b"no directory")
        peer = await place.peer()
        (found,) = await peer.consume(b"t", (0, 0))
        assert found.code == messages.ConsumeCode.SYSTEM_ERROR
        peer.send(produce(1, b"t", bundle(b"x")))  # there is no code for it
        await peer.closed_by_server()

    with_server(test)
    assert "error in the session" not in caplog.text
    assert "cannot look for files" in caplog.text


def test_a_flood_of_small_requests_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)

    async def test(place: Place) -> None:
        flood, other = await place.peer(), await place.peer()
        first = min(place.server.shell.connections, key=lambda connection: connection.number)
        before = first.bytes_out
        flood.send(*[messages.StatusRequest(number) for number in range(2000)])
        other.send(messages.StatusRequest(7))
        assert (await other.answer(messages.StatusResponse)).request_id == 7
        assert first.bytes_out - before < 2000 * 35
        for number in range(2000):
            assert (await flood.answer(messages.StatusResponse)).request_id == number

    with_server(test)
