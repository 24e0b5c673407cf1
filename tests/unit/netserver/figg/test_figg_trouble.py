"""The server's side of a Figg connection when something is wrong: bad input, ends of all kinds, records not stored."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import engine.log
from engine.files.system import Buffer, SystemFiles
from netserver import figg
from netserver.errors import Refused
from netserver.figg import codec, limits, listener_state, subscriber
from netserver.figg.codec import Ack, Attach, Attached, Detach, Detached, Ping, Pong, Publish
from tests.echo import until
from tests.engine_log import EngineLog, segments
from tests.figg_support import WAIT_S, Peer, Place, with_server


def numbered(first: int, *values: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(values, first))


# --- bad input


BAD = {
    "short ping": b"\0\x08\0\1\0\0\0\2\0\0",
    "empty attach": b"\0\1\0\1\0\0\0\0",
    "empty detach": b"\0\3\0\1\0\0\0\0",
    "empty publish": b"\0\5\0\1\0\0\0\0",
    "topic beyond the payload": b"\0\5\0\1\0\0\0\4\xff\xff\xff\xff",
    "topic one too long": b"\0\3\0\1\0\0\0\5\0\0\0\2t",
    "topic above the limit": codec.publish(b"t" * (limits.TOPIC_BYTES_MAX + 1), 0, b"x"),
    "data beyond the payload": codec.publish(b"t", 0, b"x")[:-5] + b"\0\0\0\2x",
    "data 2^32 - 1": codec.publish(b"t", 0, b"x")[:-5] + b"\xff\xff\xff\xffx",
    "payload one above the limit": b"\0\5\0\1" + (limits.FRAME_BYTES_MAX + 1).to_bytes(4),
    "payload 2^32 - 1": b"\0\5\0\1\xff\xff\xff\xff",
    "payload 2^32 - 1 of an unknown type": b"\0\x4d\0\1\xff\xff\xff\xff",
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
def test_a_malformed_frame_ends_its_connection_after_the_answers(raw: bytes) -> None:
    async def test(place: Place) -> None:
        neighbour = await place.peer()
        neighbour.send(Attach(b"t", 0))
        await neighbour.expect(Attached)
        peer = await place.peer()
        peer.publish(b"t", 0, b"one", b"two")
        peer.send(Ping(7), raw, Publish(b"t", 2, b"behind"), Ping(8))
        assert {*await peer.closed_by_server()} == {Pong(7), Ack(1)}
        assert await neighbour.read(b"t", 2) == numbered(1, b"one", b"two")
        await neighbour.silent()
        assert sum(place.server.counters["figg"].protocol_errors.values()) == 1
        assert place.partition(b"t").last_seq == 2

    with_server(test)


SENT_AGAIN = {
    "payload": b"\0\5\0\1" + (limits.FRAME_BYTES_MAX + 1).to_bytes(4),
    "record": codec.publish(b"t", 1, b"x" * 65_537),
    "topic": codec.publish(b"t" * (limits.TOPIC_BYTES_MAX + 1), 1, b"x"),
}


@pytest.mark.parametrize("raw", SENT_AGAIN.values(), ids=SENT_AGAIN)
def test_a_client_that_redials_and_resends_without_pause_is_slowed_down(raw: bytes) -> None:
    """As the original's does with its window: each of its attempts used to end at once, thousands in a second."""

    async def test(place: Place) -> None:
        loop = asyncio.get_running_loop()
        for attempt in range(2):
            peer = await place.peer()
            begun = loop.time()
            peer.publish(b"t", 0, b"%d" % attempt)
            peer.send(raw)
            await peer.acked(0)  # what came before is answered at once
            assert await peer.closed_by_server() == []
            assert loop.time() - begun >= limits.RESENT_S - 0.05
        assert place.partition(b"t").last_seq == 2
        assert sum(place.server.counters["figg"].protocol_errors.values()) == 2

    with_server(test, {"topics": {"record_bytes_max": "64 KiB"}})


def test_a_stop_of_the_server_does_not_wait_for_such_a_connection() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(b"\0\5\0\1\xff\xff\xff\xff")
        await until(lambda: place.server.counters["figg"].protocol_errors == {"frame_size": 1})
        begun = asyncio.get_running_loop().time()
        for connection in tuple(place.server.shell.connections):
            connection.drain()
        assert await peer.closed_by_server() == []
        assert asyncio.get_running_loop().time() - begun < limits.RESENT_S

    with_server(test)


@pytest.mark.parametrize("cut", range(1, len(codec.publish(b"topic", 1, b"value")), 3))
def test_a_frame_cut_off_by_the_end_is_dropped(cut: int) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(Publish(b"topic", 0, b"value"), codec.publish(b"topic", 1, b"value")[:cut])
        peer.writer.write_eof()
        assert await peer.closed_by_server() == [Ack(0)]
        assert place.partition(b"topic").last_seq == 1

    with_server(test)


