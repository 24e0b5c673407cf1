"""`verify`: reads every byte of the segments and compares everything that is stored twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from engine.files.lock import is_in_use
from engine.files.system import SystemFiles
from engine.reader import DirectoryReader, PartitionReader, Segment, read_segment
from engine.repair import Repair, Step
from tools.checks import PartitionReport, SegmentReport, check_partition, check_segment
from tools.logtool.cli import Command, Settings
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.errors import Finding
from tools.logtool.lib.events import Event, OnBytes, begun, followed, served
from tools.logtool.lib.output import Column, Output, bytes_fields, count_text, name_text, number, size_text
from tools.logtool.lib.progress import BytesProgress, stored_bytes
from tools.logtool.topics import topic_of

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


def item_of(report: PartitionReport) -> dict[str, Any]:
    """The line of the table."""
    return {
        **bytes_fields("topic", report.topic),
        "partition": report.partition,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "first": report.first,
        "last": report.last,
        "bytes": report.bytes,
        "findings": len(report.findings),
    }


def segment_reports(partition: PartitionReader, checked: Callable[[Segment], None]) -> Iterator[SegmentReport]:
    """The reports of a partition's segments, but for those that retention removes meanwhile; `checked` gets each."""
    for segment in partition.segments:
        with contextlib.suppress(FileNotFoundError):
            yield check_segment(segment)
        checked(segment)


