"""Numbers that are left out: what is sized in records is not sized in numbers, and a gap is no loss."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import server
from tests.spark.conftest import require_spark
from tests.spark.test_source import tasks
from tests.spark.test_stream import drained, reader
from tests.stored_log import StoredPartition, example, make_directory
from tests.tank_peer import Peer, bundle, sparse

JUMP = 1 << 32


def planned(data_dir: Path, **options: Any) -> list[tuple[int, int]]:
    return [(task.first_seq, task.end_seq) for task in tasks(data_dir, **options)]


def leaping(data_dir: Path) -> StoredPartition:
    """Records 1..10, then nine times ten more, each ten behind a jump: one sealed segment and an active one."""
    partition = StoredPartition(data_dir, make_directory(data_dir))
    for number in range(10):
        if number in (0, 5):
            partition.begin_segment()
        partition.next_seq = 1 + number * JUMP
        partition.write([b"x"] * 10)
    partition.mark()
    return partition


def rows(data_dir: Path, **options: Any) -> list[int]:
    """Numbers of all tasks' records."""
    from tools.spark.source.arrow import arrow_schema
    from tools.spark.source.options import parse
    from tools.spark.source.reading import TaskReader

    schema, parsed = arrow_schema([("offset", True)]), parse({"path": str(data_dir)})
    batches = [batch for task in tasks(data_dir, **options) for batch in TaskReader(task, schema, parsed).batches()]
    return [seq for batch in batches for seq in batch.column(0).to_pylist()]


def test_a_first_record_with_a_number_of_its_own(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.plan import DataLoss

    async def fill(address: tuple[str, int]) -> None:
        peer = await Peer.open(address)
        await peer.create(b"own")
        await peer.create(b"sparse")
        assert await peer.produce(b"own", bundle(b"a"), base_seq=1000) == b"\0"
        assert await peer.produce(b"own", bundle(b"b"), base_seq=1000 + JUMP) == b"\0"
        assert await peer.produce(b"sparse", sparse(1000, 2000, 3000)) == b"\0"
        peer.writer.close()
        await peer.writer.wait_closed()

    with server(tmp_path / "data") as process:
        asyncio.run(fill(process.address("tank")))
    data_dir = process.data_dir
    stream = reader(data_dir)
    end = stream.latestOffset({}, stream.getDefaultReadLimit())
    assert (
        len(stream.partitions({}, end)) == 2
    )  # new to the query: read from its beginning, of which nothing is missing
    assert rows(data_dir, startingOffsets='{"own": {"0": 1}, "sparse": {"0": 1}}') == [
        1000,
        1000 + JUMP,
        1000,
        2000,
        3000,
    ]
    assert len(tasks(data_dir, maxRecordsPerPartition="1")) == 3  # a batch with numbers left out is not cut
    with pytest.raises(DataLoss, match="ends with record 3000"):
        tasks(data_dir, endingOffsets='{"sparse": {"0": 4000}}')


def test_what_was_trimmed_is_a_loss(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.source.plan import DataLoss

    partition = example(tmp_path)
    partition.log_start = 16  # amid a segment
    partition.mark()
    with pytest.raises(DataLoss, match="records 1 to 15 were removed"):
        tasks(tmp_path, startingOffsets='{"orders": {"0": 1}}')


def test_sizes_are_in_records(tmp_path: Path) -> None:
    leaping(tmp_path)
    assert drained_records(tmp_path, maxOffsetsPerTrigger="25") == [25, 25, 25, 25]
    assert drained_records(tmp_path, maxOffsetsPerTrigger="1000") == [100]
    assert drained_records(tmp_path, minOffsetsPerTrigger="101", maxTriggerDelay="0ms") == [100]
    assert planned(tmp_path, maxRecordsPerPartition="1000") == [(1, 11 + 9 * JUMP)]
    assert planned(tmp_path, maxRecordsPerPartition="40") == [
        (1, 11 + 3 * JUMP),
        (11 + 3 * JUMP, 11 + 7 * JUMP),
        (11 + 7 * JUMP, 11 + 9 * JUMP),
    ]
    assert len(planned(tmp_path, minPartitions="4")) == 4
    every = [number * JUMP + seq for number in range(10) for seq in range(1, 11)]
    assert rows(tmp_path, minPartitions="7") == rows(tmp_path) == every


def drained_records(data_dir: Path, **options: str) -> list[int]:
    """How many records each batch takes."""
    from tools.spark.source.arrow import arrow_schema
    from tools.spark.source.options import parse
    from tools.spark.source.reading import TaskReader

    stream = reader(data_dir, **options)
    schema, parsed = arrow_schema([("offset", True)]), parse({"path": str(data_dir)})
    sizes, start = [], stream.initialOffset()
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        planned_tasks = [task for partition in stream.partitions(start, end) for task in partition.tasks]
        sizes.append(
            sum(batch.num_rows for task in planned_tasks for batch in TaskReader(task, schema, parsed).batches())
        )
        start = end
    return sizes


def test_few_records_over_many_numbers_wait(tmp_path: Path) -> None:
    leaping(tmp_path)
    stream = reader(tmp_path, minOffsetsPerTrigger="101", maxTriggerDelay="1h")
    start, limit = stream.initialOffset(), stream.getDefaultReadLimit()
    end = stream.latestOffset(start, limit)
    assert end != start  # the first batch comes at once
    start = {"orders": {"0": 11, "id": 1}}
    assert stream.latestOffset(start, limit) == start


def test_steps_of_a_job_leave_out_what_is_empty(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.jobs.common import Extent

    leaping(tmp_path)
    extent = Extent(str(tmp_path), {("orders", 0): (1, 11 + 9 * JUMP)})
    steps = list(extent.steps(1000))
    assert [number for number, _ in steps] == [number * JUMP // 1000 for number in range(10)]
    spans = [step.spans["orders", 0] for _, step in steps]
    assert all(first <= 1 + number * JUMP and last >= 11 + number * JUMP for number, (first, last) in enumerate(spans))
    assert [number for number, _ in Extent(str(tmp_path), {("gone", 0): (5, 15)}).steps(4)] == [0, 1, 2]


def test_runs() -> None:
    require_spark()
    from tools.spark.source.counts import Runs

    runs = Runs()
    for first, end, records in ((1, 11, 10), (11, 21, 10), (100, 200, 3), (200, 210, 10), (500, 501, 1)):
        runs.add(first, end, records)
    assert [runs.count(1, end) for end in (1, 2, 21, 100, 101, 200, 205, 210, 600)] == [
        0,
        1,
        20,
        20,
        23,
        23,
        28,
        33,
        34,
    ]
    assert [runs.count(first, 600) for first in (11, 50, 150, 200, 205, 210, 500, 501)] == [24, 14, 14, 11, 6, 1, 1, 0]
    assert [runs.end_of(5, records) for records in (1, 16, 17, 19, 20, 30)] == [6, 21, 100, 200, 201, 501]
    assert [runs.end_of(100, records) for records in (1, 3, 4, 14)] == [200, 200, 201, 501]
    assert [runs.next_of(seq) for seq in (1, 20, 21, 150, 300, 501)] == [1, 20, 100, 150, 500, None]


def test_counts_without_gaps_read_nothing(tmp_path: Path) -> None:
    require_spark()
    from engine.reader import read_segment
    from tests.stored_log import FILES
    from tools.spark.source.counts import Counter

    partition = example(tmp_path)
    segment = read_segment(FILES, partition.paths[0])
    partition.paths[0].unlink()
    assert Counter().runs(FILES, segment).count(1, 100) == 30
    assert drained(reader(tmp_path, subscribe="none")) == []
