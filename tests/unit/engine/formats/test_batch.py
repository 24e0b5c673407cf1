"""Writing batches: their bytes, when they close, the room they need, headers; compiled and pure alike."""

from __future__ import annotations

import os
import struct
from types import ModuleType

import msgpack
import pytest
import xxhash

from engine.formats import batch, batch_header, batch_pure
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BatchError, Record
from engine.limits import BATCH_BYTES_TARGET, BUNDLE_BYTES_MAX, EXTENSION_BYTES_MAX
from tests.batches import SEGMENT, TIME, both, headers_of, put_bundle, sealed, writer

pytestmark = pytest.mark.checked

# --- bytes


@both
def test_bytes_of_a_packed_batch(codec: ModuleType) -> None:
    made = writer(codec, next_seq=41)
    assert made.put(b"..one..", 2, 5)
    assert made.put_record(b"two", b"key", TIME - 1)
    assert made.put_record(b"", b"", TIME - 1)
    made.close_batch()
    codec.seal(made.buffer, 0, made.position, SEGMENT, 1000, 777, 9)
    messages = (
        struct.pack("<BQB", 0, TIME, 3) + b"one" + struct.pack("<BQB", 1, TIME - 1, 3) + b"key\x03two" + b"\x02\x00"
    )
    body = bytes(5) + bytes([1 + len(messages), 3 << 2]) + messages
    header = b"\xd9QLB" + struct.pack("<BBBBIIQQIIQQ", 1, 0, 5, 0, len(body) - 5, 0, 41, 43, 3, 0, TIME, TIME)
    header += struct.pack("<QQQ", 777, 9, xxhash.xxh3_64_intdigest(body, SEGMENT))
    header += struct.pack("<Q", xxhash.xxh3_64_intdigest(header, SEGMENT + 1000))
    assert made.buffer[: made.position] == header + body
    assert (made.records, made.batches, made.first_seq, made.next_seq, made.max_timestamp_ms) == (3, 1, 41, 44, TIME)
    assert made.buffer[made.position :] == b"\xee" * (made.size - made.position)


@both
def test_bytes_of_a_raw_batch(codec: ModuleType) -> None:
    made = writer(codec)
    one = encode_bundle([b"one", b"two"], None, [5, 5])
    big = encode_bundle([b"x" * 200], [b"k"], [TIME + 9], codec=0)
    assert put_bundle(made, one)
    assert put_bundle(made, big)
    data = sealed(codec, made)
    body = bytes([len(one)]) + one + bytes([len(big) & 127 | 128, len(big) >> 7]) + big
    assert data[88:] == body
    assert data[:56] == b"\xd9QLB" + struct.pack("<BBBBIIQQIIQQ", 1, 0, 0, 0, len(body), 0, 1, 3, 3, 0, TIME, TIME)


@both
@pytest.mark.parametrize("count", [1, 15, 16, 127, 128, 255])
@pytest.mark.parametrize("size", [0, 1, 90, 120, 127, 128, 250])
def test_bundle_head_is_put_right_before_the_messages(codec: ModuleType, count: int, size: int) -> None:
    made = writer(codec)
    for _ in range(count):
        assert made.put(b"v" * size, 0, size)
    data = sealed(codec, made)
    assert made.batches == 1
    (header,) = headers_of(codec, data)
    plain = encode_bundle([b"v" * size] * count, None, [TIME] * count)
    length_bytes = 1 if len(plain) < 128 else 2 if len(plain) < 1 << 14 else 3
    assert header.padding_bytes == 7 - length_bytes - (1 if count < 16 else 2 if count < 128 else 3)
    assert data[88 : header.bundles_start] == bytes(header.padding_bytes)
    assert data[header.bundles_start + length_bytes :] == plain
    assert header.bundles_end == header.end == len(data)


