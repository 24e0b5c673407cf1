"""Counts the records in ranges of numbers: numbers may be left out, so that a difference of numbers is not a count.

A sealed segment says how many records it has; where that is one for each number, nothing is read. Of other segments
the batch headers tell, each read once in the life of a `Counter`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from engine.files.system import Files
from engine.formats.segment import HEADER_BYTES
from engine.reader import Segment, headers_of, opened
from engine.segments.damage import Found, careful_read, walk


class Runs:
    """Runs of ascending numbers with how many records each holds.

    A run with a record for each of its numbers can be cut anywhere. Of another one, a batch with numbers left out, it
    is not known which they are: it counts whole where a part of it is asked for, and is not cut.
    """

    __slots__ = ("_before", "_ends", "_firsts")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._ends = array("Q")
        self._before = array("Q", [0])  # records before each run, and before the next one to come

    def add(self, first_seq: int, end_seq: int, records: int) -> None:
        """The numbers first_seq..end_seq - 1, after all others, hold so many records."""
        if self._ends and self._ends[-1] == first_seq and end_seq - first_seq == records and self._whole(-1):
            self._ends[-1] = end_seq
            self._before[-1] += records
            return
        self._firsts.append(first_seq)
        self._ends.append(end_seq)
        self._before.append(self._before[-1] + records)

    def _whole(self, at: int) -> bool:
        at %= len(self._firsts)
        return self._before[at + 1] - self._before[at] == self._ends[at] - self._firsts[at]

    def _skipped(self, at: int, seq: int) -> int:
        """Records of a run below `seq`."""
        return max(0, seq - self._firsts[at]) if self._whole(at) else 0

    def count(self, first_seq: int, end_seq: int) -> int:
        """Records of the numbers first_seq..end_seq - 1."""
        low, high = bisect_right(self._ends, first_seq), bisect_left(self._firsts, end_seq)
        if low >= high:
            return 0
        behind = max(0, self._ends[high - 1] - end_seq) if self._whole(high - 1) else 0
        return self._before[high] - self._before[low] - self._skipped(low, first_seq) - behind

    def next_of(self, first_seq: int) -> int | None:
        """The lowest number from `first_seq` on that may be a record's; None: there is none."""
        low = bisect_right(self._ends, first_seq)
        return max(first_seq, self._firsts[low]) if low < len(self._firsts) else None

    def end_of(self, first_seq: int, records: int) -> int:
        """The number after the first `records` records from `first_seq` on. There have to be as many, and one."""
        low = bisect_right(self._ends, first_seq)
        target = self._before[low] + self._skipped(low, first_seq) + records
        at = bisect_left(self._before, target) - 1
        if self._whole(at):
            return self._firsts[at] + target - self._before[at]
        return self._ends[at] if at == low or self._before[at + 1] == target else self._firsts[at]


@dataclass(slots=True)
class _Counted:
    """A segment as far as its headers were read."""

    segment_id: int
    next_seq: int
    position: int = HEADER_BYTES
    runs: Runs = field(default_factory=Runs)


class Counter:
    """Counts the records of one partition's segments."""

    def __init__(self) -> None:
        self._counted: dict[Path, _Counted] = {}

    def keep(self, paths: set[Path]) -> None:
        """Forgets the segments that are not among these."""
        self._counted = {path: counted for path, counted in self._counted.items() if path in paths}

    def runs(self, files: Files, segment: Segment) -> Runs:
        """The runs of a segment up to its readable end. Raises OSError."""
        footer = segment.footer
        if footer is not None and footer.records == footer.last_seq + 1 - footer.first_seq:
            runs = Runs()
            if footer.records:
                runs.add(footer.first_seq, footer.last_seq + 1, footer.records)
            return runs
        header = segment.header
        counted = self._counted.get(segment.path)
        if counted is None or counted.segment_id != header.segment_id or counted.position > segment.end:
            counted = self._counted[segment.path] = _Counted(header.segment_id, header.first_seq)
        if counted.position < segment.end:
            self._read(files, segment, counted)
        return counted.runs

    @staticmethod
    def _read(files: Files, segment: Segment, counted: _Counted) -> None:
        with opened(files, segment.path) as fd:
            read = careful_read(files, fd, path=segment.path)
            for item in walk(read, counted.position, segment.end, counted.segment_id, counted.next_seq):
                if isinstance(item, Found):  # what is damaged holds no record that could be read
                    for batch in headers_of(item, counted.segment_id):
                        counted.runs.add(batch.first_seq, batch.last_seq + 1, batch.count)
                    counted.next_seq = item.last_seq + 1
        counted.position = segment.end
