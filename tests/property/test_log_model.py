"""The log against a list (plan D7): whatever is done in whatever order, it reads like a list of what was stored.

The disk and the state are simulated, the index is real. A crash is a kill: the next process finds what the last one
wrote, synced or not, so every record must be there that was committed, and nothing that was never appended.

No rule has a precondition: whether a record that nobody waited for is found after a kill is up to the threads, so a
rule open only then would make Hypothesis draw differently when it repeats a history.
"""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.commit.round_writer import COMPILED
from engine.config import EngineConfig
from engine.errors import EngineError, OutOfRange
from engine.files.system import SystemFiles
from engine.formats.batch import records
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, PENDING
from engine.state.index import Index
from tests.crash.world import Life
from tests.simulated_files import SimulatedFiles, disk_with

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
COMMON = (100, 50) if COMPILED else (60, 30)  # plain Python would take minutes
EXAMPLES, STEPS = (3000, 100) if NIGHTLY else COMMON
HISTORIES = int(os.environ.get("QUINTLOG_HISTORIES", 50_000 if NIGHTLY else 60))
"""Drawn by a plain generator: half of the time of Hypothesis goes into drawing."""
SEED = int.from_bytes(os.urandom(4)) if NIGHTLY else 1
pytestmark = [pytest.mark.checked, pytest.mark.timeout(86_400 if NIGHTLY else 900)]
TOPICS = (b"a", b"b")

values = st.binary(max_size=40) | st.integers(1, 9000).map(lambda size: b"v" * size)
keys = st.binary(max_size=20)
headers = st.just(()) | st.tuples(st.binary(max_size=5), st.binary(max_size=5))
timestamps = st.integers(1, 2_000_000)


@dataclass
class Row:
    value: bytes
    key: bytes
    timestamp_ms: int
    headers: tuple[bytes, ...]
    newest_ms: int = 0
    """What the index goes by: the earlier of its own time and that of its append."""


