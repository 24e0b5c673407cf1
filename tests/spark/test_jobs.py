"""The jobs on directories that a real server wrote, in the one Spark session; the command line as a process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver import blipmq, tank
from netserver.testing import ServerProcess, server
from tests.spark.conftest import ROOT, require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
NOW_MS = 1_795_773_600_000  # 2026-11-27T10:00Z
pytestmark = pytest.mark.timeout(300)
A_SPARK_OF_ITS_OWN = pytest.mark.skipif(
    os.environ.get("QUINTLOG_NIGHTLY") != "1", reason="a Spark of its own; QUINTLOG_NIGHTLY=1 runs it"
)
Job = Callable[..., tuple[int, dict[str, Any]]]


def publish(process: ServerProcess, topic: str, records: list[dict[str, Any]]) -> None:
    process.admin("POST", f"/v1/topics/{topic}/records", {"records": records})


def orders(first: int, count: int) -> list[dict[str, Any]]:
    """Every 100 records another day; 7 keys; 700 bytes each."""
    return [
        {"value": f"order {n} ".ljust(700, "."), "key": f"key {n % 7}", "timestamp_ms": NOW_MS + n // 100 * DAY_MS}
        for n in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 orders of three days in several segments, and two partitions of clicks."""
    require_spark()
    data_dir = tmp_path_factory.mktemp("jobs") / "data"

    async def clicks(process: ServerProcess) -> None:
        async with tank.connect("{}:{}".format(*process.address("tank"))) as client:
            await client.create_topic("clicks", partitions=2)
            for partition in (0, 1):
                await client.publish_many(
                    "clicks", [b"click %d %d" % (partition, n) for n in range(50)], partition=partition
                )

    with server(data_dir, {"topics": {"segment_bytes": "64KiB"}}) as process:
        for first in range(0, 300, 20):
            publish(process, "orders", orders(first, 20))
        asyncio.run(asyncio.wait_for(clicks(process), 60))
    return data_dir


@pytest.fixture
def data_dir(written: Path, tmp_path: Path) -> Path:
    """A copy to work on."""
    return Path(shutil.copytree(written, tmp_path / "data"))


