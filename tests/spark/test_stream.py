"""Streaming reads in a real Spark session: batches, restarts, retention; and how a limit is shared."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver.testing import server
from tests.spark.conftest import require_spark
from tests.spark.test_source import publish
from tests.stored_log import StoredPartition, example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Query:
    """A query that writes the offsets it reads into files, run again and again over one checkpoint."""

    def __init__(self, spark: SparkSession, data_dir: Path, place: Path, **options: str) -> None:
        self.spark, self.data_dir, self.place = spark, data_dir, place
        self.options = {"startingOffsets": "earliest"} | options
        self.schema = "topic string, offset bigint"

    def run(self) -> int:
        """Reads what is there; the number of batches that had rows."""
        source = self.spark.readStream.format("quintlog").options(**self.options).schema(self.schema)
        writer = source.load(str(self.data_dir)).writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start(str(self.place / "out"))
        query.awaitTermination(60)
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)

    def rows(self) -> list[Any]:
        frame = self.spark.read.schema(self.schema).parquet(str(self.place / "out"))
        return [tuple(row) for row in frame.orderBy("topic", "offset").collect()]

    def offsets(self) -> list[int]:
        return [offset for _, offset in self.rows()]


def test_a_query_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    partition = example(tmp_path / "log")
    query = Query(spark, tmp_path / "log", tmp_path, maxOffsetsPerTrigger="40")
    assert query.run() == 3
    assert query.offsets() == list(range(1, 91))
    assert query.run() == 0
    partition.begin_segment()
    partition.write([b"x"] * 5)
    partition.mark()
    partition.write([b"not committed"])
    assert query.run() == 1
    assert query.offsets() == list(range(1, 96))


def test_beside_a_server_with_a_new_topic(spark: SparkSession, tmp_path: Path) -> None:
    with server(tmp_path / "data") as process:
        publish(process, "a", 0, 300)
        query = Query(spark, process.data_dir, tmp_path)
        query.run()
        publish(process, "a", 300, 50)
        publish(process, "b", 0, 20)
        process.kill()
        query.run()
        assert query.rows() == [("a", seq) for seq in range(1, 351)] + [("b", seq) for seq in range(1, 21)]


def removed_by_retention(partition: StoredPartition) -> None:
    partition.write([b"x"] * 20)
    partition.log_start = 101
    partition.mark()


def test_retention_overtakes_a_query(spark: SparkSession, tmp_path: Path) -> None:
    partition = example(tmp_path / "log")
    query = Query(spark, tmp_path / "log", tmp_path)
    query.run()
    removed_by_retention(partition)
    with pytest.raises(Exception, match="records 91 to 100 were removed"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.offsets() == [*range(1, 91), *range(101, 111)]


def reader(data_dir: Path, **options: str) -> Any:
    """The source's reader for streaming, as Spark's driver makes it."""
    require_spark()
    from tools.spark.source.options import parse
    from tools.spark.source.stream import StreamReader

    given = {"path": str(data_dir), "startingOffsets": "earliest"} | options
    return StreamReader(parse(given, streaming=True), (("offset", True),))


def drained(stream: Any, limit: Any = None) -> list[int]:
    """How many records each batch takes until nothing is left."""
    sizes = []
    start = stream.initialOffset()
    while (end := stream.latestOffset(start, limit or stream.getDefaultReadLimit())) != start:
        tasks = [task for partition in stream.partitions(start, end) for task in partition.tasks]
        sizes.append(sum(min(task.end_seq, task.ranges[-1].next_seq) - task.first_seq for task in tasks))
        start = end
    return sizes


def at(number: int) -> dict[str, dict[str, int]]:
    """Offsets of the example's topic."""
    return {"orders": {"0": number, "id": 1}}


def planned(stream: Any, start: Any, end: Any) -> list[Any]:
    return [task for partition in stream.partitions(start, end) for task in partition.tasks]


