"""Groups of readers in a running server: sharing, acknowledgement, redelivery, restarts."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest

from engine.errors import NotStored
from netserver.app import Server
from netserver.fujin import codec
from netserver.fujin.codec import PUSH, Answer, Op
from netserver.fujin.codec_answers import Acked, Fetched
from netserver.fujin.groups import OWNER
from tests.echo import until
from tests.fujin_peer import Peer, acknowledge, connect
from tests.fujin_readers import came_on_any, ended, fetched, numbered, pushed, serve


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
