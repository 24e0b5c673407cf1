"""BlipMQ sessions: order, refusals, memory, ends, retention."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import time
from pathlib import Path

import pytest

from engine.cursors.documents import entry_item
from engine.errors import EngineError
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.partitions.tail_cache import NO_TAIL
from netserver.admin.metrics import Metrics
from netserver.blipmq import codec
from netserver.blipmq.codec import Frame, FrameType
from netserver.blipmq.limits import PASSED_RECORDS_MAX
from netserver.testing import server
from tests.blipmq_peer import Peer
from tests.blipmq_place import UNKNOWN, Disk, Place, with_server
from tests.echo import LOOPS, until

# --- order


@pytest.mark.usefixtures("replaceable_files")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_pong_waits_for_the_publishes_before_it(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        await peer.publish(b"t", b"first")
        disk = Disk(place, monkeypatch)
        for qos in (1, 0):
            disk.event.clear()
            peer.send(
                codec.publish(1, qos, b"t", b"x") + codec.ping(2) + codec.publish(3, 2, b"t", b"x") + codec.ping(4)
            )
            await until(disk.waiting.is_set)
            assert await other.until_pong() == [], "others do not wait"
            answer = asyncio.ensure_future(peer.frame())
            await asyncio.sleep(0.05)
            assert not answer.done()
            disk.release()
            assert await answer == Frame(FrameType.PONG, 2, b"")
            assert await peer.nack() == (3, 400, "invalid QoS value")
            assert await peer.frame() == Frame(FrameType.PONG, 4, b"")
            disk.waiting.clear()

    with_server(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_poll_sees_what_was_published_before_it_in_the_same_write(loop: str) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        for round_number in range(50):
            peer.send(
                codec.publish(1, 1, b"t", b"a%d" % round_number)
                + codec.publish(2, 0, b"t", b"b%d" % round_number)
                + codec.poll(3, subscription)
                + codec.poll(4, subscription)
                + codec.poll(5, subscription)
                + codec.ack(2 * round_number + 1, subscription)
            )
            assert [(frame.cid, codec.parse_publish(frame.payload).body) for frame in await peer.until_pong()] == [
                (2 * round_number + 1, b"a%d" % round_number),
                (4, b"b%d" % round_number),
            ]

    with_server(test, loop)


def test_polls_and_acks_wait_for_publishes_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", b"job")
        assert await peer.poll(subscription) == [(1, b"job")]
        disk = Disk(place, monkeypatch)
        peer.send(codec.publish(1, 1, b"done", b"result") + codec.ack(1, subscription) + codec.ping(2))
        await until(disk.waiting.is_set)
        cursor = place.server.log.cursors.get(subscription)
        assert cursor is not None
        assert await other.until_pong() == []
        assert cursor.deliveries.unacknowledged == 1, "the result is not stored yet"
        disk.release()
        assert await peer.frame() == Frame(FrameType.PONG, 2, b"")
        assert cursor.deliveries.unacknowledged == 0

    with_server(test)


def test_a_subscription_sees_only_publishes_behind_it() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(
            codec.publish(1, 1, b"t", b"before")
            + codec.subscribe(2, b"t", 1)
            + codec.publish(3, 1, b"t", b"behind")
            + codec.subscribe(4, b"t", 0)
        )
        first, second = await peer.frames(2)
        assert (first.cid, second.cid) == (2, 4)
        assert await peer.poll(codec.parse_ack(first.payload), 3) == [(1, b"behind")]
        assert await peer.poll(codec.parse_ack(second.payload), 3) == []

    with_server(test)


@pytest.mark.parametrize("loop", LOOPS)
def test_frames_cut_anywhere(loop: str) -> None:
    async def test(place: Place) -> None:
        stream = codec.hello(1) + codec.auth(2, "k")
        stream += codec.subscribe(3, b"t", 1) + codec.frame(FrameType.POLL, 4, b"xx") + codec.ping(5)
        whole = await place.peer(login=False)
        whole.send(stream)
        expected = await whole.frames(5)
        for step in (1, 2, 3, 7, 20):
            peer = await place.peer(login=False)
            peer.writer.transport.set_write_buffer_limits(0)
            for start in range(0, len(stream), step):
                peer.send(stream[start : start + step])
                await peer.writer.drain()
            got = await peer.frames(5)
            assert [frame[:2] for frame in got] == [frame[:2] for frame in expected]
            peer.writer.close()

    with_server(test, loop)


@pytest.mark.usefixtures("replaceable_files")
def test_many_answers_behind_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.publish(b"t", b"first")
        disk = Disk(place, monkeypatch)
        count = 60_000
        peer.send(codec.publish(1, 1, b"t", b"x") + b"".join(codec.ping(n) for n in range(count)))
        await until(disk.waiting.is_set)
        (connection,) = place.server.shell.connections
        await until(lambda: connection.held)
        disk.release()
        assert [frame.cid for frame in await peer.frames(count)] == list(range(count))

    with_server(test)


# --- refusals


@pytest.mark.usefixtures("replaceable_files")
def test_a_failing_disk_refuses_each_publish_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", b"kept")

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(place.server.log.files, "write", fail)
            peer.send(
                b"".join(codec.publish(n, 1, b"t", b"lost") for n in range(10, 15))
                + codec.publish(15, 0, b"t", b"lost")
                + codec.publish(16, 1, b"t", b"lost")
                + codec.ping(17)
            )
            for cid in (10, 11, 12, 13, 14, 16):
                got_cid, code, text = await peer.nack()
                assert (got_cid, code) == (cid, 500)
                assert text.startswith("durable publish failed: ")
                assert "space" in text
            assert await peer.frame() == Frame(FrameType.PONG, 17, b"")
            assert await peer.poll(subscription, 5) == [(1, b"kept")], "reading goes on"
        await peer.publish(b"t", b"again")
        assert [body for _, body in await peer.poll(subscription, 5)] == [b"again"]
        assert place.server.counters["blipmq"].skipped["not stored"] == 1

    with_server(test)


@pytest.mark.usefixtures("replaceable_files")
def test_a_read_only_partition_refuses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.publish(b"t", b"kept")

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(place.server.log.files, "sync_data", fail)
            peer.send(codec.publish(1, 1, b"t", b"lost"))
            assert (await peer.nack())[:2] == (1, 500)
        peer.send(codec.publish(2, 1, b"t", b"lost") + codec.publish(3, 0, b"t", b"lost") + codec.ping(4))
        cid, code, text = await peer.nack()
        assert (cid, code) == (2, 500)
        assert "restart" in text
        assert await peer.frame() == Frame(FrameType.PONG, 4, b"")

    with_server(test)


def test_a_subscription_that_cannot_be_stored_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.publish(b"t", b"x")
        state = place.server.log.state
        before = len(place.server.log.cursors)
        from engine.errors import DiskFull

        with monkeypatch.context() as patch:
            patch.setattr(state, "_commit", lambda _batch: DiskFull("injected: no space"))
            peer.send(codec.subscribe(7, b"t", 1) + codec.ping(8))
            assert await peer.nack() == (7, 500, "durable subscribe failed: injected: no space")
            assert await peer.frame() == Frame(FrameType.PONG, 8, b"")
        assert len(place.server.log.cursors) == before
        assert await peer.subscribe(b"t") > 0

    with_server(test)


def test_a_message_that_is_too_large() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        peer.send(
            codec.publish(1, 1, b"t", b"a" * 1001)
            + codec.publish(2, 1, b"t", b"b" * 1000)
            + codec.publish(3, 0, b"t", b"c" * 5000)
            + codec.publish(4, 1, b"t", b"")
            + codec.ping(5)
        )
        assert await peer.nack() == (1, 400, "value of 1001 bytes; the limit is 1000, setting record_bytes_max")
        assert await peer.nack() == (3, 400, "value of 5000 bytes; the limit is 1000, setting record_bytes_max")
        assert await peer.frame() == Frame(FrameType.PONG, 5, b"")
        assert await peer.poll(subscription, 5) == [(1, b"b" * 1000), (2, b"")]

    with_server(test, topics={"record_bytes_max": "1000"})


def test_messages_of_many_sizes_make_the_round_trip() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        sizes = (0, 1, 100, 65_000, 262_144, 300_000, 3_000_000, 15 << 20, 5)
        for size in sizes:
            await peer.publish(b"t", bytes(size))
        for qos_subscription in (subscription,):
            got = await peer.poll(qos_subscription, len(sizes) + 1)
            assert [len(body) for _, body in got] == list(sizes)
        assert place.server.counters["blipmq"].delivered_bytes > sum(sizes)

    with_server(test, blipmq={"retry_backoff_ms": "20s"})  # none comes again on a slow machine


def test_a_record_that_no_frame_can_carry_is_passed() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", b"before")
        partition = place.partition(b"t")
        bundle = encode_bundle([bytes(16 << 20)], None, [1])
        partition.append_bundle(bundle, 0, len(bundle), check_bundle(bundle, 0, len(bundle)))
        await peer.publish(b"t", b"behind")
        assert await peer.poll(subscription, 5) == [(1, b"before"), (3, b"behind")]
        assert place.server.counters["blipmq"].skipped["too large"] == 1
        assert await peer.ack(subscription, 2) == [UNKNOWN]

    with_server(test)


def test_where_only_publishing_makes_topics_a_mistyped_subscription_is_refused() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(codec.subscribe(3, b"t", 1))
        assert await peer.nack() == (3, 404, "unknown topic")
        assert place.server.log.catalog.get(b"t") is None
        await peer.publish(b"t", b"x")
        assert await peer.subscribe(b"t")

    with_server(test, topics={"auto_create_by_readers": "false"})


def test_topics_that_cannot_be_made() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        peer.send(codec.publish(1, 1, b"t", b"x") + codec.publish(2, 0, b"t", b"x") + codec.subscribe(3, b"t", 1))
        for cid in (1, 2, 3):
            assert await peer.nack() == (cid, 404, "unknown topic")
        place.server.log.catalog.create(b"t")
        await peer.publish(b"t", b"x")

    with_server(test, topics={"auto_create": "false"})

    async def full(place: Place) -> None:
        peer = await place.peer()
        await peer.publish(b"a", b"x")
        peer.send(codec.publish(1, 1, b"b", b"x"))
        cid, code, text = await peer.nack()
        assert (cid, code) == (1, 400)
        assert "topics" in text

    with_server(full, engine={"topics_max": "1"})


def test_a_deleted_topic(tmp_path: Path) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", b"x")
        assert await peer.poll(subscription) == [(1, b"x")]
        done: list[object] = []
        catalog = place.server.log.catalog
        topic = catalog.get(b"t")
        assert topic is not None
        catalog.delete(topic, done.append)
        peer.send(codec.publish(1, 1, b"t", b"y"))
        assert await peer.nack() == (1, 404, "unknown topic")
        await until(lambda: bool(done))
        assert await peer.poll(subscription) == []
        assert await peer.ack(subscription, 1) == [UNKNOWN]
        await until(lambda: not catalog.tombstones)
        again = await peer.subscribe(b"t")
        await peer.publish(b"t", b"new")
        assert await peer.poll(again) == [(1, b"new")]

    with_server(test)


# --- memory and ends


def test_who_does_not_read_gets_no_more_than_the_output_may_hold() -> None:
    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        subscription = await peer.subscribe(b"t")
        for n in range(40):
            await other.publish(b"t", b"%d" % n + bytes(1 << 20))
        peer.send(b"".join(codec.poll(n, subscription) for n in range(40)) + codec.ping(99))
        await until(lambda: any(connection.held for connection in place.server.shell.connections))
        await asyncio.sleep(0.1)
        assert sum(connection.bytes_out for connection in place.server.shell.connections) < 20 << 20
        assert await other.until_pong() == []
        for n in range(40):
            frame = await peer.frame()
            assert frame.cid == n + 1
            assert codec.parse_publish(frame.payload).body.startswith(b"%d\0" % n)
        assert await peer.frame() == Frame(FrameType.PONG, 99, b"")

    with_server(test, blipmq={"retry_backoff_ms": "60000"})


def test_half_closed_connections_get_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", b"x")
        disk = Disk(place, monkeypatch)
        peer.send(codec.poll(1, subscription) + codec.publish(2, 1, b"t", b"y") + codec.ping(3) + b"\0\0")
        peer.writer.write_eof()
        await until(disk.waiting.is_set)
        disk.release()
        assert (await peer.frame()).cid == 1
        assert await peer.frame() == Frame(FrameType.PONG, 3, b"")
        assert await peer.at_eof()

    with_server(test)


def test_a_drained_server_answers_what_is_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        peer, idle = await place.peer(), await place.peer()
        await peer.publish(b"t", b"x")
        disk = Disk(place, monkeypatch)
        peer.send(codec.publish(2, 1, b"t", b"y") + codec.ping(3))
        await until(disk.waiting.is_set)
        for connection in tuple(place.server.shell.connections):
            connection.drain()
        assert await idle.at_eof()
        disk.release()
        assert await peer.frame() == Frame(FrameType.PONG, 3, b"")
        assert await peer.at_eof()

    with_server(test)


def test_partitions_open_on_first_use_after_a_restart(tmp_path: Path) -> None:
    async def first(place: Place) -> None:
        peer = await place.peer()
        for topic in (b"a", b"b", b"c"):
            assert await peer.subscribe(topic) > 0
            await peer.publish(topic, *(b"%d" % n + bytes(2000) for n in range(500)))

    async def second(place: Place) -> None:
        peer = await place.peer()
        assert len(await peer.poll(1, 1000)) == 500
        await peer.publish(b"b", b"more")
        assert len(await peer.poll(2, 1000)) == 501
        subscription = await peer.subscribe(b"c")
        await peer.publish(b"c", b"new")
        assert await peer.poll(subscription, 2) == [(1, b"new")]
        assert len(await peer.poll(3, 1000)) == 501

    with_server(first, data_dir=tmp_path)
    with_server(second, data_dir=tmp_path, engine={"tail_cache_bytes": "1 MiB"})


def test_a_partition_that_cannot_be_opened(tmp_path: Path) -> None:
    async def first(place: Place) -> None:
        peer = await place.peer()
        assert await peer.subscribe(b"a") == 1
        await peer.publish(b"a", b"x")

    async def second(place: Place) -> None:
        peer = await place.peer()
        peer.send(
            codec.poll(1, 1) + codec.publish(2, 1, b"a", b"y") + codec.publish(3, 0, b"a", b"y")
            + codec.subscribe(4, b"a", 1) + codec.ping(5)
        )  # fmt: skip
        for cid in (1, 2, 4):
            got_cid, code, _ = await peer.nack()
            assert (got_cid, code) == (cid, 500)
        assert await peer.frame() == Frame(FrameType.PONG, 5, b"")

    with_server(first, data_dir=tmp_path)
    for path in (tmp_path / "topics" / "1" / "0").iterdir():
        path.unlink()
    with_server(second, data_dir=tmp_path)


def test_connections_that_end_while_something_is_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place) -> None:
        stays = await place.peer()
        subscription = await stays.subscribe(b"t")
        await stays.publish(b"t", b"x")
        disk = Disk(place, monkeypatch)
        tails = (codec.ping(3), codec.poll(4, subscription), codec.subscribe(5, b"u", 1), b"\0\0\0\0")
        for number, tail in enumerate(tails):
            peer = await place.peer()
            peer.send(codec.publish(1, 1, b"t", b"y") + tail)
            await until(lambda number=number: place.partition(b"t").last_seq == number + 2)
            peer.writer.transport.abort()
        disk.release()
        assert await stays.until_pong() == []
        await until(lambda: len(place.server.shell.connections) == 1)
        await until(lambda: place.partition(b"t").committed_seq == 5)
        # the first message is in flight to the connection that polled and went away
        assert [tag for tag, _ in await stays.poll(subscription, 10)] == [2, 3, 4, 5]
        assert place.server.counters["blipmq"].session_errors == 0

    with_server(test)


# --- clients that leave Nagle's algorithm on


def test_a_poll_behind_an_ack_does_not_wait_for_a_delayed_confirmation() -> None:
    """As the original's own clients: without TCP_NODELAY, ACK and POLL in writes of their own."""
    slow = {"blipmq": {"retry_backoff_ms": "1h", "retry_backoff_max_ms": "1h"}}
    with server(settings=slow) as process, Peer(process.address("blipmq")) as peer:
        subscription = peer.subscribe(b"t")
        peer.publish(b"t", *(b"%d" % n for n in range(200)))
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        seconds = []
        for _ in range(200):
            begun = time.monotonic()
            peer.send(codec.poll(1, subscription))
            tag = peer.frame().cid
            seconds.append(time.monotonic() - begun)
            peer.send(codec.ack(tag, subscription))
    # The first ones are quick in any case. A delayed confirmation takes 40 ms; a busy machine delays some, not all.
    assert min(seconds[100:]) < 0.02


