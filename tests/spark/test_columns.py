"""Columns and filters as Spark hands them to a source in Python, and the process in which it runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import missing
from tests.spark.test_source import offsets, read
from tests.stored_log import example

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

if not missing():
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

    from tools.spark.source.data_source import BatchReader, QuintlogSource, fields_of
    from tools.spark.source.options import parse

    class NarrowedReader(DataSourceReader):
        """Numbers 0 to 9, or the one that a filter asks for."""

        def __init__(self) -> None:
            self.numbers = range(10)

        def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
            for one in filters:
                if isinstance(one, EqualTo):
                    self.numbers = range(one.value, one.value + 1)
                else:
                    yield one

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((number,) for number in self.numbers)

    class Narrowed(DataSource):
        @classmethod
        def name(cls) -> str:
            return "narrowed"

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: Any) -> DataSourceReader:
            return NarrowedReader()

    class FrozenReader(BatchReader):
        """As ours, then the number of objects that its process leaves out of garbage collection."""

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in super().read(partition):
                yield pa.RecordBatch.from_arrays([pa.array([gc.get_freeze_count()])], schema=batch.schema)

    class Frozen(QuintlogSource):
        @classmethod
        def name(cls) -> str:
            return "frozen"

        def reader(self, schema: Any) -> DataSourceReader:
            return FrozenReader(parse(self.options), fields_of(schema))


def test_columns_by_name(spark: SparkSession, tmp_path: Path) -> None:
    example(tmp_path)
    frame = read(spark, tmp_path, columns="Offset, topic,KEY")
    assert [(field.name, field.nullable) for field in frame.schema.fields] == [
        ("offset", False),
        ("topic", False),
        ("key", True),
    ]
    assert [tuple(row) for row in frame.where("offset < 3").orderBy("offset").collect()] == [
        (1, "orders", None),
        (2, "orders", None),
    ]
    assert frame.where("key is null").count() == 90
    assert {field.name for field in read(spark, tmp_path).schema.fields if field.nullable} == {"key"}


@pytest.mark.parametrize(
    ("columns", "schema", "said"),
    [
        ("offset,size", "", "unknown column 'size'; known: key, value"),
        ("", "", "unknown column ''"),
        ("offset,offset", "", "each once"),
        ("offset", "value binary", "columns and a schema exclude each other"),
        (None, "key binary NOT NULL", "key may be null"),
    ],
)
def test_columns_that_are_refused(
    spark: SparkSession, tmp_path: Path, columns: str | None, schema: str, said: str
) -> None:
    example(tmp_path)
    with pytest.raises(Exception, match=said):
        read(spark, tmp_path, schema, **({} if columns is None else {"columns": columns})).collect()


def test_why_filters_are_not_taken(spark: SparkSession, tmp_path: Path) -> None:
    """Spark hands a reader that one query narrowed to the next one. Where this fails, filters can be taken over."""
    spark.dataSource.register(Narrowed)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("narrowed").load()
        assert frame.where("number = 3").count() == 1
        assert frame.count() == 1
        example(tmp_path)
        ours = read(spark, tmp_path)
        assert offsets(ours.where("offset = 3").union(ours.where("offset = 5"))) == [3, 5]
        assert ours.count() == 90
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_modules_stay_out_of_garbage_collection(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Frozen)
    example(tmp_path)
    frame = spark.read.format("frozen").option("columns", "offset").load(str(tmp_path))
    kept = [row.offset for row in frame.collect()]
    assert min(kept) > 10_000
    assert gc.get_freeze_count() == 0  # this process is not Spark's
