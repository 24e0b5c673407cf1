"""`top`: what the server is doing right now, by protocol and topic, from its metrics."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import Admin, need_admin
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column, Output, name_text, number, size_text

if TYPE_CHECKING:
    from rich.console import RenderableType

PREFIX = "quintlog_"
TOPICS_SHOWN = 10
EVERY_S = 2.0
OTHERS = "_other"
"""The server's name for the topics together that it has no series of their own for."""

Sums = dict[str, dict[str, float]]
"""By name of a metric (without PREFIX) and value of its label: the sum of its samples."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's counters at one moment; `at_s` is of a clock that never goes back."""

    at_s: float
    server: Sums
    topics: Sums

    @classmethod
    def take(cls, admin: Admin) -> Sample:
        """Asks the server. Raises Failure: not reachable, or it has no such page."""
        server = _page(admin, "/metrics", ("protocol", "kind"))
        return cls(time.monotonic(), server, _page(admin, "/metrics/topics", ("topic",)))


def _page(admin: Admin, path: str, labels: tuple[str, ...]) -> Sums:
    from prometheus_client.parser import text_string_to_metric_families

    text = admin.text(path)
    sums: Sums = defaultdict(lambda: defaultdict(float))
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    label = next((sample.labels[name] for name in labels if name in sample.labels), "")
                    sums[sample.name.removeprefix(PREFIX)][label] += sample.value
    except ValueError as error:
        raise Failure(errors.UNREACHABLE, "server", f"{admin.url}{path}: no metrics ({error})") from error
    return sums


@dataclass(frozen=True, slots=True)
class Picture:
    """What happened between two samples."""

    before: Sample
    after: Sample

    @property
    def seconds(self) -> float:
        """Between them."""
        return max(self.after.at_s - self.before.at_s, 1e-9)

    def now(self, name: str) -> float:
        """A gauge's sum over its labels."""
        return sum(self.after.server.get(name, {}).values())

    def rose(self, name: str, label: str | None = None) -> float:
        """How far a counter rose; from 0 when the server was started in between. `label` None: all of them."""
        before, after = (sample.server.get(name, {}) for sample in (self.before, self.after))
        wanted = after if label is None else [label]
        return sum(_rise(before.get(key, 0.0), after.get(key, 0.0)) for key in wanted)

    def per_second(self, name: str, label: str | None = None) -> float:
        """The same for each second."""
        return round(self.rose(name, label) / self.seconds, 1)

    def mean_ms(self, name: str, label: str | None = None) -> float | None:
        """The mean of a histogram of seconds; None: nothing happened."""
        count = self.rose(f"{name}_count", label)
        return round(self.rose(f"{name}_sum", label) / count * 1000, 3) if count else None

    def server(self) -> dict[str, Any]:
        """The server as a whole."""
        return {
            "seconds": round(self.seconds, 3),
            "published_per_second": self.per_second("records_published_total"),
            "delivered_per_second": self.per_second("records_delivered_total"),
            "syncs_per_second": self.per_second("sync_seconds_count", "data"),
            "sync_mean_ms": self.mean_ms("sync_seconds", "data"),
            "pending_bytes": round(self.now("pending_bytes")),
            "disk_free_bytes": round(self.now("disk_free_bytes")),
            "connections": round(self.now("connections")),
            "partitions_read_only": round(self.now("partitions_read_only")),
            "sync_failures": round(self.now("sync_failures_total")),
            "damaged_batches": round(self.now("damaged_batches_total")),
        }

    def protocols(self) -> list[dict[str, Any]]:
        """A line for each protocol, in the server's order."""
        return [
            {
                "protocol": protocol,
                "connections": round(self.after.server.get("connections", {}).get(protocol, 0)),
                "published_per_second": self.per_second("records_published_total", protocol),
                "published_bytes_per_second": round(self.per_second("published_bytes_total", protocol)),
                "ack_mean_ms": self.mean_ms("publish_ack_seconds", protocol),
                "delivered_per_second": self.per_second("records_delivered_total", protocol),
                "delivered_bytes_per_second": round(self.per_second("delivered_bytes_total", protocol)),
            }
            for protocol in self.after.server.get("records_published_total", {})
        ]

    def topics(self) -> list[dict[str, Any]]:
        """The topics that grow fastest, then the largest ones."""
        first, last = (sample.topics.get("topic_records_ever", {}) for sample in (self.before, self.after))
        sizes = self.after.topics.get("topic_bytes", {})
        lines: list[dict[str, Any]] = [
            {
                "topic": topic,
                "published_per_second": round(max(records - first.get(topic, records), 0.0) / self.seconds, 1),
                "size_bytes": round(sizes.get(topic, 0)),
            }
            for topic, records in last.items()
            if topic != OTHERS
        ]
        lines.sort(key=lambda line: (-line["published_per_second"], -line["size_bytes"], line["topic"]))
        return lines[:TOPICS_SHOWN]


