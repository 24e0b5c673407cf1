"""`cat` and `tail`: committed records from the files, beside a running server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from engine.errors import UnknownTopic
from engine.positions import EARLIEST, LATEST, Position
from engine.reader import DirectoryReader, Loss, PartitionReader
from tools.logtool.cli import Command, Settings
from tools.logtool.lib.completing import complete_topic
from tools.logtool.lib.errors import NOT_FOUND, USAGE, Failure, Finding
from tools.logtool.lib.output import Output
from tools.logtool.lib.positions import POSITION
from tools.logtool.lib.records import DECODES, Filter, Printer, parse_where, topic_and_partition

TAIL_RECORDS = 10
"""What `tail` begins with when it is told nothing else, as tail of files does."""
POLL_S = 0.05
"""How often `tail` looks at the watermarks: one read of 128 bytes."""


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def record_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `cat` and `tail` share; those that choose records come as one `wanted`."""

    @click.argument("topic", metavar="TOPIC[:PARTITION]", shell_complete=complete_topic)
    @click.option("--to", "to", type=POSITION, metavar="POS", help="Stop before this position.")
    @click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after N records.")
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
        wanted = Filter(_bytes(key), _bytes(contains), tuple(map(parse_where, where)))
        return function(wanted=wanted, **rest)

    return wrapped


class _Run:
    """One call: prints records of a partition, counts what was lost."""

    def __init__(self, output: Output, partition: PartitionReader, wanted: Filter, printer: Printer) -> None:
        self.output = output
        self.partition = partition
        self.wanted = wanted
        self.printer = printer
        self.losses = 0
        self.next_seq = 0

    def span(self, first_seq: int, end_seq: int, limit: int | None) -> int:
        """Prints the wanted records of a range; the number to go on with (`end_seq` or behind the limit)."""
        self.next_seq = first_seq
        while True:
            self._pass_removed()
            try:
                return max(self._span(self.next_seq, end_seq, limit), self.next_seq)
            except FileNotFoundError:  # a segment that retention removed
                self.partition.refresh()
                if self.partition.log_start <= self.next_seq:
                    raise

    def _pass_removed(self) -> None:
        """Says what retention has removed in front of the reader, once."""
        log_start = self.partition.log_start
        if log_start > self.next_seq:
            self.output.flush()
            self.output.warn(f"logtool: records {self.next_seq} to {log_start - 1} were removed meanwhile")
            self.next_seq = log_start

    def _span(self, first_seq: int, end_seq: int, limit: int | None) -> int:
        printer, write, render = self.printer, self.output.write, self.printer.render
        wants = None if self.wanted.everything else self.wanted.wants
        for item in self.partition.records(first_seq, end_seq):
            if isinstance(item, Loss):
                self.losses += 1
                self.next_seq = item.damage.last_seq + 1
                self.output.flush()
                self.output.warn(f"logtool: {item.text}")
                continue
            self.next_seq = item.seq + 1
            if wants is None or wants(item):
                try:
                    write(render(item))
                except ValueError as error:
                    raise Failure(
                        USAGE, "decode", f"record {item.seq}: {error}", "--decode names another form"
                    ) from error
                printer.count += 1
                if printer.count == limit:
                    return item.seq + 1
        return end_seq


def _open(settings: Settings, topic: str, template: str | None, decode: str, wanted: Filter) -> _Run:
    output = settings.output
    name, index = topic_and_partition(topic)
    reader = DirectoryReader(settings.need_directory())
    for problem in reader.damaged:
        output.warn(f"logtool: {problem}")
    try:
        stored = reader.topic(name)
    except UnknownTopic:
        from tools.logtool.lib.stored import find_topic  # one without a record is known to the state only

        stored = find_topic(reader, name)
    partition = reader.partition(stored, index)
    for problem in partition.unreadable:
        output.warn(f"logtool: {problem}")
    if stored.partition_count > 1 and topic.encode("utf-8", "surrogateescape") == name:
        output.note(f"logtool: partition 0 of {stored.partition_count}; {topic}:1 and so on name the others")
    return _Run(output, partition, wanted, Printer(output, template, decode))


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
    """Print the records of TOPIC from the files, up to what is committed when it begins.

    The value and a newline for each record, so that a file published by lines comes back as it was. POS is earliest,
    latest, a number, +N (after the first), -N (before the end), @2026-11-27T10:00Z, @SECONDS or @-1h.
    Damaged batches are named on stderr, the records behind them follow, and the exit code is 1.
    """
    run = _open(settings, topic, template, decode, wanted)
    partition = run.partition
    first = start.resolve(partition)
    _check_range(run.output, start, partition)
    try:
        run.span(first, (to or LATEST).resolve(partition), limit)
    finally:
        run.printer.end()
    if run.losses or (fail_empty and not run.printer.count):
        raise Finding


def _check_range(output: Output, start: Position, partition: PartitionReader) -> None:
    if start.kind == "seq" and start.value < partition.log_start and start != EARLIEST and start.value:
        output.note(f"logtool: records before {partition.log_start} are no longer there")
    if start.kind == "seq" and start.value > partition.committed_seq + 1:
        output.note(f"logtool: the log ends before {start.value}: its last record is {partition.committed_seq}")


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
    """Print the newest records of TOPIC from the files, then each new one as soon as it is committed.

    Follows until it is interrupted, or until --to or --limit is reached: --limit 3 prints the last three records.
    """
    run = _open(settings, topic, template, decode, wanted)
    partition = run.partition
    next_seq = (start or Position("before_end", limit or TAIL_RECORDS)).resolve(partition)
    end = None if to is None else to.resolve(partition)
    try:
        while True:
            committed_end = partition.committed_seq + 1
            stop = committed_end if end is None else min(end, committed_end)
            if next_seq < stop:
                next_seq = run.span(next_seq, stop, limit)
                run.output.flush()
            if (limit is not None and run.printer.count >= limit) or (end is not None and next_seq >= end):
                break
            _wait(partition)
    finally:
        run.printer.end()
    if run.losses:
        raise Finding


def _wait(partition: PartitionReader) -> None:
    """Until something more is committed. Raises Failure when the topic was deleted."""
    committed_seq = partition.committed_seq
    while partition.committed_seq == committed_seq:
        time.sleep(POLL_S)
        if partition.segments and not partition.directory.exists():
            raise Failure(NOT_FOUND, "deleted", f"{partition.directory} is gone: the topic was deleted")
        if partition.changed:
            partition.refresh()
