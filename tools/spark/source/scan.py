"""`quintlog.scan`: records as Arrow record batches, for any tool that takes them. Spark is not needed.

The same plan and the same reader as Spark's: every hash is checked before a record of its batch counts. What is read is
fixed when `scan` is called; files are then read as far as the caller asks for more, a few MiB in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeAlias

import pyarrow as pa

from engine.positions import Position, parse
from tools.spark.source.arrow import TYPES, arrow_schema
from tools.spark.source.options import OptionError, Options, as_documented
from tools.spark.source.options import parse as parse_options
from tools.spark.source.plan import Key, Planner
from tools.spark.source.reading import TaskReader

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
"""Unless others are named; there are also headers and timestampType."""

Place: TypeAlias = int | str | datetime
"""A position, as `logtool` takes them, or as a number or time of Python's."""


def scan(
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    start: Place = "earliest",
    end: Place = "latest",
    columns: Sequence[str] | None = None,
    *,
    archive: str | os.PathLike[str] | None = None,
    skip_damage: bool = False,
) -> pa.RecordBatchReader:
    """The committed records of a data directory or an archive, by topic, partition and number.

    ::

        duckdb.from_arrow(quintlog.scan("data", "orders")).aggregate("count(*)")

    Args:
        path: a data directory, beside its server or without one; or an archive, a directory or a URI (``s3://...``).
        topics: a name, or several; all by default.
        start: where to begin in each partition: a number, a time (without a zone it is UTC), or text as `logtool` takes
            it: ``earliest``, ``latest``, ``123``, ``+10``, ``-10``, ``@2026-11-27T10:00Z``, ``@-1h``.
        end: where to end, likewise; what is there is not included.
        columns: any of topic, partition, offset, timestamp, key, value, headers, timestampType; only these are made.
            By default all but the last two.
        archive: where the directory's segments are archived; what retention has removed comes from there.
        skip_damage: leave damaged batches out, with a warning, instead of raising Corrupt.

    Raises:
        ValueError: a topic or column that there is not, or no position.
        EngineError, OSError: directory or archive cannot be used.

    The reader can be read once. It raises:
        Corrupt: a batch is damaged; names the file and the numbers.
        DataLoss: records were removed while they were read.
        ArchiveAway: object storage does not answer.
    """
    given = {"path": os.fspath(path), "onCorruption": "skip" if skip_damage else "fail"}
    if archive is not None:
        given["archive"] = os.fspath(archive)
    names = None if topics is None else (topics,) if isinstance(topics, str) else tuple(topics)
    options = replace(
        parse_options(given), topics=names, loss_hint="", damage_hint="skip_damage=True goes on behind them"
    )
    schema = _schema(COLUMNS if columns is None else columns)
    first, last = _position(start, "start"), _position(end, "end")
    planner = Planner(options)
    planner.refresh(with_empty=True)
    planner.need_named()
    wanted = {}
    for key, part in planner.partitions.items():
        end_seq = min(last.resolve(part), part.committed_seq + 1)
        wanted[key] = (min(first.resolve(part), end_seq), end_seq)
    return pa.RecordBatchReader.from_batches(schema, _batches(planner, wanted, schema, options))


def _schema(columns: Sequence[str]) -> pa.Schema:
    if isinstance(columns, str):
        raise OptionError(f"columns is {columns!r}; expected a list of names")
    names = as_documented(columns, TYPES, what="column")
    if len(set(names.values())) != len(columns) or not names:
        raise OptionError(f"columns is {list(columns)}; expected names, each once")
    return arrow_schema((name, name in ("key", "headers")) for name in names.values())


def _position(place: Place, name: str) -> Position:
    if isinstance(place, datetime):
        aware = place if place.tzinfo is not None else place.replace(tzinfo=UTC)
        return Position("time", max(0, int(aware.timestamp() * 1000)))
    try:
        if isinstance(place, str):
            return parse(place)
        if type(place) is int and place >= 0:
            return parse(str(place))
        raise ValueError("expected a number (0 or more), a time, or a position such as earliest or @-1h")
    except ValueError as error:
        raise OptionError(f"{name} is {place!r}: {error}") from None


def _batches(
    planner: Planner, wanted: dict[Key, tuple[int, int]], schema: pa.Schema, options: Options
) -> Iterator[pa.RecordBatch]:
    for key, (first_seq, end_seq) in sorted(wanted.items()):
        for task in planner.tasks(key, first_seq, end_seq):
            yield from TaskReader(task, schema, options).batches()
