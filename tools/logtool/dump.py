"""`dump segment` and `dump topic`: what is in the files, as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from engine.errors import EngineError
from engine.files.system import SystemFiles
from engine.formats.batch import records
from engine.formats.batch_header import QOS0_ATTRIBUTE, BatchHeader
from engine.reader import DirectoryReader, PartitionReader, Segment, headers_of, read_segment, walk_segment
from engine.segments.damage import Found
from tools.logtool.cli import Group, Settings
from tools.logtool.lib.address import Admin, need_admin
from tools.logtool.lib.completing import complete_topic
from tools.logtool.lib.errors import NOT_FOUND, Failure, Finding
from tools.logtool.lib.events import Event, begun, served
from tools.logtool.lib.output import Column, Output, bytes_fields, number, size_text, time_text
from tools.logtool.lib.record_sources import record_of
from tools.logtool.lib.records import DECODES, Printer, named_partition

BATCH_COLUMNS = (
    number("position"),
    number("bytes"),
    number("first"),
    number("last"),
    number("records"),
    Column("max_time"),
    Column("append_time"),
    number("durable_mark"),
    Column("state"),
)
SEGMENT_COLUMNS = (
    number("partition"),
    Column("file"),
    Column("state"),
    number("first"),
    number("last"),
    number("records"),
    number("bytes"),
    Column("max_time"),
)
RECORD_LINE = "%o\\t%t\\t%k\\t%v\\n"


@click.group(cls=Group)
def dump() -> None:
    """Show what is in the files of a log, also while a server runs. From files or server."""


def _mark_of(path: Path, segment_id: int) -> int | None:
    """Where the committed part of an active segment ends, if it lies in a data directory whose watermarks know it."""
    try:
        place = path.absolute().parents
        reader = DirectoryReader(place[3])
        topic = next(topic for topic in reader.topics() if str(topic.id) == place[1].name)
        mark = reader.partition(topic, int(place[0].name)).mark
    except (EngineError, OSError, IndexError, ValueError, StopIteration):
        return None
    return mark.committed_position if mark is not None and mark.segment_id == segment_id else None


def segment_item(segment: Segment, committed: int | None) -> dict[str, Any]:
    """Header and footer of a segment as an item."""
    header, footer = segment.header, segment.footer
    item: dict[str, Any] = {
        "file": str(segment.path),
        "topic_id": header.topic_id,
        "partition": header.partition,
        "partition_number": header.number,
        "first": header.first_seq,
        "segment_id": f"{header.segment_id:016x}",
        "created": time_text(header.created_ms),
        "bytes": segment.size_bytes,
        "state": "sealed" if footer else "damaged footer" if segment.footer_problem else "active",
    }
    if footer is not None:
        item |= {
            "last": footer.last_seq,
            "records": footer.records,
            "batches": footer.batches,
            "batches_end": footer.end,
            "index_entries": len(footer.index),
        }
    elif committed is not None:
        item["committed_bytes"] = committed
    return item


def _batch_item(found: Found, header: BatchHeader, committed: int | None) -> dict[str, Any]:
    position = found.position + header.position
    item: dict[str, Any] = {
        "position": position,
        "bytes": header.size,
        "first": header.first_seq,
        "last": header.last_seq,
        "records": header.count,
        "max_time": time_text(header.max_timestamp_ms),
        "append_time": time_text(header.append_time_ms),
        "durable_mark": header.durable_mark,
        "state": "good" if committed is None or position < committed else "not committed",
    }
    if header.attributes & QOS0_ATTRIBUTE:
        item["qos0"] = True
    if header.transaction_id:
        item["transaction"] = header.transaction_id
    return item


def _batches(segment: Segment, committed: int | None) -> Iterator[dict[str, Any]]:
    for item in walk_segment(SystemFiles(), segment):
        if isinstance(item, Found):
            for header in headers_of(item, segment.header.segment_id):
                yield _batch_item(item, header, committed)
        elif committed is not None and item.position >= committed:
            yield {"position": item.position, "bytes": item.end - item.position, "state": "not committed, incomplete"}
        else:
            yield {
                "position": item.position,
                "bytes": item.end - item.position,
                "first": item.first_seq,
                "last": item.last_seq if item.last_seq >= item.first_seq else None,
                "state": f"damaged: {item.reason}",
            }


def dumped(path: Path, *, with_records: bool) -> Iterator[Event]:
    """What a segment file holds: ``segment`` tells of its header and footer; then each ``batch``, or each ``record``
    (partition and record) and ``damage`` between them; ``problem`` of its footer. Raises EngineError, OSError."""
    segment = read_segment(SystemFiles(), path)
    committed = None if segment.footer else _mark_of(path, segment.header.segment_id)
    yield begun(0)
    yield {"segment": segment_item(segment, committed)}
    if with_records:
        yield from _records_of(segment, committed)
    else:
        yield from ({"batch": item} for item in _batches(segment, committed))
    if segment.footer_problem is not None:
        yield {"problem": str(segment.footer_problem)}


def _records_of(segment: Segment, committed: int | None) -> Iterator[Event]:
    shown = segment if committed is None else dataclasses.replace(segment, end=min(segment.end, committed))
    for item in walk_segment(SystemFiles(), shown):
        if isinstance(item, Found):
            for record in records(item.data, item.start, item.end):
                yield {"record": (segment.header.partition, record)}
        else:
            yield {"damage": f"bytes {item.position} to {item.end} are damaged ({item.reason})"}


@dump.command("segment")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--records", "show_records", is_flag=True, help="Show each record instead of each batch.")
@click.option("--format", "template", metavar="TEXT", help="With --records: as in `cat`; offset, time, key, value.")
@click.option("--decode", type=click.Choice(DECODES), default="auto", help="With --records: as in `cat`.")
@click.pass_obj
def dump_segment(settings: Settings, file: Path, show_records: bool, template: str | None, decode: str) -> None:
    """Show a segment FILE: its header, every batch, its footer. From files or server.

    Everything is verified on the way; damage is shown where it lies, and then the exit code is 1. Batches after what
    is committed are marked when the file lies in its data directory. With --server, FILE is one of the server's, as
    `dump topic` and `verify` name it: what counts is topics/ID/PARTITION/NAME at its end.
    """
    output = settings.output
    events = _segment_events(settings, file, show_records)
    is_good = _show_records(output, events, template, decode) if show_records else _show_batches(output, events)
    if not is_good:
        raise Finding


def _segment_events(settings: Settings, file: Path, show_records: bool) -> Iterator[Event]:
    if file.is_file() or settings.server is None:
        return dumped(file, with_records=show_records)
    place = "/".join(map(quote, file.parts[-3:]))
    return served(need_admin(settings), "GET", f"/v1/segments/{place}{'/records' if show_records else ''}")


def _show_records(output: Output, events: Iterator[Event], template: str | None, decode: str) -> bool:
    """Whether nothing is damaged."""
    if template is None and output.form == "table":
        template = RECORD_LINE
    printer = Printer(output, template, decode)
    is_good, problems = True, []
    for event in events:
        if "record" in event:
            found = event["record"]
            partition, record = record_of(found) if isinstance(found, dict) else found
            printer.write(record, partition)
        elif "damage" in event:
            is_good = False
            output.warn(f"logtool: {event['damage']}")
        elif "problem" in event:
            problems.append(event["problem"])
    printer.end()
    for problem in problems:
        output.warn(f"logtool: {problem}")
    return is_good and not problems


def _show_batches(output: Output, events: Iterator[Event]) -> bool:
    """Whether nothing is damaged."""
    items, problems, head = [], [], {}
    for event in events:
        if "segment" in event:
            head = event["segment"]
        elif "batch" in event:
            items.append(event["batch"])
        elif "problem" in event:
            problems.append(event["problem"])
    if output.form == "table":
        output.fields(head)
        output.write(b"\n")
    output.items(BATCH_COLUMNS, items, segment=head)
    for problem in problems:
        output.warn(f"logtool: {problem}")
    return not problems and not any(item["state"].startswith("damaged") for item in items)


def segments_of(partition: PartitionReader) -> Iterator[dict[str, Any]]:
    """An item for each segment of a partition."""
    for segment in partition.segments:
        footer = segment.footer
        active = partition.segments[-1] is segment and footer is None
        yield {
            "partition": partition.index,
            "file": str(segment.path),
            "state": "sealed" if footer else "active" if active else "damaged footer",
            "first": segment.header.first_seq,
            "last": footer.last_seq if footer else partition.committed_seq if active else None,
            "records": footer.records if footer else None,
            "bytes": segment.end if active else segment.size_bytes,
            "max_time": time_text(footer.max_timestamp_ms) if footer and footer.records else None,
        }


def _served_segment(item: dict[str, Any], directory: str) -> dict[str, Any]:
    """The same, of what the server tells; of one that is not sealed the files do not tell more."""
    sealed = item["state"] == "sealed"
    return {
        "partition": item["partition"],
        "file": f"{directory}/{item['partition']}/{item['file']}",
        "state": item["state"],
        "first": item["first_offset"],
        "last": item["last_offset"],
        "records": item["records"] if sealed else None,
        "bytes": item["size_bytes"],
        "max_time": time_text(item["newest_ms"]) if sealed and item["records"] else None,
    }


Shown = tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]
"""The topic, what is committed of each partition, an item for each segment."""


def _stored(data_dir: Path, name: bytes, index: int | None) -> Shown:
    reader = DirectoryReader(data_dir)
    stored = reader.topic(name)
    chosen = range(stored.partition_count) if index is None else [index]
    partitions = [reader.partition(stored, at) for at in chosen]
    head = {**bytes_fields("topic", stored.name), "id": stored.id, "partitions": stored.partition_count}
    head |= {"created": time_text(stored.created_ms), "config": stored.config}
    marks = [
        {"partition": partition.index, "log_start": partition.log_start, "committed": partition.committed_seq}
        for partition in partitions
        if partition.segments
    ]
    return head, marks, [item for partition in partitions for item in segments_of(partition)]


def _served(admin: Admin, name: bytes, index: int | None) -> Shown:
    path = f"/v1/topics/{quote(name, safe='')}"
    topic = admin.call("GET", path)
    if index is not None and index >= topic["partitions"]:
        raise Failure(NOT_FOUND, "unknown_partition", f"the topic has partitions 0 to {topic['partitions'] - 1}")
    found = [item for item in admin.call("GET", f"{path}/segments")["items"] if index in (None, item["partition"])]
    head = {**bytes_fields("topic", name), "id": topic["id"], "partitions": topic["partitions"]}
    head |= {"created": time_text(topic["created_ms"]), "config": topic["settings"]}
    with_files = {item["partition"] for item in found}
    marks = [
        {"partition": at["partition"], "log_start": at["first_offset"], "committed": at["next_offset"] - 1}
        for at in topic["partition_details"]
        if at["partition"] in with_files
    ]
    directory = f"{admin.call('GET', '/v1/status')['data_dir']}/topics/{topic['id']}"
    return head, marks, [_served_segment(item, directory) for item in found]


@dump.command("topic")
@click.argument("topic", metavar="TOPIC[:PARTITION]", shell_complete=complete_topic)
@click.pass_obj
def dump_topic(settings: Settings, topic: str) -> None:
    """Show the segments of TOPIC, of one partition when it is named, and what is committed. From files or server."""
    output = settings.output
    name, index = named_partition(topic)
    if settings.data_dir is not None:
        head, marks, items = _stored(settings.data_dir, name, index)
    else:
        head, marks, items = _served(need_admin(settings), name, index)
    if output.form == "table":
        total = sum(item["bytes"] for item in items)
        output.fields({**head, "stored": size_text(total)})
        for mark in marks:
            text = f"partition {mark['partition']}: records {mark['log_start']} to {mark['committed']}\n"
            output.write(text.encode())
        output.write(b"\n")
    output.items(SEGMENT_COLUMNS, items, topic=head, partitions=marks)
