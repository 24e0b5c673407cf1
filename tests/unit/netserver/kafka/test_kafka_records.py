"""Batches of records: what clients send is read as another project reads it, and what is written is read by it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import crcmod.predefined
import pytest

from engine.formats import batch as log_batch
from engine.formats.batch import BatchWriter
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import Record
from netserver.kafka import records
from netserver.kafka.checking import check_records
from netserver.kafka.record_errors import RecordsError
from tests.batches import put_bundle, writer
from tests.kafka_batches import PACKERS, TIME, Message, batch, both, packed, read, resealed

pytestmark = pytest.mark.checked

VECTORS = Path(__file__).parents[3] / "data" / "kafka_records.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
ODD = [
    Message(b"usual", b"key", TIME + 5),
    Message(None, b"deleted"),
    Message(b"", None, TIME - 7),
    Message(b"v", b""),
    Message(b"v", b"k" * 255),
    Message(b"v", b"K" * 256, TIME, ((b"h", b"1"), (b"h", None), (b"", b""))),
    Message(None, None, TIME, ((b"only", None),)),
    Message(b"x" * 300, b"y" * 70_000),
]


def code_of(data: bytes, record_bytes_max: int = 1 << 20) -> int:
    try:
        check_records(data, record_bytes_max)
    except RecordsError as error:
        return error.code if error.text else -1
    return 0


def walked(module: ModuleType, data: bytes) -> records.RecordWalk:
    """The records of an uncompressed batch."""
    count, base_ms = int.from_bytes(data[57:61], "big"), int.from_bytes(data[27:35], "big", signed=True)
    walk: records.RecordWalk = module.RecordWalk(data, 61, len(data), count, base_ms)
    return walk


def count_of(data: bytes) -> int:
    return int.from_bytes(data[57:61], "big")


def stored(module: ModuleType, data: bytes, next_seq: int = 1) -> bytes:
    """Batches of the log with the records of a batch."""
    made = writer(log_batch, 2 * len(data) + 10_000, next_seq)
    count, _, is_full = module.pack_records(walked(module, data), made, count_of(data), made.append_time_ms)
    assert (count, is_full) == (count_of(data), False)
    made.close_batch()
    return bytes(made.buffer[: made.position])


# --- what clients send


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['case']} {row['step']}" for row in ROWS])
def test_what_clients_sent(row: dict[str, object]) -> None:
    data = bytes.fromhex(str(row["hex"]))
    assert code_of(data) == row["code"], row["note"]
    if row["code"]:
        return
    found = check_records(memoryview(data), 1 << 20)
    producer: list[int] = row["producer"]  # type: ignore[assignment]
    numbered = producer if producer[0] >= 0 else [-1, -1, -1]  # some leave a 0 where there is no producer
    assert [found.producer_id, found.producer_epoch, found.first_sequence] == numbered
    assert found.is_transactional == bool(data[22] & 16)
    made = writer(log_batch)
    assert records.pack_records(found.walk(), made, found.count, made.append_time_ms)[0] == found.count
    made.close_batch()
    answer, next_seq, count = records.build_records(bytes(made.buffer[: made.position]), 1, 1 << 20)
    wanted = [
        Message(unhex(value), unhex(key), ms, tuple((bytes.fromhex(name), unhex(held)) for name, held in headers))
        for key, value, ms, headers in row["records"]  # type: ignore[attr-defined]
    ]
    assert [message for _, message in read(bytes(answer))] == wanted
    assert (next_seq, count) == (found.count + 1, found.count)


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


@both
@pytest.mark.parametrize("base", [0, TIME])
def test_all_that_a_record_can_be_goes_through_the_log(module: ModuleType, base: int) -> None:
    messages = [message._replace(timestamp_ms=base + index * 300 % 1000) for index, message in enumerate(ODD * 50)]
    data = batch(messages)
    assert code_of(data) == 0
    log = stored(module, data, next_seq=7)
    assert log == stored(records, data, next_seq=7)
    answer, next_seq, count = module.build_records(log, 0, 64 << 20)
    assert read(bytes(answer)) == [(7 + index, message) for index, message in enumerate(messages)]
    assert (next_seq, count) == (7 + len(messages), len(messages))
    assert bytes(answer) == bytes(records.build_records(log, 0, 64 << 20)[0])


def test_other_readers_see_an_empty_value_and_no_key_where_a_message_has_no_place() -> None:
    log = stored(records, batch(ODD))
    assert [replace(record, marks=None) for record in log_batch.records(log)] == [
        Record(1, TIME + 5, b"key", b"usual"),
        Record(2, TIME, b"deleted", b""),
        Record(3, TIME - 7, b"", b""),
        Record(4, TIME, b"", b"v"),
        Record(5, TIME, b"k" * 255, b"v"),
        Record(6, TIME, b"", b"v", (b"h", b"1", b"h", b"", b"", b"")),
        Record(7, TIME, b"", b"", (b"only", b"")),
        Record(8, TIME, b"", b"x" * 300),
    ]


@pytest.mark.parametrize("how", PACKERS)
def test_every_compression_is_taken(how: str) -> None:
    data = batch(ODD[:-1])
    found = check_records(packed(data, how), 1 << 20)
    assert found.size_bytes == len(data) - 61
    made = writer(log_batch)
    assert records.pack_records(found.walk(), made, found.count, made.append_time_ms)[0] == found.count
    made.close_batch()
    assert bytes(made.buffer[: made.position]) == stored(records, data)


def test_times_that_the_log_cannot_hold() -> None:
    data = batch([Message(b"a"), Message(b"b", timestamp_ms=TIME + 1)])
    before_1970 = stored(records, resealed(data, base_ms=-1))
    assert [record.timestamp_ms for record in log_batch.records(before_1970)] == [TIME, 0]  # none: the append time
    largest = writer(log_batch)
    assert largest.put_record(b"v", b"", (1 << 64) - 1)
    largest.close_batch()
    assert records.latest_in(bytes(largest.buffer[: largest.position]), 1) == (1, (1 << 63) - 1)


# --- refused


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": 1}, 87),
        ({"magic": 0}, 87),
        ({"magic": 1}, 87),
        ({"magic": 3}, 2),
        ({"attributes": 5}, 76),
        ({"attributes": 7}, 76),
        ({"attributes": 32}, 87),
        ({"attributes": 8}, 0),
        ({"count": 0, "last": -1}, 87),
        ({"count": -1}, 87),
        ({"count": 3, "last": 2}, 87),
        ({"count": 1, "last": 0}, 87),
        ({"count": 1 << 30, "last": (1 << 30) - 1}, 10),
        ({"last": 2}, 87),
        ({"producer_id": 5}, 87),
        ({"producer_id": 5, "epoch": 0, "sequence": 0}, 0),
    ],
)
def test_headers_that_are_refused(fields: dict[str, int], code: int) -> None:
    data = batch([Message(b"one"), Message(b"two", b"k")])
    assert code_of(resealed(data, **fields)) == code


def test_every_cut_and_every_changed_byte_is_refused() -> None:
    data = batch([Message(b"one", b"key", TIME, ((b"h", b"v"),)), Message(b"two")])
    assert {code_of(data[:size]) for size in range(len(data))} == {87}
    assert code_of(data + b"x") == 87
    assert code_of(data + data) == 87
    for at in range(17, len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert code_of(bytes(changed)) == 2, at


@both
def test_records_that_are_refused(module: ModuleType) -> None:
    """Bodies with a right checksum: each field of a record at its borders."""

    def refused(body: bytes, count: int = 1) -> bool:
        try:
            module.check_walk(module.RecordWalk(body, 0, len(body), count, TIME), 100, 1 << 30)
        except RecordsError as error:
            return error.code == 87
        return False

    good = b"\x14\x00\x00\x00\x02k\x02v\x02\x00\x01"  # a header without name and value
    assert not refused(good)
    assert not refused(b"\x0e\x00\x00\x00\x01\x02v\x00")
    assert refused(good, 2)
    assert refused(good + good, 2)  # twice the offset 0
    assert refused(good + b"\x00")
    for size in range(len(good)):
        assert refused(good[:size])
    bad = {
        "no bytes": b"\x00",
        "negative length": b"\x01",
        "shorter than it says": b"\x16" + good[1:],
        "longer than it says": b"\x12" + good[1:],
        "offset 1": b"\x0e\x00\x00\x02\x01\x02v\x00",
        "key of -2": b"\x0e\x00\x00\x00\x03\x02v\x00",
        "key beyond the record": b"\x0e\x00\x00\x00\x40\x02v\x00",
        "value of -2": b"\x0e\x00\x00\x00\x01\x03v\x00",
        "value beyond the record": b"\x0e\x00\x00\x00\x01\x04v\x00",
        "no number of headers": b"\x0c\x00\x00\x00\x01\x02v",
        "-1 headers": b"\x0e\x00\x00\x00\x01\x02v\x01",
        "header without a name": b"\x12\x00\x00\x00\x01\x02v\x02\x01\x01",
        "varint of 33 bits": b"\x14\x00\x00\x80\x80\x80\x80\x10\x01\x00\x00",
        "varint of six bytes": b"\x16\x00\x00\x80\x80\x80\x80\x80\x00\x01\x00\x00",
        "time of 65 bits": b"\x1e\x00" + b"\x80" * 9 + b"\x02\x00\x01\x00\x00",
    }
    assert [name for name, body in bad.items() if not refused(body)] == []
    assert not refused(b"\x1e\x00" + b"\xff" * 9 + b"\x01\x00\x01\x00\x00")  # a delta of -2^63
    assert not refused(b"\x14\x00\x80\x00\x80\x00\x81\x00\x80\x00\x00")  # varints longer than needed
    many = b"\x00\x00\x00\x01\x00\xa2\x9c\x01" + b"\x00\x01" * 10_001
    assert refused(b"\xb4\xb8\x02" + many)


@both
def test_records_above_the_limit(module: ModuleType) -> None:
    def code(message: Message) -> int:
        data = batch([Message(b""), message])
        try:
            module.check_walk(walked(module, data), 300, 1 << 30)
        except RecordsError as error:
            return error.code
        return 0

    assert code(Message(b"x" * 300)) == 0
    assert code(Message(b"x" * 301)) == 10
    assert code(Message(b"x" * 300, b"k" * 255)) == 0  # as for others: a key that fits does not count
    assert code(Message(b"", b"k" * 300)) == 0
    assert code(Message(b"x", b"k" * 300)) == 10
    assert code(Message(b"", None, TIME, ((b"n", b"x" * 297),))) == 10


# --- into the log


@both
def test_a_writer_without_room_gets_the_rest_later(module: ModuleType) -> None:
    messages = [Message(b"v" * 700, b"k%d" % index) for index in range(300)] + ODD
    data = batch(messages)
    walk, found, seq, taken = walked(module, data), b"", 1, 0
    room = 2000
    while taken < len(messages):
        made = BatchWriter(bytearray(room), seq)
        made.begin(TIME)
        count, size_bytes, is_full = module.pack_records(walk, made, len(messages), made.append_time_ms)
        made.close_batch()
        taken, seq = taken + count, made.next_seq
        found += made.buffer[: made.position]
        assert is_full == (taken < len(messages))
        assert not count or size_bytes
        room = 2000 if count else 300 + walk.room()  # what a partition adds is less
    answer, _, _ = module.build_records(found, 1, 64 << 20)
    assert [message for _, message in read(bytes(answer))] == messages


@both
def test_it_stops_where_it_is_told_to(module: ModuleType) -> None:
    walk = walked(module, batch([Message(b"%d" % index) for index in range(9)]))
    made = writer(log_batch)
    while walk.index < 4:
        assert walk.next()
    assert module.pack_records(walk, made, 7, made.append_time_ms) == (3, 3, False)
    assert module.pack_records(walk, made, 9, made.append_time_ms) == (2, 2, False)
    made.close_batch()
    assert [record.value for record in log_batch.records(made.buffer, 0, made.position)] == [
        b"4",
        b"5",
        b"6",
        b"7",
        b"8",
    ]


# --- out of the log


@both
def test_answers_begin_with_the_number_and_end_within_the_bound(module: ModuleType) -> None:
    log = stored(module, batch([Message(b"v" * 100, timestamp_ms=TIME + index) for index in range(3000)]))
    seq, sizes, found = 1234, [], []
    while seq <= 3000:
        answer, next_seq, count = module.build_records(log, seq, 10_000)
        got = read(bytes(answer))
        assert [offset for offset, _ in got] == list(range(seq, next_seq))
        assert count == len(got)
        seq = next_seq
        sizes.append(len(answer))
        found += got
    assert max(sizes) <= 10_000
    assert min(sizes[:-1]) > 9_800
    assert found == [(index + 1, Message(b"v" * 100, timestamp_ms=TIME + index)) for index in range(1233, 3000)]
    assert module.build_records(log, 3001, 10_000)[1:] == (3001, 0)
    answer, next_seq, _ = module.build_records(log, 9, 1)  # one record always
    assert (next_seq, [offset for offset, _ in read(bytes(answer))]) == (10, [9])


@both
def test_batches_of_an_answer_are_of_64_kib(module: ModuleType) -> None:
    log = stored(module, batch([Message(b"v" * 1000) for _ in range(300)]))
    answer = bytes(module.build_records(log, 1, 1 << 20)[0])
    sizes, at = [], 0
    while at < len(answer):
        sizes.append(int.from_bytes(answer[at + 8 : at + 12], "big") + 12)
        at += sizes[-1]
    assert len(sizes) == 5
    assert max(sizes) <= 64 << 10


@both
def test_numbers_that_were_left_out_and_packed_bundles(module: ModuleType) -> None:
    made = writer(log_batch)
    assert put_bundle(
        made,
        encode_bundle([b"a", b"b", b"c"], [b"", b"k", b""], [5, 7, 6], sparse_seqs=[10, 12, 4_000_000_000], codec=1),
    )
    assert put_bundle(made, encode_bundle([b"d"] * 20, None, [8] * 20))
    made.close_batch()
    answer, next_seq, count = module.build_records(bytes(made.buffer[: made.position]), 11, 1 << 20)
    wanted = [(12, Message(b"b", b"k", 7)), (4_000_000_000, Message(b"c", None, 6))]
    wanted += [(4_000_000_001 + index, Message(b"d", None, 8)) for index in range(20)]
    assert read(bytes(answer)) == wanted
    assert (next_seq, count) == (4_000_000_021, 22)


@both
def test_a_name_without_a_value_of_another_protocol(module: ModuleType) -> None:
    made = writer(log_batch)
    assert made.put_record(b"v", b"", TIME, (b"a", b"1", b"only name"))
    made.close_batch()
    answer = module.build_records(bytes(made.buffer[: made.position]), 1, 1 << 20)[0]
    assert read(bytes(answer)) == [(1, Message(b"v", None, TIME, ((b"a", b"1"), (b"only name", b""))))]


@both
def test_records_by_time(module: ModuleType) -> None:
    times = [50, 40, 60, 60, 10]
    log = stored(module, batch([Message(b"", timestamp_ms=ms) for ms in times]))
    assert [module.first_at_time(log, 1, ms) for ms in (0, 45, 51, 61)] == [(1, 50), (1, 50), (3, 60), None]
    assert module.first_at_time(log, 2, 0) == (2, 40)
    assert [module.latest_in(log, seq) for seq in (1, 4, 5, 6)] == [(3, 60), (4, 60), (5, 10), None]


# --- the checksum


@both
def test_checksums(module: ModuleType) -> None:
    expected = crcmod.predefined.mkCrcFun("crc-32c")
    assert module.crc32c(b"123456789", 0, 9) == 0xE3069283
    data = random.Random(1).randbytes(2400)
    for start in range(9):
        for end in [*range(start, start + 40), *range(start + 766, start + 770), start + 1536, 2399, 2400]:
            for tables in (False, True):
                assert module.crc32c(data, start, end, tables) == expected(data[start:end])
    for start, end in ((-1, 2), (3, 2), (0, 2401)):
        with pytest.raises(ValueError, match="range"):
            module.crc32c(data, start, end)
        with pytest.raises(ValueError, match="range"):
            module.RecordWalk(data, start, end, 1, 0)
