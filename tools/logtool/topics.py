"""`topics`: list, show, create, set, trim, delete."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

import click

from engine.positions import Extent, Position
from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import admin_of
from tools.logtool.lib.changes import changes, topic_path
from tools.logtool.lib.completing import complete_setting, complete_topic
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column, Output, count_text, name_text, number, say, size_text, time_text
from tools.logtool.lib.positions import POSITION
from tools.logtool.lib.records import topic_and_partition
from tools.logtool.lib.watching import watchable

LIST_COLUMNS = (
    Column("name", "TOPIC"),
    number("partitions"),
    number("first_offset", "FIRST"),
    number("next_offset", "NEXT"),
    number("size_bytes", "SIZE", size_text),
    Column("settings", "SETTINGS", show=lambda settings: " ".join(f"{k}={v}" for k, v in settings.items()) or "-"),
)
PARTITION_COLUMNS = (
    number("partition"),
    number("first_offset", "FIRST"),
    number("next_offset", "NEXT"),
    number("size_bytes", "SIZE", size_text),
    Column("error"),
)


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@click.group(cls=Group)
def topics() -> None:
    """List, show, make, change, trim and delete topics."""


def topic_items(settings: Settings, pattern: str | None) -> list[dict[str, Any]]:
    """The topics from the directory's files, or from the server when that is the address."""
    if settings.data_dir is None:
        admin = admin_of(settings)
        assert admin is not None
        path = "/v1/topics" + (f"?name={quote(pattern, errors='surrogateescape')}" if pattern else "")
        found = admin.call("GET", path).get("items", [])
        return list(found)
    from engine.reader import DirectoryReader
    from tools.logtool.lib.stored import stored_topics, topic_item

    reader = DirectoryReader(settings.data_dir)
    chosen = [
        topic
        for topic in stored_topics(reader)
        if pattern is None or fnmatchcase(topic.name.decode("utf-8", "surrogateescape"), pattern)
    ]
    items = [topic_item(reader, topic) for topic in chosen]
    for problem in reader.damaged:
        settings.output.warn(f"logtool: {problem}")
    return items


def _summary(item: dict[str, Any]) -> dict[str, Any]:
    """A line of the list: offsets only where one partition makes them meaningful."""
    details = item.get("partition_details", [])
    known = [detail for detail in details if "next_offset" in detail]
    line: dict[str, Any] = {
        key: item[key] for key in ("name", "name_base64", "id", "partitions", "settings") if key in item
    }
    if item["partitions"] == 1 and len(known) == len(details):
        line["first_offset"] = known[0]["first_offset"] if known else 1
        line["next_offset"] = known[0]["next_offset"] if known else 1
    if len(known) == len(details):
        line["size_bytes"] = sum(detail["size_bytes"] for detail in known)
    return line


@topics.command("list")
@click.argument("pattern", metavar="[GLOB]", required=False)
@watchable
@click.pass_obj
def list_topics(settings: Settings, pattern: str | None) -> None:
    """List the topics, or those whose name matches GLOB (*, ?, [..]). From files or server.

    FIRST and NEXT are offsets of the only partition; of several `topics show` has them.
    """
    lines = [_summary(item) for item in topic_items(settings, pattern)]
    if settings.output.form == "table":
        for line in lines:
            line["name"] = name_text(name_of(line))
    settings.output.items(LIST_COLUMNS, lines)


def name_of(item: dict[str, Any]) -> bytes:
    """A topic's name, from its form in documents. Raises ValueError: its base64 is none."""
    if "name_base64" in item:
        return base64.b64decode(item["name_base64"], validate=True)
    return _name(item["name"])


@topics.command()
@click.argument("topic", shell_complete=complete_topic)
@click.pass_obj
def show(settings: Settings, topic: str) -> None:
    """Show one TOPIC: settings and partitions. From files or server."""
    name, output = _name(topic), settings.output
    item = _show_item(settings, name)
    details = item.pop("partition_details", [])
    item["created"] = time_text(item.pop("created_ms", 0))
    if output.form in ("json", "jsonl"):
        output.items([], [item | {"partition_details": details}])
        return
    if output.form == "table":
        item["settings"] = item.get("settings") or "-"
        output.fields({"name": name_text(name), **{key: value for key, value in item.items() if key != "name"}})
        output.write(b"\n")
    output.items(
        PARTITION_COLUMNS[:-1] if not any("error" in detail for detail in details) else PARTITION_COLUMNS, details
    )
    empty = item["partitions"] - len(details)
    if empty and output.form == "table":
        others = "others" if details else "partitions" if empty > 1 else "partition"
        output.write(f"{'the ' if details else ''}{empty} {others} without records\n".encode())


def topic_of(item: dict[str, Any]) -> bytes:
    """The topic's name in a document about something else; empty: the topic was deleted."""
    if "topic_base64" in item:
        return base64.b64decode(item["topic_base64"])
    return (item["topic"] or "").encode()


def _show_item(settings: Settings, name: bytes) -> dict[str, Any]:
    if settings.data_dir is None:
        admin = admin_of(settings)
        assert admin is not None
        return admin.call("GET", topic_path(name))
    from engine.reader import DirectoryReader
    from tools.logtool.lib.stored import find_topic, topic_item

    reader = DirectoryReader(settings.data_dir)
    return topic_item(reader, find_topic(reader, name))


