"""The Kafka session in a running server: order of answers, long polls, malformed input, the end of connections."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from netserver.app import Server
from netserver.kafka import listener_state, producing, session
from netserver.kafka.apis import APIS, Key
from netserver.kafka.codec import Head, decode_response, encode_request
from netserver.kafka.errors import Code
from netserver.kafka.limits import ANSWER_BYTES_MAX, CHECKED_AT_ONCE_BYTES, WAITED_BYTES_MAX
from netserver.kafka.producing import Prepared
from netserver.kafka.session import ANSWERS, BEHIND, PIPELINED
from netserver.shell.connection import ANSWERING
from tests.echo import LOOPS, until
from tests.kafka_batches import packed
from tests.kafka_peer import (
    Peer,
    Record,
    all_errors,
    batch,
    by_topic,
    fetch,
    metadata,
    produce,
    records_of,
    result_of,
    with_server,
)

pytestmark = pytest.mark.whole


def values(found: list[Record]) -> list[bytes | None]:
    return [record.value for record in found]


async def waiting(server: Server, count: int = 1) -> None:
    """Until so many partitions are waited for by Fetches."""
    topic = server.log.catalog.get(b"t")
    assert topic is not None
    await until(lambda: sum(len(server.log.partition(topic, at).readers) for at in range(2)) == count)


# --- order of answers


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_come_in_the_order_of_requests_and_see_what_was_published(loop: str) -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await peer.make("t", 2) == 0
        peer.send(Key.PRODUCE, produce("t", batch(b"a", b"b")))
        peer.send(Key.PRODUCE, produce("t", batch(b"c")))
        peer.send(Key.FETCH, fetch("t", (0, 1)))
        peer.send(Key.PRODUCE, produce("t", batch(b"d"), acks=0))
        peer.send(Key.PRODUCE, produce("t", batch(b"e"), acks=1), 3)
        peer.send(Key.LIST_OFFSETS, by_topic("t", [{"index": 0, "timestamp_ms": -1}]))
        peer.send(Key.API_VERSIONS, {})
        assert result_of(await peer.answer())["offset"] == 1
        assert result_of(await peer.answer())["offset"] == 3
        assert values(list(records_of(bytes(result_of(await peer.answer())["records"])))) == [b"a", b"b", b"c"]
        assert result_of(await peer.answer())["offset"] == 5
        assert result_of(await peer.answer())["offset"] == 6
        assert (await peer.answer())["error"] == 0

    with_server(test, loop=loop)


def test_what_is_announced_is_what_is_answered() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        for version in range(4):
            found = await peer.ask(Key.API_VERSIONS, {}, version)
            assert {entry["key"] for entry in found["apis"]} == {*ANSWERS, Key.PRODUCE} == set(APIS)
        unknown = Head(Key.API_VERSIONS, 5, 9, is_spoken=False)
        peer.writer.write(b"\0\0\0\x0c" + b"\0\x12\0\x05\0\0\0\x09" + b"\xff\xff\0\0")
        answer = decode_response(memoryview(await peer.frame()), unknown)
        assert answer == {
            "error": Code.UNSUPPORTED_VERSION,
            "apis": [{"key": 18, "first": 0, "last": 3}],
            "throttle_ms": 0,
        }
        assert (await peer.ask(Key.API_VERSIONS, {}, 3))["error"] == 0

    with_server(test)


def test_requests_that_are_cut_anywhere() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        frames = b"".join((
            encode_request(Head(Key.METADATA, 4, 1), "x", metadata("t")),
            encode_request(Head(Key.PRODUCE, 7, 2), "x", produce("t", batch(b"a"))),
            encode_request(Head(Key.FETCH, 11, 3), "x", fetch("t", (0, 1))),
        ))  # fmt: skip
        for at in range(0, len(frames), 7):
            peer.writer.write(frames[at : at + 7])
            await asyncio.sleep(0)
        for correlation in (1, 2, 3):
            assert (await peer.frame())[4:8] == correlation.to_bytes(4, "big")

    with_server(test)


def test_a_connection_waits_behind_many_publishes_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PIPELINED_MAX", 4)

    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t")
        (connection,) = server.shell.connections
        reasons = set()
        for _ in range(40):
            peer.send(Key.PRODUCE, produce("t", batch(b"x" * 1000)))
        peer.send(Key.METADATA, metadata("t"))
        for number in range(40):
            reasons |= set(connection.hold_reasons)
            assert result_of(await peer.answer())["offset"] == number + 1
        reasons |= set(connection.hold_reasons)
        assert (await peer.answer())["topics"][0]["error"] == 0
        assert reasons & {PIPELINED, BEHIND}
        assert not connection.hold_reasons

    with_server(test)


# --- long polls


@pytest.mark.parametrize("loop", LOOPS)
def test_a_fetch_waits_for_records_and_holds_up_its_own_connection_only(loop: str) -> None:
    async def test(server: Server) -> None:
        peer, other = [await Peer.open(server.addresses["kafka"]) for _ in range(2)]
        await peer.make("t", 2)
        peer.send(Key.FETCH, fetch("t", (0, 1), (1, 1), wait_ms=20_000))
        peer.send(Key.METADATA, metadata("t"))
        await waiting(server, 2)
        assert (await other.produce("t", b"new", index=1))["offset"] == 1
        first, second = (await peer.answer())["topics"][0]["partitions"]
        assert (first["index"], first["error"], first["end"], bytes(first["records"])) == (0, 0, 1, b"")
        assert values(list(records_of(bytes(second["records"])))) == [b"new"]
        assert second["end"] == second["stable_end"] == 2
        assert second["log_start"] == 1
        assert second["aborted"] is None
        assert (await peer.answer())["topics"][0]["error"] == 0
        await waiting(server, 0)

    with_server(test, loop=loop)


def test_a_fetch_ends_when_its_time_is_over_or_at_once_where_it_does_not_wait() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 2)
        began = time.monotonic()
        assert await peer.records("t", 1, wait_ms=100) == []
        assert time.monotonic() - began >= 0.09
        for wait_ms in range(20):  # whatever the clock of timers says
            assert await peer.records("t", 1, wait_ms=wait_ms) == []
        assert await peer.records("t", 1, wait_ms=20_000, min_bytes=0) == []
        assert (await peer.fetch("t", 9, wait_ms=20_000))["error"] == Code.OUT_OF_RANGE
        assert (await peer.ask(Key.FETCH, fetch("t", wait_ms=20_000)))["topics"] == []
        assert (await peer.fetch("nothing", 1, wait_ms=20_000))["error"] == Code.UNKNOWN_TOPIC
        found = await peer.ask(Key.FETCH, fetch("t", (0, 1), (1, -5), wait_ms=20_000))
        assert all_errors(found) == [0, Code.OUT_OF_RANGE]
        began = time.monotonic()
        found = await peer.ask(Key.FETCH, fetch("t", (0, 1), (7, 1), wait_ms=100))  # which ends no wait
        assert time.monotonic() - began >= 0.09
        assert all_errors(found) == [0, Code.UNKNOWN_TOPIC]
        assert (await peer.ask(Key.FETCH, fetch("t", (0, 1), session=5)))["error"] == Code.FETCH_SESSION_UNKNOWN
        await waiting(server, 0)

    with_server(test)


def test_a_fetch_waits_for_as_many_bytes_as_it_wants() -> None:
    async def test(server: Server) -> None:
        peer, other = [await Peer.open(server.addresses["kafka"]) for _ in range(2)]
        await peer.make("t", 2)
        peer.send(Key.FETCH, fetch("t", (0, 1), (1, 1), wait_ms=20_000, min_bytes=2500))
        for number in range(3):
            await waiting(server, 2)
            await other.produce("t", b"x" * 1000, index=number % 2)
        first, second = (await peer.answer())["topics"][0]["partitions"]
        assert len(list(records_of(bytes(first["records"])))) == 2
        assert len(list(records_of(bytes(second["records"])))) == 1
        peer.send(Key.FETCH, fetch("t", (0, 3), wait_ms=20_000, min_bytes=1 << 30))  # more than is ever gathered
        for _ in range(11):
            await other.produce("t", b"x" * 100_000)
        assert WAITED_BYTES_MAX * 0.9 < len(bytes(result_of(await peer.answer())["records"])) < WAITED_BYTES_MAX * 1.2

    with_server(test)


def test_a_fetch_that_waits_is_told_that_its_topic_was_deleted() -> None:
    async def test(server: Server) -> None:
        peer, other = [await Peer.open(server.addresses["kafka"]) for _ in range(2)]
        await peer.make("t", 2)
        peer.send(Key.FETCH, fetch("t", (0, 1), wait_ms=20_000))
        await waiting(server)
        found = await other.ask(Key.DELETE_TOPICS, {"names": ["t"], "timeout_ms": 1})
        assert [topic["error"] for topic in found["topics"]] == [0]
        assert all_errors(await peer.answer()) == [Code.UNKNOWN_TOPIC]

    with_server(test)


def test_a_server_that_stops_answers_what_waits() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 2)
        peer.send(Key.FETCH, fetch("t", (0, 1), wait_ms=20_000))
        await waiting(server)
        listener = server.listeners["kafka"]
        listener.stop_accepting()
        stopping = asyncio.create_task(listener.drain(asyncio.get_running_loop().time() + 20))
        assert all_errors(await peer.answer()) == [0]
        assert await peer.is_closed()
        await peer.close()
        await stopping

    with_server(test)


def test_a_client_that_hangs_up_while_it_waits_leaves_nothing() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 2)
        peer.send(Key.FETCH, fetch("t", (0, 1), wait_ms=20_000))
        await waiting(server)
        (connection,) = server.shell.connections
        connection.abort("as if it were lost")
        await waiting(server, 0)

    with_server(test)


# --- how much comes


def test_a_first_batch_comes_whole_and_others_as_far_as_there_is_room() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 2)
        large = [b"%d" % number + b"x" * 50_000 for number in range(4)]
        for value in large:
            await peer.produce("t", value, index=0)
            await peer.produce("t", value, index=1)
        assert values(await peer.records("t", 1, max_bytes=1)) == large[:1]
        found = await peer.ask(Key.FETCH, fetch("t", (0, 1, 1), (1, 1, 1)))
        first, second = found["topics"][0]["partitions"]
        assert len(list(records_of(bytes(first["records"])))) == 1
        assert bytes(second["records"]) == b""
        found = await peer.ask(Key.FETCH, fetch("t", (0, 1, 60_000), (1, 1, 120_000)))
        counts = [len(list(records_of(bytes(one["records"])))) for one in found["topics"][0]["partitions"]]
        assert counts == [1, 2]
        assert values(await peer.records("t", 1)) == large
        assert values(await peer.records("t", 0)) == large, "number 0 is before the first one"
        assert values(await peer.records("t", 3)) == large[2:]

    with_server(test)


def test_an_answer_is_bounded_whatever_is_asked_for() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 8)
        value = b"x" * 250_000
        for index in range(8):
            for _ in range(4):
                await peer.produce("t", value, index=index)
        asked = [(index, 1, (1 << 31) - 1) for index in range(8)]
        found = await peer.ask(Key.FETCH, fetch("t", *asked, max_bytes=(1 << 31) - 1))
        sizes = [len(bytes(one["records"])) for one in found["topics"][0]["partitions"]]
        assert ANSWER_BYTES_MAX * 0.8 < sum(sizes) <= ANSWER_BYTES_MAX
        assert sizes[0] > 900_000
        assert sizes[-1] == 0

    with_server(test)


def test_a_large_publish_is_checked_by_a_thread_and_keeps_its_place() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 2)
        large = b"x" * (CHECKED_AT_ONCE_BYTES + 1)
        for record in (b"a", large, b"b", b"y" * 700_000, b"c"):
            peer.send(Key.PRODUCE, produce("t", batch(record)))
        peer.send(Key.METADATA, metadata(*(f"n{number}" for number in range(9000)), auto_create=False))
        assert [result_of(await peer.answer())["offset"] for _ in range(5)] == [1, 2, 3, 4, 5]
        assert len((await peer.answer())["topics"]) == 9000
        found = [len(record.value or b"") for record in await peer.records("t")]
        assert found == [1, len(large), 1, 700_000, 1]
        broken = bytearray(batch(large))
        broken[-1] ^= 1
        assert result_of(await peer.ask(Key.PRODUCE, produce("t", bytes(broken))))["error"] == Code.CORRUPT

    with_server(test)


# --- what is refused


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("0000000d03e70000000000010003726177"),
        bytes.fromhex("7fffffff"),
        bytes.fromhex("ffffffff"),
        bytes(4),
        bytes.fromhex("0000000e0003000100000001000372617700"),
        bytes.fromhex("0000000d000100630000004e0003726177"),
        bytes(encode_request(Head(Key.PRODUCE, 7, 1), "x", produce("t", batch(b"x"))))[:-1] + b"",
    ],
)
def test_malformed_input_closes_its_connection_after_what_came_before(data: bytes) -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t")
        head = peer.send(Key.PRODUCE, produce("t", batch(b"kept")))
        if len(data) > 60:
            peer.writer.write((len(data) - 4).to_bytes(4, "big") + data[4:])  # its records are longer than it is
        else:
            peer.writer.write(data)
        assert (await peer.frame())[4:8] == head.correlation.to_bytes(4, "big")
        assert await peer.is_closed()
        other = await Peer.open(server.addresses["kafka"])
        assert values(await other.records("t")) == [b"kept"]
        assert server.counters["kafka"].session_errors == 0

    with_server(test)


def test_a_large_request_that_is_malformed_closes_its_connection() -> None:
    async def test(server: Server) -> None:
        for key, body in (
            (Key.METADATA, metadata(*(f"n{number}" for number in range(20_000)))),
            (Key.PRODUCE, produce("t", batch(b"x" * 300_000))),
        ):
            peer = await Peer.open(server.addresses["kafka"])
            frame = encode_request(Head(key, 3, 1), "x", body)[:-1]
            peer.writer.write((len(frame) - 4).to_bytes(4, "big") + frame[4:])
            assert await peer.is_closed()
        assert len(server.log.catalog) == 0
        assert server.counters["kafka"].session_errors == 0

    with_server(test)


def test_each_partition_of_a_publish_is_stored_or_refused_for_itself() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 2)
        corrupt = bytearray(batch(b"x"))
        corrupt[-1] ^= 1
        parts = [
            {"index": 0, "records": batch(b"good")},
            {"index": 1, "records": bytes(corrupt)},
            {"index": 2, "records": batch(b"x")},
            {"index": -1, "records": batch(b"x")},
            {"index": 1, "records": b""},
            {"index": 1, "records": batch(b"in a transaction", producer=(5, 0, 0), attributes=16)},
        ]
        body = {"acks": -1, "timeout_ms": 5, "topics": [
            {"name": "t", "partitions": parts}, {"name": "none", "partitions": parts[:1]}
        ]}  # fmt: skip
        found = await peer.ask(Key.PRODUCE, body)
        unknown = Code.UNKNOWN_TOPIC
        assert all_errors(found) == [
            0, Code.CORRUPT, unknown, unknown, Code.INVALID_RECORD, Code.INVALID_RECORD, unknown,
        ]  # fmt: skip
        assert found["topics"][0]["partitions"][1]["offset"] == -1
        assert await peer.records("t", index=1) == []
        body["acks"] = 2
        assert set(all_errors(await peer.ask(Key.PRODUCE, body))) == {Code.INVALID_ACKS}
        first, second = [
            await peer.ask(Key.INIT_PRODUCER_ID, {"transactional_id": None, "timeout_ms": 5}) for _ in range(2)
        ]
        assert first["error"] == second["error"] == first["epoch"] == 0
        assert first["producer"] != second["producer"]

    with_server(test)


def test_what_all_batches_of_a_request_unpack_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "REQUEST_UNPACKED_BYTES_MAX", 130_000)
    monkeypatch.setattr(producing, "UNPACKED_BYTES_MAX", 60_000)
    good = packed(batch(bytes(50_000)), "zstd")
    parts = [good, packed(batch(bytes(70_000)), "gzip"), good, batch(bytes(50_000)), packed(batch(b"x"), "lz4")]

    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t")
        body = by_topic("t", [{"index": 0, "records": part} for part in parts], acks=-1, timeout_ms=5)
        assert all_errors(await peer.ask(Key.PRODUCE, body)) == [0, Code.TOO_LARGE, Code.TOO_LARGE, 0, Code.TOO_LARGE]
        for part in parts:  # in a request of its own it has room
            found = result_of(await peer.ask(Key.PRODUCE, produce("t", part)))
            assert found["error"] == (Code.TOO_LARGE if part is parts[1] else 0)

    with_server(test)


class Flood:
    """Somebody who has published as much as may wait for the disk."""

    charged = 0

    def hold(self, reason: str) -> None: ...
    def release(self, reason: str) -> None: ...


def test_few_requests_are_unpacked_at_a_time_and_none_when_the_disk_does_not_keep_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_state, "CHECKED_TOGETHER_MAX", 1)
    prepared: list[Prepared] = []
    go_on = threading.Event()

    def prepare(*args: Any) -> Prepared:
        assert go_on.wait(20)
        prepared.append(producing.prepare(*args))
        return prepared[-1]

    monkeypatch.setattr(session, "prepare", prepare)

    async def test(server: Server) -> None:
        address, pressure, flood = server.addresses["kafka"], server.shell.pressure, Flood()
        peers = [await Peer.open(address) for _ in range(3)]
        await peers[0].make("t")
        for peer in peers:
            peer.send(Key.PRODUCE, produce("t", packed(batch(random.randbytes(2000)), "zstd")))
        await until(lambda: sum(ANSWERING in one.hold_reasons for one in server.shell.connections) == 3)
        pressure.charge(flood, pressure.total_bytes_max)
        go_on.set()
        answers = [asyncio.create_task(peer.answer()) for peer in peers]
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(prepared) == 1
        pressure.discharge(flood, pressure.total_bytes_max)
        assert [result_of(await answer)["error"] for answer in answers] == [0, 0, 0]

    with_server(test)


def test_a_publish_without_an_answer_that_fails_ends_the_connection() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        peer.send(Key.PRODUCE, produce("none", batch(b"x"), acks=0))
        assert await peer.is_closed()

    with_server(test)


@pytest.mark.usefixtures("replaceable_files")
def test_a_failing_disk_is_a_storage_error_and_reading_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t")
        await peer.produce("t", b"kept")

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(server.log.files, "write", fail)
            for _ in range(2):
                peer.send(Key.PRODUCE, produce("t", batch(b"lost")))
            for _ in range(2):
                found = result_of(await peer.answer())
                assert (found["error"], found["offset"]) == (Code.STORAGE, -1)
        assert (await peer.produce("t", b"again"))["error"] == 0
        records = await peer.records("t")
        assert values(records) == [b"kept", b"again"]
        assert values(await peer.records("t", 2)) == [b"again"], "what follows a gap comes to who asks for it"

    with_server(test)


def test_partitions_are_opened_for_whoever_uses_them_first(tmp_path: Path) -> None:
    async def before(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 3)
        for index in range(3):
            await peer.produce("t", b"old", index=index)

    async def after(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert (await peer.produce("t", b"new", index=0))["offset"] == 2
        assert values(await peer.records("t", index=1)) == [b"old"]
        assert (await peer.offset("t", -1, index=2))["offset"] == 2

    with_server(before, tmp_path)
    with_server(after, tmp_path)
