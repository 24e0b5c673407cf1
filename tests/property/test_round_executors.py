"""The two executors of commit rounds, driven by the same histories: they store the same, and what a model says.

Failures are real ones: files that may not grow (RLIMIT_FSIZE) and files whose sync fails. Each history is played with
the compiled writer, which an owner who can watch a descriptor gets, and with the thread's.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.commit.round_writer import COMPILED
from engine.config import EngineConfig, TopicConfig
from engine.errors import EngineError
from engine.inbox import Inbox
from engine.log import Log
from engine.segments.batches import COMMITTED, PENDING, WriteBatch
from tests.engine_log import EngineLog
from tests.round_files import largest_file, not_to_be_synced
from tests.unit.engine.commit.test_native_rounds import Watching

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
HISTORIES, STEPS = (200, 40) if NIGHTLY else (6, 20)
TOPICS = ("a", "b", "c")
CONFIG = TopicConfig(segment_bytes=64 << 10)


class NativeLog(EngineLog):
    """A log whose owner can watch descriptors: its rounds are done by the compiled writer where that can do them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inbox = Inbox()
        config = EngineConfig(topic=CONFIG, housekeeping_interval_ms=3_600_000)
        self.log = Log.open(path, config, self.inbox.call_soon_threadsafe, watch=Watching(self.inbox))


@dataclass
class Model:
    """What each topic holds by number, which numbers were given out, and which topics take no more."""

    stored: dict[str, dict[int, bytes]] = field(default_factory=lambda: {topic: {} for topic in TOPICS})
    next_seq: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 1))
    closed: set[str] = field(default_factory=set)

    def append(self, topic: str, values: list[bytes], *, fails: bool) -> None:
        first = self.next_seq[topic]
        self.next_seq[topic] += len(values)
        if not fails:
            self.stored[topic] |= {first + row: value for row, value in enumerate(values)}


def settle(engine: EngineLog, write_batches: list[WriteBatch]) -> list[bool]:
    engine.inbox.run_until(lambda: all(write_batch.state != PENDING for write_batch in write_batches))
    return [write_batch.state == COMMITTED for write_batch in write_batches]


class Player:
    """Plays a history on a log and on the model, and compares what was acknowledged."""

    def __init__(self, engine: EngineLog, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.model = Model()
        for topic in TOPICS:
            engine.append([b"first"], topic=topic)
            self.model.append(topic, [b"first"], fails=False)

    def values(self) -> list[bytes]:
        size = self.random.choice((10, 200, 3000, 20_000))
        return [self.random.randbytes(2) * (size // 2) for _ in range(self.random.randint(1, 3))]

    def open_topics(self) -> list[str]:
        usable = [topic for topic in TOPICS if topic not in self.model.closed]
        return self.random.sample(usable, self.random.randint(1, len(usable)))

    def append(self, topics: list[str], *, fails: bool) -> None:
        """Records for several partitions, which come into one round or two."""
        rows = {topic: self.values() for topic in topics}
        write_batches = [self.engine.partition(topic).append(values) for topic, values in rows.items()]
        for (topic, values), stored in zip(rows.items(), settle(self.engine, write_batches), strict=True):
            assert stored != fails
            self.model.append(topic, values, fails=fails)

    def transact(self, topics: list[str], *, fails: bool) -> None:
        """A transaction over several partitions."""
        transaction = self.engine.log.transaction()
        rows = {topic: self.values() for topic in topics}
        for topic, values in rows.items():
            for value in values:
                transaction.append(self.engine.partition(topic), value)
        outcome: list[EngineError | None] = []
        transaction.commit(outcome.append)
        self.engine.inbox.run_until(lambda: bool(outcome))
        assert (outcome != [None]) == fails
        for topic, values in rows.items():
            self.model.append(topic, values, fails=fails)

    def step(self) -> None:
        topics, do = self.open_topics(), self.random.choice((self.append, self.append, self.transact))
        kind = self.random.randrange(8)
        if kind == 0:
            self.engine.log.committer.roll_next(self.engine.partition(topics[0]))
        if kind == 1:
            with largest_file(1):
                do(topics, fails=True)
        elif kind == 2 and len(self.model.closed) < len(TOPICS) - 1:
            self.fail_sync(topics[0], do)
        else:
            do(topics, fails=False)

    def fail_sync(self, topic: str, do: Callable[..., None]) -> None:
        """A partition whose sync fails takes no more."""
        with self.engine.log.handles.use(self.engine.partition(topic).active_segment.path) as fd:
            kept = os.dup(fd)
            with not_to_be_synced() as other:
                os.dup2(other, fd)
                do([topic], fails=True)
            os.dup2(kept, fd)
            os.close(kept)
        self.model.closed.add(topic)

    def check(self, engine: EngineLog) -> dict[str, dict[int, bytes]]:
        found = {topic: {record.seq: record.value for record in engine.read(topic)} for topic in TOPICS}
        assert found == self.model.stored
        return found


def play(make: Callable[[Path], EngineLog], seed: int) -> dict[str, dict[int, bytes]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        path = Path(directory) / "log"
        with make(path) as engine:
            player = Player(engine, seed)
            for _ in range(STEPS):
                player.step()
                for topic in TOPICS:
                    active = engine.partition(topic).active_segment
                    assert topic in player.model.closed or active.durable_position == active.position
            player.check(engine)
            image = engine.image(Path(directory) / "killed")
        with EngineLog(image) as killed, EngineLog(path) as again:
            assert player.check(killed) == player.check(again)
            return player.check(again)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_both_executors_do_what_the_model_says(seed: int) -> None:
    threaded = play(lambda path: EngineLog(path, topic=CONFIG), seed)
    if COMPILED:
        assert play(NativeLog, seed) == threaded