@both
def test_largest_length_varint(codec: ModuleType) -> None:
    value = bytes(3 << 20)
    made = writer(codec, 4 << 20)
    assert made.put_record(value, b"k", TIME)
    data = sealed(codec, made)
    (header,) = headers_of(codec, data)
    assert header.padding_bytes == 2
    assert [record.value for record in codec.records(data)] == [value]


# --- when batches close


@both
def test_closes_at_255_records(codec: ModuleType) -> None:
    made = writer(codec)
    for _ in range(600):
        assert made.put(b"x", 0, 1)
    assert [header.count for header in headers_of(codec, sealed(codec, made))] == [255, 255, 90]


@both
def test_closes_before_64_kib_and_a_large_record_goes_alone(codec: ModuleType) -> None:
    made = writer(codec)
    for size in (20_000, 20_000, 20_000, 20_000, 100_000, 1, 1):
        assert made.put(bytes(size), 0, size)
    headers = headers_of(codec, sealed(codec, made))
    assert [header.count for header in headers] == [3, 1, 1, 2]
    assert max(header.size for header in headers if header.count > 1) <= BATCH_BYTES_TARGET


@both
def test_raw_batches_close_at_64_kib(codec: ModuleType) -> None:
    made = writer(codec)
    for size in (20_000, 20_000, 20_000, 20_000, 100_000, 1, 1):
        assert put_bundle(made, encode_bundle([bytes(size)], None, [1]))
    headers = headers_of(codec, sealed(codec, made))
    assert [header.count for header in headers] == [3, 1, 1, 2]


@both
def test_packed_and_raw_never_share_a_batch(codec: ModuleType) -> None:
    made = writer(codec)
    bundle = encode_bundle([b"b"], None, [1])
    assert made.put(b"a", 0, 1)
    assert put_bundle(made, bundle)
    assert put_bundle(made, bundle)
    assert made.put_record(b"c", b"", 1)
    data = sealed(codec, made)
    assert [header.count for header in headers_of(codec, data)] == [1, 2, 1]
    assert [(record.seq, record.value) for record in codec.records(data)] == [
        (1, b"a"),
        (2, b"b"),
        (3, b"b"),
        (4, b"c"),
    ]


@both
def test_sparse_bundles_share_a_batch_and_a_dense_one_after_a_gap_does_not(codec: ModuleType) -> None:
    made = writer(codec)
    dense = encode_bundle([b"a", b"b"], None, [1, 1])
    assert put_bundle(made, dense)
    assert put_bundle(made, encode_bundle([b"c", b"d"], None, [1, 1], sparse_seqs=[10, 20]))
    assert put_bundle(made, dense)
    assert put_bundle(made, dense, first_seq=100)
    assert put_bundle(made, encode_bundle([b"e"], None, [1], sparse_seqs=[102]))
    data = sealed(codec, made)
    headers = headers_of(codec, data)
    assert [(header.first_seq, header.last_seq, header.count) for header in headers] == [(1, 22, 6), (100, 102, 3)]
    assert [record.seq for record in codec.records(data)] == [1, 2, 10, 20, 21, 22, 100, 101, 102]


@both
def test_a_batch_may_begin_with_a_sparse_bundle(codec: ModuleType) -> None:
    made = writer(codec, next_seq=5)
    assert put_bundle(made, encode_bundle([b"c", b"d"], None, [1, 1], sparse_seqs=[10, 20]))
    assert (made.first_seq, made.next_seq) == (10, 21)
    (header,) = headers_of(codec, sealed(codec, made))
    assert (header.first_seq, header.last_seq, header.count) == (10, 20, 2)


@both
def test_other_attributes_end_the_batch(codec: ModuleType) -> None:
    made = writer(codec)
    for attributes, now in ((0, TIME), (1, TIME + 5), (1, TIME + 6), (0, TIME + 7)):
        made.begin(now, attributes)
        assert made.put(b"x", 0, 1)
    data = sealed(codec, made)
    headers = headers_of(codec, data)
    assert [(header.attributes, header.count) for header in headers] == [(0, 1), (1, 2), (0, 1)]
    assert [header.append_time_ms for header in headers] == [TIME, TIME + 6, TIME + 7]
    assert [record.qos0 for record in codec.records(data)] == [False, True, True, False]
    with pytest.raises(ValueError, match="one byte"):
        made.begin(TIME, 256)


