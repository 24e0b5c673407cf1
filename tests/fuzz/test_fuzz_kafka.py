"""Kafka under random damage: a running server survives whatever comes, stores nothing of what it refuses, and serves
the good clients beside it.

What decodes and what does not is in ``test_kafka_codec``; records by themselves are in ``test_fuzz_kafka_records``.
QUINTLOG_NIGHTLY=1 makes it run for minutes.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
from pathlib import Path

from netserver.app import Server
from netserver.kafka.apis import Key
from netserver.kafka.codec import Head, encode_request
from netserver.kafka.limits import REQUEST_BYTES_MAX
from tests import fuzz_variants
from tests.kafka_peer import Peer, Record, batch, crc32c, fetch, produce, result_of, with_server

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = 2000 if NIGHTLY else 60
INTERESTING = (0, 1, 2, 3, 7, 8, 0x0F, 0x10, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
VECTORS = Path(__file__).parents[1] / "data" / "kafka.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
CORPUS = sorted({bytes.fromhex(row["hex"]) for row in ROWS if row["dir"] == "c2s" and 12 < len(row["hex"]) < 20_000})
GZIP = 1


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """A variant whose length in front is nearly always made right again."""
    found = bytearray(fuzz_variants.damaged(rng, frame, INTERESTING, first=4))
    if rng.random() < 0.95:
        found[:4] = (len(found) - 4).to_bytes(4, "big", signed=True)
    return bytes(found)


def damaged_records(rng: random.Random) -> bytes:
    """A Produce whose batch is damaged behind its checksum, which is right."""
    data = bytearray(batch(*[Record(b"v" * 9, b"k", headers=(("h", b"x"), ("n", None)))] * rng.randint(1, 30)))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(21, len(data))] = rng.choice(INTERESTING)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(encode_request(Head(Key.PRODUCE, 8, 1), "fuzz", produce("damaged", bytes(data))))


def bomb(size_bytes: int) -> bytes:
    """A batch of a few KiB that says that it has one record, and unpacks to so much."""
    head = bytearray(batch(b"v")[:61])
    head[22] = GZIP
    data = head + gzip.compress(bytes(size_bytes), 9)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def test_a_running_server_takes_no_harm() -> None:
    async def test(server: Server) -> None:
        rng = random.Random(17)
        address = server.addresses["kafka"]
        good = await Peer.open(address)
        await good.make("good")
        await good.make("damaged")
        for turn in range(ROUNDS):
            writers = [(await asyncio.open_connection(address.host, address.port))[1] for _ in range(4)]
            for writer in writers:
                for _ in range(rng.randint(1, 4)):
                    writer.write(damaged_records(rng) if rng.random() < 0.3 else damaged(rng, rng.choice(CORPUS)))
            assert (await good.produce("good", b"%d" % turn))["error"] == 0
            for writer in writers:
                if rng.random() < 0.2:
                    writer.transport.abort()
                else:
                    writer.close()  # behind what was written, which is read whole
        assert [record.value for record in await good.records("good")] == [b"%d" % turn for turn in range(ROUNDS)]
        assert server.counters["kafka"].session_errors == 0

    with_server(test)


def test_bombs_are_refused_one_after_the_other_and_others_are_served() -> None:
    async def test(server: Server) -> None:
        address = server.addresses["kafka"]
        good = await Peer.open(address)
        await good.make("good")
        data = bomb(65 << 20)
        assert len(data) < 80 << 10
        peers = [await Peer.open(address) for _ in range(8 if NIGHTLY else 3)]
        for peer in peers:
            peer.send(Key.PRODUCE, produce("good", data))
        assert (await good.produce("good", b"beside"))["offset"] == 1
        for peer in peers:
            assert result_of(await peer.answer())["error"] in (10, 87)
        assert await good.records("good", 2) == []

    with_server(test)


def test_announced_requests_hold_no_memory_and_nobody_up() -> None:
    """The largest length there is, and then silence, or a byte now and then."""

    async def test(server: Server) -> None:
        address = server.addresses["kafka"]
        good = await Peer.open(address)
        await good.make("good")
        head = REQUEST_BYTES_MAX.to_bytes(4, "big") + bytes((0, Key.PRODUCE, 0, 8, 0, 0, 0, 1))
        halves = [(await asyncio.open_connection(address.host, address.port))[1] for _ in range(300 if NIGHTLY else 50)]
        for writer in halves:
            writer.write(head)
        for turn in range(20):
            halves[turn].write(b"\0")
            assert (await good.produce("good", b"%d" % turn))["offset"] == turn + 1
        for writer in halves:
            writer.transport.abort()

    with_server(test)


def test_who_does_not_read_answers_holds_up_nobody() -> None:
    async def test(server: Server) -> None:
        address = server.addresses["kafka"]
        good = await Peer.open(address)
        await good.make("good")
        await good.produce("good", *[b"v" * 10_000] * 100)
        _, writer = await asyncio.open_connection(address.host, address.port, limit=1 << 10)
        wanted = encode_request(Head(Key.FETCH, 11, 1), "slow", fetch("good", (0, 1)))
        writer.write(bytes(wanted) * 200)
        for turn in range(20):
            assert (await good.produce("good", b"%d" % turn))["offset"] == turn + 101
        writer.transport.abort()

    with_server(test)