def _parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    parsed = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{pair!r}: expected KEY=VALUE, for example retention=7d")
        parsed[key] = value
    return parsed


@topics.command()
@click.argument("topic")
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_setting)
@click.option("--partitions", type=click.IntRange(1), default=1, metavar="N", help="How many partitions; 1.")
@click.pass_obj
def create(settings: Settings, topic: str, pairs: tuple[str, ...], partitions: int) -> None:
    """Make a TOPIC, with settings of its own. Through the server, or on the files when none is running.

    Settings: durability, sync_interval, retention, retention_bytes, retention_records, segment_bytes,
    segment_age, record_bytes_max. Sizes and durations have units (128MiB, 7d); a bare number counts bytes or
    milliseconds.
    """
    config = _parse_settings(pairs)
    with changes(settings) as change:
        change.create(_name(topic), partitions, config)
    _done(settings.output, f"made {topic}", topic=topic)


@topics.command("set")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True, shell_complete=complete_setting)
@click.pass_obj
def set_settings(settings: Settings, topic: str, pairs: tuple[str, ...]) -> None:
    """Change settings of TOPIC; KEY=default follows the server's default again. Through the server, or on the files."""
    config = _parse_settings(pairs)
    with changes(settings) as change:
        change.configure(_name(topic), config)
    _done(settings.output, f"changed {topic}", topic=topic)


def _done(output: Output, text: str, **fields: Any) -> None:
    if output.form == "table":
        output.note(text)
    else:
        output.items([Column(key) for key in fields], [fields])


@dataclass
class ServerExtent:
    """What the server tells of a partition, for positions; it is not asked for times."""

    log_start: int
    committed_seq: int
    records: int | None = None
    """Between the two; None: it does not know."""

    def seq_before_end(self, count: int) -> int:
        """Raises Failure: numbers were left out between, the server does not say where."""
        if self.records != self.committed_seq + 1 - self.log_start:
            text = "the server does not tell how many records there are after a number of this partition"
            raise Failure(errors.USAGE, "position", text, "give a number, or --data-dir")
        return self.committed_seq + 1 - count

    def seq_after_first(self, count: int) -> int:
        """As `seq_before_end`."""
        return min(self.committed_seq + 1, self.seq_before_end(self.records or 0) + count)

    def seq_at_time(self, timestamp_ms: int) -> int:
        """Always a Failure."""
        raise Failure(errors.USAGE, "position", "a time as position needs the files: give --data-dir")


def extent(settings: Settings, name: bytes, index: int) -> Extent:
    """Where a partition begins and ends, for positions. Raises Failure, EngineError."""
    if settings.data_dir is not None:
        from engine.reader import DirectoryReader
        from tools.logtool.lib.stored import find_topic

        reader = DirectoryReader(settings.data_dir)
        return reader.partition(find_topic(reader, name), index)
    for detail in _show_item(settings, name).get("partition_details", []):
        if detail["partition"] == index and "next_offset" in detail:
            return ServerExtent(detail["first_offset"], detail["next_offset"] - 1, detail.get("records"))
    return ServerExtent(1, 0, 0)


@topics.command()
@click.argument("topic", metavar="TOPIC[:PARTITION]", shell_complete=complete_topic)
@click.option("--before", type=POSITION, required=True, metavar="POS", help="The first record to keep.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.pass_obj
def trim(settings: Settings, topic: str, before: Position, dry_run: bool) -> None:
    """Remove the records of TOPIC before a position.

    They can no longer be read from then on; whole segment files that lie before it are removed a minute later.
    """
    name, index = topic_and_partition(topic)
    around = extent(settings, name, index)
    first_kept = min(before.resolve(around), around.committed_seq + 1)
    if first_kept <= around.log_start:
        _done(settings.output, f"nothing lies before {first_kept}", topic=topic, first=around.log_start, segments=0)
        return
    plan = f"records {around.log_start} to {first_kept - 1} of {topic}"
    if dry_run:
        settings.output.note(f"would go: {plan}")
        _done(settings.output, "nothing was changed", topic=topic, first=first_kept)
        return
    confirm(settings, f"{plan} will be removed", topic)
    with changes(settings) as change:
        segments = change.trim(name, index, first_kept)
    _done(
        settings.output,
        f"removed {plan}: {count_text(segments, 'segment')}",
        topic=topic,
        first=first_kept,
        segments=segments,
    )


@topics.command()
@click.argument("topic", shell_complete=complete_topic)
@click.pass_obj
def delete(settings: Settings, topic: str) -> None:
    """Delete TOPIC and all its records. A topic made with its name later starts over."""
    name = _name(topic)
    details = _show_item(settings, name).get("partition_details", [])
    size = sum(detail.get("size_bytes", 0) for detail in details)
    confirm(settings, f"topic {topic} will be deleted ({size_text(size)})", topic)
    with changes(settings) as change:
        change.delete(name)
    _done(settings.output, f"deleted {topic}", topic=topic)


def confirm(settings: Settings, what: str, name: str) -> None:
    """Asks for the name before something is lost. Raises Failure: not confirmed, or nobody to ask."""
    if settings.yes:
        return
    if settings.no_input or not sys.stdin.isatty():
        raise Failure(errors.USAGE, "unconfirmed", f"{what}; say --yes if that is meant")
    say(what)
    if click.prompt("Type the name to go on", err=True) != name:
        raise Failure(errors.USAGE, "unconfirmed", "that is another name; nothing was changed")