# --- times


@both
def test_append_time_never_goes_backwards(codec: ModuleType) -> None:
    made = writer(codec)
    for now in (TIME + 50, TIME + 10, TIME + 60):
        made.begin(now)
        assert made.put(b"x", 0, 1)
        assert made.append_time_ms == max(TIME + 50, now)
    data = sealed(codec, made)
    assert [record.timestamp_ms for record in codec.records(data)] == [TIME + 50, TIME + 50, TIME + 60]


@both
def test_a_record_dated_ahead_does_not_move_the_highest_time(codec: ModuleType) -> None:
    made = writer(codec)
    assert made.put_record(b"", b"", (1 << 64) - 1)
    made.close_batch()
    assert made.put_record(b"", b"", TIME - 1000)
    made.close_batch()
    assert put_bundle(made, encode_bundle([b""], None, [TIME + 1]))
    headers = headers_of(codec, sealed(codec, made))
    assert [header.max_timestamp_ms for header in headers] == [TIME, TIME - 1000, TIME]
    assert made.max_timestamp_ms == TIME


# --- room


@both
def test_no_room_writes_nothing_and_a_larger_buffer_goes_on(codec: ModuleType) -> None:
    made = codec.BatchWriter(bytearray(200), 1)
    made.begin(TIME)
    assert made.put(b"x" * 40, 0, 40)
    before = bytes(made.buffer), made.position, made.next_seq
    assert not made.put(b"y" * 60, 0, 60)
    assert not made.put_record(b"y" * 60, b"k", 1)
    assert (bytes(made.buffer), made.position, made.next_seq) == before
    with pytest.raises(ValueError, match="smaller"):
        made.replace_buffer(bytearray(199))
    larger = bytearray(b"\xee" * 2000)
    made.replace_buffer(larger)
    assert made.buffer is larger
    assert made.size == 2000
    assert made.put(b"y" * 60, 0, 60)
    data = sealed(codec, made)
    assert [record.value for record in codec.records(data)] == [b"x" * 40, b"y" * 60]
    assert made.batches == 1


@both
def test_no_room_for_a_bundle(codec: ModuleType) -> None:
    made = codec.BatchWriter(bytearray(150), 1)
    made.begin(TIME)
    data = encode_bundle([b"x" * 30], None, [1])
    assert put_bundle(made, data)
    assert not put_bundle(made, data)
    assert made.next_seq == 2
    made.close_batch()
    assert not put_bundle(made, data)
    assert [record.seq for record in codec.records(sealed(codec, made))] == [1]


@both
def test_the_smallest_room_that_a_record_needs(codec: ModuleType) -> None:
    for size in range(300):
        made = codec.BatchWriter(bytearray(size), 1)
        made.begin(TIME)
        if made.put(bytes(100), 0, 100):
            made.close_batch()
            assert size == 95 + 14 + 100
            break
    else:
        pytest.fail("never enough room")