def test_frames_up_to_the_limit_are_taken_in_any_portions() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(b"\0\x4d\0\1" + limits.FRAME_BYTES_MAX.to_bytes(4))
        for _ in range(16):
            peer.send(bytes(limits.FRAME_BYTES_MAX // 16))
            await peer.writer.drain()
        raw = b"".join(codec.publish(b"t", number, b"%d" % number) for number in range(40)) + codec.ping(9)
        for at in range(0, len(raw), 7):
            peer.send(raw[at : at + 7])
            await asyncio.sleep(0)
        await peer.acked(39)
        assert await peer.history(b"t", 40) == [(n + 1, b"%d" % n) for n in range(40)]

    async def tolerant(place: Place) -> None:
        peer = await place.peer()
        peer.send(b"\0\x4d\0\1" + (64 << 10).to_bytes(4), bytes(64 << 10))
        await peer.silent()
        peer.send(b"\0\x4d\0\1" + ((64 << 10) + 1).to_bytes(4))
        assert await peer.closed_by_server() == []

    async def both(place: Place) -> None:
        peer = await place.peer()
        peer.send(Ping(1))
        assert await peer.next() == Pong(1)
        await tolerant(place)

    with_server(lambda place: _ignoring_pongs(test, place))
    with_server(both, {"figg": {"frame_bytes_max": "64 KiB"}})


async def _ignoring_pongs(test: Any, place: Place) -> None:
    original = Peer.next

    class Quiet(Peer):
        async def next(self) -> codec.Message | None:
            message = await original(self)
            return await original(self) if isinstance(message, Pong) else message

    async def peer() -> Peer:
        place.peers.append(await Quiet.open(*place.address))
        return place.peers[-1]

    place.peer = peer  # type: ignore[method-assign]
    await test(place)


# --- the connection's end


def test_outstanding_acks_follow_a_half_close() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.publish(b"t", 0, *[bytes(1000)] * 5000)
        peer.writer.write_eof()
        answers = await peer.closed_by_server()
        assert answers[-1] == Ack(4999)

    with_server(test)


def test_a_subscriber_that_goes_leaves_nothing_behind() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(Attach(b"t", 0), Attach(b"u"))
        await peer.expect(Attached)
        await peer.expect(Attached)
        partition = place.partition(b"t")
        assert len(partition.readers) == 1
        sessions = [connection.session for connection in place.server.shell.connections]
        peer.abort()
        await until(lambda: not place.server.shell.connections)
        assert not partition.readers
        assert not sessions[0]._shared.frames.subscribers  # type: ignore[attr-defined]

    with_server(test)


def test_drain_answers_what_is_outstanding() -> None:
    async def test(place: Place) -> None:
        peer, reader = await place.peer(), await place.peer()
        reader.send(Attach(b"t", 0))
        await reader.expect(Attached)
        peer.publish(b"t", 0, *[bytes(1000)] * 2000)
        partition = place.partition(b"t")
        await until(lambda: partition.last_seq > 0)
        for connection in tuple(place.server.shell.connections):
            connection.drain()
        answers = await peer.closed_by_server()
        assert answers[-1] == Ack(partition.committed_seq - 1)
        await reader.closed_by_server()

    with_server(test)


# --- records that cannot be stored


class FaultyFiles(SystemFiles):
    """Files of which writing to segments fails while ``code`` is set."""

    code = 0
    free = 0
    failing_sync = False

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        if FaultyFiles.code and position:
            raise OSError(FaultyFiles.code, "no")
        super().write(fd, parts, position)

    def sync_data(self, fd: int) -> None:
        if FaultyFiles.failing_sync:
            raise OSError(errno.EIO, "no")
        super().sync_data(fd)

    def free_bytes(self, path: Path) -> int:
        return FaultyFiles.free


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> type[FaultyFiles]:
    FaultyFiles.code = FaultyFiles.free = 0
    FaultyFiles.failing_sync = False
    monkeypatch.setattr(engine.log, "SystemFiles", FaultyFiles)
    return FaultyFiles


def test_a_full_disk_acknowledges_nothing_keeps_the_connection_and_asks_for_a_resend(faulty: type[FaultyFiles]) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.publish(b"t", 0, b"stored")
        await peer.acked(0)
        faulty.code = errno.ENOSPC
        peer.publish(b"t", 1, b"one")
        await until(lambda: place.partition(b"t").last_seq == 2 and not place.server.log.pending_bytes)
        peer.publish(b"t", 2, b"two")
        peer.publish(b"other", 3, b"three")
        await peer.silent()  # open, alive, and without an ACK
        assert await peer.history(b"t", 1) == [(1, b"stored")]
        faulty.code, faulty.free = 0, 1 << 30
        assert await peer.closed_by_server() == []
        again = await place.peer()
        again.publish(b"t", 1, b"one", b"two")
        again.publish(b"other", 3, b"three")
        await again.acked(3)
        assert [value for _, value in await again.history(b"t", 3)] == [b"stored", b"one", b"two"]

    with_server(test)


def test_a_read_only_topic_keeps_its_publishers_waiting(faulty: type[FaultyFiles]) -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        peer.publish(b"t", 0, b"stored")
        other.publish(b"u", 0, b"before")
        await peer.acked(0)
        await other.acked(0)
        faulty.failing_sync = True
        peer.publish(b"t", 1, b"lost")
        await until(lambda: place.partition(b"t").error is not None)
        faulty.failing_sync, faulty.free = False, 1 << 30
        other.publish(b"u", 1, b"behind")
        await other.acked(1)
        (session,) = [c.session for c in place.server.shell.connections if c.session._refused]  # type: ignore[attr-defined]
        shared = session._shared  # type: ignore[attr-defined]
        (refusal,) = shared._refusals.values()
        assert not shared._may_store(refusal, refusal.since + 1000)
        await peer.silent()
        assert await peer.history(b"t", 1) == [(1, b"stored")]

    with_server(test)


def test_numbers_below_a_failed_one_are_acknowledged_and_none_above() -> None:
    """The rule alone, with the outcome of rounds given: 1-3 stored, 4-6 not, 7-9 stored."""

    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.silent()
        (connection,) = place.server.shell.connections
        session: Any = connection.session
        partition = place.server.log.partition(place.server.log.catalog.get_or_create(b"t"))
        problems = None, OSError("no"), None
        session._released(
            [((first, first + 2, partition), problem) for first, problem in zip((1, 4, 7), problems, strict=True)]
        )
        assert await peer.next() == Ack(3)
        session._released([((2, 2, partition), None)])
        await peer.silent()

    with_server(test)


# --- topics that cannot be read


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which the files of topic "lost" are gone, those of "kept" are not."""
    monkeypatch.setattr(listener_state, "UNREADABLE_S", 0.3)
    monkeypatch.setattr(subscriber, "UNANSWERED_S", 0.1)
    with EngineLog(tmp_path / "data") as log:
        log.append([b"gone"], topic="lost")
        log.append([b"here"], topic="kept")
    for path in segments(tmp_path / "data", topic_id=1):
        path.unlink()
    return tmp_path / "data"


def test_a_subscription_of_a_topic_that_cannot_be_opened_ends_its_connection(offline: Path) -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        peer.send(Attach(b"lost", 0))
        assert await peer.closed_by_server() == []
        peer.abort()
        await until(lambda: dict(place.server.counters["figg"].closed) == {"unreadable": 1})
        assert await other.history(b"kept", 1) == [(1, b"here")]
        gone = await place.peer()
        gone.send(Attach(b"lost", 0), Detach(b"lost"))
        await gone.expect(Detached)
        await asyncio.sleep(0.5)
        gone.send(Ping(1))
        assert await gone.next() == Pong(1), "who has detached is left alone"

    with_server(test, data_dir=offline)


def test_a_client_learns_that_a_topic_cannot_be_read(offline: Path) -> None:
    """Only that subscription ends; the others of the client go on."""

    async def test(place: Place) -> None:
        host, port = place.address
        async with (
            figg.connect(f"{host}:{port}", backoff=lambda failures: 0.001) as client,
            client.subscribe("kept", start=figg.EARLIEST) as kept,
        ):
            with pytest.raises(Refused, match="its log tells why"):
                await client.subscribe("lost", start=figg.EARLIEST)
            await client.publish("kept", b"more")
            assert [(await kept.next(WAIT_S)).value for _ in range(2)] == [b"here", b"more"]

    with_server(test, data_dir=offline)


def test_a_subscription_of_a_topic_that_is_not_there_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_state, "UNREADABLE_S", 0.1)

    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(Attach(b"later", 0))
        await peer.silent()
        await asyncio.sleep(0.3)
        place.server.log.catalog.create(b"later")
        assert await peer.expect(Attached) == Attached(b"later", 0)

    with_server(test, {"topics": {"auto_create": False}})


def test_a_socket_that_only_connects_is_left_alone() -> None:
    async def test(place: Place) -> None:
        idle = socket.create_connection(place.address, timeout=WAIT_S)
        peer = await place.peer()
        peer.publish(b"t", 0, b"x")
        await peer.acked(0)
        idle.close()

    with_server(test)
