"""Verifying and reading batches: what is found and what is refused, every bit; compiled and pure alike."""

from __future__ import annotations

import struct
from types import ModuleType

import msgpack
import pytest
import xxhash

from engine.formats import batch
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BatchError, BundleError, Record
from engine.limits import BUNDLE_BYTES_MAX, EXTENSION_BYTES_MAX
from tests.batches import SEGMENT, TIME, both, headers_of, put_bundle, sealed, writer

pytestmark = pytest.mark.checked

# --- sealing and verifying


def three(codec: ModuleType, file_position: int) -> bytearray:
    made = writer(codec, next_seq=7)
    for value in (b"one", b"two", b"three"):
        made.put(value, 0, len(value))
        made.close_batch()
    return sealed(codec, made, file_position)


@both
@pytest.mark.parametrize("file_position", [0, 1000, (1 << 64) - SEGMENT, (1 << 63)])
def test_verify(codec: ModuleType, file_position: int) -> None:
    data = three(codec, file_position)
    ends = [header.end for header in headers_of(codec, data, file_position)]
    assert codec.verify(data, 0, len(data), SEGMENT, file_position) == (len(data), 7, 9)
    assert codec.verify(bytes(data), 0, len(data), SEGMENT, file_position) == (len(data), 7, 9)
    assert codec.verify(data, ends[0], len(data), SEGMENT, file_position + ends[0]) == (len(data), 8, 9)
    assert codec.verify(data, 0, 0, SEGMENT, file_position) == (0, 0, 0)
    for end in range(len(data)):
        whole = max([position for position in (0, *ends) if position <= end])
        expected = (whole, 7 if whole else 0, 6 + ends.index(whole) + 1 if whole else 0)
        assert codec.verify(data, 0, end, SEGMENT, file_position) == expected


@both
def test_only_the_right_place_in_the_right_segment_verifies(codec: ModuleType) -> None:
    data = three(codec, 1000)
    assert codec.verify(data, 0, len(data), SEGMENT ^ 1, 1000) == (0, 0, 0)
    assert codec.verify(data, 0, len(data), SEGMENT, 1001) == (0, 0, 0)
    moved = b"value" + data
    assert codec.verify(moved, 5, len(moved), SEGMENT, 1000) == (len(moved), 7, 9)
    assert codec.verify(moved, 5, len(moved), SEGMENT, 1005) == (5, 0, 0)


@both
def test_numbers_must_rise(codec: ModuleType) -> None:
    made = writer(codec)
    made.put(b"a", 0, 1)
    made.close_batch()
    size = made.position
    data = bytearray(made.buffer[:size] * 2)
    codec.seal(data, 0, len(data), SEGMENT, 0, 0)
    assert codec.verify(data, 0, len(data), SEGMENT, 0) == (size, 1, 1)


@both
def test_seal_refuses_what_is_not_batches(codec: ModuleType) -> None:
    data = three(codec, 0)
    for start, end in ((0, len(data) - 1), (1, len(data)), (-1, len(data)), (0, len(data) + 1)):
        with pytest.raises(BatchError):
            codec.seal(data, start, end, SEGMENT, 0, 0)
    with pytest.raises(BatchError):
        codec.seal(bytearray(500), 0, 500, SEGMENT, 0, 0)
    codec.seal(data, 5, 5, SEGMENT, 0, 0)


@both
def test_zeros_are_no_batch(codec: ModuleType) -> None:
    zeros = bytes(4096)
    assert codec.verify(zeros, 0, 4096, 0, 0) == (0, 0, 0)
    assert codec.read_header(zeros, 0, 0, 0) is None
    with pytest.raises(BatchError):
        list(codec.records(zeros))
    with pytest.raises(BatchError):
        codec.locate(zeros, 0, 4096, 1)


@both
def test_ranges_outside_the_buffer(codec: ModuleType) -> None:
    data = three(codec, 0)
    for start, end in ((-1, 5), (0, len(data) + 1)):
        with pytest.raises(BatchError):
            codec.verify(data, start, end, SEGMENT, 0)
        with pytest.raises(BatchError):
            codec.locate(data, start, end, 7)
        with pytest.raises(BatchError):
            codec.RecordCursor(data, start, end)
        with pytest.raises(BatchError):
            list(codec.records(data, start, end))
    assert codec.read_header(data, -1, SEGMENT, 0) is None
    assert codec.read_header(data, len(data) - 50, SEGMENT, 0) is None