@pytest.fixture
def job(spark: SparkSession, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> Job:
    """Runs a job on the copy: its exit code and its report."""

    def run(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = import_module(f"tools.spark.jobs.{name}").main(["--data-dir", str(data_dir), *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


def segments(data_dir: Path, topic_id: int = 1) -> list[Path]:
    return sorted((data_dir / "topics" / str(topic_id) / "0").glob("*.log"))


def damage(path: Path, text: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(text)] ^= 1
    path.write_bytes(content)


def environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


def submit(name: str, *arguments: str) -> list[str]:
    """The command that runs a job by spark-submit; to be run in `environment`."""
    import pyspark

    import tools.spark.jobs

    program = Path(tools.spark.jobs.__file__).with_name(f"{name}.py")
    found = [f"{Path(pyspark.__file__).parent}/bin/spark-submit", "--master", "local[1]"]
    return [*found, "--conf", "spark.ui.enabled=false", str(program), *arguments]


# --- audit


def test_audit_of_a_sound_log(job: Job, data_dir: Path) -> None:
    assert len(segments(data_dir)) > 2
    code, report = job("audit", "--doubles")
    assert (code, report["findings"]) == (0, [])
    found = {(line["topic"], line["partition"]): (line["records"], line["last"]) for line in report["partitions"]}
    assert found == {("orders", 0): (300, 300), ("clicks", 0): (50, 50), ("clicks", 1): (50, 50)}


def test_audit_finds_a_damaged_batch(job: Job, data_dir: Path) -> None:
    path = segments(data_dir)[1]
    first = int(path.stem)
    damage(path, b"order %d " % (first + 5))
    code, report = job("audit", "--topic", "orders")
    (finding,) = report["findings"]
    assert (code, finding["kind"], finding["file"]) == (1, "damage", str(path))
    assert finding["first"] <= first + 6 <= finding["last"]
    assert finding["last"] - finding["first"] == 19
    assert sum(line["records"] for line in report["partitions"]) == 280


def test_audit_finds_what_is_missing(job: Job, data_dir: Path) -> None:
    before, gone, after = segments(data_dir)[:3]
    gone.unlink()
    code, report = job("audit", "--topic", "orders")
    assert (code, {finding["kind"] for finding in report["findings"]}) == (1, {"segment", "gap"})
    for finding in report["findings"]:
        assert (finding["first"], finding["last"]) == (int(gone.stem), int(after.stem) - 1)
    assert before.exists()
    code, report = job("audit", "--topic", "orders", "--allow-gaps")  # of numbers, not of files
    assert (code, [finding["kind"] for finding in report["findings"]]) == (1, ["segment"])


def test_audit_finds_doubles_and_numbers_left_out(job: Job, data_dir: Path) -> None:
    async def left_out(process: ServerProcess) -> None:
        async with tank.connect("{}:{}".format(*process.address("tank"))) as client:
            await client.publish_many("clicks", [b"a", b"b"], seqs=[60, 70])

    with server(data_dir) as process:
        publish(process, "orders", orders(41, 1))
        asyncio.run(asyncio.wait_for(left_out(process), 60))
    code, report = job("audit", "--doubles")
    kinds = {finding["kind"]: finding for finding in report["findings"]}
    assert (code, sorted(kinds)) == (1, ["double", "gap"])
    assert kinds["double"]["places"] == [[0, 42], [0, 301]]
    assert (kinds["gap"]["first"], kinds["gap"]["last"]) == (51, 59)


# --- archive


def archived(spark: SparkSession, out: Path) -> list[tuple[Any, ...]]:
    """Topic, partition, offset and value of every record, as any reader of Parquet sees them."""
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(out, partitioning="hive").to_table()
    rows = zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset", "value")), strict=True)
    found = sorted((str(topic), *rest) for topic, *rest in rows)
    frame = spark.read.parquet(str(out)).select("topic", "partition", "offset", "value")
    assert sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in frame.collect()) == found
    return found


def stored(spark: SparkSession, data_dir: Path) -> list[tuple[Any, ...]]:
    frame = spark.read.format("quintlog").load(str(data_dir))
    return sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in frame.collect())


def test_archive_is_incremental(spark: SparkSession, job: Job, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, report = job("archive", "--out", str(out), "--batch-bytes", "65536")
    assert (code, report["records"], len(report["batches"]) > 2) == (0, 400, True)
    assert archived(spark, out) == stored(spark, data_dir)
    assert {path.name for path in (out / "topic=orders").iterdir()} == {f"date=2026-11-{day}" for day in (27, 28, 29)}
    assert job("archive", "--out", str(out))[1]["records"] == 0
    with server(data_dir) as process:
        publish(process, "orders", [{"value": "v", "headers": [{"name": "n", "value": "w"}]}])
        publish(process, "later", orders(0, 5))
    assert job("archive", "--out", str(out))[1]["records"] == 6
    assert archived(spark, out) == stored(spark, data_dir)
    (row,) = spark.read.parquet(str(out)).where("headers is not null").collect()
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("n", b"w")]


def test_archive_after_failures_in_the_middle(
    spark: SparkSession, job: Job, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools.spark.jobs import archive

    out, write_batch, failures = tmp_path / "out", archive.write_batch, iter(("before", "behind", "behind"))

    def failing(rows: DataFrame, number: int, place: str) -> int:
        failure = next(failures, None) if number in (1, 3) else None
        written = write_batch(rows, number, place) if failure != "before" else 0
        if failure == "behind":  # an attempt that was killed while it moved its files left another one here
            folder = next(out.glob(f"topic=*/date=*/batch={number}"))
            shutil.copy(next(folder.glob("*.parquet")), folder / "part-left.parquet")
        if failure is not None:
            raise OSError("injected")
        return written

    monkeypatch.setattr(archive, "write_batch", failing)
    for _ in range(3):
        with pytest.raises(Exception, match="injected"):
            job("archive", "--out", str(out), "--batch-bytes", "65536")
    job("archive", "--out", str(out), "--batch-bytes", "65536")
    assert archived(spark, out) == stored(spark, data_dir)


@A_SPARK_OF_ITS_OWN
def test_archive_killed_by_a_signal(spark: SparkSession, job: Job, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = submit("archive", "--data-dir", str(data_dir), "--out", str(out), "--batch-bytes", "1")
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, env=environment()) as killed:
        try:
            while killed.poll() is None and not list(out.glob("topic=*/date=*/batch=*/*.parquet")):
                time.sleep(0.1)
            assert killed.poll() is None, "it ended before it could be killed"
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
    before = len(list((out / "_checkpoint" / "commits").glob("[0-9]*")))
    code, report = job("archive", "--out", str(out), "--batch-bytes", "65536")
    assert (code, before <= report["batches"][0]["batch"]) == (0, True)
    assert archived(spark, out) == stored(spark, data_dir)


# --- stats


async def fall_behind(process: ServerProcess) -> None:
    """A subscription that has acknowledged 2 of 10 records."""
    address = "{}:{}".format(*process.address("blipmq"))
    async with blipmq.connect(address) as client, client.subscribe("late", qos=1) as subscription:
        await client.publish_many("late", [b"%d" % n for n in range(10)])
        for _ in range(2):
            await (await anext(aiter(subscription))).ack()


def test_stats(job: Job, data_dir: Path, tmp_path: Path) -> None:
    code, report = job("stats", "--topic", "orders", "--from", "51", "--plots", str(tmp_path / "plots"))
    assert code == 0
    (line,) = report["partitions"]
    assert (line["topic"], line["records"], line["bytes"]) == ("orders", 250, 175_000)
    assert (line["first"], line["last"]) == ("2026-11-27T10:00:00+00:00", "2026-11-29T10:00:00+00:00")
    assert set(line["sizes"]) == {700}
    assert report["every_s"] == 3600
    assert [(rate["start"], rate["records"]) for rate in report["rates"]] == [
        ("2026-11-27T10:00:00+00:00", 50),
        ("2026-11-28T10:00:00+00:00", 100),
        ("2026-11-29T10:00:00+00:00", 100),
    ]
    assert [(key["key"], key["records"]) for key in report["keys"]][4:6] == [("key 5", 36), ("key 0", 35)]
    assert len(report["keys"]) == 7
    assert [Path(path).name for path in report["plots"]] == ["rates.png", "sizes.png", "keys.png"]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in report["plots"])


def test_stats_of_lag(job: Job, data_dir: Path, tmp_path: Path) -> None:
    with server(data_dir) as process:
        asyncio.run(asyncio.wait_for(fall_behind(process), 60))
    _, report = job("stats", "--topic", "late", "--every", "60", "--plots", str(tmp_path))
    (item,) = report["lag"]
    assert (item["topic"], item["protocol"], item["lag"]) == ("late", "blipmq", 8)
    assert [Path(path).name for path in report["plots"]] == ["rates.png", "sizes.png", "lag.png"]
    shutil.rmtree(data_dir / "state")
    assert job("stats", "--topic", "late")[1]["lag"] is None


# --- the command line


@A_SPARK_OF_ITS_OWN
def test_exit_code_by_spark_submit(data_dir: Path, tmp_path: Path) -> None:
    damage(segments(data_dir)[0], b"order 5 ")
    report = tmp_path / "report.json"
    command = submit("audit", "--data-dir", str(data_dir), "--report", str(report))
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 1, done.stderr + done.stdout
    assert [finding["kind"] for finding in json.loads(report.read_text())["findings"]] == ["damage"]


def test_logtool_runs_a_job(
    spark: SparkSession, data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools.logtool.run import run

    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert run(["--data-dir", str(data_dir), "spark", "--conf", "spark.a=b c", "audit", "--topic", "orders"]) == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["records"] == 300
    assert "--conf 'spark.a=b c' pyspark-shell" in os.environ["PYSPARK_SUBMIT_ARGS"]
    assert run(["--data-dir", str(data_dir), "spark", "audit", "--topic", "none"]) == 5
    damage(segments(data_dir)[0], b"order 5 ")
    assert run(["--data-dir", str(data_dir), "spark", "audit"]) == 1
    assert run(["--data-dir", str(data_dir / "none"), "spark", "audit"]) == 3
    assert run(["spark", "fly"]) == 2
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    capsys.readouterr()
    assert run(["--data-dir", str(data_dir), "spark", "audit"]) == 3
    assert "openjdk-17" in capsys.readouterr().err


def test_what_cannot_work_fails_before_java_starts(data_dir: Path, tmp_path: Path) -> None:
    """In a process without a session; its Java writes down that it was started."""
    java, started = tmp_path / "bin" / "java", tmp_path / "started"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch '{started}'\nexit 1\n")
    java.chmod(0o755)
    lines = [
        [
            "--data-dir",
            directory,
            "spark",
            name,
            *(("--out", str(tmp_path / "out")) if name == "archive" else ()),
            *more,
        ]
        for name in ("archive", "audit", "dlq", "stats")
        for directory, more in ((str(tmp_path / "none"), ()), (str(data_dir), ("--topic", "none")))
    ]
    code = f"from tools.logtool.run import run\nprint([run(line) for line in {lines!r}])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment() | {"JAVA_HOME": str(tmp_path)}, cwd=ROOT
    )
    assert done.stdout == "[3, 5, 3, 5, 3, 5, 3, 5]\n", done.stderr
    assert not started.exists(), done.stderr


def test_every_job_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    require_spark()
    from tools.logtool.run import run
    from tools.spark.jobs import JOBS

    assert run(["spark", "-o", "json"]) == 0
    assert {item["name"] for item in json.loads(capsys.readouterr().out)["items"]} == set(JOBS)
    page = (ROOT / "docs" / "spark-jobs.md").read_text()
    for name in JOBS:
        with pytest.raises(SystemExit) as end:
            import_module(f"tools.spark.jobs.{name}").main(["--help"])
        assert end.value.code == 0
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        general = page.split("\n## ")[0] + page.split("\n## Jobs that write\n")[1].split("\n## ")[0]
        assert {option for option in options if f"`{option}" not in section + general} == set()
