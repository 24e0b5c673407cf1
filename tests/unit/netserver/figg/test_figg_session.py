"""The server's side of a Figg connection, over real sockets, on a real log."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from netserver.figg import session as figg_session
from netserver.figg.codec import Ack, Attach, Attached, Data, Detach, Detached, Ping, Pong, Publish
from netserver.figg.limits import FRAMES_BYTES
from tests.echo import until
from tests.figg_support import Place, with_server

MB = 1 << 20


def numbered(first: int, *values: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(values, first))


# --- publishing


def test_one_ack_covers_a_run_and_names_its_highest_number() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(*(Publish(b"t", number, b"%d" % number) for number in (3, 9, 4)))
        assert await peer.expect(Ack) == Ack(9)
        await peer.silent()
        assert await peer.history(b"t", 3) == numbered(1, b"3", b"9", b"4")

    with_server(test)


def test_an_ack_comes_after_the_commit() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        for number in range(20):
            peer.send(Publish(b"t", number, b"x"))
            assert await peer.expect(Ack) == Ack(number)
            assert place.partition(b"t").committed_seq == number + 1

    with_server(test)


def test_publishes_to_many_topics_by_turns() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(*(Publish(b"t%d" % (number % 5), number, b"%d" % number) for number in range(500)))
        await peer.acked(499)
        for topic in range(5):
            values = [b"%d" % number for number in range(topic, 500, 5)]
            assert await peer.history(b"t%d" % topic, 100) == numbered(1, *values)

    with_server(test)


def test_a_lower_number_that_is_pending_holds_up_the_ack() -> None:
    """A cumulative ACK of 10 would also acknowledge the 5 that is not stored yet."""

    async def test(place: Place) -> None:
        peer = await place.peer()
        values = [b"x" * 1000] * 3000  # more than one round
        peer.send(*(Publish(b"t", 10_000 - number, value) for number, value in enumerate(values)))
        first = await peer.expect(Ack)
        assert first == Ack(10_000)
        assert place.partition(b"t").committed_seq == 3000

    with_server(test)


def test_many_small_runs_are_counted_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        (connection,) = place.server.shell.connections
        charge, charges = connection.charge, []
        monkeypatch.setattr(connection, "charge", lambda size, records=0: (charges.append(size), charge(size, records)))
        peer.send(*(Publish(b"ab"[number % 2 : number % 2 + 1], number, b"") for number in range(3000)))
        while await peer.next() != Ack(2999):
            pass
        assert any(charges)
        assert (connection.charged, place.server.shell.pressure.total) == (0, 0)
        charges.clear()
        peer.send(*(Publish(b"ab"[number % 2 : number % 2 + 1], number, b"") for number in range(3000)))
        await until(lambda: any(charges))
        await peer.close()
        await until(lambda: not place.server.log.pending_bytes and not place.server.shell.connections)
        assert place.server.shell.pressure.total == 0

    with_server(test)


def test_a_large_record_and_many_small_ones() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        large = bytes(range(256)) * 4096 * 14
        small = [b"%d" % number for number in range(20_000)]
        peer.publish(b"t", 0, b"first", large, *small)
        await peer.acked(20_001)
        assert await peer.history(b"t", 20_002) == numbered(1, b"first", large, *small)

    with_server(test)


def test_a_record_above_the_topics_limit_ends_the_connection_only() -> None:
    async def test(place: Place) -> None:
        peer, neighbour = await place.peer(), await place.peer()
        peer.publish(b"t", 0, b"before", b"x" * 65_537, b"behind")
        assert await peer.closed_by_server() == [Ack(0)]
        neighbour.publish(b"t", 0, b"x" * 65_536)
        await neighbour.acked(0)
        assert await neighbour.history(b"t", 2) == numbered(1, b"before", b"x" * 65_536)
        assert place.server.counters["figg"].protocol_errors == {"record_size": 1}

    with_server(test, {"topics": {"record_bytes_max": "64 KiB"}})


def test_publishes_to_a_topic_that_must_be_opened_first(tmp_path: Path) -> None:
    async def first(place: Place) -> None:
        peer = await place.peer()
        peer.publish(b"a", 0, b"1", b"2")
        peer.publish(b"b", 2, b"3")
        await peer.acked(2)

    async def second(place: Place) -> None:
        peer = await place.peer()
        assert not place.partition(b"a").is_open
        peer.send(Attach(b"a"), Publish(b"a", 0, b"4"), Ping(1), Publish(b"b", 1, b"5"), Attach(b"b", 0))
        seen: list[Any] = []
        while len(seen) < 6:
            message = await peer.next()
            if not isinstance(message, Ack):
                seen.append(message)
        assert [message for message in seen if not isinstance(message, Pong) and message.topic == b"a"] == [
            Attached(b"a", 2),
            Data(b"a", 3, b"4"),
        ]
        assert [message for message in seen if not isinstance(message, Pong) and message.topic == b"b"][1:] == [
            Data(b"b", 1, b"3"),
            Data(b"b", 2, b"5"),
        ]

    with_server(first, data_dir=tmp_path)
    with_server(second, data_dir=tmp_path)


# --- subscribing


@pytest.mark.parametrize(
    ("offset", "position"),
    [(None, 5), (0, 0), (1, 1), (4, 4), (5, 5), (6, 5), (1000, 5), (2**64 - 1, 5)],
)
def test_positions(offset: int | None, position: int) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        values = [b"%d" % number for number in range(1, 6)]
        peer.publish(b"t", 0, *values)
        await peer.acked(4)
        peer.send(Attach(b"t", offset))
        assert await peer.expect(Attached) == Attached(b"t", position)
        assert await peer.read(b"t", 5 - position) == numbered(position + 1, *values[position:])
        peer.publish(b"t", 5, b"live")
        assert await peer.read(b"t", 1) == [(6, b"live")]

    with_server(test)


def test_an_expired_position_becomes_the_oldest_record() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        for number in range(40):
            peer.publish(b"t", number, b"%d" % number + bytes(10_000))
            await peer.acked(number)
        partition = place.partition(b"t")
        place.server.log.housekeeping.clean()
        await until(lambda: partition.log_start > 1)
        start = partition.log_start
        peer.send(Attach(b"t", 0))
        assert await peer.expect(Attached) == Attached(b"t", start - 1)
        found = await peer.read(b"t", 41 - start)
        assert [(seq, value.rstrip(b"\0")) for seq, value in found] == [
            (n + 1, b"%d" % n) for n in range(start - 1, 40)
        ]

    with_server(test, {"topics": {"segment_bytes": "64 KiB", "retention_bytes": "128 KiB"}})


def test_empty_and_new_topics() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(Attach(b"new", 17), Attach(b""))
        assert [await peer.next(), await peer.next()] == [Attached(b"new", 0), Attached(b"", 0)]
        peer.publish(b"", 0, b"")
        assert await peer.read(b"", 1) == [(1, b"")]

    with_server(test)


def test_history_becomes_live_without_gap_or_double() -> None:
    async def test(place: Place) -> None:
        publisher = await place.peer()
        total = 8_000

        async def publish() -> None:
            for number in range(0, total, 100):
                publisher.publish(b"t", number, *(b"%d" % n for n in range(number, number + 100)))
                await publisher.acked(number + 99)

        async def follow(delay: int) -> None:
            await until(lambda: place.server.log.catalog.get(b"t") and place.partition(b"t").committed_seq >= delay)
            peer = await place.peer()
            assert await peer.history(b"t", total) == [(n + 1, b"%d" % n) for n in range(total)]

        await asyncio.gather(publish(), *(follow(delay) for delay in (1, 1_200, 4_444, 7_900)))

    with_server(test)


def test_latest_misses_nothing_that_is_published_behind_it() -> None:
    async def test(place: Place) -> None:
        publisher = await place.peer()
        for number in range(50):
            peer = await place.peer()
            publisher.publish(b"t", 2 * number, b"before")
            await publisher.acked(2 * number)
            peer.send(Attach(b"t"))
            attached = await peer.expect(Attached)
            publisher.publish(b"t", 2 * number + 1, b"behind %d" % number)
            assert await peer.read(b"t", 1) == [(attached.offset + 1, b"behind %d" % number)]
            await publisher.acked(2 * number + 1)
            await peer.close()

    with_server(test)


def test_another_attach_seeks() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        values = [b"%d" % number for number in range(10)]
        peer.publish(b"t", 0, *values)
        await peer.acked(9)
        assert await peer.history(b"t", 10) == numbered(1, *values)
        assert await peer.history(b"t", 3, 7) == numbered(8, *values[7:])
        peer.publish(b"t", 10, b"once")
        answers = [await peer.next(), await peer.next()]
        assert Ack(10) in answers
        assert Data(b"t", 11, b"once") in answers
        await peer.silent()

    with_server(test)


def test_no_data_behind_detached() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.publish(b"t", 0, *[bytes(10_000)] * 1000)
        await peer.acked(999)
        peer.send(Attach(b"t", 0))
        await peer.read_attached()
        peer.send(Detach(b"t"), Attach(b"t", 998), Detach(b"t"), Detach(b"other"))
        seen: list[object] = []
        while True:
            message = await peer.next()
            if isinstance(message, Data):
                assert not seen
            else:
                seen.append(message)
            if message == Detached(b"other"):
                break
        assert seen == [Detached(b"t"), Attached(b"t", 998), Detached(b"t"), Detached(b"other")]
        await peer.silent()

    with_server(test)


def test_detach_and_attach_in_a_row() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.publish(b"t", 0, b"1", b"2")
        await peer.acked(1)
        peer.send(Attach(b"t", 0))
        await peer.expect(Attached)
        await peer.read(b"t", 2)
        peer.send(Detach(b"t"), Attach(b"t", 0))
        expected = [Detached(b"t"), Attached(b"t", 0), Data(b"t", 1, b"1"), Data(b"t", 2, b"2")]
        assert [await peer.next() for _ in range(4)] == expected

    with_server(test)


def test_subscriptions_of_one_connection_take_turns() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        for topic in (b"a", b"b", b"c"):
            peer.publish(topic, 0, *[bytes(10_000)] * 500)
            await peer.acked(499)
        peer.send(Attach(b"a", 0), Attach(b"b", 0), Attach(b"c", 0))
        counts: dict[bytes, int] = dict.fromkeys((b"a", b"b", b"c"), 0)
        while sum(counts.values()) < 600:
            message = await peer.next()
            if isinstance(message, Data):
                counts[message.topic] += 1
        assert min(counts.values()) > 100, counts

    with_server(test)


def test_pong_passes_a_long_history() -> None:
    """What is on its way is some MB of socket buffers; the rest of the 40 MB comes behind the answer."""

    async def test(place: Place) -> None:
        peer = await place.peer()
        for first in range(0, 400, 100):
            peer.publish(b"t", first, *[bytes(100_000)] * 100)
            await peer.acked(first + 99)
        peer.send(Attach(b"t", 0))
        await peer.expect(Attached)
        peer.send(Ping(1), Attach(b"other"))
        seen = [await peer.next() for _ in range(402)]
        assert seen.index(Pong(1)) < seen.index(Attached(b"other", 0)) < 250

    with_server(test)


def test_a_reader_that_does_not_read_costs_little_and_holds_up_nobody() -> None:
    async def test(place: Place) -> None:
        stalled, live, publisher = await place.peer(), await place.peer(), await place.peer()
        stalled.send(Attach(b"t", 0))
        live.send(Attach(b"t", 0))
        await live.expect(Attached)
        await stalled.expect(Attached)
        stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
        values = [b"%d" % number + bytes(50_000) for number in range(1000)]

        async def publish() -> None:
            for number, value in enumerate(values):
                publisher.publish(b"t", number, value)
            await publisher.acked(999)

        _, found = await asyncio.gather(publish(), live.read(b"t", 1000))
        assert found == numbered(1, *values)
        waiting = [connection.output_bytes() for connection in place.server.shell.connections]
        assert max(waiting) <= 1 * MB
        stalled.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await stalled.read(b"t", 1000) == numbered(1, *values)

    with_server(test)


def test_subscribers_at_one_place_share_the_same_bytes() -> None:
    async def test(place: Place) -> None:
        peers = [await place.peer() for _ in range(20)]
        for peer in peers:
            peer.send(Attach(b"t"))
            await peer.expect(Attached)
        publisher = await place.peer()
        for number in range(50):
            publisher.publish(b"t", number, b"%d" % number)
            await publisher.acked(number)
        for peer in peers:
            assert await peer.read(b"t", 50) == [(n + 1, b"%d" % n) for n in range(50)]
        counters = place.server.counters["figg"]
        assert counters.records_delivered == 1000
        shared = next(iter(place.server.shell.connections)).session._shared.frames  # type: ignore[attr-defined]
        assert shared.hits >= 900
        for peer in peers:
            await peer.close()
        await until(lambda: not shared.subscribers)

    with_server(test)


def test_records_that_fit_no_frame_are_left_out_and_counted(tmp_path: Path) -> None:
    async def write(place: Place) -> None:
        peer = await place.peer()
        peer.publish(b"t", 0, b"1", bytes(70_000), b"3")
        await peer.acked(2)

    async def read(place: Place) -> None:
        peer = await place.peer()
        assert await peer.history(b"t", 2) == [(1, b"1"), (3, b"3")]
        assert place.server.counters["figg"].skipped == {"too_large": 1}

    with_server(write, data_dir=tmp_path)
    with_server(read, {"figg": {"frame_bytes_max": "64 KiB"}}, tmp_path)


def test_damaged_records_are_passed_over_and_counted(tmp_path: Path) -> None:
    async def write(place: Place) -> None:
        peer = await place.peer()
        for number in range(30):
            peer.publish(b"t", number, b"%d" % number + bytes(3000))
            await peer.acked(number)

    async def read(place: Place) -> None:
        peer = await place.peer()
        found = await peer.history(b"t", 29)
        lost = set(range(1, 31)) - {seq for seq, _ in found}
        assert len(lost) == 1
        assert place.server.counters["figg"].skipped == {"damaged": 1}

    with_server(write, data_dir=tmp_path)
    (segment,) = tmp_path.rglob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"12" + bytes(3000)) + 100] ^= 1
    segment.write_bytes(content)
    with_server(read, data_dir=tmp_path)


# --- topics that come and go


def test_without_auto_create_a_subscription_waits_for_its_topic() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(Attach(b"t", 0))
        await peer.silent()
        place.server.log.catalog.create(b"t")
        assert await peer.expect(Attached) == Attached(b"t", 0)
        peer.publish(b"t", 0, b"x")
        assert await peer.read(b"t", 1) == [(1, b"x")]

    with_server(test, {"topics": {"auto_create": "false"}})


def test_where_only_publishing_makes_topics_a_subscription_waits_for_its_topic() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(Attach(b"t", 0))
        await peer.silent()
        assert place.server.log.catalog.get(b"t") is None
        peer.publish(b"t", 0, b"x")
        assert await peer.expect(Attached) == Attached(b"t", 0)
        assert await peer.read(b"t", 1) == [(1, b"x")]

    with_server(test, {"topics": {"auto_create_by_readers": "false"}})


def test_a_deleted_topic_stays_away_until_somebody_publishes() -> None:
    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        publisher.publish(b"t", 0, b"old")
        await publisher.acked(0)
        assert await peer.history(b"t", 1) == [(1, b"old")]
        catalog = place.server.log.catalog
        old = catalog.get(b"t")
        assert old is not None
        catalog.delete(old)
        await until(lambda: catalog.get(b"t") is None)
        await peer.silent()
        assert catalog.get(b"t") is None
        publisher.publish(b"t", 1, b"new")
        await publisher.acked(1)
        assert await peer.next() == Attached(b"t", 0), "its numbers begin again"
        assert await peer.read(b"t", 1) == [(1, b"new")]
        assert catalog.get(b"t") is not old

    with_server(test)


def test_history_is_sent_in_turns_that_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small records are many to pass over for each portion: beside the bytes of a turn its time counts."""
    monkeypatch.setattr(figg_session, "COSTLY_S", 0.0)
    count = 60_000

    async def test(place: Place) -> None:
        publisher = await place.peer()
        publisher.send(*(Publish(b"t", number, b"") for number in range(count)))
        await publisher.acked(count - 1)
        before = set(place.server.shell.connections)
        peer = await place.peer()
        (connection,) = set(place.server.shell.connections) - before
        turn, portions = 0, Counter[int]()
        write, loop = connection.write, asyncio.get_running_loop()

        def tick() -> None:
            nonlocal turn
            turn += 1
            if portions.total() < 6:
                loop.call_soon(tick)

        def noted(data: bytes) -> None:
            portions[turn] += len(data) > FRAMES_BYTES // 2
            write(data)

        monkeypatch.setattr(connection, "write", noted)
        tick()
        assert len(await peer.history(b"t", count)) == count
        assert max(portions.values()) == 1

    with_server(test)


