"""History from an archive and the live tail from the directory, in one query: no overlap, no gap."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver import tank
from netserver.testing import ServerProcess, server
from tests.spark.conftest import require_spark
from tests.spark.test_source import damage, offsets, planned_bytes, read, tasks
from tests.stored_log import NOW_MS, StoredPartition, example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _installed() -> None:
    require_spark()


def archived(data_dir: Path, place: Path) -> Any:
    from tools.spark.archive.archiving import archive
    from tools.spark.archive.manifest import Place

    return archive(data_dir, Place(str(place)))


def numbers(data_dir: Path, **options: Any) -> list[int]:
    """The numbers that a query reads, in the order of its tasks; without a session."""
    from tools.spark.source.arrow import arrow_schema
    from tools.spark.source.options import parse
    from tools.spark.source.reading import TaskReader

    parsed = parse({"path": str(data_dir)} | options)
    found: list[int] = []
    for task in tasks(data_dir, **options):
        for batch in TaskReader(task, arrow_schema([("offset", True)]), parsed).batches():
            found += batch.column("offset").to_pylist()
    return found


def overtaken(partition: StoredPartition, log_start: int) -> None:
    """Retention: raises the start and removes the files that are wholly below it."""
    partition.log_start = log_start
    partition.mark()
    paths = sorted(partition.directory.glob("*.log"))
    for path, following in itertools.pairwise(paths):
        if int(following.stem) <= log_start:
            path.unlink()


def test_only_what_is_new_is_copied(tmp_path: Path) -> None:
    partition = example(tmp_path / "log")
    first = archived(tmp_path / "log", tmp_path / "archive")
    assert [(entry.first, entry.next, entry.records) for entry in first.copied] == [(1, 31, 30), (31, 61, 30)]
    assert [(tmp_path / "archive" / entry.path).read_bytes() for entry in first.copied] == [
        path.read_bytes() for path in partition.paths[:2]
    ]
    again = archived(tmp_path / "log", tmp_path / "archive")
    assert (again.copied, again.manifest.version) == ([], 1)
    partition.begin_segment()
    partition.mark()
    more = archived(tmp_path / "log", tmp_path / "archive")
    assert [entry.first for entry in more.copied] == [61]
    assert (more.manifest.version, len(more.manifest.segments), more.findings) == (2, 3, [])


def test_how_far_it_is_told(tmp_path: Path) -> None:
    from tools.spark.archive.archiving import archive
    from tools.spark.archive.manifest import Place

    example(tmp_path / "log")
    sizes: list[int] = []
    report = archive(tmp_path / "log", Place(str(tmp_path / "archive")), sizes.append)
    assert sizes == [entry.size_bytes for entry in report.copied]
    assert len(sizes) == 2


def test_history_and_tail_in_one_query(tmp_path: Path) -> None:
    partition = example(tmp_path / "log")
    place = tmp_path / "archive"
    both = {"archive": str(place)}
    assert numbers(tmp_path / "log", **both) == list(range(1, 91))  # nothing is archived yet
    archived(tmp_path / "log", place)
    assert numbers(tmp_path / "log", **both) == list(range(1, 91))
    for log_start in (31, 45, 61):  # the border amid an archived segment, too
        overtaken(partition, log_start)
        assert numbers(tmp_path / "log") == list(range(log_start, 91))
        assert numbers(tmp_path / "log", **both) == list(range(1, 91))
        assert numbers(tmp_path / "log", splitBytes="1", maxRecordsPerPartition="7", **both) == list(range(1, 91))
    assert numbers(Path("x"), path=place.as_uri()) == list(range(1, 61))
    part = {"startingOffsets": '{"orders": {"0": 58}}', "endingOffsets": '{"orders": {"0": 64}}'}
    assert numbers(tmp_path / "log", **both, **part) == list(range(58, 64))
    times = {"startingTimestamp": str(NOW_MS + 5 * 60_000), "endingTimestamp": str(NOW_MS + 7 * 60_000)}
    assert numbers(tmp_path / "log", **both, **times) == list(range(51, 71))
    assert planned_bytes(tmp_path / "log", **both, **part) < planned_bytes(tmp_path / "log", **both)


def test_a_stream_asks_for_a_newer_manifest_when_it_needs_one(tmp_path: Path) -> None:
    from tests.spark.test_stream import reader

    partition = example(tmp_path / "log")
    stream = reader(tmp_path / "log", archive=str(tmp_path / "archive"))
    limit = stream.getDefaultReadLimit()
    assert stream.latestOffset(stream.initialOffset(), limit) == {"orders": {"0": 91, "id": 1}}
    archived(tmp_path / "log", tmp_path / "archive")
    overtaken(partition, 61)
    start, end = {"orders": {"0": 1, "id": 1}}, {"orders": {"0": 91, "id": 1}}
    planned = [place for one in stream.partitions(start, end) for task in one.tasks for place in task.ranges]
    assert [place.archived for place in planned] == [True, True, False]
    history = reader(tmp_path, path=(tmp_path / "archive").as_uri())
    assert history.latestOffset(start, limit) == {"orders": {"0": 61, "id": 1}}
    partition.begin_segment()
    partition.mark()
    archived(tmp_path / "log", tmp_path / "archive")
    assert history.latestOffset(start, limit) == end


def test_what_was_removed_before_it_was_archived(tmp_path: Path) -> None:
    from tools.spark.source.plan import DataLoss

    partition = example(tmp_path / "log")
    archived(tmp_path / "log", tmp_path / "archive")
    for _ in range(2):
        partition.begin_segment()
        partition.write([b"x"] * 10)
    overtaken(partition, 91)
    report = archived(tmp_path / "log", tmp_path / "archive")
    assert report.findings == ["orders:0: records 61 to 90 were removed before they were archived"]
    both = {"archive": str(tmp_path / "archive")}
    with pytest.raises(DataLoss, match="records 61 to 90 were removed"):
        numbers(tmp_path / "log", **both)
    assert numbers(tmp_path / "log", failOnDataLoss="false", **both) == [*range(1, 61), *range(91, 111)]
    assert numbers(Path("x"), path=(tmp_path / "archive").as_uri(), failOnDataLoss="false") == [
        *range(1, 61),
        *range(91, 101),
    ]


def test_files_removed_between_planning_and_reading_come_from_the_archive(tmp_path: Path) -> None:
    from tools.spark.source.data_source import BatchReader
    from tools.spark.source.options import parse

    partition = example(tmp_path / "log")
    archived(tmp_path / "log", tmp_path / "archive")
    options = {"path": str(tmp_path / "log"), "archive": str(tmp_path / "archive"), "splitBytes": "1"}
    reader = BatchReader(parse(options), (("offset", True),))
    planned = reader.partitions()
    for path in partition.paths[:2]:
        path.unlink()
    rows = [row for one in planned for batch in reader.read(one) for row in batch.column("offset").to_pylist()]
    assert rows == list(range(1, 91))


def test_damage_is_archived_as_it_is_and_told(tmp_path: Path) -> None:
    from engine.errors import Corrupt

    partition = example(tmp_path / "log")
    damage(partition.paths[0], b"value 15")
    (finding,) = archived(tmp_path / "log", tmp_path / "archive").findings
    assert "00000000000000000001.log: batch body (checksum)" in finding
    overtaken(partition, 61)
    both = {"archive": str(tmp_path / "archive")}
    with pytest.raises(Corrupt, match="lost: records 11 to 20"):
        numbers(tmp_path / "log", **both)
    assert numbers(tmp_path / "log", onCorruption="skip", **both) == [*range(1, 11), *range(21, 91)]


def test_manifests(tmp_path: Path) -> None:
    from engine.errors import Corrupt, DataDirectoryError
    from tools.spark.archive.manifest import Place

    partition = example(tmp_path / "log")
    place = tmp_path / "archive"
    with pytest.raises(DataDirectoryError, match="there is no such directory"):
        numbers(Path("x"), path=place.as_uri())
    for _ in range(15):
        partition.begin_segment()
        partition.write([b"x"])
        partition.mark()
        archived(tmp_path / "log", place)
    assert Place(str(place)).versions() == list(range(15, 4, -1))
    newest = place / f"manifest-{15:020d}.json"
    newest.write_bytes(newest.read_bytes()[:-100])  # as a crash of its writer leaves it
    assert len(Place(str(place)).manifest().segments) == 16
    partition.begin_segment()
    partition.mark()
    report = archived(tmp_path / "log", place)
    assert (report.manifest.version, len(report.manifest.segments)) == (16, 18)
    for path in place.glob("manifest-*"):
        path.write_bytes(b"{}")
    with pytest.raises(Corrupt, match="not a manifest"):
        archived(tmp_path / "log", place)
    other = tmp_path / "other"
    archived(tmp_path / "log", other)
    (tmp_path / "log" / "VERSION").write_text('{"format": 1, "id": 99}')
    for attempt in (lambda: archived(tmp_path / "log", other), lambda: numbers(tmp_path / "log", archive=str(other))):
        with pytest.raises(DataDirectoryError, match="archive of another data directory"):
            attempt()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """A place in an S3 server of its own process."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with (tmp_path / "s3.log").open("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            address = ""
            while not address:
                assert process.poll() is None, (tmp_path / "s3.log").read_text()
                _, _, rest = (tmp_path / "s3.log").read_text().partition("http://")
                address = rest.partition("\n")[0].strip() if "\n" in rest else ""
            urllib.request.urlopen(
                urllib.request.Request(f"http://{address}/history", method="PUT"), timeout=30
            ).close()
            yield f"s3://test:test@history/quintlog?region=us-east-1&scheme=http&endpoint_override={address}"
        finally:
            process.terminate()


