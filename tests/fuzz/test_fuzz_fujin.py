"""Fujin under random damage: any bytes decode or raise the codec's own error, alike however they are cut; the hot loops
agree with their twin and with the codec; and a running server survives it all.

Meant to run with QUINTLOG_BUILD=checked too. QUINTLOG_NIGHTLY=1 makes it run for minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.formats.batch import BatchWriter, records
from netserver.fujin import codec, frames_pure
from netserver.fujin import frames as frames_compiled
from netserver.fujin.codec import Decoder, FujinError, Op, Options, Write
from netserver.fujin.codec_answers import AnswerDecoder, Fetched, Message
from netserver.testing import running
from tests import fuzz_variants
from tests.fujin_peer import Peer, connect

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = 500_000 if NIGHTLY else 12_500
TWINS = [frames_pure, *([frames_compiled] if frames_compiled.COMPILED else [])]
INTERESTING = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 0x40, 0x63, 0x7F, 0x80, 0xFE, 0xFF)
damaged = partial(fuzz_variants.damaged, interesting=INTERESTING, distances=(5, 25, 100))
VECTORS = Path(__file__).parents[1] / "data" / "fujin.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
LIMIT = 2000


def corpus(direction: str) -> list[bytes]:
    """Whole sides of captured streams."""
    streams: dict[tuple[str, str], bytes] = {}
    for row in ROWS:
        if row["dir"] == direction and row.get("hex"):
            key = (row["case"], row["stream"])
            streams[key] = streams.get(key, b"") + bytes.fromhex(row["hex"])
    return sorted(set(streams.values()))


CORPUS = {"c2s": corpus("c2s"), "s2c": corpus("s2c")}


def events(decoder: Decoder | AnswerDecoder, pieces: Iterator[bytes]) -> list[Any]:
    found: list[Any] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (event := decoder.next()) is not None:
                found.append((type(event), event))
    except FujinError as error:
        found.append((FujinError, (error.kind, error.answer, error.is_bare)))
    assert decoder.needed <= 1 + 2 * 1024 * 1024, "what a receiver may promise is bounded"
    return found


def cut_anywhere(rng: random.Random, data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        size = rng.choice((1, 2, 5, 30, 1000))
        yield data[position : position + size]
        position += size


def make(direction: str, rng: random.Random) -> tuple[Any, ...]:
    if direction == "c2s":
        return (Decoder, Options(LIMIT, headers=rng.random() < 0.2))
    return (lambda auto: AnswerDecoder(auto=auto, message_bytes_max=LIMIT), rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("direction", ["c2s", "s2c"])
def test_codec(direction: str, seed: int) -> None:
    rng = random.Random(seed)
    refused = decoded = 0
    for _ in range(ROUNDS):
        variant = damaged(rng, rng.choice(CORPUS[direction]))
        decoder, argument = make(direction, rng)
        whole = events(decoder(argument), iter([variant]))
        assert events(decoder(argument), cut_anywhere(rng, variant)) == whole, variant.hex()
        if rng.random() < 0.02:
            assert events(decoder(argument), (variant[at : at + 1] for at in range(len(variant)))) == whole
        refused += bool(whole) and whole[-1][0] is FujinError
        decoded += bool(whole) and whole[0][0] is not FujinError
    assert refused > ROUNDS // 20
    assert decoded > ROUNDS // 10


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_writes(seed: int) -> None:
    rng = random.Random(seed)
    good = [codec.write(n, b"orders", rng.randbytes(n)) for n in (1, 2, 200, 1500)]
    taken = 0
    for _ in range(ROUNDS // 3):
        data = damaged(rng, b"".join(rng.choice(good) for _ in range(rng.randint(1, 6))))
        results = []
        for loops in TWINS:
            writer = BatchWriter(bytearray(6_000), 1)
            writer.begin(1_700_000_000_000)
            answers = bytearray(30)
            outcome = loops.pack_writes(data, 0, len(data), b"orders", writer, LIMIT, answers)
            writer.close_batch()
            results.append((outcome, bytes(answers), bytes(writer.buffer[: writer.position])))
        assert all(result == results[0] for result in results), data.hex()
        (position, count, _), answers_bytes, batches = results[0]
        decoder = Decoder(Options(LIMIT))
        decoder.feed(codec.connect_writer() + data[:position])
        writes = [command for command in iter(decoder.next, None) if isinstance(command, Write)]
        assert len(writes) == count
        assert answers_bytes[: 6 * count] == b"".join(codec.done(codec.Answer.WRITE, write.cid) for write in writes)
        assert [record.value for record in records(batches)] == [write.message for write in writes]
        taken += count
    assert taken > ROUNDS // 10


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_ids_answers_and_messages(seed: int) -> None:
    rng = random.Random(seed)
    ids = b"".join(codec.string(codec.message_id(0, n)) for n in (1, 2, 3, 9, 8))
    written = b"".join(codec.done(codec.Answer.WRITE, cid) for cid in (2**32 - 1, 0, 1, 7))
    messages = b"".join(codec.message(b"id" * n, b"v" * n) for n in (0, 1, 5, 100))
    for _ in range(ROUNDS // 3):
        raw = damaged(rng, rng.choice((ids, written, messages, codec.ack(Op.ACK, 1, [b"", b"x"]))))
        results = []
        for loops in TWINS:
            found_ids: list[bytes] = []
            values: list[bytes] = []
            count, ranges = loops.id_ranges(raw, 0, 20, 0)
            results.append(
                (
                    count,
                    ranges,
                    loops.ok_results(raw, 0, count),
                    loops.take_written(raw, 0, len(raw)),
                    loops.take_messages(raw, 0, len(raw), 3, True, True, found_ids, values),
                    loops.take_messages(raw, 0, len(raw), 3, False, False, [], values),
                    found_ids,
                    values,
                )
            )
        assert all(result == results[0] for result in results), raw.hex()


@pytest.mark.parametrize("seed", range(2))
def test_a_running_server(seed: int) -> None:
    """Damaged streams end, one way or the other; the connection, the server and what it stores are sound afterwards."""
    rng = random.Random(seed)
    rounds = 20_000 if NIGHTLY else 300

    async def one(peer: Peer) -> None:
        variant = damaged(rng, rng.choice(CORPUS["c2s"]))
        stream = peer.open()
        for piece in cut_anywhere(rng, variant):
            if not stream.stopped:
                stream.send(piece)
            if rng.random() < 0.1:
                await asyncio.sleep(0)
        end = rng.random()
        if end < 0.1:
            stream.reset()
            return
        if end < 0.2:
            stream.stop()
            return
        if not stream.stopped:
            stream.send(b"", fin=True)
        await asyncio.wait_for(stream.rest(), 20)

    async def main() -> None:
        async with running(settings={"fujin": {"fetch_wait": 50, "nack_delay": 0}}) as server:
            address = server.addresses["fujin"]
            async with connect((address.host, address.port)) as peer:
                for _ in range(rounds // 10):
                    await asyncio.gather(*(one(peer) for _ in range(10)))
                await peer.publish(b"sound", b"1", b"2")
                reader = await peer.puller(b"sound", auto=True)
                reader.send(codec.fetch(1, 9))
                assert await reader.event() == Fetched(1, [Message(b"", b"1"), Message(b"", b"2")])
                assert peer.closed_with is None
            assert server.counters["fujin"].session_errors == 0
            assert server.counters["fujin"].protocol_errors

    asyncio.run(main())
