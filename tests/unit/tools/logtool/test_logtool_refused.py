"""`logtool publish` to a server that does not take it: it says so, and that nothing is stored."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from netserver.access.key_file import add_identity
from netserver.testing import ServerProcess, server
from tools.logtool.run import run

pytestmark = pytest.mark.whole

KEY = "a key of somebody who reads only"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server where whoever is on this machine may read, and publish to one topic."""
    directory = tmp_path_factory.mktemp("log")
    may = {"publish": ["open"], "subscribe": ["*"], "create": ["open"]}
    add_identity(directory / "access", {"name": "reader", "networks": ["127.0.0.0/8"], **may})
    add_identity(directory / "access", {"name": "key", "listeners": ["blipmq"], **may}, KEY)
    (directory / "key").write_text(KEY)
    with server(directory / "data", settings={"access": {"file": str(directory / "access")}}) as running:
        running.admin("POST", "/v1/topics", {"name": "orders"})
        running.admin("POST", "/v1/topics", {"name": "open"})
        yield running


@pytest.fixture
def publish(
    process: ServerProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Publishes some records; (exit code, stderr)."""
    for name in list(os.environ):
        if name.startswith("QUINTLOG_"):
            monkeypatch.delenv(name)

    def call(*args: str) -> tuple[int, str]:
        with tempfile.TemporaryFile() as file:
            file.write(b"record\n" * 1000)
            file.seek(0)
            monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=file, isatty=lambda: False))
            code = run(["publish", *args])
        return code, capfd.readouterr().err

    return call


@pytest.mark.parametrize("protocol", ["figg", "tank", "blipmq", "fujin"])
def test_a_refusal_is_called_so(publish: Callable[..., tuple[int, str]], process: ServerProcess, protocol: str) -> None:
    place = ["--data-dir", str(process.data_dir), "--via", protocol, "--timeout", "20"]
    if protocol == "blipmq":
        place += ["--api-key-file", str(process.data_dir.parent / "key")]
    code, err = publish("orders", *place)
    assert code == 4, err
    assert err.startswith("logtool: 0 of "), err
    assert "may be stored" not in err
    assert "topics create" not in err, "the topic is there"
    assert publish("open", *place) == (0, "")


def test_tank_says_the_same_of_a_topic_that_is_not_there(
    publish: Callable[..., tuple[int, str]], process: ServerProcess, tmp_path: Path
) -> None:
    host, port = process.address("tank")
    code, err = publish("orders", "--via", f"tank={host}:{port}", "--data-dir", str(tmp_path))
    assert (code, err.splitlines()[0]) == (5, "logtool: no topic orders, or no right to publish to it")
    code, err = publish("unmade", "--via", "tank", "--data-dir", str(process.data_dir))
    assert (code, err.splitlines()[0]) == (5, "logtool: no topic unmade")


def test_a_partition_that_cannot_be_opened_is_named(publish: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    with server(tmp_path / "data") as broken:
        broken.admin("POST", "/v1/topics/t/records", {"records": [{"value": "x"}]})
        broken.kill()
        next((broken.data_dir / "topics").rglob("*.log")).unlink()
        broken.restart()
        code, err = publish("t", "--data-dir", str(broken.data_dir), "--timeout", "2.5")
    assert code == 3
    assert "no segment files, but records 1 to 1 were committed" in err.splitlines()[-1]
    assert "may be stored" not in err


def test_who_is_not_let_in_is_not_asked_whether_the_server_runs(
    publish: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    add_identity(tmp_path / "access", {"name": "far", "networks": ["10.0.0.0/8"]})
    with server(tmp_path / "data", settings={"access": {"file": str(tmp_path / "access")}}) as closed:
        code, err = publish("t", "--data-dir", str(closed.data_dir), "--via", "tank")
    assert code == 3
    assert "docs/access.md" in err
    assert "is the server running" not in err
