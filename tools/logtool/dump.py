"""`dump segment` and `dump topic`: what is in the files, as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine.errors import EngineError
from engine.files.system import SystemFiles
from engine.formats.batch import records
from engine.formats.batch_header import QOS0_ATTRIBUTE, BatchHeader
from engine.reader import DirectoryReader, PartitionReader, Segment, headers_of, read_segment, walk_segment
from engine.segments.damage import Found
from tools.logtool.cli import Group, Settings
from tools.logtool.lib.completing import complete_topic
from tools.logtool.lib.errors import Finding
from tools.logtool.lib.output import Column, Output, bytes_fields, name_text, number, size_text, time_text
from tools.logtool.lib.records import DECODES, Printer, topic_and_partition

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
    """Show what is in the files of a log. Reads files; works while a server runs."""


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


@dump.command("segment")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--records", "show_records", is_flag=True, help="Show each record instead of each batch.")
@click.option("--format", "template", metavar="TEXT", help="With --records: as in `cat`; offset, time, key, value.")
@click.option("--decode", type=click.Choice(DECODES), default="auto", help="With --records: as in `cat`.")
@click.pass_obj
def dump_segment(settings: Settings, file: Path, show_records: bool, template: str | None, decode: str) -> None:
    """Show a segment FILE: its header, every batch, its footer.

    Everything is verified on the way; damage is shown where it lies, and then the exit code is 1. Batches after what
    is committed are marked when the file lies in its data directory.
    """
    output = settings.output
    segment = read_segment(SystemFiles(), file)
    committed = None if segment.footer else _mark_of(file, segment.header.segment_id)
    if show_records:
        damaged = _dump_records(output, segment, committed, template, decode)
    else:
        items = list(_batches(segment, committed))
        damaged = any(item["state"].startswith("damaged") for item in items)
        head = segment_item(segment, committed)
        if output.form == "table":
            output.fields(head)
            output.write(b"\n")
        output.items(BATCH_COLUMNS, items, segment=head)
    if segment.footer_problem is not None:
        output.warn(f"logtool: {segment.footer_problem}")
    if damaged or segment.footer_problem is not None:
        raise Finding


def _dump_records(output: Output, segment: Segment, committed: int | None, template: str | None, decode: str) -> bool:
    if template is None and output.form == "table":
        template = RECORD_LINE
    printer = Printer(output, template, decode)
    damaged = False
    shown = segment if committed is None else dataclasses.replace(segment, end=min(segment.end, committed))
    for item in walk_segment(SystemFiles(), shown):
        if isinstance(item, Found):
            for record in records(item.data, item.start, item.end):
                printer.write(record)
        else:
            damaged = True
            output.warn(f"logtool: bytes {item.position} to {item.end} are damaged ({item.reason})")
    printer.end()
    return damaged


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
            "bytes": segment.size_bytes,
            "max_time": time_text(footer.max_timestamp_ms) if footer and footer.records else None,
        }


@dump.command("topic")
@click.argument("topic", metavar="TOPIC[:PARTITION]", shell_complete=complete_topic)
@click.pass_obj
def dump_topic(settings: Settings, topic: str) -> None:
    """Show the segments of TOPIC, of one partition when it is named, and what is committed."""
    output = settings.output
    reader = DirectoryReader(settings.need_directory())
    name, index = topic_and_partition(topic)
    stored = reader.topic(name)
    chosen = [index] if topic != name_text(stored.name) and ":" in topic else range(stored.partition_count)
    partitions = [reader.partition(stored, at) for at in chosen]
    head = {**bytes_fields("topic", stored.name), "id": stored.id, "partitions": stored.partition_count}
    head["created"] = time_text(stored.created_ms)
    head["config"] = stored.config
    marks = [
        {"partition": partition.index, "log_start": partition.log_start, "committed": partition.committed_seq}
        for partition in partitions
        if partition.segments
    ]
    items = [item for partition in partitions for item in segments_of(partition)]
    if output.form == "table":
        total = sum(item["bytes"] for item in items)
        output.fields({**head, "stored": size_text(total)})
        for mark in marks:
            text = f"partition {mark['partition']}: records {mark['log_start']} to {mark['committed']}\n"
            output.write(text.encode())
        output.write(b"\n")
    output.items(SEGMENT_COLUMNS, items, topic=head, partitions=marks)
