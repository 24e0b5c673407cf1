"""The decoder, compiled and pure, against the engine's general decoder over every kind of bundle."""

from __future__ import annotations

import itertools
from array import array
from types import ModuleType
from typing import Any

import pytest

from engine.formats import batch
from engine.formats.bundle import encode_bundle
from engine.formats.record import BatchError, BundleError, Marks, Record
from tests.batches import TIME, put_bundle, sealed, writer
from tools.spark.limits import TIMESTAMP_MS_MAX
from tools.spark.source import decoder, decoder_pure
from tools.spark.source.columns import Columns

both = pytest.mark.parametrize("codec", [decoder, decoder_pure], ids=["chosen", "pure"])
EVERYTHING = (True, True, True, True, True)


def all_kinds() -> bytes:
    made = writer(batch)
    for row in range(400):
        assert made.put_record(b"value %d" % row * (row % 5), b"k%d" % row if row % 3 else b"", TIME + row)
    for row in range(20):
        headers = (b"name", b"%d" % row, b"empty", b"") if row % 2 else ()
        assert made.put_record(b"with headers", b"", TIME, headers)
    made.produce(1, 0, 5)
    for marks in (Marks(is_null=True), Marks(key=b"long" * 100), Marks(key=b""), Marks(null_headers=(0,))):
        assert made.put_record(b"", b"", TIME, (b"n", b"") if marks.null_headers else (), marks)
    made.begin(TIME)
    records = [Record(0, TIME, b"", bytes(300)), Record(0, TIME + 9, b"key", b"x")]
    put_bundle(made, encode_bundle([record.value for record in records], [b"", b"key"], [TIME, TIME + 9], codec=1))
    first = made.next_seq
    put_bundle(
        made, encode_bundle([b"a", b"b", b"c"], None, [TIME] * 3, sparse_seqs=[first + 7, first + 9, first + 10])
    )
    sparse = [first + 20, first + 40]
    put_bundle(made, encode_bundle([b"s" * 2000, b""], None, [TIME] * 2, sparse_seqs=sparse, codec=1))
    assert made.put_record(b"far", b"", 1 << 63)
    return bytes(sealed(batch, made))


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    def parts(ends: bytes | bytearray, content: bytes | bytearray) -> list[bytes]:
        at = array("i", bytes(ends[: 4 * columns.rows + 4]))
        return [bytes(content[start:end]) for start, end in itertools.pairwise(at)]

    return list(
        zip(
            array("q", bytes(columns.seqs[: 8 * columns.rows])),
            array("q", bytes(columns.timestamps_us[: 8 * columns.rows])),
            parts(columns.key_ends, columns.keys),
            parts(columns.value_ends, columns.values),
            columns.headers,
            strict=True,
        )
    )


def expected(data: bytes, from_seq: int = 0, end_seq: int = 1 << 62) -> list[tuple[Any, ...]]:
    return [
        (record.seq, min(record.timestamp_ms, TIMESTAMP_MS_MAX) * 1000, record.key, record.value, record.headers)
        for record in batch.records(data, 0, len(data), from_seq)
        if record.seq < end_seq
    ]


@both
def test_all_kinds_of_bundles(codec: ModuleType) -> None:
    data = all_kinds()
    made = codec.Decoder(*EVERYTHING)
    assert made.add(data, 0, len(data), 0, 1 << 62) == 432
    assert rows_of(made.take()) == expected(data)
    assert made.rows == 0


@both
def test_any_range_of_numbers(codec: ModuleType) -> None:
    data = all_kinds()
    for first, end in ((1, 2), (250, 260), (255, 256), (256, 257), (405, 430), (425, 440), (440, 600), (9000, 9001)):
        made = codec.Decoder(*EVERYTHING)
        made.add(data, 0, len(data), first, end)
        assert rows_of(made.take()) == expected(data, first, end)


@both
def test_batches_are_merged(codec: ModuleType) -> None:
    data = all_kinds()
    made = codec.Decoder(*EVERYTHING)
    for _ in range(60):  # more rows and bytes than its first buffers hold
        made.add(data, 0, len(data), 0, 1 << 62)
    assert made.rows == 60 * 432
    assert made.value_size == 60 * sum(len(row[3]) for row in expected(data))
    assert rows_of(made.take()) == expected(data) * 60
    for times in (1, 100):  # begins with the room that the last ones took
        for _ in range(times):
            made.add(data, 0, len(data), 0, 1 << 62)
        assert rows_of(made.take()) == expected(data) * times


@both
def test_only_what_was_asked_for(codec: ModuleType) -> None:
    data = all_kinds()
    made = codec.Decoder(False, False, True, False, False)
    made.add(data, 0, len(data), 0, 1 << 62)
    columns = made.take()
    assert list(array("q", bytes(columns.seqs[: 8 * columns.rows]))) == [row[0] for row in expected(data)]
    assert not columns.values
    assert not columns.keys
    assert not columns.timestamps_us
    assert not columns.headers


@both
def test_an_error_leaves_what_there_was(codec: ModuleType) -> None:
    data = all_kinds()
    made = codec.Decoder(*EVERYTHING)
    made.add(data, 0, len(data), 0, 300)
    for cut in (len(data) - 1, 90, 40):
        with pytest.raises((BatchError, BundleError)):
            made.add(data, 0, cut, 0, 1 << 62)
    broken = bytearray(data)
    broken[88 + 7 + 1 : 88 + 20] = b"\xff" * 12
    with pytest.raises((BatchError, BundleError)):
        made.add(bytes(broken), 0, len(broken), 0, 1 << 62)
    assert rows_of(made.take()) == expected(data, 0, 300)
