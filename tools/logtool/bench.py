"""`bench`: how fast a server is through one protocol, with the clients of this package."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import click

from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import Admin, Listener, listener_of, need_admin
from tools.logtool.lib.completing import complete_protocol, complete_topic
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import BENCH_RECORDS_MAX
from tools.logtool.lib.loads import SHARED_POSITION, Load
from tools.logtool.lib.output import Output, bytes_fields, count_text, name_text, size_text
from tools.logtool.lib.records import topic_and_partition
from tools.logtool.publish import Progress, connect, parse_via, watched, why_nothing_is_stored
from tools.logtool.topics import confirm, topic_of

READER: dict[str, dict[str, Any]] = {"blipmq": {"version": 2}}
"""Of a client that reads: a subscription of version 1 would stay, and collect, when the measurement is over."""
DURABILITIES = ("always", "interval", "never")
MEANINGS = {
    "always": "always: acknowledged when the record is on disk",
    "interval": "interval: acknowledged when it is written; on disk a little later",
    "never": "never: acknowledged when it is written; on disk when the system wants",
}


@click.group(cls=Group)
def bench() -> None:
    """Measure a server through one protocol: publishing, reading history, the time of single records.

    The clients are this package's own, one connection, one process: they may well be slower than the server. With many
    records on their way that measures client and server together.
    """


@dataclass(frozen=True, slots=True)
class Options:
    """What the commands are given."""

    via: str
    records: int
    size: int
    topic: str | None
    durability: str | None
    window: int = 16
    """This many where there is no such option."""


def _options(records: int, window: int | None) -> Callable[[Callable[[Settings, Options], None]], Callable[..., None]]:
    """The options that the commands share, as one argument; `window` None: there is none."""

    def add(command: Callable[[Settings, Options], None]) -> Callable[..., None]:
        @click.pass_obj
        @functools.wraps(command)
        def with_options(settings: Settings, /, **given: Any) -> None:
            command(settings, Options(**given))

        options = [
            click.option(
                "--via",
                metavar="PROTOCOL[=HOST:PORT]",
                default="figg",
                shell_complete=complete_protocol,
                help="figg (default), tank, blipmq or fujin.",
            ),
            click.option(
                "--records",
                type=click.IntRange(1, BENCH_RECORDS_MAX),
                default=records,
                metavar="N",
                help=f"How many; {records}.",
            ),
            click.option(
                "--size", type=click.IntRange(1, 250 << 20), default=100, metavar="BYTES", help="Of each; 100."
            ),
            click.option(
                "--topic",
                metavar="TOPIC",
                shell_complete=complete_topic,
                help="One that is there; by default one is made, and deleted.",
            ),
            click.option(
                "--durability",
                type=click.Choice(DURABILITIES),
                help="Of the topic that is made: when a record is acknowledged; always.",
            ),
        ]
        if window is not None:
            text = f"Records on their way at once; {window}."
            options.append(
                click.option("--window", type=click.IntRange(1), default=window, metavar="N", help=text),
            )
        decorated: Callable[..., None] = with_options
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return add


def _target(options: Options, settings: Settings, *, reads: bool = False) -> tuple[str, Listener]:
    """Protocol and listener. Raises click.UsageError, Failure."""
    protocol, address = parse_via(options.via)
    if protocol == "kafka":
        raise click.BadParameter("'kafka': measure it by its own clients", param_hint="--via")
    if reads and protocol in SHARED_POSITION and options.topic is not None:
        raise click.UsageError(f"reading {options.topic} through {protocol} would move its readers: leave --topic out")
    if address and settings.data_dir is None and settings.server is None:
        text = f"which log listens at {address}? Name it with --data-dir DIR or --server URL: the topic is made there"
        raise click.UsageError(text)
    return protocol, Listener(address) if address else listener_of(settings, protocol)


@contextlib.contextmanager
def _topic(settings: Settings, options: Options, *, writes: bool) -> Iterator[tuple[bytes, str, int]]:
    """A topic to work with: name, what an acknowledgement means in it, how many records partition 0 has.

    Args:
        writes: records are published to it. One that is in use gets none without a word for it.

    Raises:
        click.UsageError: options that exclude each other. Failure: no server, no such topic, not confirmed.
    """
    named, durability = options.topic, options.durability
    from tools.logtool.lib.changes import topic_path

    admin = need_admin(settings, "a server is what is measured")
    if named is not None:
        if durability is not None:
            raise click.UsageError("--durability is for the topic that is made: --topic has one already")
        name, partition = topic_and_partition(named)
        if partition:
            raise click.UsageError("only partition 0 is measured")
        item = admin.call("GET", topic_path(name))
        known = [detail for detail in item.get("partition_details", []) if "next_offset" in detail]
        present = sum(
            one.get("records", one["next_offset"] - one["first_offset"]) for one in known if one["partition"] == 0
        )
        if writes:
            _confirm(settings, admin, name, options.records, present)
        yield name, MEANINGS[item["config"]["durability"]], present
        return
    durability = durability or "always"
    name = f"bench-{secrets.token_hex(4)}".encode()
    admin.call("POST", "/v1/topics", {**bytes_fields("name", name), "config": {"durability": durability}})
    try:
        yield name, MEANINGS[durability], 0
    finally:
        try:
            admin.call("DELETE", topic_path(name))
        except Failure as failure:
            settings.output.warn(f"logtool: topic {name_text(name)} is left over: {failure}")


def _confirm(settings: Settings, admin: Admin, name: bytes, records: int, present: int) -> None:
    """Asks before records get into a topic that somebody uses. Raises Failure: not confirmed."""
    readers = sum(topic_of(item) == name for item in admin.call("GET", "/v1/subscriptions").get("items", []))
    if present or readers:
        uses = f"{count_text(present, 'record')} and {count_text(readers, 'durable subscription')}"
        what = f"{count_text(records, 'record')} of a measurement will be published to {name_text(name)}"
        confirm(settings, f"{what}, which has {uses}", name_text(name))


def _run(settings: Settings, work: Coroutine[Any, Any, None], load: Load, what: str) -> None:
    """Runs one part of a load. Raises KeyboardInterrupt, Failure, QuintlogError."""

    async def main() -> None:
        await watched(
            work,
            load.progress,
            settings.timeout_s,
            lambda: why_nothing_is_stored(settings, load.topic, 0),
            settings.output,
        )

    try:
        asyncio.run(main())
    except TimeoutError as error:
        text = f"{what}: nothing came within {settings.timeout_s:g} s"
        raise Failure(errors.TIMEOUT, "timeout", text, "--timeout S waits longer") from error
    finally:
        load.progress.tick(last=True)


def _report(output: Output, measured: str, address: str, meaning: str, load: Load, done: int, size: int) -> None:
    """What was measured: all of it, or what was done until it was interrupted."""
    seconds = (load.ended or time.perf_counter()) - load.started if load.started else 0.0
    shown = output.form == "table"
    item: dict[str, Any] = {
        "measured": measured,
        "via": f"{load.protocol} {address}",
        "durability": meaning if shown else meaning.partition(":")[0],
        "records": done,
        "record_bytes": size,
        "seconds": round(seconds, 6),
        "records_per_second": round(done / seconds) if seconds else 0,
        "bytes_per_second": round(done * size / seconds) if seconds else 0,
        **load.acknowledgements.item("ack"),
        **load.deliveries.item("delivery"),
    }
    output.fields(
        item, {"bytes_per_second": size_text, "records_per_second": "{:,}".format, "seconds": "{:.3f}".format}
    )


def _measure(
    settings: Settings, load: Load, work: Coroutine[Any, Any, None], measured: str, address: str, meaning: str
) -> None:
    """Runs and reports; what was interrupted is reported as far as it came."""
    reading = measured == "consume"

    def report() -> None:
        done = load.read if reading else load.progress.acknowledged
        size = load.read_bytes // max(load.read, 1) if reading else load.size_bytes
        _report(settings.output, measured, address, meaning, load, done, size)

    try:
        _run(settings, work, load, measured)
    except KeyboardInterrupt:
        report()
        raise
    report()


@bench.command()
@_options(100_000, 4096)
def publish(settings: Settings, options: Options) -> None:
    """Publish records as fast as the window lets it, and wait for every acknowledgement.

    Shows records a second, and how long acknowledgements took: the time from sending a group of 256 records (through
    BlipMQ: each record) until it was acknowledged, in percentiles. A larger window means more a second and longer
    times.
    """
    protocol, listener = _target(options, settings)
    with _topic(settings, options, writes=True) as (name, meaning, _):
        client = connect(protocol, listener, settings, options.window, 0.0)
        load = Load(protocol, client, name, options.records, options.size, Progress(settings.output))
        _measure(settings, load, load.publish(), "publish", listener.address, meaning)


@bench.command()
@_options(100_000, 4096)
def consume(settings: Settings, options: Options) -> None:
    """Read a topic from its first record, as fast as it goes.

    The topic that is made is filled first, which is not measured; of --topic the first N records are read. Through
    Fujin only the topic that is made: a reader moves the position of its group, which may be somebody's.
    """
    protocol, listener = _target(options, settings, reads=True)
    with _topic(settings, options, writes=False) as (name, meaning, present):
        progress, records = Progress(settings.output), options.records
        if options.topic is None:
            if protocol in SHARED_POSITION:
                early = connect(protocol, listener, settings, options.window, 0.0)
                beginning = Load(protocol, early, name, 0, options.size, progress)
                _run(settings, beginning.begin_group(), beginning, "reading the empty topic")
            client = connect(protocol, listener, settings, options.window, 0.0)
            filling = Load(protocol, client, name, options.records, options.size, progress)
            _run(settings, filling.publish(), filling, "filling the topic")
        elif not present:
            raise Failure(errors.NOT_FOUND, "empty", f"topic {options.topic} has no records in partition 0")
        else:
            records = min(records, present)
        reader = connect(protocol, listener, settings, options.window, 0.0, **READER.get(protocol, {}))
        load = Load(protocol, reader, name, records, options.size, progress)
        _measure(settings, load, load.consume(settings.timeout_s), "consume", listener.address, meaning)


@bench.command()
@_options(1000, None)
def latency(settings: Settings, options: Options) -> None:
    """Publish one record at a time, and show how long each took.

    ack is the time until the publisher has the acknowledgement, delivery the time until a subscriber on the same
    connection has the record. The next one is sent when both are there. Through Fujin only in the topic that is made: a
    reader moves the position of its group, which may be somebody's.
    """
    protocol, listener = _target(options, settings, reads=True)
    with _topic(settings, options, writes=True) as (name, meaning, _):
        client = connect(protocol, listener, settings, options.window, 0.0, **READER.get(protocol, {}))
        load = Load(protocol, client, name, options.records, options.size, Progress(settings.output))
        _measure(settings, load, load.latency(settings.timeout_s), "latency", listener.address, meaning)
