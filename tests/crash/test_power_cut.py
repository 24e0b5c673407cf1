"""Power cuts on a simulated disk (after ALICE, OSDI'14): any subset of what was not synced may be gone.

One run: a log over `SimulatedFiles` and `SimulatedState` is driven by random appends, transactions and rolls; at a
random call to the disk the power is cut; the log is opened on what survived. Invariants:

- every acknowledged record is there, under its number, with its bytes;
- numbers rise, no record is there twice, none is there that was not sent;
- a transaction is there whole or not at all, and whole if it was acknowledged;
- the log takes records again, and a second start finds the same.
"""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.batch import records
from engine.chunk import COMMITTED, Chunk
from engine.config import EngineConfig, TopicConfig
from engine.index import Index
from engine.inline import Inbox
from engine.log import Log
from engine.partition import Partition
from engine.transactions import Transaction
from tests.simulated_files import SimulatedFiles, disk_with
from tests.simulated_state import SimulatedState

SEEDS = int(os.environ.get("QUINTLOG_POWER_CUT_SEEDS", "300"))
TOPICS = (b"a", b"b", b"c")


class NoIndex(Index):
    """An index that knows nothing: it is rebuildable, and no part of what a crash may take."""

    def __init__(self) -> None:
        pass

    def add(self, *_: int) -> None:
        pass

    def floor(self, number: int, seq: int) -> None:
        return None

    def truncate(self, number: int, above_seq: int) -> None:
        pass

    def remove(self, number: int, below_seq: int) -> None:
        pass

    def drop(self, number: int) -> None:
        pass

    def close(self) -> None:
        pass


class AutoState(SimulatedState):
    """Commits what is submitted when the owner's loop comes round."""

    def __init__(self, inbox: Inbox, durable: dict[bytes, bytes] | None = None) -> None:
        super().__init__(durable)
        self.inbox = inbox

    def submit(self, ops, on_done=None) -> None:  # type: ignore[no-untyped-def]
        super().submit(ops, on_done)
        self.inbox.post(self.run)


@dataclass
class Acknowledged:
    """What the publisher knows: (topic, number) -> value, and values of whole transactions."""

    records: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    transactions: set[int] = field(default_factory=set)


@dataclass
class Image:
    """The medium at the moment of the power cut, and what had been acknowledged before it."""

    files: SimulatedFiles
    state: dict[bytes, bytes]
    acknowledged: Acknowledged


