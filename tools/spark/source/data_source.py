"""The data source ``quintlog``: reads a data directory beside a running server or without one, never through it.

Columns as those of Spark's source for Kafka. ``.schema("offset bigint, value binary")`` chooses columns, and only those
are made: Spark tells a Python source nothing about the columns that a query needs.

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

from tools.spark.source.options import OptionError, Options, parse
from tools.spark.source.plan import Planner, Task

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

Fields = tuple[tuple[str, bool], ...]
"""Columns: name as the query spells it, whether null is allowed."""


def fields_of(schema: StructType) -> Fields:
    """The columns that were asked for, in any case. Raises OptionError: there is none, or it has another type."""
    for field in schema.fields:
        if COLUMNS.get(SPELLED.get(field.name.lower(), "")) != field.dataType.simpleString():
            offered = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise OptionError(f"no column {field.name} {field.dataType.simpleString()}; there are {offered}")
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
        """All columns; headers only when they are asked for, since they cost more than all others."""
        headers = self.options.get("includeHeaders", "false").lower() == "true"
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "headers" or headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        return BatchReader(parse(self.options), fields_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries."""
        need_spark(STREAMS_FROM, "streams need")
        from tools.spark.source.stream import StreamReader

        return StreamReader(parse(self.options, streaming=True), fields_of(schema))

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
