"""BlipMQ under random damage: any stream decodes or raises the codec's own error, alike however it is cut; the hot
loops agree with their twin and with the codec; a running server survives it all, answers whole frames, and serves
others meanwhile.

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

from engine.formats.batch import BatchWriter, RecordCursor, records
from netserver.blipmq import codec, codec_v2, frames, frames_pure
from netserver.blipmq.codec import CodecError, Decoder, Frame, FrameType, FramingError, PayloadError
from netserver.blipmq.limits import FRAME_LENGTH_MAX
from netserver.testing import running
from tests import fuzz_variants
from tests.blipmq_peer import KEY, AsyncPeer
from tests.echo import ALONE

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = 500_000 if NIGHTLY else 15_000
INTERESTING = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0x10, 0x7F, 0x80, 0xFF)
damaged = partial(fuzz_variants.damaged, interesting=INTERESTING)
VECTORS = Path(__file__).parents[1] / "data" / "blipmq.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
CORPUS = sorted({bytes.fromhex(row["hex"]) for row in ROWS if row["hex"]})
PARSERS: dict[int, Callable[[bytes], Any]] = {
    FrameType.HELLO: codec.parse_hello,
    FrameType.AUTH: codec.parse_auth,
    FrameType.PUBLISH: codec.parse_publish,
    FrameType.SUBSCRIBE: codec.parse_subscribe,
    FrameType.ACK: codec.parse_ack,
    FrameType.NACK: codec.parse_nack,
    FrameType.POLL: lambda payload: codec.parse_subscription_id(payload, "POLL"),
}
VERSION_2 = [
    codec_v2.publish(1, 1, b"a.b", b"body", 5000, b"key"), codec_v2.publish(2, 0, b"a.c", b"", 1),
    codec_v2.publish(3, 1, b"a.b", b"x" * 300, None, b"k"), codec_v2.subscribe(4, b"a.*", 1),
    codec_v2.subscribe(5, b"a.b", 1, b"group", 0), codec_v2.subscribe(6, b"a.b", 0, b"", 3), codec.ack(1, 1),
    codec_v2.subscribe(7, b">", 0), codec.ping(8), codec.poll(9, 1), codec_v2.deliver(3, 1, b"a.b", b"body"),
]  # fmt: skip


def cut_anywhere(rng: random.Random, data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        size = rng.choice((1, 2, 5, 30, 1000))
        yield data[position : position + size]
        position += size


def events(pieces: Iterator[bytes]) -> tuple[list[tuple[Frame, Any]], str]:
    """(frame, what its payload says) of a stream, and the kind of the error that ends it."""
    decoder = Decoder()
    found: list[tuple[Frame, Any]] = []
    try:
        for piece in pieces:
            decoder.receive(piece)
            while (frame := decoder.next_frame()) is not None:
                try:
                    found.append((frame, PARSERS.get(frame.type, bytes)(frame.payload)))
                except PayloadError as error:
                    found.append((frame, error.text))
    except FramingError as error:
        return found, error.kind
    return found, ""


@pytest.mark.parametrize("seed", range(4))
def test_codec(seed: int) -> None:
    rng = random.Random(seed)
    refused = decoded = 0
    for _ in range(ROUNDS):
        variant = damaged(rng, b"".join(rng.choice(CORPUS) for _ in range(rng.choice((1, 1, 1, 3)))))
        whole = events(iter([variant]))
        assert events(cut_anywhere(rng, variant)) == whole, variant.hex()
        if rng.random() < 0.02:
            assert events(variant[at : at + 1] for at in range(len(variant))) == whole, variant.hex()
        refused += bool(whole[1])
        decoded += bool(whole[0])
    assert refused > ROUNDS // 20
    assert decoded > ROUNDS // 10


def test_payloads_of_version_2() -> None:
    rng = random.Random(2)
    parsers = {3: codec_v2.parse_publish, 4: codec_v2.parse_subscribe, codec_v2.DELIVER: codec_v2.parse_deliver}
    good = [frame for frame in VERSION_2 if frame[4] in parsers]
    read = 0
    for _ in range(ROUNDS):
        frame = rng.choice(good)
        payload = damaged(rng, frame[13:])
        try:
            found = parsers[frame[4]](payload)
        except PayloadError:
            continue
        read += 1
        if isinstance(found, codec_v2.Deliver):
            assert codec_v2.deliver(found.tag, found.qos, found.topic, found.body)[13:] == payload
        elif isinstance(found, codec_v2.Publish):
            built = codec_v2.publish(1, found.qos, found.topic, found.body, found.ttl_ms, found.key)
            assert built[13:] == payload
        else:
            assert payload.startswith(codec_v2.subscribe(1, *found)[13:])
    assert read > ROUNDS // 20


@pytest.mark.parametrize("seed", range(4))
def test_hot_loops(seed: int) -> None:
    """Frame by frame through a damaged stream: both agree, and what they take is what the codec sees."""
    rng = random.Random(seed)
    good = [
        codec.publish(1, 1, b"orders", b"a"), codec.publish(2, 1, b"orders", b"b" * 200), codec.ack(3, 9),
        codec.publish(3, 0, b"orders", b""), codec.poll(4, 7), codec.poll(5, 7), codec.ack(1, 7), codec.ack(2, 7),
        codec.ping(6), codec.subscribe(7, b"orders", 1),
    ]  # fmt: skip
    taken = 0
    for _ in range(ROUNDS // 5):
        data = damaged(rng, b"".join(rng.choices(good, k=rng.randint(1, 6))))
        decoder = Decoder()
        decoder.receive(data)
        position = 0
        while position < len(data):
            outcome = look(frames, data, position)
            assert outcome == look(frames_pure, data, position), data.hex()
            kind, behind, count = outcome[0][:3]
            if kind in (0, -1):
                break
            if outcome[1]:
                for value in outcome[1]:
                    frame = decoder.next_frame()
                    assert frame is not None
                    assert codec.parse_publish(frame.payload) == (1, b"orders", value)
                    taken += 1
                position = outcome[2]
                continue
            for _ in range(max(count, 1)):
                frame = decoder.next_frame()
                assert frame is not None
                assert frame.type == kind
            position = behind
    assert taken > ROUNDS // 50


def look(loops: Any, data: bytes, position: int) -> tuple[tuple[int, int, int, int], list[bytes], int, list[int]]:
    """What ``scan`` says, the values packed from there, the position behind them, the ranges of ACKs."""
    try:
        scanned = loops.scan(data, position, len(data), FRAME_LENGTH_MAX)
    except FramingError as error:
        return (-1, hash(error.kind), 0, 0), [], 0, []
    writer = BatchWriter(bytearray(3000), 1)
    writer.begin(1_700_000_000_000)
    behind, count = loops.pack_publishes(data, position, len(data), writer, b"orders", 1, 150, bytearray(80))
    writer.close_batch()
    values = [record.value for record in records(writer.buffer, 0, writer.position)]
    assert len(values) == count
    ranges = loops.ack_ranges(data, position, scanned[2], 1000) if scanned[0] == FrameType.ACK else []
    return scanned, values, behind, ranges


@pytest.mark.parametrize("seed", range(4))
def test_deliveries(seed: int) -> None:
    """Random batches, limits and rooms: both write the same bytes and stop at the same record."""
    rng = random.Random(seed)
    polls = b"".join(codec.poll(n, 3) for n in range(12))
    for _ in range(ROUNDS // 20):
        batches = bytearray()
        seq = rng.randint(1, 100)
        for _ in range(rng.randint(1, 4)):
            writer = BatchWriter(bytearray(4000), seq)
            writer.begin(rng.randint(100, 200), rng.randrange(2))
            for _ in range(rng.randint(1, 4)):
                assert writer.put_record(bytes(rng.randrange(60)), b"k" * rng.randrange(3), rng.randint(100, 200))
            writer.close_batch()
            batches += writer.buffer[: writer.position]
            seq = writer.next_seq + rng.choice((0, 0, 3))
        out_bytes, qos, oldest_ms = rng.randrange(30, 500), rng.randrange(2), rng.choice((0, 0, 150))
        base, push = rng.choice((0, 0, (1 << 64) - (3 << 44))), rng.random() < 0.5
        outcomes = []
        for loops in (frames, frames_pure):
            cursor = RecordCursor(bytes(batches), 0, len(batches), 0)
            assert cursor.next()
            found = []
            limits = random.Random(seed)
            for _ in range(20):
                out = bytearray(out_bytes)
                last, limit = cursor.seq + limits.randrange(8), limits.randint(1, 12)
                asked = b"" if push else polls
                result = loops.deliver(out, 0, cursor, last, limit, base, qos, b"topic", asked, 0, oldest_ms, abs, push)
                found.append((result, bytes(out[: result[0]])))
                if result[2] == frames.END:
                    break
                if result[2] in (frames.SKIP, frames.FULL) and not cursor.next():
                    break
            outcomes.append(found)
        assert outcomes[0] == outcomes[1]


def test_builders_refuse_what_no_frame_can_hold() -> None:
    for make in (
        lambda: codec.publish(1, 1, b"t", bytes(FRAME_LENGTH_MAX)),
        lambda: codec.subscribe(1, b"t" * 70_000, 1),
        lambda: codec.auth(1, "k" * 70_000),
    ):
        with pytest.raises(CodecError):
            make()


def test_running_server() -> None:
    """Damaged streams of many connections, before and after the login; a good connection is served all the time."""
    rng = random.Random(5)

    async def attack(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        version = rng.randint(1, 2)
        corpus = CORPUS if version == 1 or rng.random() < 0.2 else VERSION_2
        stream = damaged(rng, b"".join(rng.choices(corpus, k=rng.randint(1, 20))))
        if rng.random() < 0.7:
            stream = codec.hello(1, version) + codec.auth(2, KEY) + stream
        for piece in cut_anywhere(rng, stream) if rng.random() < 0.3 else [stream]:
            writer.write(piece)
            await asyncio.sleep(0)
        writer.write_eof()
        try:
            got = await reader.read(-1)
        except ConnectionResetError:
            return
        finally:
            writer.close()
        delivery = FrameType.PUBLISH if version == 1 else codec_v2.DELIVER
        while got:
            size = int.from_bytes(got[:4], "big")
            assert 9 <= size <= len(got) - 4
            assert got[4] in (FrameType.ACK, FrameType.NACK, FrameType.PONG, delivery)
            got = got[4 + size :]

    async def main() -> None:
        async with running(settings={**ALONE, "blipmq": {"listen": "127.0.0.1:0"}}) as server:
            address = (server.addresses["blipmq"].host, server.addresses["blipmq"].port)
            peer = await AsyncPeer.open(address)
            subscription = await peer.subscribe(b"good")
            for number in range(10_000 if NIGHTLY else 100):
                async with asyncio.timeout(20):
                    await asyncio.gather(*(attack(address) for _ in range(10)))
                await peer.publish(b"good", b"%d" % number)
                ((tag, body),) = await peer.poll(subscription)
                assert body == b"%d" % number
                assert await peer.ack(subscription, tag) == []
            assert server.counters["blipmq"].session_errors == 0
            peer.writer.close()

    asyncio.run(main())