@both
def test_locate(codec: ModuleType) -> None:
    data = three(codec, 0)
    ends = [0] + [header.end for header in headers_of(codec, data)]
    assert [codec.locate(data, 0, len(data), seq) for seq in (0, 7, 8, 9, 10)] == [0, 0, ends[1], ends[2], ends[3]]


def test_read_header_gives_every_field() -> None:
    made = writer(batch, next_seq=41)
    made.put(b"one", 0, 3)
    made.close_batch(msgpack.packb({}))
    batch.seal(made.buffer, 0, made.position, SEGMENT, 1000, 777, 9)
    header = batch.read_header(made.buffer, 0, SEGMENT, 1000)
    assert header is not None
    assert (header.version, header.attributes, header.padding_bytes, header.bundles_bytes) == (1, 0, 5, 15)
    assert (header.extension_bytes, header.first_seq, header.last_seq, header.count) == (1, 41, 41, 1)
    assert (header.max_timestamp_ms, header.append_time_ms) == (TIME, TIME)
    assert (header.durable_mark, header.transaction_id) == (777, 9)
    assert header.header_hash == struct.unpack_from("<Q", made.buffer, 80)[0]
    assert header.body_hash == struct.unpack_from("<Q", made.buffer, 72)[0]
    assert header.size == header.end == made.position == header.bundles_end + 1
    assert batch.check_body(made.buffer, 0, header, SEGMENT)
    assert not batch.check_body(made.buffer[: made.position - 1], 0, header, SEGMENT)
    assert not batch.check_body(made.buffer, 0, header, SEGMENT + 1)


SOUND = struct.Struct("<4sBBBBIIQQIIQQ")


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, b"\xd9QLC"),
        (1, 0),
        (1, 2),
        (3, 7),
        (4, 1),
        (5, 0),
        (5, BUNDLE_BYTES_MAX + 5),
        (6, EXTENSION_BYTES_MAX + 1),
        (7, 42),
        (9, 0),
        (9, 2),
        (10, 1),
    ],
)
def test_unsound_header_with_a_right_hash(codec: ModuleType, field: int, value: int | bytes) -> None:
    made = writer(codec, next_seq=41)
    made.put(b"one", 0, 3)
    data = sealed(codec, made)
    fields = list(SOUND.unpack_from(data))
    fields[field] = value
    SOUND.pack_into(data, 0, *fields)
    data[80:88] = struct.pack("<Q", xxhash.xxh3_64_intdigest(data[:80], SEGMENT))
    assert codec.read_header(data, 0, SEGMENT, 0) is None
    assert codec.verify(data, 0, len(data), SEGMENT, 0) == (0, 0, 0)
    with pytest.raises(BatchError):
        codec.seal(data, 0, len(data), SEGMENT, 0, 0)
    with pytest.raises((BatchError, BundleError)):
        list(codec.records(data))


@both
def test_every_bit_of_a_batch(codec: ModuleType) -> None:
    made = writer(codec)
    value = bytes(range(256))
    while made.position < (16 << 10) - 400:
        assert made.put_record(value, b"k", TIME, (b"name", b"value"))
    data = sealed(codec, made, 4096)
    assert made.batches == 1
    assert 15 << 10 < len(data) <= 17 << 10
    assert codec.verify(data, 0, len(data), SEGMENT, 4096)[0] == len(data)
    verify = codec.verify
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            assert verify(data, 0, len(data), SEGMENT, 4096) == (0, 0, 0), (position, bit)
            data[position] ^= 1 << bit
    for position in range(88):
        data[position] ^= 0x10
        assert codec.read_header(data, 0, SEGMENT, 4096) is None
        data[position] ^= 0x10


# --- reading


def mixed(codec: ModuleType) -> tuple[bytearray, list[Record]]:
    made = writer(codec)
    expected = []
    for index in range(300):
        made.put(b"p%d" % index, 0, len(b"p%d" % index))
        expected.append(Record(index + 1, TIME, b"", b"p%d" % index))
    values = [b"snappy %d" % index for index in range(400)]
    put_bundle(made, encode_bundle(values, [b"k"] * 400, list(range(400)), codec=1))
    expected += [Record(301 + index, index, b"k", value) for index, value in enumerate(values)]
    put_bundle(made, encode_bundle([b"dense"], None, [5]))
    expected.append(Record(701, 5, b"", b"dense"))
    put_bundle(made, encode_bundle([b"s1", b"s2", b"s3"], None, [5, 6, 7], sparse_seqs=[800, 801, 810], codec=1))
    expected += [Record(800, 5, b"", b"s1"), Record(801, 6, b"", b"s2"), Record(810, 7, b"", b"s3")]
    made.begin(TIME, 1)
    made.put_record(b"last", b"key", 9, (b"n", b"v"))
    expected.append(Record(811, 9, b"key", b"last", (b"n", b"v"), True))
    return sealed(codec, made), expected


