"""A partition as a query sees it: what is archived of it, then what the data directory has from its log start on.

The border is the directory's log start, asked together with what is committed. Numbers below it come from the archive
alone, numbers from there on from the directory alone, so that no record comes twice; a number below it that is not
archived is lost, and told.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.formats.batch_header import HEADER_BYTES as BATCH_HEADER_BYTES
from engine.formats.batch_header import read_header
from engine.formats.segment import HEADER_BYTES, parse_segment_name
from engine.limits import SCAN_BYTES
from engine.reader import PartitionReader, Segment, StoredTopic, opened
from engine.segments.damage import Found, careful_read, walk
from tools.spark.source.counts import Counter, Runs

if TYPE_CHECKING:
    from engine.errors import Corrupt
    from tools.spark.archive.manifest import ArchivedPartition


@dataclass(frozen=True, slots=True)
class Range:
    """Whole batches: bytes `position` to `end` of a file. All their numbers are first_seq..next_seq - 1."""

    path: str
    segment_id: int
    position: int
    end: int
    first_seq: int
    next_seq: int
    archived: bool = False
    """The path is one of the archive's file system."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Numbers that are neither archived nor in the directory, or that are in a file that cannot be used."""

    first_seq: int
    last_seq: int
    error: Corrupt | None = None
    """None: removed by retention."""


@dataclass(slots=True)
class _Walked:
    """Index of a segment without a footer as far as it was walked."""

    segment_id: int
    position: int = HEADER_BYTES
    next_seq: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)
    """(first number, position), one for every MiB."""


