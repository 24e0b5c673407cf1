"""Bundles: captured ones of real clients, every refusal, sizes stated by snappy; compiled and pure alike."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import cramjam
import pytest

from engine.formats import bundle, bundle_encode, bundle_pure
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BundleError, Record
from engine.limits import BUNDLE_UNPACKED_BYTES_MAX

pytestmark = pytest.mark.checked

VECTORS = Path(__file__).parents[3] / "data" / "tank.jsonl"
MALFORMED = {"raw_produce_too_short", "raw_produce_bundle_longer_than_payload"}
TIME = 1_700_000_000_000

both = pytest.mark.parametrize("codec", [bundle, bundle_pure], ids=["compiled", "pure"])


def varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def produced(frame: bytes) -> Iterator[bytes]:
    """The bundles of a Produce (1) or ProduceWithSeqnum (5) frame."""
    position = 5 + 6
    position += 1 + frame[position] + 5
    topics = frame[position]
    position += 1
    for _ in range(topics):
        position += 1 + frame[position]
        partitions = frame[position]
        position += 1
        for _ in range(partitions):
            size, position = varint(frame, position + 2)
            position += 8 if frame[0] == 5 else 0
            yield frame[position : position + size]
            position += size


def consumed(frame: bytes) -> Iterator[bytes]:
    """The bundles of a Consume answer: its chunks, one behind the other, come after the header."""
    position = 5 + 4 + int.from_bytes(frame[5:9], "little")
    while position < len(frame):
        size, position = varint(frame, position)
        yield frame[position : position + size]
        position += size


def captured() -> list[bytes]:
    found = []
    for line in VECTORS.read_text().splitlines():
        row = json.loads(line)
        frame = bytes.fromhex(row.get("hex", ""))
        if not frame or row["case"] in MALFORMED:
            continue
        if row["dir"] == "c2s" and frame[0] in (1, 5):
            found += produced(frame)
        elif row["dir"] == "s2c" and frame[0] == 2:
            found += consumed(frame)
    return found


def reencoded(data: bytes, records: list[Record]) -> bytes:
    seqs = [record.seq for record in records] if data[0] & 0x40 else None
    return encode_bundle(
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp_ms for record in records],
        sparse_seqs=seqs,
        codec=data[0] & 3,
    )


@both
def test_captured_bundles_decode_and_encode_to_the_same_bytes(codec: ModuleType) -> None:
    bundles = captured()
    others = []  # that a client made longer than need be
    for data in bundles:
        info = codec.check_bundle(data, 0, len(data))
        records = codec.decode_bundle(data, 0, len(data), 1)
        assert len(records) == info.count
        assert max(record.timestamp_ms for record in records) == info.max_timestamp_ms
        if info.sparse:
            assert (records[0].seq, records[-1].seq) == (info.first_seq, info.last_seq)
        else:
            assert [record.seq for record in records] == list(range(1, info.count + 1))
            assert (info.first_seq, info.last_seq) == (0, 0)
        again = reencoded(data, records)
        if again != data:
            others.append(data)
            assert codec.decode_bundle(again, 0, len(again), 1) == records
    assert len(bundles) == 115
    literal_snappy = bytes.fromhex("059701f096000068e5cf8b010000")
    assert sorted({data[:14] for data in others if data[0] & 3}) == [literal_snappy]
    plain = [data for data in others if not data[0] & 3]
    assert len(plain) == 6  # the Java client repeats equal timestamps
    assert all(data.count(data[2:10]) == data[0] >> 2 for data in plain)


EXAMPLES = {
    "0400 0068e5cf8b010000 01 61": [(5, TIME, b"", b"a")],
    "0c 00 3087331fa2010000 04666f7572 02 0466697665 02 03736978": [
        (5, 1795819800368, b"", b"four"),
        (6, 1795819800368, b"", b"five"),
        (7, 1795819800368, b"", b"six"),
    ],
    "0c 01 cc87331fa2010000 026b31 027631 03 026b32 027632 03 026b31 027633": [
        (5, 1795819800524, b"k1", b"v1"),
        (6, 1795819800524, b"k2", b"v2"),
        (7, 1795819800524, b"k1", b"v3"),
    ],
    "50 6400000000000000 0e 00 6090331fa2010000 0161 02 04 0162 02 04 0163 02 0164": [
        (100, 1795819802720, b"", b"a"),
        (105, 1795819802720, b"", b"b"),
        (110, 1795819802720, b"", b"c"),
        (115, 1795819802720, b"", b"d"),
    ],
    "54 c800000000000000 03 00 6390331fa2010000 0165 06 0166 06 0167 06 0168 02 0169": [
        (200 + index, 1795819802723, b"", value) for index, value in enumerate([b"e", b"f", b"g", b"h", b"i"])
    ],
    "44 2c01000000000000 00 6690331fa2010000 06 73696e676c65": [(300, 1795819802726, b"", b"single")],
    # a last message may say "previous + 1" too; a key of no bytes is none; unknown bits of a message mean nothing
    "48 0900000000000000 00 f9 0100000000000000 00 00 06 00": [(9, 1, b"", b""), (10, 1, b"", b"")],
    "08 00 0100000000000000 00 00 0200000000000000 00": [(5, 1, b"", b""), (6, 2, b"", b"")],
    # a varint may be longer than need be
    "00 8100 00 0100000000000000 8000": [(5, 1, b"", b"")],
}


@both
@pytest.mark.parametrize("text", EXAMPLES)
def test_examples(codec: ModuleType, text: str) -> None:
    data = bytes.fromhex(text)
    framed = memoryview(b"before" + data + b"behind")
    records = codec.decode_bundle(framed, 6, 6 + len(data), 5)
    assert [(record.seq, record.timestamp_ms, record.key, record.value) for record in records] == EXAMPLES[text]
    info = codec.check_bundle(framed, 6, 6 + len(data))
    assert info.count == len(records)
    assert info.sparse == bool(data[0] & 0x40)
    assert (info.first_seq, info.last_seq) == ((records[0].seq, records[-1].seq) if info.sparse else (0, 0))
    assert "count=" + str(info.count) in repr(info)


REFUSED = {
    "": "no bytes",
    "84 00 0068e5cf8b010000 01 61": "unknown flags",
    "06 00 0068e5cf8b010000 01 61": "unknown flags",
    "07 00 0068e5cf8b010000 01 61": "unknown flags",
    "00 00": "no messages",
    "00 8000": "no messages",
    "00": "varint",
    "00 80": "varint",
    "00 ffffffff1f": "varint",
    "00 808080808001": "varint",
    "04": "fewer bytes than messages need",
    "04 00": "fewer bytes",
    "04 00 00": "cut in a number",
    "04 00 0068e5cf8b0100": "cut in a number",
    "04 00 0068e5cf8b010000": "cut in a message",
    "04 02 01 61": "first message without a timestamp",
    "04 01 0068e5cf8b010000": "cut in a message",
    "04 01 0068e5cf8b010000 05 61": "cut",
    "04 01 0068e5cf8b010000 01 61": "cut",
    "04 00 0068e5cf8b010000 02 61": "cut",
    "04 00 0068e5cf8b010000 81": "varint",
    "04 00 0068e5cf8b010000 ffffffff7f": "varint",
    "04 00 0068e5cf8b010000 ffffffff0f": "cut",
    "04 00 0068e5cf8b010000 01 61 00": "bytes behind the last message",
    "08 00 0068e5cf8b010000 01 61 02": "cut",
    "08 00 0068e5cf8b010000 01 61": "cut",
    "00 ffffffff0f 00 0068e5cf8b010000 01 61": "fewer bytes",
    "44 00": "cut in a number",
    "44 ffffffffffffffff 00 0068e5cf8b010000": "cut",
    "48 ffffffffffffffff 00 00 0068e5cf8b010000 00 02 00": "64 bits",
    "48 0100000000000000": "varint",
    "4c 0100000000000000 00 00 0068e5cf8b010000 00 06 00 02 00": "do not fit the count",
    "4c 0100000000000000 01 00 0068e5cf8b010000 00 02 01 00 02 00": "do not rise",
    "4c 0100000000000000 05 00 0068e5cf8b010000 00 02 ffffffff0f 00 02 00": "do not rise",
    "4c 0100000000000000 05 00 0068e5cf8b010000 00 02": "cut|varint",
    "48 0100000000000000 05 00 0068e5cf8b010000 00 06 00": "not the stated one",
    "05": "varint",
    "05 00": "fewer bytes",
    "05 0a": "snappy",
    "05 ff7f": "cannot unpack",
    "05 ffffffff0f": "more than",
    "05 0c 2c 0000": "snappy",
    "05 0b 28 00 0068e5cf8b010000 01 61 00": "behind the last message|snappy",
}


@both
@pytest.mark.parametrize("text", REFUSED)
def test_refused(codec: ModuleType, text: str) -> None:
    data = bytes.fromhex(text)
    for after in (b"", b"\x00" * 300, b"\x7f" * 300):  # what lies behind the bundle's end must not matter
        with pytest.raises(BundleError, match=REFUSED[text]):
            codec.check_bundle(data + after, 0, len(data))
        with pytest.raises(BundleError):
            codec.decode_bundle(data + after, 0, len(data), 1)


@both
def test_range_outside_the_source(codec: ModuleType) -> None:
    data = bytes.fromhex("0400 0068e5cf8b010000 01 61")
    for start, end in ((-1, 12), (0, 13), (12, 12), (5, 4), (13, 14)):
        with pytest.raises(BundleError):
            codec.check_bundle(data, start, end)


@both
@pytest.mark.parametrize("count", [1, 2, 15, 16, 127, 128, 255, 256, 5000])
@pytest.mark.parametrize("packed", [0, 1])
def test_counts(codec: ModuleType, count: int, packed: int) -> None:
    values = [b"value %d" % index for index in range(count)]
    data = encode_bundle(values, None, list(range(count)), codec=packed)
    info = codec.check_bundle(data, 0, len(data))
    assert (info.count, info.max_timestamp_ms, info.codec) == (count, count - 1, packed)
    assert [record.value for record in codec.decode_bundle(data, 0, len(data), 1)] == values


@both
def test_every_cut_and_every_byte_too_many_is_refused(codec: ModuleType) -> None:
    data = encode_bundle([b"a", b"bb", b"x" * 200], [b"", b"key", b""], [1, 2, 2], sparse_seqs=[7, 9, 10])
    for end in range(len(data)):
        with pytest.raises(BundleError):
            codec.check_bundle(data, 0, end)
    with pytest.raises(BundleError):
        codec.check_bundle(data + b"\x00", 0, len(data) + 1)


def announcing(size: int, block: bytes) -> bytes:
    """A snappy bundle of one message that announces ``size`` bytes."""
    return bytes([5]) + leb128(size) + block


def leb128(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


@both
def test_announced_size_is_checked_before_unpacking(codec: ModuleType) -> None:
    block = b"\x00" * 12_582_912
    data = announcing(BUNDLE_UNPACKED_BYTES_MAX + 1, block)
    with pytest.raises(BundleError, match="more than"):
        codec.check_bundle(data, 0, len(data))
    data = announcing(BUNDLE_UNPACKED_BYTES_MAX, block[:1000])
    with pytest.raises(BundleError, match="cannot unpack"):
        codec.check_bundle(data, 0, len(data))
    data = encode_bundle([b"x" * 1000], None, [TIME], codec=1)
    assert codec.check_bundle(data, 0, len(data), 1011).count == 1
    with pytest.raises(BundleError, match="unpacks to 1011 bytes, more than 1010"):
        codec.check_bundle(data, 0, len(data), 1010)


@both
def test_most_compressed_block_is_not_taken_for_a_lie(codec: ModuleType) -> None:
    data = encode_bundle([b"x" * 1_000_000], None, [TIME], codec=1)
    assert len(data) < 1_000_000 * 3 / 64 + 60
    assert codec.check_bundle(data, 0, len(data)).count == 1


def test_encoding_refuses_what_a_bundle_cannot_hold() -> None:
    for arguments in (
        ([], None, []),
        ([b"a"], None, []),
        ([b"a"], [], [1]),
        ([b"a"], [b"k" * 256], [1]),
        ([b"a"], None, [-1]),
        ([b"a"], None, [1 << 64]),
    ):
        with pytest.raises(ValueError, match=r"."):
            encode_bundle(*arguments)
    for seqs in ([1], [2, 2], [2, 1], [0, 1 << 64], [-1, 2], [1, (1 << 32) + 3]):
        with pytest.raises(ValueError, match=r"."):
            encode_bundle([b"a", b"b"], None, [1, 1], sparse_seqs=seqs)
    with pytest.raises(ValueError, match="codec"):
        encode_bundle([b"a"], None, [1], codec=2)


def test_largest_numbers_encode() -> None:
    top = (1 << 64) - 1
    data = encode_bundle([b"", b""], [b"k" * 255, b""], [top, 0], sparse_seqs=[top - (1 << 32), top])
    for codec in (bundle, bundle_pure):
        records = codec.decode_bundle(data, 0, len(data), 0)
        assert [(record.seq, record.timestamp_ms) for record in records] == [(top - (1 << 32), top), (top, 0)]


def test_snappy_block_is_that_of_the_library() -> None:
    data = encode_bundle([b"abc"] * 100, None, [TIME] * 100, codec=1)
    plain = encode_bundle([b"abc"] * 100, None, [TIME] * 100)
    assert bytes(cramjam.snappy.decompress_raw(data[2:])) == plain[2:]


@pytest.mark.skipif(os.environ.get("QUINTLOG_REQUIRE_COMPILED") != "1", reason="compiled modules are not required here")
def test_compiled() -> None:
    assert bundle.COMPILED
    assert bundle_encode.COMPILED
    assert not bundle_pure.COMPILED
    assert bundle.check_bundle is not bundle_pure.check_bundle


@pytest.mark.skipif(bundle.COMPILED, reason="compiled")
def test_uncompiled_module_exports_its_twin() -> None:
    assert bundle.check_bundle is bundle_pure.check_bundle
