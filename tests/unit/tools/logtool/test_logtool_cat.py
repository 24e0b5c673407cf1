"""`cat` and `tail` from a directory, a server and a context: the same rows, of one partition and of all by time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.processes import Started
from tests.unit.conftest import Logtool

PARTITIONS = 3
RECORDS = [
    {"value": f"value {n}", "key": f"k{n % 4}", "partition": n % PARTITIONS, "timestamp_ms": 1_700_000_000_000 + n}
    for n in range(30)
]
RECORDS[7] |= {"value_base64": "/wA=", "headers": [{"name": "n", "value": "v"}]}
del RECORDS[7]["value"]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("cat") / "data") as running:
        running.admin("POST", "/v1/topics", {"name": "t", "partitions": PARTITIONS})
        for record in RECORDS:
            fields = {name: value for name, value in record.items() if name != "partition"}
            running.admin("POST", "/v1/topics/t/records", {"records": [fields], "partition": record["partition"]})
        yield running


@pytest.mark.parametrize(
    "words",
    [
        ("cat", "t"),
        ("cat", "t:1"),
        ("cat", "t", "-o", "json"),
        ("cat", "t", "-o", "csv"),
        ("cat", "t", "-o", "jsonl", "--limit", "7"),
        ("cat", "t", "--from", "-2", "--to", "latest"),
        ("cat", "t:0", "--from", "3", "--to", "6"),
        ("cat", "t", "--from", "@1700000000011"),
        ("cat", "t", "--key", "k1", "--contains", "5"),
        ("cat", "t", "--format", "%p %o %k %T %s\\n"),
        ("tail", "t", "--limit", "4"),
        ("tail", "t:2", "--to", "latest"),
    ],
    ids=" ".join,
)
def test_the_same_rows_from_everywhere(words: tuple[str, ...], process: ServerProcess, logtool: Logtool) -> None:
    found = {
        name: logtool(*address, *words)
        for name, address in {
            "directory": ("--data-dir", str(process.data_dir)),
            "server": ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token")),
        }.items()
    }
    assert found["directory"] == found["server"]
    code, out, err = found["directory"]
    assert code == 0
    assert out
    assert ("all 3 partitions, by time" in err) is (":" not in words[1])


def test_a_limit_of_0_means_none_of_those_that_are_there(process: ServerProcess, logtool: Logtool) -> None:
    for command in (("cat", "t:1"), ("tail", "t:1", "--to", "latest")):
        assert logtool("--data-dir", str(process.data_dir), *command, "-n", "0") == (0, "", "")


def test_tail_begins_with_the_newest_of_all_partitions(process: ServerProcess, logtool: Logtool) -> None:
    _, out, _ = logtool("--data-dir", str(process.data_dir), "tail", "t", "--limit", "4", "--format", "%T\\n")
    assert out.splitlines() == [str(record["timestamp_ms"]) for record in RECORDS[-4:]]


def test_all_partitions_by_time(process: ServerProcess, logtool: Logtool) -> None:
    _, out, _ = logtool("--data-dir", str(process.data_dir), "cat", "t", "--format", "%p %T\\n")
    assert out.splitlines() == [f"{record['partition']} {record['timestamp_ms']}" for record in RECORDS]


@pytest.mark.parametrize("by", ["directory", "server"])
def test_tail_prints_each_new_record_of_every_partition(by: str, process: ServerProcess, tmp_path: Path) -> None:
    topic = f"new-{by}"
    process.admin("POST", "/v1/topics", {"name": topic, "partitions": 2})
    process.admin("POST", f"/v1/topics/{topic}/records", {"records": [{"value": "old"}]})
    address = {
        "directory": ["--data-dir", str(process.data_dir)],
        "server": ["--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token")],
    }[by]
    command = [sys.executable, "-m", "tools.logtool", *address, "tail", topic, "--limit", "4"]
    with Started(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "old\n"
        for n in range(3):
            body = {"records": [{"value": f"new {n}"}], "partition": n % 2}
            process.admin("POST", f"/v1/topics/{topic}/records", body)
            assert program.stdout.readline() == f"new {n}\n"
    assert program.returncode == 0


def test_a_server_that_goes_away_is_told(process: ServerProcess, logtool: Logtool) -> None:
    code, out, err = logtool("--server", "http://127.0.0.1:9", "cat", "t")
    assert (code, out) == (3, "")
    assert "no server answers" in err
