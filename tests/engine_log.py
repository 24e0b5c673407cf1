"""A log driven by a plain program, for tests: append and wait, read everything, close, or leave as a crash would."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.config import EngineConfig, TopicConfig
from engine.files.system import Files
from engine.formats.batch import records
from engine.formats.record import Record
from engine.inbox import Inbox
from engine.log import Log
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, PENDING, WriteBatch

SMALL = TopicConfig(segment_bytes=64 << 10)
"""Segments of two rounds of `fill`."""


class EngineLog:
    """An open log with its owner's inbox."""

    def __init__(
        self, path: Path, *, files: Files | None = None, topic: TopicConfig | None = None, **config: Any
    ) -> None:
        self.path = path
        self.inbox = Inbox()
        defaults = {"housekeeping_interval_ms": 3_600_000}  # tests call housekeeping.clean() themselves
        self.log = Log.open(
            path,
            EngineConfig(topic=topic or TopicConfig(), **{**defaults, **config}),
            self.inbox.call_soon_threadsafe,
            files,
        )

    def __enter__(self) -> EngineLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.inbox.close(self.log)

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        """The partition, open (a new topic when there is none)."""
        partition = self.log.partition(self.log.catalog.get_or_create(topic.encode()), index)
        opened: list[bool] = []
        partition.when_open(lambda: opened.append(True))
        self.inbox.run_until(lambda: bool(opened))
        if not partition.is_open:
            assert partition.error is not None
            raise partition.error
        return partition

    def settle(self, write_batch: WriteBatch) -> WriteBatch:
        """Waits until a write batch is committed or has failed."""
        self.inbox.run_until(lambda: write_batch.state != PENDING)
        return write_batch

    def append(self, values: Sequence[bytes], topic: str = "t", index: int = 0, **options: Any) -> WriteBatch:
        """Appends and waits; raises the error of a failed round."""
        write_batch = self.settle(self.partition(topic, index).append(values, **options))
        if write_batch.state != COMMITTED:
            assert write_batch.error is not None
            raise write_batch.error
        return write_batch

    def read(
        self, topic: str = "t", index: int = 0, start: int | None = None, max_bytes: int = 1 << 18
    ) -> list[Record]:
        """All committed records from `start` (default: the start of the log) on; what damage took is in `lost`."""
        partition = self.partition(topic, index)
        seq = partition.log_start if start is None else start
        found: list[Record] = []
        self.lost: list[tuple[int, int]] = []
        while seq <= partition.committed_seq:
            ready: list[bool] = []
            read_batch = partition.read(seq, max_bytes, lambda ready=ready: ready.append(True))  # type: ignore[misc]
            if read_batch is None:
                self.inbox.run_until(lambda ready=ready: bool(ready))  # type: ignore[misc]
                read_batch = partition.read(seq, max_bytes, None)
                assert read_batch is not None, "on_ready was called, but there is nothing"
            self.lost.extend(read_batch.lost)
            found.extend(records(read_batch.buffer, 0, len(read_batch.buffer), seq))
            seq = read_batch.last_seq + 1
        return found

    def values(self, topic: str = "t", index: int = 0) -> list[bytes]:
        """Values of all committed records."""
        return [record.value for record in self.read(topic, index)]

    def image(self, target: Path) -> Path:
        """A copy of the directory as a kill -9 at this moment would leave it."""
        shutil.copytree(self.path, target)
        return target


def segments(path: Path, topic_id: int = 1, index: int = 0) -> list[Path]:
    """Segment files of a partition, oldest first."""
    return sorted((path / "topics" / str(topic_id) / str(index)).glob("*.log"))


def delete(engine: EngineLog, partition: Partition) -> None:
    """Deletes the topic and waits until that is durable (not for the files)."""
    deleted: list[object] = []
    engine.log.catalog.delete(partition.topic, deleted.append)
    engine.inbox.run_until(lambda: bool(deleted))
    assert deleted == [None]


def wait_for_burial(engine: EngineLog, topic_id: int = 1) -> None:
    """Waits until the files of a deleted topic are gone."""
    engine.inbox.run_until(lambda: topic_id not in engine.log.catalog.tombstones)
    assert not (engine.path / "topics" / str(topic_id)).exists()


def fill(engine: EngineLog, rounds: int = 6, topic: str = "t") -> Partition:
    """Ten records of 4 KB a round; returns the partition."""
    for number in range(rounds):
        engine.append([b"%d" % number + b"." * 4000] * 10, topic=topic)
    return engine.partition(topic)
