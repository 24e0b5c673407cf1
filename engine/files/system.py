"""The narrow file layer: the only module of the engine that opens, writes, syncs, renames or removes files.

Tests put another object with the same methods in its place to make any call fail or to simulate a crash, so
nothing outside this module may call ``os`` for the files of a data directory (LMDB environments excepted).

Every method raises OSError as the system call gave it; no error is swallowed or retried, but short writes and
reads are continued. Methods may be called from any thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from engine.files import owners

Buffer: TypeAlias = bytes | bytearray | memoryview
Result = TypeVar("Result")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors that go away by themselves when somebody frees space."""

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Errors that go away when descriptors are closed."""

DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
PARENT_MODE = 0o755
"""What is made is for the server's user, and for its group to read: records are nobody else's business."""

REMOVED = "the file was removed while it was in use"
"""What ENOENT means for a file that is open."""

IOV_BUFFERS = 512
"""Buffers given to one pwritev: half of Linux's IOV_MAX (1024), far above what a round needs."""


class NotAFile(OSError):
    """A pipe, a device, a directory or a link is in a file's place."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Files(Protocol):
    """What the engine needs of a file system. File descriptors are opaque integers to the caller."""

    def create(self, path: Path, mode: int = FILE_MODE) -> int:
        """Creates a file that must not exist yet, not even as a link, and opens it for reading and writing.

        It belongs to the owner of its directory, whoever makes it.
        """

    def take_after(self, fd: int, path: Path, mode: int | None) -> None:
        """Gives a new file owner and mode of the one at `path`, or `mode`, if any, when there is none."""

    def open(self, path: Path, *, write: bool = False) -> int:
        """Opens an existing file; a pipe, a device or a directory is refused."""

    def close(self, fd: int) -> None:
        """Closes a descriptor."""

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Writes all bytes of all buffers from `position` on."""

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        """Reads up to `size_bytes` from `position`; less only at the end of the file. An error names the file."""

    def read_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        """Fills `buffer` from the page cache alone; bytes read, 0 when the disk would have to be asked."""

    def sync_data(self, fd: int) -> None:
        """Makes the file's data (and the size needed to read it) durable."""

    def sync_dir(self, path: Path) -> None:
        """Makes the directory's entries durable."""

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cuts or extends a file to that size."""

    def size(self, fd: int) -> int:
        """Bytes of a file."""

    def make_dir(self, path: Path) -> bool:
        """Makes a directory; False: it exists already, which is fine. The parent must exist."""

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory of this name; needs no descriptor. An error tells neither."""

    def is_link(self, path: Path) -> bool:
        """Whether there is a symbolic link of this name."""

    def list_dir(self, path: Path) -> list[str]:
        """Names in a directory, sorted; [] when there is no such directory."""

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file, replacing what is there."""

    def remove(self, path: Path) -> None:
        """Removes a file."""

    def remove_dir(self, path: Path) -> None:
        """Removes an empty directory."""

    def free_bytes(self, path: Path) -> int:
        """Bytes that an unprivileged process may still write in the file system of `path`."""


class SystemFiles:
    """Files of the operating system (Linux)."""

    relieve: Callable[[], int] | None = None
    """Closes descriptors that lie idle and tells how many; called when there are none left, before the next attempt."""

    def _with_descriptor(self, call: Callable[[], Result]) -> Result:
        """The result of a call that needs a descriptor."""
        while True:
            try:
                return call()
            except OSError as problem:
                # Another thread may be quicker to take what was given up: as long as anything was, it is tried again.
                if problem.errno not in NO_DESCRIPTORS or self.relieve is None or not self.relieve():
                    raise

    def _open(self, path: Path, flags: int, mode: int = FILE_MODE) -> int:
        return self._with_descriptor(lambda: os.open(path, flags | os.O_CLOEXEC, mode))

    def create(self, path: Path, mode: int = FILE_MODE) -> int:
        fd = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        owners.belong_to(path.parent, lambda uid, gid: os.fchown(fd, uid, gid))
        return fd

    def take_after(self, fd: int, path: Path, mode: int | None) -> None:
        owners.take_after(fd, path, mode)

    def open(self, path: Path, *, write: bool = False) -> int:
        # Opening a pipe would wait for somebody at its other end.
        fd = self._open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise NotAFile(errno.EINVAL, "not a regular file", str(path))
        except OSError:
            os.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        for first in range(0, len(buffers), IOV_BUFFERS):
            position = self._write_group(fd, [memoryview(b) for b in buffers[first : first + IOV_BUFFERS]], position)

    @staticmethod
    def _write_group(fd: int, views: list[memoryview], position: int) -> int:
        left = sum(map(len, views))
        while left:
            written = os.pwritev(fd, views, position)
            position += written
            left -= written
            while left and written >= len(views[0]):
                written -= len(views.pop(0))
            if left and written:
                views[0] = views[0][written:]
        return position

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        try:
            return self._read(fd, size_bytes, position)
        except OSError as problem:
            with suppress(OSError):
                problem.filename = os.readlink(f"/proc/self/fd/{fd}")
            raise

    @staticmethod
    def _read(fd: int, size_bytes: int, position: int) -> bytes:
        data = os.pread(fd, size_bytes, position)
        if len(data) in (size_bytes, 0):
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes and (data := os.pread(fd, size_bytes - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        try:
            return os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0

    def sync_data(self, fd: int) -> None:
        os.fdatasync(fd)
        if not os.fstat(fd).st_nlink:  # nobody would find it after a restart
            raise OSError(errno.ENOENT, REMOVED)

    def sync_dir(self, path: Path) -> None:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def make_dir(self, path: Path) -> bool:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not path.is_dir():
                raise
            return False
        owners.belong_to(path.parent, lambda uid, gid: os.chown(path, uid, gid))
        return True

    def exists(self, path: Path) -> bool:
        return found_at(path, os.lstat) is not None

    def is_link(self, path: Path) -> bool:
        found = found_at(path, os.lstat)
        return found is not None and stat.S_ISLNK(found.st_mode)

    def list_dir(self, path: Path) -> list[str]:
        try:
            return sorted(self._with_descriptor(lambda: os.listdir(path)))
        except FileNotFoundError:
            return []

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_dir(self, path: Path) -> None:
        os.rmdir(path)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize


def found_at(path: Path, look: Callable[[Path], os.stat_result] = os.stat) -> os.stat_result | None:
    """What is at `path`, None when there is nothing.

    Raises:
        OSError: it could not be looked at (a failing disk, a right that was taken): no sign that nothing is there.
    """
    try:
        return look(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_regular(path: Path) -> None:
    """Whether nothing but a file of its own is at `path`, if anything: for what others open (LMDB), or what is written
    in place. Through a link somebody else's file would be written, and opening a pipe would wait for its other end.

    Raises:
        NotAFile: it is a link, a pipe, a device or a directory.
        OSError: it cannot be looked at.
    """
    found = found_at(path, os.lstat)
    if found is not None and not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise NotAFile(errno.EINVAL, what, str(path))


def make_directory(path: Path, mode: int = DIRECTORY_MODE) -> None:
    """Makes a directory; those above it that are missing, too, in which nobody else can write, whatever the umask is.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    for above in reversed(path.parents):
        if not above.exists():
            above.mkdir(PARENT_MODE, exist_ok=True)
    path.mkdir(mode, exist_ok=True)


