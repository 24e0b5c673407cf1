"""The data directory as a place: one process has it, whatever happens to ``LOCK``; and it is moved, replaced or removed
under the running server. Nothing is acknowledged that a restart would not find, and every refusal says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import LogLocked
from engine.files.lock import DirectoryLock, is_in_use
from netserver.testing import ServerProcess, server
from tests.server_support import FIGG_ONLY, publish, segment, values, wait_for_log

SETTINGS = {**FIGG_ONLY, "engine": {"watermarks_sync_interval_ms": 50}}
LISTENERS = tuple(part for name in ("figg", "admin") for part in (f"--{name}", "127.0.0.1:0"))
REFUSED_S = 0.2


@pytest.fixture
def quintlog(tmp_path: Path) -> Iterator[ServerProcess]:
    with server(tmp_path / "data", SETTINGS) as process:
        assert publish(process, b"t", b"first")
        assert publish(process, b"other", b"first")
        yield process
        assert "Traceback" not in process.log_text, process.log_text[-5000:]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    off = [f"QUINTLOG_{name}_LISTEN".upper() for name in ("tank", "reliably", "blipmq", "fujin", "kafka")]
    environment = {**os.environ, **dict.fromkeys(off, "off")}
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_missing_lock_file_lets_nobody_in(quintlog: ServerProcess, what: str) -> None:
    """A second server and a repair are refused, with the process that has the directory."""
    path = quintlog.data_dir / "LOCK"
    path.unlink()
    if what == "replaced":
        path.write_text("")
    second = run("tools.engine_server", "--data-dir", str(quintlog.data_dir), *LISTENERS)
    assert second.returncode == 6, second.stderr
    assert f"in use by process {quintlog.pid};" in second.stderr
    repair = run("tools.logtool", "repair", str(quintlog.data_dir), "--apply")
    assert repair.returncode not in (0, 1), repair.stderr
    assert f"in use by process {quintlog.pid};" in repair.stderr
    wait_for_log(quintlog, "LOCK was removed or replaced while in use, and was put back")
    assert path.read_text() == f"{quintlog.pid}\n"
    assert publish(quintlog, b"t", b"second")
    assert is_in_use(quintlog.data_dir)
    quintlog.stop()
    assert not is_in_use(quintlog.data_dir)


def test_a_directory_moved_away_takes_nothing_more_and_is_whole_when_it_is_back(
    quintlog: ServerProcess, tmp_path: Path
) -> None:
    quintlog.data_dir.rename(tmp_path / "elsewhere")
    quintlog.data_dir.mkdir()
    second = run("tools.logtool", "repair", str(tmp_path / "elsewhere"), "--apply")
    assert f"in use by process {quintlog.pid};" in second.stderr
    wait_for_log(quintlog, "was moved, replaced or removed while it was in use: nothing more is stored")
    assert not publish(quintlog, b"t", b"refused", REFUSED_S)
    assert not publish(quintlog, b"new", b"refused", REFUSED_S)
    assert values(quintlog, b"t", 1) == [b"first"], "reads go on"
    quintlog.stop()
    assert list(quintlog.data_dir.iterdir()) == [], "nothing was made in its place"
    quintlog.data_dir.rmdir()
    (tmp_path / "elsewhere").rename(quintlog.data_dir)
    quintlog.start()
    assert publish(quintlog, b"t", b"second")
    assert values(quintlog, b"t", 2) == [b"first", b"second"]
    assert values(quintlog, b"other", 1) == [b"first"]


def test_nothing_is_acknowledged_into_removed_files(quintlog: ServerProcess) -> None:
    """At once, before anybody looks whether the files are there; other topics go on; what is gone is told."""
    shutil.rmtree(quintlog.data_dir / "topics" / "1")
    assert not publish(quintlog, b"t", b"refused", REFUSED_S)
    wait_for_log(quintlog, "removed while it was in use")
    assert publish(quintlog, b"other", b"second")
    quintlog.restart()
    assert values(quintlog, b"other", 2) == [b"first", b"second"]
    assert not publish(quintlog, b"t", b"refused", REFUSED_S), "it says what is missing and what to do"
    wait_for_log(quintlog, "no segment files, but records 1 to 1 were committed; put the files back, or give the")


def test_files_moved_away_are_noticed_and_whole_when_they_are_back(quintlog: ServerProcess, tmp_path: Path) -> None:
    topic = quintlog.data_dir / "topics" / "1"
    topic.rename(tmp_path / "topic")
    wait_for_log(quintlog, "was moved or removed while it was in use")
    assert not publish(quintlog, b"t", b"refused", REFUSED_S)
    assert publish(quintlog, b"other", b"second")
    (tmp_path / "topic").rename(topic)
    quintlog.restart()
    assert publish(quintlog, b"t", b"second")
    assert values(quintlog, b"t", 2) == [b"first", b"second"]


def test_a_removed_state_takes_no_new_topics(quintlog: ServerProcess) -> None:
    shutil.rmtree(quintlog.data_dir / "state")
    assert not publish(quintlog, b"new", b"refused", REFUSED_S)
    wait_for_log(quintlog, "data.mdb was moved, replaced or removed while it was in use")
    assert publish(quintlog, b"t", b"second")
    quintlog.restart()
    assert values(quintlog, b"t", 2) == [b"first", b"second"]


def test_all_removed(quintlog: ServerProcess) -> None:
    while quintlog.data_dir.exists():  # LOCK may be put back meanwhile
        shutil.rmtree(quintlog.data_dir, ignore_errors=True)
    assert not publish(quintlog, b"t", b"refused", REFUSED_S)
    assert not publish(quintlog, b"new", b"refused", REFUSED_S)
    wait_for_log(quintlog, "was moved, replaced or removed while it was in use")
    assert quintlog.stop() == 0


def test_nothing_is_restored_under_a_running_server(quintlog: ServerProcess, tmp_path: Path) -> None:
    """Even if somebody has removed all its files."""
    backup = run("tools.logtool", "--data-dir", str(quintlog.data_dir), "backup", str(tmp_path / "backup"))
    assert backup.returncode == 0, backup.stderr
    for entry in quintlog.data_dir.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    restore = run("tools.logtool", "restore", str(tmp_path / "backup"), str(quintlog.data_dir))
    assert restore.returncode != 0
    assert f"in use by process {quintlog.pid};" in restore.stderr or "is not empty" in restore.stderr
    quintlog.stop()
    shutil.rmtree(quintlog.data_dir)
    assert run("tools.logtool", "restore", str(tmp_path / "backup"), str(quintlog.data_dir)).returncode == 0
    quintlog.start()
    assert values(quintlog, b"t", 1) == [b"first"]


@pytest.mark.parametrize("which", ["data", "topic"])
def test_symbolic_links_are_followed(tmp_path: Path, which: str) -> None:
    (tmp_path / "real").mkdir()
    data = tmp_path / "data"
    if which == "data":
        data.symlink_to(tmp_path / "real")
    with server(data, SETTINGS) as quintlog:
        assert publish(quintlog, b"t", b"first")
        if which == "data":
            direct = run("tools.engine_server", "--data-dir", str(tmp_path / "real"), *LISTENERS)
            assert direct.returncode == 6
            assert f"in use by process {quintlog.pid};" in direct.stderr
        else:
            quintlog.stop()
            shutil.move(data / "topics" / "1", tmp_path / "real" / "1")
            (data / "topics" / "1").symlink_to(tmp_path / "real" / "1")
            quintlog.start()
        assert publish(quintlog, b"t", b"second")
        quintlog.kill()
        quintlog.start()
        assert values(quintlog, b"t", 2) == [b"first", b"second"]
        assert segment(quintlog).exists()
        assert "Traceback" not in quintlog.log_text


def test_the_lock_in_one_process(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(LogLocked, match=f"process {os.getpid()};"):
        DirectoryLock(tmp_path)
    assert lock.is_in_place()
    assert not lock.renew_file()
    (tmp_path / "LOCK").unlink()
    assert lock.renew_file()
    assert not lock.renew_file()
    with pytest.raises(LogLocked):
        DirectoryLock(tmp_path)
    lock.close()
    DirectoryLock(tmp_path).close()
    assert not is_in_use(tmp_path / "nothing")
