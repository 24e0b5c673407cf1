"""Kafka's batches of records under random damage: any bytes are records or the peer's error, alike compiled and as
plain Python, and whatever is taken can be read again as it was sent.

Meant to run with QUINTLOG_BUILD=checked too. QUINTLOG_NIGHTLY=1 makes it run for minutes.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import ModuleType

import pytest

from engine.formats.batch import BatchWriter
from netserver.kafka import records
from netserver.kafka.checking import HEADER_BYTES, check_records
from netserver.kafka.record_errors import RecordsError
from tests import fuzz_variants
from tests.kafka_batches import PACKERS, SOURCE, resealed

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = 300_000 if NIGHTLY else 20_000
VECTORS = Path(__file__).parents[1] / "data" / "kafka_records.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
CORPUS = sorted({bytes.fromhex(row["hex"]) for row in ROWS if row["hex"]})
INTERESTING = (0, 1, 2, 3, 4, 7, 8, 0x3F, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
MODULES = [SOURCE, records]


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A variant; mostly in the records, as the header has few forms."""
    first = 0 if rng.random() < 0.3 else HEADER_BYTES
    return fuzz_variants.damaged(rng, data, INTERESTING, first=first)


def walked(module: ModuleType, data: bytes, count: int) -> object:
    """What the records of a body come to: the batches of the log and their records as answers, or the error."""
    writer = BatchWriter(bytearray(4 * len(data) + 4096), 1)
    writer.begin(1_700_000_000_000)
    try:
        module.check_walk(module.RecordWalk(data, 0, len(data), count, 1_700_000_000_000), 1 << 20, 1 << 30)
    except RecordsError as error:
        return error.code, error.text
    taken = module.pack_records(
        module.RecordWalk(data, 0, len(data), count, 1_700_000_000_000), writer, count, writer.append_time_ms
    )
    writer.close_batch()
    log = bytes(writer.buffer[: writer.position])
    answer, next_seq, records_taken = module.build_records(log, 1, 1 << 20)
    return taken, log, (bytes(answer), next_seq, records_taken)


def test_damaged_batches_are_records_or_the_peers_error() -> None:
    rng = random.Random(7)
    codes = set()
    for _ in range(ROUNDS):
        data = damaged(rng, rng.choice(CORPUS))
        if len(data) > 61 and rng.random() < 0.9:
            data = resealed(data)
        try:
            found = check_records(data, 1 << 20)
        except RecordsError as error:
            codes.add(error.code if error.text else -1)
            continue
        codes.add(0)
        writer = BatchWriter(bytearray(4 * found.size_bytes + 4096), 1)
        writer.begin(1)
        assert records.pack_records(found.walk(), writer, found.count, writer.append_time_ms)[0] == found.count
    assert codes - {10} == {0, 2, 76, 87}


def test_the_twins_agree() -> None:
    rng = random.Random(11)
    bodies = [(data[61:], int.from_bytes(data[57:61], "big")) for data in CORPUS if len(data) > 61 and not data[22] & 7]
    outcomes = set()
    for _ in range(ROUNDS // 4):
        body, count = rng.choice(bodies)
        body = damaged(rng, body) if rng.random() < 0.9 else body
        plain, compiled = (walked(module, body, count) for module in MODULES)
        assert plain == compiled
        outcomes.add(isinstance(plain, tuple) and len(plain) == 3)
    assert outcomes == {False, True}


@pytest.mark.parametrize("how", PACKERS)
def test_damaged_compression(how: str) -> None:
    rng = random.Random(how)
    codec, compress = PACKERS[how]
    bodies = [data for data in CORPUS if len(data) > 70 and not data[22] & 7]
    for _ in range(ROUNDS // 30):
        data = rng.choice(bodies)
        try:
            check_records(resealed(data[:61] + damaged(rng, compress(data[61:])), attributes=codec), 1 << 20)
        except RecordsError as error:
            assert error.code in (10, 87)  # noqa: PT017