# --- retention


def test_retention_over_unacknowledged_messages_redis_6199_5570_13957(caplog: pytest.LogCaptureFixture) -> None:
    """The subscription goes on at the first message that is kept; the gap is counted, and told once."""

    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        for n in range(20):
            await peer.publish(b"t", b"%d" % n + bytes(500_000))
        assert [tag for tag, _ in await peer.poll(subscription, 4)] == [1, 2, 3, 4]
        assert await peer.ack(subscription, 2) == []
        log = place.server.log
        topic = log.catalog.get(b"t")
        assert topic is not None
        partition = log.partition(topic)
        assert partition.trim(11) > 0
        assert partition.log_start == 11
        assert await peer.ack(subscription, 1, 4) == [], "one that was in flight may be acknowledged"
        assert [tag for tag, _ in await peer.poll(subscription, 3)] == [11, 12, 13]
        assert len(await peer.ack(subscription, 3)) == 1, "that one is gone"
        cursor = log.cursors.get(subscription)
        assert cursor is not None
        assert (cursor.lost, log.cursors.totals("blipmq").lost) == (7, 7), "3 in flight, and 5 to 10"
        item = entry_item(cursor.entry(), b"t", partition.committed_seq)
        assert (item["acknowledged_offset"], item["unacknowledged"], item["lag"]) == (10, 3, 10)
        assert await peer.ack(subscription, 11, 12, 13) == []
        assert [tag for tag, _ in await peer.poll(subscription, 9)] == list(range(14, 21))
        told = [record.getMessage() for record in caplog.records if "retention removed" in record.getMessage()]
        assert len(told) == 1, told

    with_server(test, topics={"segment_bytes": "1MiB"})