@dataclass(slots=True)
class Part:
    """One partition; `reader` or `archived` is there, or both."""

    reader: PartitionReader | None
    archived: ArchivedPartition | None
    _walked: dict[Path, _Walked] = field(default_factory=dict)
    _counter: Counter = field(default_factory=Counter)

    @property
    def topic(self) -> StoredTopic:
        """The topic, as it is now."""
        if self.reader is not None:
            return self.reader.topic
        assert self.archived is not None
        return self.archived.topic

    @property
    def border(self) -> int:
        """Lower numbers are the archive's."""
        if self.reader is not None:
            return self.reader.log_start
        return self.archived.next_seq if self.archived is not None else 1

    @property
    def log_start(self) -> int:
        """First number that may be read."""
        return min(self.archived.log_start, self.border) if self.archived is not None else self.border

    @property
    def committed_seq(self) -> int:
        """Last number that may be read."""
        return self.reader.committed_seq if self.reader is not None else self.border - 1

    def seq_before_end(self, count: int) -> int:
        """The number from which so many records follow, or a few more. Raises Corrupt, OSError."""
        return self.seq_after_first(self.count(self.log_start, self.committed_seq + 1) - count)

    def seq_after_first(self, count: int) -> int:
        """The number after the first so many records, or a few less. Raises Corrupt, OSError."""
        return self.end_of(self.log_start, self.committed_seq + 1, count) if count > 0 else self.log_start

    def seq_at_time(self, timestamp_ms: int) -> int:
        """First number whose record has that time or a later one; the end's when there is none."""
        if self.archived is not None and self.log_start < self.border:
            found = self.archived.seq_at_time(timestamp_ms)
            if found is not None and found < self.border:
                return found
        return self.reader.seq_at_time(timestamp_ms) if self.reader is not None else self.border

    def refreshed(self, archived: ArchivedPartition | None) -> None:
        """To be told when reader or archive were looked at again."""
        self.archived = archived
        live = {segment.path for segment in self.reader.segments} if self.reader is not None else set()
        self._walked = {path: walked for path, walked in self._walked.items() if path in live}
        self._counter.keep(live | (archived.paths if archived is not None else set()))

    def count(self, first_seq: int, end_seq: int) -> int:
        """Records of the numbers first_seq..end_seq - 1. Raises Corrupt, OSError."""
        return sum(runs.count(first_seq, end_seq) for runs in self._runs(first_seq, end_seq))

    def end_of(self, first_seq: int, end_seq: int, records: int) -> int:
        """The number after the first `records` records (at least one) from `first_seq` on, at most `end_seq`.

        A batch with numbers left out is not cut. Raises Corrupt, OSError.
        """
        for runs in self._runs(first_seq, end_seq):
            here = runs.count(first_seq, end_seq)
            if here > records or here == records > 0:
                return min(end_seq, runs.end_of(first_seq, records))
            records -= here
        return end_seq

    def next_of(self, first_seq: int, end_seq: int) -> int:
        """The lowest of these numbers that may be a record's, or was one's; `end_seq` if none is. As `count`."""
        if first_seq < self.log_start:
            return first_seq
        found = (runs.next_of(first_seq) for runs in self._runs(first_seq, end_seq))
        return min(end_seq, next((seq for seq in found if seq is not None), end_seq))

    def _runs(self, first_seq: int, end_seq: int) -> Iterator[Runs]:
        for segment, _, archived in self._segments(first_seq, end_seq):
            source = self.archived.place if archived and self.archived is not None else self.reader
            assert source is not None, "a segment is of one of the two"
            yield self._counter.runs(source.files, segment)

    @property
    def _begins(self) -> int:
        """Up to the directory's log start no number from here on was ever that of a record."""
        if self.reader is None or not self.reader.segments:
            return self.border
        segment = self.reader.segments[0]
        if segment.header.first_seq >= self.border:
            return self.border  # its header said what is after the segment before it
        with opened(self.reader.files, segment.path) as fd:
            read = careful_read(self.reader.files, fd, path=segment.path)
            first = read_header(read(HEADER_BYTES, BATCH_HEADER_BYTES), 0, segment.header.segment_id, HEADER_BYTES)
        is_left_out = first is not None and first.first_seq >= self.border
        return segment.header.begins if is_left_out else self.border

    def losses(self, first_seq: int, end_seq: int) -> Iterator[Lost]:
        """Which of the numbers first_seq..end_seq - 1 are known to be lost before a file is read."""
        if self.archived is not None and first_seq < self.border:
            expected = first_seq
            for entry in self.archived.between(first_seq, min(end_seq, self.border)):
                if entry.first > expected and (begins := self.archived.segment(entry).header.begins) > expected:
                    yield Lost(expected, begins - 1)
                expected = entry.next
            if expected < (stop := min(end_seq, self._begins)):
                yield Lost(expected, stop - 1)
        elif first_seq < (stop := min(self._begins, end_seq)):
            yield Lost(first_seq, stop - 1)
        if self.reader is None:
            return
        starts = sorted(segment.header.first_seq for segment in self.reader.segments)
        for error in self.reader.unreadable:
            begins = parse_segment_name(Path(str(error.path)).name) or 0
            at = bisect_right(starts, begins)
            ends = starts[at] if at < len(starts) else self.reader.committed_seq + 1
            if begins < end_seq and ends > first_seq:
                yield Lost(begins, ends - 1, error)

    def sides(self, first_seq: int, end_seq: int) -> list[tuple[int, int]]:
        """The numbers as those of the archive and those of the directory."""
        border = min(max(self.border, first_seq), end_seq)
        return [side for side in ((first_seq, border), (border, end_seq)) if side[0] < side[1]]

    def pieces(self, first_seq: int, end_seq: int) -> Iterator[Range]:
        """The smallest ranges that the index gives, in order. Raises Corrupt, OSError."""
        for segment, following, archived in self._segments(first_seq, end_seq):
            yield from self._of_segment(segment, following, first_seq, end_seq, archived)

    def _segments(self, first_seq: int, end_seq: int) -> Iterator[tuple[Segment, int, bool]]:
        """Segments that hold any of these numbers: (segment, the number after it, whether it is the archive's)."""
        if self.archived is not None and first_seq < self.border:
            for entry in self.archived.between(first_seq, min(end_seq, self.border)):
                yield self.archived.segment(entry), entry.next, True
        first_seq = max(first_seq, self.border)
        if self.reader is None or first_seq >= end_seq:
            return
        for at, segment in enumerate(self.reader.segments):
            is_last = at + 1 == len(self.reader.segments)
            following = (self.committed_seq + 1) if is_last else self.reader.segments[at + 1].header.first_seq
            if following > first_seq and segment.header.first_seq < end_seq:
                yield segment, following, False

    def _of_segment(
        self, segment: Segment, following: int, first_seq: int, end_seq: int, archived: bool
    ) -> Iterator[Range]:
        begins = segment.header.first_seq
        is_small = segment.footer is None and segment.end <= SCAN_BYTES  # its index would be one entry
        from_start = first_seq <= max(begins, self.log_start)
        entries = ([] if is_small and from_start else self._index(segment)) or [(begins, HEADER_BYTES)]
        low = max(0, bisect_right(entries, first_seq, key=lambda entry: entry[0]) - 1)
        high = bisect_left(entries, end_seq, key=lambda entry: entry[0])
        ends = [*entries[1:], (following, segment.end)]
        for (first, position), (next_first, end) in zip(entries[low:high], ends[low:high], strict=True):
            if next_first > first_seq and position < end:
                path, segment_id = str(segment.path), segment.header.segment_id
                yield Range(path, segment_id, position, end, first, next_first, archived)

    def _index(self, segment: Segment) -> list[tuple[int, int]]:
        if segment.footer is not None:
            return [(entry.first_seq, entry.position) for entry in segment.footer.index]
        assert self.reader is not None, "an archived segment has a footer"
        walked = self._walked.get(segment.path)
        if walked is None or walked.segment_id != segment.header.segment_id or walked.position > segment.end:
            walked = _Walked(segment.header.segment_id, next_seq=segment.header.first_seq)
            self._walked[segment.path] = walked
        files = self.reader.files
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
