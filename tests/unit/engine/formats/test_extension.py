"""What a batch's extension holds beside headers: marks of records, and the producer; compiled and pure alike."""

from __future__ import annotations

from types import ModuleType

import msgpack
import pytest

from engine.formats.extension import Producer, decode_headers, decode_marks, decode_producer, encode_extension
from engine.formats.record import BatchError, Marks
from tests.batches import TIME, both, headers_of, sealed, writer

pytestmark = pytest.mark.checked


def extensions(codec: ModuleType, data: bytearray) -> list[bytes]:
    return [bytes(data[header.bundles_end : header.end]) for header in headers_of(codec, data)]


@both
def test_bytes(codec: ModuleType) -> None:
    made = writer(codec)
    made.produce(7, 3, (1 << 31) - 2)
    assert made.put_record(b"one", b"k", TIME)
    assert made.put_record(b"", b"", TIME, (), Marks(is_null=True))
    assert made.put_record(b"v", b"", TIME, (b"a", b"", b"b", b"x"), Marks(key=b"", null_headers=(0,)))
    assert made.put_span(b"..kv..", 3, 4, 2, 3, TIME)
    data = sealed(codec, made)
    (extension,) = extensions(codec, data)
    assert msgpack.unpackb(extension, strict_map_key=False) == {
        "h": [None, None, [b"a", b"", b"b", b"x"], None],
        "v": [1],
        "k": {2: b""},
        "n": {2: [0]},
        "p": [7, 3, (1 << 31) - 2],
    }
    cursor = codec.RecordCursor(data, 0, len(data))
    seen = []
    while cursor.next():
        assert not cursor.is_plain()
        seen.append((cursor.record().key, cursor.record().value, cursor.headers(), cursor.marks()))
    assert seen == [
        (b"k", b"one", (), None),
        (b"", b"", (), Marks(is_null=True)),
        (b"", b"v", (b"a", b"", b"b", b"x"), Marks(key=b"", null_headers=(0,))),
        (b"k", b"v", (), None),
    ]


@both
def test_a_producers_records_share_a_batch_with_no_others(codec: ModuleType) -> None:
    made = writer(codec)
    assert made.put(b"x", 0, 1)
    made.produce(1, 0, 10)
    assert made.put(b"a", 0, 1)
    made.begin(TIME)
    made.produce(1, 0, 11)  # goes on
    assert made.put(b"b", 0, 1)
    made.produce(1, 0, 13)  # leaves one out
    assert made.put(b"c", 0, 1)
    made.produce(1, 1, 14)
    assert made.put(b"d", 0, 1)
    made.produce(2, 1, 15)
    assert made.put(b"e", 0, 1)
    made.begin(TIME)
    assert made.put(b"y", 0, 1)
    data = sealed(codec, made)
    found = [
        (header.count, decode_producer(part))
        for header, part in zip(headers_of(codec, data), extensions(codec, data), strict=True)
    ]
    assert found == [
        (1, None), (2, Producer(1, 0, 10)), (1, Producer(1, 0, 13)), (1, Producer(1, 1, 14)), (1, Producer(2, 1, 15)),
        (1, None),
    ]  # fmt: skip
    assert b"".join(record.value for record in codec.records(data)) == b"xabcdey"


@both
def test_each_batch_of_a_long_run_says_where_it_begins(codec: ModuleType) -> None:
    made = writer(codec)
    made.produce((1 << 63) - 1, (1 << 15) - 1, (1 << 31) - 300)
    for _ in range(600):
        assert made.put_record(b"v", b"", TIME, (b"n", b"v"))
    data = sealed(codec, made)
    firsts = [decode_producer(part) for part in extensions(codec, data)]
    top = (1 << 63) - 1, (1 << 15) - 1
    assert firsts == [Producer(*top, (1 << 31) - 300), Producer(*top, (1 << 31) - 45), Producer(*top, 210)]
    cursor = codec.RecordCursor(data, 0, len(data))
    assert cursor.next()
    assert not cursor.is_plain()


@both
def test_a_batch_of_a_producer_alone_is_plain(codec: ModuleType) -> None:
    made = writer(codec)
    made.produce(1, 0, 0)
    assert made.put(b"v", 0, 1)
    data = sealed(codec, made)
    cursor = codec.RecordCursor(data, 0, len(data))
    assert cursor.next()
    assert cursor.is_plain()
    assert cursor.marks() is None


@both
def test_the_room_that_is_promised_is_enough(codec: ModuleType) -> None:
    """At each size of the buffer a record is put whole or not at all, and is put where there is as much as stated."""
    marks = Marks(is_null=False, key=b"k" * 300, null_headers=(0, 1))
    flat = (b"n", b"", b"m" * 40, b"")
    need = 110 + 50 + 13 + 5 * 4 + 42 + 32 + 61 + 300 + 10
    for size in [*range(100, need, 7), need]:
        made = writer(codec, size)
        made.produce((1 << 63) - 1, 32767, (1 << 31) - 1)
        if made.put_record(b"v" * 50, b"", (1 << 64) - 1, flat, marks):
            data = sealed(codec, made)
            assert decode_marks(extensions(codec, data)[0], 1) == {0: marks}
        else:
            assert size < need
            assert made.next_seq == 1


@both
def test_spans_outside_are_refused(codec: ModuleType) -> None:
    made = writer(codec)
    for span in ((-1, 1, 0, 0), (0, 7, 0, 0), (2, 1, 0, 0), (0, 1, -1, 0), (0, 1, 0, 7), (0, 1, 3, 2)):
        with pytest.raises(ValueError, match=r"range|key"):
            made.put_span(b"sixsix", *span, TIME)
    with pytest.raises(ValueError, match="key"):
        made.put_span(bytes(300), 0, 1, 0, 256, TIME)
    small = writer(codec, 100)
    assert not small.put_span(b"sixsix", 0, 6, 0, 0, TIME)
    made.produce(1, 1, 1)
    assert made.put(b"x", 0, 1)
    with pytest.raises(ValueError, match="extension"):
        made.close_batch(b"another")


def test_what_is_no_extension() -> None:
    def packed(**fields: object) -> bytes:
        return bytes(msgpack.packb(fields))

    for bad in (
        {"v": {}}, {"k": []}, {"n": []}, {"v": [5]}, {"v": [-1]}, {"v": [None]}, {"k": {5: b""}}, {"k": {0: "text"}},
        {"n": {0: 1}}, {"n": {0: [b"x"]}},
    ):  # fmt: skip
        with pytest.raises(BatchError):
            decode_marks(packed(**bad), 5)
    for data in (packed(p=[1, 2, b""]), packed(p=[1, 2, 3])[1:], b"\x92" + packed(p=[1, 2, 3])[1:], b"\x01\xa1p\x93"):
        with pytest.raises(BatchError):
            decode_producer(data)
    assert [decode_producer(data) for data in (packed(p=[1, 2]), packed(p={}), b"\xc1")] == [None] * 3  # not ours
    for decode in (lambda data: decode_marks(data, 1), lambda data: decode_headers(data, 1)):
        for data in (b"\xc1", b"\x93", b"\x01"):
            with pytest.raises(BatchError):
                decode(data)
    assert decode_marks(b"", 1) == {}
    assert decode_producer(b"") is None
    assert decode_producer(packed(h=[None])) is None
    assert decode_producer(encode_extension([(b"name", b"\xa1p\x93")], {}, None, 1)) is None  # only looks like one
    assert encode_extension([], {}, None, 1) == b"\x80"
