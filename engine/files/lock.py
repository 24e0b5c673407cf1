"""The data directory as a place: one process has it, and it stays where it is.

Two locks (flock) are held for life: of the directory itself, which nobody can replace without taking all that is in it
along, and of its file ``LOCK``, which tells people the process and keeps out versions that look at nothing else.
Whoever removes or replaces ``LOCK`` lets nobody in.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from engine.errors import LogLocked
from engine.files import owners
from engine.files.system import FILE_MODE, SystemFiles, check_regular, found_at, read_whole_file

LOCK_FILE = "LOCK"
ATTEMPTS = 10
"""Others may hold the lock for a moment, to see whether anybody has it (`is_in_use`)."""
ATTEMPT_S = 0.02
LOCKS = Path("/proc/locks")

_UNSUPPORTED = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP)
"""What file systems say that cannot lock a directory (NFS): there `LOCK` alone has to do."""


class DirectoryLock:
    """Holds a data directory until it is closed, or the process ends."""

    def __init__(self, data_dir: Path, *, file: bool = True) -> None:
        """Takes the locks.

        Args:
            file: that of ``LOCK``, too; without it nothing is made in the directory.

        Raises:
            LogLocked: another process has the directory, or this one has.
            OSError: the directory or ``LOCK`` cannot be opened.
        """
        self._path = data_dir
        self._directory_fd = self._taken(data_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._file_fd = self._taken_file() if file else os.dup(self._directory_fd)
        except BaseException:
            os.close(self._directory_fd)
            raise

    def _taken_file(self) -> int:
        path = self._path / LOCK_FILE
        check_regular(path)
        fd = self._taken(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        owners.belong_to(self._path, lambda uid, gid: os.fchown(fd, uid, gid))
        with suppress(OSError):  # only told to people; a full disk must not stop the start
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def _taken(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        try:
            self._take(fd, required=not flags & os.O_DIRECTORY)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _take(self, fd: int, *, required: bool) -> None:
        for attempt in range(ATTEMPTS):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if attempt < ATTEMPTS - 1:
                    time.sleep(ATTEMPT_S)
            except OSError as problem:
                if required or problem.errno not in _UNSUPPORTED:
                    raise
                return
        holder = holder_of(fd) or told_holder(self._path) or "unknown"
        raise LogLocked(
            f"data directory {self._path} is in use by process {holder}; stop it first, or use another directory"
        )

    def is_in_place(self) -> bool:
        """Whether the directory is still what its path names, neither moved nor removed nor replaced. Any thread.

        Raises:
            OSError: it cannot be looked at, which is no sign of either.
        """
        found = found_at(self._path)
        return found is not None and os.path.samestat(found, os.fstat(self._directory_fd))

    def renew_file(self) -> bool:
        """Puts ``LOCK`` back when it was removed or replaced; True: it was. Any thread, one at a time.

        Raises:
            OSError: it cannot be put back. LogLocked: another process has the file that is there now.
        """
        found = found_at(self._path / LOCK_FILE)
        if found is not None and os.path.samestat(found, os.fstat(self._file_fd)):
            return False
        old, self._file_fd = self._file_fd, self._taken_file()
        os.close(old)
        return True

    def close(self) -> None:
        """Lets go of the directory."""
        os.close(self._file_fd)
        os.close(self._directory_fd)


def holder_of(fd: int) -> int | None:
    """The process that has a lock on an open file, as the kernel tells; None where it does not."""
    stat = os.fstat(fd)
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    with suppress(OSError, ValueError):
        for line in LOCKS.read_text("ascii").splitlines():
            fields = line.split()
            if place in fields and "->" not in fields and int(fields[4]) > 0:
                return int(fields[4])
    return None


def identity_of(path: Path) -> str:
    """``DEVICE:INODE``: no other directory of this machine has it, a copy neither. Raises OSError."""
    status = os.stat(path)
    return f"{status.st_dev}:{status.st_ino}"


def told_holder(data_dir: Path) -> str:
    """The process that ``LOCK`` names, if it does; true while `is_in_use`, unless somebody replaced the file."""
    with suppress(OSError):
        told = (read_whole_file(SystemFiles(), data_dir / LOCK_FILE, 32) or b"").strip()
        if told.isdigit():
            return told.decode("ascii")
    return ""


def is_in_use(data_dir: Path) -> bool:
    """Whether a process has the directory; nothing is changed. Raises OSError."""
    return any(_is_locked(path) for path in (data_dir, data_dir / LOCK_FILE))


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as problem:
        if problem.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(fd)
    return False
