"""Readers' streams in a running server: push and pull."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from netserver.app import Server
from netserver.fujin import codec, groups, reader, writer
from netserver.fujin.codec import PUSH, Answer, Op
from netserver.fujin.codec_answers import Fetched, Message
from netserver.fujin.limits import READ_GRACE_S
from tests.echo import until
from tests.fujin_peer import Peer, Stream, acknowledge
from tests.fujin_readers import ended, fetched, numbered, pushed, seq, serve

# --- push


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("auto", [True, False])
def test_everything_is_pushed_in_order(loop: str, auto: bool) -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(2000))
        reader = await peer.reader(b"t", auto=auto)
        assert await pushed(reader, 2000) == numbered(2000)
        await peer.publish(b"t", *numbered(500, 2000))
        assert await pushed(reader, 500) == numbered(500, 2000)
        counters = server.counters["fujin"]
        assert counters.records_delivered == 2500

    serve(test, loop, push_unacknowledged_max=16_384)


def test_the_answer_to_connect_travels_alone() -> None:
    """What the Go client reads together with it would be lost."""

    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"m")
        packets: list[int] = []
        original = peer._quic.receive_datagram

        def spy(data: bytes, *arguments: Any, **more: Any) -> None:
            before = len(stream.came)
            original(data, *arguments, **more)
            peer._process_events()
            if len(stream.came) != before:
                packets.append(len(stream.came) - before)

        stream = peer.open()
        peer._quic.receive_datagram = spy  # type: ignore[method-assign]
        stream.send(codec.connect_reader(PUSH, True, b"t"))
        await until(lambda: len(stream.came) == 8)
        assert packets == [2, 6]

    serve(test)


class Late:
    """Reads a stream as a program does that has its turn only after its QUIC has acknowledged what came."""

    DELAY_S = 0.8 * READ_GRACE_S
    """Its clock begins before the server's, in the same loop: on a slow machine, too, it reads first."""

    def __init__(self, stream: Stream) -> None:
        self.first: asyncio.Future[bytes] = stream.loop.create_future()
        self._stream = stream
        self._before = stream.peer.quic_event_received
        stream.peer.quic_event_received = self._event  # type: ignore[method-assign]

    def _event(self, event: Any) -> None:
        self._before(event)
        if self._stream.came and not self.first.done():
            self._stream.peer.quic_event_received = self._before  # type: ignore[method-assign]
            self._stream.loop.call_later(self.DELAY_S, self._read)

    def _read(self) -> None:
        self.first.set_result(bytes(self._stream.came))
        self._stream.came.clear()


