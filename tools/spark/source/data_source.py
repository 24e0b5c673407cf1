"""The data source ``quintlog``: reads a data directory with a running server or without one, never through it.

Columns as those of Spark's source for Kafka. The option ``columns`` chooses, and only those are made: Spark tells a
Python source nothing about the columns that a query needs. Columns that are never null say so: else Spark's JVM asks
each value, which is a third of what a row costs it.

Filters are not taken over from Spark (`pushFilters`): Spark 4.3 keeps a reader that was narrowed by one query's filters
for the next queries of the same DataFrame, which then silently miss rows. The options for offsets and times narrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from tools.spark.source.options import OptionError, Options, as_documented, parse
from tools.spark.source.plan import Planner, Task
from tools.spark.source.process import keep_imports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}

WRITING_FROM = (4, 1)
STREAMS_FROM = (4, 2)
"""Versions of Spark that have what it takes: Arrow batches for a stream's sink, limits for a stream's batches."""
SPELLED = {name.lower(): name for name in COLUMNS}
"""Names as Spark compares them."""

NULLABLE = ("key", "headers")

Fields = tuple[tuple[str, bool], ...]
"""Columns: name as the query spells it, whether null is allowed."""


def chosen_columns(text: str) -> list[str]:
    """The columns that the option names, in any case. Raises OptionError."""
    asked = [name.strip() for name in text.split(",")]
    found = list(as_documented(asked, COLUMNS, what="column").values())
    if len(set(found)) != len(asked):
        raise OptionError(f"columns is {text!r}; expected names, each once, with commas between them")
    return found


def fields_of(schema: StructType) -> Fields:
    """The columns that were asked for, in any case. Raises OptionError: there is none, or it has another type."""
    for field in schema.fields:
        if COLUMNS.get(SPELLED.get(field.name.lower(), "")) != field.dataType.simpleString():
            offered = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise OptionError(f"no column {field.name} {field.dataType.simpleString()}; there are {offered}")
        if SPELLED[field.name.lower()] in NULLABLE and not field.nullable:
            raise OptionError(f"column {field.name} may be null: it cannot be NOT NULL")
    return tuple((field.name, field.nullable) for field in schema.fields)


def need_spark(version: tuple[int, int], purpose: str) -> None:
    """Raises ImportError: this Spark is older."""
    if tuple(int(number) for number in pyspark.__version__.split(".")[:2]) < version:
        raise ImportError(f"{purpose} pyspark {version[0]}.{version[1]} or newer, this is {pyspark.__version__}")


class QuintlogSource(DataSource):
    """``spark.read.format("quintlog").load("DIR")``; options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "quintlog"

    def schema(self) -> str:
        """All columns, or those of the option; headers only when asked for, since they cost more than all others."""
        keep_imports()
        headers = self.options.get("includeHeaders", "false").lower() == "true"
        chosen = self.options.get("columns")
        names = [name for name in COLUMNS if name != "headers" or headers]
        if chosen is not None:
            names = chosen_columns(chosen)
        return ", ".join(f"{name} {COLUMNS[name]}{'' if name in NULLABLE else ' NOT NULL'}" for name in names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        keep_imports()
        return BatchReader(parse(self.options), self._fields(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries."""
        need_spark(STREAMS_FROM, "streams need")
        from tools.spark.source.stream import StreamReader

        return StreamReader(parse(self.options, streaming=True), self._fields(schema))

    def _fields(self, schema: StructType) -> Fields:
        fields, chosen = fields_of(schema), self.options.get("columns")
        if chosen is not None and [name for name, _ in fields] != chosen_columns(chosen):
            raise OptionError("columns and a schema exclude each other: both choose columns")
        return fields

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For batch queries that write, through the server (docs/spark-sink.md)."""
        need_spark(WRITING_FROM, "writing needs")
        from tools.spark.sink.writer import BatchWriter, parse_sink

        return BatchWriter(schema, parse_sink(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For streaming queries that write."""
        need_spark(WRITING_FROM, "writing needs")
        from tools.spark.sink.writer import StreamWriter, parse_sink

        return StreamWriter(schema, parse_sink(self.options, streaming=True), overwrite)


class TaskPartition(InputPartition):
    """Tasks that are read one after the other, on their way to an executor."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        super().__init__(None)
        self.tasks = tasks


def read_partition(partition: Any, fields: Fields, options: Options) -> Iterator[pa.RecordBatch]:
    """Record batches of some tasks; none for the one partition that Spark makes of no partitions."""
    if not isinstance(partition, TaskPartition):
        return
    from tools.spark.source.arrow import arrow_schema
    from tools.spark.source.reading import TaskReader

    keep_imports()
    schema = arrow_schema((SPELLED[name.lower()], nullable) for name, nullable in fields)
    names = [name for name, _ in fields]
    for task in partition.tasks:
        for batch in TaskReader(task, schema, options).batches():
            yield batch if names == schema.names else batch.rename_columns(names)


class BatchReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: Options, fields: Fields) -> None:
        self.options = options
        self.fields = fields

    def partitions(self) -> list[TaskPartition]:
        """What each task of Spark reads."""
        planner = Planner(self.options)
        planner.refresh(with_empty=True)
        return [TaskPartition(tasks) for tasks in planner.packed(planner.plan(planner.spans()))]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Record batches of one partition."""
        return read_partition(partition, self.fields, self.options)
