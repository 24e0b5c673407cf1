"""The file layer: writes and reads that come in pieces, descriptors used up, names that are taken, small files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.files.descriptors import Handles
from engine.files.system import IOV_BUFFERS, SystemFiles, found_at, free_path, read_whole_file, write_new_file

FILES = SystemFiles()


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_short_writes_are_continued_across_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    pwritev = os.pwritev

    def short(fd: int, views: list[memoryview], position: int, *flags: int) -> int:
        left, given = piece, []
        for view in views:
            given.append(view[:left])
            left -= len(given[-1])
            if not left:
                break
        return pwritev(fd, given, position, *flags)

    monkeypatch.setattr(os, "pwritev", short)
    fd = FILES.create(tmp_path / "f")
    buffers = [b"abc", b"", bytearray(b"defgh"), memoryview(b"ij"), b"k" * 20]
    FILES.write(fd, buffers, 5)
    assert FILES.read(fd, 100, 0) == bytes(5) + b"abcdefghij" + b"k" * 20
    FILES.close(fd)


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    fd = FILES.create(tmp_path / "f")
    buffers = [b"%d," % number for number in range(2 * IOV_BUFFERS + 3)]
    FILES.write(fd, buffers, 0)
    assert FILES.read(fd, 1 << 20, 0) == b"".join(buffers)
    FILES.write(fd, [], 0)
    FILES.close(fd)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"0123456789" * 10)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 7), position))
    fd = FILES.open(tmp_path / "f")
    assert FILES.read(fd, 30, 5) == (b"0123456789" * 10)[5:35]
    assert FILES.read(fd, 1000, 95) == b"56789", "less only at the end of the file"
    assert FILES.read(fd, 10, 200) == b""
    FILES.close(fd)


def test_read_from_the_page_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"cached")
    fd = FILES.open(tmp_path / "f")
    buffer = bytearray(6)
    assert FILES.read_nowait(fd, buffer, 0) == 6
    assert buffer == b"cached"

    def would_wait(*_: Any) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", would_wait)
    assert FILES.read_nowait(fd, buffer, 0) == 0
    FILES.close(fd)


def test_directories_and_names(tmp_path: Path) -> None:
    FILES.make_dir(tmp_path / "d")
    FILES.make_dir(tmp_path / "d")
    assert FILES.exists(tmp_path / "d")
    assert not FILES.exists(tmp_path / "e")
    assert FILES.list_dir(tmp_path / "none") == []
    assert FILES.free_bytes(tmp_path) > 0
    for name in ("x", "x-2", "x-3"):
        assert free_path(FILES, tmp_path / "d" / "x").name == name
        FILES.close(FILES.create(tmp_path / "d" / name))
    assert FILES.list_dir(tmp_path / "d") == ["x", "x-2", "x-3"]
    with pytest.raises(FileExistsError):
        FILES.create(tmp_path / "d" / "x")


def test_what_cannot_be_looked_at_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert found_at(tmp_path / "none") is None
    assert found_at(tmp_path / "f" / "below a file") is None
    assert not FILES.exists(tmp_path / "none")
    for look in (found_at, FILES.exists):
        with pytest.raises(OSError, match="File name too long"):
            look(tmp_path / ("x" * 300))


def test_a_new_file_replaces_the_old_one_at_once_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_new_file(FILES, path, b"one")
    (tmp_path / "f.new").write_bytes(b"left by a crash")
    write_new_file(FILES, path, b"two")
    assert path.read_bytes() == b"two"

    class Full(SystemFiles):
        def sync_data(self, fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_new_file(Full(), path, b"three")
    assert path.read_bytes() == b"two"
    assert read_whole_file(FILES, path, 2) == b"tw"
    assert read_whole_file(FILES, tmp_path / "none", 2) is None


def test_idle_descriptors_are_given_up_when_there_are_none_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SystemFiles()
    handles = Handles(files, 100)
    for number in range(10):
        (tmp_path / str(number)).touch()
        with handles.use(tmp_path / str(number)):
            pass
    used_up = True

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if used_up:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(*arguments, **options)

        return call

    with handles.use(tmp_path / "9"):
        monkeypatch.setattr(os, "open", refusing(os.open))
        monkeypatch.setattr(os, "listdir", refusing(os.listdir))
        for call in (files.open, files.create, files.sync_dir, files.list_dir):
            with pytest.raises(OSError, match="Too many open files"):
                call(tmp_path / "new")
        assert len(handles) == 10, "nobody to give anything up"

        def relieve() -> int:
            nonlocal used_up
            used_up = False
            return handles.relieve()

        files.relieve = relieve
        files.close(files.create(tmp_path / "new"))
        assert len(handles) == 5, "half of those that were idle"
        while len(handles) > 1:
            handles.relieve()
        handles.relieve()
        assert len(handles) == 1, "one that is used is not closed"
    handles.close()


def test_descriptors_least_recently_used_are_closed_first(tmp_path: Path) -> None:
    handles = Handles(FILES, 3)
    fds = {}
    for name in "abcd":
        (tmp_path / name).touch()
        if name == "d":
            with handles.use(tmp_path / "a"):
                pass
        with handles.use(tmp_path / name) as fd:
            fds[name] = fd
    assert len(handles) == 3
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds["b"])
    os.fstat(fds["a"])
    with handles.use(tmp_path / "a") as in_use:
        handles.forget(tmp_path / "a")
        handles.forget(tmp_path / "a")
        os.fstat(in_use)
        handles.close()
        os.fstat(in_use)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(in_use)


def test_a_removed_file_cannot_be_made_durable(tmp_path: Path) -> None:
    files = SystemFiles()
    fd = files.create(tmp_path / "a")
    files.sync_data(fd)
    (tmp_path / "a").rename(tmp_path / "b")
    files.sync_data(fd)
    (tmp_path / "b").unlink()
    with pytest.raises(FileNotFoundError, match="removed while it was in use"):
        files.sync_data(fd)
    files.close(fd)
