"""The hot loops of Figg: compiled and twin give the same results, and what the codec and the engine give."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from engine.formats.batch import BatchWriter, records
from engine.formats.bundle import check_bundle, encode_bundle
from netserver.figg import codec, frames, frames_pure

pytestmark = pytest.mark.checked

BOTH = pytest.mark.parametrize("hot", [frames, frames_pure], ids=["frames", "twin"])
LIMIT = 1 << 20


def writer_of(size_bytes: int = 1 << 20, next_seq: int = 1) -> BatchWriter:
    writer = BatchWriter(bytearray(size_bytes), next_seq)
    writer.begin(1_000)
    return writer


def stored(writer: BatchWriter) -> list[bytes]:
    writer.close_batch()
    return [record.value for record in records(memoryview(writer.buffer)[: writer.position])]


def batches_of(values: list[bytes], next_seq: int = 1) -> memoryview:
    writer = writer_of(sum(map(len, values)) + 1000 * len(values) + 1000, next_seq)
    for value in values:
        assert writer.put(value, 0, len(value))
    writer.close_batch()
    return memoryview(writer.buffer)[: writer.position]


# --- PUBLISH into the log


@BOTH
@pytest.mark.parametrize("topic", [b"", b"t", b"orders" * 20])
def test_a_run_of_publishes(hot: ModuleType, topic: bytes) -> None:
    values = [b"", b"one", bytes(range(256)) * 300, b"last"]
    numbers = [4, 9, 2**64 - 1, 7]
    src = b"".join(codec.publish(topic, number, value) for number, value in zip(numbers, values, strict=True))
    writer = writer_of()
    found = hot.pack_publishes(src, 0, len(src), topic, writer, LIMIT, LIMIT)
    assert found == (len(src), 4, 4, 2**64 - 1, sum(map(len, values)), False)
    assert stored(writer) == values


@BOTH
@pytest.mark.parametrize(
    "next_frame",
    [
        codec.ping(1),
        codec.publish(b"topiC", 3, b"x"),
        codec.publish(b"topi", 3, b"x"),
        codec.publish(b"topicc", 3, b"x"),
        codec.data(b"topic", 3, b"x"),
        b"\x01" + codec.publish(b"topic", 3, b"x")[1:],
        codec.publish(b"topic", 3, b"x")[:7],
        codec.publish(b"topic", 3, b"x")[:-1],
        codec.publish(b"topic", 3, b"x" * 101),
        codec.publish(b"topic", 3, b"x")[:4] + b"\x00\x00\x00\x15" + codec.publish(b"topic", 3, b"x")[8:],
        codec.publish(b"topic", 3, b"x")[:4] + b"\xff\xff\xff\xff" + codec.publish(b"topic", 3, b"x")[8:],
        codec.publish(b"topic", 3, b"x")[:4] + b"\x00\x00\x01\x00" + codec.publish(b"topic", 3, b"x")[8:] + bytes(300),
        codec.publish(b"topic", 3, b"x")[:-5] + b"\xff\xff\xff\xffx",
        codec.publish(b"topic", 3, b"x")[:-5] + b"\x00\x00\x00\x02x",
        codec.publish(b"topic", 3, b"x")[:8] + b"\xff\xff\xff\xff" + codec.publish(b"topic", 3, b"x")[12:],
    ],
    ids=range(15),
)
def test_a_run_stops_before_anything_unusual(hot: ModuleType, next_frame: bytes) -> None:
    src = codec.publish(b"topic", 1, b"a") + codec.publish(b"topic", 2, b"b")
    end = len(src)
    src += next_frame
    writer = writer_of()
    assert hot.pack_publishes(src, 0, len(src), b"topic", writer, 255, 100) == (end, 2, 1, 2, 2, False)
    assert stored(writer) == [b"a", b"b"]


@BOTH
def test_trailing_bytes_are_skipped_and_any_version_is_taken(hot: ModuleType) -> None:
    one = codec.publish(b"t", 1, b"a")
    src = one[:2] + b"\x12\x34" + (len(one) - 8 + 3).to_bytes(4) + one[8:] + b"\xff\xff\xff" + one
    writer = writer_of()
    assert hot.pack_publishes(src, 0, len(src), b"t", writer, LIMIT, LIMIT)[:2] == (len(src), 2)
    assert stored(writer) == [b"a", b"a"]


@BOTH
def test_a_run_stops_when_the_writer_is_full(hot: ModuleType) -> None:
    src = b"".join(codec.publish(b"t", n, b"x" * 100) for n in range(100))
    writer = writer_of(5_000)
    position, count, lowest, highest, total, full = hot.pack_publishes(src, 0, len(src), b"t", writer, LIMIT, LIMIT)
    assert (full, total, lowest, highest) == (True, 100 * count, 0, count - 1)
    assert position == count * (len(src) // 100)
    assert 30 < count < 50
    assert stored(writer) == [b"x" * 100] * count


@BOTH
def test_a_range_outside_the_source_is_refused(hot: ModuleType) -> None:
    with pytest.raises(ValueError, match="outside"):
        hot.pack_publishes(b"abc", 0, 4, b"t", writer_of(), LIMIT, LIMIT)
    with pytest.raises(ValueError, match="outside"):
        hot.take_data(b"abc", -1, 3, b"t")


def test_both_take_the_same_from_mutated_input() -> None:
    dice = random.Random(5)
    for _ in range(3000):
        parts = [codec.publish(b"topic", dice.randrange(2**64), dice.randbytes(dice.randrange(60))) for _ in range(5)]
        src = bytearray(b"".join(parts))
        for _ in range(dice.randrange(4)):
            src[dice.randrange(len(src))] = dice.choice((0, 1, 5, 0xFF, dice.randrange(256)))
        start, end = sorted((dice.randrange(4), dice.randrange(len(src) + 1)))
        room = dice.choice((300, 500, 10_000))
        first, second = writer_of(room), writer_of(room)
        found = frames.pack_publishes(src, start, end, b"topic", first, 255, 50)
        assert found == frames_pure.pack_publishes(src, start, end, b"topic", second, 255, 50)
        first.close_batch()
        second.close_batch()
        assert first.buffer == second.buffer


# --- the log into DATA


@BOTH
def test_frames_of_batches(hot: ModuleType) -> None:
    values = [b"", b"one", bytes(70_000), b"two"] + [b"%d" % n for n in range(600)]
    batches = batches_of(values, 11)
    last = 10 + len(values)
    for from_seq in (1, 11, 12, 13, 14, 400, last):
        found, next_seq, count, skipped = hot.frame_data(batches, from_seq, last, b"topic", LIMIT, LIMIT)
        first = max(from_seq, 11)
        expected = [codec.data(b"topic", seq, values[seq - 11]) for seq in range(first, last + 1)]
        assert bytes(found) == b"".join(expected)
        assert (next_seq, count, skipped) == (last + 1, last + 1 - first, 0)


@BOTH
@pytest.mark.parametrize("bytes_max", [1, 100, 130, 5_000])
def test_frames_come_in_portions(hot: ModuleType, bytes_max: int) -> None:
    values = [bytes([n % 256]) * (n * 7 % 300) for n in range(500)]
    batches = batches_of(values)
    seq, whole = 1, b""
    while seq <= 500:
        found, next_seq, count, skipped = hot.frame_data(batches, seq, 500, b"t", LIMIT, bytes_max)
        assert (next_seq, skipped) == (seq + count, 0)
        assert count == 1 or len(found) <= bytes_max
        whole += bytes(found)
        seq = next_seq
    assert whole == b"".join(codec.data(b"t", n + 1, value) for n, value in enumerate(values))


@BOTH
def test_frames_of_batches_with_a_gap_of_a_million_numbers(hot: ModuleType) -> None:
    """What the numbers say about the size is not believed then."""
    raw = encode_bundle([b"a", b"b"], [b""] * 2, [5] * 2, sparse_seqs=[1, 1 << 21])
    info = check_bundle(raw, 0, len(raw))
    writer = BatchWriter(bytearray(400), 1)
    writer.begin(5)
    assert writer.put_bundle(
        raw, 0, len(raw), info.count, info.first_seq, info.last_seq, info.max_timestamp_ms, info.sparse
    )
    writer.close_batch()
    batches = bytes(writer.buffer[: writer.position])
    found, next_seq, count, skipped = hot.frame_data(batches, 1, 1 << 21, b"t", LIMIT, LIMIT)
    assert bytes(found) == codec.data(b"t", 1, b"a") + codec.data(b"t", 1 << 21, b"b")
    assert (next_seq, count, skipped) == ((1 << 21) + 1, 2, 0)
    assert hot.frame_data(batches, (1 << 21) + 1, 1 << 21, b"t", LIMIT, LIMIT)[2] == 0, "nothing is left"


@BOTH
def test_records_too_large_for_a_frame_are_left_out(hot: ModuleType) -> None:
    values = [b"x" * 101, b"a", b"x" * 101, b"x" * 100, b"x" * 101]
    found, next_seq, count, skipped = hot.frame_data(batches_of(values), 1, 5, b"t", 100, LIMIT)
    assert bytes(found) == codec.data(b"t", 2, b"a") + codec.data(b"t", 4, b"x" * 100)
    assert (next_seq, count, skipped) == (6, 2, 3)
    found, next_seq, count, skipped = hot.frame_data(batches_of(values), 5, 5, b"t", 100, LIMIT)
    assert (bytes(found), next_seq, count, skipped) == (b"", 6, 0, 1)


@BOTH
@pytest.mark.parametrize("codec_number", [0, 1])
def test_bundles_of_other_protocols(hot: ModuleType, codec_number: int) -> None:
    values = [b"v" * 5_000 + b"%d" % n for n in range(20)]
    seqs = [2 * n + 3 for n in range(20)]
    raw = encode_bundle(values, [b"key"] * 20, [5] * 20, sparse_seqs=seqs, codec=codec_number)
    info = check_bundle(raw, 0, len(raw))
    writer = writer_of(len(raw) + 1000)
    assert writer.put_bundle(raw, 0, len(raw), 20, info.first_seq, info.last_seq, info.max_timestamp_ms, True)
    writer.close_batch()
    batches = memoryview(writer.buffer)[: writer.position]
    found, next_seq, count, _ = hot.frame_data(batches, 6, 41, b"t", LIMIT, LIMIT)
    assert bytes(found) == b"".join(codec.data(b"t", seqs[n], values[n]) for n in range(2, 20))
    assert (next_seq, count) == (42, 18)


# --- the client's side


@BOTH
def test_packed_values(hot: ModuleType) -> None:
    values = [b"", b"one", bytes(range(256)) * 300]
    found = hot.pack_values(b"topic", 7, values, 0, 3)
    assert bytes(found) == b"".join(codec.publish(b"topic", 7 + n, value) for n, value in enumerate(values))
    assert bytes(hot.pack_values(b"", 9, values, 1, 2)) == codec.publish(b"", 9, b"one")
    assert bytes(hot.pack_values(b"", 9, values, 1, 1)) == b""


@BOTH
def test_taken_data(hot: ModuleType) -> None:
    values = [b"", b"one", bytes(range(256)) * 300]
    whole = b"".join(codec.data(b"topic", 7 + n, value) for n, value in enumerate(values))
    src = b"??" + whole + codec.ack(1)
    assert hot.take_data(src, 2, len(src), b"topic") == (2 + len(whole), [7, 8, 9], values)
    assert hot.take_data(src, 2, len(src), b"other") == (2, [], [])
    for end in range(2, len(src), 97):
        position, offsets, found = hot.take_data(src, 2, end, b"topic")
        assert position <= end
        assert found == values[: len(found)]
        assert len(offsets) == len(found)


def test_both_take_the_same_from_mutated_data() -> None:
    dice = random.Random(6)
    for _ in range(3000):
        parts = [codec.data(b"topic", dice.randrange(2**64), dice.randbytes(dice.randrange(60))) for _ in range(5)]
        src = bytearray(b"".join(parts))
        for _ in range(dice.randrange(4)):
            src[dice.randrange(len(src))] = dice.choice((0, 1, 7, 0xFF, dice.randrange(256)))
        start, end = sorted((dice.randrange(4), dice.randrange(len(src) + 1)))
        raw = bytes(src)
        assert frames.take_data(raw, start, end, b"topic") == frames_pure.take_data(raw, start, end, b"topic")
