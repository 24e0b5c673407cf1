"""Makes data directories by the engine's file modules alone, with every position under the test's control."""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from engine.files.descriptors import Handles
from engine.files.system import SystemFiles
from engine.formats.segment import SegmentHeader
from engine.segments.active import ActiveSegment, create_segment
from engine.segments.batches import WriteBatch
from engine.segments.watermarks import Owner, Watermark, Watermarks
from engine.state.topic_catalog import Catalog, Topic

DIRECTORY_ID = 4711
NOW_MS = 1_795_773_600_000  # 2026-11-27T10:00Z
FILES = SystemFiles()


def make_directory(data_dir: Path) -> Watermarks:
    """An empty data directory."""
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "VERSION").write_text(json.dumps({"format": 1, "id": DIRECTORY_ID}))
    (data_dir / "topics").mkdir(exist_ok=True)
    return Watermarks(FILES, data_dir / "watermarks", DIRECTORY_ID)


@dataclass
class StoredPartition:
    """A partition that a test writes round by round; nothing is committed before `mark`."""

    data_dir: Path
    watermarks: Watermarks
    name: bytes = b"orders"
    topic_id: int = 1
    index: int = 0
    number: int = 1
    next_seq: int = 1
    log_start: int = 1
    segment: ActiveSegment | None = None
    paths: list[Path] = field(default_factory=list)
    handles: Handles = field(default_factory=lambda: Handles(FILES, 16))

    def __post_init__(self) -> None:
        weakref.finalize(self, self.handles.close)  # tests just drop it

    @property
    def directory(self) -> Path:
        return self.data_dir / "topics" / str(self.topic_id) / str(self.index)

    def begin_segment(self, partitions: int = 1) -> None:
        """Seals what there is and begins the next segment."""
        if self.segment is not None:
            self.segment.seal(FILES, self.handles)
        self.directory.mkdir(parents=True, exist_ok=True)
        topic = Topic(self.topic_id, self.name, partitions, {"retention_ms": "7d"}, NOW_MS)
        (self.directory.parent / "topic.json").write_text(json.dumps(Catalog.describe(topic)))
        header = SegmentHeader(self.topic_id, self.index, self.number, self.next_seq, 77 + self.next_seq, NOW_MS)
        self.segment = create_segment(FILES, self.handles, self.directory, header)
        self.paths.append(self.segment.path)

    def write(self, values: list[bytes], *, keys: list[bytes] | None = None, now_ms: int = NOW_MS) -> None:
        """One batch of records; the time of each is that of its round."""
        assert self.segment is not None
        size = sum(map(len, values)) + 300 * len(values) + 500
        write_batch = WriteBatch(cast(Any, None), bytearray(size), self.next_seq)
        write_batch.writer.begin(now_ms)
        for row, value in enumerate(values):
            assert write_batch.writer.put_record(value, keys[row] if keys else b"", now_ms)
        write_batch.close()
        position = self.segment.position
        end = self.segment.seal_at_tail([write_batch])
        with self.handles.use(self.segment.path) as fd:
            FILES.write(fd, [memoryview(write_batch.buffer)[: write_batch.end]], position)
        self.segment.mark_written([write_batch], end)
        self.next_seq = write_batch.last_seq + 1

    def mark(self) -> None:
        """Commits all that was written."""
        assert self.segment is not None
        header, position = self.segment.header, self.segment.position
        mark = Watermark(self.log_start, header.first_seq, self.next_seq - 1, position, position, header.segment_id)
        self.watermarks.write(Owner(self.number, self.topic_id, self.index), mark)


def example(data_dir: Path) -> StoredPartition:
    """Two sealed segments and an active one: records 1..90 in batches of 10, of the minutes after 10:00."""
    partition = StoredPartition(data_dir, make_directory(data_dir))
    for number in range(9):
        if number % 3 == 0:
            partition.begin_segment()
        first = partition.next_seq
        partition.write([b"value %d" % seq for seq in range(first, first + 10)], now_ms=NOW_MS + number * 60_000)
    partition.mark()
    return partition