def test_what_subscriptions_lose_and_owe_is_in_the_metrics() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", *(b"%d" % n for n in range(30)))
        assert [tag for tag, _ in await peer.poll(subscription, 4)] == [21, 22, 23, 24]
        assert await peer.ack(subscription, 22) == []
        text = (await Metrics(place.server).render()).decode()
        for name, value in (
            ("subscription_records_dropped_total", 20), ("acks_total", 1), ("unacked_records", 3),
            ("subscription_lag_records_max", 9), ("subscription_records_lost_total", 0),
        ):  # fmt: skip
            assert f'quintlog_{name}{{protocol="blipmq"}} {value:.1f}' in text, name

    with_server(test, blipmq={"queue_capacity": "10", "retry_backoff_ms": "1h", "retry_backoff_max_ms": "1h"})


def test_deliveries_of_before_a_reset_acknowledge_nothing_behind_it() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        await peer.publish(b"t", *[b"old%d" % number for number in range(50)])
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", *[b"new%d" % number for number in range(5)])
        assert [tag for tag, _ in await peer.poll(subscription, 5)] == [1, 2, 3, 4, 5]
        cursor = place.server.log.cursors.get(subscription)
        assert cursor is not None
        cursor.reset(0)
        assert await peer.poll(subscription, 5) == [(tag, b"old%d" % (tag - 6)) for tag in range(6, 11)]
        assert [nack.code for nack in await peer.ack(subscription, 1, 2, 3, 4, 5)] == [404] * 5
        assert cursor.deliveries.unacknowledged == 5
        assert await peer.ack(subscription, 6, 7, 8, 9, 10) == []
        assert cursor.deliveries.unacknowledged == 0

    with_server(test)


