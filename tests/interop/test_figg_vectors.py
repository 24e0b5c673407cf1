"""Captured exchanges of the real Figg server and SDK, replayed against ours: the answers have to be the same.

Different on purpose, and only this: offsets count records, not bytes; several ACKs may be one, and stand elsewhere
among DATA and PONG; DETACH is answered; a position beyond the end is answered with the end; another ATTACH of a topic
seeks instead of doubling every message; malformed frames end their own connection, not the server.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from netserver.figg import codec
from netserver.figg.codec import Ack, Attach, Attached, Data, Decoder, Detach, Detached, Pong, Publish
from netserver.testing import server
from tests.echo import run
from tests.figg_support import ONLY_FIGG, Peer

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "figg.jsonl").read_text().splitlines()][1:]
Row = dict[str, Any]
LOST = "sdk_reconnect_resends_state"
"""The case in which the network drops the frames of steps 8 to 10, and the connection after them."""


class Positions:
    """Byte offsets of the original (each message adds 4 + its length) as counts of records."""

    def __init__(self) -> None:
        self.ends: dict[bytes, list[int]] = defaultdict(lambda: [0])

    def published(self, topic: bytes, value: bytes) -> None:
        ends = self.ends[topic]
        ends.append(ends[-1] + 4 + len(value))

    def count(self, topic: bytes, offset: int) -> int:
        ends = self.ends[topic]
        return ends.index(offset) if offset in ends else len(ends) - 1


class Replay:
    """The cases in their order, against one server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.positions = Positions()
        self.compared = 0
        self.peers: list[Peer] = []

    async def peer(self) -> Peer:
        self.peers.append(await Peer.open(*self.address))
        return self.peers[-1]

    async def close(self) -> None:
        for peer in self.peers:
            await peer.close()

    async def case(self, rows: list[Row]) -> None:
        name = rows[0]["case"]
        peer = await self.peer()
        expected: list[codec.Message] = []
        for index, row in enumerate(rows):
            raw = bytes.fromhex(row["hex"])
            if name == LOST and row["step"] == 8:
                await self.receive(peer, expected)
                expected = []
                await peer.close()
                peer = await self.peer()
            if name == LOST and 8 <= row["step"] <= 11:
                continue
            if row["dir"] == "c2s":
                await self.receive(peer, expected)
                expected = []
                await self.send(peer, raw, rows[index + 1 :])
            elif not name.startswith("raw_bad_data"):
                expected += Decoder("client").feed(raw)
                if name == LOST and row["step"] == 16:
                    expected.append(Detached(b"gone"))
        await self.receive(peer, expected)
        await self.end(peer, name, rows)

    async def send(self, peer: Peer, raw: bytes, following: list[Row]) -> None:
        """Send what the client sent, its offsets translated; what it will read and nobody published is published."""
        try:
            messages = Decoder("server").feed(raw)
        except codec.FiggError:
            peer.send(raw)
            return
        for message in messages:
            if isinstance(message, Publish):
                self.positions.published(message.topic, message.data)
            elif isinstance(message, Attach) and message.offset is not None:
                await self.missing(following, message.topic, self.positions.ends[message.topic][-1])
        known = [message for message in messages if isinstance(message, Attach) and message.offset is not None]
        for message in known:
            assert message.offset is not None
            if message.offset in self.positions.ends[message.topic]:
                count = self.positions.count(message.topic, message.offset)
                raw = raw.replace(
                    codec.encode(message)[10:], codec.attach(message.topic, count)[10:]
                )  # behind the flags
        peer.send(raw)

    async def missing(self, following: list[Row], topic: bytes, end: int) -> None:
        """Publish the messages of ``following`` behind ``end`` that no client of the case publishes itself."""
        own: list[tuple[bytes, bytes]] = []
        wanted: list[bytes] = []
        for row in following:
            try:
                messages = Decoder("server" if row["dir"] == "c2s" else "client").feed(bytes.fromhex(row["hex"]))
            except codec.FiggError:
                continue
            own += [(message.topic, message.data) for message in messages if isinstance(message, Publish)]
            wanted += [m.data for m in messages if isinstance(m, Data) and m.topic == topic and m.offset > end]
        values = [value for value in wanted if (topic, value) not in own]
        if values:
            helper = await self.peer()
            helper.publish(topic, 0, *values)
            await helper.acked(len(values) - 1)
            for value in values:
                self.positions.published(topic, value)

    async def receive(self, peer: Peer, expected: list[codec.Message]) -> None:
        """Read until everything expected was there, in its order apart from ACKs and PONGs."""
        acks = {message.seq_num for message in expected if isinstance(message, Ack)}
        rest = [self.translated(message) for message in expected if not isinstance(message, Ack)]
        if any(isinstance(message, Data) for message in rest):
            await self.live(rest)
        top = max(acks, default=-1)
        while rest or top >= 0:
            message = await peer.next()
            if isinstance(message, Ack):
                assert message.seq_num in acks or not acks, message
                if message.seq_num >= top:
                    top = -1
            elif isinstance(message, Pong):
                rest.remove(message)
            else:
                first = next(other for other in rest if not isinstance(other, Pong))
                assert message == first
                rest.remove(first)
            self.compared += 1

    def translated(self, message: codec.Message) -> codec.Message:
        if isinstance(message, Attached):
            return Attached(message.topic, self.positions.count(message.topic, message.offset))
        if isinstance(message, Data):
            ends = self.positions.ends[message.topic]
            number = ends.index(message.offset) if message.offset in ends else -1
            return Data(message.topic, number, message.data)
        return message

    async def live(self, rest: list[codec.Message]) -> None:
        """Messages that another client of the capture published meanwhile."""
        for index, message in enumerate(rest):
            if isinstance(message, Data) and message.offset < 0:
                helper = await self.peer()
                helper.publish(message.topic, 0, message.data)
                await helper.acked(0)
                self.positions.published(message.topic, message.data)
                rest[index] = Data(message.topic, len(self.positions.ends[message.topic]) - 1, message.data)

    async def end(self, peer: Peer, name: str, rows: list[Row]) -> None:
        """What ours does beyond the capture."""
        if "malformed" in rows[0]["note"]:
            assert await peer.closed_by_server() == []
            return
        sent = [message for row in rows if row["dir"] == "c2s" for message in self.decoded(row)]
        if name != LOST and any(isinstance(message, Detach) for message in sent):
            (detach,) = [message for message in sent if isinstance(message, Detach)]
            assert await peer.next() == Detached(detach.topic)
        if name == "raw_bad_offset_max":
            answers = [await peer.next(), await peer.next()]
            assert Ack(0) in answers
            if Attached(b"t", 1) not in answers:  # it came before the record was on disk
                assert Attached(b"t", 0) in answers
                assert await peer.next() == Data(b"t", 1, b"hello")
        if name == "raw_attach_twice":
            peer.publish(b"dup", 0, b"once")
            assert await peer.read(b"dup", 1) == [(1, b"once")]
            self.positions.published(b"dup", b"once")
        await peer.silent()

    @staticmethod
    def decoded(row: Row) -> list[codec.Message]:
        return Decoder("server").feed(bytes.fromhex(row["hex"]))


def test_every_captured_exchange() -> None:
    with server(settings=ONLY_FIGG) as process:
        replay = Replay(process.address("figg"))

        async def main() -> None:
            for name, rows in groupby(ROWS, key=lambda row: str(row["case"])):
                try:
                    await replay.case(list(rows))
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error
            await replay.close()

        run("asyncio", main())
        assert replay.compared > 100
        assert process.is_running


def test_the_replay_notices_a_wrong_answer() -> None:
    replay = Replay(("127.0.0.1", 1))

    class Wrong(Peer):
        def __init__(self) -> None:
            self.ready = [Pong(2)]

        async def next(self) -> codec.Message | None:
            return self.ready.pop(0)  # no socket behind it

    async def main() -> None:
        with pytest.raises(ValueError, match="not in list"):
            await replay.receive(Wrong(), [Pong(1)])

    run("asyncio", main())
