"""What people see of logtool: nothing that a terminal would obey, words of other tools, what would stay silent."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem

from netserver.testing import ServerProcess, server
from tests.processes import Started
from tests.unit.conftest import Logtool
from tests.unit.tools.logtool.test_logtool_sessions import stream
from tools.logtool.lib.completing import complete_protocol, complete_setting
from tools.logtool.lib.output import count_text, printable

pytestmark = pytest.mark.whole

EVIL = "a\x1b[31mb\u009bc\u202ed"
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("shown") / "data"
    with server(data_dir, {"reliably": {"session_expiry_ms": "1h"}}) as running:
        stream(running.address("reliably"), {"uuid": EVIL, "params": {"count": 3}}, 3).close()
        running.admin("POST", "/v1/topics", {"name": EVIL})
        values = [{"value": EVIL, "key": EVIL}]
        running.admin("POST", "/v1/topics", {"name": "wide", "partitions": 3})
        running.admin("POST", "/v1/topics/wide/records", {"records": values})
        yield running


def on_a_terminal(*words: str) -> str:
    """What a command writes to a terminal, stdout and stderr together."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    command = [sys.executable, "-m", "tools.logtool", *words]
    with Started(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT) as run:
        os.close(theirs)
        content = b""
        while True:
            try:
                content += os.read(ours, 1 << 16)
            except OSError:  # EIO: nobody has the other end any more
                break
        assert run.wait(60) in (0, 5)
    os.close(ours)
    return content.decode().replace("\r\x1b[K", "")  # what we clear a line of progress by


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
@pytest.mark.parametrize("command", ["sessions list", "topics list", "definitions export", "verify", "cat wide"])
def test_a_terminal_gets_no_control_characters(process: ServerProcess, command: str, form: str) -> None:
    shown = on_a_terminal("--data-dir", str(process.data_dir), "-o", form, *command.split())
    assert shown
    assert not [char for char in shown if not char.isprintable() and char not in "\r\n\t"]


def test_errors_have_none_either(process: ServerProcess) -> None:
    shown = on_a_terminal("--data-dir", str(process.data_dir), "sessions", "show", "x" + EVIL)
    assert "no session" in shown
    assert not [char for char in shown if not char.isprintable() and char not in "\r\n\t"]


def test_tables_have_none_in_a_pipe_but_records_are_as_they_are(process: ServerProcess, logtool: Logtool) -> None:
    place = ("--data-dir", str(process.data_dir))
    for command in ("sessions list", "topics list"):
        assert printable(logtool(*place, *command.split())[1], "\n") == logtool(*place, *command.split())[1]
    assert logtool(*place, "cat", "wide", "-q")[1] == f"{EVIL}\n"


def test_the_pages_of_metrics_have_none(process: ServerProcess) -> None:
    process.admin("GET", "/v1/topics/wide")
    process.admin("POST", "/v1/topics/%1B/records", {"records": [{"value": "x"}]})
    text = process.admin("GET", "/metrics/topics")
    assert r"\x1b" in text
    assert printable(text, "\n") == text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("topics", "ls"), 0),
        (("topics", "describe", "wide"), 0),
        (("topics", "info", "wide"), 0),
        (("consume", "wide", "--limit", "1"), 0),
        (("sub", "wide", "--limit", "1"), 0),
        (("topics", "rm", "wide"), 2),
        (("sessions", "rm", "x"), 2),
        (("keys", "rm", "x"), 2),
    ],
)
def test_words_of_other_tools(process: ServerProcess, logtool: Logtool, words: tuple[str, ...], code: int) -> None:
    found, _, err = logtool("--data-dir", str(process.data_dir), *words)
    assert found == code, err
    assert code == 0 or "--yes" in err


@pytest.mark.parametrize("word", ["trimm", "delet", "tri", "remove", "rmm", "reset", "purge"])
def test_nothing_that_destroys_is_suggested(logtool: Logtool, word: str) -> None:
    for group in ("topics", "sessions", "subscriptions"):
        code, _, err = logtool(group, word, "x")
        if "No such command" in err:
            assert code == 2
            assert not any(f"Did you mean '{name}'" in err for name in ("trim", "delete", "drop", "reset", "redrive"))


def test_what_would_stay_silent(process: ServerProcess, logtool: Logtool) -> None:
    place = ("--data-dir", str(process.data_dir))
    assert logtool(*place, "cat", "wide:0", "--from", "99") == (
        0, "", "logtool: the log ends before 99: its last record is 1\n",
    )  # fmt: skip
    assert logtool(*place, "cat", "wide")[2] == "logtool: all 3 partitions, by time; wide:0 and so on name one\n"
    assert logtool(*place, "cat", "wide:0")[2] == ""
    code, _, err = logtool(*place, "topics", "create", "")
    assert (code, "name is missing" in err) == (2, True)


def test_version(logtool: Logtool) -> None:
    code, out, err = logtool("--version")
    assert (code, out.split()[0], err) == (0, "logtool", "")


def test_one_of_a_kind() -> None:
    assert [count_text(count, "record") for count in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


def test_a_line_that_is_no_json_is_named(process: ServerProcess, logtool: Logtool, tmp_path: Path) -> None:
    (tmp_path / "good").write_text('{"value":"x"}\n')
    (tmp_path / "bad").write_text('{"value":"x"}\n{"value":"y"}\n{"valu":"z"}\n')
    place = ("--data-dir", str(process.data_dir), "publish", "lines", "--jsonl")
    code, _, err = logtool(*place, str(tmp_path / "good"), str(tmp_path / "bad"))
    assert (code, "line 3: neither" in err) == (2, True)


@pytest.mark.parametrize(
    ("data_dir", "home", "tmp"),
    [("/srv/log", "yes", "yes"), ("/" + "home/ann/log", "read-only", "yes"), ("/tmp/log", "yes", "no")],
)
def test_a_unit_can_reach_what_it_names(
    logtool: Logtool, monkeypatch: pytest.MonkeyPatch, data_dir: str, home: str, tmp: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/logtool"])
    monkeypatch.setenv("PATH", "/usr/bin")
    out = logtool("--data-dir", data_dir, "generate", "systemd")[1]
    assert f"ProtectHome={home}\nPrivateTmp={tmp}\n" in out


def test_pages_are_not_written_to_a_folder_named_dash(
    logtool: Logtool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert logtool("generate", "man", "-")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_settings_and_protocols_are_completed() -> None:
    context = click.Context(click.Command("x"))
    argument = click.Argument(["x"])

    def offered(complete: Callable[..., list[CompletionItem]], beginning: str) -> list[str]:
        return [str(item.value) for item in complete(context, argument, beginning)]

    assert offered(complete_protocol, "f") == ["figg", "fujin"]
    assert offered(complete_setting, "retention") == ["retention=", "retention_bytes=", "retention_records="]
    assert offered(complete_setting, "durability=i") == ["durability=interval"]
