"""The jobs on directories that a real server wrote, in the one Spark session; the command line as a process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver import tank
from netserver.testing import ServerProcess, server
from tests.spark.conftest import ROOT, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
NOW_MS = 1_795_773_600_000  # 2026-11-27T10:00Z
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
    (finding,) = report["findings"]
    assert (code, finding["kind"], finding["first"]) == (1, "gap", int(gone.stem))
    assert finding["last"] == int(after.stem) - 1
    assert before.exists()
    assert job("audit", "--topic", "orders", "--allow-gaps")[0] == 0


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


# --- the command line


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


def test_a_job_by_spark_submit(data_dir: Path, tmp_path: Path) -> None:
    require_spark()
    import pyspark

    damage(segments(data_dir)[0], b"order 5 ")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program, report = ROOT / "tools/spark/jobs/audit.py", tmp_path / "report.json"
    command = [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", program, "--data-dir", data_dir]
    done = subprocess.run([*command, "--report", report], capture_output=True, text=True, env=environment())
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
        general = page.split("\n## ")[0]
        assert {option for option in options if f"`{option}" not in section + general} == set()
