"""Reading beside a server that works: several protocols, kill -9, and retention and sealing racing with Spark."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver import blipmq, figg, fujin, tank
from netserver.testing import ServerProcess, server
from tests.spark.conftest import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EACH = 3_000
STARTS = 1000 if os.environ.get("QUINTLOG_NIGHTLY") == "1" else 25
TCP = {"figg": figg.connect, "tank": tank.connect, "blipmq": blipmq.connect}


def values(protocol: str, start: int, count: int) -> list[bytes]:
    return [f"{protocol:6} {number} ".encode() + b"x" * (number % 90) for number in range(start, start + count)]


def digest(rows: list[bytes]) -> str:
    return hashlib.sha256(b"\n".join(sorted(rows))).hexdigest()


def publish_by_all(process: ServerProcess, start: int, count: int) -> None:
    """The same topic by four protocols, and TANK's other partition; acknowledged when it returns."""

    def at(name: str) -> str:
        return "{}:{}".format(*process.address(name))

    async def main() -> None:
        async with tank.connect(at("tank")) as client:
            await client.create_topic("shared", partitions=2, exist_ok=True)
            await client.publish_many("shared", values("tank-1", start, count), partition=1, compress=True)
        for name, connect in TCP.items():
            async with connect(at(name)) as publisher:  # type: ignore[operator]
                await publisher.publish_many("shared", values(name, start, count))
        async with fujin.connect(at("fujin"), verify=False) as writer:
            await writer.publish_many("shared", values("fujin", start, count))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_several_protocols_beside_a_server_that_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    names = ("tank-1", "figg", "tank", "blipmq", "fujin")
    expected = [value for name in names for value in values(name, 0, EACH)]
    settings = {"topics": {"segment_bytes": "64KiB"}}
    with server(tmp_path / "data", settings) as process:
        publish_by_all(process, 0, EACH)
        source = spark.read.format("quintlog").option("splitBytes", "65536")
        frame = source.load(str(process.data_dir))
        groups = frame.groupBy("partition").agg({"offset": "max", "*": "count"}).orderBy("partition").collect()
        assert [tuple(group) for group in groups] == [(0, 4 * EACH, 4 * EACH), (1, EACH, EACH)]
        appending = threading.Thread(target=publish_by_all, args=(process, EACH, EACH))
        appending.start()
        read = frame.select("value").toLocalIterator()  # a job for each task, as the iterator goes on
        rows = [bytes(next(read).value)]
        appending.join()
        process.kill()
        rows += [bytes(row.value) for row in read]
        assert digest(rows) == digest(expected)
        expected += [value for name in names for value in values(name, EACH, EACH)]
        everything = source.load(str(process.data_dir))
        assert digest([bytes(row.value) for row in everything.select("value").collect()]) == digest(expected)
        by_protocol = everything.selectExpr("split(cast(value as string), ' ')[0] p").groupBy("p").count().collect()
        assert {row.p: row["count"] for row in by_protocol} == dict.fromkeys(names, 2 * EACH)


@contextmanager
def busy(data_dir: Path, grace: str) -> Iterator[ServerProcess]:
    """A server whose one topic is rolled and cut at every turn, under a publisher that never rests."""
    settings = {
        "topics": {"segment_bytes": "64KiB", "retention_bytes": "300KiB"},
        "engine": {"housekeeping_interval_ms": "10ms", "retention_grace_ms": grace},
    }
    stop = threading.Event()

    async def publish(address: str) -> None:
        number = 1
        async with tank.connect(address) as client:
            while not stop.is_set():
                await client.publish_many("t", [b"%d " % seq + b"x" * 90 for seq in range(number, number + 400)])
                number += 400

    with server(data_dir, settings) as process:
        process.admin("POST", "/v1/topics", {"name": "t"})
        process.admin("POST", "/v1/topics/t/records", {"records": [{"value": "0 "}]})
        address = "{}:{}".format(*process.address("tank"))
        publisher = threading.Thread(target=lambda: asyncio.run(publish(address)))
        publisher.start()
        try:
            yield process
        finally:
            stop.set()
            publisher.join()


def planned(data_dir: Path, **options: str) -> tuple[list[Any], Any]:
    from tools.spark.source.data_source import BatchReader
    from tools.spark.source.options import parse

    parsed = parse({"path": str(data_dir), "splitBytes": "65536"} | options)
    reader = BatchReader(parsed, (("offset", True), ("value", True)))
    return reader.partitions(), reader


def rows_of(reader: Any, partition: Any) -> list[int]:
    """The numbers that a task reads, each checked against its value."""
    numbers: list[int] = []
    for batch in reader.read(partition):
        numbers += batch.column("offset").to_pylist()
        texts = batch.column("value").to_pylist()
        assert [int(text.split()[0]) + 1 for text in texts] == batch.column("offset").to_pylist()
    return numbers


@pytest.mark.parametrize("grace", ["1min", pytest.param("0", marks=pytest.mark.slow)])
def test_retention_and_sealing_race_driver_and_executors(tmp_path: Path, grace: str) -> None:
    """Within the grace time nothing is missing; without one, what is missing is said, and nothing else is wrong."""
    require_spark()
    from tools.spark.source.plan import DataLoss

    told: list[str] = []
    starts: set[int] = set()
    with busy(tmp_path / "data", grace) as process:
        while len(starts) < STARTS:  # different starts of the log: retention is at work
            partitions, reader = planned(process.data_dir)
            first, end = partitions[0].tasks[0].first_seq, partitions[0].tasks[0].end_seq
            starts.add(first)
            try:
                numbers = [number for partition in partitions for number in rows_of(reader, partition)]
            except DataLoss as error:
                told.append(str(error))
            else:
                assert numbers == list(range(first, end))
    assert [text for text in told if "was removed while it was read; lost: records" not in text] == []
    assert grace == "0" or not told


def test_what_retention_takes_is_told_to_those_who_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a grace time and with failOnDataLoss=false: rows and warnings together are what was planned."""
    require_spark()
    with busy(tmp_path / "data", "0") as process:
        partitions, reader = planned(process.data_dir, failOnDataLoss="false")
        wanted = (partitions[0].tasks[0].first_seq, partitions[0].tasks[0].end_seq)
        oldest = Path(partitions[0].tasks[0].ranges[0].path)
        deadline = time.monotonic() + 30
        while oldest.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    numbers = [number for partition in partitions for number in rows_of(reader, partition)]
    told = [record.getMessage().rpartition("lost: records ")[2].split(" to ") for record in caplog.records]
    gone = [seq for start, end in told for seq in range(int(start), int(end) + 1)]
    assert gone
    assert sorted(numbers + gone) == list(range(*wanted))