def test_a_limit_is_shared_by_what_waits() -> None:
    require_spark()
    from tools.spark.source.stream import shared

    waiting = {("a", 0): 900, ("b", 0): 100, ("c", 0): 0}
    assert shared(waiting, 1000) == waiting
    assert shared(waiting, 100) == {("a", 0): 90, ("b", 0): 10, ("c", 0): 0}
    assert shared(waiting, 1) == {("a", 0): 1, ("b", 0): 0, ("c", 0): 0}
    for limit in (2, 3, 7, 99, 999):
        shares = shared(waiting, limit)
        assert sum(shares.values()) == limit
        assert all(0 <= shares[key] <= waiting[key] for key in waiting)


def test_limits_of_a_trigger(tmp_path: Path) -> None:
    require_spark()
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    example(tmp_path)
    assert drained(reader(tmp_path)) == [90]
    assert drained(reader(tmp_path, maxOffsetsPerTrigger="40")) == [40, 40, 10]
    assert drained(reader(tmp_path, maxOffsetsPerTrigger="40"), ReadAllAvailable()) == [90]
    assert drained(reader(tmp_path, maxBytesPerTrigger="1")) == [30, 30, 30]  # never less than the index can tell
    assert drained(reader(tmp_path, maxBytesPerTrigger="1", maxOffsetsPerTrigger="20")) == [20, 10, 20, 10, 20, 10]
    assert drained(reader(tmp_path, maxBytesPerTrigger="1000000")) == [90]


def test_few_records_wait_for_more(tmp_path: Path) -> None:
    partition = example(tmp_path)
    stream = reader(tmp_path, minOffsetsPerTrigger="20", maxTriggerDelay="1h", maxOffsetsPerTrigger="50")
    limit = stream.getDefaultReadLimit()
    start = stream.latestOffset(stream.initialOffset(), limit)
    assert start == at(51)
    start = stream.latestOffset(start, limit)
    assert start == at(91)
    partition.write([b"x"] * 19)
    partition.mark()
    assert stream.latestOffset(start, limit) == start
    hasty = reader(tmp_path, minOffsetsPerTrigger="20", maxTriggerDelay="0ms")
    assert hasty.latestOffset(start, limit) == at(110)
    stream.prepareForTriggerAvailableNow()  # then nothing may wait
    assert stream.latestOffset(start, limit) == at(110)
    partition.write([b"x"] * 20)
    partition.mark()
    assert stream.latestOffset(start, limit) == at(110)