@both
@pytest.mark.parametrize("before", [0, 1, 200, 255, 256, 600])
@pytest.mark.parametrize("open_headers", [(), (b"n", b"v")])
@pytest.mark.parametrize(
    ("size", "key", "headers"),
    [(0, b"", ()), (100, b"key", ()), (70_000, b"", ()), (0, b"", (b"",)), (9, b"key", (b"n", b"v" * 300))],
)
def test_the_stated_room_is_enough(
    codec: ModuleType, before: int, open_headers: tuple[bytes, ...], size: int, key: bytes, headers: tuple[bytes, ...]
) -> None:
    probe = writer(codec)
    used = 0
    for _ in range(before):
        assert probe.put_record(b"x", b"", TIME, open_headers)
        used = max(used, len(probe.buffer) - (probe.size - probe.position))
    room = 110 + size + len(key) + (13 + sum(5 + len(header) for header in headers) if headers else 0)
    made = writer(codec, used + room)
    for _ in range(before):
        assert made.put_record(b"x", b"", TIME, open_headers)
    assert made.size - made.position >= room
    assert made.put_record(bytes(size), key, TIME - 1, headers)
    made.close_batch()
    assert made.position <= len(made.buffer)
    assert list(codec.records(sealed(codec, made)))[-1] == Record(before + 1, TIME - 1, key, bytes(size), headers)
    bundle = encode_bundle([bytes(size)], None, [1])
    exact = writer(codec, 92 + len(bundle))
    assert put_bundle(exact, bundle)


@both
def test_the_buffer_cannot_be_resized_under_the_writer(codec: ModuleType) -> None:
    made = writer(codec, 500)
    with pytest.raises(BufferError):
        made.buffer.append(1)


@both
def test_impossible_arguments(codec: ModuleType) -> None:
    made = writer(codec, 5000)
    for start, end in ((-1, 2), (0, 4), (2, 1)):
        with pytest.raises(ValueError, match="range"):
            made.put(b"abc", start, end)
        with pytest.raises(ValueError, match="range"):
            made.put_bundle(b"abc", start, end, 1, 1, 1, 1, False)
    with pytest.raises(ValueError, match="key"):
        made.put_record(b"", b"k" * 256, 1)
    for timestamp in (-1, 1 << 64):
        with pytest.raises(OverflowError):
            made.put_record(b"", b"", timestamp)
    made.put(b"", 0, 0)
    for count, first, last in ((1, 1, 1), (0, 2, 2), (2, 2, 2), (1, 3, 2)):
        with pytest.raises(ValueError, match="sequence"):
            made.put_bundle(b"abc", 0, 3, count, first, last, 1, False)
    assert (made.next_seq, len(list(codec.records(sealed(codec, made))))) == (2, 1)


@both
def test_a_record_larger_than_a_bundle_can_be(codec: ModuleType) -> None:
    made = writer(codec, 5000)
    huge = memoryview(bytes(BUNDLE_BYTES_MAX - 20))  # zero pages: never touched
    with pytest.raises(ValueError, match="larger than a bundle"):
        made.put(huge, 0, len(huge))
    assert not made.put(huge, 0, len(huge) - 1)


# --- extension


@both
def test_headers_of_records_become_the_extension(codec: ModuleType) -> None:
    made = writer(codec)
    assert made.put(b"0", 0, 1)
    assert made.put_record(b"1", b"k", TIME, (b"a", b"b", b"c", b""))
    assert made.put(b"2", 0, 1)
    assert made.put_record(b"3", b"", TIME, ())
    assert made.put_record(b"4", b"", TIME, (b"only name",))
    assert made.position + 80 < made.size
    data = sealed(codec, made)
    without, header = headers_of(codec, data)  # a batch that began without headers gets none
    assert (without.count, without.extension_bytes) == (1, 0)
    assert msgpack.unpackb(data[header.bundles_end :]) == {"h": [[b"a", b"b", b"c", b""], None, None, [b"only name"]]}
    assert list(codec.records(data)) == [
        Record(1, TIME, b"", b"0"),
        Record(2, TIME, b"k", b"1", (b"a", b"b", b"c", b"")),
        Record(3, TIME, b"", b"2"),
        Record(4, TIME, b"", b"3"),
        Record(5, TIME, b"", b"4", (b"only name",)),
    ]
    assert [record.headers for record in codec.records(data, from_seq=5)] == [(b"only name",)]


