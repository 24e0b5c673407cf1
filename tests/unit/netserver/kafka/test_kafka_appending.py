"""Records of batches into partitions of a real log, and out of it for every reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, PENDING
from netserver.kafka.appending import Appended, append_records, new_producer_id
from netserver.kafka.checking import check_records
from netserver.kafka.encoding import Encoded, encode_records, first_at_time, latest_in
from tests.engine_log import EngineLog
from tests.kafka_batches import TIME, Message, batch, packed, read


class Told:
    """A waiter."""

    def __init__(self) -> None:
        self.rounds = 0

    def round_done(self) -> None:
        self.rounds += 1


def appended(partition: Partition, data: bytes, *, qos0: bool = False) -> Appended:
    return append_records(partition, check_records(data, 1 << 20), Told(), qos0=qos0)


def settled(log: EngineLog, what: Appended) -> None:
    for write_batch, _, _ in what.write_batches:
        log.inbox.run_until(lambda write_batch=write_batch: write_batch.state != PENDING)
        assert write_batch.state == COMMITTED


def fetched(log: EngineLog, seq: int = 1, bytes_max: int = 1 << 20) -> list[tuple[int, Message]]:
    """All records from a number on, by as many answers as it takes."""
    partition, found = log.partition(), []
    while seq <= partition.committed_seq:
        read_batch = partition.read(seq, bytes_max, lambda: None)
        if read_batch is None:
            log.inbox.run_once()
            continue
        answer = encode_records(read_batch, seq, bytes_max)
        assert answer.next_seq > seq
        assert answer.count == len(read(bytes(answer.data)))
        found += read(bytes(answer.data))
        seq = answer.next_seq
    return found


def test_through_a_log(tmp_path: Path) -> None:
    with EngineLog(tmp_path) as log:
        partition = log.partition()
        messages = [
            Message(b"v" * (index % 300), b"k%d" % index, TIME + index, ((b"h", b"%d" % index),) * (index % 7 == 0))
            for index in range(5000)
        ]
        messages[17] = Message(b"x" * 700_000)
        messages[18] = Message(None, b"y" * 70_000)
        first = appended(partition, batch(messages[:2500]))
        second = appended(partition, packed(batch(messages[2500:]), "zstd"))
        assert (first.base_seq, second.base_seq) == (1, 2501)
        assert sum(records for _, records, _ in first.write_batches) == 2500
        assert sum(size for _, _, size in first.write_batches) >= sum(
            len(message.value or b"") for message in messages[:2500]
        )
        settled(log, first)
        settled(log, second)
        assert fetched(log) == [(index + 1, message) for index, message in enumerate(messages)]
        assert fetched(log, 4000, 1000) == [(index + 1, messages[index]) for index in range(3999, 5000)]
        assert [record.value for record in log.read()] == [message.value or b"" for message in messages]
        read_batch = partition.read(1, 1 << 30, lambda: None)
        assert read_batch is not None
        assert first_at_time(read_batch, 1, TIME + 9) == (10, TIME + 9)
        assert latest_in(read_batch, 1) is not None
        assert encode_records(read_batch, read_batch.last_seq + 1, 1000) == Encoded(
            memoryview(b""), read_batch.last_seq + 1, 0
        )


@pytest.mark.parametrize("qos0", [False, True])
def test_records_that_nobody_waits_for_are_marked(tmp_path: Path, qos0: bool) -> None:
    with EngineLog(tmp_path) as log:
        settled(log, appended(log.partition(), batch([Message(b"v")]), qos0=qos0))
        assert [record.qos0 for record in log.read()] == [qos0]


def test_every_room_that_is_left_in_a_write_batch(tmp_path: Path) -> None:
    """The record that meets the end of the room goes into the next write batch whole, whatever it has."""
    kinds = [
        Message(b"v" * 600),
        Message(b"v" * 300, b"k" * 255),
        Message(None, b"k" * 600),
        Message(b"v" * 100, b"k" * 300, TIME, ((b"h", None), (b"n" * 100, b"v" * 100)) * 3),
    ]
    with EngineLog(tmp_path) as log:
        sent = []
        for kind in kinds:
            for size in range(0, 4000, 131):
                messages = [Message(b"f" * size), kind, kind]
                sent += messages
                settled(log, appended(log.partition(), batch(messages)))
        assert [message for _, message in fetched(log)] == sent


def test_ids() -> None:
    assert len({new_producer_id() for _ in range(100)}) == 100
    assert all(0 <= new_producer_id() < 1 << 62 for _ in range(100))
