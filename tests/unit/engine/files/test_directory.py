"""The lock of a data directory, and what a running log does when its files are moved away under it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

import pytest

from engine.directory_layout import VERSION_FILE
from engine.errors import DataDirectoryError, LogLocked, NotStored, ReadOnly
from engine.files import lock as directory
from engine.files.lock import LOCK_FILE, DirectoryLock, holder_of, is_in_use
from engine.limits import FILES_CHECKED_MS
from tests.engine_log import EngineLog


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Locking a directory fails with this error; locking files works."""
    flock = fcntl.flock

    def refusing(fd: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(code, os.strerror(code))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", refusing)


def test_where_directories_cannot_be_locked_the_file_has_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOLCK)
    assert not is_in_use(tmp_path)
    lock = DirectoryLock(tmp_path)
    assert is_in_use(tmp_path)
    with pytest.raises(LogLocked, match=f"in use by process {os.getpid()};"):
        DirectoryLock(tmp_path)
    lock.close()
    assert not is_in_use(tmp_path)


def test_other_failures_to_lock_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        DirectoryLock(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        is_in_use(tmp_path)


def test_a_lock_file_that_cannot_be_opened_leaves_the_directory_free(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        DirectoryLock(tmp_path)
    (tmp_path / LOCK_FILE).rmdir()
    assert not is_in_use(tmp_path)


@pytest.mark.parametrize(("content", "told"), [(b"4711\n", "4711"), (b"\x1b[31m", "unknown"), (None, "unknown")])
def test_who_has_it_where_the_kernel_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, told: str
) -> None:
    lock = DirectoryLock(tmp_path, file=False)
    monkeypatch.setattr(directory, "LOCKS", tmp_path / "missing")
    if content is not None:
        (tmp_path / LOCK_FILE).write_bytes(content)
    with pytest.raises(LogLocked, match=f"in use by process {told};"):
        DirectoryLock(tmp_path)
    lock.close()


def test_nobody_holds_a_file_that_is_not_locked(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert holder_of(file.fileno()) is None


def test_nothing_is_stored_in_a_directory_that_was_moved_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"], "a")
        engine.append([b"1"], "b")
        (tmp_path / "d").rename(tmp_path / "elsewhere")
        engine.log.housekeeping._check_directory()
        engine.inbox.run_until(lambda: engine.log.error is not None)
        for topic in ("a", "b"):
            with pytest.raises(ReadOnly, match="was moved, replaced or removed"):
                engine.partition(topic).append([b"2"])
        told = caplog.text.count("was moved, replaced or removed")
        engine.log.housekeeping._check_directory()
        assert caplog.text.count("was moved, replaced or removed") == told, "told once"
        (tmp_path / "elsewhere").rename(tmp_path / "d")
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values("a") == [b"1"]


def test_no_segment_is_begun_in_a_directory_that_was_moved_away(tmp_path: Path) -> None:
    """Housekeeping has not looked yet: the round that would begin it finds out."""
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        partition = engine.partition()
        engine.log.committer.roll_next(partition)
        (tmp_path / "d").rename(tmp_path / "elsewhere")
        write_batch = engine.settle(partition.append([b"2"]))
        assert isinstance(write_batch.error, ReadOnly)
        assert "was moved, replaced or removed" in str(write_batch.error)
        (tmp_path / "elsewhere").rename(tmp_path / "d")
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values() == [b"1"]


def test_nothing_is_stored_in_a_file_that_was_moved_away(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"], "moved")
        engine.append([b"1"], "stays")
        engine.log.catalog.create(b"new")
        partition = engine.partition("moved")
        path = partition.active_segment.path
        path.rename(tmp_path / "elsewhere")
        engine.log.housekeeping._check_directory()
        engine.inbox.run_until(lambda: partition.error is not None)
        with pytest.raises(NotStored, match="was moved or removed while it was in use"):
            partition.append([b"2"])
        engine.log.housekeeping._check_directory()
        engine.append([b"2"], "stays")
        (tmp_path / "elsewhere").rename(path)
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values("moved") == [b"1"]
        assert engine.values("stays") == [b"1", b"2"]


def test_a_file_that_was_moved_away_while_idle_is_missed_once_it_is_written_to(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        partition = engine.partition()
        active = partition.active_segment
        active.appended_steady_ms -= FILES_CHECKED_MS + 1
        active.path.rename(tmp_path / "elsewhere")
        engine.log.housekeeping._check_directory()
        engine.append([b"2"])
        engine.log.housekeeping._check_directory()
        engine.inbox.run_until(lambda: partition.error is not None)
        (tmp_path / "elsewhere").rename(active.path)
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values() == [b"1", b"2"]


def test_a_lock_file_that_was_removed_is_put_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "d" / LOCK_FILE
    with EngineLog(tmp_path / "d") as engine:
        path.unlink()
        with path.open("w") as replaced:
            fcntl.flock(replaced, fcntl.LOCK_EX)
            for _ in range(2):
                engine.log.housekeeping._check_directory()
            assert caplog.text.count("cannot be put back") == 1, "told once"
        engine.log.housekeeping._check_directory()
        assert "and was put back" in caplog.text
        assert path.read_text() == f"{os.getpid()}\n"
        assert engine.log.error is None
        with pytest.raises(LogLocked):
            DirectoryLock(tmp_path / "d")
        caplog.clear()
        with caplog.at_level(logging.INFO):
            engine.log.housekeeping._check_directory()
        assert caplog.text == "", "all is in place"
        engine.append([b"x"])


def test_a_directory_that_is_refused_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_bytes(b"mine")
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match=r"holds report\.txt: not a data directory"):
            EngineLog(tmp_path)
        assert os.listdir(tmp_path) == ["report.txt"]
    (tmp_path / "report.txt").rename(tmp_path / VERSION_FILE)
    with pytest.raises(DataDirectoryError, match="is damaged"):
        EngineLog(tmp_path)
    assert os.listdir(tmp_path) == [VERSION_FILE]


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "treasure").write_bytes(b"precious")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / LOCK_FILE).symlink_to(tmp_path / "treasure")
    with pytest.raises(DataDirectoryError, match=f"{tmp_path}/d/{LOCK_FILE}: a symbolic link"):
        EngineLog(tmp_path / "d")
    assert (tmp_path / "treasure").read_bytes() == b"precious"


def test_a_pipe_in_the_place_of_the_lock_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK_FILE)
    assert not is_in_use(tmp_path)
