"""On the driver: which bytes of which files a query reads, cut into tasks at the beginnings of batches.

What is committed is asked once; tasks then read byte ranges of files that never change up to there, whether or not a
server goes on appending behind them. The index of a sealed segment is in its footer; that of an active one is made by
walking it, each byte once in the life of a `Planner`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import EngineError
from engine.reader import DirectoryReader, PartitionReader, Segment, opened
from engine.scan import Found, careful_read, walk
from engine.segment import HEADER_BYTES, parse_segment_name
from tools.spark.options import EARLIEST, LATEST, Bound, OptionError, Options

LOG = logging.getLogger("quintlog.spark")

Key = tuple[str, int]
"""Topic and partition."""


class DataLoss(EngineError):
    """Records that a query asked for are gone."""


@dataclass(frozen=True, slots=True)
class Range:
    """Whole batches: bytes `position` to `end` of a file. All their numbers are first_seq..next_seq - 1."""

    path: str
    segment_id: int
    position: int
    end: int
    first_seq: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads: the numbers first_seq..end_seq - 1 of a partition in these ranges."""

    topic: str
    partition: int
    first_seq: int
    end_seq: int
    ranges: tuple[Range, ...]


@dataclass(slots=True)
class _Walked:
    """Index of an active segment as far as it was walked."""

    segment_id: int
    position: int = HEADER_BYTES
    next_seq: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)
    """(first number, position), one for every MiB."""


def lost(options: Options, text: str) -> None:
    """Fails, or says so where failOnDataLoss is false. Raises DataLoss."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{text} (failOnDataLoss=false goes on without them)")
    LOG.warning("%s", text)


def text_of(name: bytes) -> str:
    """A topic's name as Spark shows it."""
    return name.decode("utf-8", "backslashreplace")