@pytest.mark.parametrize("how", ["close", "eof", "drain"])
def test_very_many_subscriptions_end_in_turns(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    count = 200

    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(*(Attach(b"t-%d" % number, 0) for number in range(count)))
        for _ in range(count):
            await peer.expect(Attached)
        (connection,) = place.server.shell.connections
        subscribers = connection.session._shared.frames.subscribers  # type: ignore[attr-defined]
        left = [len(subscribers)]
        assert left == [count]
        if how == "close":
            peer.writer.transport.abort()
        elif how == "eof":
            peer.writer.write_eof()
        else:
            connection.drain()
        while left[-1]:
            await asyncio.sleep(0)
            left.append(len(subscribers))
        assert max(before - after for before, after in pairwise(left)) < 10

    with_server(test)


def test_subscriptions_of_a_topic_that_is_made_again_begin_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)

    async def test(place: Place) -> None:
        peers = [await place.peer() for _ in range(20)]
        for peer in peers:
            peer.send(Attach(b"t", 0), Attach(b"u", 0))
            await peer.expect(Attached)
            await peer.expect(Attached)
        log = place.server.log
        connection = next(iter(place.server.shell.connections))
        shared = connection.session._shared  # type: ignore[attr-defined]
        for name in (b"t", b"u"):
            topic = log.catalog.get(name)
            assert topic is not None
            log.catalog.delete(topic)
        await until(lambda: len(shared._waiting) == 40)
        log.catalog.create(b"t")
        left = [len(shared._waiting)]
        while left[-1] > 20:
            await asyncio.sleep(0)
            left.append(len(shared._waiting))
        assert max(before - after for before, after in pairwise(left)) < 5
        for peer in peers:
            assert (await peer.expect(Attached)).topic == b"t"

    with_server(test)
