"""Hot loops of TANK, compiled and not: Produce frames into a writer, batches into chunks, on valid and broken input."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.batch import BatchWriter
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BatchError, BundleError
from netserver.tank import codec, frames, frames_pure, messages, wire

pytestmark = pytest.mark.checked

TWINS = [frames_pure, *([frames] if frames.COMPILED else [])]
both = pytest.mark.parametrize("loops", TWINS, ids=lambda module: module.__name__.rsplit(".", 1)[1])
VECTORS = Path(__file__).parents[3] / "data" / "tank.jsonl"


def dense(*values: bytes, codec: int = 0) -> bytes:
    return encode_bundle(values, None, [1_700_000_000_000] * len(values), codec=codec)


def sparse(*seqs: int) -> bytes:
    return encode_bundle([b"s%d" % seq for seq in seqs], None, [5] * len(seqs), sparse_seqs=seqs)


def produce(bundle: bytes, request_id: int = 7, name: bytes = b"orders", partition_id: int = 3, **more: Any) -> bytes:
    topics = (messages.ProduceTopic(name, (messages.ProducePartition(partition_id, bundle),)),)
    return codec.encode_request(messages.ProduceRequest(request_id, topics, **more))


def produce_parts(request_id: int, *bundles: bytes, last_partition_id: int = 3) -> bytes:
    """As the C++ library sends what has gathered for a partition."""
    parts = [messages.ProducePartition(3, bundle) for bundle in bundles]
    parts[-1] = messages.ProducePartition(last_partition_id, bundles[-1])
    topics = (messages.ProduceTopic(b"orders", tuple(parts)),)
    return codec.encode_request(messages.ProduceRequest(request_id, topics))


def run(loops: Any, data: bytes, position: int = 0, size: int = 1 << 20) -> tuple[tuple[Any, ...], BatchWriter]:
    writer = BatchWriter(bytearray(size), 10)
    writer.begin(1_700_000_000_000)
    return loops.produce_run(data, position, len(data), b"orders", 3, writer), writer


@both
def test_head_of_a_frame(loops: Any) -> None:
    frame = produce(b"bundle", 0xFFFF_FFFE, b"some_topic", 0x1234, client_id=b"cli", client_version=0)
    cursor = loops.ProduceCursor()
    assert cursor.open(b"xx" + frame, 2, 2 + len(frame))
    assert (b"xx" + frame)[cursor.name_start : cursor.name_end] == b"some_topic"
    assert (b"xx" + frame)[cursor.bundle_start : cursor.bundle_end] == b"bundle"
    assert (cursor.request_id, cursor.partition_id, cursor.frame_end) == (0xFFFF_FFFE, 0x1234, 2 + len(frame))
    for end in range(len(frame)):
        assert not cursor.open(frame, 0, end)
    assert not cursor.open(frame, 0, len(frame) + 1)
    assert not cursor.open(frame, -1, len(frame))


@both
def test_a_head_never_reaches_beyond_its_frame(loops: Any) -> None:
    frame = produce(b"bundle")
    for size in range(len(frame) - 5):
        shorter = frame[:1] + wire.U32.pack(size) + frame[5:]
        assert not loops.ProduceCursor().open(shorter, 0, len(shorter)), size


@both
@pytest.mark.parametrize(
    "other",
    [
        produce(dense(b"x"), name=b"orderz"),
        produce(dense(b"x"), name=b"order"),
        produce(dense(b"x"), partition_id=4),
        produce(sparse(100, 105)),
        produce(b""),
        produce(b"\x04"),
        produce(dense(b"x"), with_seq=True),
        produce_parts(9, dense(b"x"), dense(b"y"), last_partition_id=4),
        produce_parts(9, dense(b"x"), sparse(100, 105)),
        produce_parts(9, dense(b"x"), b""),
        produce_parts(9, dense(b"x"), b"\x04"),
        produce_parts(9, dense(b"x" * 600_000), dense(b"y" * 600_000)),
        codec.encode_request(messages.ProduceRequest(1, ())),
        codec.encode_request(messages.ProduceRequest(1, (messages.ProduceTopic(b"orders", ()),))),
        codec.encode_request(messages.StatusRequest(1)),
        produce(dense(b"x"))[:-1],
        b"",
    ],
)
def test_run_stops_before_what_is_different(loops: Any, other: bytes) -> None:
    good = [dense(b"one"), dense(b"two", b"three"), dense(b"x" * 300, codec=1)]
    data = b"".join(produce(bundle, index) for index, bundle in enumerate(good)) + other
    (position, full, bundles, records, size_bytes, answers), writer = run(loops, data)
    assert position == len(data) - len(other)
    assert (full, bundles, records, size_bytes) == (False, 3, 4, sum(map(len, good)))
    assert answers == b"".join(b"\x01\x05\0\0\0" + wire.U32.pack(index) + b"\0" for index in range(3))
    assert writer.next_seq == 14
    writer.close_batch()
    cut = loops.ChunkCut()
    assert cut.cut(bytes(writer.buffer[: writer.position]), 1, 0, 1 << 20)
    assert cut.size_bytes == sum(len(bundle) + len(wire.varint(len(bundle))) for bundle in good)


@both
def test_run_stops_for_lack_of_room_and_goes_on(loops: Any) -> None:
    data = b"".join(produce(dense(b"v%d" % index * 10), index) for index in range(50))
    taken, position, answers = [], 0, b""
    while position < len(data):
        (position, full, bundles, _, _, more), writer = run(loops, data, position, 700)
        assert full == (position < len(data))
        assert bundles
        answers += more
        writer.close_batch()
        taken.append(bundles)
    assert sum(taken) == 50
    assert len(taken) > 3
    assert [wire.U32.unpack_from(answers, at + 5)[0] for at in range(0, 500, 10)] == list(range(50))


@both
def test_several_bundles_of_a_request(loops: Any) -> None:
    first = [dense(b"a%d" % n, *[b"b"] * (n % 3), codec=n % 2) for n in range(255)]
    second = [dense(b"last"), dense(b"of", b"all")]
    data = produce_parts(1, *first) + produce(dense(b"between"), 2) + produce_parts(3, *second)
    (position, full, bundles, records, size_bytes, answers), writer = run(loops, data)
    assert (position, full, bundles, records) == (len(data), False, 258, 255 * 2 + 4)
    assert size_bytes == sum(map(len, first + second)) + len(dense(b"between"))
    codes = {1: 255, 2: 1, 3: 2}
    assert answers == b"".join(
        b"\x01" + wire.U32.pack(4 + count) + wire.U32.pack(request_id) + bytes(count)
        for request_id, count in codes.items()
    )
    writer.close_batch()
    src = bytes(writer.buffer[: writer.position])
    cut = loops.ChunkCut()
    assert cut.cut(src, 1, 0, 1 << 20)
    assert chunk(cut, src) == b"".join(map(prefixed, [*first, dense(b"between"), *second]))


@both
def test_all_bundles_of_a_request_have_room_or_none_is_written(loops: Any) -> None:
    bundles = [dense(b"x" * 100)] * 20
    data = produce_parts(1, *bundles)
    cursor = loops.ProduceCursor()
    assert cursor.open(data, 0, len(data))
    room_bytes = loops.parts_room(cursor)
    assert room_bytes >= sum(len(bundle) + 4 + 88 for bundle in bundles)
    (position, full, *_), writer = run(loops, data, 0, room_bytes - 1)
    assert (position, full, writer.next_seq) == (0, True, 10)
    (position, full, count, *_), writer = run(loops, data, 0, room_bytes)
    assert (position, full, count, writer.next_seq) == (len(data), False, 20, 30)


@both
def test_client_id_and_long_varints_do_not_matter(loops: Any) -> None:
    bundle = dense(b"value")
    frame = produce(bundle, client_id=b"c" * 255)
    at = len(frame) - len(bundle) - 1
    longer = frame[:at] + bytes((len(bundle) | 0x80, 0x80, 0)) + frame[at + 1 :]
    longer = longer[:1] + wire.U32.pack(len(longer) - 5) + longer[5:] + b"junk"
    assert run(loops, longer)[0][:3] == (len(longer) - 4, False, 1)


# --- chunks

BUNDLES = [dense(b"a"), dense(b"b", b"c"), sparse(20, 25, 26), dense(b"d"), sparse(40), dense(*[b"e"] * 20)]
SEQS = [(1, 1), (2, 3), (20, 26), (27, 27), (40, 40), (41, 60)]


def stored_batches(close_after: tuple[int, ...] = (), bundles: list[bytes] = BUNDLES, seqs: Any = SEQS) -> bytes:
    writer = BatchWriter(bytearray(1 << 20), 1)
    writer.begin(1_700_000_000_000)
    for index, (bundle, (first_seq, last_seq)) in enumerate(zip(bundles, seqs, strict=True)):
        info = check_bundle(bundle, 0, len(bundle))
        assert writer.put_bundle(bundle, 0, len(bundle), info.count, first_seq, last_seq, 5, info.sparse)
        if index in close_after:
            writer.close_batch()
    writer.close_batch(b"\x80")  # an extension, which chunks leave out
    return bytes(writer.buffer[: writer.position])


def prefixed(bundle: bytes) -> bytes:
    return wire.varint(len(bundle)) + bundle


def chunk(cut: Any, src: bytes) -> bytes:
    out = bytearray(b"head" + bytes(cut.size_bytes))
    assert cut.copy_to(src, out, 4) == len(out)
    assert b"".join(src[start:end] for start, end in cut.ranges(src)) == out[4:]
    assert out[:4] == b"head"
    return bytes(out[4:])


@both
@pytest.mark.parametrize("close_after", [(), (0,), (1, 3), (0, 1, 2, 3, 4)])
def test_chunk_from_every_number_and_of_every_size(loops: Any, close_after: tuple[int, ...]) -> None:
    src = stored_batches(close_after)
    wanted = [prefixed(bundle) for bundle in BUNDLES]
    for seq in range(62):
        first = next((index for index, (_, last_seq) in enumerate(SEQS) if last_seq >= seq), len(SEQS))
        for size in (0, 1, 14, 15, 30, 60, 100, 1000):
            cut = loops.ChunkCut()
            assert cut.cut(src, seq, 0, size) == (first < len(SEQS))
            expected, last = b"", first
            for index in range(first, len(SEQS)):
                expected += wanted[index]
                last = index
                if len(expected) >= size:
                    break
            if expected:
                assert chunk(cut, src) == expected
                assert (cut.first_seq, cut.last_seq) == (SEQS[first][0], SEQS[last][1])
                assert cut.sparse == (first in (2, 4))
                assert cut.stopped == (len(expected) >= size)
                counts = (check_bundle(bundle, 0, len(bundle)).count for bundle in BUNDLES[first : last + 1])
                assert cut.records == sum(counts)
                boundaries = {0, *(index + 1 for index in close_after)}
                assert cut.batches == 1 + sum(first < boundary <= last for boundary in boundaries)
            else:
                assert not cut.stopped


@both
def test_chunk_ends_where_dense_numbers_jump(loops: Any) -> None:
    bundles = [dense(b"a"), dense(b"b"), sparse(30), dense(b"c"), dense(b"d")]
    src = stored_batches((), bundles, [(1, 1), (5, 5), (30, 30), (31, 31), (90, 90)])
    parts, seq = [], 1
    while seq < 91:
        cut = loops.ChunkCut()
        assert cut.cut(src, seq, 0, 1 << 20)
        parts.append((cut.first_seq, cut.last_seq, cut.stopped))
        seq = cut.last_seq + 1
    assert parts == [(1, 1, True), (5, 31, True), (90, 90, False)]


@both
def test_chunk_that_goes_on_in_other_batches(loops: Any) -> None:
    cut = loops.ChunkCut()
    assert cut.cut(stored_batches((), [dense(b"x")], [(9, 9)]), 9, 9, 100)
    assert not cut.cut(stored_batches((), [dense(b"x")], [(9, 9)]), 8, 8, 100)
    assert cut.stopped
    assert cut.cut(stored_batches((), [sparse(9)], [(9, 9)]), 8, 8, 100)
    assert cut.sparse
    assert not cut.cut(b"", 1, 0, 100)
    assert not cut.stopped


@both
def test_no_room_to_copy_to(loops: Any) -> None:
    src = stored_batches()
    cut = loops.ChunkCut()
    cut.cut(src, 1, 0, 1 << 20)
    for out, position in ((bytearray(cut.size_bytes - 1), 0), (bytearray(cut.size_bytes), 1), (bytearray(500), -1)):
        with pytest.raises(ValueError, match="no room"):
            cut.copy_to(src, out, position)


@both
def test_cut_batches_are_refused(loops: Any) -> None:
    src = stored_batches((1, 3))
    for end in range(1, len(src)):
        try:
            loops.ChunkCut().cut(src[:end], 1, 0, 1 << 20)
        except BatchError:
            continue
        assert end in [src.index(src[:4], at) for at in range(1, end + 1) if src[at : at + 4] == src[:4]]


@given(st.data())
def test_twins_agree_on_any_frames(data: st.DataObject) -> None:
    good = [produce(dense(b"abc", b"d"), 1), produce(dense(b"x" * 200, codec=1), 2), produce(sparse(4, 8), 3)]
    stream = bytearray(b"".join(data.draw(st.lists(st.sampled_from(good), max_size=6))))
    for _ in range(data.draw(st.integers(0, 3))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    stream = stream[: data.draw(st.integers(0, len(stream)))]
    results = []
    for loops in TWINS:
        outcome, writer = run(loops, bytes(stream), 0, data.draw(st.just(4096)))
        writer.close_batch()
        results.append((outcome, bytes(writer.buffer[: writer.position])))
    assert all(result == results[0] for result in results)
    # whoever takes frames one by one comes to the same place, or refuses the next one
    position, bundles = results[0][0][0], results[0][0][2]
    decoder = codec.request_decoder()
    taken = list(itertools.islice(decoder.feed(bytes(stream)[:position]), bundles + 1))
    assert len(taken) == bundles
    assert decoder.buffered_bytes == 0


@given(st.data())
def test_twins_agree_on_any_batches(data: st.DataObject) -> None:
    src = bytearray(stored_batches(data.draw(st.sampled_from([(), (0,), (1, 3), (0, 1, 2, 3, 4)]))))
    for _ in range(data.draw(st.integers(0, 3))):
        src[data.draw(st.integers(0, len(src) - 1))] = data.draw(st.integers(0, 255))
    arguments = [data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70)), data.draw(st.integers(0, 300))]
    results = []
    for loops in TWINS:
        cut = loops.ChunkCut()
        try:
            found = cut.cut(bytes(src), *arguments)
        except BatchError:
            results.append(None)
            continue
        results.append(
            (found, cut.stopped, found and (cut.first_seq, cut.last_seq, cut.records, chunk(cut, bytes(src))))
        )
    assert all(result == results[0] for result in results)


def test_bundles_of_the_captures_pass_through_unchanged() -> None:
    bundles = []
    for line in VECTORS.read_text().splitlines()[1:]:
        row = json.loads(line)
        frame = bytes.fromhex(row["hex"])
        cursor = frames_pure.ProduceCursor()
        if row["dir"] == "c2s" and cursor.open(frame, 0, len(frame)):
            bundles.append(frame[cursor.bundle_start : cursor.bundle_end])
    assert len(bundles) > 30
    plain = [bundle for bundle in bundles if not bundle[0] & 0x40]
    data = b"".join(produce(bundle) for bundle in plain)
    for loops in TWINS:
        (position, *_), writer = run(loops, data)
        assert position == len(data)
        writer.close_batch()
        src = bytes(writer.buffer[: writer.position])
        cut = loops.ChunkCut()
        assert cut.cut(src, 1, 0, 1 << 20)
        assert chunk(cut, src) == b"".join(map(prefixed, plain))


def test_snappy_is_checked_within_the_run() -> None:
    whole = dense(b"v" * 5000, codec=1)
    assert cramjam.snappy.decompress_raw(whole[1:])
    broken = bytearray(whole)
    broken[len(broken) // 2] ^= 0xFF
    rng = random.Random(5)
    for loops in TWINS:
        assert run(loops, produce(whole))[0][2] == 1
        for _ in range(200):
            other = bytearray(whole)
            other[rng.randrange(len(other))] ^= 1 << rng.randrange(8)
            outcome = run(loops, produce(bytes(other)))[0]
            try:
                check_bundle(bytes(other), 0, len(other))
            except ValueError:
                assert outcome[2] == 0
            else:
                assert outcome[2] == (not other[0] & 0x40)


# --- chunks unpacked


@both
def test_unpacked_chunk(loops: Any) -> None:
    keyed = encode_bundle([b"v", b"w"], [b"k", b""], [7, 8])
    chunk_bytes = b"".join(map(prefixed, (dense(b"a", b"b"), sparse(20, 25), keyed, dense(b"z" * 2000, codec=1))))
    values, keys, timestamps, seqs, next_seq, used = loops.unpack_chunk(chunk_bytes, 5, 0)
    assert values == [b"a", b"b", b"s20", b"s25", b"v", b"w", b"z" * 2000]
    assert keys == [b"", b"", b"", b"", b"k", b"", b""]
    assert timestamps[2:6] == [5, 5, 7, 8]
    assert seqs == [5, 6, 20, 25, 26, 27, 28]
    assert (next_seq, used) == (29, len(chunk_bytes))
    later = loops.unpack_chunk(chunk_bytes, 5, 25)
    assert (later[0][0], later[3], later[4]) == (b"s25", [25, 26, 27, 28], 29)
    assert loops.unpack_chunk(chunk_bytes, 5, 99)[:5] == ([], [], [], [], 29)
    assert loops.unpack_chunk(b"", 5, 0) == ([], [], [], [], 5, 0)


@both
def test_unpacked_chunk_that_is_cut(loops: Any) -> None:
    first, second = prefixed(dense(b"a", b"b")), prefixed(dense(b"c" * 200))
    for end in range(len(first) + len(second)):
        found = loops.unpack_chunk((first + second)[:end], 1, 0)
        whole = end >= len(first)
        assert found[4:] == ((3, len(first)) if whole else (1, 0))
        assert found[3] == ([1, 2] if whole else [])


@both
@pytest.mark.parametrize("bad", [b"\0", b"\x01\x04", b"\x80\x80\x80\x80\x80\x01", prefixed(dense(b"a") + b"x")])
def test_unpacked_chunk_that_is_none(loops: Any, bad: bytes) -> None:
    with pytest.raises(BundleError):
        loops.unpack_chunk(prefixed(dense(b"a")) + bad, 1, 0)


@given(st.data())
def test_twins_unpack_alike(data: st.DataObject) -> None:
    bundles = [dense(b"abc", b"d"), dense(b"x" * 200, codec=1), sparse(40, 45, 46), dense(*[b"e"] * 20)]
    raw = bytearray(b"".join(map(prefixed, data.draw(st.lists(st.sampled_from(bundles), max_size=4)))))
    for _ in range(data.draw(st.integers(0, 2))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    from_seq = data.draw(st.integers(0, 60))
    results: list[Any] = []
    for loops in TWINS:
        try:
            results.append(loops.unpack_chunk(bytes(raw), 1, from_seq))
        except BundleError:
            results.append(None)
    assert all(result == results[0] for result in results)
