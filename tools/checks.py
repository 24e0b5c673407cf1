"""The checks of a log's files, run on one core by `logtool verify` and on many by the Spark job `audit`.

Every byte of every segment is read, and all that says the same thing twice is compared: hashes, batch headers against
records, footers and their index against batches, segments against one another, files against the watermarks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine.files.system import SystemFiles
from engine.formats.batch import records
from engine.formats.batch_header import BatchHeader
from engine.formats.record import BatchError, BundleError
from engine.formats.segment import HEADER_BYTES, Footer
from engine.reader import PartitionReader, Segment, headers_of, walk_segment
from engine.segments.damage import Damage, Found

Finding = dict[str, Any]
"""``kind``, ``file``, ``reason``; where known ``position``, ``end`` (bytes) and ``first``, ``last`` (numbers)."""


def finding(kind: str, path: Path, reason: str, **where: int) -> Finding:
    """One thing that is wrong."""
    return {"kind": kind, "file": str(path), **where, "reason": reason}


@dataclass(slots=True)
class SegmentReport:
    """What one segment file holds, and what is wrong with it.

    Attributes:
        begins: the first number that it may hold (its header).
        follows: the number after the last one of the segment before; 0: not known.
        first, last: numbers of its first and last good record; 0 where it holds none.
        first_append_ms, last_append_ms: when its first and last batch were appended.
        gaps: numbers between two good neighbouring batches that no record has, as (first, last).
    """

    path: Path
    begins: int
    follows: int
    bytes: int
    sealed: bool
    batches: int = 0
    records: int = 0
    first: int = 0
    last: int = 0
    first_append_ms: int = 0
    last_append_ms: int = 0
    max_timestamp_ms: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class PartitionReport:
    """What a partition holds that is committed, and what is wrong with it; attributes as of `SegmentReport`."""

    topic: bytes = b""
    partition: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    first: int = 0
    last: int = 0
    bytes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, segment: SegmentReport) -> None:
        """Adds a segment's counts and findings."""
        self.segments += 1
        self.batches += segment.batches
        self.records += segment.records
        self.first = self.first or segment.first
        self.last = max(self.last, segment.last)
        self.bytes += segment.bytes
        self.gaps += segment.gaps
        self.findings += segment.findings


def check_segment(segment: Segment) -> SegmentReport:
    """Verifies one file up to its readable end. Raises OSError; FileNotFoundError: retention has removed it."""
    return _SegmentCheck(segment).run()


class _SegmentCheck:
    def __init__(self, segment: Segment) -> None:
        if segment.footer is not None:  # sealed, though the watermark that was read may not know of it yet
            segment = replace(segment, end=segment.footer.end)
        self.segment = segment
        header = segment.header
        self.report = SegmentReport(segment.path, header.first_seq, header.follows, segment.end, segment.sealed)
        self.previous = segment.header.first_seq - 1
        """Last number so far, of good and damaged batches."""
        self.marks: dict[int, tuple[int, int]] = {}
        """Position of a batch -> its first number, highest timestamp up to it."""

    def run(self) -> SegmentReport:
        problem = self.segment.footer_problem
        if problem is not None:
            self._find("footer", problem.reason, position=problem.position or 0)
        for item in walk_segment(SystemFiles(), replace(self.segment, footer=None)):  # its index is to be checked
            if isinstance(item, Damage):
                footer, last_seq = self.segment.footer, item.last_seq
                if footer is not None and item.end == self.segment.end:  # no later batch tells
                    last_seq = max(last_seq, footer.last_seq)
                where = {"position": item.position, "end": item.end, "first": item.first_seq, "last": last_seq}
                self._find("damage", item.reason, **where)
                self.previous = max(self.previous, last_seq)
                continue
            for batch in headers_of(item, self.segment.header.segment_id):
                self._batch(item, batch)
        if self.segment.footer is not None and not self.report.findings:
            self._footer(self.segment.footer)
        return self.report

    def _find(self, kind: str, reason: str, **where: int) -> None:
        self.report.findings.append(finding(kind, self.segment.path, reason, **where))

    def _batch(self, found: Found, batch: BatchHeader) -> None:
        report, position = self.report, found.position + batch.position
        if batch.first_seq <= self.previous:
            self._find("order", f"batch begins with {batch.first_seq} after {self.previous}", position=position)
        elif batch.first_seq > self.previous + 1:
            report.gaps.append((self.previous + 1, batch.first_seq - 1))
        if batch.append_time_ms < report.last_append_ms:
            reason = f"batch was appended at {batch.append_time_ms} ms, the one before at {report.last_append_ms} ms"
            self._find("order", reason, position=position)
        self._records(found, batch, position)
        self.previous = batch.last_seq
        report.batches += 1
        report.records += batch.count
        report.first = report.first or batch.first_seq
        report.last = max(report.last, batch.last_seq)
        report.first_append_ms = report.first_append_ms or batch.append_time_ms
        report.last_append_ms = batch.append_time_ms
        report.max_timestamp_ms = max(report.max_timestamp_ms, batch.max_timestamp_ms)
        self.marks[position] = (batch.first_seq, report.max_timestamp_ms)

    def _records(self, found: Found, batch: BatchHeader, position: int) -> None:
        """Decodes every record: numbers, their order, the highest timestamp, and that nothing is left over."""
        try:
            rows = [(row.seq, row.timestamp_ms) for row in records(found.data, batch.position, batch.end)]
        except (BatchError, BundleError) as error:
            self._find("records", str(error), position=position, first=batch.first_seq, last=batch.last_seq)
            return
        rising = all(before[0] < after[0] for before, after in pairwise(rows))
        ends = (rows[0][0], rows[-1][0])
        if len(rows) != batch.count or ends != (batch.first_seq, batch.last_seq) or not rising:
            reason = f"{len(rows)} records; the header says {batch.count} from {batch.first_seq} to {batch.last_seq}"
            self._find("records", reason, position=position)
        latest_ms = min(max(timestamp_ms for _, timestamp_ms in rows), batch.append_time_ms)
        if latest_ms != batch.max_timestamp_ms:
            reason = f"the highest timestamp is {latest_ms} ms; the header says {batch.max_timestamp_ms} ms"
            self._find("records", reason, position=position)

    def _footer(self, footer: Footer) -> None:
        report = self.report
        if (footer.records, footer.batches) != (report.records, report.batches) or (
            report.records and footer.last_seq != report.last
        ):
            reason = (
                f"says {footer.records} records in {footer.batches} batches up to {footer.last_seq}; "
                f"there are {report.records} in {report.batches} up to {report.last}"
            )
            self._find("footer", reason, position=footer.end)
        if footer.max_timestamp_ms < report.max_timestamp_ms:
            reason = f"says {footer.max_timestamp_ms} ms is the highest timestamp; it is {report.max_timestamp_ms} ms"
            self._find("footer", reason, position=footer.end)
        for entry in footer.index:
            first_seq, max_timestamp_ms = self.marks.get(entry.position, (0, 0))
            if first_seq != entry.first_seq or entry.max_timestamp_ms < max_timestamp_ms:
                reason = f"its index has record {entry.first_seq} at byte {entry.position}; that is not so"
                self._find("footer", reason, position=footer.end, first=entry.first_seq, last=entry.first_seq)


