"""Writers' streams in a running server: answers, transactions, limits, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.formats.batch import records
from engine.formats.record import Record
from netserver.app import Server
from netserver.fujin import codec
from netserver.fujin.codec import Answer, Op
from netserver.fujin.codec_answers import Done, Fetched, Message
from netserver.fujin.listener import FujinListener
from netserver.testing import running
from tests.echo import run, until
from tests.fujin_peer import Peer, Stream, connect

Test = Callable[[Server, Peer], Awaitable[None]]
ALONE = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}


def serve(test: Test, loop: str = "asyncio", topics: dict[str, Any] | None = None, **settings: Any) -> None:
    async def main() -> None:
        async with running(settings={**ALONE, "topics": topics or {}, "fujin": settings}) as server:
            address = server.addresses["fujin"]
            async with connect((address.host, address.port)) as peer:
                await test(server, peer)

    run(loop, main())


def listener(server: Server) -> FujinListener:
    found = server.listeners["fujin"]
    assert isinstance(found, FujinListener)
    return found


async def stored(server: Server, topic: bytes) -> list[Record]:
    """All committed records of a topic."""
    found = server.log.catalog.get(topic)
    if found is None:
        return []
    partition = server.log.partition(found)
    await until(lambda: partition.is_open and server.log.context.backlog.write_batches == 0)
    result: list[Record] = []
    while not result or result[-1].seq < partition.committed_seq:
        if not partition.committed_seq:
            break
        read_batch = partition.read(result[-1].seq + 1 if result else 1, 1 << 20, None)
        assert read_batch is not None
        result += records(read_batch.buffer, 0, len(read_batch.buffer), result[-1].seq + 1 if result else 0)
    return result


async def values(server: Server, topic: bytes) -> list[bytes]:
    return [record.value for record in await stored(server, topic)]


async def answers(stream: Stream, count: int) -> list[Done]:
    found = []
    for _ in range(count):
        event = await stream.event()
        assert isinstance(event, Done), event
        found.append(event)
    return found


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_writes_are_stored_before_they_are_answered_in_order(loop: str) -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        sent = [(b"a" if n % 3 else b"b", b"%d" % n) for n in range(3000)]
        stream.send(b"".join(codec.write(n, topic, value) for n, (topic, value) in enumerate(sent)))
        ok = b"".join(codec.done(Answer.WRITE, n) for n in range(3000))
        assert await stream.take(len(ok)) == ok
        for topic in (b"a", b"b"):
            assert await values(server, topic) == [value for name, value in sent if name == topic]
        counters = server.counters["fujin"]
        assert counters.records_published == 3000
        assert counters.connections == counters.connections_total == 1
        assert sum(counters.ack_seconds["always"].counts) == 3000

    serve(test, loop)


@pytest.mark.usefixtures("replaceable_files")
def test_an_answer_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"t", b"first")
        stream = peer.writer()
        held: list[Any] = []
        context, post = server.log.context, server.log.context.call_soon_threadsafe
        context.call_soon_threadsafe = held.append  # the committer's result does not arrive
        stream.send(codec.write(1, b"t", b"second"))
        await stream.silence(0.2)
        context.call_soon_threadsafe = post
        for callback in held:
            post(callback)
        assert await stream.take(6) == codec.done(Answer.WRITE, 1)

    serve(test)


@pytest.mark.parametrize("size", [1, 1199, 65_536, 65_537, 300_000, 1 << 20])
def test_messages_of_all_sizes(size: int) -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        stream.send(codec.write(1, b"t", message) + codec.write(2, b"t", b"after"))
        assert await answers(stream, 2) == [Done(Answer.WRITE, 1, None), Done(Answer.WRITE, 2, None)]
        assert await values(server, b"t") == [message, b"after"]
        reader = await peer.puller(b"t", auto=True)
        found: list[Message] = []
        while len(found) < 2:  # one answer has about 1 MiB
            reader.send(codec.fetch(1, 9))
            event = await reader.event()
            assert isinstance(event, Fetched)
            found += event.messages
        assert [one.value for one in found] == [message, b"after"]

    serve(test)


def test_a_message_above_the_limit_ends_the_stream_and_nothing_else() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(codec.write(1, b"t", b"x" * 2000) + codec.write(2, b"t", b"x" * 2001) + codec.write(3, b"t", b"y"))
        text = "message too large: 2001 bytes, up to 2000 are taken"
        assert await stream.rest() == (
            codec.done(Answer.WRITE, 1) + codec.done(Answer.WRITE, 2, text) + codec.DISCONNECT
        )
        assert await values(server, b"t") == [b"x" * 2000]
        assert server.counters["fujin"].protocol_errors == {"frame_size": 1}
        await peer.publish(b"t", b"still there")

    serve(test, message_bytes_max=2000)


def test_a_topic_may_take_less() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(codec.write(1, b"t", b"x" * 2001) + codec.write(2, b"t", b"y"))
        refused, taken = await answers(stream, 2)
        assert "value of 2001 bytes" in str(refused.error)
        assert taken == Done(Answer.WRITE, 2, None)

    serve(test, topics={"record_bytes_max": 2000})


def test_unknown_topics_without_automatic_creation() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(codec.write(1, b"new", b"x"))
        assert await answers(stream, 1) == [Done(Answer.WRITE, 1, "writer not found")]
        server.log.catalog.create(b"new")
        stream.send(codec.write(2, b"new", b"x"))
        assert await answers(stream, 1) == [Done(Answer.WRITE, 2, None)]
        deleted = asyncio.Event()
        found = server.log.catalog.get(b"new")
        assert found is not None
        server.log.catalog.delete(found, lambda error: deleted.set())
        stream.send(codec.write(3, b"new", b"x"))
        assert await answers(stream, 1) == [Done(Answer.WRITE, 3, "writer not found")]
        await deleted.wait()

    serve(test, topics={"auto_create": False})


def test_writers_have_aliases(tmp_path: Path) -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"pub", b"x")
        await peer.publish(b"plain", b"y")
        assert await values(server, b"orders") == [b"x"]
        assert await values(server, b"plain") == [b"y"]
        assert server.log.catalog.get(b"pub") is None

    serve(test, writers={"pub": {"topic": "orders"}})


def test_headers_are_an_option() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(
            codec.write(1, b"t", b"m", (b"k", b"v", b"k", b"w"))
            + codec.write(2, b"t", b"n", ())
            + codec.write(3, b"t", b"o", (b"odd",))
            + codec.tx(Op.BEGIN, 4)
            + codec.write(5, b"t", b"p", (b"a", b""))
            + codec.tx(Op.COMMIT, 6)
        )
        found = await answers(stream, 6)
        assert [answer.error for answer in found] == [
            None,
            None,
            "headers are pairs of a name and a value",
            *[None] * 3,
        ]
        assert [(record.value, record.headers) for record in await stored(server, b"t")] == [
            (b"m", (b"k", b"v", b"k", b"w")),
            (b"n", ()),
            (b"p", (b"a", b"")),
        ]

    serve(test, write_headers=True)


# --- transactions


def test_nothing_is_visible_before_the_commit() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer(b"id")
        stream.send(codec.tx(Op.BEGIN, 1) + codec.write(2, b"a", b"1") + codec.write(3, b"b", b"2"))
        assert [answer.error for answer in await answers(stream, 3)] == [None, None, None]
        await peer.publish(b"a", b"between")
        assert await values(server, b"a") == [b"between"]
        assert await values(server, b"b") == []
        shared = listener(server).shared
        assert shared.transaction_bytes > 0
        assert len(shared.open_transactions) == 1
        stream.send(codec.tx(Op.COMMIT, 4) + codec.write(5, b"a", b"plain again"))
        assert await answers(stream, 2) == [Done(Answer.COMMIT, 4, None), Done(Answer.WRITE, 5, None)]
        assert await values(server, b"a") == [b"between", b"1", b"plain again"]
        assert await values(server, b"b") == [b"2"]
        assert (shared.transaction_bytes, len(shared.open_transactions)) == (0, 0)
        assert shared.transactions == {"committed": 1, "rolled_back": 0, "failed": 0}

    serve(test)


@pytest.mark.parametrize("end", ["rollback", "disconnect", "fin", "reset", "stop", "bad", "close"])
def test_what_ends_before_the_commit_is_rolled_back(end: str) -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(codec.tx(Op.BEGIN, 1) + codec.write(2, b"a", b"never"))
        await answers(stream, 2)
        shared = listener(server).shared
        if end == "rollback":
            stream.send(codec.tx(Op.ROLLBACK, 3))
            assert await answers(stream, 1) == [Done(Answer.ROLLBACK, 3, None)]
        elif end in ("disconnect", "fin", "bad"):
            stream.send({"disconnect": codec.DISCONNECT, "fin": b"", "bad": b"\x63"}[end], fin=end == "fin")
            assert await stream.rest() == codec.DISCONNECT
        elif end == "reset":
            stream.reset()
        elif end == "stop":
            stream.stop()
        else:
            peer.close()
        await until(lambda: not shared.open_transactions)
        assert shared.transaction_bytes == 0
        assert shared.transactions["rolled_back"] == 1
        assert await values(server, b"a") == []

    serve(test)


def test_states_of_a_transaction() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        invalid = "invalid tx state"
        stream.send(codec.tx(Op.COMMIT, 1) + codec.tx(Op.ROLLBACK, 2) + codec.tx(Op.BEGIN, 3) + codec.tx(Op.BEGIN, 4))
        stream.send(codec.tx(Op.COMMIT, 5) + codec.tx(Op.BEGIN, 6) + codec.tx(Op.ROLLBACK, 7))
        assert await answers(stream, 7) == [
            Done(Answer.COMMIT, 1, invalid),
            Done(Answer.ROLLBACK, 2, invalid),
            Done(Answer.BEGIN, 3, None),
            Done(Answer.BEGIN, 4, invalid),
            Done(Answer.COMMIT, 5, None),
            Done(Answer.BEGIN, 6, None),
            Done(Answer.ROLLBACK, 7, None),
        ]

    serve(test)


def test_a_refused_write_leaves_the_transaction_open() -> None:
    async def test(server: Server, peer: Peer) -> None:
        server.log.catalog.create(b"a")
        stream = peer.writer()
        stream.send(
            codec.tx(Op.BEGIN, 1)
            + codec.write(2, b"unknown", b"x")
            + codec.write(3, b"a", b"x" * 3000)
            + codec.write(4, b"a", b"y")
            + codec.tx(Op.COMMIT, 5)
        )
        found = await answers(stream, 5)
        assert [answer.error is None for answer in found] == [True, False, False, True, True]
        assert await values(server, b"a") == [b"y"]

    serve(test, topics={"auto_create": False, "record_bytes_max": 2000})


def test_a_transaction_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.commit.transactions.TRANSACTION_BYTES_MAX", 10_000)

    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(codec.tx(Op.BEGIN, 0) + b"".join(codec.write(cid, b"t", b"x" * 3000) for cid in range(1, 6)))
        found = await answers(stream, 6)
        assert [answer.error is None for answer in found] == [True] * 4 + [False] * 2
        assert found[-1].error == "a transaction holds up to 10000 bytes"
        stream.send(codec.tx(Op.COMMIT, 99))
        assert await answers(stream, 1) == [Done(Answer.COMMIT, 99, None)]
        assert await values(server, b"t") == [b"x" * 3000] * 3

    serve(test)


def test_open_transactions_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.fujin.listener_state.TRANSACTIONS_BYTES_MAX", 10_000)

    async def test(server: Server, peer: Peer) -> None:
        streams, found = [peer.writer() for _ in range(2)], []
        for stream in streams:  # one after the other: QUIC gives streams no order among them
            stream.send(codec.tx(Op.BEGIN, 0) + codec.write(1, b"t", b"x" * 6000))
            found.append(await answers(stream, 2))
        first, second = found
        assert first[1].error is None
        assert "too many bytes are in open transactions" in str(second[1].error)
        streams[0].send(codec.tx(Op.COMMIT, 2))
        await answers(streams[0], 1)
        streams[1].send(codec.write(2, b"t", b"x" * 6000))
        assert await answers(streams[1], 1) == [Done(Answer.WRITE, 2, None)]

    serve(test)


def test_a_newer_writer_with_the_same_id_ends_an_older_transaction() -> None:
    async def test(server: Server, peer: Peer) -> None:
        older, newer, other = peer.writer(b"id"), peer.writer(b"id"), peer.writer(b"other")
        for stream in (older, other):
            stream.send(codec.tx(Op.BEGIN, 1) + codec.write(2, b"t", b"%d" % stream.id))
            await answers(stream, 2)
        newer.send(codec.tx(Op.BEGIN, 1) + codec.write(2, b"t", b"newer"))
        await answers(newer, 2)
        older.send(codec.write(3, b"t", b"x") + codec.tx(Op.COMMIT, 4) + codec.tx(Op.ROLLBACK, 5))
        reason = "a newer writer with the same id has begun a transaction"
        assert await answers(older, 3) == [
            Done(Answer.WRITE, 3, reason),
            Done(Answer.COMMIT, 4, reason),
            Done(Answer.ROLLBACK, 5, None),
        ]
        for stream in (newer, other):
            stream.send(codec.tx(Op.COMMIT, 3))
            assert await answers(stream, 1) == [Done(Answer.COMMIT, 3, None)]
        assert await values(server, b"t") == [b"newer", b"%d" % other.id]

    serve(test)


def test_a_transaction_without_commands_times_out() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(codec.tx(Op.BEGIN, 1) + codec.write(2, b"t", b"x"))
        await answers(stream, 2)
        shared = listener(server).shared
        await until(lambda: not shared.open_transactions)
        assert shared.transaction_bytes == 0
        stream.send(codec.tx(Op.COMMIT, 3) + codec.tx(Op.ROLLBACK, 4) + codec.write(5, b"t", b"goes on"))
        found = await answers(stream, 3)
        assert "timed out" in str(found[0].error)
        assert [answer.error for answer in found[1:]] == [None, None]
        assert await values(server, b"t") == [b"goes on"]

    serve(test, transaction_timeout=100)


def test_a_commit_that_fails_stores_nothing_and_can_only_be_rolled_back() -> None:
    async def test(server: Server, peer: Peer) -> None:
        await peer.publish(b"good", b"1")
        await peer.publish(b"bad", b"1")
        stream = peer.writer()
        stream.send(codec.tx(Op.BEGIN, 1) + codec.write(2, b"good", b"2") + codec.write(3, b"bad", b"2"))
        await answers(stream, 3)
        found = server.log.catalog.get(b"bad")
        assert found is not None
        deleted = asyncio.Event()
        server.log.catalog.delete(found, lambda error: deleted.set())
        await deleted.wait()
        stream.send(codec.tx(Op.COMMIT, 4) + codec.tx(Op.COMMIT, 5) + codec.tx(Op.ROLLBACK, 6))
        first, again, over = await answers(stream, 3)
        assert str(first.error).startswith("transaction failed: ")
        assert again.error == first.error
        assert over.error is None
        assert await values(server, b"good") == [b"1"]
        shared = listener(server).shared
        assert shared.transactions == {"committed": 0, "rolled_back": 0, "failed": 1}
        assert shared.transaction_bytes == 0

    serve(test)


# --- bounds and ends


def test_a_client_that_reads_no_answers_is_not_parsed_for_ever() -> None:
    async def test(server: Server, peer: Peer) -> None:
        stream = peer.writer()
        stream.send(codec.tx(Op.BEGIN, 1))
        await answers(stream, 1)
        stream.send(codec.write(2, b"t", b"x" * 100) * 2000)
        assert len(await answers(stream, 2000)) == 2000

    serve(test)


def test_a_publisher_above_its_share_is_slowed_down_and_loses_nothing() -> None:
    async def test(server: Server, peer: Peer) -> None:
        server.shell.pressure.share_bytes_max = 64 * 1024
        stream = peer.writer()
        stream.send(b"".join(codec.write(n, b"t", b"x" * 10_000) for n in range(300)))
        assert [answer.cid for answer in await answers(stream, 300)] == list(range(300))
        await until(lambda: server.shell.pressure.total == 0)

    serve(test)


def test_an_error_in_a_session_ends_its_stream_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, peer: Peer) -> None:
        other = peer.writer()
        other.send(codec.write(1, b"t", b"x"))
        await answers(other, 1)
        with monkeypatch.context() as patched:
            patched.setattr("netserver.fujin.writer.Writer.handle", lambda *_: 1 / 0)
            stream = peer.writer()
            stream.send(codec.tx(Op.BEGIN, 1))
            assert await stream.rest() == b""
        assert server.counters["fujin"].session_errors == 1
        other.send(codec.write(2, b"t", b"y"))
        await answers(other, 1)

    serve(test)