def logtool(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.logtool", "--data-dir", str(data_dir), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def publish(process: ServerProcess, first: int, count: int) -> None:
    async def main() -> None:
        async with tank.connect("{}:{}".format(*process.address("tank"))) as client:
            for start in range(first, first + count, 100):
                await client.publish_many(
                    "t", [b"%d " % seq + os.urandom(45).hex().encode() for seq in range(start, start + 100)]
                )

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[str]:
    """A place in an S3 server that refuses everything."""

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        do_HEAD = do_PUT = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as away:
        thread = threading.Thread(target=away.serve_forever)
        thread.start()
        address = f"127.0.0.1:{away.server_port}"
        yield f"s3://user:word@history/quintlog?region=us-east-1&scheme=http&endpoint_override={address}"
        away.shutdown()
        thread.join()


def test_an_archive_that_cannot_be_used_is_named(tmp_path: Path, refusing: str) -> None:
    from engine.errors import DataDirectoryError

    example(tmp_path / "log")
    done = logtool(tmp_path / "log", "archive-segments", refusing)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("logtool: s3://history/quintlog cannot be reached or used: ")
    for options in ({"path": refusing}, {"archive": refusing}):
        with pytest.raises(DataDirectoryError, match="s3://history/quintlog cannot be reached"):
            numbers(tmp_path / "log", **options)


def test_object_storage_and_a_live_server(spark: SparkSession, tmp_path: Path, bucket: str) -> None:
    settings = {
        "topics": {"segment_bytes": "64KiB"},
        "engine": {"housekeeping_interval_ms": "10ms", "retention_grace_ms": "0"},
    }
    with server(tmp_path / "data", settings) as process:
        process.admin("POST", "/v1/topics", {"name": "t"})
        publish(process, 1, 3000)
        done = logtool(process.data_dir, "archive-segments", bucket, "-o", "csv")
        assert (done.returncode, done.stdout.count("\nt,0,")) == (0, int(done.stderr.split()[0])), done.stderr
        assert done.stdout.count("\nt,0,") > 1
        publish(process, 3001, 1000)
        process.admin("POST", "/v1/topics/t/trim", {"partition": 0, "before": 2000})
        assert offsets(read(spark, process.data_dir)) == list(range(2000, 4001))
        both = read(spark, process.data_dir, archive=bucket)
        right = "count(*)", "count(distinct offset)", "sum(int(split(string(value), ' ')[0]))"
        assert both.selectExpr(*right).first() == (4000, 4000, 4000 * 4001 // 2)
        stream = spark.readStream.format("quintlog").options(archive=bucket, startingOffsets="earliest")
        writer = stream.load(str(process.data_dir)).select("offset").writeStream.trigger(availableNow=True)
        query = writer.format("memory").queryName("tiered").start()
        assert query.awaitTermination(60)
        assert spark.sql("select count(*), count(distinct offset) from tiered").first() == (4000, 4000)
    history = spark.read.format("quintlog").schema("offset bigint").load(bucket).selectExpr("max(offset)").first()
    assert history is not None
    assert 2000 < history[0] < 3001