@both
def test_records_of_every_kind_of_bundle(codec: ModuleType) -> None:
    data, expected = mixed(codec)
    assert list(codec.records(data)) == expected
    assert list(codec.records(b"before" + data + b"behind", 6, 6 + len(data))) == expected
    for from_seq in (0, 1, 255, 256, 300, 301, 302, 700, 701, 702, 800, 801, 802, 810, 811, 812, 1 << 63):
        wanted = [record for record in expected if record.seq >= from_seq]
        assert list(codec.records(memoryview(data), from_seq=from_seq)) == wanted


@both
def test_cursor_fields(codec: ModuleType) -> None:
    data, expected = mixed(codec)
    cursor = codec.RecordCursor(data, 0, len(data), 299)
    for record in expected[298:]:
        assert cursor.next()
        assert (cursor.seq, cursor.timestamp, bool(cursor.qos0)) == (record.seq, record.timestamp_ms, record.qos0)
        assert bytes(cursor.data[cursor.value_start : cursor.value_end]) == record.value
        assert bytes(cursor.data[cursor.key_start : cursor.key_end]) == record.key
        assert cursor.headers() == record.headers
        assert cursor.record() == record
    assert not cursor.next()
    assert not cursor.next()


@both
def test_bundles_below_the_wanted_number_are_not_unpacked(codec: ModuleType) -> None:
    made = writer(codec)
    broken = b"\x05\x0c\x2c\x00\x00"  # does not unpack: only its head is looked at
    made.put_bundle(broken, 0, 5, 1, 1, 1, 1, False)
    put_bundle(made, encode_bundle([b"a"], None, [1]))
    data = sealed(codec, made)
    assert [record.seq for record in codec.records(data, from_seq=2)] == [2]
    with pytest.raises(BundleError):
        list(codec.records(data))


def crafted(*bundles: bytes, first: int, last: int, count: int) -> bytes:
    body = b"".join(bytes([len(bundle)]) + bundle for bundle in bundles)
    header = b"\xd9QLB" + struct.pack("<BBBBIIQQIIQQ", 1, 0, 0, 0, len(body), 0, first, last, count, 0, TIME, TIME)
    return header + bytes(32) + body


ONE = encode_bundle([b"x"], None, [1])
TWO = encode_bundle([b"x", b"y"], None, [1, 1])
GAP = encode_bundle([b"x", b"y"], None, [1, 1], sparse_seqs=[10, 12])


@both
@pytest.mark.parametrize(
    "data",
    [
        crafted(ONE, TWO, first=1, last=2, count=2),
        crafted(ONE, TWO, first=1, last=4, count=4),
        crafted(ONE, TWO, first=1, last=4, count=3),
        crafted(TWO, first=1, last=3, count=2),
        crafted(GAP, first=9, last=12, count=2),
        crafted(GAP, first=11, last=12, count=2),
        crafted(GAP, first=10, last=13, count=2),
        crafted(GAP, GAP, first=10, last=13, count=4),
        crafted(GAP, ONE, first=10, last=12, count=3),
        crafted(b"", first=1, last=1, count=1),
        crafted(ONE, b"", first=1, last=1, count=1),
        crafted(ONE, first=1, last=1, count=1)[:-1],
        crafted(ONE, first=1, last=1, count=1) + b"\x00",
        crafted(b"\x04", first=1, last=1, count=1),
    ],
    ids=range(14),
)
def test_content_that_is_not_what_the_header_says(codec: ModuleType, data: bytes) -> None:
    with pytest.raises((BatchError, BundleError)):
        list(codec.records(data))


@both
def test_bundle_longer_than_its_batch(codec: ModuleType) -> None:
    data = bytearray(crafted(ONE, first=1, last=1, count=1))
    data[88] += 1
    with pytest.raises(BatchError, match="behind"):
        list(codec.records(bytes(data) + crafted(ONE, first=2, last=2, count=1)))


@both
def test_crafted_batches_are_read(codec: ModuleType) -> None:
    data = crafted(ONE, GAP, TWO, first=9, last=14, count=5) + crafted(ONE, first=20, last=20, count=1)
    assert [record.seq for record in codec.records(data)] == [9, 10, 12, 13, 14, 20]
