"""Executors in processes of their own, to which the code is shipped; tasks, executors and drivers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import require_spark
from tests.stored_log import NOW_MS, StoredPartition, make_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROWS, ROWS_PER_TRIGGER, KILLS = (500_000, 10_000, 4) if NIGHTLY else (8_000, 2_000, 1)
OURS = ("__editable__", "quintlog", "engine", "netserver", "tools", "pyspark_quintlog")


def fill(data_dir: Path) -> None:
    partition = StoredPartition(data_dir, make_directory(data_dir))
    for first in range(1, ROWS + 1, 200):
        if first % 40_000 == 1:
            partition.begin_segment()
        partition.write([b"value %d" % seq for seq in range(first, first + 200)], now_ms=NOW_MS + first)
    partition.mark()


def environment(place: Path) -> dict[str, str]:
    """Executors whose Python has every library, but nothing of this project; a Spark home that may be written to."""
    import pyspark

    from tools.spark.package import ROOT

    libraries = place / "libraries"
    libraries.mkdir()
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        if not found.name.startswith(OURS) and found.suffix != ".pth":
            (libraries / found.name).symlink_to(found)
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    home = place / "home"
    home.mkdir()
    for found in Path(pyspark.__file__).parent.iterdir():
        (home / found.name).symlink_to(found)
    return os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "scratch"),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": f"{libraries}{os.pathsep}{ROOT}",
        "EXECUTOR_PATH": str(libraries),
    }


class Driver:
    """A driver that reads on until it is killed."""

    def __init__(self, log: Path, place: Path, variables: dict[str, str]) -> None:
        command = [sys.executable, str(Path(__file__).with_name("cluster_query.py"))]
        self.log = (place / "driver.log").open("a+")
        self.process = subprocess.Popen(
            [*command, str(log), str(place), str(ROWS_PER_TRIGGER)],
            env=variables, cwd=place, stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True,
        )  # fmt: skip

    def answer(self) -> dict[str, Any]:
        """What the query by batch found."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.kill()
            pytest.fail(Path(self.log.name).read_text()[-5000:])
        found: dict[str, Any] = json.loads(line)
        return found

    def kill_after_batch(self, path: Path) -> None:
        """kill -9 of it, its JVM and its executors as soon as that batch is begun."""
        deadline = time.monotonic() + 300
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                pytest.fail(Path(self.log.name).read_text()[-5000:])
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.log.close()


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHTLY else 600)
def test_a_cluster_whose_parts_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    require_spark()
    from tools.spark.package import write_package

    log, place = tmp_path / "log", tmp_path / "place"
    place.mkdir()
    fill(log)
    write_package(place / "quintlog.zip")
    variables = environment(place)
    batches_per_life = ROWS // ROWS_PER_TRIGGER // 2 // KILLS
    for life in range(1, KILLS + 1):
        driver = Driver(log, place, variables)
        answer = driver.answer()
        assert answer["totals"] == [ROWS, ROWS * (ROWS + 1) // 2, ROWS]
        assert len({pid for pid, _ in answer["modules"]}) == 2  # two executors
        assert all("quintlog.zip" in where for _, where in answer["modules"])
        driver.kill_after_batch(place / "checkpoint" / "offsets" / str(life * batches_per_life))
    assert (place / "task died").exists()
    assert (place / "executor died").exists()
    source = spark.readStream.format("quintlog").option("maxOffsetsPerTrigger", str(ROWS // 4)).load(str(log))
    writer = source.select("offset", "value").writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(place / "checkpoint")).start(str(place / "out"))
    assert query.awaitTermination(600)
    out = spark.read.parquet(str(place / "out"))
    right = "sum(int(cast(value as string) = concat('value ', offset)))"
    row = out.selectExpr("count(*)", "count(distinct offset)", "min(offset)", "max(offset)", right).first()
    assert row is not None
    assert tuple(row) == (ROWS, ROWS, 1, ROWS, ROWS)