def test_nothing_is_pushed_before_a_program_can_have_read_the_answer_to_connect() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"m")
        stream = peer.open()
        late = Late(stream)
        stream.send(codec.connect_reader(PUSH, True, b"t"))
        assert await late.first == codec.connected()
        assert await stream.messages(1, auto=True) == [Message(b"", b"m")]

    serve(test)


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_nothing_is_answered_before_a_program_can_have_read_stop(role: str) -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer() if role == "writer" else await peer.puller(b"t")
        stream.send(codec.write(1, b"t", b"m") if role == "writer" else codec.ack(Op.ACK, 1, []))
        answer = await stream.take(6 if role == "writer" else 10)
        (connection,) = server.listeners["fujin"]._connections.values()  # type: ignore[attr-defined]
        late = Late(stream)
        connection.stop()
        stream.send(codec.write(1, b"t", b"m") if role == "writer" else codec.ack(Op.ACK, 1, []))
        assert await late.first == codec.STOP
        assert await stream.take(len(answer)) == answer

    serve(test)


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_who_ends_its_side_after_stop_is_answered_at_once(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reader, writer):
        monkeypatch.setattr(module, "READ_GRACE_S", 60.0)

    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer() if role == "writer" else await peer.puller(b"t")
        command = codec.write(1, b"t", b"m") if role == "writer" else codec.ack(Op.ACK, 1, [])
        stream.send(command)
        answer = await stream.take(6 if role == "writer" else 10)
        (connection,) = server.listeners["fujin"]._connections.values()  # type: ignore[attr-defined]
        connection.stop()
        assert await stream.take(1) == codec.STOP
        stream.send(command + codec.DISCONNECT, fin=True)
        assert await stream.rest() == answer + codec.DISCONNECT

    serve(test)


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_what_came_behind_stop_is_carried_out_before_the_end(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Go client waits ten seconds for an answer that does not come, also when the connection is gone."""
    for module in (reader, writer):
        monkeypatch.setattr(module, "READ_GRACE_S", 60.0)

    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer() if role == "writer" else await peer.puller(b"t")
        command = codec.write(1, b"t", b"m") if role == "writer" else codec.ack(Op.ACK, 1, [])
        stream.send(command)
        answer = await stream.take(6 if role == "writer" else 10)
        (connection,) = server.listeners["fujin"]._connections.values()  # type: ignore[attr-defined]
        (session,) = connection.streams
        connection.stop()
        assert await stream.take(1) == codec.STOP
        stream.send(command)
        await until(lambda: session.pending == len(command))
        connection.end()
        assert await stream.rest() == answer + codec.DISCONNECT

    serve(test)


def test_unacknowledged_pushes_are_bounded() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(30))
        reader = await peer.reader(b"t")
        first = await reader.messages(10)
        await reader.silence(0.1)
        await acknowledge(reader, *(message.message_id for message in first[2:5]))
        assert await pushed(reader, 3) == numbered(3, 10)
        await reader.silence(0.1)

    serve(test, push_unacknowledged_max=10)


def test_a_client_that_does_not_read_costs_no_memory() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *[b"x" * 60_000] * 100)
        peer._quic._local_max_stream_data_bidi_local = 20_000  # what this client grants its own streams
        stuck = peer.open()
        peer._quic._streams[stuck.id].max_stream_data_local = 20_000
        stuck.send(codec.connect_reader(PUSH, True, b"t"))
        await until(lambda: len(stuck.came) > 5000)
        (connection,) = server.listeners["fujin"].endpoint.peers  # type: ignore[attr-defined]
        assert connection.queued_bytes < 600_000
        await peer.publish(b"other", b"goes on")

    serve(test)


def test_records_that_cannot_be_pushed_are_left_out() -> None:
    async def test(server: Server, peer: Peer) -> None:
        topic = server.log.catalog.create(b"t")
        partition = server.log.partition(topic)
        partition.append([b"a", b"", b"x" * 3000, b"b", b""])
        reader = await peer.reader(b"t")
        messages = await reader.messages(2)
        assert [(seq(message), message.value) for message in messages] == [(1, b"a"), (4, b"b")]
        await acknowledge(reader, *(message.message_id for message in messages))
        assert server.counters["fujin"].skipped == {"empty": 2, "too large": 1}
        (cursor,) = server.log.cursors.loaded()
        assert next(iter(cursor.deliveries.runs()))[:2] == (3, 3), "it is not done with"
        puller = await peer.puller(b"t")
        (large,) = await fetched(puller, 10)
        assert (seq(large), len(large.value)) == (3, 3000)
        await acknowledge(puller, large.message_id)
        assert cursor.deliveries.floor == 5
        await ended(puller)

    serve(test, push_bytes_max=2000)


def test_a_fetch_that_waits_gets_what_is_too_large_to_be_pushed(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: Server, peer: Peer) -> None:
        push, puller = await peer.reader(b"t", auto=True), await peer.puller(b"t")
        puller.send(codec.fetch(1, 1))
        await peer.publish(b"t", b"x" * 3000)
        event = await puller.event()
        assert isinstance(event, Fetched)
        assert [len(message.value) for message in event.messages] == [3000]
        await ended(push)

    serve(test, push_bytes_max=2000)


def test_what_is_too_large_to_be_pushed_survives_its_readers_and_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(groups, "LARGE_KEPT_MAX", 2)

    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *(b"%d" % number + b"x" * 3000 for number in range(3)), b"end")
        push = await peer.reader(b"t", auto=True)
        assert [message.value for message in await push.messages(1, auto=True)] == [b"end"]
        await ended(push)
        puller = await peer.puller(b"t")
        assert [message.value[:1] for message in await fetched(puller, 10)] == [b"0", b"1"]

    serve(test, push_bytes_max=2000)
    told = [record.getMessage() for record in caplog.records if "push_bytes_max" in record.getMessage()]
    assert len(told) == 2
    assert "record 1 is larger" in told[0]
    assert "record 3 is larger" in told[1]


def test_who_waits_for_a_new_group_joins_it_though_the_first_reader_has_left() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"m")
        partition = server.log.partition(server.log.catalog.get(b"t"))  # type: ignore[arg-type]
        group = server.listeners["fujin"].shared.group(b"g", partition)  # type: ignore[attr-defined]
        joined: list[object] = []
        done = asyncio.Event()
        group.open("oldest", lambda error: group.leave(object()))

        def second(error: object) -> None:
            joined.append((error, group.next_seq))
            done.set()

        group.open("oldest", second)
        await asyncio.wait_for(done.wait(), 10)
        assert joined == [(None, 1)]

    serve(test)


def test_a_reader_does_not_bring_a_deleted_topic_back() -> None:
    async def test(server: Server, peer: Peer) -> None:
        reader = await peer.reader(b"t")
        topic = server.log.catalog.get(b"t")
        assert topic is not None
        server.log.catalog.delete(topic)
        await reader.rest()
        stream = peer.open(codec.connect_reader(PUSH, True, b"t"))
        assert await stream.rest() == codec.connected("reader not found")
        assert server.log.catalog.get(b"t") is None
        await peer.publish(b"t", b"new")
        assert await pushed(await peer.reader(b"t"), 1) == [b"new"]

    serve(test)


# --- pull


def test_fetch_gives_what_there_is_up_to_its_number() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(7))
        reader = await peer.puller(b"t")
        assert [message.value for message in await fetched(reader, 3)] == numbered(3)
        assert [message.value for message in await fetched(reader, 2**32 - 1)] == numbered(4, 3)

    serve(test)


@pytest.mark.parametrize(
    ("empty", "answer"),
    [("error", Fetched(1, [], "no messages")), ("zero", Fetched(1, [])), ("block", None)],
)
def test_a_fetch_that_finds_nothing(empty: str, answer: Fetched | None) -> None:
    async def test(server: Server, peer: Peer) -> None:
        reader = await peer.puller(b"t")
        started = time.monotonic()
        reader.send(codec.fetch(1, 5))
        if answer is None:
            await reader.silence(0.3)
        else:
            assert await reader.event() == answer
            assert time.monotonic() - started >= 0.19
            reader.send(codec.fetch(1, 5))
        await peer.publish(b"t", b"m")
        event = await reader.event()
        assert isinstance(event, Fetched)
        assert [message.value for message in event.messages] == [b"m"]

    serve(test, fetch_empty=empty, fetch_wait=200)


def test_fetches_wait_in_line_and_their_number_is_bounded() -> None:
    async def test(server: Server, peer: Peer) -> None:
        reader = await peer.puller(b"t")
        reader.send(b"".join(codec.fetch(cid, 1) for cid in range(66)))
        for cid in (64, 65):
            assert await reader.event() == Fetched(cid, [], "too many fetches wait")
        await peer.publish(b"t", *numbered(3))
        for cid in range(3):
            event = await reader.event()
            assert isinstance(event, Fetched)
            assert (event.cid, [message.value for message in event.messages]) == (cid, [b"%d" % cid])
        reader.send(codec.DISCONNECT)
        rest = await reader.rest()
        assert rest == b"".join(codec.done(Answer.FETCH, cid, "reader is closed") for cid in range(3, 64)) + b"\x0a"

    serve(test)


def test_an_answer_to_fetch_has_about_a_mebibyte() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *[b"x" * 60_000] * 40)
        reader = await peer.puller(b"t", auto=True)
        sizes: list[int] = []
        while sum(sizes) < 40:
            sizes.append(len(await fetched(reader, 40, auto=True)))
        assert sizes[0] == 18

    serve(test)