@dataclass
class Model:
    """One topic: what is stored by number, and where the log begins."""

    rows: dict[int, Row] = field(default_factory=dict)
    log_start: int = 1
    append_ms: int = 0

    def store(self, seq: int, row: Row, now_ms: int) -> None:
        self.append_ms = max(self.append_ms, now_ms)
        self.rows[seq] = Row(row.value, row.key, row.timestamp_ms, row.headers, min(row.timestamp_ms, self.append_ms))


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.path = Path(self.directory.name)
        self.models = {name: Model() for name in TOPICS}
        self.now_ms = 1_000_000
        self.start(disk_with(self.path), {})

    def start(self, files: SimulatedFiles, state: dict[bytes, bytes]) -> None:
        self.index = Index(self.path / "index", SystemFiles(), EngineConfig())
        self.life = Life(self.path, random.Random(0), files, state, index=self.index)
        self.life.log.context.now_ms = lambda: self.now_ms
        for name in TOPICS:
            self.life.partition(name)

    def teardown(self) -> None:
        self.life.close()
        self.directory.cleanup()

    def partition(self, topic: bytes) -> Partition:
        return self.life.partition(topic)

    # --- storing

    @rule(
        topic=st.sampled_from(TOPICS),
        rows=st.lists(st.builds(Row, values, keys, timestamps, headers), min_size=1, max_size=12),
    )
    def append(self, topic: bytes, rows: list[Row]) -> None:
        partition = self.partition(topic)
        first = partition.last_seq + 1
        write_batch = partition.append(
            [row.value for row in rows],
            keys=[row.key for row in rows],
            timestamps_ms=[row.timestamp_ms for row in rows],
            headers=[row.headers for row in rows],
        )
        self.life.settle()
        assert write_batch.state == COMMITTED
        for at, row in enumerate(rows):
            self.models[topic].store(first + at, row, self.now_ms)

    @rule(
        topic=st.sampled_from(TOPICS),
        contents=st.lists(values, min_size=1, max_size=6),
        gap=st.integers(0, 5),
        timestamp_ms=timestamps,
        snappy=st.booleans(),
    )
    def append_bundle(self, topic: bytes, contents: list[bytes], gap: int, timestamp_ms: int, snappy: bool) -> None:
        partition = self.partition(topic)
        bundle = encode_bundle(contents, None, [timestamp_ms] * len(contents), codec=int(snappy))
        first = partition.last_seq + 1 + gap
        info = check_bundle(bundle, 0, len(bundle))
        write_batch = partition.append_bundle(bundle, 0, len(bundle), info, first_seq=first)
        self.life.settle()
        assert write_batch.state == COMMITTED
        model = self.models[topic]
        if first == 1 + gap and not model.rows and model.log_start == 1:
            model.log_start = first  # the first record ever is where the log begins
        for at, value in enumerate(contents):
            model.store(first + at, Row(value, b"", timestamp_ms, ()), self.now_ms)

    @rule(contents=st.lists(st.tuples(st.sampled_from(TOPICS), values), min_size=1, max_size=8), commit=st.booleans())
    def transact(self, contents: list[tuple[bytes, bytes]], commit: bool) -> None:
        transaction = self.life.log.transaction()
        for topic, value in contents:
            transaction.append(self.partition(topic), value)
        if not commit:
            transaction.rollback()
            return
        next_seq = {topic: self.partition(topic).last_seq for topic in TOPICS}
        outcome: list[EngineError | None] = []
        transaction.commit(outcome.append)
        self.life.settle()
        self.life.inbox.run_until(lambda: bool(outcome))
        assert outcome == [None]
        for topic, value in contents:
            next_seq[topic] += 1
            self.models[topic].store(next_seq[topic], Row(value, b"", self.now_ms, ()), self.now_ms)

    # --- time, segments, retention

    @rule(step_ms=st.sampled_from((1, 1000, 100_000, -50_000)))
    def tick(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(topic=st.sampled_from(TOPICS))
    def roll(self, topic: bytes) -> None:
        partition = self.partition(topic)
        if partition.has_files:
            self.life.log.committer.roll_next(partition)
            self.life.log.committer.request_watermark(partition)

    @rule(topic=st.sampled_from(TOPICS), part=st.floats(0, 1.2))
    def trim(self, topic: bytes, part: float) -> None:
        partition, model = self.partition(topic), self.models[topic]
        before = int(part * (partition.committed_seq + 1))
        partition.trim(before)
        if partition.has_files:
            model.log_start = max(model.log_start, min(before, partition.committed_seq + 1))
        model.rows = {seq: row for seq, row in model.rows.items() if seq >= model.log_start}

    @rule()
    def clean(self) -> None:
        self.life.log.housekeeping.clean()
        self.life.inbox.run_pending()

    # --- ends of processes

    @rule()
    def reopen(self) -> None:
        self.life.close()
        self.start(self.life.files, self.life.state.durable)

    @rule(topic=st.sampled_from(TOPICS), contents=st.lists(values, max_size=5))
    def crash(self, topic: bytes, contents: list[bytes]) -> None:
        partition = self.partition(topic)
        first = partition.last_seq + 1
        write_batch = partition.append(contents) if contents else None
        files, state = self.life.files.after_kill(), dict(self.life.state.durable)
        self.life.close()
        self.start(files, state)
        found = {record.seq: record for record in self.read(topic, self.partition(topic).log_start)}
        model = self.models[topic]
        for at, value in enumerate(contents):
            if first + at in found:  # it had come as far as the disk: stored, though nobody was told
                assert write_batch is not None
                assert found[first + at].value == value
                model.store(first + at, Row(value, b"", found[first + at].timestamp_ms, ()), self.now_ms)
        # The raised start of the log is in the watermarks with the next round only.
        model.log_start = min(model.log_start, self.partition(topic).log_start)
        for other in TOPICS:
            start = self.partition(other).log_start
            if start < self.models[other].log_start:
                self.models[other].log_start = start
                self.take_in(other)
        self.take_in(topic)

    def take_in(self, topic: bytes) -> None:
        """Records below a start that was not yet on disk are there again."""
        model = self.models[topic]
        for record in self.read(topic, model.log_start):
            model.rows.setdefault(record.seq, Row(record.value, record.key, record.timestamp_ms, record.headers))

    # --- reading

    def read(self, topic: bytes, seq: int) -> list:  # type: ignore[type-arg]
        partition = self.partition(topic)
        found = []
        while seq <= partition.committed_seq:
            ready: list[bool] = []
            read_batch = partition.read(seq, 4096, lambda ready=ready: ready.append(True))  # type: ignore[misc]
            if read_batch is None:
                self.life.inbox.run_until(lambda ready=ready: bool(ready))  # type: ignore[misc]
                continue
            assert not read_batch.lost
            found.extend(records(read_batch.buffer, 0, len(read_batch.buffer), seq))
            seq = read_batch.last_seq + 1
        return found

    @rule(topic=st.sampled_from(TOPICS), part=st.floats(0, 1))
    def read_from(self, topic: bytes, part: float) -> None:
        partition, model = self.partition(topic), self.models[topic]
        seq = 1 + int(part * partition.committed_seq)
        if seq < partition.log_start and partition.committed_seq:
            with pytest.raises(OutOfRange) as gone:
                partition.read(seq, 1000, None)
            assert gone.value.first == partition.log_start
            return
        found = self.read(topic, seq)
        assert [record.seq for record in found] == [number for number in sorted(model.rows) if number >= seq]
        for record in found:
            row = model.rows[record.seq]
            assert (record.value, record.key, record.headers) == (row.value, row.key, row.headers)

    @rule(topic=st.sampled_from(TOPICS), timestamp_ms=timestamps, flush=st.booleans())
    def seek_by_time(self, topic: bytes, timestamp_ms: int, flush: bool) -> None:
        if flush:
            self.index.flush()
        seq = self.partition(topic).seq_at_time(timestamp_ms)
        model = self.models[topic]
        assert seq >= self.partition(topic).log_start
        assert all(number >= seq for number, row in model.rows.items() if row.newest_ms >= timestamp_ms)

    @invariant()
    def limits(self) -> None:
        for topic in TOPICS:
            partition, model = self.partition(topic), self.models[topic]
            assert partition.log_start == model.log_start
            assert partition.committed_seq <= partition.last_seq
            if model.rows:
                assert partition.committed_seq == max(model.rows)
            assert self.life.log.context.backlog.write_batches == 0
            assert not partition.has_pending
            assert partition.error is None or partition.error.args
            assert PENDING == 0


LogMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS)
TestTheLogReadsLikeAList = LogMachine.TestCase