class Run:
    """One life of a log, cut off at the `cut_at`-th call to the disk."""

    def __init__(self, path: Path, dice: random.Random, files: SimulatedFiles, state: dict[bytes, bytes]) -> None:
        self.dice = dice
        self.path = path
        self.inbox = Inbox()
        self.files = files
        self.state = AutoState(self.inbox, state)
        topic = TopicConfig(segment_bytes=64 << 10)
        self.log = Log.open(
            path, EngineConfig(topic=topic, housekeeping_interval_ms=3_600_000, tail_cache_bytes=1 << 20),
            self.inbox.post, files, self.state, NoIndex(),
        )  # fmt: skip
        self.acknowledged = Acknowledged()
        self.sent: dict[tuple[bytes, int], bytes] = {}
        self.transactions: dict[int, list[tuple[bytes, bytes]]] = {}
        self.waiting: list[tuple[Chunk, bytes, int, list[bytes]]] = []
        self.image: Image | None = None
        self.calls = 0

    def cut_power_at(self, call_number: int) -> None:
        def hook(call: str, path: Path) -> None:
            self.calls += 1
            if self.calls == call_number and self.image is None:
                known = Acknowledged(dict(self.acknowledged.records), set(self.acknowledged.transactions))
                state = dict(self.state.durable)
                self.image = Image(self.files.after_power_cut(self.dice), state, known)

        self.files.hook = hook

    def partition(self, name: bytes) -> Partition:
        partition = self.log.partition(self.log.catalog.get_or_create(name))
        opened: list[bool] = []
        partition.when_open(lambda: opened.append(True))
        self.inbox.run_until(lambda: bool(opened))
        assert partition.is_open, partition.error
        return partition

    def append(self, number: int) -> None:
        name = self.dice.choice(TOPICS)
        partition = self.partition(name)
        size = self.dice.choice((1, 30, 600, 9000))
        values = [b"%d.%d " % (number, k) + b"v" * self.dice.randint(0, size) for k in range(self.dice.randint(1, 20))]
        first = partition.last_seq + 1
        chunk = partition.append(values)
        for k, value in enumerate(values):
            self.sent[name, first + k] = value
        self.waiting.append((chunk, name, first, values))

    def transact(self, number: int) -> None:
        transaction = Transaction(self.log)
        rows = [(self.dice.choice(TOPICS), b"tx%d.%d " % (number, k)) for k in range(self.dice.randint(1, 8))]
        for name in {name for name, _ in rows}:
            self.partition(name)
        for name, value in rows:
            transaction.append(self.partition(name), value)
        self.transactions[number] = rows
        by_topic: dict[bytes, list[bytes]] = {}
        for name, value in rows:
            by_topic.setdefault(name, []).append(value)
        firsts = {name: self.partition(name).last_seq + 1 for name in by_topic}

        def done(error: object) -> None:
            if error is None:
                self.acknowledged.transactions.add(number)
                for name, values in by_topic.items():
                    for k, value in enumerate(values):
                        self.acknowledged.records[name, firsts[name] + k] = value

        transaction.commit(done)
        for name, values in by_topic.items():
            for k, value in enumerate(values):
                self.sent[name, firsts[name] + k] = value

    def collect(self) -> None:
        for _, name, first, values in [row for row in self.waiting if row[0].state == COMMITTED]:
            for k, value in enumerate(values):
                self.acknowledged.records[name, first + k] = value
        self.waiting = [row for row in self.waiting if row[0].state != COMMITTED]

    def live(self, steps: int) -> None:
        for number in range(steps):
            if self.image is not None:
                break
            if self.dice.random() < 0.25:
                self.transact(number)
            else:
                self.append(number)
            if self.dice.random() < 0.7:
                self.inbox.run_posted()
            self.collect()
        self.files_settled()

    def files_settled(self) -> None:
        idle: list[bool] = []
        self.log.drain(lambda: idle.append(True))
        self.inbox.run_until(lambda: bool(idle))
        self.collect()

    def read_all(self) -> dict[tuple[bytes, int], bytes]:
        found: dict[tuple[bytes, int], bytes] = {}
        for topic in self.log.catalog:
            partition = self.partition(topic.name)
            seq = partition.log_start
            while seq <= partition.committed_seq:
                slab = partition.read(seq, 1 << 20, lambda: None)
                if slab is None:  # only a gap in the numbers is left
                    self.wait_for(partition, seq)
                    continue
                for record in records(slab.buffer, 0, len(slab.buffer), seq):
                    assert (topic.name, record.seq) not in found
                    found[topic.name, record.seq] = record.value
                seq = slab.last_seq + 1
        return found

    def wait_for(self, partition: Partition, seq: int) -> None:
        self.inbox.run_until(lambda: partition.read(seq, 1 << 20, lambda: None) is not None)

    def close(self) -> None:
        self.files.hook = None
        self.inbox.close(self.log)


def check(image: Image, run: Run, found: dict[tuple[bytes, int], bytes]) -> None:
    for key, value in image.acknowledged.records.items():
        assert found.get(key) == value, f"acknowledged record {key} is {found.get(key)!r}"
    for key, value in found.items():
        assert run.sent.get(key) == value, f"record {key} was never sent"
    values = {(name, value) for (name, _), value in found.items()}
    for number, rows in run.transactions.items():
        present = sum(row in values for row in rows)
        assert present in (0, len(rows)), f"{present} of {len(rows)} records of transaction {number}"


@pytest.mark.parametrize("block", range(10))
def test_nothing_acknowledged_is_lost_and_transactions_are_whole(block: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        for seed in range(block, SEEDS, 10):
            dice = random.Random(seed)
            run = Run(path, dice, disk_with(path), {})
            run.cut_power_at(dice.randint(1, 150))
            run.live(40)
            run.close()
            image = run.image
            if image is None:
                continue
            second = Run(path, dice, image.files, image.state)
            try:
                found = second.read_all()
                check(image, run, found)
                second.partition(b"a").append([b"after"])
                second.files_settled()
                again = second.read_all()
                assert {key: again[key] for key in found} == found
                assert len(again) == len(found) + 1
            except BaseException:
                print(f"seed {seed}")
                raise
            finally:
                second.close()
