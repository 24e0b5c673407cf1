"""A log over a simulated disk and a simulated state, what its users know of it, and lives that end in a crash.

`Life` is one process: a log, and operations on it. `Known` is what publishers and readers know over all lives; `check`
says whether what a later life finds agrees with it:

- a record that was acknowledged with durability "always", or that was read in such a topic, is there under its number;
- a record that is found was sent under that number, and no number that was acknowledged or read names another record;
- a transaction is there whole or not at all, and whole if it was acknowledged;
- what was trimmed may be gone, what was not may not; a deletion that was acknowledged lasts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from engine.config import EngineConfig, TopicConfig
from engine.errors import EngineError, NotStored
from engine.formats.batch import records
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.inbox import Inbox
from engine.limits import SEQ_RESERVATION
from engine.log import Log
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, PENDING, WriteBatch
from engine.state.index import Index
from engine.state.topic_entries import Topic
from tests.simulated_files import SimulatedFiles
from tests.simulated_state import SimulatedState

SYNCED_TOPICS = (b"a", b"b", b"wide")
LOOSE_TOPICS = (b"interval", b"never")
PARTITIONS = {b"wide": 3}


class Key(NamedTuple):
    """A place in the log: of one incarnation of a topic."""

    topic_id: int
    index: int
    seq: int


def is_synced(topic: Topic) -> bool:
    """Whether an acknowledgement says that the record is on disk."""
    return topic.settings.get("durability", "always") == "always"


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
    """Commits what is submitted when the owner's loop comes round, at one moment for the disk's hook."""

    def __init__(self, inbox: Inbox, files: SimulatedFiles, durable: dict[bytes, bytes] | None = None) -> None:
        super().__init__(durable)
        self.inbox = inbox
        self.files = files

    def submit(self, ops, on_done=None) -> None:  # type: ignore[no-untyped-def]
        super().submit(ops, on_done)
        self.inbox.call_soon_threadsafe(self.run)

    def round(self, count: int | None = None, error: EngineError | None = None) -> None:
        with self.files.lock:
            super().round(count, error)


@dataclass
class Sent:
    """A record on its way, or of the past."""

    key: Key
    value: bytes
    write_batch: WriteBatch | None
    synced: bool


@dataclass
class Known:
    """See the module's text."""

    sent: dict[Key, tuple[bytes, ...]] = field(default_factory=dict)
    acked: dict[Key, bytes] = field(default_factory=dict)
    """Acknowledged, or read, with durability "always": has to stay."""
    seen: dict[Key, bytes] = field(default_factory=dict)
    """Acknowledged or read with less: may go, but its number names nothing else."""
    trimmed: dict[tuple[int, int], int] = field(default_factory=dict)
    """The highest start of the log that anybody asked for."""
    deleting: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    transactions: dict[int, list[tuple[Key, bytes]]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    settings: dict[int, dict[str, str]] = field(default_factory=dict)
    """Settings whose change was acknowledged."""
    changing: set[int] = field(default_factory=set)

    def copy(self) -> Known:
        """As it is now."""
        return Known(
            dict(self.sent),
            dict(self.acked),
            dict(self.seen),
            dict(self.trimmed),
            set(self.deleting),
            set(self.deleted),
            dict(self.transactions),
            set(self.committed),
            dict(self.settings),
            set(self.changing),
        )

    def send(self, key: Key, value: bytes) -> None:
        for known in (self.acked, self.seen):
            assert key not in known, f"number {key} named {known.get(key)!r} already, now {value!r}"
        self.sent[key] = (*self.sent.get(key, ()), value)

    def check(self, topics: dict[int, Topic], found: dict[Key, bytes]) -> None:
        """Raises AssertionError when what was found contradicts what is known."""
        for topic_id in self.deleted:
            assert topic_id not in topics, f"deleted topic {topic_id} is there again"
        for key, value in self.acked.items():
            if key.topic_id in self.deleting or key.seq < self.trimmed.get(key[:2], 0):
                continue
            assert found.get(key) == value, f"acknowledged record {key} is {found.get(key)!r}, not {value!r}"
        for key, value in found.items():
            assert value in self.sent.get(key, ()), f"record {key} {value!r} was never sent"
            assert self.seen.get(key, value) == value, f"record {key} was {self.seen.get(key)!r} when it was read"
        for number, rows in self.transactions.items():
            whole = [
                found.get(key) == value
                for key, value in rows
                if key.topic_id not in self.deleting and key.seq >= self.trimmed.get(key[:2], 0)
            ]
            assert all(whole) or not any(whole), f"{sum(whole)} of {len(whole)} records of transaction {number}"
            assert all(whole) or number not in self.committed, f"transaction {number} was acknowledged"
        for topic_id, settings in self.settings.items():
            if topic_id not in self.deleting | self.changing:
                assert topics[topic_id].settings == settings


class Life:
    """One process on a data directory."""

    def __init__(
        self,
        path: Path,
        dice: random.Random,
        files: SimulatedFiles,
        state: dict[bytes, bytes],
        known: Known | None = None,
        index: Index | None = None,
    ) -> None:
        self.path = path
        self.dice = dice
        self.files = files
        self.known = known if known is not None else Known()
        self.inbox = Inbox()
        self.state = AutoState(self.inbox, files, state)
        config = EngineConfig(
            topic=TopicConfig(segment_bytes=64 << 10),
            housekeeping_interval_ms=3_600_000,
            retention_grace_ms=0,
            tail_cache_bytes=1 << 20,
            sync_threads=2,
            reader_threads=1,
        )
        self.log = Log.open(path, config, self.inbox.call_soon_threadsafe, files, self.state, index or NoIndex())
        self.waiting: list[Sent] = []

    # --- the parts of operations

    def topic(self, name: bytes) -> Topic:
        topic = self.log.catalog.get(name)
        if topic is None:
            config = {b"interval": {"durability": "interval"}, b"never": {"durability": "never"}}.get(name, {})
            topic = self.log.catalog.create(
                name,
                partition_count=PARTITIONS.get(name, 1),
                settings={"segment_bytes": "64KiB", **config},
            )
        return topic

    def partition(self, name: bytes, index: int = 0) -> Partition:
        partition = self.log.partition(self.topic(name), index)
        opened: list[bool] = []
        partition.when_open(lambda: opened.append(True))
        self.inbox.run_until(lambda: bool(opened))
        if not partition.is_open:
            assert partition.error is not None
            raise partition.error
        return partition

    def any_partition(self, topics: tuple[bytes, ...] = SYNCED_TOPICS + LOOSE_TOPICS) -> Partition:
        name = self.dice.choice(topics)
        return self.partition(name, self.dice.randrange(PARTITIONS.get(name, 1)))

    def put(self, partition: Partition, value: bytes) -> WriteBatch:
        """Appends a record; known to be sent before, as it may be on disk before `append` returns."""
        key = Key(partition.topic.id, partition.index, partition.last_seq + 1)
        self.known.send(key, value)
        write_batch = partition.append([value])
        assert partition.last_seq == key.seq
        self.waiting.append(Sent(key, value, write_batch, is_synced(partition.topic)))
        return write_batch

    def note_acked(self, record: Sent) -> None:
        known = self.known.acked if record.synced else self.known.seen
        known[record.key] = record.value

    def collect(self) -> None:
        """Takes note of what is acknowledged by now."""
        left = []
        for record in self.waiting:
            if record.write_batch is not None and record.write_batch.state == PENDING:
                left.append(record)
            elif record.write_batch is not None and record.write_batch.state == COMMITTED:
                self.note_acked(record)
        self.waiting = left

    def settle(self) -> None:
        idle: list[bool] = []
        self.log.drain(lambda: idle.append(True))
        self.inbox.run_until(lambda: bool(idle))
        self.inbox.run_pending()
        self.collect()

    # --- operations

    def append(self, number: int) -> None:
        partition = self.any_partition()
        size = self.dice.choice((1, 30, 600, 9000))
        for k in range(self.dice.randint(1, 20)):
            value = b"%d.%d " % (number, k) + b"v" * self.dice.randint(0, size)
            self.put(partition, value)

    def append_bundle(self, number: int) -> None:
        partition = self.any_partition()
        values = [b"bundle %d.%d" % (number, k) for k in range(self.dice.randint(1, 5))]
        bundle = encode_bundle(values, None, [1] * len(values), codec=self.dice.choice((0, 1)))
        first_seq = partition.last_seq + self.dice.choice((1, 1, 7))
        info = check_bundle(bundle, 0, len(bundle))
        keys = [Key(partition.topic.id, partition.index, first_seq + k) for k in range(len(values))]
        for key, value in zip(keys, values, strict=True):
            self.known.send(key, value)
        write_batch = partition.append_bundle(bundle, 0, len(bundle), info, first_seq=first_seq)
        self.waiting += [
            Sent(key, value, write_batch, is_synced(partition.topic)) for key, value in zip(keys, values, strict=True)
        ]

    def transact(self, number: int) -> None:
        transaction = self.log.transaction()
        rows = [(self.any_partition(SYNCED_TOPICS), b"tx%d.%d" % (number, k)) for k in range(self.dice.randint(1, 8))]
        try:
            for partition, value in rows:
                transaction.append(partition, value)
        except NotStored:
            return
        placed: list[tuple[Key, bytes]] = []
        before = {partition: partition.last_seq for partition, _ in rows}
        for partition, value in rows:
            before[partition] += 1
            placed.append((Key(partition.topic.id, partition.index, before[partition]), value))
        for key, value in placed:
            self.known.send(key, value)
        self.known.transactions[number] = placed

        def done(error: EngineError | None) -> None:
            if error is None:
                self.known.committed.add(number)
                for key, value in placed:
                    self.known.acked[key] = value

        transaction.commit(done)

    def trim(self, _: int) -> None:
        partition = self.any_partition()
        if partition.committed_seq:
            before = self.dice.randint(1, partition.committed_seq + 1)
            place = (partition.topic.id, partition.index)
            self.known.trimmed[place] = max(before, self.known.trimmed.get(place, 0))
            partition.trim(before)

    def clean(self, _: int) -> None:
        self.log.housekeeping.clean()

    def roll(self, _: int) -> None:
        partition = self.any_partition()
        self.log.committer.roll_next(partition)
        self.log.committer.request_watermark(partition)

    def delete(self, _: int) -> None:
        topic = self.log.catalog.get(self.dice.choice(SYNCED_TOPICS + LOOSE_TOPICS))
        if topic is None or topic.deleting:
            return
        self.known.deleting.add(topic.id)
        self.log.catalog.delete(topic, lambda error: self.known.deleted.add(topic.id) if error is None else None)
        self.inbox.run_pending()  # until then the name cannot be used anew

    def configure(self, number: int) -> None:
        topic = self.topic(self.dice.choice(SYNCED_TOPICS))
        if topic.deleting:
            return
        self.known.changing.add(topic.id)
        wanted = {**topic.settings, "retention_bytes": f"{number + 1}GiB"}

        def done(error: EngineError | None) -> None:
            if error is None:
                self.known.settings[topic.id] = wanted
                self.known.changing.discard(topic.id)

        self.log.catalog.configure(topic, {"retention_bytes": wanted["retention_bytes"]}, done)
        self.inbox.run_pending()

    def read_some(self, _: int) -> None:
        partition = self.any_partition()
        self.read(partition, once=True)

    def step(self, number: int) -> None:
        """One operation, by chance."""
        operations: list[tuple[Callable[[int], None], int]] = [
            (self.append, 40),
            (self.append_bundle, 10),
            (self.transact, 20),
            (self.trim, 4),
            (self.clean, 4),
            (self.roll, 4),
            (self.delete, 2),
            (self.configure, 2),
            (self.read_some, 8),
        ]
        operation = self.dice.choices([row[0] for row in operations], [row[1] for row in operations])[0]
        operation(number)
        if self.dice.random() < 0.7:
            self.inbox.run_pending()
        self.collect()

    # --- reading

    def read(self, partition: Partition, *, once: bool = False) -> dict[Key, bytes]:
        """Everything readable of a partition; it is known to have been seen from now on."""
        found: dict[Key, bytes] = {}
        seq = partition.log_start
        while seq <= partition.committed_seq:
            ready: list[bool] = []
            read_batch = partition.read(seq, 1 << 20, lambda ready=ready: ready.append(True))  # type: ignore[misc]
            if read_batch is None:
                self.inbox.run_until(lambda ready=ready: bool(ready))  # type: ignore[misc]
                if partition.is_deleted or seq < partition.log_start:
                    break
                continue
            # Below "always" a power cut may keep the footer of a segment, or later records, but not those before them.
            assert not read_batch.lost or not is_synced(partition.topic), f"{partition.title} lost {read_batch.lost}"
            # What is not known: what lies below the oldest segment, and what an empty one left out.
            begins = {partition.log_start, *(segment.first_seq for segment in partition.sealed)}
            large = [
                pair for pair in read_batch.lost if pair[1] - pair[0] >= SEQ_RESERVATION // 2 and pair[0] not in begins
            ]
            assert not large, f"numbers never given out: {large}"
            for record in records(read_batch.buffer, 0, len(read_batch.buffer), seq):
                key = Key(partition.topic.id, partition.index, record.seq)
                assert key not in found
                found[key] = record.value
            seq = read_batch.last_seq + 1
            if once:
                break
        known = self.known.acked if is_synced(partition.topic) else self.known.seen
        known.update(found)
        return found

    def read_all(self) -> dict[Key, bytes]:
        found: dict[Key, bytes] = {}
        for topic in self.log.catalog:
            for index in list(topic.numbers):
                found.update(self.read(self.partition(topic.name, index)))
        return found

    def check(self) -> dict[Key, bytes]:
        """Reads everything and compares it with what is known."""
        known = self.known.copy()
        found = self.read_all()
        known.check({topic.id: topic for topic in self.log.catalog}, found)
        return found

    def close(self) -> None:
        self.inbox.close(self.log)
