"""Protocol version 2: its payloads, pushed deliveries, groups, time to live, keys."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from netserver.access.key_file import add_key
from netserver.blipmq import codec, codec_v2, session_v2
from netserver.blipmq.codec import FrameType, PayloadError
from netserver.blipmq.codec_v2 import Deliver
from netserver.blipmq.frames import TTL_HEADER
from netserver.blipmq.push import TAG_SHIFT, Push
from tests.blipmq_peer import AsyncPeer, Peer2
from tests.blipmq_place import UNKNOWN, Place, delete, with_server_2
from tests.cursor_log import CursorLog
from tests.echo import until

# --- payloads


def payload(frame: bytes) -> bytes:
    return frame[13:]


def test_payloads() -> None:
    plain = codec_v2.publish(1, 1, b"t", b"body")
    assert plain == codec.publish(1, 1, b"t", b"body"), "without the further fields it is that of version 1"
    assert codec_v2.parse_publish(payload(plain)) == (1, b"t", b"body", None, b"")
    full = codec_v2.publish(1, 0, b"t", b"", 5000, b"key")
    assert full[13:].hex() == "c00000138800036b6579000174"
    assert codec_v2.parse_publish(payload(full)) == (0, b"t", b"", 5000, b"key")
    assert codec_v2.subscribe(1, b"t", 1) == codec.subscribe(1, b"t", 1)
    full = codec_v2.subscribe(1, b"t", 1, b"g", 9)
    assert full[13:].hex() == "000174c10001670000000000000009"
    assert codec_v2.parse_subscribe(payload(full) + b"tail") == (b"t", 1, b"g", 9)
    deliver = codec_v2.deliver(7, 1, b"t", b"b")
    assert deliver.hex() == "000000160a000000000000000701000000000000000700017462"
    assert codec_v2.parse_deliver(payload(deliver)) == (1, 7, b"t", b"b")


@pytest.mark.parametrize(
    ("parse", "raw", "text"),
    [
        (codec_v2.parse_publish, "", "invalid PUBLISH payload"),
        (codec_v2.parse_publish, "80000000", "invalid PUBLISH payload"),
        (codec_v2.parse_publish, "40000961", "invalid PUBLISH payload"),
        (codec_v2.parse_publish, "010002c328", "invalid PUBLISH payload"),
        (codec_v2.parse_publish, "010000", "empty topic"),
        (codec_v2.parse_publish, "02000161", "invalid QoS value"),
        (codec_v2.parse_publish, "11000161", "invalid QoS value"),
        (codec_v2.parse_publish, "410000000161", "empty partition key"),
        (codec_v2.parse_subscribe, "000161", "invalid SUBSCRIBE payload"),
        (codec_v2.parse_subscribe, "000161810005", "invalid SUBSCRIBE payload"),
        (codec_v2.parse_subscribe, "0001614100", "invalid SUBSCRIBE payload"),
        (codec_v2.parse_subscribe, "000001", "empty topic"),
        (codec_v2.parse_subscribe, "00016103", "invalid QoS value"),
        (codec_v2.parse_subscribe, "000161810000", "empty consumer group name"),
        (codec_v2.parse_deliver, "0100", "invalid DELIVER payload"),
        (codec_v2.parse_deliver, "01" + "00" * 8 + "0005" + "61", "invalid DELIVER payload"),
        (codec_v2.parse_deliver, "03" + "00" * 8 + "0001" + "61", "invalid DELIVER payload"),
    ],
)
def test_payload_errors(parse: Callable[[bytes], object], raw: str, text: str) -> None:
    with pytest.raises(PayloadError) as error:
        parse(bytes.fromhex(raw))
    assert error.value.text == text


# --- deliveries


def test_messages_are_pushed() -> None:
    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        await publisher.publish(b"t", b"before")
        subscription = await peer.join(b"t")
        await publisher.publish(b"t", b"a", b"b")
        await publisher.publish(b"t", b"c", qos=0)
        assert await peer.delivered(3) == [(1, 1, b"t", b"a"), (1, 2, b"t", b"b"), (0, 0, b"t", b"c")]
        assert await peer.ack(subscription, 2, 1) == []
        assert await peer.ack(subscription, 2, 3, 4, 0, 1 << 60) == [(404, "unknown subscription or delivery tag")] * 5
        assert await peer.ack(99, 1) == [(404, "unknown subscription or delivery tag")]
        peer.send(codec.poll(1, subscription) + codec.poll(2, 99))
        assert await peer.until_pong() == [], "POLL is passed over"
        both = await place.peer()
        await both.join(b"u", 0)
        both.send(codec.publish(5, 1, b"u", b"own") + codec.ping(6))
        assert {frame.type for frame in await both.frames(2)} == {FrameType.PONG, codec_v2.DELIVER}

    with_server_2(test)


def test_the_answer_to_subscribe_comes_before_deliveries() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        for number in range(20):
            alone, shared = b"alone %d" % number, b"shared %d" % number
            peer.send(
                codec.publish(1, 1, alone, b"before")
                + codec_v2.subscribe(2, alone, 1, offset=0)
                + codec_v2.subscribe(3, shared, 1, b"group")
                + codec.publish(4, 1, shared, b"behind")
            )
            order: list[int | bytes] = []
            for frame in await peer.frames(4):
                is_delivery = frame.type == codec_v2.DELIVER
                order.append(codec_v2.parse_deliver(frame.payload).topic if is_delivery else frame.cid)
            assert order.index(2) < order.index(alone)
            assert order.index(2) < order.index(3) < order.index(shared)

    with_server_2(test)


def test_redelivery_and_version_1_beside_it() -> None:
    async def test(place: Place) -> None:
        peer, old = await place.peer(), await place.peer(AsyncPeer)
        subscription = await peer.join(b"t")
        polled = await old.subscribe(b"t")
        await old.publish(b"t", b"x")
        assert await peer.delivered(2) == [(1, 1, b"t", b"x")] * 2
        assert await peer.ack(subscription, 1) == []
        assert await old.poll(polled) == [(1, b"x")]

    with_server_2(test, blipmq={"retry_backoff_ms": "50"})


def test_the_window_bounds_what_is_unacknowledged() -> None:
    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        subscription = await peer.join(b"t")
        await publisher.publish(b"t", *(b"%d" % n for n in range(3000)))
        assert await peer.bodies(1024) == [b"%d" % n for n in range(1024)]
        for _ in range(3):
            assert await peer.until_pong() == []
        peer.send(b"".join(codec.ack(tag, subscription) for tag in range(1, 101)))
        assert await peer.bodies(100) == [b"%d" % n for n in range(1024, 1124)]

    with_server_2(test)


def test_who_does_not_read_gets_no_more_than_the_output_may_hold() -> None:
    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        await peer.join(b"t", 0)
        for n in range(30):
            await publisher.publish(b"t", b"%d" % n + bytes(1 << 20))
        await until(lambda: any(not connection.writable for connection in place.server.shell.connections))
        assert sum(connection.bytes_out for connection in place.server.shell.connections) < 12 << 20
        for n, body in enumerate(await peer.bodies(30)):
            assert body.startswith(b"%d\0" % n)

    with_server_2(test)


def test_offsets() -> None:
    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        await publisher.publish(b"t", *(b"%d" % n for n in range(1, 11)))
        await peer.join(b"t", offset=8)
        assert [deliver[1:4:2] for deliver in await peer.delivered(3)] == [(1, b"8"), (2, b"9"), (3, b"10")]
        other = await place.peer()
        await other.join(b"t", 0, offset=0)
        assert await other.bodies(10) == [b"%d" % n for n in range(1, 11)]
        beyond = await place.peer()
        await beyond.join(b"t", offset=99)
        await publisher.publish(b"t", b"new")
        assert await beyond.bodies(1) == [b"new"]

    with_server_2(test)


def test_groups_share_and_outlive_their_members(tmp_path: Path) -> None:
    acked: set[bytes] = set()

    async def first(place: Place) -> None:
        one, two, publisher = await place.peer(), await place.peer(), await place.peer()
        group = await one.join(b"t", group=b"workers")
        assert await two.join(b"t", group=b"workers") == group
        await publisher.publish(b"t", *(b"%d" % n for n in range(2000)))
        got: dict[str, list[Deliver]] = {"one": [], "two": []}

        async def take(name: str, peer: Peer2) -> None:
            while True:
                got[name] += await peer.delivered(1)

        tasks = [asyncio.ensure_future(take("one", one)), asyncio.ensure_future(take("two", two))]
        await until(lambda: len(got["one"]) + len(got["two"]) == 1024)
        seen = [int(deliver.body) for deliver in got["one"] + got["two"]]
        assert sorted(seen) == list(range(1024)), "each goes to one of them, as many as the window allows"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for deliver in (got["one"] + got["two"])[:500]:
            two.send(codec.ack(deliver.tag, group))  # any member may
            acked.add(deliver.body)
        await two.until_pong()
        for peer in (one, two):
            peer.writer.close()

    async def second(place: Place) -> None:
        peer = await place.peer()
        group = await peer.join(b"t", group=b"workers")
        found: set[bytes] = set()
        while len(found) < 1500:
            for deliver in await peer.delivered(1):
                found.add(deliver.body)
                peer.send(codec.ack(deliver.tag, group))
        assert found == {b"%d" % n for n in range(2000)} - acked

    with_server_2(first, data_dir=tmp_path)
    with_server_2(second, data_dir=tmp_path)


def test_what_a_member_leaves_behind_goes_to_the_others() -> None:
    async def test(place: Place) -> None:
        one, publisher = await place.peer(), await place.peer()
        group = await one.join(b"t", group=b"g")
        await publisher.publish(b"t", b"a", b"b", b"c")
        assert await one.bodies(3) == [b"a", b"b", b"c"]
        assert await one.ack(group, 2) == []
        two = await place.peer()
        assert await two.join(b"t", group=b"g") == group
        one.writer.transport.abort()
        assert await two.delivered(2) == [(1, 1, b"t", b"a"), (1, 3, b"t", b"c")]

    with_server_2(test)


def test_patterns_of_topics() -> None:
    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        await publisher.publish(b"a.1", b"before")
        subscription = await peer.join(b"a.*")
        everything = await place.peer()
        await everything.join(b">", 0)
        await publisher.publish(b"a.1", b"one")
        await publisher.publish(b"a.2", b"a topic made later")
        await publisher.publish(b"b", b"another")
        first, second = sorted(await peer.delivered(2))
        assert (first.topic, first.body, second.topic, second.body) == (
            b"a.1", b"one", b"a.2", b"a topic made later",
        )  # fmt: skip
        assert first.tag != second.tag
        assert await peer.ack(subscription, second.tag, first.tag) == []
        assert await peer.ack(subscription, second.tag, 5 << 44) == [(404, "unknown subscription or delivery tag")] * 2
        assert sorted(await everything.bodies(3)) == [b"a topic made later", b"another", b"one"]
        peer.send(codec_v2.subscribe(1, b"a.*", 1, b"g") + codec_v2.subscribe(2, b"a.*", 1, offset=0))
        assert await peer.nack() == (1, 400, "a pattern has no group and no offset")
        assert (await peer.nack())[:2] == (2, 400)
        catalog = place.server.log.catalog
        topic = catalog.get(b"a.1")
        assert topic is not None
        done: list[object] = []
        catalog.delete(topic, done.append)
        await until(lambda: bool(done) and not catalog.tombstones)
        await publisher.publish(b"a.1", b"made anew")
        assert [(deliver.topic, deliver.body) for deliver in await peer.delivered(1)] == [(b"a.1", b"made anew")]

    with_server_2(test)


def test_time_to_live_and_keys() -> None:
    async def test(place: Place) -> None:
        publisher, old = await place.peer(), await place.peer(AsyncPeer)
        polled = await old.subscribe(b"t")
        publisher.send(
            codec_v2.publish(1, 1, b"t", b"short", 1)
            + codec_v2.publish(2, 1, b"t", b"long", 60_000, b"key")
            + codec_v2.publish(3, 0, b"t", b"for ever", 0)
            + codec_v2.publish(4, 1, b"t", b"keyed", None, b"k" * 255)
            + codec_v2.publish(5, 1, b"t", b"x", None, b"k" * 256)
        )
        assert await publisher.nack() == (5, 400, "partition key too long")
        assert await publisher.until_pong() == []
        sent_s = time.time()
        await until(lambda: time.time() > sent_s + 0.002)
        peer = await place.peer()
        await peer.join(b"t", offset=0)
        assert await peer.bodies(3) == [b"long", b"for ever", b"keyed"]
        assert [body for _, body in await old.poll(polled, 5)] == [b"long", b"for ever", b"keyed"]
        assert place.server.counters["blipmq"].skipped["expired"] == 2
        publisher.send(codec_v2.publish(6, 1, b"t", b"y" * 2000, 5) + codec_v2.publish(7, 1, b"", b"", 5))
        assert await publisher.nack() == (6, 400, "value of 2000 bytes; the limit is 1000, setting record_bytes_max")
        assert await publisher.nack() == (7, 400, "empty topic")

    with_server_2(test, topics={"record_bytes_max": "1000"})


def test_rights(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = add_key(path, "reader", publish=[], subscribe=["ok.*"])

    async def test(place: Place) -> None:
        peer, admin = await place.peer(key=key), await place.peer(key="root")
        await admin.publish(b"no.1", b"x")
        peer.send(codec_v2.subscribe(1, b"no.1", 1) + codec_v2.publish(2, 1, b"ok.1", b"x", 5))
        assert (await peer.nack())[:2] == (1, 401)
        assert (await peer.nack())[:2] == (2, 401)
        await peer.join(b">")
        await admin.publish(b"no.1", b"hidden")
        await admin.publish(b"ok.1", b"seen")
        assert await peer.bodies(1) == [b"seen"]

    with_server_2(test, blipmq={"key_file": str(path), "allowed_api_keys": "root"})


def test_volatile_subscriptions_leave_nothing_behind() -> None:
    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        await peer.join(b"t")
        await peer.join(b"*")
        await publisher.publish(b"t", b"x")
        await peer.bodies(2)
        cursors = place.server.log.cursors
        peer.writer.close()
        await until(lambda: len(place.server.shell.connections) == 1)
        assert len(cursors) == 0
        assert cursors.loaded() == []
        assert not cursors.watched
        await publisher.publish(b"t", b"y")

    with_server_2(test)


def test_what_other_protocols_write_into_the_header_of_a_time_to_live() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.join(b"t")
        topic = place.server.log.catalog.get(b"t")
        assert topic is not None
        old_ms = int(time.time() * 1000) - 60_000
        texts = (b"", b"x", b"-5", b"\xb2", b"9" * 5000, b"1", b"99999999")
        place.server.log.partition(topic).append(
            [b"%d" % n for n in range(len(texts))],
            headers=[(b"other", b"1", TTL_HEADER, text) for text in texts],
            timestamps_ms=[old_ms] * len(texts),
        )
        assert await peer.bodies(6) == [b"0", b"1", b"2", b"3", b"4", b"6"]

    with_server_2(test)


@pytest.mark.usefixtures("replaceable_files")
def test_503_says_that_it_may_work_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(code: int) -> Callable[..., None]:
        def write(*_: object) -> None:
            raise OSError(code, "injected")

        return write

    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.publish(b"t", b"before")
        with monkeypatch.context() as patch:
            patch.setattr(place.server.log.files, "write", fail(errno.ENOSPC))
            peer.send(codec.publish(1, 1, b"t", b"x") + codec_v2.publish(2, 1, b"t", b"x", 5000))
            for cid in (1, 2):
                got_cid, code, text = await peer.nack()
                assert (got_cid, code) == (cid, codec_v2.BUSY)
                assert text.startswith("durable publish failed: ")
        await until(lambda: place.server.log.partition(place.server.log.catalog.get(b"t")).error is None)
        await peer.publish(b"t", b"behind")
        with monkeypatch.context() as patch:
            patch.setattr(place.server.log.files, "sync_data", fail(errno.EIO))
            peer.send(codec.publish(3, 1, b"t", b"x"))
            assert (await peer.nack())[:2] == (3, 500)
        peer.send(codec_v2.publish(4, 1, b"t", b"x", 5000))
        assert (await peer.nack())[:2] == (4, 500)

    with_server_2(test)


def test_a_connection_has_a_limit_of_pushed_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.blipmq.session_v2.CONNECTION_CURSORS_MAX", 3)

    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        await publisher.publish(b"a.1", b"x")
        await peer.join(b"t")
        await peer.join(b"a.*")
        peer.send(codec_v2.subscribe(1, b">", 1))
        await publisher.publish(b"a.2", b"two")
        await publisher.publish(b"a.3", b"too many")
        await publisher.publish(b"a.1", b"one")
        cid, code, text = await peer.nack()
        assert (cid, code, text) == (1, 400, "the pattern stands for too many topics")
        assert sorted(await peer.bodies(2)) == [b"one", b"two"]
        peer.send(codec_v2.subscribe(2, b"t", 1))
        assert await peer.nack() == (2, 400, "too many subscriptions")

    with_server_2(test)


def test_deleted_topics_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_v2, "CONNECTION_CURSORS_MAX", 3)
    monkeypatch.setattr("netserver.blipmq.push.NUMBERS", 4)

    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        subscription = await peer.join(b"a.*")
        await publisher.publish(b"a.stays", b"x")
        tags = [one.tag for one in await peer.delivered(1)]
        for name in (b"a.%d" % number for number in range(6)):
            await publisher.publish(name, name)
            (deliver,) = await peer.delivered(1)
            assert deliver.body == name
            tags.append(deliver.tag)
            await delete(place, name)
        assert [tag >> TAG_SHIFT for tag in tags] == [0, 1, 2, 3, 1, 2, 3]
        assert await peer.ack(subscription, tags[-1]) == [UNKNOWN]
        assert await peer.ack(subscription, tags[0]) == []
        for number in range(4):
            await peer.join(b"g.%d" % number, group=b"g")
            await delete(place, b"g.%d" % number)

    with_server_2(test)


def test_expired_messages_are_passed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of them holds nobody up."""
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)

    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        count = 500
        await publisher.publish(b"t", *[b"x"] * count)
        skipped = place.server.services["blipmq"].counters.skipped
        steps = [0]
        peer.send(codec_v2.subscribe(1, b"t", 1, offset=0) + codec_v2.subscribe(2, b"t", 1, offset=0))
        while steps[-1] < 2 * count:
            await asyncio.sleep(0)
            if skipped["expired"] != steps[-1]:
                steps.append(skipped["expired"])
        assert max(after - before for before, after in pairwise(steps)) <= 2

    with_server_2(test, blipmq={"message_ttl": "1ms"})