def _rise(before: float, after: float) -> float:
    return after - before if after >= before else after


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:,.1f}"


def _ms(value: float) -> str:
    return f"{value:.2f}"


PROTOCOLS = (
    Column("protocol"),
    number("connections"),
    number("published_per_second", "PUBLISHED/S", _rate),
    number("published_bytes_per_second", "BYTES/S", size_text),
    number("ack_mean_ms", "ACK MS", _ms),
    number("delivered_per_second", "DELIVERED/S", _rate),
    number("delivered_bytes_per_second", "BYTES/S", size_text),
)
TOPICS = (
    Column("topic", show=lambda name: name_text(name.encode("utf-8", "surrogateescape"))),
    number("published_per_second", "PUBLISHED/S", _rate),
    number("size_bytes", "SIZE", size_text),
)


def _headline(server: dict[str, Any]) -> str:
    sync = "" if server["sync_mean_ms"] is None else f" of {_ms(server['sync_mean_ms'])} ms"
    parts = [
        f"published {_rate(server['published_per_second'])}/s",
        f"delivered {_rate(server['delivered_per_second'])}/s",
        f"syncs {_rate(server['syncs_per_second'])}/s{sync}",
        f"pending {size_text(server['pending_bytes'])}",
        f"disk free {size_text(server['disk_free_bytes'])}",
    ]
    trouble = [
        f"{server[key]} {text}"
        for key, text in (
            ("partitions_read_only", "partitions read-only"),
            ("sync_failures", "syncs failed"),
            ("damaged_batches", "damaged batches"),
        )
        if server[key]
    ]
    return ", ".join(parts + trouble)


def _write(output: Output, picture: Picture) -> None:
    """One picture, without a live terminal."""
    server = picture.server()
    if output.form == "csv":
        output.items(PROTOCOLS, picture.protocols())
    elif output.form != "table":
        output.items([], [server | {"protocols": picture.protocols(), "topics": picture.topics()}])
    else:
        output.write(_headline(server).encode() + b"\n\n")
        output.items(PROTOCOLS, picture.protocols())
        topics = picture.topics()
        if topics:
            output.write(b"\n")
            output.items(TOPICS, topics)


def _table(columns: tuple[Column, ...], items: Iterable[dict[str, Any]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for item in items:
        cells = ("-" if item[column.key] is None else column.show(item[column.key]) for column in columns)
        table.add_row(*map(Text, cells))
    return table


def _live(pictures: Iterator[Picture], url: str) -> None:
    """Replaces the picture on the terminal, until it is interrupted; the last one stays."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(Text(f"{url}: measuring"), console=Console(file=sys.stdout), auto_refresh=False) as live:
        for picture in pictures:
            parts = [Text(_headline(picture.server())), Text(""), _table(PROTOCOLS, picture.protocols())]
            topics = picture.topics()
            if topics:
                parts += [Text(""), _table(TOPICS, topics)]
            live.update(Group(*parts), refresh=True)


def _pictures(admin: Admin, every_s: float) -> Iterator[Picture]:
    """One after each interval. Raises Failure: the server does not answer, or not any more."""
    before = Sample.take(admin)
    while True:
        time.sleep(every_s)
        after = Sample.take(admin)
        yield Picture(before, after)
        before = after


@click.command(cls=Command)
@click.option("--once", is_flag=True, help="One picture, measured over --every, and end.")
@click.option("--every", type=click.FloatRange(0.05), default=EVERY_S, metavar="S", help="Seconds of one picture; 2.")
@click.pass_obj
def top(settings: Settings, once: bool, every: float) -> None:
    """Show what the server is doing: records a second, acknowledgement times, the busiest topics. From the server.

    On a terminal the picture is replaced every --every seconds until Ctrl-C; elsewhere, and with -o jsonl, one follows
    the other. ACK MS is the mean time from a record's arrival until it is acknowledged. Of many topics the 10 that
    grow fastest are shown. -o csv has the protocols only.
    """
    output = settings.output
    admin = need_admin(settings, "`logtool status` shows what the files say")
    pictures = _pictures(admin, every)
    if once:
        _write(output, next(pictures))
        return
    if output.form == "json":
        raise click.UsageError("-o json is one document: add --once or use -o jsonl")
    if output.form == "table" and output.on_terminal:
        _live(pictures, admin.url)
        return
    for at, picture in enumerate(pictures):
        if at and output.form == "table":
            output.write(b"\n")
        _write(output, picture)
