"""logtool context: what is kept, which address wins, damaged files, two servers told apart by name."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from netserver.testing import server
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "quintlog" / "contexts.json"


def items(logtool: Logtool) -> dict[str, dict[str, object]]:
    code, out, err = logtool("context", "list", "-o", "json")
    assert (code, err) == (0, "")
    return {item.pop("name"): item for item in json.loads(out)["items"]}


def test_two_logs_by_name(home: Path, tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "one") as one, server(tmp_path / "two") as two:
        one.admin("POST", "/v1/topics", {"name": "first"})
        two.admin("POST", "/v1/topics", {"name": "second"})
        token = tmp_path / "two" / "admin.token"
        assert logtool("context", "add", "one", "--data-dir", str(tmp_path / "one"), "--use")[0] == 0
        address = ["--server", two.admin_url, "--token-file", str(token)]
        assert logtool(*address, "context", "add", "two") == (0, "", "added two\n")
        assert logtool("topics", "list", "-o", "csv")[1].splitlines()[1].startswith("first,")
        assert logtool("--context", "two", "topics", "list", "-o", "csv")[1].splitlines()[1].startswith("second,")
        assert logtool("topics", "create", "third", "--context", "two")[0] == 0
        assert {item["name"] for item in two.admin("GET", "/v1/topics")["items"]} == {"second", "third"}
        assert f"context two: {two.admin_url}\n" in logtool("-v", "--context", "two", "check")[2]
        assert logtool("--context", "two", "verify")[0] == 0
        code, _, err = logtool("--context", "two", "archive-segments", "place")
        assert (code, "run it on the server's machine with --data-dir DIR" in err) == (2, True)
    assert token.read_text().strip() not in home.read_text()
    assert stat.S_IMODE(home.stat().st_mode) == 0o600


def test_which_address_wins(home: Path, tmp_path: Path, logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line, environment, the chosen context, and only then the default."""

    def meant(*words: str) -> str:
        code, _, err = logtool(*words, "status")
        assert code == 3
        return err.partition(" is no data directory")[0].rpartition("/")[2]

    for name in ("a", "b"):
        assert logtool("context", "add", name, "--data-dir", str(tmp_path / name))[0] == 0
    assert logtool("context", "use", "a") == (0, "", "a is chosen\n")
    assert meant() == "a"
    monkeypatch.setenv("QUINTLOG_CONTEXT", "b")
    assert meant() == "b"
    monkeypatch.setenv("QUINTLOG_DATA_DIR", str(tmp_path / "c"))
    assert meant() == "c"
    assert meant("--context", "a") == "a"
    assert meant("--data-dir", str(tmp_path / "d")) == "d"
    code, _, err = logtool("--data-dir", "x", "--context", "a", "status")
    assert (code, "exclude each other" in err) == (2, True)


def test_add_use_remove(home: Path, tmp_path: Path, logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert items(logtool) == {}
    assert not home.exists()
    monkeypatch.setenv("QUINTLOG_DATA_DIR", "data")
    code, _, err = logtool("context", "add", "here")
    assert (code, "Name its address with --data-dir DIR or --server URL" in err) == (2, True)
    monkeypatch.chdir(tmp_path)
    assert logtool("context", "add", "here", "--data-dir", "data")[0] == 0
    assert items(logtool) == {"here": {"current": False, "data_dir": str(tmp_path / "data")}}
    assert logtool("context", "add", "here", "--server", "http://h:1")[0] == 6
    assert logtool("context", "add", "here", "--server", "http://h:1", "--replace", "--use")[0] == 0
    assert items(logtool) == {"here": {"current": True, "server": "http://h:1"}}
    assert logtool("context", "add", "a/b", "--server", "http://h:1")[0] == 2
    assert logtool("context", "use", "nowhere")[0] == logtool("context", "remove", "nowhere")[0] == 5
    assert logtool("context", "use")[0] == logtool("context", "use", "here", "--none")[0] == 2
    assert logtool("context", "use", "--none") == (0, "", "no context is chosen\n")
    assert logtool("context", "use", "here")[0] == 0
    assert logtool("context", "remove", "here") == (0, "", "removed here; no context is chosen now\n")
    assert items(logtool) == {}
    assert list(home.parent.iterdir()) == [home]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"schema": 2}',
        '{"schema": 1}',
        '{"schema": 1, "contexts": 7}',
        '{"schema": 1, "contexts": {"a": {}}}',
        '{"schema": 1, "contexts": {"a": {"server": "x", "data_dir": "y"}}}',
        '{"schema": 1, "contexts": {"a": {"server": 7}}}',
        '{"schema": 1, "contexts": {"a": {"server": "x", "token": "y"}}}',
        "[" * 100_000,
        " " * (1 << 20) + "{}",
    ],
)
def test_a_damaged_file_is_told(home: Path, tmp_path: Path, logtool: Logtool, content: str) -> None:
    home.parent.mkdir(parents=True)
    home.write_text(content)
    for words in (("status",), ("context", "list"), ("context", "add", "b", "--server", "http://h")):
        code, out, err = logtool(*words)
        assert (code, out) == (3, "")
        assert f"{home} is damaged: " in err
    assert home.read_text() == content
    assert "no such directory" in logtool("--data-dir", str(tmp_path / "x"), "status")[2]
    assert logtool("generate", "completion", "bash")[0] == 0


def test_the_shell_completes_names(home: Path, logtool: Logtool) -> None:
    for name in ("shop", "store"):
        assert logtool("context", "add", name, "--server", f"http://{name}:9180")[0] == 0
    for line in ("logtool --context sh", "logtool context use sh", "logtool context remove sh"):
        words = line.split()
        found = subprocess.run(
            [sys.executable, "-m", "tools.logtool"],
            env=os.environ
            | {"_LOGTOOL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert found.stdout == "plain,shop\n"
