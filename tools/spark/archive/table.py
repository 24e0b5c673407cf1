"""Records kept as a Delta Lake table, so that SQL engines read history without us. Nothing of Spark is needed.

The table's own log says how far it is: each commit holds, beside its rows, the next number of each partition that it
took (a ``txn`` action: ``quintlog/DIRECTORY/TOPIC ID/PARTITION``, whose version is that number). Rows and numbers
become visible together or not at all, whenever a run is killed. Of two runs at once Delta refuses the one that commits
second, since the numbers that it went on from are no longer the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from engine.errors import DataDirectoryError, EngineError, UnknownTopic
from engine.files.system import SystemFiles
from engine.reader import read_version
from tools.spark.archive.manifest import one_line, shown, told
from tools.spark.source.arrow import TYPES, arrow_schema
from tools.spark.source.options import Options
from tools.spark.source.plan import Key, Planner
from tools.spark.source.reading import TaskReader

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
NULLABLE = ("topic", "key", "headers")
"""A topic without a name is null: Delta has no empty text by which files could lie in directories."""
READ = arrow_schema((name, name in NULLABLE) for name in COLUMNS)
SCHEMA = pa.schema(
    [
        READ.field("topic"),
        pa.field("date", pa.date32(), nullable=False),
        pa.field("topic_id", pa.int64(), nullable=False),
        *(READ.field(name) for name in COLUMNS[1:]),
    ]
)
LATEST_US = 253_402_300_799_999_999
"""The last moment of the year 9999. A publisher may state later ones, which Delta's statistics cannot."""


class Overtaken(EngineError):
    """Another run has added to the table meanwhile."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What was added at once."""

    version: int
    """Of the table."""
    records: int
    size_bytes: int
    """Of segment files that were read for it."""


class Table:
    """The table of one data directory. Its methods raise what `keep` raises."""

    def __init__(self, uri: str, directory_id: int) -> None:
        self.uri = uri
        self._owner = f"quintlog/{directory_id}"
        with self._usable():
            if not DeltaTable.is_deltatable(uri):
                mark = CommitProperties(app_transactions=[Transaction(self._owner, 1)])
                by = ["topic", "date"]
                DeltaTable.create(uri, SCHEMA, mode="error", partition_by=by, commit_properties=mark)
            self._table = DeltaTable(uri)
            if self._table.transaction_version(self._owner) is None:
                raise DataDirectoryError(f"{shown(uri)} is not a table of this data directory")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            with told(self.uri):
                yield
        except CommitFailedError as error:
            text = f"another run has added to {shown(self.uri)} meanwhile: run this one again for the rest"
            raise Overtaken(text) from error
        except DeltaError as error:
            raise DataDirectoryError(f"{shown(self.uri)} cannot be used: {one_line(error)}") from error

    @property
    def version(self) -> int:
        """Of its newest commit that this run knows."""
        return int(self._table.version())

    def next_seq(self, topic_id: int, partition: int) -> int | None:
        """The first number that is not in the table; None: it has nothing of the partition."""
        found = self._table.transaction_version(self._mark(topic_id, partition))
        return None if found is None else int(found)

    def add(self, batches: Iterator[pa.RecordBatch], nexts: Mapping[tuple[int, int], int]) -> None:
        """Adds rows, and notes the next number of each partition (topic id, index), as one commit."""
        marks = [Transaction(self._mark(*at), number) for at, number in nexts.items()]
        failed: list[Exception] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:
                failed.append(error)
                raise

        try:
            with self._usable():
                rows = pa.RecordBatchReader.from_batches(SCHEMA, watched())
                properties = CommitProperties(app_transactions=marks)
                write_deltalake(self._table, rows, mode="append", commit_properties=properties)
        except (EngineError, OSError, ValueError):
            if failed:  # Delta has made a text of it
                raise failed[0] from None
            raise

    def _mark(self, topic_id: int, partition: int) -> str:
        return f"{self._owner}/{topic_id}/{partition}"


def keep(options: Options, uri: str, commit_bytes: int, done: Callable[[Commit], None]) -> Table:
    """Adds what is committed now and not in the table yet, in commits of about `commit_bytes` of segment files.

    Raises:
        UnknownTopic: no name matches the option subscribePattern.
        DataLoss, Corrupt: records that were to be added are gone or damaged; what was added before stays.
        Overtaken: another run has added to the table meanwhile; to be run again.
        DataDirectoryError, ArchiveAway: directory or table cannot be used.
    """
    assert options.path is not None
    planner = Planner(options)
    planner.refresh()
    if options.pattern is not None and not planner.partitions:
        raise UnknownTopic(f"no topic with records in {options.path} has such a name")
    table = Table(uri, read_version(SystemFiles(), Path(options.path)))
    waiting: dict[Key, tuple[int, int]] = {}
    for key, part in sorted(planner.partitions.items()):
        end_seq = part.committed_seq + 1
        first_seq = table.next_seq(part.topic.id, key[1]) or part.log_start
        if first_seq > end_seq:
            has = f"the table has {key[0]}:{key[1]} up to record {first_seq - 1}, the directory up to {end_seq - 1}"
            raise DataDirectoryError(f"{has}: the directory is an older copy")
        if first_seq < end_seq:
            waiting[key] = (first_seq, end_seq)
    while waiting:
        step, size_bytes = _step(planner, waiting, commit_bytes)
        counted = [0]
        nexts = {(planner.partitions[key].topic.id, key[1]): end_seq for key, (_, end_seq) in step.items()}
        table.add(_rows(planner, step, options, counted), nexts)
        done(Commit(table.version, counted[0], size_bytes))
        for key, (_, end_seq) in step.items():
            waiting[key] = (end_seq, waiting[key][1])
        waiting = {key: span for key, span in waiting.items() if span[0] < span[1]}
    return table


def _step(
    planner: Planner, waiting: Mapping[Key, tuple[int, int]], size_bytes_max: int
) -> tuple[dict[Key, tuple[int, int]], int]:
    """The next numbers, of about so many bytes; and how many these are."""
    step: dict[Key, tuple[int, int]] = {}
    size_bytes = 0
    for key, (first_seq, end_seq) in waiting.items():
        end = planner.end_within(key, first_seq, end_seq, size_bytes_max - size_bytes)
        step[key] = (first_seq, end)
        size_bytes += planner.bytes_between(key, first_seq, end)
        if size_bytes >= size_bytes_max or end < end_seq:
            break
    return step, size_bytes


def _rows(
    planner: Planner, step: Mapping[Key, tuple[int, int]], options: Options, counted: list[int]
) -> Iterator[pa.RecordBatch]:
    for key, (first_seq, end_seq) in step.items():
        topic_id = pa.scalar(planner.partitions[key].topic.id, pa.int64())
        for task in planner.tasks(key, first_seq, end_seq):
            for batch in TaskReader(task, READ, options).batches():
                counted[0] += batch.num_rows
                yield _row_batch(batch, topic_id)


def _row_batch(batch: pa.RecordBatch, topic_id: pa.Scalar) -> pa.RecordBatch:
    times = pc.min_element_wise(batch.column("timestamp").cast(pa.int64()), LATEST_US).cast(TYPES["timestamp"])
    made = {"date": times.cast(pa.date32()), "timestamp": times, "topic_id": pa.repeat(topic_id, batch.num_rows)}
    columns = [made[name] if name in made else batch.column(name) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