def test_partitions_that_come_and_go(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.plan import DataLoss

    orders = example(tmp_path)
    stream = reader(tmp_path, startingOffsets="latest")
    limit = stream.getDefaultReadLimit()
    start = stream.initialOffset()
    assert start == at(91)
    other = StoredPartition(tmp_path, orders.watermarks, name=b"other", topic_id=2, index=1, number=2)
    other.begin_segment(partitions=2)
    other.write([b"x"] * 5)
    other.mark()
    end = stream.latestOffset(start, limit)
    assert end == at(91) | {"other": {"0": 1, "1": 6, "id": 2}}
    (task,) = [task for partition in stream.partitions(start, end) for task in partition.tasks]
    assert (task.topic, task.partition, task.first_seq, task.end_seq) == ("other", 1, 1, 6)
    shutil.rmtree(other.directory.parent)
    with pytest.raises(DataLoss, match="other:0 is gone"):
        stream.latestOffset(end, limit)
    with pytest.raises(DataLoss, match="other:1 is gone; lost: records 1 to 5"):
        stream.partitions(start, end)
    tolerant = reader(tmp_path, failOnDataLoss="false")
    assert tolerant.latestOffset(end, limit) == start
    assert tolerant.partitions(start, end) == []
    narrower = reader(tmp_path, subscribe="orders")
    assert narrower.latestOffset(end, limit) == end  # kept for a query that asks for it again


def made_anew(data_dir: Path, old: StoredPartition, records: int = 100) -> StoredPartition:
    """The topic deleted and made again, with more records than it had."""
    shutil.rmtree(old.directory.parent)
    again = StoredPartition(data_dir, old.watermarks, topic_id=3, number=3)
    again.begin_segment()
    again.write([b"x"] * records)
    again.mark()
    return again


def test_a_topic_that_was_made_anew(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.plan import DataLoss

    made_anew(tmp_path, example(tmp_path))
    limit = reader(tmp_path).getDefaultReadLimit()
    strict = reader(tmp_path)
    for stream in (strict, strict, reader(tmp_path)):  # at each try, and in each life of the query
        with pytest.raises(DataLoss, match="orders:0 has begun anew: the topic was deleted and made again"):
            stream.latestOffset(at(51), limit)
        with pytest.raises(DataLoss, match="made again; lost: records 51 to 90"):  # a batch that was planned before
            stream.partitions(at(51), at(91))
    tolerant = reader(tmp_path, failOnDataLoss="false", minOffsetsPerTrigger="500", maxTriggerDelay="1h")
    tolerant._last_batch_s = time.monotonic()
    end = tolerant.latestOffset(at(51), tolerant.getDefaultReadLimit())
    assert end == {"orders": {"0": 101, "id": 3}}  # that it is another one is not held back
    assert [(task.first_seq, task.end_seq) for task in planned(tolerant, at(51), end)] == [(1, 101)]
    assert planned(tolerant, at(51), at(91)) == []
    assert tolerant.latestOffset(end, limit) == end
    ended = reader(tmp_path, failOnDataLoss="false")
    ended.prepareForTriggerAvailableNow()
    assert ended.latestOffset(at(51), limit) == end


def test_offsets_of_older_checkpoints(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.plan import DataLoss

    example(tmp_path)
    old, limit = {"orders": {"0": 51}}, reader(tmp_path).getDefaultReadLimit()
    end = reader(tmp_path).latestOffset(old, limit)
    assert end == at(91)
    assert [(task.first_seq, task.end_seq) for task in planned(reader(tmp_path), old, end)] == [(51, 91)]
    assert [task.first_seq for task in planned(reader(tmp_path), old, {"orders": {"0": 71}})] == [51]
    with pytest.raises(DataLoss, match="it ends with record 90, not 500"):
        reader(tmp_path).latestOffset({"orders": {"0": 501}}, limit)
    tolerant = reader(tmp_path, failOnDataLoss="false")
    assert tolerant.latestOffset(at(501), limit) == at(91)
    assert [task.first_seq for task in planned(tolerant, at(501), at(91))] == [1]


def test_a_topic_made_anew_while_the_query_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    old = example(tmp_path / "log")
    query = Query(spark, tmp_path / "log", tmp_path)
    query.run()
    made_anew(tmp_path / "log", old)
    for _ in range(2):
        with pytest.raises(Exception, match="orders:0 has begun anew"):
            query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.offsets() == sorted([*range(1, 91), *range(1, 101)])


def test_a_stream_waits_for_its_topic(tmp_path: Path) -> None:
    orders = example(tmp_path)
    stream = reader(tmp_path, subscribe="late", startingOffsets="latest")
    start = stream.initialOffset()
    assert start == {} == stream.latestOffset(start, stream.getDefaultReadLimit())
    late = StoredPartition(tmp_path, orders.watermarks, name=b"late", topic_id=2, number=2)
    late.begin_segment()
    late.write([b"x"] * 5)
    late.mark()
    assert (
        stream.latestOffset(start, stream.getDefaultReadLimit())
        == {"late": {"0": 6, "id": 2}}
        == stream.reportLatestOffset()
    )


def test_options_of_streams_and_batches(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.options import OptionError, parse

    with pytest.raises(OptionError, match="a stream has no end"):
        parse({"path": str(tmp_path), "endingOffsets": "latest"}, streaming=True)
    with pytest.raises(OptionError, match="for streaming queries"):
        parse({"path": str(tmp_path), "maxOffsetsPerTrigger": "1"})
    with pytest.raises(OptionError, match="maxTriggerDelay is 'soon'"):
        parse({"path": str(tmp_path), "maxTriggerDelay": "soon"}, streaming=True)
    assert parse({"path": "x", "maxTriggerDelay": "2 min"}, streaming=True).trigger_delay_s == 120
