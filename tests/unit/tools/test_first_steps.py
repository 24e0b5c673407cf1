"""What a newcomer, or somebody else on the machine, meets first: modes, failed starts, messages that say what to do."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import tools.logtool.check
import tools.logtool.status  # noqa: F401  (another user may not read our modules)
from netserver import reliably
from netserver.config import loading as config_reading
from netserver.errors import Timeout
from netserver.fresh_directory import FreshDirectory
from netserver.testing import ServerProcess, running, server
from tests.unit.conftest import Logtool
from tests.users import as_nobody, needs_root, open_folder

pytestmark = pytest.mark.whole


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_records_are_for_the_user_and_the_group(tmp_path: Path) -> None:
    data_dir = tmp_path / "parent" / "data"
    with server(data_dir) as process:
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "one"}]})
        assert mode(data_dir) == 0o750
        assert mode(data_dir / "admin.token") == 0o600
        found = [Path(folder) / name for folder, _, names in os.walk(data_dir / "topics") for name in names]
        assert any(path.suffix == ".log" for path in found)
        assert {mode(path) for path in found} == {0o640}
        assert {mode(Path(folder)) for folder, _, _ in os.walk(data_dir / "topics")} == {0o750}
        assert mode(data_dir / "VERSION") == mode(data_dir / "LOCK") == mode(data_dir / "watermarks") == 0o640


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(0o755)
    data_dir.chmod(0o755)
    with server(data_dir):
        assert mode(data_dir) == 0o755


def start(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.engine_server", "--data-dir", str(data_dir), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        free = [f"--{name}=127.0.0.1:0" for name in ("figg", "reliably", "tank", "blipmq", "fujin", "kafka")]
        for data_dir in (tmp_path / "new" / "data", there):
            done = start(data_dir, *free, "--admin", address)
            assert done.returncode == 6
            assert address in done.stderr
            assert done.stdout == ""
    assert not (tmp_path / "new").exists()
    assert list(there.iterdir()) == []


def test_only_what_was_made_is_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "topics").mkdir(parents=True)
    FreshDirectory.before(kept).undo()
    assert (kept / "topics").exists()
    (tmp_path / "file").write_text("x")
    FreshDirectory.before(tmp_path / "file").undo()
    assert (tmp_path / "file").exists()
    made = FreshDirectory.before(tmp_path / "made")
    with ServerProcess(tmp_path / "made") as process:
        made.undo()  # somebody else was quicker
        assert process.is_running
        assert (tmp_path / "made" / "VERSION").exists()


def test_a_restarted_server_knows_what_it_holds(tmp_path: Path, logtool: Logtool) -> None:
    """Also of topics that nobody has used since its start."""
    with server(tmp_path / "data") as process:
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "one"}] * 7})
        process.admin("POST", "/v1/topics", {"name": "empty"})
        process.stop()
        process.start()
        (empty, orders) = process.admin("GET", "/v1/topics")["items"]
        assert empty["partition_details"] == []
        (detail,) = orders["partition_details"]
        assert not detail["open"]
        assert (detail["first_offset"], detail["next_offset"]) == (1, 8)
        assert detail["size_bytes"] > 88
        token = str(process.data_dir / "admin.token")
        url = "http://{}:{}".format(*process.address("admin"))
        code, out, _ = logtool("--server", url, "--token-file", token, "topics", "list", "orders")
        assert code == 0
        assert out.splitlines()[1].split()[:4] == ["orders", "1", "1", "8"]


def test_a_group_without_a_command_shows_its_help_once(logtool: Logtool) -> None:
    for group in ("topics", "keys", "dump"):
        code, out, err = logtool(group)
        assert (code, out) == (2, "")
        assert err.startswith(f"Usage: logtool {group}")
        assert err.count("Usage:") == 1
    code, _, err = logtool("topics", "-o", "json")
    assert code == 2
    assert "Usage" not in err


def test_a_directory_that_is_not_there_is_told_from_one_that_is_empty(tmp_path: Path, logtool: Logtool) -> None:
    (tmp_path / "empty").mkdir()
    for words in (("status",), ("cat", "orders"), ("topics", "list"), ("verify",), ("backup", str(tmp_path / "out"))):
        code, out, err = logtool("--data-dir", str(tmp_path / "nowhere"), *words)
        assert (code, out) == (3, "")
        assert f"{tmp_path}/nowhere is no data directory (there is no such directory)" in err
        code, out, err = logtool("--data-dir", str(tmp_path / "empty"), *words)
        assert (code, out) == (3, "")
        assert "(it has no VERSION file)" in err


@pytest.mark.root
@needs_root
def test_another_user_is_told_whose_it_is(logtool: Logtool) -> None:
    with open_folder() as folder:
        data_dir = folder / "data"
        with server(data_dir) as process:
            with as_nobody():
                code, _, err = logtool("--data-dir", str(data_dir), "status")
            assert code == 4
            assert f"{data_dir}/server.json: permission denied" in err
            assert f"{data_dir} belongs to root (mode 0750): `sudo -u root ...`" in err
            data_dir.chmod(0o755)
            (data_dir / "server.json").chmod(0o644)
            with as_nobody():
                code, _, err = logtool("--data-dir", str(data_dir), "status")
                assert code == 4
                assert f"{data_dir}/admin.token: permission denied" in err
                assert f"{data_dir}/admin.token belongs to root" in err
                assert "--token-file FILE" in err
                assert logtool("--data-dir", str(data_dir), "check")[0] == 0, "needs no token"
            assert process.is_running


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    "command", ["status", "check", "cat t", "tail t", "verify", "topics list", "dump topic t", "publish t", "keys list"]
)
def test_a_directory_that_may_not_be_read_is_no_wrong_use(logtool: Logtool, command: str) -> None:
    logtool("--version")  # all that is imported is, before nobody has to
    with open_folder() as folder:
        data_dir = folder / "data"
        data_dir.mkdir(0o750)
        (data_dir / "VERSION").write_text('{"format": 1, "id": 1}\n')
        logtool("--data-dir", str(data_dir), *command.split())
        with as_nobody():
            code, out, err = logtool("--data-dir", str(data_dir), *command.split())
        assert (code, out) == (4, ""), err
        assert f"{data_dir} belongs to root (mode 0750)" in err
        assert "Usage" not in err


def test_settings_of_streams_are_reloaded() -> None:
    """[reliably] as the other sections: what runs goes on, with the new bounds."""

    async def main() -> None:
        async with running(settings={"reliably": {"sessions_max": 1}}) as place:
            slow = config_reading.build(("test", {"reliably": {"interval_ms": "1h", "sessions_max": 7}}))
            changed = dataclasses.replace(
                place.config,
                reliably=dataclasses.replace(slow.reliably, listen=place.config.reliably.listen),
            )
            assert place.reload(changed) == []
            sessions = place.services["reliably"].sessions
            assert sessions is not None
            assert sessions.config.sessions_max == 7
            async with reliably.connect(str(place.addresses["reliably"]), params={"count": 3}) as numbers:
                await numbers.next(20)
                with pytest.raises(Timeout):
                    await numbers.next(0.2)

    asyncio.run(main())


def test_the_nearest_topic_is_named(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data") as process:
        for name in ("orders", "clicks"):
            process.admin("POST", "/v1/topics", {"name": name})
    code, _, err = logtool("--data-dir", str(tmp_path / "data"), "cat", "ordres")
    assert (code, "did you mean 'orders'?" in err) == (5, True)
    code, _, err = logtool("--data-dir", str(tmp_path / "data"), "cat", "x")
    assert (code, "did you mean" in err) == (5, False)