def check_as_a_start_does(
    data_dir: Path, own: list[dict[str, Any]], read: set[Path]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What opening the log would find, in a directory that no server has: state, index, staged files, and of each
    partition what lies after the watermark, too. Nothing is changed.

    Args:
        own: findings so far, which are not told again.
        read: segments that were read through. Of a topic whose description is damaged there are others.

    Returns:
        further findings, and what is only to be mentioned.
    """
    unread = {Path(finding["file"]) for finding in own if finding["kind"] == "segment"}
    steps = Repair(data_dir, reads=lambda path: path in unread or path not in read).run()
    if is_in_use(data_dir):
        return [], []  # a server has come meanwhile, and changes what was looked at
    further = []
    for step in steps:
        if step.is_wrong and not any(_is_told(step, finding) for finding in own):
            found: dict[str, Any] = {"kind": step.kind, "file": str(step.path)}
            if step.partition is not None:
                found |= bytes_fields("topic", step.topic) | {"partition": step.partition}
            if step.last_seq >= step.first_seq:
                found |= {"first": step.first_seq, "last": step.last_seq}
            further.append(found | {"reason": step.problem})
    tails = [step for step in steps if step.kind == "tail" and not step.is_wrong]
    return further, [f"{step.path}: {step.problem}: the next start sets them aside" for step in tails]


def _is_told(step: Step, finding: dict[str, Any]) -> bool:
    """Whether a finding is about the same as what a start would find; it then says which numbers that costs."""
    if finding["file"] not in (str(step.path), str(step.path.parent)) and finding["file"] not in step.problem:
        return False
    if step.last_seq < step.first_seq:
        return True
    if finding.get("last", 0) < finding.get("first", 1):
        finding |= {"first": step.first_seq, "last": step.last_seq}
    return bool(finding["first"] <= step.first_seq and step.last_seq <= finding["last"])


def check_directory(reader: DirectoryReader, checked: Callable[[Segment], None]) -> Iterator[PartitionReport]:
    """Verifies every partition of a data directory; `checked` is told each segment that was looked at."""
    for topic in reader.topics():
        for index in range(topic.partition_count):
            partition = reader.partition(topic, index)
            if partition.segments or partition.unreadable or partition.mark is not None:
                yield check_partition(partition, segment_reports(partition, checked))


def verified(data_dir: Path, on_bytes: OnBytes) -> Iterator[Event]:
    """Verifies a directory: ``checked`` tells of each partition, ``finding`` what is wrong, ``note`` what to mention.

    Beside a server findings are told as soon as they are made; without one those of a start are added to them.
    """
    reader = DirectoryReader(data_dir)
    is_live = is_in_use(data_dir)
    yield begun(stored_bytes(data_dir))
    read: set[Path] = set()
    found: list[Event] = []

    def checked(one: Segment) -> None:
        read.add(one.path)
        on_bytes(one.size_bytes)

    for report in check_directory(reader, checked):
        yield {"checked": item_of(report)}
        where = {**bytes_fields("topic", report.topic), "partition": report.partition}
        for finding in report.findings:
            if is_live:
                yield {"finding": where | finding}
            else:
                found.append(where | finding)
    more = [{"kind": "file", "file": error.path, "reason": error.reason} for error in reader.damaged]
    if is_live:
        yield {"note": "a server has the directory: its state and index are not checked, they change all the time"}
    else:
        further, notes = check_as_a_start_does(reader.data_dir, more + found, read)
        more += further
        yield from ({"note": note} for note in notes)
    yield from ({"finding": finding} for finding in more + found)
    aside = reader.files.list_dir(reader.data_dir / SET_ASIDE)
    if aside:
        where_aside = reader.data_dir / SET_ASIDE
        text = f"{count_text(len(aside), 'file')} in {where_aside}: what recoveries cut off; not checked"
        yield {"note": text}
    reader.close()


def verified_segment(path: Path) -> Iterator[Event]:
    """The same of one segment file."""
    segment = read_segment(SystemFiles(), path)
    report = PartitionReport(partition=segment.header.partition)
    report.add(check_segment(segment))
    yield {"checked": item_of(report)}
    where = {**bytes_fields("topic", report.topic), "partition": report.partition}
    yield from ({"finding": where | finding} for finding in report.findings)


@click.command(cls=Command)
@click.argument("place", metavar="[DIR|SEGMENT]", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--repair-plan", is_flag=True, help="Also show what `logtool repair` would do; no server may be running.")
@click.pass_obj
def verify(settings: Settings, place: Path | None, repair_plan: bool) -> None:
    """Check every byte of the segments in DIR (else of the log), or of one SEGMENT file. From files or server.

    Headers, every batch's checksums, every record, footers, the order of numbers, and what the watermarks say; the
    structure of state and index when no server has them. Works while a server runs: what is not committed is not
    looked at. With --server the server does it, in a process of its own. Exit code 1 when anything is wrong.
    """
    output = settings.output
    plan: list[dict[str, Any]] | None = None
    if repair_plan:
        from tools.logtool.repair import plan_of

        if place is not None and place.is_file():
            raise click.UsageError("--repair-plan is about a whole directory")
        plan = plan_of(place or settings.need_directory("verify --repair-plan"))
    items, findings = [], []
    with BytesProgress(output, "verified") as progress:
        for event in followed(_events(settings, place, progress.add), progress):
            if "checked" in event:
                items.append(event["checked"])
            elif "finding" in event:
                findings.append(event["finding"])
            elif "note" in event:
                output.note(event["note"])
    _show(output, items, findings, plan)
    if findings:
        raise Finding


def _events(settings: Settings, place: Path | None, on_bytes: OnBytes) -> Iterator[Event]:
    if place is not None and place.is_file():
        return verified_segment(place)
    data_dir = place or settings.data_dir
    if data_dir is None:
        return served(need_admin(settings), "POST", "/v1/verify")
    return verified(data_dir, on_bytes)


def _show(
    output: Output, items: list[Event], findings: list[dict[str, Any]], plan: list[dict[str, Any]] | None
) -> None:
    shown = items
    if output.form == "table":
        shown = [item | {"topic": name_text(topic_of(item))} for item in items]
    output.items(COLUMNS, shown, findings=findings, **({} if plan is None else {"repair_plan": plan}))
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
    total = sum(item["records"] for item in items)
    size = size_text(sum(item["bytes"] for item in items))
    output.note(
        f"{count_text(total, 'record')} in {size} verified, "
        f"{len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}"
    )
