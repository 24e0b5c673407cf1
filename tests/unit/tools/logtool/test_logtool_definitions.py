"""`logtool definitions`: from one log to another, through a server and on files; what is refused changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import server
from tests.unit.conftest import Logtool
from tools.logtool.definitions import Definition, parse, plan

pytestmark = pytest.mark.whole

TOPICS: list[dict[str, Any]] = [
    {"name": "clicks", "partitions": 4, "settings": {"retention": "7d", "segment_bytes": "64MiB"}},
    {"name": "orders", "partitions": 1, "settings": {}},
    {"name": "samples", "partitions": 1, "settings": {"durability": "always"}},
    {"name_base64": "/wA=", "partitions": 2, "settings": {}},
]


def document(topics: list[dict[str, Any]]) -> str:
    return json.dumps({"schema": 1, "topics": topics})


def actions(out: str) -> dict[str, str]:
    return {item.get("name", item.get("name_base64")): item["action"] for item in json.loads(out)["items"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topics.json"
    path.write_text(document(TOPICS))
    return path


def test_through_a_server_and_back(tmp_path: Path, file: Path, logtool: Logtool) -> None:
    data_dir = tmp_path / "data"
    with server(data_dir) as process:
        process.admin("POST", "/v1/topics", {"name": "orders"})
        process.admin("POST", "/v1/topics", {"name": "kept", "config": {"retention_bytes": "1GiB"}})
        command = ("--data-dir", str(data_dir), "-o", "json", "definitions", "import", str(file))
        code, out, err = logtool(*command, "--dry-run")
        assert (code, err) == (0, "")
        expected = {"clicks": "create", "orders": "none", "samples": "create", "/wA=": "create"}
        assert actions(out) == expected
        assert len(process.admin("GET", "/v1/topics")["items"]) == 2
        code, out, err = logtool(*command)
        assert (code, err) == (0, "")
        assert actions(out) == expected
        assert set(actions(logtool(*command)[1]).values()) == {"none"}
        kept = {"name": "kept", "partitions": 1, "settings": {"retention_bytes": "1GiB"}}
        code, out, err = logtool("--data-dir", str(data_dir), "definitions", "export")
        assert (code, err) == (0, "")
        assert json.loads(out)["topics"] == [TOPICS[0], kept, *TOPICS[1:]]
        assert len(out.splitlines()) == 1 + 5 + 1
        by_url = ("--server", process.admin_url, "--token-file", str(data_dir / "admin.token"))
        assert logtool(*by_url, "definitions", "export")[1] == out
    assert logtool("--data-dir", str(data_dir), "definitions", "export")[1] == out, "on the files it is the same"
    code, out, _ = logtool("--data-dir", str(data_dir), "definitions", "export", "o*")
    assert [item["name"] for item in json.loads(out)["topics"]] == ["orders"]


def test_on_files_it_changes_what_differs(tmp_path: Path, file: Path, logtool: Logtool) -> None:
    data_dir = tmp_path / "data"
    with server(data_dir):
        pass
    command = ("--data-dir", str(data_dir), "-q", "definitions", "import", str(file))
    assert logtool(*command)[0] == 0
    file.write_text(document([{"name": "clicks", "partitions": 4, "settings": {"retention": "168h"}}]))
    code, out, err = logtool(*command)
    assert code == 2, "nobody is there to be asked"
    assert "settings of 1 topic will change" in err
    code, out, err = logtool(*command, "--dry-run")
    assert out.splitlines()[1].split() == ["clicks", "change", "4", "segment_bytes=default"]
    assert logtool(*command, "--yes")[0] == 0
    code, out, _ = logtool("--data-dir", str(data_dir), "definitions", "export", "clicks")
    assert json.loads(out)["topics"][0]["settings"] == {"retention": "7d"}


def test_another_number_of_partitions_changes_nothing(tmp_path: Path, file: Path, logtool: Logtool) -> None:
    data_dir = tmp_path / "data"
    with server(data_dir) as process:
        process.admin("POST", "/v1/topics", {"name": "clicks", "partitions": 2})
        code, out, err = logtool("--data-dir", str(data_dir), "-o", "json", "definitions", "import", str(file))
        assert code == 6
        assert "clicks" in json.loads(err)["error"]["message"]
        assert actions(out)["clicks"] == "conflict"
        assert len(process.admin("GET", "/v1/topics")["items"]) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "it is empty; `definitions export` writes such a file"),
        ("{", "this is not JSON, as `definitions export` writes it: "),
        ("[" * 100_000, "recursion"),
        ("[]", "schema"),
        ('{"schema": 2, "topics": []}', "schema"),
        ('{"schema": 1}', "expected a list"),
        (document([{"partitions": 1}]), "topics[0]: name"),
        (document([{"name_base64": "?"}]), "base64"),
        (document([{"name": "a", "partitions": True}]), "partitions"),
        (document([{"name": "a", "partitions": 0}]), "partitions"),
        (document([{"name": "a", "settings": {"retention": 7}}]), "texts"),
        (document([{"name": "a", "settings": {"retentio": "7d"}}]), "topic a"),
        (document([{"name": "a", "partition": 7}]), "unknown member 'partition'"),
        (document([{"name": "a"}, {"name": "a"}]), "twice"),
    ],
)
def test_what_is_no_definition(tmp_path: Path, logtool: Logtool, content: str, text: str) -> None:
    path = tmp_path / "topics.json"
    path.write_text(content)
    code, out, err = logtool("--data-dir", str(tmp_path / "none"), "definitions", "import", str(path))
    assert (code, out) == (2, "")
    assert "topics.json" in err
    assert text.lower() in err.lower()


def test_the_plan() -> None:
    wanted = [Definition(b"a", 1, {"durability": "default", "retention": "1h"})]
    (step,) = plan(wanted, [])
    assert (step.action, step.settings) == ("create", {"retention": "1h"})
    (step,) = plan(wanted, [{"name": "a", "partitions": 1, "settings": {"durability": "never"}}])
    assert (step.action, step.settings) == ("change", {"durability": "default", "retention": "1h"})
    (step,) = plan(wanted, [{"name": "a", "partitions": 1, "settings": {"retention": "60m"}}])
    assert (step.action, step.settings) == ("none", {})
    assert parse(b'{"schema": 1, "topics": [{"name": "a"}]}') == [Definition(b"a", 1, {})]
