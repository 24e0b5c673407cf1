"""The hot loops of records over HTTP: compiled and twin give the same, and what the readers of all forms give."""

from __future__ import annotations

import json
import random
import tracemalloc
from types import ModuleType

import pytest

from engine.formats.batch import BatchWriter, records
from netserver.http import frames, frames_pure
from netserver.http.json_lines import line_of, read_lines
from netserver.http.splitting import LENGTH, Splitter

BOTH = pytest.mark.parametrize("hot", [frames, frames_pure], ids=["frames", "twin"])
MANY = 1 << 20
TEXTS = [b"", b"plain", b'with "quotes" and \\', bytes(range(32)), b"\x7f", "é€😀\u2028".encode(), b"x" * 300]
NO_TEXTS = [b"\xff", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5"]
NO_TEXTS += [b"a\xe2\x82", b"\x80"]
UNUSUAL = [*((value, b"", ()) for value in NO_TEXTS), (b"", b"\xff", ()), (b"v", b"", (b"n", b"v"))]


def writer_of(size_bytes: int = 1 << 20) -> BatchWriter:
    writer = BatchWriter(bytearray(size_bytes), 1)
    writer.begin(1_000)
    return writer


def values_of(writer: BatchWriter) -> list[bytes]:
    writer.close_batch()
    return [record.value for record in records(memoryview(writer.buffer)[: writer.position])]


def batches_of(rows: list[tuple[bytes, bytes, tuple[bytes, ...]]]) -> memoryview:
    writer = writer_of(1 << 22)
    for number, (value, key, headers) in enumerate(rows):
        assert writer.put_record(value, key, 5_000 + number, headers)
    writer.close_batch()
    return memoryview(writer.buffer)[: writer.position]


def lengths(values: list[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(value)) + value for value in values)


@BOTH
def test_values_after_their_lengths(hot: ModuleType) -> None:
    values = [b"", b"one", bytes(range(256)) * 30]
    src, writer = lengths(values) + b"\0\0\0\5abcd", writer_of()
    end = len(src) - 8
    assert hot.pack_lengths(src, 0, len(src), writer, MANY, MANY) == (end, 3, sum(map(len, values)), False)
    assert values_of(writer) == values


@BOTH
def test_lengths_stop_where_they_have_to(hot: ModuleType) -> None:
    src = lengths([b"a", b"b" * 100, b"c"])
    assert hot.pack_lengths(src, 0, len(src), writer_of(), 99, MANY)[:2] == (5, 1)
    assert hot.pack_lengths(src, 0, len(src), writer_of(), 100, 2)[:2] == (109, 2)
    position, count, _, full = hot.pack_lengths(lengths([b"x" * 900] * 3), 0, 2712, writer_of(1400), MANY, MANY)
    assert (position, count, full) == (904, 1, True)
    assert hot.pack_lengths(b"\xff\xff\xff\xff1234", 0, 8, writer_of(), MANY, MANY)[:2] == (0, 0)
    with pytest.raises(ValueError, match="outside"):
        hot.pack_lengths(b"abcd", 0, 5, writer_of(), MANY, MANY)


@BOTH
def test_usual_lines(hot: ModuleType) -> None:
    src = b'{"value":"one"}\n{"value": ""}\n{"value":"\x7f"}\n'
    writer = writer_of()
    assert hot.pack_lines(src, 0, len(src), writer, MANY, MANY) == (len(src), 3, 4, False)
    assert values_of(writer) == [b"one", b"", b"\x7f"]


@BOTH
@pytest.mark.parametrize(
    "line",
    [
        b'{"value":"cut',
        b'{"value":"cut"}',
        b'{"value":"a\\n"}\n',
        '{"value":"é"}\n'.encode(),
        b'{"value":"\x1f"}\n',
        b'{"value":"a"} \n',
        b'{"value":"a","key":"b"}\n',
        b'{"value":1234567890}\n',
        b'{"value":  "two spaces"}\n',
        b'{"Value":"another name"}\n',
        b'{"value":"longer than the limit of twenty bytes"}\n',
        b"",
    ],
)
def test_lines_stop_before_anything_else(hot: ModuleType, line: bytes) -> None:
    src = b'{"value":"first"}\n' + line
    writer = writer_of()
    assert hot.pack_lines(src, 0, len(src), writer, 20, MANY) == (18, 1, 5, False)
    assert values_of(writer) == [b"first"]


@BOTH
def test_lines_of_records(hot: ModuleType) -> None:
    rows = [(value, key, ()) for value in TEXTS for key in (b"", b'k"ey', "ü".encode())]
    batches = batches_of(rows)
    out, next_seq, count = hot.frame_lines(batches, 1, len(rows), 7, MANY, MANY)
    assert (next_seq, count) == (len(rows) + 1, len(rows))
    assert bytes(out) == b"".join(line_of(7, record) for record in records(batches))
    found = [json.loads(line) for line in bytes(out).splitlines()]
    assert [(one["value"].encode(), one.get("key", "").encode()) for one in found] == [row[:2] for row in rows]


@BOTH
@pytest.mark.parametrize("unusual", UNUSUAL)
def test_lines_of_records_stop_before_bytes_and_headers(
    hot: ModuleType, unusual: tuple[bytes, bytes, tuple[bytes, ...]]
) -> None:
    batches = batches_of([(b"one", b"", ()), (b"two", b"", ()), unusual, (b"four", b"", ())])
    out, next_seq, count = hot.frame_lines(batches, 2, 4, 0, MANY, MANY)
    assert (json.loads(bytes(out))["value"], next_seq, count) == ("two", 3, 1)
    assert hot.frame_lines(batches, 3, 4, 0, MANY, MANY)[1:] == (3, 0)


@BOTH
def test_bounds_of_what_is_framed(hot: ModuleType) -> None:
    batches = batches_of([(b"x" * 1000, b"", ())] * 9)
    assert hot.frame_lengths(batches, 3, 6, MANY, MANY)[1:] == (7, 4)
    assert hot.frame_lengths(batches, 3, 9, MANY, 2)[1:] == (5, 2)
    out, next_seq, count = hot.frame_lengths(batches, 1, 9, 2500, MANY)
    assert (bytes(out), next_seq, count) == (lengths([b"x" * 1000] * 2), 3, 2)
    assert hot.frame_lengths(batches, 1, 9, 10, MANY)[1:] == (2, 1)
    assert hot.frame_lines(batches, 1, 9, 0, 10, MANY)[1:] == (2, 1)
    assert hot.frame_lines(batches, 3, 9, 0, MANY, 2)[1:] == (5, 2)


def test_both_builds_agree_on_anything() -> None:
    """Random records and bodies, cut and bounded anywhere."""
    randomness = random.Random(7)
    for _ in range(200):
        rows = [
            (
                randomness.choice([*TEXTS, *NO_TEXTS, randomness.randbytes(randomness.randrange(40))]),
                randomness.choice([b"", b"key", b"\x00", b"\xfe"]),
                randomness.choice([(), (), (), (b"name", b"value")]),
            )
            for _ in range(randomness.randrange(1, 30))
        ]
        batches, at = batches_of(rows), randomness.randrange(1, len(rows) + 1)
        bounds = (randomness.choice([1, 300, MANY]), randomness.choice([1, 5, MANY]))
        for name, more in (("frame_lengths", ()), ("frame_lines", (3,))):
            found = [getattr(hot, name)(batches, at, len(rows), *more, *bounds) for hot in (frames, frames_pure)]
            assert bytes(found[0][0]) == bytes(found[1][0])
            assert found[0][1:] == found[1][1:]
        lines = b"".join(line_of(0, record).replace(b'"partition":0,', b"") for record in records(batches))
        for src in (lengths([row[0] for row in rows]), lines, b'{"value":"a"}\n' * 9 + lines):
            end = randomness.randrange(len(src) + 1)
            for name in ("pack_lengths", "pack_lines"):
                writers = (writer_of(), writer_of())
                packed = [
                    getattr(hot, name)(src, 0, end, writer, 200, randomness.choice([MANY]))
                    for hot, writer in zip((frames, frames_pure), writers, strict=True)
                ]
                assert packed[0] == packed[1]
                assert values_of(writers[0]) == values_of(writers[1])


def test_splitting_in_any_portions() -> None:
    values = [b"", b"one", b"two words", b"x" * 500]
    bodies = {
        "none": b"all\nof it\0",
        "lines": b"\n".join(values),
        "nul": b"\0".join(values) + b"\0",
        "length": lengths(values),
    }
    for split, body in bodies.items():
        for step in (1, 3, 7, len(body)):
            splitter, found = Splitter(split, 600), list[bytes]()
            for at in range(0, len(body), step):
                found += splitter.take(body[at : at + step])
            found += splitter.end()
            assert found == ([body] if split == "none" else values)


@pytest.mark.parametrize("split", ["none", "lines", "nul", "length"])
def test_a_large_record_is_not_copied_while_it_comes(split: str) -> None:
    value = b"x" * (4 << 20)
    body = memoryview({"none": value, "lines": value + b"\n", "nul": value + b"\0", "length": lengths([value])}[split])
    pieces = [bytes(body[at : at + 65_536]) for at in range(0, len(body), 65_536)]
    splitter = Splitter(split, len(value))
    tracemalloc.start()
    try:
        found = [one for piece in pieces[:-1] for one in splitter.take(piece)]
        gathered = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        found += splitter.take(pieces[-1]) + splitter.end()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [value]
    copies = 1 if split == "length" else 0  # what is behind the length is a value of its own
    assert peak - gathered < (copies + 0.5) * len(value)


def test_lines_of_every_form_are_read() -> None:
    lines = [
        b'{"value":"text"}',
        b'{"value_base64":"/w==","key":"k","timestamp_ms":5}',
        b'{"value_json":{"a":[1, 2.50]},"key_base64":"AA==","partition":3}',
        b"",
        b'{"value":"v","headers":[{"name":"n","value_base64":"/w=="}]}',
    ]
    rows = read_lines(lines, 1, 77)
    assert [(row.value, row.key, row.timestamp_ms, row.headers, row.partition) for row in rows] == [
        (b"text", b"", 77, (), -1),
        (b"\xff", b"k", 5, (), -1),
        (b'{"a":[1, 2.50]}', b"\0", 77, (), 3),
        (b"v", b"", 77, (b"n", b"\xff"), -1),
    ]
