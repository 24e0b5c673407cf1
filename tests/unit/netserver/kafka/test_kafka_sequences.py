"""Records that a producer numbers, as clients send them: what is answered when they come again, or do not follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.segments.batches import COMMITTED, PENDING
from netserver.kafka.appending import Appended, append_records
from netserver.kafka.checking import check_records
from netserver.kafka.record_errors import RecordsError
from tests.engine_log import EngineLog
from tests.kafka_batches import Message, batch

VECTORS = Path(__file__).parents[3] / "data" / "kafka_records.jsonl"
ROWS = {
    row["step"]: bytes.fromhex(row["hex"])
    for row in map(json.loads, VECTORS.read_text().splitlines())
    if row["case"] == "raw_idempotent"
}
# Where the broker answers 45 for batches it does not know as a whole, the log knows each record (27).
ANSWERS = [
    (3, 0), (5, 0), (5, 0), (3, 0), (11, 45), (13, 0), (15, 0), (17, 0), (19, 0), (11, 0), (23, 0), (27, 0), (29, 0),
    (31, 47), (33, 45), (35, 0), (37, 0), (39, 47), (41, 0), (43, 0),
]  # fmt: skip


class Told:
    def __init__(self) -> None:
        self.rounds = 0

    def round_done(self) -> None:
        self.rounds += 1


def sent(log: EngineLog, data: bytes) -> Appended:
    """Appends, and waits until it is settled."""
    answer = append_records(log.partition(), check_records(data, 1 << 20), Told())
    for write_batch, _, _ in answer.write_batches:
        log.inbox.run_until(lambda write_batch=write_batch: write_batch.state != PENDING)
        assert write_batch.state == COMMITTED
    return answer


def code(log: EngineLog, data: bytes) -> int:
    try:
        sent(log, data)
    except RecordsError as error:
        return error.code
    return 0


def test_the_sequences_that_were_tried_on_a_broker(tmp_path: Path) -> None:
    with EngineLog(tmp_path) as log:
        assert [(step, code(log, ROWS[step])) for step, _ in ANSWERS] == ANSWERS


def test_a_repeat_waits_for_the_first_sending(tmp_path: Path) -> None:
    with EngineLog(tmp_path) as log:
        records = check_records(batch([Message(b"v")] * 700, producer=(9, 0, 0)), 1 << 20)
        first, second = Told(), Told()
        made = append_records(log.partition(), records, first)
        again = append_records(log.partition(), records, second)
        assert again.base_seq == made.base_seq
        assert again.write_batches == [(write_batch, 0, 0) for write_batch, _, _ in made.write_batches]
        log.settle(made.write_batches[-1][0])
        assert (first.rounds, second.rounds) == (1, 1)
        assert len(log.read()) == 700


@pytest.mark.parametrize("size", [1, 300, 100_000])
def test_no_write_batch_holds_all(tmp_path: Path, size: int) -> None:
    """Records that fill several write batches are each known, also with others before, between and behind."""
    messages = [Message(b"%d" % index + b"." * size) for index in range(30)]
    with EngineLog(tmp_path) as log:
        for producer in (1, 2):
            log.append([b"others"])
            data = batch(messages, producer=(producer, 0, 5))
            made = sent(log, data)
            assert sum(records for _, records, _ in made.write_batches) == 30
            assert sent(log, data) == Appended(made.base_seq, [])
    with EngineLog(tmp_path) as log:
        for producer, base_seq in ((1, 2), (2, 33)):
            assert sent(log, batch(messages, producer=(producer, 0, 5))) == Appended(base_seq, [])
            late = sent(log, batch(messages[20:] * 2, producer=(producer, 0, 25)))
            assert (late.base_seq, sum(records for _, records, _ in late.write_batches)) == (base_seq + 20, 10)
