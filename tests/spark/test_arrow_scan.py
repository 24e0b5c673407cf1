"""`quintlog.scan`: a log as Arrow record batches, and the tools that take those."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import quintlog
from netserver.testing import server
from tests.stored_log import NOW_MS, StoredPartition, example, make_directory

pytest.importorskip("pyarrow", reason="ARROW IS NOT TESTED: pip install -e '.[arrow]'")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "arrow.md"


def numbers(path: Path, *arguments: Any, **named: Any) -> list[int]:
    found: list[int] = quintlog.scan(path, *arguments, columns=["offset"], **named).read_all().column(0).to_pylist()
    return found


def damage(path: Path, text: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(text)] ^= 1
    path.write_bytes(content)


def test_all_columns(tmp_path: Path) -> None:
    example(tmp_path)
    table = quintlog.scan(tmp_path).read_all()
    assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value"]
    rows = table.to_pylist()
    first = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    expected = {"topic": "orders", "partition": 0, "offset": 1, "timestamp": first, "key": None, "value": b"value 1"}
    assert rows[0] == expected
    assert [row["value"] for row in rows] == [b"value %d" % number for number in range(1, 91)]
    chosen = quintlog.scan(tmp_path, columns=["VALUE", "headers", "timestampType"]).schema
    assert chosen.names == ["value", "headers", "timestampType"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(1, 91)),
        (25, 65, range(25, 65)),
        ("-10", "latest", range(81, 91)),
        (0, "+5", range(1, 6)),
        ("@2026-11-27T10:03Z", datetime(2026, 11, 27, 10, 5, tzinfo=UTC), range(31, 51)),
        (datetime(2026, 11, 27, 10, 8), 1000, range(81, 91)),  # noqa: DTZ001 - without a zone it is UTC
        (50, 40, range(0)),
        ("latest", "latest", range(0)),
    ],
)
def test_positions(tmp_path: Path, start: Any, end: Any, expected: range) -> None:
    example(tmp_path)
    assert numbers(tmp_path, "orders", start, end) == list(expected)


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"topics": "none"}, "no topic none"),
        ({"topics": ["orders", "none"]}, "no topic none"),
        ({"columns": ["ofset"]}, "unknown column 'ofset'; did you mean offset"),
        ({"columns": "offset"}, "expected a list of names"),
        ({"columns": ["offset", "OFFSET"]}, "each once"),
        ({"start": "yesterday"}, "start is 'yesterday': expected earliest, latest"),
        ({"end": -5}, "end is -5: expected a number (0 or more)"),
        ({"start": True}, "start is True"),
        ({"path": ""}, "no data directory"),
    ],
)
def test_what_is_refused(tmp_path: Path, named: dict[str, Any], text: str) -> None:
    example(tmp_path)
    with pytest.raises(ValueError, match=re.escape(text)):
        quintlog.scan(**({"path": tmp_path} | named))


def test_topics_and_partitions_in_order(tmp_path: Path) -> None:
    watermarks = make_directory(tmp_path)
    for number, (name, index) in enumerate([(b"b", 0), (b"a", 1), (b"a", 0), (b"c", 0)], 1):
        one = StoredPartition(tmp_path, watermarks, name=name, topic_id=name[0], index=index, number=number)
        one.begin_segment(partitions=2)
        one.write([b"x"] * 2)
        one.mark()
    table = quintlog.scan(tmp_path, ["b", "a"], columns=["topic", "partition", "offset"]).read_all()
    keys = [tuple(row.values()) for row in table.to_pylist()]
    assert keys == [("a", 0, 1), ("a", 0, 2), ("a", 1, 1), ("a", 1, 2), ("b", 0, 1), ("b", 0, 2)]


def test_damage_and_loss_are_told_when_they_are_met(tmp_path: Path) -> None:
    from engine.errors import Corrupt, EngineError

    partition = StoredPartition(tmp_path, make_directory(tmp_path))
    for _ in range(3):
        partition.begin_segment()
        partition.write([bytes(1000)] * 20_000)
        partition.write([b"value %d" % number for number in range(10)])
    partition.mark()
    damage(partition.paths[2], b"value 5")
    reader = quintlog.scan(tmp_path)
    assert reader.read_next_batch().num_rows > 0  # nothing behind was looked at
    with pytest.raises(Corrupt, match="lost: records 60021 to 60030"):
        reader.read_all()
    assert numbers(tmp_path, skip_damage=True) == list(range(1, 60_021))
    reader = quintlog.scan(tmp_path)
    reader.read_next_batch()
    partition.paths[1].unlink()
    with pytest.raises(EngineError, match="was removed while it was read; lost: records 20011 to 40020"):
        reader.read_all()


def test_archives(tmp_path: Path) -> None:
    from tools.spark.archive.archiving import archive
    from tools.spark.archive.manifest import Place

    log, place = tmp_path / "log", tmp_path / "archive"
    partition = example(log)
    archive(log, Place(str(place)))
    assert numbers(place) == numbers(Path(place), "orders") == list(range(1, 61))
    partition.log_start = 41
    partition.mark()
    assert numbers(log) == list(range(41, 91))
    assert numbers(log, archive=place) == list(range(1, 91))


def test_spark_is_not_needed() -> None:
    code = "import sys, quintlog; quintlog.scan; print([n for n in sys.modules if n in ('pyspark', 'click', 'lmdb')])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import quintlog; quintlog.scan('data')"],
        cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "ImportError: quintlog.scan needs pyarrow: pip install 'quintlog[arrow]'"


def test_an_error_reaches_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    partition = example(tmp_path)
    records = quintlog.scan(tmp_path)
    assert duckdb.sql('SELECT count(*), sum("offset") FROM records').fetchall() == [(90, 4095)]
    damage(partition.paths[0], b"value 15")
    records = quintlog.scan(tmp_path)  # noqa: F841 - DuckDB finds it by its name
    with pytest.raises(Exception, match="lost: records 11 to 20"):
        duckdb.sql("SELECT count(*) FROM records").fetchall()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log called data, as the page's examples name it."""
    found = tmp_path_factory.mktemp("examples")
    with server(found / "data") as process:
        records = [{"value": f"order {number}"} for number in range(20)]
        process.admin("POST", "/v1/topics/orders/records", {"records": records})
    return found


@pytest.mark.parametrize("tool", ["duckdb", "polars", "pandas", "pyarrow"])
def test_examples_of_the_page(place: Path, tool: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    pytest.importorskip(tool, reason=f"{tool.upper()} IS NOT TESTED: pip install -e '.[test]'")
    used = "read_pandas()" if tool == "pandas" else f"import {tool}"
    (block,) = [block for block in blocks if used in block and "deltalake" not in block]
    command = [sys.executable, "-W", "error", "-c", block]
    path = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=place, env=path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    shown = "order 0" in done.stdout if tool == "pandas" else "20" in done.stdout
    assert shown or (place / "orders-parquet").is_dir()
