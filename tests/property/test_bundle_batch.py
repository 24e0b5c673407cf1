"""Bundles and batches as properties: what goes in comes out, any bytes decode or raise, both builds agree."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.formats import batch, batch_pure, bundle, bundle_pure
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BatchError, BundleError, Record

pytestmark = pytest.mark.checked

SEGMENT = 0x0123_4567_89AB_CDEF
BUNDLES = (bundle, bundle_pure)
BATCHES = (batch, batch_pure)

u64 = st.one_of(st.integers(0, (1 << 64) - 1), st.integers(1_700_000_000_000, 1_700_000_000_003))
sizes = st.sampled_from([0, 1, 2, 3, 100, 126, 127, 128, 129, 300, 16_383, 16_384])
values = st.one_of(st.binary(max_size=40), sizes.map(lambda size: b"v" * size))
keys = st.one_of(st.just(b""), st.binary(max_size=10), st.sampled_from([b"k" * 254, b"k" * 255]))
rows = st.lists(st.tuples(values, keys, u64), min_size=1, max_size=40)
gaps = st.one_of(st.just(0), st.integers(0, 5), st.sampled_from([126, 127, 128, 1 << 20]))


def outcome(function: Callable[[], Any]) -> Any:
    """What a function gives, or that it raised a codec's own error."""
    try:
        return function()
    except (BundleError, BatchError):
        return "refused"


def info_of(codec: ModuleType, data: bytes) -> Any:
    def check() -> tuple[int, int, int, int, bool, int]:
        info = codec.check_bundle(data, 0, len(data))
        return info.count, info.first_seq, info.last_seq, info.max_timestamp_ms, bool(info.sparse), info.codec

    return outcome(check)


def records_of(codec: ModuleType, data: bytes, from_seq: int = 0) -> Any:
    """The records before the first error, and whether there was one."""
    found = []
    try:
        for record in codec.records(data, from_seq=from_seq):
            found.append(record)
    except (BundleError, BatchError):
        return found, True
    return found, False


@st.composite
def bundles(draw: st.DrawFn, first_seq: int = 1) -> tuple[bytes, list[Record]]:
    """A bundle and what is in it; numbers from ``first_seq`` on."""
    chosen = draw(rows)
    seqs = list(range(first_seq, first_seq + len(chosen)))
    sparse = draw(st.booleans())
    if sparse:
        position = first_seq + draw(gaps)
        for index in range(len(chosen)):
            seqs[index] = position
            position += 1 + draw(gaps)
    data = encode_bundle(
        [value for value, _, _ in chosen],
        [key for _, key, _ in chosen],
        [timestamp for _, _, timestamp in chosen],
        sparse_seqs=seqs if sparse else None,
        codec=draw(st.integers(0, 1)),
    )
    return data, [Record(seq, row[2], row[1], row[0]) for seq, row in zip(seqs, chosen, strict=True)]


@given(bundles())
def test_bundles_round_trip(made: tuple[bytes, list[Record]]) -> None:
    data, records = made
    sparse = bool(data[0] & 0x40)
    highest = max(record.timestamp_ms for record in records)
    first, last = (records[0].seq, records[-1].seq) if sparse else (0, 0)
    for codec in BUNDLES:
        assert info_of(codec, data) == (len(records), first, last, highest, sparse, data[0] & 3)
        assert codec.decode_bundle(data, 0, len(data), 1) == records


@given(st.binary(max_size=80))
@example(b"\x05\xff\xff\xff\x7f" + b"\xfe\x01\x00" * 20)
def test_any_bytes_are_a_bundle_or_refused(data: bytes) -> None:
    found = info_of(bundle, data)
    assert info_of(bundle_pure, data) == found
    for codec in BUNDLES:
        records = outcome(lambda codec=codec: codec.decode_bundle(data, 0, len(data), 1))
        assert records == "refused" if found == "refused" else len(records) == found[0]


@given(bundles(), st.data())
@settings(max_examples=300)
def test_damaged_bundles_decode_or_are_refused(made: tuple[bytes, list[Record]], draw: st.DataObject) -> None:
    data = bytearray(made[0])
    for _ in range(draw.draw(st.integers(1, 3))):
        # mostly the first bytes, which say the most
        position = draw.draw(st.integers(0, min(len(data) - 1, draw.draw(st.sampled_from([12, 1 << 20])))))
        data[position] = draw.draw(st.integers(0, 255))
    test_any_bytes_are_a_bundle_or_refused.hypothesis.inner_test(bytes(data))


