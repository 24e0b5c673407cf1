"""`logtool archive-table`: a Delta Lake table that has each record once, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

import quintlog
from tests.processes import Started
from tests.spark.test_manifest import bucket, refusing
from tests.stored_log import NOW_MS, StoredPartition, example, make_directory

pytest.importorskip("deltalake", reason="DELTA LAKE IS NOT TESTED: pip install -e '.[delta]'")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "arrow.md"
NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROWS, KILLS = (400_000, 40) if NIGHTLY else (40_000, 2)
__all__ = ["bucket", "refusing"]


def command(data_dir: Path, place: Path | str, *arguments: str) -> list[str]:
    words = [sys.executable, "-m", "tools.logtool", "--data-dir", str(data_dir), "archive-table", str(place)]
    return [*words, *arguments]


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables


def logtool(data_dir: Path, place: Path | str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = command(data_dir, place, *arguments)
    return subprocess.run(words, capture_output=True, text=True, env=environment(**variables), timeout=100)


def kept(data_dir: Path, place: Path | str, commit_bytes: int = 1 << 30, **options: str) -> list[Any]:
    """Runs it in this process: the commits that it made."""
    from tools.spark.archive.table import Commit, keep
    from tools.spark.source.options import parse

    commits: list[Commit] = []
    keep(parse({"path": str(data_dir)} | options), str(place), commit_bytes, commits.append)
    return commits


def rows(place: Path | str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(str(place)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["topic"] or "", row["partition"], row["offset"]))


def offsets(place: Path) -> list[int]:
    return [row["offset"] for row in rows(place)]


def test_columns_and_what_is_new(tmp_path: Path) -> None:
    partition = example(tmp_path / "log")
    place = tmp_path / "table"
    done = logtool(tmp_path / "log", place, "-o", "json")
    assert done.returncode == 0, done.stderr
    (item,) = json.loads(done.stdout)["items"]
    assert (item["version"], item["records"]) == (1, 90)
    found = rows(place)
    assert found[0] == {
        "topic": "orders",
        "date": date(2026, 11, 27),
        "topic_id": 1,
        "partition": 0,
        "offset": 1,
        "timestamp": datetime.fromtimestamp(NOW_MS / 1000, UTC),
        "key": None,
        "value": b"value 1",
        "headers": None,
    }
    log = quintlog.scan(tmp_path / "log", columns=["offset", "timestamp", "value"]).read_all().to_pylist()
    assert [{name: row[name] for name in ("offset", "timestamp", "value")} for row in found] == log
    assert kept(tmp_path / "log", place) == []
    partition.write([b"later"])
    partition.mark()
    assert [commit.records for commit in kept(tmp_path / "log", place)] == [1]
    assert offsets(place) == list(range(1, 92))
    done = logtool(tmp_path / "log", tmp_path / "none", "--topic", "order", "--topic", "x*")
    assert (done.returncode, "has such a name" in done.stderr) == (5, True)
    assert not (tmp_path / "none").exists()


def test_commits_of_many_partitions(tmp_path: Path) -> None:
    watermarks = make_directory(tmp_path / "log")
    for number, (name, index) in enumerate([(b"a", 0), (b"a", 1), (b"", 0), (b"x/y = 1", 0)], 1):
        one = StoredPartition(tmp_path / "log", watermarks, name=name, topic_id=number, index=index, number=number)
        one.topic_id = 1 if name == b"a" else number
        one.begin_segment(partitions=2)
        for _ in range(5):
            one.write([b"x" * 100] * 10, now_ms=NOW_MS)
        one.mark()
    commits = kept(tmp_path / "log", tmp_path / "table", commit_bytes=1)
    assert [commit.records for commit in commits] == [50, 50, 50, 50]
    found = [(row["topic"], row["partition"], row["offset"]) for row in rows(tmp_path / "table")]
    assert [key[2] for key in found] == [*range(1, 51)] * 4
    assert {key[:2] for key in found} - {("", 0), (None, 0)} == {("a", 0), ("a", 1), ("x/y = 1", 0)}


def value(seq: int) -> bytes:
    return (b"value %d " % seq).ljust(100, b".")


def test_each_record_once_though_runs_are_killed(tmp_path: Path) -> None:
    partition = StoredPartition(tmp_path / "log", make_directory(tmp_path / "log"))
    for first in range(1, ROWS + 1, 200):
        if first % (ROWS // 8) == 1:
            partition.begin_segment()
        partition.write([value(seq) for seq in range(first, first + 200)], now_ms=NOW_MS + first * 2000)
    partition.mark()
    place, chance = tmp_path / "table", random.Random(17)
    log = place / "_delta_log"
    for kill in range(1, KILLS + 1):
        words = command(tmp_path / "log", place, "--commit-bytes", "64k")
        with Started(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 100
            begun = len(list(log.glob("*.json"))) if kill > 1 else 0
            while process.poll() is None and len(list(log.glob("*.json"))) < begun + 2:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(chance.random() * 0.1)  # anywhere within a commit
            process.kill()
        found = offsets(place)
        assert found == list(range(1, len(found) + 1))
        assert len(found) < ROWS
    assert logtool(tmp_path / "log", place, "--commit-bytes", "1m").returncode == 0
    found = rows(place)
    assert [row["offset"] for row in found] == list(range(1, ROWS + 1))
    assert all(row["value"] == value(row["offset"]) for row in found)
    assert {row["date"] for row in found} == {row["timestamp"].date() for row in found}


def test_two_runs_at_once(tmp_path: Path) -> None:
    from tools.spark.archive.table import Overtaken, Table, keep
    from tools.spark.source.options import parse

    partition = example(tmp_path / "log")
    place = tmp_path / "table"

    def overtake(_: object) -> None:
        kept(tmp_path / "log", place)

    with pytest.raises(Overtaken, match="another run has added to"):
        keep(parse({"path": str(tmp_path / "log")}), str(place), 1, overtake)
    assert kept(tmp_path / "log", place) == []
    assert offsets(place) == list(range(1, 91))
    partition.write([b"x"])
    with pytest.raises(Exception, match="not a table of this data directory"):
        Table(str(place), 99)


def test_damage_and_loss(tmp_path: Path) -> None:
    from engine.errors import Corrupt, DataDirectoryError
    from tools.spark.source.plan import DataLoss

    log, place = tmp_path / "log", tmp_path / "table"
    partition = example(log)
    content = bytearray(partition.paths[1].read_bytes())
    content[content.index(b"value 45")] ^= 1
    partition.paths[1].write_bytes(content)
    with pytest.raises(Corrupt, match="lost: records 41 to 50"):
        kept(log, place)
    assert rows(place) == []  # nothing of that commit
    done = logtool(log, place)
    assert (done.returncode, "--skip-damage" in done.stderr) == (1, True)
    assert [commit.records for commit in kept(log, place, onCorruption="skip")] == [80]
    partition.begin_segment()
    partition.write([b"x"] * 10)
    partition.log_start = 96
    partition.mark()
    with pytest.raises(DataLoss, match="records 91 to 95 were removed"):
        kept(log, place)
    done = logtool(log, place, "--allow-loss")
    assert (done.returncode, "records 91 to 95 were removed" in done.stderr) == (0, True)
    assert offsets(place) == [*range(1, 41), *range(51, 91), *range(96, 101)]
    older = tmp_path / "older"
    example(older)
    with pytest.raises(DataDirectoryError, match="an older copy"):
        kept(older, place)


def test_numbers_outlive_the_log_of_the_table(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    partition = example(tmp_path / "log")
    place = tmp_path / "table"
    kept(tmp_path / "log", place, commit_bytes=1)
    table = DeltaTable(str(place))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    for path in sorted((place / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    partition.write([b"later"])
    partition.mark()
    assert [commit.records for commit in kept(tmp_path / "log", place)] == [1]
    assert offsets(place) == list(range(1, 92))


def test_times_that_delta_cannot_state(tmp_path: Path) -> None:
    partition = StoredPartition(tmp_path / "log", make_directory(tmp_path / "log"))
    partition.begin_segment()
    partition.write([b"x"], now_ms=1 << 62)
    partition.mark()
    kept(tmp_path / "log", tmp_path / "table")
    (row,) = rows(tmp_path / "table")
    assert (row["date"], row["timestamp"].year) == (date(9999, 12, 31), 9999)


def test_examples_of_the_page(tmp_path: Path) -> None:
    for library in ("duckdb", "polars"):
        pytest.importorskip(library, reason=f"{library.upper()} IS NOT TESTED: pip install -e '.[test]'")
    example(tmp_path / "data")
    text = PAGE.read_text().partition("## A Delta Lake table")[2]
    (words,) = re.findall(r"^\$ logtool --data-dir data archive-table (.*)$", text, re.MULTILINE)
    place, *rest = words.split()
    assert logtool(tmp_path / "data", tmp_path / place, *rest).returncode == 0
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "compact" in block or ("90" in done.stdout and "orders" in done.stdout)


def test_object_storage(tmp_path: Path, bucket: str) -> None:
    example(tmp_path / "log")
    address = bucket.rpartition("=")[2]
    variables = {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    for records in (90, 0):
        done = logtool(tmp_path / "log", "s3://history/table", "--commit-bytes", "1k", "-o", "json", **variables)
        assert done.returncode == 0, done.stderr
        assert sum(item["records"] for item in json.loads(done.stdout)["items"]) == records
    for name, value in variables.items():
        os.environ[name] = value
    try:
        assert [row["offset"] for row in rows("s3://history/table")] == list(range(1, 91))
    finally:
        for name in variables:
            del os.environ[name]


def test_a_place_that_refuses(tmp_path: Path, refusing: str) -> None:
    example(tmp_path / "log")
    address = refusing.rpartition("=")[2]
    keys = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "word", "AWS_REGION": "us-east-1"}
    done = logtool(
        tmp_path / "log", "s3://history/table", AWS_ENDPOINT_URL=f"http://{address}", AWS_ALLOW_HTTP="true", **keys
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1
    assert "s3://history/table" in done.stderr