def check_partition(partition: PartitionReader, segments: Iterable[SegmentReport]) -> PartitionReport:
    """Joins the reports of a partition's segments, in their order, and compares them with what is around them."""
    report = PartitionReport(partition.topic.name, partition.index)
    for error in partition.unreadable:
        if partition.mark is None and _is_without_header(Path(error.path)):
            continue  # a kill came between making it and writing its header: nothing was ever stored in it
        report.findings.append(finding("segment", Path(error.path), error.reason, position=error.position or 0))
    append_ms, is_sound = 0, not report.findings
    for segment in segments:
        if segment.begins <= report.last:
            reason = f"begins with {segment.begins} after {report.last}"
            report.findings.append(finding("order", segment.path, reason))
        elif report.last and segment.begins > report.last + 1 and is_sound:
            report.gaps.append((report.last + 1, segment.begins - 1))
            if not partition.unreadable and segment.follows > max(report.last + 1, partition.log_start):
                where = {"first": max(report.last + 1, partition.log_start), "last": segment.follows - 1}
                report.findings.append(finding("segment", segment.path, "the segment before it is missing", **where))
        if segment.batches and segment.first_append_ms < append_ms:
            reason = f"begins at {segment.first_append_ms} ms, the segment before ends at {append_ms} ms"
            report.findings.append(finding("order", segment.path, reason))
        append_ms = max(append_ms, segment.last_append_ms)
        is_sound = not segment.findings
        report.add(segment)
    _check_mark(partition, report)
    return report


def _is_without_header(path: Path) -> bool:
    try:
        return path.stat().st_size < HEADER_BYTES
    except FileNotFoundError:
        return True


def _check_mark(partition: PartitionReader, report: PartitionReport) -> None:
    mark, found = partition.mark, report.findings
    if mark is None:
        return  # a crash came before its first one, or the file was lost, which is told of the file
    if not partition.segments:
        if mark.committed_seq >= mark.log_start:
            reason = f"records {mark.log_start} to {mark.committed_seq} were committed; there are no segment files"
            found.append(finding("segment", partition.directory, reason))
        return
    active = partition.segments[-1]
    if (active.header.first_seq, active.header.segment_id) != (mark.active_first_seq, mark.segment_id):
        reason = f"the segment that begins with {mark.active_first_seq} is missing or is another file"
        found.append(finding("segment", partition.directory, reason))
    elif active.size_bytes < mark.committed_position:
        reason = f"{mark.committed_position} bytes were committed, the file has {active.size_bytes}"
        found.append(finding("segment", active.path, reason, position=active.size_bytes))
    elif not found and report.last < mark.committed_seq and active.header.first_seq <= mark.committed_seq:
        reason = f"{mark.committed_seq} was committed last, the file ends with {report.last}"
        found.append(finding("segment", active.path, reason, position=mark.committed_position))