class Model:
    """Both writers, given the same, and the records that should be in them."""

    def __init__(self, size: int) -> None:
        self.writers = [codec.BatchWriter(bytearray(size), 1) for codec in BATCHES]
        self.records: list[Record] = []
        self.now_ms = 0
        self.qos0 = False

    def both(self, call: Callable[[Any], Any]) -> Any:
        first, second = (call(writer) for writer in self.writers)
        assert first == second
        return first

    @property
    def next_seq(self) -> int:
        return int(self.both(lambda writer: writer.next_seq))

    def begin(self, now_ms: int, attributes: int) -> None:
        self.both(lambda writer: writer.begin(now_ms, attributes))
        self.now_ms = max(self.now_ms, now_ms)
        self.qos0 = attributes == 1

    def put(self, value: bytes) -> None:
        seq = self.next_seq
        if self.both(lambda writer: writer.put(b"[" + value + b"]", 1, 1 + len(value))):
            self.records.append(Record(seq, self.now_ms, b"", value, (), self.qos0))

    def put_record(self, value: bytes, key: bytes, timestamp_ms: int, headers: tuple[bytes, ...]) -> None:
        seq = self.next_seq
        if self.both(lambda writer: writer.put_record(value, key, timestamp_ms, headers)):
            self.records.append(Record(seq, timestamp_ms, key, value, headers, self.qos0))

    def put_bundle(self, data: bytes, records: list[Record]) -> None:
        info = bundle.check_bundle(data, 0, len(data))
        first, last = records[0].seq, records[-1].seq
        if self.both(
            lambda writer: writer.put_bundle(
                data, 0, len(data), info.count, first, last, info.max_timestamp_ms, info.sparse
            )
        ):
            for record in records:
                self.records.append(Record(record.seq, record.timestamp_ms, record.key, record.value, (), self.qos0))

    def sealed(self, file_position: int) -> bytes:
        found = []
        for codec, writer in zip(BATCHES, self.writers, strict=True):
            writer.close_batch()
            codec.seal(writer.buffer, 0, writer.position, SEGMENT, file_position, 5, 6)
            found.append(bytes(writer.buffer[: writer.position]))
        assert found[0] == found[1]
        for name in ("position", "first_seq", "next_seq", "records", "batches", "max_timestamp_ms", "append_time_ms"):
            self.both(lambda writer, name=name: getattr(writer, name))
        return found[0]


@given(st.data())
@settings(max_examples=150)
def test_what_is_written_is_read(draw: st.DataObject) -> None:
    model = Model(draw.draw(st.sampled_from([500, 20_000, 200_000])))
    for _ in range(draw.draw(st.integers(0, 30))):
        kind = draw.draw(st.sampled_from(["begin", "put", "put", "runs", "record", "bundle", "close", "grow"]))
        if kind == "begin":
            model.begin(draw.draw(u64), draw.draw(st.integers(0, 1)))
        elif kind == "put":
            model.put(draw.draw(values))
        elif kind == "runs":
            for index in range(draw.draw(st.integers(1, 300))):
                model.put(b"%d" % index)
        elif kind == "record":
            headers = draw.draw(st.one_of(st.just(()), st.lists(st.binary(max_size=5), max_size=4).map(tuple)))
            model.put_record(draw.draw(values), draw.draw(keys), draw.draw(u64), headers)
        elif kind == "bundle":
            gap = draw.draw(gaps)
            model.put_bundle(*draw.draw(bundles(model.next_seq + gap)))
        elif kind == "close":
            model.both(lambda writer: writer.close_batch())
        else:
            larger = model.writers[0].size * 2
            for writer in model.writers:
                writer.replace_buffer(bytearray(b"\x7f" * larger))
    data = model.sealed(1 << 40)
    ends = (model.records[0].seq, model.records[-1].seq) if model.records else (0, 0)
    from_seq = draw.draw(st.integers(0, ends[1] + 2))
    wanted = [record for record in model.records if record.seq >= from_seq]
    for codec in BATCHES:
        assert codec.verify(data, 0, len(data), SEGMENT, 1 << 40) == (len(data), *ends)
        assert list(codec.records(data)) == model.records
        start = codec.locate(data, 0, len(data), from_seq)
        assert list(codec.records(data, start, from_seq=from_seq)) == wanted


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    model = Model(100_000)
    model.begin(5, 0)
    for _ in range(draw(st.integers(1, 3))):
        model.put(draw(st.binary(max_size=20)))
        if draw(st.booleans()):
            model.put_record(b"value", b"key", 9, (b"name", b"text"))
        if draw(st.booleans()):
            model.put_bundle(*draw(bundles(model.next_seq)))
    return model.sealed(0)


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: b"\xd9QLB\x01" + tail)))
def test_any_bytes_are_batches_or_refused(data: bytes) -> None:
    assert batch.verify(data, 0, len(data), SEGMENT, 0) == batch_pure.verify(data, 0, len(data), SEGMENT, 0)
    assert records_of(batch, data) == records_of(batch_pure, data)
    for seq in (0, 5, 1 << 63):
        found = [outcome(lambda codec=codec, seq=seq: codec.locate(data, 0, len(data), seq)) for codec in BATCHES]
        assert found[0] == found[1]
    header = batch.read_header(data, 0, SEGMENT, 0)
    assert header is None or header.header_hash


@given(batches(), st.data())
@settings(max_examples=300)
def test_damaged_batches_never_verify_and_never_break_the_reader(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    position = draw.draw(st.integers(0, len(data) - 1))
    damaged[position] ^= draw.draw(st.integers(1, 255))
    first_end = batch.read_header(data, 0, SEGMENT, 0)
    assert first_end is not None
    for codec in BATCHES:
        end, _, _ = codec.verify(damaged, 0, len(damaged), SEGMENT, 0)
        assert end <= position
        assert end == 0 or end >= first_end.end
    from_seq = draw.draw(st.integers(0, 5))
    assert records_of(batch, bytes(damaged), from_seq) == records_of(batch_pure, bytes(damaged), from_seq)
    cut = draw.draw(st.integers(0, len(data) - 1))
    for codec in BATCHES:
        assert codec.verify(data, 0, cut, SEGMENT, 0)[0] <= cut
    assert records_of(batch, data[:cut]) == records_of(batch_pure, data[:cut])
