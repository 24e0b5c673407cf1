"""The data source in a real Spark session: columns, ranges, filters, damage, and a server that is appending."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver.testing import ServerProcess, server
from tests.spark.conftest import require_spark
from tests.stored_log import NOW_MS, StoredPartition, example, make_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, data_dir: Path, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("quintlog").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(data_dir))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def tasks(data_dir: Path, **options: Any) -> list[Any]:
    """What is planned, without a session."""
    require_spark()
    from tools.spark.source.options import parse
    from tools.spark.source.plan import Planner

    parsed = parse({"path": str(data_dir)} | options)
    planner = Planner(parsed)
    planner.refresh()
    bounds = (parsed.start, parsed.end)
    return planner.plan({key: tuple(planner.resolve(key, bound) for bound in bounds) for key in planner.partitions})


def planned_bytes(data_dir: Path, **options: Any) -> int:
    return sum(piece.end - piece.position for task in tasks(data_dir, **options) for piece in task.ranges)


def test_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    example(tmp_path)
    frame = read(spark, tmp_path)
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    rows = frame.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(1, 91))
    assert [bytes(row.value) for row in rows] == [b"value %d" % seq for seq in range(1, 91)]
    assert {(row.key, row.topic, row.partition, row.timestampType) for row in rows} == {(None, "orders", 0, 0)}
    times = [row.ms for row in frame.selectExpr("unix_millis(timestamp) ms", "offset").orderBy("offset").collect()]
    assert times == [NOW_MS + (seq - 1) // 10 * 60_000 for seq in range(1, 91)]


def test_a_subset_of_columns_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    example(tmp_path)
    frame = read(spark, tmp_path, "offset bigint, topic string, headers array<struct<key:string,value:binary>>")
    assert [tuple(row) for row in frame.orderBy("offset").limit(2).collect()] == [
        (1, "orders", None),
        (2, "orders", None),
    ]
    with pytest.raises(Exception, match="no column offset int"):
        read(spark, tmp_path, "offset int").collect()


def test_ranges_of_numbers_and_times(spark: SparkSession, tmp_path: Path) -> None:
    example(tmp_path)
    ends = {"startingOffsets": '{"orders": {"0": 25}}', "endingOffsets": '{"orders": {"0": 65}}'}
    assert offsets(read(spark, tmp_path, **ends)) == list(range(25, 65))
    times = {"startingTimestamp": str(NOW_MS + 60_000), "endingTimestamp": str(NOW_MS + 180_000)}
    assert offsets(read(spark, tmp_path, **times)) == list(range(11, 31))
    by_partition = {"startingOffsetsByTimestamp": f'{{"orders": {{"0": {NOW_MS + 420_000}}}}}'}
    assert offsets(read(spark, tmp_path, **by_partition)) == list(range(71, 91))
    assert offsets(read(spark, tmp_path, startingOffsets="latest")) == []
    assert offsets(read(spark, tmp_path, splitBytes="1")) == list(range(1, 91))


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_filters_with_and_without_pushdown(spark: SparkSession, tmp_path: Path, pushdown: str) -> None:
    example(tmp_path)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = read(spark, tmp_path)
        assert offsets(frame.where("offset > 20 and offset <= 40")) == list(range(21, 41))
        assert offsets(frame.where("offset = 33 and topic = 'orders' and partition in (0, 7)")) == [33]
        assert offsets(frame.where("topic = 'other'")) == []
        assert offsets(frame.where("offset < 3 or offset = 90")) == [1, 2, 90]
        assert offsets(frame.where("offset > 500")) == []
        assert frame.count() == 90  # a query's filters are no other's
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_range_reads_only_its_part(tmp_path: Path) -> None:
    require_spark()
    partition = StoredPartition(tmp_path, make_directory(tmp_path))
    for number in range(60):
        if number == 0 or number == 40:
            partition.begin_segment()
        partition.write([bytes(10_000)] * 10, now_ms=NOW_MS + number * 1000)  # 100 KB a batch
    partition.mark()
    every = planned_bytes(tmp_path)
    assert every > 6_000_000
    part = {"startingOffsets": '{"orders": {"0": 101}}', "endingOffsets": '{"orders": {"0": 151}}'}
    assert planned_bytes(tmp_path, **part) < 700_000
    assert planned_bytes(tmp_path, startingTimestamp=str(NOW_MS + 59_000)) < 1_300_000
    split = tasks(tmp_path, splitBytes="1000000")
    assert 6 <= len(split) <= 9
    assert planned_bytes(tmp_path, splitBytes="1000000") == every
    processors = len(os.sched_getaffinity(0))
    assert processors <= len(tasks(tmp_path, openCostInBytes="1")) <= processors + 1  # nobody without work
    assert len(tasks(tmp_path)) == 1  # too little to share
    pieces = [piece for task in split for piece in task.ranges]
    assert [piece.next_seq for piece in pieces[:-1]] == [piece.first_seq for piece in pieces[1:]]


def test_as_many_tasks_as_asked_for(tmp_path: Path) -> None:
    example(tmp_path)
    assert [(task.first_seq, task.end_seq) for task in tasks(tmp_path, maxRecordsPerPartition="40")] == [
        (1, 41),
        (41, 81),
        (81, 91),
    ]
    found = tasks(tmp_path, minPartitions="5")
    assert [task.first_seq for task in found] == [1, 19, 37, 55, 73]
    assert [len(task.ranges) for task in found] == [1, 2, 1, 2, 1]
    assert len(tasks(tmp_path, minPartitions="2", splitBytes="1")) == 3


def test_small_ranges_share_a_task(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.options import parse
    from tools.spark.source.plan import Planner

    watermarks = make_directory(tmp_path)
    for number in range(1, 41):
        partition = StoredPartition(
            tmp_path, watermarks, name=b"t%02d" % number, topic_id=number, index=0, number=number
        )
        partition.begin_segment()
        partition.write([b"x" * 1000] * (100 if number < 40 else 1000))
        partition.mark()

    def packs(**options: str) -> list[int]:
        parsed = parse({"path": str(tmp_path)} | options)
        planner = Planner(parsed)
        planner.refresh()
        found = planner.packed(
            planner.plan({key: (1, part.committed_seq + 1) for key, part in planner.partitions.items()})
        )
        assert sorted(task.topic for pack in found for task in pack) == sorted(topic for topic, _ in planner.partitions)
        return [len(pack) for pack in found]

    processors = len(os.sched_getaffinity(0))
    assert processors <= len(packs()) <= processors + 3  # 40 times 4 MiB and the bytes, at most 64 MiB each
    assert packs(openCostInBytes="100000", splitBytes="500000") == [2] * 19 + [1, 1]
    assert packs(openCostInBytes="1", splitBytes="1") == [1] * 40
    assert 10 <= len(packs(minPartitions="10")) <= 14
    assert packs(minPartitions="40") == packs(maxRecordsPerPartition="1000") == [1] * 40


def damage(path: Path, text: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(text)] ^= 1
    path.write_bytes(content)


def test_a_damaged_batch(spark: SparkSession, tmp_path: Path) -> None:
    partition = example(tmp_path)
    damage(partition.paths[0], b"value 15")
    damage(partition.paths[2], b"value 85")
    with pytest.raises(Exception, match=r"00000000000000000001\.log.*lost: records 11 to 20"):
        read(spark, tmp_path, endingOffsets='{"orders": {"0": 50}}').collect()
    expected = [*range(1, 11), *range(21, 81)]
    for split in ("1", "1000000"):
        assert offsets(read(spark, tmp_path, onCorruption="skip", splitBytes=split)) == expected
    assert offsets(
        read(spark, tmp_path, startingOffsets='{"orders": {"0": 25}}', endingOffsets='{"orders": {"0": 80}}')
    )


def test_what_is_skipped_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    require_spark()
    from tools.spark.source.arrow import arrow_schema
    from tools.spark.source.options import parse
    from tools.spark.source.reading import TaskReader

    partition = example(tmp_path)
    damage(partition.paths[0], b"value 15")
    damage(partition.paths[2], b"value 85")
    (task,) = tasks(tmp_path, endingOffsets='{"orders": {"0": 88}}')
    options = parse({"path": str(tmp_path), "onCorruption": "skip"})
    rows = sum(batch.num_rows for batch in TaskReader(task, arrow_schema([("offset", True)]), options).batches())
    assert rows == 87 - 10 - 7
    assert caplog.messages[-1] == "orders:0: 17 records skipped in 2 places"


def test_a_file_that_cannot_be_used(spark: SparkSession, tmp_path: Path) -> None:
    partition = example(tmp_path)
    content = bytearray(partition.paths[1].read_bytes())
    content[3] ^= 1
    partition.paths[1].write_bytes(content)
    with pytest.raises(Exception, match="wrong magic"):
        read(spark, tmp_path).collect()
    assert offsets(read(spark, tmp_path, onCorruption="skip")) == [*range(1, 31), *range(61, 91)]


def test_records_that_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    partition = example(tmp_path)
    partition.log_start = 31
    partition.mark()
    start = {"startingOffsets": '{"orders": {"0": 5}}'}
    with pytest.raises(Exception, match="records 5 to 30 were removed"):
        read(spark, tmp_path, **start).collect()
    assert offsets(read(spark, tmp_path)) == list(range(31, 91))
    assert offsets(read(spark, tmp_path, failOnDataLoss="false", **start)) == list(range(31, 91))


def test_a_file_removed_between_planning_and_reading(tmp_path: Path) -> None:
    require_spark()
    from engine.errors import EngineError
    from tools.spark.source.arrow import arrow_schema
    from tools.spark.source.options import parse
    from tools.spark.source.reading import TaskReader

    partition = example(tmp_path)
    (task,) = tasks(tmp_path)
    partition.paths[0].unlink()
    schema = arrow_schema([("offset", True)])
    with pytest.raises(EngineError, match="lost: records 1 to 30"):
        list(TaskReader(task, schema, parse({"path": str(tmp_path)})).batches())
    skipping = TaskReader(task, schema, parse({"path": str(tmp_path), "failOnDataLoss": "false"}))
    assert [row["offset"] for batch in skipping.batches() for row in batch.to_pylist()] == list(range(31, 91))


def test_only_committed_records(spark: SparkSession, tmp_path: Path) -> None:
    partition = example(tmp_path)
    partition.write([b"not committed"])
    frame = read(spark, tmp_path)
    assert offsets(frame) == list(range(1, 91))
    partition.mark()
    assert offsets(frame) == list(range(1, 91))  # what it was when it was first used
    assert offsets(read(spark, tmp_path)) == list(range(1, 92))


def publish(process: ServerProcess, topic: str, first: int, count: int) -> None:
    records = [{"value": f"{topic} {number}"} for number in range(first, first + count)]
    process.admin("POST", f"/v1/topics/{topic}/records", {"records": records})


def test_beside_a_server_and_after_its_kill(spark: SparkSession, tmp_path: Path) -> None:
    with server(tmp_path / "data") as process:
        for topic in ("a", "b", "other"):
            publish(process, topic, 0, 500)
        frame = read(spark, process.data_dir, subscribePattern="[ab]")
        assert frame.groupBy("topic").count().orderBy("topic").collect() == [("a", 500), ("b", 500)]
        publish(process, "a", 500, 500)
        again = read(spark, process.data_dir, subscribe="a,b")
        assert again.where("topic = 'a'").count() == 1000
        process.kill()
        rows = again.where("topic = 'a'").orderBy("offset").collect()
        assert [bytes(row.value) for row in rows] == [b"a %d" % number for number in range(1000)]


def test_headers(spark: SparkSession, tmp_path: Path) -> None:
    with server(tmp_path / "data") as process:
        record = {"value": "v", "key": "k", "headers": [{"name": "name", "value": "text"}]}
        process.admin("POST", "/v1/topics/t/records", {"records": [record, {"value": "w"}]})
        rows = read(spark, process.data_dir, includeHeaders="true").orderBy("offset").collect()
    assert [(bytes(row.value), row.key and bytes(row.key)) for row in rows] == [(b"v", b"k"), (b"w", None)]
    assert [row.headers and [(one.key, bytes(one.value)) for one in row.headers] for row in rows] == [
        [("name", b"text")],
        None,
    ]


def test_executors_need_neither_index_nor_server() -> None:
    require_spark()
    import subprocess
    import sys

    code = (
        "import sys, pyspark_quintlog, tools.spark.source.reading; "
        "print([name for name in sys.modules if name.split('.')[0] in ('lmdb', 'netserver', 'uvloop', 'pandas')])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