def some_values(dice: random.Random, most: int) -> list[bytes]:
    return [b"v" * dice.choice((0, 1, 5, 40, 40, 2000, 9000)) + dice.randbytes(4) for _ in range(dice.randint(1, most))]


def step(machine: LogMachine, dice: random.Random) -> None:
    """One rule with arguments as it takes them."""
    topic, timestamp_ms = dice.choice(TOPICS), dice.randint(1, 2_000_000)
    operation = dice.choice(("append", "append", "bundle", "transact", "tick", "roll", "trim", "read", "seek", "rare"))
    if operation == "append":
        key, flat = dice.choice((b"", b"key")), dice.choice(((), (b"name", b"value")))
        machine.append(topic, [Row(value, key, timestamp_ms, flat) for value in some_values(dice, 12)])
    elif operation == "bundle":
        machine.append_bundle(topic, some_values(dice, 6), dice.randint(0, 5), timestamp_ms, dice.random() < 0.5)
    elif operation == "transact":
        rows = [(dice.choice(TOPICS), value) for value in some_values(dice, 8)]
        machine.transact(rows, dice.random() < 0.7)
    elif operation == "tick":
        machine.tick(dice.choice((1, 1000, 100_000, -50_000)))
    elif operation == "roll":
        machine.roll(topic)
    elif operation == "trim":
        machine.trim(topic, dice.random() * 1.2)
    elif operation == "read":
        machine.read_from(topic, dice.random())
    elif operation == "seek":
        machine.seek_by_time(topic, timestamp_ms, dice.random() < 0.5)
    else:
        rare = dice.randrange(3)
        if rare == 0:
            machine.clean()
        elif rare == 1:
            machine.reopen()
        else:
            machine.crash(topic, some_values(dice, 5) if dice.random() < 0.8 else [])
    machine.limits()


def test_many_histories() -> None:
    steps = 0
    for number in range(HISTORIES):
        dice = random.Random(SEED + number)
        machine = LogMachine()
        try:
            for _ in range(dice.randint(1, STEPS)):
                steps += 1
                step(machine, dice)
        except BaseException:
            print(f"seed {SEED + number}")
            raise
        finally:
            machine.teardown()
    print(f"{HISTORIES} histories, {steps} steps (seed {SEED})")