def test_a_failed_read_refuses_one_poll_of_a_run() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        subscription = await peer.subscribe(b"t")
        await peer.publish(b"t", b"a", b"b")
        partition = place.partition(b"t")
        partition.tail = NO_TAIL
        place.server.log.parts.fetched[partition, 1] = EngineError("the disk cannot be read")
        peer.send(b"".join(codec.poll(cid, subscription) for cid in (7, 8, 9, 10)))
        refused, *delivered = await peer.until_pong()
        assert (refused.type, refused.cid) == (FrameType.NACK, 7)
        assert codec.parse_nack(refused.payload) == (500, "the disk cannot be read")
        assert [codec.parse_publish(frame.payload).body for frame in delivered] == [b"a", b"b"]

    with_server(test)


def test_records_that_are_too_old_are_passed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One POLL over any number of them holds nobody up: it goes on while the turn has time, which is none here."""
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)

    async def test(place: Place) -> None:
        peer, publisher = await place.peer(), await place.peer()
        count = 5 * PASSED_RECORDS_MAX
        await publisher.publish(b"t", *[b""] * count)
        skipped = place.server.services["blipmq"].counters.skipped
        steps = [0]
        subscription = await peer.subscribe(b"t")
        cursor = place.server.log.cursors.get(subscription)
        assert cursor is not None
        cursor.reset(0)
        peer.send(codec.poll(1, subscription))
        while steps[-1] < count:
            await asyncio.sleep(0)
            if skipped["expired"] != steps[-1]:
                steps.append(skipped["expired"])
        assert max(after - before for before, after in itertools.pairwise(steps)) <= 2 * PASSED_RECORDS_MAX
        assert await peer.until_pong() == []

    with_server(test, blipmq={"message_ttl": "1ms"})