class Planner:
    """The partitions of a data directory as they are at the last `refresh`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.partitions: dict[Key, PartitionReader] = {}
        self._readers: dict[tuple[int, int], PartitionReader] = {}
        self._walked: dict[Path, _Walked] = {}

    def refresh(self) -> None:
        """Looks what is there and committed now. Raises DataDirectoryError, UnsupportedFormat, OSError."""
        directory = DirectoryReader(Path(self.options.path))
        try:
            self.partitions.clear()
            for topic in directory.topics():
                name = text_of(topic.name)
                for index in range(topic.partition_count):
                    if not self.options.wants(name, index):
                        continue
                    reader = self._readers.get((topic.id, index))
                    if reader is None:
                        reader = self._readers[topic.id, index] = directory.partition(topic, index)
                    else:
                        reader.watermarks = directory.watermarks
                        if reader.changed:
                            reader.refresh()
                    reader.watermarks = None
                    self.partitions[name, index] = reader
        finally:
            directory.close()
        live = {segment.path for reader in self.partitions.values() for segment in reader.segments}
        self._walked = {path: walked for path, walked in self._walked.items() if path in live}

    def missing(self) -> set[str]:
        """Topics that are named and have no files."""
        return self.options.named - {topic for topic, _ in self.partitions}

    def require(self) -> None:
        """Raises OptionError when a topic that is named is not there."""
        if missing := self.missing():
            raise OptionError(f"no topic {', '.join(sorted(missing))} with records in {self.options.path}")

    def resolve(self, key: Key, bound: Bound) -> int:
        """The number that a bound stands for."""
        reader = self.partitions[key]
        value = (bound.of or {}).get(key)
        time_ms = bound.time_ms
        if value is None:
            value = bound.default
        elif bound.of_are_times:
            time_ms = value
        if time_ms is not None:
            return reader.seq_at_time(time_ms)
        if value == EARLIEST:
            return reader.log_start
        return reader.committed_seq + 1 if value == LATEST else value

    def plan(self, wanted: Mapping[Key, tuple[int, int]]) -> list[Task]:
        """Tasks for the numbers [first, end) of each partition; as many as minPartitions asks for, if it does.

        Raises:
            DataLoss, Corrupt: what `tasks` raises.
        """
        ranges = sorted(wanted.items())
        found = [task for key, (first, end) in ranges for task in self.tasks(key, first, end)]
        least = self.options.min_partitions
        if least is None or len(found) >= least:
            return found
        records_max = max(1, sum(end - first for _, (first, end) in ranges) // least)
        return [task for key, (first, end) in ranges for task in self.tasks(key, first, end, records_max)]

    def tasks(self, key: Key, first_seq: int, end_seq: int, records_max: int | None = None) -> Iterator[Task]:
        """Tasks for the numbers first_seq..end_seq - 1, each at most `records_max`. Raises DataLoss, Corrupt."""
        reader = self.partitions[key]
        where = f"{key[0]}:{key[1]}"
        if first_seq < min(reader.log_start, end_seq):
            lost(self.options, f"{where}: records {first_seq} to {reader.log_start - 1} were removed by retention")
            first_seq = reader.log_start
        if max(first_seq, end_seq) > reader.committed_seq + 1:
            behind = max(first_seq, end_seq) - 1
            lost(self.options, f"{where} ends with record {reader.committed_seq}; asked for up to {behind}")
            end_seq = min(end_seq, reader.committed_seq + 1)
        if first_seq >= end_seq:
            return
        self._unreadable(reader, first_seq, end_seq)
        pieces = list(self.pieces(key, first_seq, end_seq))
        step = min(records_max or end_seq, self.options.records_per_partition or end_seq)
        for start in range(first_seq, end_seq, step):
            stop = min(start + step, end_seq)
            # Bytes at a border of numbers are read by both tasks.
            low = bisect_right(pieces, start, key=lambda piece: piece.next_seq)
            high = bisect_left(pieces, stop, key=lambda piece: piece.first_seq)
            for taken in _gathered(pieces[low:high], self.options.split_bytes):
                yield Task(*key, start, stop, taken)

    def bytes_between(self, key: Key, first_seq: int, end_seq: int) -> int:
        """Bytes of files that hold these numbers."""
        return sum(piece.end - piece.position for piece in self.pieces(key, first_seq, end_seq))

    def end_within(self, key: Key, first_seq: int, end_seq: int, size_bytes: int) -> int:
        """The end of as many of these numbers as come in so many bytes, to the fineness of the index; at least some."""
        end = first_seq
        for piece in self.pieces(key, first_seq, end_seq):
            size_bytes -= piece.end - piece.position
            if size_bytes < 0 and end > first_seq:
                return end
            end = min(piece.next_seq, end_seq)
        return end_seq

    def _unreadable(self, reader: PartitionReader, first_seq: int, end_seq: int) -> None:
        starts = sorted(segment.header.first_seq for segment in reader.segments)
        for error in reader.unreadable:
            begins = parse_segment_name(Path(str(error.path)).name) or 0
            at = bisect_right(starts, begins)
            ends = starts[at] if at < len(starts) else reader.committed_seq + 1
            if begins < end_seq and ends > first_seq:
                if not self.options.skip_damage:
                    raise error
                LOG.warning("skipped: %s; lost: records %d to %d", error, begins, ends - 1)

    def pieces(self, key: Key, first_seq: int, end_seq: int) -> Iterator[Range]:
        """The smallest ranges that the index gives, in order."""
        reader = self.partitions[key]
        for at, segment in enumerate(reader.segments):
            is_last = at + 1 == len(reader.segments)
            following = reader.committed_seq + 1 if is_last else reader.segments[at + 1].header.first_seq
            if following <= first_seq:
                continue
            if segment.header.first_seq >= end_seq:
                return
            entries = self._index(reader, segment) or [(segment.header.first_seq, HEADER_BYTES)]
            ends = [*entries[1:], (following, segment.end)]
            for (first, position), (next_first, end) in zip(entries, ends, strict=True):
                if next_first > first_seq and first < end_seq and position < end:
                    yield Range(str(segment.path), segment.header.segment_id, position, end, first, next_first)

    def _index(self, reader: PartitionReader, segment: Segment) -> list[tuple[int, int]]:
        if segment.footer is not None:
            return [(entry.first_seq, entry.position) for entry in segment.footer.index]
        walked = self._walked.get(segment.path)
        if walked is None or walked.segment_id != segment.header.segment_id or walked.position > segment.end:
            walked = _Walked(segment.header.segment_id, next_seq=segment.header.first_seq)
            self._walked[segment.path] = walked
        files = reader.files
        with opened(files, segment.path) as fd:
            read = careful_read(files, fd, path=segment.path)
            for item in walk(read, walked.position, segment.end, walked.segment_id, walked.next_seq):
                if isinstance(item, Found):
                    walked.entries.append((item.first_seq, item.position + item.start))
                    walked.position, walked.next_seq = item.next_position, item.last_seq + 1
        walked.position = max(walked.position, segment.end)
        if walked.entries and walked.entries[0][1] != HEADER_BYTES:  # damage before the first good batch
            walked.entries.insert(0, (segment.header.first_seq, HEADER_BYTES))
        return walked.entries


def _gathered(pieces: Sequence[Range], size_bytes_max: int) -> Iterator[tuple[Range, ...]]:
    """Pieces in groups of about so many bytes, each at least one."""
    taken: list[Range] = []
    size_bytes = 0
    for piece in pieces:
        piece_bytes = piece.end - piece.position
        if taken and size_bytes + piece_bytes > size_bytes_max:
            yield _joined(taken)
            taken, size_bytes = [], 0
        taken.append(piece)
        size_bytes += piece_bytes
    if taken:
        yield _joined(taken)


def _joined(pieces: list[Range]) -> tuple[Range, ...]:
    """Neighbours in one file as one range."""
    joined: list[Range] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.path == piece.path and last.end == piece.position:
            joined[-1] = Range(last.path, last.segment_id, last.position, piece.end, last.first_seq, piece.next_seq)
        else:
            joined.append(piece)
    return tuple(joined)
