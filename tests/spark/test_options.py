"""Options, columns and names as users write them: taken as they are meant, or refused with what is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from netserver.testing import server
from tests.spark.conftest import require_spark
from tests.spark.test_source import offsets, read, tasks
from tests.stored_log import StoredPartition, example, make_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "none"}, "no topic none"),
        ({"subscribe": "orders", "assign": "{}"}, "exclude each other"),
        ({"assign": "x"}, "assign is 'x'"),
        ({"SubscribePattern": "("}, "subscribePattern is .* a regular expression"),
        ({"splitBytes": "0"}, "64m, above 0"),
        ({"startingOffsets": "yesterday"}, "startingOffsets is 'yesterday'"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({"onCorruption": "ignore"}, "fail or skip"),
        ({"startingoffset": "1"}, "did you mean startingOffsets?"),
        ({"paths": "[]"}, "takes one path"),
        ({"path": ""}, "CREATE TEMPORARY VIEW name USING quintlog OPTIONS"),
        ({"STARTINGOFFSETS": "0"}, "startingOffsets is '0'.*numbers begin at 1"),
        ({"startingTimestamp": "-5"}, "startingTimestamp is '-5'; expected milliseconds"),
        ({"startingTimestamp": "2026-11-27"}, "expected milliseconds"),
        ({"maxOffsetsPerTrigger": "5"}, "for streaming queries"),
        ({"startingOffsets": '{"orders": {"0": 1}, "none": {"0": 1}}'}, "there is no none:0"),
        ({"subscribe": ""}, "subscribe is ''; expected names of topics"),
        ({"splitBytes": "64q"}, "a size such as 64m"),
        ({"startingOffsets": '{"order": {"0": 1}}'}, "startingOffsets: there is no order:0 among what is read"),
        ({"endingOffsets": '{"orders": {"1": 1}}'}, "endingOffsets: there is no orders:1 among"),
        ({"startingOffsets": '{"orders": {"0": 1.9}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"orders": {"0": "1"}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"orders": {"0": -5}}'}, "numbers begin at 1"),
        ({"assign": '{"orders": "0"}'}, "assign is"),
        ({"assign": '{"orders": [0, 7]}'}, "assign: there is no orders:7 among"),
        (
            {"startingOffsets": '{"orders": {"0": 50}}', "endingOffsets": '{"orders": {"0": 40}}'},
            "orders:0 would begin with record 50 and end before record 40",
        ),
    ],
)
def test_options_that_are_not_valid(tmp_path: Path, options: dict[str, str], text: str) -> None:
    require_spark()
    from tools.spark.source.data_source import BatchReader
    from tools.spark.source.options import OptionError, parse

    example(tmp_path)
    with pytest.raises(OptionError, match=text):
        BatchReader(parse({"path": str(tmp_path)} | options), (("offset", True),)).partitions()


def test_options_as_they_are_typed(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.options import parse

    sizes = ("64m", "64 MiB", "64MB", str(64 << 20))
    assert {parse({"path": "d", "SPLITBYTES": size}).split_bytes for size in sizes} == {64 << 20}
    example(tmp_path)
    for first in ("0", "1", "-2"):  # as in Kafka
        (task,) = tasks(tmp_path, startingOffsets=f'{{"orders": {{"0": {first}}}}}')
        assert (task.first_seq, task.end_seq) == (1, 91)
    assert tasks(tmp_path, startingOffsets='{"orders": {"0": -1}}') == []


def test_paths(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.archive.archiving import archive
    from tools.spark.archive.manifest import Place
    from tools.spark.source.options import located

    log, place = tmp_path / "a log", tmp_path / "archive"
    example(log)
    archive(log, Place(str(place)))
    for path in (str(log), log.as_uri(), f"file:{log}"):
        assert located(path) == (str(log), None)
        assert len(tasks(tmp_path, path=path)) == 1
    for path in (str(place), place.as_uri(), "s3://bucket/log"):
        assert located(path) == (None, path)
    assert located("not there") == ("not there", None)
    assert [task.end_seq for task in tasks(tmp_path, path=str(place))] == [61]


def test_columns_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    example(tmp_path)
    frame = read(spark, tmp_path, "OFFSET bigint, Value binary")
    assert frame.columns == ["OFFSET", "Value"]
    assert tuple(frame.where("OFFSET = 7").first() or ()) == (7, bytearray(b"value 7"))
    assert offsets(read(spark, tmp_path.as_uri()).selectExpr("OFFSET as offset").where("offset < 3")) == [1, 2]  # type: ignore[arg-type]


def test_tables_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    example(tmp_path)
    spark.sql(f"CREATE TEMPORARY VIEW log USING quintlog OPTIONS (path '{tmp_path}', subscribe 'orders')")
    assert spark.sql("SELECT count(*) FROM log").first() == (90,)
    spark.sql(f"CREATE TABLE stored USING quintlog OPTIONS (path '{tmp_path}')")
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW name USING quintlog OPTIONS"):
        spark.sql("SELECT count(*) FROM stored").collect()
    spark.sql("DROP TABLE stored")
    spark.sql("DROP VIEW log")


def test_a_topic_without_records(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.data_source import BatchReader
    from tools.spark.source.options import OptionError, parse

    with server(tmp_path / "data") as process:
        process.admin("POST", "/v1/topics", {"name": "empty", "partitions": 2})
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "v"}]})

        def planned(**options: str) -> list[str]:
            given = {"path": str(process.data_dir)} | options
            return [
                task.topic for one in BatchReader(parse(given), (("offset", True),)).partitions() for task in one.tasks
            ]

        for topics, found in (("empty", []), ("empty,orders", ["orders"])):
            assert planned(subscribe=topics) == found
        assert planned(assign='{"empty": [1]}', startingOffsets='{"empty": {"1": 1}}') == []
        with pytest.raises(OptionError, match="there is no empty:2"):
            planned(assign='{"empty": [2]}')
        with pytest.raises(OptionError, match="no topic emtpy"):
            planned(subscribe="emtpy")


def test_names_of_any_bytes(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.options import OptionError

    watermarks = make_directory(tmp_path)
    names = [b"a,b c", b"", b"\xff", b"\\xff"]
    for number, name in enumerate(names, 1):
        partition = StoredPartition(tmp_path, watermarks, name=name, topic_id=number, number=number)
        partition.begin_segment()
        partition.write([b"x"])
        partition.mark()
    assert [task.topic for task in tasks(tmp_path, assign='{"a,b c": [0], "": [0]}')] == ["", "a,b c"]
    assert [task.topic for task in tasks(tmp_path, subscribePattern=".*,.*")] == ["a,b c"]
    with pytest.raises(OptionError, match="two topics read as"):
        tasks(tmp_path)
