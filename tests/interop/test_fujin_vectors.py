"""Every captured exchange of the original's server, replayed against ours byte for byte.

The original is a gateway: a capture shows it with Kafka, NATS or Redis behind. Translated are message ids (theirs are
made of the broker's positions). Different on purpose, see ``OURS``:

- what those brokers cannot do, ours can: transactions without a writer id and over any topics, FETCH and ACK always;
- an unknown opcode ends a stream also inside a transaction, where the original skips it;
- a second FETCH waits like the first (the original answers it with zero messages, which its own client cannot take).

Left out is one capture of a broker that fails under a reader (``test_fujin_groups`` has ours).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.app import Server
from netserver.fujin import codec
from netserver.fujin.codec import Answer
from netserver.fujin.codec_answers import AnswerDecoder, Fetched, Message
from netserver.testing import running
from tests.fujin_peer import Peer, Stream, connect

Row = dict[str, Any]
ROWS: list[Row] = [
    json.loads(line) for line in (Path(__file__).resolve().parents[1] / "data" / "fujin.jsonl").read_text().splitlines()
]
CASES = list(dict.fromkeys(row["case"] for row in ROWS if row["case"] != "_about"))
LEFT_OUT = {"raw_reader_fails_later"}
OF_THEIR_OWN = {"client_ping", "raw_ping_fin_only", "raw_no_pong", "server_stop_writer_reader", "server_stop_client"}
TOPICS = [*(f"k{number:02}" for number in range(1, 21)), "n1", "r1"]
SETTINGS: dict[str, dict[str, Any]] = {"topics": {"auto_create": False}}

TAKEN = codec.done(Answer.WRITE, 2)
NONE = "no messages"
INVALID = "invalid message id"
FOREIGN = b"12345678"
FIRST, OTHER = codec.message_id(0, 1), bytes(8) + b"nonexist"
OURS: dict[tuple[str, int], bytes] = {
    ("client_tx_unsupported", 3): TAKEN,
    ("raw_tx_noid", 3): TAKEN,
    ("raw_tx_cross_endpoint", 5): codec.done(Answer.WRITE, 3),
    ("raw_tx_unknown_topic", 7): codec.done(Answer.WRITE, 4, "writer not found"),
    ("raw_tx_unknown_op", 3): codec.DISCONNECT,
    ("raw_tx_unknown_op", 5): b"",
    ("client_fetch_unsupported", 3): codec.done(Answer.FETCH, 1, NONE),
    ("raw_ack_unsupported", 3): codec.acked(Answer.ACK, 1, 1, codec.result(FOREIGN, INVALID)),
    ("raw_ack_unsupported", 5): codec.acked(Answer.NACK, 2, 1, codec.result(FOREIGN, INVALID)),
    ("raw_push_nats_manual", 1): codec.connected()
    + codec.message(codec.message_id(0, 1), b"nats-msg")
    + codec.message(codec.message_id(0, 2), b"n2"),
    ("raw_reader_pull", 7): b"",
    ("raw_reader_pull", 9): codec.done(Answer.FETCH, 3, "reader is closed")
    + codec.done(Answer.FETCH, 4, "reader is closed")
    + codec.DISCONNECT,
    ("raw_ack_error", 3): codec.acked(Answer.ACK, 1, 2, codec.result(FIRST) + codec.result(OTHER, INVALID)),
}
KAFKA_ID = re.compile(rb"\x00\x00\x00\x0b\x00\x00\x00\x00(.{4})k\d\d", re.DOTALL)
REDIS_ID = re.compile(rb"\x00\x00\x00\x0b.{4}\x00\x00\x00\x00st1", re.DOTALL)


def rows_of(case: str) -> list[Row]:
    return [row for row in ROWS if row["case"] == case]


def translated(case: str, row: Row, redis_ids: list[bytes]) -> bytes:
    """The bytes of a row with our message ids."""

    def kafka(match: re.Match[bytes]) -> bytes:
        return codec.string(codec.message_id(0, int.from_bytes(match[1]) + 1))

    def redis(match: re.Match[bytes]) -> bytes:
        if match[0] not in redis_ids:
            redis_ids.append(match[0])
        return codec.string(codec.message_id(0, redis_ids.index(match[0]) + 1))

    data = OURS.get((case, row["step"])) if row["dir"] == "s2c" else None
    return data if data is not None else REDIS_ID.sub(redis, KAFKA_ID.sub(kafka, bytes.fromhex(row.get("hex", ""))))


def settings_of(case: str) -> dict[str, dict[str, Any]]:
    fujin: dict[str, Any] = {"fetch_wait": 300, "fetch_empty": "zero" if case == "raw_pull_resp_empty" else "error"}
    if case in ("client_ping", "raw_ping_fin_only", "raw_no_pong"):
        fujin |= {"ping_interval": 100, "ping_timeout": 300}
    return {**SETTINGS, "fujin": fujin}


async def publish(server: Server, topic: bytes, *messages: bytes) -> None:
    """Put records into the log, as another protocol does."""
    found = server.log.catalog.get(topic)
    assert found is not None
    partition = server.log.partition(found)
    opened = asyncio.Event()
    partition.when_open(opened.set)
    await opened.wait()
    partition.append(messages)
    committed = asyncio.Event()
    server.log.drain(committed.set)
    await committed.wait()


def topic_of(data: bytes) -> bytes:
    """The topic of a CONNECT READER."""
    return data[7 : 7 + int.from_bytes(data[3:7])]


def pieces(data: bytes, auto: bool) -> Iterator[tuple[bytes, Any]]:
    """(bytes, answer) one after the other."""
    decoder = AnswerDecoder(auto=auto)
    position = 0
    for end in range(1, len(data) + 1):
        decoder.feed(data[end - 1 : end])
        event = decoder.next()
        if event is not None:
            yield data[position:end], event
            position = end


class Replay:
    """One case. What is pushed is published just before it is expected; what is fetched, at the beginning."""

    def __init__(self, server: Server, case: str) -> None:
        self.server = server
        self.case = case
        self.rows = rows_of(case)
        self.redis_ids: list[bytes] = []
        self.streams: dict[str, Stream] = {}
        self.first: dict[str, bytes] = {}

    async def run(self, peer: Peer) -> None:
        await self.preload(peer)
        for row in self.rows:
            name = row["stream"]
            data = translated(self.case, row, self.redis_ids)
            if row["dir"] == "c2s":
                if row.get("note", "").startswith("a new connection") or name not in self.streams:
                    self.streams[name] = peer.open()
                    self.first[name] = data
                if self.streams[name].stopped:
                    continue  # ended by us, where the original goes on
                pause = self.case == "raw_split_bytes"
                for piece in (data[at : at + 1] for at in range(len(data))) if pause else (data,):
                    self.streams[name].send(piece)
                if row.get("end") == "fin":
                    self.streams[name].send(b"", fin=True)
            else:
                await self.expect(name, data, row.get("end"))
        assert not any(stream.came for stream in self.streams.values()), "more than the original says"

    async def preload(self, peer: Peer) -> None:
        auto = False
        topic = b""
        for row in self.rows:
            data = translated(self.case, row, [])
            if row["dir"] == "c2s" and data[:1] == b"\x02" and len(data) > 2:
                auto, topic = data[2] == 1, topic_of(data)
            elif row["dir"] == "s2c":
                for _, event in pieces(data, auto):
                    if isinstance(event, Fetched):
                        for message in event.messages:
                            await publish(self.server, topic, message.value)
        if self.case in ("raw_ack_error", "bad_ack_auto_commit"):  # these ACK what they were not given themselves
            await publish(self.server, topic, b"m")
            stream = await peer.puller(topic)
            stream.send(codec.fetch(1, 1) + codec.DISCONNECT)
            assert b"m" in await stream.rest()

    async def expect(self, name: str, data: bytes, end: str | None) -> None:
        stream = self.streams[name]
        first = self.first[name]
        auto = first[:1] == b"\x02" and first[2:3] == b"\x01"
        for piece, event in pieces(data, auto):
            if isinstance(event, Message):
                await publish(self.server, topic_of(first), event.value)
            assert await stream.take(len(piece)) == piece
        if end == "fin":
            assert await stream.rest() == b""
        assert not stream.was_reset


def prepare(server: Server) -> None:
    for topic in TOPICS:
        server.log.catalog.create(topic.encode())


@pytest.mark.parametrize("case", [case for case in CASES if case not in LEFT_OUT | OF_THEIR_OWN])
def test_captured_exchange(case: str) -> None:
    async def main() -> None:
        async with running(settings=settings_of(case)) as server:
            prepare(server)
            address = server.addresses["fujin"]
            async with connect((address.host, address.port)) as peer:
                await Replay(server, case).run(peer)

    asyncio.run(main())


@pytest.mark.parametrize("answer", [b"\x0b", b""], ids=["client_ping", "raw_ping_fin_only"])
def test_pings(answer: bytes) -> None:
    async def main() -> None:
        async with running(settings=settings_of("client_ping")) as server:
            address = server.addresses["fujin"]
            async with connect((address.host, address.port), answers_pings=False) as peer:
                for number in range(3):
                    ping = await peer.ping_stream(number)
                    assert await ping.rest() == b"\x0b"
                    ping.send(answer, fin=True)
                assert peer.closed_with is None

    asyncio.run(main())


def test_no_pong() -> None:
    async def main() -> None:
        async with running(settings=settings_of("raw_no_pong")) as server:
            address = server.addresses["fujin"]
            async with connect((address.host, address.port), answers_pings=False) as peer:
                await asyncio.wait_for(peer.closed.wait(), 10)
                assert peer.closed_with == (3, "read: deadline exceeded")
                assert [bytes(ping.came) for ping in peer.pings] == [b"\x0b"]

    asyncio.run(main())


def test_server_stop() -> None:
    """``server_stop_writer_reader`` and ``server_stop_client``: one client does nothing, the other one disconnects."""

    async def main() -> None:
        async with running(settings={"fujin": {"force_terminate_timeout": 500}}) as server:
            address = server.addresses["fujin"]
            async with (
                connect((address.host, address.port)) as idle,
                connect((address.host, address.port)) as obedient,
            ):
                streams = [
                    peer.open(codec.connect_writer() + codec.write(1, b"k15", b"x")) for peer in (idle, obedient)
                ]
                for stream in streams:
                    assert await stream.take(6) == codec.done(Answer.WRITE, 1)
                reader = await idle.reader(b"k20", auto=True)
                draining = asyncio.create_task(server.listeners["fujin"].drain(time.monotonic() + 2.5))
                assert await streams[1].take(1) == codec.STOP
                streams[1].send(codec.DISCONNECT)
                assert await streams[1].rest() == codec.DISCONNECT
                assert await streams[0].rest() == codec.STOP + codec.DISCONNECT
                assert await reader.rest() == codec.STOP + codec.DISCONNECT
                await draining
                await asyncio.wait_for(idle.closed.wait(), 5)
                assert idle.closed_with is not None
                assert idle.closed_with[0] == 0
                assert not any(stream.was_reset for stream in (reader, *streams) if not stream.ended)

    asyncio.run(main())


def test_nothing_is_left_out() -> None:
    assert len(CASES) == 65
    assert set(CASES) >= LEFT_OUT | OF_THEIR_OWN | {case for case, _ in OURS}
