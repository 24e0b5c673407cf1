"""`verify`: reads every byte of the segments and compares all that says the same thing twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from engine.batch import records
from engine.batch_header import BatchHeader
from engine.files import SystemFiles
from engine.reader import DirectoryReader, PartitionReader, Segment, headers_of, read_segment, walk_segment
from engine.record import BatchError, BundleError
from engine.scan import Found
from tools.logtool.cli import Command, Settings
from tools.logtool.errors import Finding
from tools.logtool.output import Column, Output, bytes_fields, name_text, number, size_text

COLUMNS = (
    Column("topic"),
    number("partition"),
    number("segments"),
    number("batches"),
    number("records"),
    number("first"),
    number("last"),
    number("bytes"),
    number("findings"),
)
SET_ASIDE = "set-aside"


@dataclass(slots=True)
class Tally:
    """What was seen of a partition (or of one file), and what is wrong with it."""

    topic: bytes = b""
    partition: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    first: int = 0
    last: int = 0
    bytes: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)

    def find(self, kind: str, path: Path, reason: str, **where: int) -> None:
        """Notes that something is wrong."""
        self.findings.append({"kind": kind, "file": str(path), **where, "reason": reason})

    def item(self) -> dict[str, Any]:
        """The line of the table."""
        return {
            **bytes_fields("topic", self.topic),
            "partition": self.partition,
            "segments": self.segments,
            "batches": self.batches,
            "records": self.records,
            "first": self.first,
            "last": self.last,
            "bytes": self.bytes,
            "findings": len(self.findings),
        }


def check_segment(segment: Segment, tally: Tally) -> None:
    """Verifies one file up to its readable end."""
    path, header = segment.path, segment.header
    tally.segments += 1
    tally.bytes += segment.end
    if segment.footer_problem is not None:
        tally.find("footer", path, segment.footer_problem.reason, position=segment.footer_problem.position or 0)
    batches = count = max_timestamp_ms = 0
    previous = header.first_seq - 1
    for item in walk_segment(SystemFiles(), segment):
        if not isinstance(item, Found):
            tally.find(
                "damage",
                path,
                item.reason,
                position=item.position,
                end=item.end,
                first=item.first_seq,
                last=item.last_seq,
            )
            continue
        for batch in headers_of(item, header.segment_id):
            if batch.first_seq <= previous:
                reason = f"batch begins with {batch.first_seq} behind {previous}"
                tally.find("order", path, reason, position=item.position + batch.position)
            _check_records(item, batch, path, tally)
            previous = batch.last_seq
            batches += 1
            count += batch.count
            max_timestamp_ms = max(max_timestamp_ms, batch.max_timestamp_ms)
            tally.first = tally.first or batch.first_seq
    tally.batches += batches
    tally.records += count
    tally.last = max(tally.last, previous if count else 0)
    footer = segment.footer
    if footer is None or any(found["file"] == str(path) for found in tally.findings):
        return
    if (footer.records, footer.batches) != (count, batches) or (count and footer.last_seq != previous):
        reason = (
            f"says {footer.records} records in {footer.batches} batches up to {footer.last_seq}; "
            f"there are {count} in {batches} up to {previous}"
        )
        tally.find("footer", path, reason, position=footer.end)


def _check_records(found: Found, batch: BatchHeader, path: Path, tally: Tally) -> None:
    """Decodes every record: number, order, and that nothing is left over."""
    position = found.position + batch.position
    try:
        numbers = [record.seq for record in records(found.data, batch.position, batch.end)]
    except (BatchError, BundleError) as error:
        tally.find("records", path, str(error), position=position, first=batch.first_seq, last=batch.last_seq)
        return
    rising = all(before < after for before, after in pairwise(numbers))
    if len(numbers) != batch.count or numbers[0] != batch.first_seq or numbers[-1] != batch.last_seq or not rising:
        reason = f"{len(numbers)} records; the header says {batch.count} from {batch.first_seq} to {batch.last_seq}"
        tally.find("records", path, reason, position=position)


def check_partition(partition: PartitionReader) -> Tally:
    """Verifies all that is committed in a partition."""
    tally = Tally(partition.topic.name, partition.index)
    for error in partition.unreadable:
        tally.find("segment", Path(error.path), error.reason, position=error.position or 0)
    last_before = 0
    for segment in partition.segments:
        if segment.header.first_seq <= last_before:
            tally.find("order", segment.path, f"begins with {segment.header.first_seq} behind {last_before}")
        try:
            check_segment(segment, tally)
        except FileNotFoundError:
            continue  # retention removed it meanwhile
        last_before = max(last_before, tally.last)
    _check_mark(partition, tally)
    return tally


def _check_mark(partition: PartitionReader, tally: Tally) -> None:
    mark = partition.mark
    if mark is None:
        if partition.segments:
            tally.find("watermark", partition.segments[-1].path, "the watermarks file does not know this partition")
        return
    if not partition.segments:
        if mark.committed_seq >= mark.log_start:
            reason = f"records {mark.log_start} to {mark.committed_seq} were committed; there are no segment files"
            tally.find("segment", partition.directory, reason)
        return
    active = partition.segments[-1]
    if (active.header.first_seq, active.header.segment_id) != (mark.active_first_seq, mark.segment_id):
        reason = f"the segment that begins with {mark.active_first_seq} is missing or is another file"
        tally.find("segment", partition.directory, reason)
    elif active.size_bytes < mark.committed_position:
        reason = f"{mark.committed_position} bytes were committed, the file has {active.size_bytes}"
        tally.find("segment", active.path, reason, position=active.size_bytes)


def check_directory(reader: DirectoryReader) -> Iterator[Tally]:
    """Verifies every partition of a data directory."""
    for topic in reader.topics():
        for index in range(topic.partition_count):
            partition = reader.partition(topic, index)
            if partition.segments or partition.unreadable or partition.mark is not None:
                yield check_partition(partition)


@click.command(cls=Command)
@click.argument("place", metavar="[DIR|SEGMENT]", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--repair-plan", is_flag=True, help="Also show what `logtool repair` would do; no server may be running.")
@click.pass_obj
def verify(settings: Settings, place: Path | None, repair_plan: bool) -> None:
    """Check every byte of the segments in DIR (else --data-dir), or of one SEGMENT file.

    Headers, every batch's checksums, every record, footers, the order of numbers, and what the watermarks say. Works
    beside a running server: what is not committed is not looked at. Exit code 1 when anything is wrong.
    """
    output = settings.output
    plan: list[dict[str, Any]] | None = None
    if repair_plan:
        from tools.logtool.repair import plan_of

        if place is not None and place.is_file():
            raise click.UsageError("--repair-plan is about a whole directory")
        plan = plan_of(place or settings.need_directory())
    more: list[dict[str, Any]] = []
    if place is not None and place.is_file():
        segment = read_segment(SystemFiles(), place)
        tally = Tally(partition=segment.header.partition)
        check_segment(segment, tally)
        tallies = [tally]
    else:
        reader = DirectoryReader(place or settings.need_directory())
        tallies = list(check_directory(reader))
        more = [{"kind": "file", "file": error.path, "reason": error.reason} for error in reader.damaged]
        aside = reader.files.list_dir(reader.data_dir / SET_ASIDE)
        if aside:
            output.note(f"{len(aside)} files in {reader.data_dir / SET_ASIDE}: what recoveries cut off; not checked")
    _report(output, tallies, more, plan)
    if more or any(tally.findings for tally in tallies):
        raise Finding


def _report(
    output: Output, tallies: list[Tally], more: list[dict[str, Any]], plan: list[dict[str, Any]] | None
) -> None:
    findings = more + [
        {**bytes_fields("topic", tally.topic), "partition": tally.partition, **finding}
        for tally in tallies
        for finding in tally.findings
    ]
    items = [tally.item() for tally in tallies]
    if output.form == "table":
        items = [item | {"topic": name_text(tally.topic)} for item, tally in zip(items, tallies, strict=True)]
    output.items(COLUMNS, items, findings=findings, **({} if plan is None else {"repair_plan": plan}))
    if plan is not None and output.form == "table":
        from tools.logtool.repair import show_plan

        output.write(b"\n")
        show_plan(output, plan)
    for finding in findings:
        where = f" at byte {finding['position']}" if "position" in finding else ""
        lost = (
            f", records {finding['first']} to {finding['last']}"
            if finding.get("last", 0) >= finding.get("first", 1)
            else ""
        )
        output.warn(f"logtool: {finding['file']}{where}: {finding['kind']}: {finding['reason']}{lost}")
    total = sum(tally.records for tally in tallies)
    size = size_text(sum(tally.bytes for tally in tallies))
    output.note(
        f"{total} records in {size} verified, {len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}"
    )
