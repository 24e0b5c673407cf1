"""logtool beside a running server, through it, and on the files once it is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.processes import Started
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("log") / "data") as process:
        yield process


@pytest.mark.parametrize("address", ["127.0.0.1:x", "127.0.0.1:0", ":1", "[::1"])
def test_publish_to_what_is_no_address_is_a_usage_error(logtool: Logtool, address: str) -> None:
    code, _, err = logtool("publish", "t", os.devnull, "--via", f"figg={address}")
    assert code == 2
    assert f"not an address: '{address}': expected HOST:PORT" in err


def publish(process: ServerProcess, topic: str, values: list[str]) -> None:
    process.admin("POST", f"/v1/topics/{topic}/records", {"records": [{"value": value} for value in values]})


def test_topics_through_the_server(shared_server: ServerProcess, logtool: Logtool) -> None:
    place = ["--data-dir", str(shared_server.data_dir)]
    assert logtool(*place, "topics", "create", "a", "--partitions", "3", "retention=7d") == (0, "", "made a\n")
    assert logtool(*place, "topics", "create", "a")[0] == 6
    code, _, err = logtool(*place, "topics", "create", "b", "retentio=7d")
    assert code == 2
    assert "retention" in err
    assert logtool(*place, "topics", "set", "a", "retention=default", "segment_bytes=64KiB")[0] == 0
    address = ["--server", shared_server.admin_url, "--token-file", str(shared_server.data_dir / "admin.token")]
    for where in (place, address):
        (item,) = json.loads(logtool(*where, "topics", "list", "a*", "-o", "json")[1])["items"]
        assert (item["name"], item["partitions"], item["settings"]) == ("a", 3, {"segment_bytes": "64KiB"})
        assert logtool(*where, "topics", "list", "z*", "-o", "jsonl") == (0, "", "")
        shown = json.loads(logtool(*where, "topics", "show", "a", "-o", "json")[1])["items"][0]
        assert (shown["id"], shown["partition_details"]) == (item["id"], [])
        assert logtool(*where, "topics", "show", "z")[0] == 5
    assert logtool(*place, "topics", "delete", "a")[0] == 2
    assert logtool(*place, "topics", "delete", "a", "--yes") == (0, "", "deleted a\n")
    assert logtool(*address, "topics", "show", "a")[0] == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "nonsense", "-o", "json"),
        ("cat", "t", "--from", "x", "--output=json"),
        ("cat", "--nonsense", "-ojson"),
        ("-o", "json", "status", "more"),
    ],
)
def test_errors_of_the_command_line_are_json_wherever_it_is_asked_for(
    logtool: Logtool, arguments: tuple[str, ...]
) -> None:
    code, out, err = logtool(*arguments)
    assert (code, out) == (2, "")
    error = json.loads(err)["error"]
    assert error["code"] == "usage"
    assert "--help` explains it" in error["hint"]


def test_a_misspelt_command_is_told_the_nearest_one(logtool: Logtool) -> None:
    assert "logtool: No such command 'topisc'. Did you mean 'topics'?\n" in logtool("topisc", "list")[2]
    assert "Did you mean 'create'?" in logtool("topics", "craete", "t")[2]
    assert "Did you mean" not in logtool("zzz")[2]


def test_usage_errors_name_the_help(logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = logtool("cat", "--", "t", "-o", "json")
    assert code == 2
    assert err.endswith("  `logtool cat --help` explains it\n")
    monkeypatch.setenv("QUINTLOG_OUTPUT", "json")
    assert json.loads(logtool("nonsense")[2])["error"]["code"] == "usage"


def test_status_gives_times_as_text_and_milliseconds(shared_server: ServerProcess, logtool: Logtool) -> None:
    place = ["--data-dir", str(shared_server.data_dir)]
    (item,) = json.loads(logtool(*place, "status", "-o", "json")[1])["items"]
    assert isinstance(item["started_ms"], int)
    assert item["started"].endswith("Z")
    assert "started_ms" not in logtool(*place, "status")[1]


def test_partitions_without_records_are_told(shared_server: ServerProcess, logtool: Logtool) -> None:
    place = ["--data-dir", str(shared_server.data_dir)]
    assert logtool(*place, "topics", "create", "hollow", "--partitions", "3")[0] == 0
    address = ["--server", shared_server.admin_url, "--token-file", str(shared_server.data_dir / "admin.token")]
    for where in (place, address):
        assert logtool(*where, "topics", "show", "hollow")[1].endswith("\n3 partitions without records\n")
    publish(shared_server, "hollow", ["v"])
    for where in (place, address):
        assert logtool(*where, "topics", "show", "hollow")[1].endswith("\nthe 2 others without records\n")


def test_a_long_name_does_not_push_all_columns_away(shared_server: ServerProcess, logtool: Logtool) -> None:
    place = ["--data-dir", str(shared_server.data_dir)]
    for name in ("long-" + "x" * 500, "long-y"):
        assert logtool(*place, "topics", "create", name)[0] == 0
    heading, first, second = logtool(*place, "topics", "list", "long-*")[1].splitlines()
    assert len(first) > 500
    assert max(len(heading), len(second)) < 100
    assert logtool(*place, "topics", "delete", "long-" + "x" * 500, "--yes")[0] == 0


def test_reading_beside_the_server(shared_server: ServerProcess, logtool: Logtool) -> None:
    place = ["--data-dir", str(shared_server.data_dir)]
    publish(shared_server, "beside", [f"v{n}" for n in range(500)])
    assert logtool(*place, "cat", "beside") == (0, "".join(f"v{n}\n" for n in range(500)), "")
    publish(shared_server, "beside", ["more"])
    assert logtool(*place, "tail", "beside", "--limit", "1", "--from", "-1") == (0, "more\n", "")
    assert logtool(*place, "verify")[0] == 0
    document = json.loads(logtool(*place, "dump", "topic", "beside", "-o", "json")[1])
    (segment,) = document["items"]
    assert document["partitions"] == [{"partition": 0, "log_start": 1, "committed": 501}]
    batches = json.loads(logtool("dump", "segment", segment["file"], "-o", "json")[1])["items"]
    assert sum(batch["records"] for batch in batches) == 501


def test_a_topic_without_records(shared_server: ServerProcess, logtool: Logtool) -> None:
    place = ["--data-dir", str(shared_server.data_dir)]
    shared_server.admin("POST", "/v1/topics", {"name": "empty"})
    assert logtool(*place, "cat", "empty") == (0, "", "")
    assert logtool(*place, "tail", "empty", "--to", "latest") == (0, "", "")
    command = [sys.executable, "-m", "tools.logtool", *place, "tail", "empty", "--limit", "1"]
    with Started(command, stdout=subprocess.PIPE) as process:
        publish(shared_server, "empty", ["first"])
        assert process.communicate(timeout=20)[0] == b"first\n"


def test_trim(shared_server: ServerProcess, logtool: Logtool) -> None:
    place = ["--data-dir", str(shared_server.data_dir)]
    publish(shared_server, "trimmed", [f"v{n}" for n in range(1, 101)])
    assert logtool(*place, "topics", "trim", "trimmed", "--before", "-10", "--dry-run")[0] == 0
    assert logtool(*place, "cat", "trimmed", "--limit", "1")[1] == "v1\n"
    assert logtool(*place, "topics", "trim", "trimmed", "--before", "-10")[0] == 2
    assert logtool(*place, "topics", "trim", "trimmed", "--before", "-10", "--yes")[0] == 0
    address = ["--server", shared_server.admin_url, "--token-file", str(shared_server.data_dir / "admin.token")]
    (item,) = json.loads(logtool(*address, "topics", "list", "trimmed", "-o", "json")[1])["items"]
    assert (item["first_offset"], item["next_offset"]) == (91, 101)
    publish(shared_server, "trimmed", ["next"])  # the watermark goes with the next round at the latest
    assert logtool(*place, "cat", "trimmed")[1] == "".join(f"v{n}\n" for n in range(91, 101)) + "next\n"


def test_names_of_any_bytes(shared_server: ServerProcess, logtool: Logtool) -> None:
    address = ["--server", shared_server.admin_url, "--token-file", str(shared_server.data_dir / "admin.token")]
    place = ["--data-dir", str(shared_server.data_dir)]
    name = os.fsdecode("gr\u00fcn/\u00fc:? %\xff".encode("latin-1"))
    assert logtool(*address, "topics", "create", name)[0] == 0
    for where in (address, place):
        assert "\\xfc" in logtool(*where, "topics", "show", name)[1]
    assert logtool(*address, "topics", "delete", name, "--yes")[0] == 0
    assert logtool(*place, "topics", "show", name)[0] == 5


def test_status(shared_server: ServerProcess, logtool: Logtool) -> None:
    item = json.loads(logtool("--data-dir", str(shared_server.data_dir), "status", "-o", "json")[1])["items"][0]
    assert (item["server"], item["pid"]) == ("ready", shared_server.pid)
    assert item["disk_free_bytes"] > 0
    address = ["--server", shared_server.admin_url, "--token-file", str(shared_server.data_dir / "admin.token")]
    code, out, _ = logtool(*address, "status")
    assert code == 0
    assert out.startswith("server             ready\n")


def test_without_a_token(shared_server: ServerProcess, logtool: Logtool) -> None:
    code, _, err = logtool("--server", shared_server.admin_url, "topics", "list")
    assert code == 4
    assert "admin.token" in err
    assert logtool("--server", "ftp://x", "topics", "list")[0] == 2


def test_on_the_files_when_no_server_runs(tmp_path: Path, logtool: Logtool) -> None:
    data_dir = tmp_path / "data"
    place = ["--data-dir", str(data_dir)]
    assert logtool(*place, "topics", "create", "a")[0] == 3  # no data directory is made by the way
    with server(data_dir) as process:
        publish(process, "orders", [f"v{n}" for n in range(1, 11)])
        code, _, err = logtool(*place, "topics", "create", "--admin-is-down")
        assert (code, "No such option" in err) == (2, True)
        process.kill()
        assert (data_dir / "server.json").exists()  # left behind: nobody answers there
        code, _, err = logtool(*place, "topics", "create", "a")
        assert (code, err) == (0, f"on the files of {data_dir}: no server is running there\nmade a\n")
        status = json.loads(logtool(*place, "status", "-o", "json")[1])["items"][0]
        assert status["server"] == "not running (it did not stop in order)"
        assert status["topics"] == 2
        assert logtool(*place, "topics", "trim", "orders", "--before", "6", "--yes")[0] == 0
        assert logtool(*place, "cat", "orders")[1] == "v6\nv7\nv8\nv9\nv10\n"
        assert logtool(*place, "topics", "delete", "a", "--yes")[0] == 0
        process.start()
        names = [item["name"] for item in process.admin("GET", "/v1/topics")["items"]]
        assert names == ["orders"]
    assert logtool(*place, "cat", "orders")[1] == "v6\nv7\nv8\nv9\nv10\n"


def test_a_directory_in_use_without_an_admin_address(tmp_path: Path, logtool: Logtool) -> None:
    data_dir = tmp_path / "data"
    with server(data_dir, {"admin": {"listen": "off"}}) as process:
        code, _, err = logtool("--data-dir", str(data_dir), "topics", "create", "a")
        assert code == 6
        assert f"process {process.pid}" in err
        item = json.loads(logtool("--data-dir", str(data_dir), "status", "-o", "json")[1])["items"][0]
        assert item["server"] == f"process {process.pid}, without an admin address"


def test_a_setting_that_was_given_is_kept_under_a_server_with_other_defaults(tmp_path: Path, logtool: Logtool) -> None:
    """`keep for ever` must not become an hour, on the files nor through the server."""
    settings = {"topics": {"retention": "1h", "durability": "never"}}
    place = ("--data-dir", str(tmp_path / "data"))
    with server(tmp_path / "data") as process:
        assert logtool(*place, "topics", "create", "through", "retention=0", "durability=always")[0] == 0
        process.stop()
        assert logtool(*place, "topics", "create", "audit", "retention=0", "durability=always")[0] == 0
    with server(tmp_path / "data", settings) as process:
        assert logtool(*place, "topics", "create", "hourly", "retention=1h", "durability=never")[0] == 0
        found = {item["name"]: item["settings"] for item in process.admin("GET", "/v1/topics")["items"]}
        forever = {"retention": "0", "durability": "always"}
        assert found == {"audit": forever, "through": forever, "hourly": {"retention": "1h", "durability": "never"}}
