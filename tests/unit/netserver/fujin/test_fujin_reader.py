"""Readers' streams and groups in a running server: push, pull, acknowledgement, redelivery, restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.errors import NotStored
from netserver.app import Server
from netserver.fujin import codec, groups
from netserver.fujin.codec import PUSH, Answer, Op
from netserver.fujin.codec_answers import Acked, Fetched, Message
from netserver.fujin.groups import OWNER
from netserver.fujin.limits import READ_GRACE_S
from netserver.testing import running
from tests.echo import run, until
from tests.fujin_peer import Peer, Stream, acknowledge, connect

Test = Callable[[Server, Peer], Awaitable[None]]
ALONE = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably")}


def serve(
    test: Test, loop: str = "asyncio", topics: dict[str, Any] | None = None, data: Path | None = None, **settings: Any
) -> None:
    async def main() -> None:
        async with running(data, settings={**ALONE, "topics": topics or {}, "fujin": settings}) as server:
            address = server.addresses["fujin"]
            async with connect((address.host, address.port)) as peer:
                await test(server, peer)

    run(loop, main())


def seq(message: Message) -> int:
    found = codec.parse_message_id(message.message_id)
    assert found is not None
    assert found[0] == 0
    return found[1]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def fetched(stream: Stream, limit: int, *, auto: bool = False) -> list[Message]:
    stream.send(codec.fetch(1, limit))
    event = await stream.event(auto=auto)
    assert isinstance(event, Fetched), event
    assert event.error is None, event.error
    return event.messages


async def pushed(stream: Stream, count: int) -> list[bytes]:
    return [message.value for message in await stream.messages(count)]


def came_on_any(streams: list[Stream]) -> bool:
    return any(stream.came for stream in streams)


async def ended(stream: Stream) -> None:
    """Disconnect in good order; messages may still be on their way."""
    stream.send(codec.DISCONNECT)
    assert (await stream.rest())[-1:] == codec.DISCONNECT


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


# --- groups


def test_readers_of_a_group_share_and_groups_do_not() -> None:
    async def test(server: Server, peer: Peer) -> None:
        first, second = await peer.reader(b"t"), await peer.reader(b"t")
        other = await peer.puller(b"audit")
        await peer.publish(b"t", *numbered(40))
        assert [message.value for message in await fetched(other, 99)] == numbered(40)
        mine, yours = await pushed(first, 20), await pushed(second, 20)
        assert sorted(mine + yours, key=int) == numbered(40)

    serve(test, push_unacknowledged_max=20, readers={"audit": {"topic": "t", "group": "audit"}})


@pytest.mark.parametrize("how", ["disconnect", "fin", "reset", "stop", "close"])
def test_what_a_reader_held_is_delivered_to_another_when_it_ends(how: str) -> None:
    async def test(server: Server, peer: Peer) -> None:
        address = server.addresses["fujin"]
        await peer.publish(b"t", *numbered(10))
        async with connect((address.host, address.port)) as other:
            leaving = await other.reader(b"t")
            messages = await leaving.messages(10)
            await acknowledge(leaving, messages[0].message_id, messages[4].message_id)
            reader = await peer.reader(b"t")
            await reader.silence(0.1)
            if how == "disconnect":
                await ended(leaving)
            elif how == "fin":
                leaving.send(b"", fin=True)
            elif how == "reset":
                leaving.reset()
            elif how == "stop":
                leaving.stop()
            else:
                other.close()
            left = [b"%d" % number for number in range(10) if number not in (0, 4)]
            assert await pushed(reader, 8) == left, "in order, and nothing that was acknowledged"

    serve(test)


def test_nobody_holds_what_was_delivered_before_a_reset() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(3))
        first = await peer.reader(b"t")
        assert await pushed(first, 3) == numbered(3)
        (cursor,) = server.log.cursors.loaded()
        cursor.reset(0)
        assert await pushed(first, 3) == numbered(3), "its window is empty again, though it acknowledged nothing"
        await peer.publish(b"t", b"3")
        second = await peer.reader(b"t")
        assert await pushed(second, 1) == [b"3"]
        cursor.reset(0)
        assert await pushed(second, 3) == numbered(3)
        assert await pushed(first, 1) == [b"3"]
        third = await peer.reader(b"t")
        await ended(first)
        assert await pushed(third, 1) == [b"3"], "what the first was given before is the second's"

    serve(test, push_unacknowledged_max=3)


def test_automatic_acknowledgement_delivers_once() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(10))
        for _ in range(2):
            reader = await peer.puller(b"t", auto=True)
            assert len(await fetched(reader, 5, auto=True)) == 5
            await ended(reader)
        reader = await peer.puller(b"t", auto=True)
        reader.send(codec.fetch(1, 5))
        assert await reader.event() == Fetched(1, [], "no messages")

    serve(test, fetch_wait=50)


def test_positions_survive_a_restart(tmp_path: Path) -> None:
    async def first(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(10))
        reader = await peer.puller(b"t")
        messages = await fetched(reader, 6)
        await acknowledge(reader, *(message.message_id for message in messages if message.value != b"2"))

    async def second(server: Server, peer: Peer) -> None:
        reader = await peer.puller(b"t")
        assert [message.value for message in await fetched(reader, 99)] == [b"2", *numbered(4, 6)]

    serve(first, data=tmp_path)
    serve(second, data=tmp_path)


@pytest.mark.parametrize(
    ("start", "expected"),
    [("oldest", 0), ("newest", 6), ("4", 3), ("0", 0), ("99", 6), ("@1", 0)],
)
def test_where_a_new_group_begins(start: str, expected: int) -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(6))
        reader = await peer.puller(b"r")
        await peer.publish(b"t", b"6")
        assert [message.value for message in await fetched(reader, 99)] == numbered(7 - expected, expected)
        await ended(reader)
        again = await peer.puller(b"r")
        assert [message.value for message in await fetched(again, 99)] == numbered(7 - expected, expected), "not new"

    serve(test, readers={"r": {"topic": "t", "start": start}})


def test_a_group_of_a_deleted_topic_is_gone() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"m")
        push, pull = await peer.reader(b"t"), await peer.puller(b"t")
        assert await pushed(push, 1) == [b"m"]
        pull.send(codec.fetch(1, 1))
        topic = server.log.catalog.get(b"t")
        assert topic is not None
        server.log.catalog.delete(topic)
        assert await push.rest() == codec.connected("the topic was deleted") + codec.DISCONNECT
        assert await pull.event() == Fetched(1, [], "the topic was deleted")
        await peer.publish(b"t", b"of the new one")
        reader = await peer.reader(b"t")
        assert await pushed(reader, 1) == [b"of the new one"]

    serve(test)


def test_a_partition_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    async def fill(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"m")

    async def test(server: Server, peer: Peer) -> None:
        stream = peer.open(codec.connect_reader(PUSH, True, b"t"))
        rest = await stream.rest()
        assert rest.startswith(b"\x01\x01")
        assert b"no segment files, but records 1 to 1 were committed" in rest
        writer = peer.writer()
        writer.send(codec.write(1, b"t", b"x"))
        answer = await writer.event()
        assert "no segment files, but records 1 to 1 were committed" in str(answer)

    serve(fill, data=tmp_path)
    for path in (tmp_path / "topics").rglob("*.log"):
        path.unlink()
    serve(test, data=tmp_path)


def test_a_read_error_is_told_to_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"m")
        push, pull = await peer.reader(b"t"), await peer.puller(b"t")
        assert await pushed(push, 1) == [b"m"]
        pull.send(codec.fetch(1, 1))
        await peer.publish(b"other", b"all is read")

        def broken(*_: object) -> None:
            raise NotStored("the disk is broken")

        with monkeypatch.context() as patched:
            (group,) = server.listeners["fujin"].shared.groups.values()  # type: ignore[attr-defined]

            class Cursor:
                alive = True
                next = staticmethod(broken)
                give_back = forget = staticmethod(lambda *_: None)
                pins = 0

            patched.setattr(group, "_cursor", Cursor())
            group.deal()
            assert await pull.event() == Fetched(1, [], "the disk is broken")
            assert await push.rest() == codec.connected("the disk is broken") + codec.DISCONNECT

    serve(test)


# --- ACK and NACK


def test_acknowledgements_from_another_stream_of_the_group() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(8))
        first, second = await peer.reader(b"t"), await peer.puller(b"t")
        messages = await first.messages(4)
        await acknowledge(second, *(message.message_id for message in messages))
        assert await pushed(first, 4) == numbered(4, 4), "its window is free again"

    serve(test, push_unacknowledged_max=4)


def test_results_of_ids() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(4))
        reader = await peer.reader(b"t")
        messages = await reader.messages(3)
        ids = [message.message_id for message in messages]
        assert await acknowledge(reader, *ids[:2]) == Acked(Answer.ACK, 7, [(ids[0], None), (ids[1], None)])
        assert await pushed(reader, 1) == [b"3"]
        odd = [ids[0], b"", b"x" * 1024, codec.message_id(0, 9), codec.message_id(1, 1), codec.message_id(0, 0), ids[2]]
        answer = await acknowledge(reader, *odd, op=Op.NACK)
        assert isinstance(answer, Acked)
        assert answer.results == [
            (odd[0], None),
            *((one, "invalid message id") for one in odd[1:6]),
            (odd[6], None),
        ]
        assert await pushed(reader, 1) == [b"2"], "acknowledged is acknowledged, and the other one comes again"

    serve(test, push_unacknowledged_max=3, nack_delay=150)


@pytest.mark.parametrize(("delay_ms", "least_s"), [(0, 0.0), (300, 0.3)])
def test_a_nack_brings_a_message_again_after_the_delay(delay_ms: int, least_s: float) -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"a", b"b")
        reader = await peer.reader(b"t")
        first, _ = await reader.messages(2)
        started = time.monotonic()
        await acknowledge(reader, first.message_id, op=Op.NACK)
        (again,) = await reader.messages(1)
        assert again == first
        assert time.monotonic() - started >= least_s

    serve(test, nack_delay=delay_ms)


def test_what_is_not_acknowledged_in_time_goes_to_another_reader() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"m")
        sleeping = await peer.reader(b"t")
        (message,) = await sleeping.messages(1)
        reader = await peer.reader(b"t")
        assert await reader.messages(1) == [message]
        await acknowledge(reader, message.message_id)
        await peer.publish(b"t", *numbered(2))
        assert await pushed(sleeping, 1), "its window is free again"

    serve(test, ack_timeout=200, push_unacknowledged_max=1)


def test_dead_letters() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"bad")
        reader, dead = await peer.reader(b"t"), await peer.reader(b"t.dead", auto=True)
        for _ in range(2):
            (message,) = await reader.messages(1)
            await acknowledge(reader, message.message_id, op=Op.NACK)
        assert await pushed(dead, 1) == [b"bad"]

    serve(test, nack_delay=0, deliveries_max=2, dead_letter_suffix=".dead")


def test_synced_acknowledgements_are_on_disk() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(3))
        reader = await peer.puller(b"t")
        ids = [message.message_id for message in await fetched(reader, 3)]
        reader.send(codec.ack(Op.ACK, 1, ids) + codec.DISCONNECT)
        rest = await reader.rest()
        assert rest == codec.acked(Answer.ACK, 1, 3, b"".join(map(codec.result, ids))) + codec.DISCONNECT
        (entry,) = (entry for entry in server.log.cursors.entries() if entry.owner == OWNER)
        assert entry.deliveries == [4]

    serve(test, acks="synced")


def test_names_of_readers() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.open(codec.connect_reader(PUSH, True, b"nosuch"))
        assert await stream.rest() == codec.connected("reader not found")
        server.log.catalog.create(b"orders")
        await peer.publish(b"orders", b"m")
        reader = await peer.puller(b"r", auto=True)
        assert [message.value for message in await fetched(reader, 1, auto=True)] == [b"m"]
        missing = peer.open(codec.connect_reader(PUSH, True, b"broken"))
        assert await missing.rest() == codec.connected("reader not found")

    serve(test, topics={"auto_create": False}, readers={"r": {"topic": "orders"}, "broken": {"topic": "nosuch"}})


def test_where_only_publishing_makes_topics_a_mistyped_reader_is_refused() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.open(codec.connect_reader(PUSH, True, b"orders"))
        assert await stream.rest() == codec.connected("reader not found")
        assert server.log.catalog.get(b"orders") is None
        await peer.publish(b"orders", b"m")
        assert await peer.puller(b"orders", auto=True)

    serve(test, topics={"auto_create_by_readers": False})


def test_the_error_and_the_end_travel_apart() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.open(codec.connect_reader(PUSH, True, b"nosuch"))
        expected = codec.connected("reader not found")
        assert await stream.take(len(expected)) == expected
        assert not stream.ended
        assert await stream.rest() == b""

    serve(test, topics={"auto_create": False})


def test_many_readers_come_and_go() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", *numbered(200))
        for _ in range(20):
            readers = [await peer.reader(b"t") for _ in range(3)]
            await until(partial(came_on_any, readers))
            await asyncio.gather(*(ended(reader) for reader in readers))
        reader = await peer.reader(b"t")
        assert sorted(await pushed(reader, 200), key=int) == numbered(200)
        assert server.listeners["fujin"].shared.groups  # type: ignore[attr-defined]
        await ended(reader)
        assert not server.listeners["fujin"].shared.groups  # type: ignore[attr-defined]
        (cursor,) = server.log.cursors.loaded()
        assert cursor.pins == 0

    serve(test)
