"""`cat` and `tail`: committed records, from the files of a log or from a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from urllib.parse import quote

import click

from engine.errors import UnknownTopic
from engine.positions import LATEST, Position
from engine.reader import DirectoryReader
from netserver.http.query import Filter
from tools.logtool.cli import Command, Settings
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.completing import complete_topic
from tools.logtool.lib.errors import USAGE, Failure, Finding
from tools.logtool.lib.positions import POSITION
from tools.logtool.lib.progress import SearchProgress
from tools.logtool.lib.record_sources import Files, Gap, Item, Scanned, Served, Source, limited, newest
from tools.logtool.lib.records import DECODES, Printer, named_partition, where_option

TAIL_RECORDS = 10
"""What `tail` begins with when it is told nothing else, as tail of files does."""


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def record_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `cat` and `tail` share; those that choose records come as one `wanted`."""

    @click.argument("topic", metavar="TOPIC[:PARTITION]", shell_complete=complete_topic)
    @click.option("--to", "to", type=POSITION, metavar="POS", help="Stop before this position.")
    @click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="Stop after N records.")
    @click.option("--key", metavar="KEY", help="Only records with this key.")
    @click.option("--contains", metavar="TEXT", help="Only records whose value holds this text.")
    @click.option("--where", multiple=True, metavar="/POINTER=V", help="Only JSON values with V at this JSON pointer.")
    @click.option(
        "--format",
        "template",
        metavar="TEXT",
        help=r"%o offset, %t time, %T ms, %k key, %v value, %s size, \n \t \0; '%v\n' unless -o says otherwise.",
    )
    @click.option("--decode", type=click.Choice(DECODES), default="auto", help="How keys and values are shown.")
    @wraps(function)
    def wrapped(key: str | None, contains: str | None, where: tuple[str, ...], **rest: Any) -> Any:
        wanted = Filter(_bytes(key), _bytes(contains), tuple(map(where_option, where)))
        return function(wanted=wanted, **rest)

    return wrapped


class _Run:
    """One call: where its records come from and how they are printed."""

    def __init__(self, settings: Settings, topic: str, template: str | None, decode: str) -> None:
        self.output = settings.output
        name, index = named_partition(topic)
        files = settings.data_dir is not None
        count, self._source = (self._files if files else self._served)(settings, name, index)
        if index is None and count > 1:
            self.output.note(f"logtool: all {count} partitions, by time; {topic}:0 and so on name one")
        self.printer = Printer(self.output, template, decode, tells_partition=index is None and count > 1)
        self.has_losses = False

    def _files(self, settings: Settings, name: bytes, index: int | None) -> tuple[int, Source]:
        reader = DirectoryReader(settings.need_directory())
        for problem in reader.damaged:
            self.output.warn(f"logtool: {problem}")
        try:
            stored = reader.topic(name)
        except UnknownTopic:
            from tools.logtool.lib.stored import find_topic  # one without a record is known to the state only

            stored = find_topic(reader, name)
        indexes = range(stored.partition_count) if index is None else [index]
        partitions = [reader.partition(stored, one) for one in indexes]
        for partition in partitions:
            for trouble in partition.unreadable:
                self.output.warn(f"logtool: {trouble}")
        return stored.partition_count, Files(partitions)

    def _served(self, settings: Settings, name: bytes, index: int | None) -> tuple[int, Source]:
        admin = need_admin(settings)
        topic = admin.call("GET", f"/v1/topics/{quote(name, safe='')}")
        return int(topic["partitions"]), Served(admin, name, index)

    def cat(self, start: Position, end: Position | None, wanted: Filter, limit: int | None) -> None:
        """Prints what is there. Raises Finding: some records are damaged."""
        if limit == 0:
            return
        self._print(self._source.records(start, end, wanted, limit, follow=False))

    def tail(self, start: Position | None, end: Position | None, wanted: Filter, limit: int | None) -> None:
        """Prints the newest, or those from a position on, and what comes. Raises Finding: some are damaged."""
        if limit == 0:  # none of the old ones, as tail of files takes it
            start, limit = start or LATEST, None
        if start is not None:
            self._print(self._source.records(start, end, wanted, limit, follow=True))
            return
        count = limit or TAIL_RECORDS
        begin = Position("before_end", count, f"-{count}")
        self._print(limited(newest(self._source.records(begin, end, wanted, None, follow=True), count), limit))

    def _print(self, items: Iterator[Item]) -> None:
        printer, write = self.printer, self.printer.write
        progress = SearchProgress(self.output)
        try:
            for item in items:
                if isinstance(item, Scanned):
                    progress.show(item.scanned, item.total, printer.count)
                elif isinstance(item, tuple):
                    progress.clear()
                    try:
                        write(item[1], item[0])
                    except ValueError as error:
                        text = f"record {item[1].seq}: {error}"
                        raise Failure(USAGE, "decode", text, "--decode names another form") from error
                elif item is None:
                    self.output.flush()
                else:
                    self.output.flush()
                    self._tell(item)
        finally:
            progress.end(printer.count)
            printer.end()
        if self.has_losses:
            raise Finding

    def _tell(self, gap: Gap) -> None:
        self.has_losses |= gap.is_loss
        (self.output.note if gap.is_note else self.output.warn)(f"logtool: {gap.text}")


@click.command(cls=Command)
@record_options
@click.option("--from", "start", type=POSITION, default="earliest", metavar="POS", help="Begin here; earliest.")
@click.option("--fail-empty", is_flag=True, help="Exit 1 when no record was printed.")
@click.pass_obj
def cat(
    settings: Settings,
    topic: str,
    start: Position,
    to: Position | None,
    limit: int | None,
    wanted: Filter,
    template: str | None,
    decode: str,
    fail_empty: bool,
) -> None:
    """Print the records of TOPIC, up to what is committed when it begins.

    The value and a newline for each record, so that a file published by lines comes back as it was. POS is earliest,
    latest, a number, +N (after the first), -N (before the end), @2026-11-27T10:00Z, @SECONDS or @-1h.
    Damaged batches are named on stderr, the records behind them follow, and the exit code is 1.
    """
    run = _Run(settings, topic, template, decode)
    run.cat(start, to, wanted, limit)
    if fail_empty and not run.printer.count:
        raise Finding


@click.command(cls=Command)
@record_options
@click.option("--from", "start", type=POSITION, metavar="POS", help="Begin here; -10, with --limit N: -N.")
@click.pass_obj
def tail(
    settings: Settings,
    topic: str,
    start: Position | None,
    to: Position | None,
    limit: int | None,
    wanted: Filter,
    template: str | None,
    decode: str,
) -> None:
    """Print the newest records of TOPIC, then each new one as soon as it is committed.

    Follows until it is interrupted, or until --to or --limit is reached: --limit 3 prints the last three records,
    --limit 0 none of those that are there, and follows.
    """
    run = _Run(settings, topic, template, decode)
    run.tail(start, to, wanted, limit)