def test_a_connection_has_a_limit_of_patterns_that_stand_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.blipmq.session_v2.CONNECTION_PATTERNS_MAX", 2)

    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.join(b"no.*")
        await peer.join(b"none.*")
        peer.send(codec_v2.subscribe(1, b"nothing.*", 1))
        assert await peer.nack() == (1, 400, "too many patterns")
        await peer.join(b"t")

    with_server_2(test)


def test_who_goes_gives_back_nothing_that_was_delivered_behind_a_reset(cursor_log: CursorLog) -> None:
    cursor_log.engine.append([b"a", b"b", b"c"])
    cursor = cursor_log.subscribe(after_seq=0)
    gone, other = (Push(None, cursor) for _ in range(2))  # type: ignore[arg-type]  # nothing is pushed
    assert cursor_log.seqs(cursor) == [1, 2, 3]
    gone.note(1, 3)
    cursor.reset(0)
    assert cursor_log.seqs(cursor) == [1, 2, 3]
    other.note(1, 3)
    gone.give_back(cursor_log.clock.now_ms)
    assert cursor_log.seqs(cursor) == []
    gone.note(5, 5)
    assert list(gone.delivered) == [(5, 5)]
    other.give_back(cursor_log.clock.now_ms)
    assert cursor_log.seqs(cursor) == [1, 2, 3]
