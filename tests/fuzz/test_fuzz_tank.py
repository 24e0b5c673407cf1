"""TANK under random damage: any stream decodes or raises the codec's own error, alike however it is cut; the hot loops
agree with their twin and with the codec; and a running server survives it all and stores nothing of what it refuses.

Meant to run with QUINTLOG_BUILD=checked too. QUINTLOG_NIGHTLY=1 makes it run for minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.formats.batch import BatchWriter
from engine.formats.record import BatchError
from netserver.tank import codec, frames_pure, messages, wire
from netserver.tank import frames as frames_compiled
from netserver.tank.errors import FormatError
from netserver.testing import running
from tests import fuzz_variants
from tests.tank_peer import Peer, bundle, consume, produce, sparse

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = 500_000 if NIGHTLY else 12_500
TWINS = [frames_pure, *([frames_compiled] if frames_compiled.COMPILED else [])]
INTERESTING = (0, 1, 2, 3, 4, 5, 8, 10, 12, 13, 16, 0x40, 0x44, 0x7F, 0x80, 0x81, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)
damaged = partial(fuzz_variants.damaged, interesting=INTERESTING)
VECTORS = Path(__file__).parents[1] / "data" / "tank.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
CORPUS = {
    direction: sorted({bytes.fromhex(row["hex"]) for row in ROWS if row["dir"] == direction and row["hex"]})
    for direction in ("c2s", "s2c")
}
MAKERS: dict[str, Callable[[], codec.Decoder[Any]]] = {"c2s": codec.request_decoder, "s2c": codec.response_decoder}


def events(decoder: codec.Decoder[Any], pieces: Iterator[bytes]) -> tuple[list[Any], bool]:
    found = []
    try:
        for piece in pieces:
            for message in decoder.feed(piece):
                found.append((type(message), message))
    except FormatError:
        return found, True
    return found, False


def cut_anywhere(rng: random.Random, data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        size = rng.choice((1, 2, 5, 30, 1000))
        yield data[position : position + size]
        position += size


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("direction", ["c2s", "s2c"])
def test_codec(direction: str, seed: int) -> None:
    rng = random.Random(seed)
    make, corpus = MAKERS[direction], CORPUS[direction]
    refused = decoded = 0
    for _ in range(ROUNDS):
        data = b"".join(rng.choice(corpus) for _ in range(rng.choice((1, 1, 1, 3))))
        variant = damaged(rng, data)
        whole = events(make(), iter([variant]))
        assert events(make(), cut_anywhere(rng, variant)) == whole, variant.hex()
        if rng.random() < 0.02:
            assert events(make(), (variant[at : at + 1] for at in range(len(variant)))) == whole, variant.hex()
        refused += whole[1]
        decoded += bool(whole[0])
    assert refused > ROUNDS // 20
    assert decoded > ROUNDS // 10


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_frames(seed: int) -> None:
    rng = random.Random(seed)
    good = [
        codec.encode_request(produce(n, b"orders", data))
        for n, data in enumerate((bundle(b"a"), bundle(b"b" * 200, b"c"), bundle(b"d" * 3000, codec=1), sparse(9, 12)))
    ]
    parts = tuple(messages.ProducePartition(0, bundle(b"e%d" % n, codec=n % 2)) for n in range(7))
    good.append(codec.encode_request(messages.ProduceRequest(9, (messages.ProduceTopic(b"orders", parts),))))
    taken = 0
    for _ in range(ROUNDS // 5):
        data = damaged(rng, b"".join(rng.choice(good) for _ in range(rng.randint(1, 5))))
        results = []
        for loops in TWINS:
            writer = BatchWriter(bytearray(20_000), 1)
            writer.begin(1_700_000_000_000)
            outcome = loops.produce_run(data, 0, len(data), b"orders", 0, writer)
            writer.close_batch()
            results.append((outcome, bytes(writer.buffer[: writer.position])))
        assert all(result == results[0] for result in results), data.hex()
        position, _, bundles, records, size_bytes, _ = results[0][0]
        requests = list(codec.request_decoder().feed(data[:position]))
        parts = [part for request in requests for topic in getattr(request, "topics", ()) for part in topic.partitions]
        assert len(parts) == bundles
        assert sum(len(part.bundle) for part in parts) == size_bytes
        assert records >= bundles
        taken += bundles
    assert taken > ROUNDS // 15


@pytest.mark.parametrize("seed", range(2))
def test_chunks_of_damaged_batches(seed: int) -> None:
    rng = random.Random(seed)
    writer = BatchWriter(bytearray(20_000), 1)
    writer.begin(1_700_000_000_000)
    for _ in range(6):
        first_seq = writer.next_seq
        writer.put_bundle(bundle(b"a", b"b"), 0, len(bundle(b"a", b"b")), 2, first_seq, first_seq + 1, 5, False)
        own = sparse(first_seq + 4, first_seq + 9)
        writer.put_bundle(own, 0, len(own), 2, first_seq + 4, first_seq + 9, 5, True)
        if rng.random() < 0.5:
            writer.close_batch()
    writer.close_batch()
    batches = bytes(writer.buffer[: writer.position])
    for _ in range(ROUNDS // 5):
        variant = damaged(rng, batches)
        arguments = rng.randint(0, 70), rng.choice((0, 1, 7, 11)), rng.choice((1, 40, 300, 1 << 20))
        results: list[Any] = []
        for loops in TWINS:
            cut = loops.ChunkCut()
            try:
                found = cut.cut(variant, *arguments)
            except BatchError:
                results.append(None)
                continue
            out = bytearray(cut.size_bytes)
            assert cut.copy_to(variant, out, 0) == cut.size_bytes
            results.append((found, cut.stopped, cut.records, bytes(out), cut.ranges(variant)))
        assert all(result == results[0] for result in results), variant.hex()


def test_a_running_server_takes_no_harm() -> None:
    """Damaged streams on many connections: each is answered or closed, and the good publisher beside them is served."""

    async def main() -> None:
        rng = random.Random(11)
        async with running() as server:
            address = server.addresses["tank"]
            good = await Peer.open((address.host, address.port))
            assert await good.create(b"orders", 3) == 0
            assert await good.create(b"good") == 0
            corpus = [frame for frame in CORPUS["c2s"] if frame[0] != messages.MessageId.CREATE_TOPIC]
            published = 0
            for turn in range(2000 if NIGHTLY else 150):
                peers = [await Peer.open((address.host, address.port)) for _ in range(4)]
                for peer in peers:
                    peer.send(*(damaged(rng, rng.choice(corpus)) for _ in range(rng.randint(1, 4))))
                assert await good.produce(b"good", bundle(b"%d" % turn)) == b"\0"
                published += 1
                for peer in peers:
                    if rng.random() < 0.5:
                        peer.writer.transport.abort()
                    else:
                        await peer.close()
            good.send(consume(1, b"good", (0, 0)))
            (partition,) = (await good.answer(messages.ConsumeResponse)).topics[0].partitions
            assert partition.high_water_mark == published
            assert server.counters["tank"].session_errors == 0
            await good.close()

    asyncio.run(asyncio.wait_for(main(), 1000 if NIGHTLY else 60))


def test_announced_sizes_allocate_nothing() -> None:
    for size in (0, 1, (256 << 20) - 1, 256 << 20):
        decoder = codec.request_decoder()
        found = events(decoder, iter([b"\x02" + wire.U32.pack(size)]))
        assert found == ([], size == 0)
        assert decoder.buffered_bytes <= 5