def write_new_file(files: Files, path: Path, content: Buffer, mode: int | None = None) -> None:
    """Puts `content` at `path` durably and all at once: written aside, synced, renamed, directory synced.

    An older file's owner and mode are kept. A new one belongs to its directory's owner and has `mode`, whatever the
    umask is; None: `FILE_MODE` less the umask.

    Raises:
        OSError: nothing of an older file at `path` was changed.
    """
    replace_file(files, path, content, mode)
    files.sync_dir(path.parent)


def replace_file(files: Files, path: Path, content: Buffer, mode: int | None = None) -> None:
    """As `write_new_file`, but durable only when the directory is synced, too. Raises OSError."""
    write_aside(files, path, content, mode)
    take_from_aside(files, path)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def write_aside(files: Files, path: Path, content: Buffer, mode: int | None = None) -> None:
    """The first half of `replace_file`: many can be written before the first one is synced. Raises OSError."""
    aside = _aside(path)
    try:
        fd = files.create(aside, FILE_MODE if mode is None else mode)
    except FileExistsError:
        files.remove(aside)  # left by a crash, or somebody's link; it was never in use
        fd = files.create(aside, FILE_MODE if mode is None else mode)
    with _removed_upon_failure(files, aside):
        try:
            files.take_after(fd, path, mode)
            files.write(fd, [content], 0)
        finally:
            files.close(fd)


def take_from_aside(files: Files, path: Path) -> None:
    """The second half: what was written aside is synced, and takes its place. Raises OSError."""
    aside = _aside(path)
    fd = files.open(aside, write=True)
    with _removed_upon_failure(files, aside):
        try:
            files.sync_data(fd)
        finally:
            files.close(fd)
    files.rename(aside, path)


@contextmanager
def _removed_upon_failure(files: Files, path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the first failure is the one to tell
            files.remove(path)
        raise


def free_path(files: Files, path: Path) -> Path:
    """`path`, or the first of ``path-2``, ``path-3`` ... that no file has: what is set aside replaces nothing."""
    taken = set(files.list_dir(path.parent))
    name = next(
        name for n in range(1, len(taken) + 2) if (name := f"{path.name}-{n}" if n > 1 else path.name) not in taken
    )
    return path.with_name(name)


def read_whole_file(files: Files, path: Path, size_bytes_max: int) -> bytes | None:
    """The content of a small file, None when there is none; at most `size_bytes_max` bytes of it."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return files.read(fd, size_bytes_max, 0)
    finally:
        files.close(fd)
