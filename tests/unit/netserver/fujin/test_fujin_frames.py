"""The hot loops of Fujin: compiled and twin give the same results, and what the codec and the engine give."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from engine.formats.batch import BatchWriter, RecordCursor, records
from netserver.fujin import codec, frames, frames_pure
from netserver.fujin.codec import Answer, Op, Options
from netserver.fujin.codec_answers import AnswerDecoder, Fetched

pytestmark = pytest.mark.checked

NOW_MS = 1_700_000_000_000
LIMIT = 1 << 20


@pytest.fixture(params=[frames, frames_pure], ids=["frames", "twin"])
def hot(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def writer_of(size_bytes: int = 1 << 20, next_seq: int = 1) -> BatchWriter:
    writer = BatchWriter(bytearray(size_bytes), next_seq)
    writer.begin(NOW_MS)
    return writer


def stored(writer: BatchWriter) -> list[bytes]:
    writer.close_batch()
    return [record.value for record in records(memoryview(writer.buffer)[: writer.position])]


def cursor_of(*values: bytes, first_seq: int = 1, gap_before: int = -1) -> RecordCursor:
    batches = b""
    seq = first_seq
    for index, value in enumerate(values):
        seq += index == gap_before
        writer = writer_of(len(value) + 400, seq)
        assert writer.put(value, 0, len(value))
        writer.close_batch()
        batches += bytes(writer.buffer[: writer.position])
        seq += 1
    cursor = RecordCursor(batches, 0, len(batches))
    assert cursor.next()
    return cursor


# --- WRITE into the log


@pytest.mark.parametrize("topic", [b"t", b"orders" * 20])
def test_a_run_of_writes(hot: ModuleType, topic: bytes) -> None:
    values = [b"1", b"one", bytes(range(256)) * 300, b"last"]
    cids = [4, 0, 2**32 - 1, 4]
    src = b"".join(codec.write(cid, topic, value) for cid, value in zip(cids, values, strict=True))
    writer = writer_of()
    answers = bytearray(600)
    assert hot.pack_writes(src, 0, len(src), topic, writer, LIMIT, answers) == (len(src), 4, False)
    assert answers[:24] == b"".join(codec.done(Answer.WRITE, cid) for cid in cids)
    assert stored(writer) == values


@pytest.mark.parametrize(
    "next_command",
    [
        codec.tx(Op.BEGIN, 5),
        codec.DISCONNECT,
        codec.write(3, b"topiC", b"x"),
        codec.write(3, b"topi", b"x"),
        codec.write(3, b"topicc", b"x"),
        codec.write(3, b"topic", b""),
        codec.write(3, b"topic", b"x" * 101),
        codec.write(3, b"topic", b"x")[:-5] + b"\xff\xff\xff\xffx",
        codec.write(3, b"topic", b"x")[:5] + b"\xff\xff\xff\xff" + bytes(40),
        *(codec.write(3, b"topic", b"x")[:at] for at in range(19)),
    ],
    ids=lambda command: command.hex(),
)
def test_a_run_stops_before_anything_unusual(hot: ModuleType, next_command: bytes) -> None:
    src = codec.write(1, b"topic", b"a") + codec.write(2, b"topic", b"b" * 100)
    end = len(src)
    src += next_command
    writer = writer_of()
    assert hot.pack_writes(src, 0, len(src), b"topic", writer, 100, bytearray(600)) == (end, 2, False)
    assert stored(writer) == [b"a", b"b" * 100]


def test_a_run_is_bounded_by_writer_and_answers(hot: ModuleType) -> None:
    src = codec.write(1, b"t", b"x" * 1000) * 5
    size = len(src) // 5
    writer = writer_of(2500)
    assert hot.pack_writes(src, 0, len(src), b"t", writer, LIMIT, bytearray(600)) == (2 * size, 2, True)
    writer = writer_of()
    assert hot.pack_writes(src, size, len(src), b"t", writer, LIMIT, bytearray(3 * 6 + 5)) == (4 * size, 3, False)
    for position, end in ((-1, 5), (0, len(src) + 1)):
        with pytest.raises(ValueError, match="range"):
            hot.pack_writes(src, position, end, b"t", writer, LIMIT, bytearray(600))


# --- records to readers


@pytest.mark.parametrize("is_push", [True, False])
@pytest.mark.parametrize("has_id", [True, False])
def test_records_become_messages(hot: ModuleType, is_push: bool, has_id: bool) -> None:
    values = [b"a", b"b" * 300, b"c"]
    out = bytearray(1000)
    cursor = cursor_of(*values, first_seq=2**40)
    end, count, state = hot.frame_records(out, 10, cursor, 2**50, 100, 3, is_push, has_id, LIMIT)
    expected = b""
    for index, value in enumerate(values):
        message_id = codec.message_id(3, 2**40 + index)
        framed = codec.message(message_id if has_id else None, value)
        expected += framed if is_push else framed[1:]
    assert (bytes(out[10:end]), count, state) == (expected, 3, frames.END)


def test_framing_stops(hot: ModuleType) -> None:
    out = bytearray(1000)
    arguments = (0, True, True, 50)
    assert hot.frame_records(out, 0, cursor_of(b"a", b"b"), 9, 1, *arguments)[1:] == (1, frames.PENDING)
    assert hot.frame_records(out, 0, cursor_of(b"a", b"b"), 1, 9, *arguments)[1:] == (1, frames.PENDING)
    assert hot.frame_records(out, 0, cursor_of(b"a", b"b", gap_before=1), 9, 9, *arguments)[1:] == (1, frames.PENDING)
    assert hot.frame_records(out, 0, cursor_of(b"a", b""), 9, 9, *arguments)[1:] == (1, frames.SKIP)
    assert hot.frame_records(out, 0, cursor_of(b"a", b"x" * 51), 9, 9, *arguments)[1:] == (1, frames.SKIP)
    assert hot.frame_records(out, 0, cursor_of(b"x" * 51), 9, 9, *arguments)[1:] == (0, frames.SKIP)
    for room in range(43):
        small = bytearray(room)
        found = hot.frame_records(small, 0, cursor_of(b"x", b"y"), 9, 9, *arguments)
        assert found == ((22, 1, frames.FULL) if room >= 22 else (0, 0, frames.FULL))
    cursor = cursor_of(b"x", b"y", b"z")
    found = hot.frame_records(bytearray(44), 0, cursor, 9, 9, *arguments)
    assert found == (44, 2, frames.FULL)
    assert cursor.seq == 3, "the cursor stands on the record that was not taken"
    with pytest.raises(ValueError, match="position"):
        hot.frame_records(out, -1, cursor, 9, 9, *arguments)


# --- ids


def test_ids_become_ranges(hot: ModuleType) -> None:
    seqs = [5, 6, 7, 3, 4, 4, 9]
    raw = b"xx" + b"".join(codec.string(codec.message_id(2, seq)) for seq in seqs)
    assert hot.id_ranges(raw, 2, 7, 2) == (7, [5, 7, 3, 4, 4, 4, 9, 9])
    assert hot.id_ranges(raw, 2, 3, 2) == (3, [5, 7])
    assert hot.id_ranges(raw, 2, 7, 1) == (0, [])
    assert hot.id_ranges(raw[:-1], 2, 7, 2) == (6, [5, 7, 3, 4, 4, 4])
    assert hot.ok_results(raw, 2, 7) == b"".join(codec.result(codec.message_id(2, seq)) for seq in seqs)
    assert hot.ok_results(raw, 2, 0) == b""
    for other in (b"", b"short", codec.message_id(2, 0), codec.message_id(2, 2**62), codec.message_id(3, 1)):
        raw = codec.string(codec.message_id(2, 1)) + codec.string(other) + codec.string(codec.message_id(2, 2))
        assert hot.id_ranges(raw, 0, 3, 2) == (1, [1, 1])
    with pytest.raises(ValueError, match="position"):
        hot.id_ranges(raw, -1, 1, 2)
    for position, count in ((-1, 1), (0, 99), (0, -1)):
        with pytest.raises(ValueError, match="range"):
            hot.ok_results(raw, position, count)


# --- the client's side


@pytest.mark.parametrize("has_headers", [True, False])
def test_values_become_writes(hot: ModuleType, has_headers: bool) -> None:
    values = [b"left out", b"a", b"b" * 70_000, b"c", b"left out"]
    packed = hot.pack_values(b"topic", 2**32 - 2, values, 1, 4, has_headers)
    headers = () if has_headers else None
    cids = [2**32 - 2, 2**32 - 1, 0]
    expected = b"".join(
        codec.write(cid, b"topic", value, headers) for cid, value in zip(cids, values[1:4], strict=True)
    )
    assert packed == expected
    assert hot.pack_values(b"t", 0, values, 2, 2, has_headers) == b""
    decoder = codec.Decoder(Options(LIMIT, has_headers))
    decoder.feed(codec.connect_writer() + packed)
    decoder.next()
    assert decoder.next() == codec.Write(2**32 - 2, b"topic", b"a")


def test_runs_of_answers(hot: ModuleType) -> None:
    ok = [codec.done(Answer.WRITE, cid) for cid in (2**32 - 1, 0, 1, 5)]
    raw = b"".join(ok)
    assert hot.take_written(raw, 0, 24) == (18, 2**32 - 1, 3)
    assert hot.take_written(raw, 18, 24) == (24, 5, 1)
    assert hot.take_written(raw, 0, 17) == (12, 2**32 - 1, 2)
    for other in (codec.done(Answer.WRITE, 2, "no"), codec.done(Answer.BEGIN, 2), codec.STOP, b"\x02\x00\x00\x00\x02"):
        assert hot.take_written(ok[1] + ok[2] + other, 0, 12 + len(other)) == (12, 0, 2)
        assert hot.take_written(other, 0, len(other)) == (0, 0, 0)
    with pytest.raises(ValueError, match="range"):
        hot.take_written(raw, 0, 25)


@pytest.mark.parametrize("is_push", [True, False])
@pytest.mark.parametrize("has_id", [True, False])
def test_runs_of_messages(hot: ModuleType, is_push: bool, has_id: bool) -> None:
    values, ids = [b"a", b"", b"c" * 300], [b"i1", b"", b"i" * 40]
    raw = b""
    ends = [0]
    for message_id, value in zip(ids, values, strict=True):
        framed = codec.message(message_id if has_id else None, value)
        raw += framed if is_push else framed[1:]
        ends.append(len(raw))
    for end in range(len(raw) + 1):
        found_ids: list[bytes] = []
        found: list[bytes] = []
        whole = sum(at <= end for at in ends) - 1
        assert hot.take_messages(raw, 0, end, 9, is_push, has_id, found_ids, found) == (ends[whole], whole)
        assert found == values[:whole]
        assert found_ids == (ids[:whole] if has_id else [])
    assert hot.take_messages(raw, ends[1], len(raw), 1, is_push, has_id, [], []) == (ends[2], 1)
    if is_push:
        assert hot.take_messages(codec.STOP + raw, 0, len(raw) + 1, 9, is_push, has_id, [], []) == (0, 0)
    for huge in (raw[:1] * is_push + b"\xff\xff\xff\xff" + bytes(50),):
        assert hot.take_messages(huge, 0, len(huge), 9, is_push, has_id, [], []) == (0, 0)
    with pytest.raises(ValueError, match="range"):
        hot.take_messages(raw, 0, len(raw) + 1, 9, is_push, has_id, [], [])


def test_both_sides_of_a_fetch_agree(hot: ModuleType) -> None:
    rng = random.Random(1)
    values = [rng.randbytes(rng.choice((1, 5, 127, 128, 5000))) for _ in range(200)]
    out = bytearray(1 << 20)
    end, count, state = hot.frame_records(out, 0, cursor_of(*values), 2**50, 200, 0, False, True, LIMIT)
    assert (count, state) == (200, frames.END)
    decoder = AnswerDecoder()
    decoder.feed(codec.fetched(1, count, out[:end]))
    answer = decoder.next()
    assert isinstance(answer, Fetched)
    assert [message.value for message in answer.messages] == values
    assert [codec.parse_message_id(message.message_id) for message in answer.messages] == [
        (0, seq) for seq in range(1, 201)
    ]