@both
def test_headers_do_not_pass_to_the_next_batch(codec: ModuleType) -> None:
    made = writer(codec)
    for index in range(300):
        assert made.put_record(b"%d" % index, b"", TIME, (b"n", b"%d" % index) if index < 255 else ())
    data = sealed(codec, made)
    assert [bool(header.extension_bytes) for header in headers_of(codec, data)] == [True, False]
    assert [len(record.headers) for record in codec.records(data)] == [2] * 255 + [0] * 45


@both
def test_headers_count_into_room_and_batch_size(codec: ModuleType) -> None:
    made = writer(codec, 3 << 20)
    for _ in range(20):
        assert made.put_record(b"", b"", TIME, (b"h" * 10_000,))
    assert made.batches == 3
    small = codec.BatchWriter(bytearray(2000), 1)
    small.begin(TIME)
    stored = 0
    while small.put_record(b"v", b"", TIME, (b"h" * 100, b"")):
        stored += 1
    assert small.next_seq == stored + 1
    assert stored > 10
    data = sealed(codec, small)
    assert [record.headers for record in codec.records(data)] == [(b"h" * 100, b"")] * stored


@both
def test_extension_given_by_the_caller(codec: ModuleType) -> None:
    made = writer(codec, 900)
    extension = msgpack.packb({"h": [[b"n", b"v"]]})
    with pytest.raises(ValueError, match="no batch"):
        made.close_batch(extension)
    made.close_batch()
    made.put(b"a", 0, 1)
    with pytest.raises(ValueError, match="no room"):
        made.close_batch(bytes(900))
    made.close_batch(extension)
    assert made.put_record(b"a", b"", TIME, (b"n",))
    with pytest.raises(ValueError, match="headers"):
        made.close_batch(extension)
    assert [record.headers for record in codec.records(sealed(codec, made))] == [(b"n", b"v"), (b"n",)]


@both
def test_headers_larger_than_an_extension_can_be(codec: ModuleType) -> None:
    made = writer(codec, 500)
    with pytest.raises(ValueError, match="extension"):
        made.put_record(b"", b"", TIME, (bytes(EXTENSION_BYTES_MAX),))


@pytest.mark.parametrize(
    "extension",
    [
        b"\xc1",
        b"\x81",
        b"\x90",
        msgpack.packb({"h": {}}),
        msgpack.packb({"h": []}),
        msgpack.packb({"h": [None, None]}),
        msgpack.packb({"h": [b"a"]}),
        msgpack.packb({"h": [["text"]]}),
        msgpack.packb({"h": [[1]]}),
        msgpack.packb({"h": [None]}) + b"\x00",
        b"\x81\xa1h\xdd\xff\xff\xff\xff",
        b"\x81\x81" * 5000,
    ],
)
@both
def test_unsound_extension(codec: ModuleType, extension: bytes) -> None:
    made = writer(codec)
    made.put(b"a", 0, 1)
    made.close_batch(extension)
    with pytest.raises(BatchError):
        list(codec.records(sealed(codec, made)))


@both
def test_unknown_entries_of_the_extension_are_left_alone(codec: ModuleType) -> None:
    made = writer(codec)
    made.put(b"a", 0, 1)
    made.close_batch(msgpack.packb({"later": 5, 7: b""}))
    assert [record.headers for record in codec.records(sealed(codec, made))] == [()]


@pytest.mark.skipif(os.environ.get("QUINTLOG_REQUIRE_COMPILED") != "1", reason="compiled modules are not required here")
def test_compiled() -> None:
    assert batch.COMPILED
    assert not batch_pure.COMPILED
    assert batch.BatchWriter is not batch_pure.BatchWriter


@pytest.mark.skipif(batch.COMPILED, reason="compiled")
def test_uncompiled_module_exports_its_twin() -> None:
    assert batch.BatchWriter is batch_pure.BatchWriter


def test_both_have_the_same_names() -> None:
    assert batch.__all__ == batch_pure.__all__
    assert batch_header.MAGIC_BYTES == batch.MAGIC_BYTES == batch_pure.MAGIC_BYTES
