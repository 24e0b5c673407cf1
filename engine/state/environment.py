"""Opening of LMDB environments, the same way for ``state`` and ``index``.

Rules that hold for both (py-lmdb 3.0, LMDB 0.9):

- ``lib_version=0`` is always passed: py-lmdb holds two libraries with file formats that exclude each other.
- No WRITEMAP: a full disk would be a SIGBUS instead of an error, and the file would have the size of the map.
- The map is large from the start: addresses cost nothing, and the file only has the size of its pages. Where the
  system gives no such map (ulimit -v), a smaller one is taken.
- The lock file is filled before LMDB maps it: LMDB makes it with holes, and writing into a hole of a mapped file on a
  full disk is a SIGBUS (seen on tmpfs and ext4).
- LMDB does not sync the directory after it has made its files; we do, and the parent's too.
- LMDB trusts its file: a wrong page ends the process (SIGBUS, SIGSEGV, failed assertion), at every start again. So
  the file is verified (structure of every page, without LMDB) before the first transaction when the last process did
  not close it, when it is shorter than it says, and always when it is small. The file ``in-use`` tells the first case.
- An environment belongs to the process that opened it: children are spawned, never forked, and open their own. It is
  opened once in a process (a second time is refused), and not on a network file system.
- A read transaction pins pages, even when its process has died: transactions are short, and ``reader_check()`` is
  called at the start and regularly.
- The map grows between transactions when it is full. LMDB unmaps the old map before it maps the new one; when that
  fails py-lmdb gives the environment up, and it is opened again in its old size.

Failures of a commit. No space or no memory refuses this transaction and nothing else: LMDB writes a transaction's
pages, syncs them, and only then writes the meta page that makes them count, so an unfinished one leaves nothing behind
and its pages are written again by the next. A write that is cut short because the disk filled up is an EIO to LMDB, so
with no room left an EIO counts as no space (a meta page that could not be written makes LMDB itself refuse all that
follows). Any other failure closes the environment for writing until a restart.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import lmdb
from lmdb.verify import VerifyError, verify

from engine.directory_layout import LMDB_DATA_FILE, LMDB_LOCK_FILE
from engine.errors import (
    Corrupt,
    DataDirectoryError,
    DiskFull,
    EngineError,
    LogLocked,
    NotStored,
    ReadOnly,
    UnsupportedFormat,
)
from engine.files.owners import told
from engine.files.system import Files, check_regular, found_at
from engine.limits import LMDB_VERIFY_BYTES_MAX, MAP_BYTES_MAX, MAP_BYTES_MIN

log = logging.getLogger(__name__)

LIB_VERSION = 0
DATA_FILE = LMDB_DATA_FILE
LOCK_FILE = LMDB_LOCK_FILE
IN_USE_FILE = "in-use"
READERS = 126
LOCK_FILE_BYTES = 8192  # header and table of 126 readers
LMDB_MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)
SPACE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_ROOM_BYTES = 64 << 10  # less is left when a write was cut short: a file system keeps some blocks for itself

Databases: TypeAlias = Mapping[bytes, "lmdb._Database"]
Reader: TypeAlias = "tuple[lmdb.Transaction[bytes], Databases]"


class Environment:
    """An open environment: many short readers, one writer thread.

    Attributes:
        path: directory that holds its files.
        map_bytes: size of the map.
        trusted: False when it should have been verified but was too large for that.
        error: why nothing more is written (until a restart), or None.
    """

    def __init__(
        self,
        path: Path,
        map_bytes: int,
        files: Files,
        *,
        create: bool,
        databases: Sequence[bytes] = (),
        metasync: bool = True,
        verify_always_bytes: int = 0,
    ) -> None:
        """Opens (with `create`, also makes) the environment in directory `path`, with named databases if any.

        Files of up to `verify_always_bytes` are verified in any case.

        Raises:
            Corrupt: it is no LMDB file, or damaged.
            UnsupportedFormat: it was made by another major version of LMDB.
            LogLocked: this process has it open already.
            DataDirectoryError: it is missing, or the system refuses it.
            DiskFull, ReadOnly: a named database could not be made.
        """
        self.path = path
        self.map_bytes = map_bytes
        self.trusted = True
        self.error: ReadOnly | None = None
        self._files = files
        self._metasync = metasync
        self._names = databases
        self._databases: dict[bytes, lmdb._Database] = {}
        # Held by a reader during its transaction and by the writer while it resizes the map, which LMDB only allows
        # while no transaction is open. Never held during a commit.
        self._lock = threading.Lock()
        data_path = path / DATA_FILE
        size_bytes = data_path.stat().st_size if data_path.exists() else 0
        if not size_bytes and not create:
            condition = "empty" if data_path.exists() else "missing"
            raise DataDirectoryError(f"{data_path} is {condition}: `logtool repair` shows what can be restored")
        try:
            files.make_dir(path)
            _check_files(path)
            was_closed = IN_USE_FILE not in files.list_dir(path)
            _fill_lock_file(path / LOCK_FILE, files)
            if not data_path.exists():  # an empty one is as good as none to LMDB, and belongs to the right user
                files.close(files.create(data_path))
        except OSError as error:
            raise _refusal(path, error) from error
        self._environment = self._open(create)
        try:
            if size_bytes:
                short = size_bytes < self.info()["used_bytes"]
                if short or not was_closed or size_bytes <= verify_always_bytes:
                    self.trusted = _verify(data_path, size_bytes, short)
            self._environment.reader_check()
            self._identity = _identity(data_path)
            self._open_databases()
            _mark_in_use(path, files)
            if not size_bytes:
                files.sync_dir(path.parent)
        except (lmdb.Error, OSError) as error:
            self._environment.close()
            raise _refusal(path, error) from error
        except EngineError:
            self._environment.close()
            raise

    def _open(self, create: bool) -> lmdb.Environment:
        while True:
            try:
                return lmdb.open(
                    str(self.path), map_size=self.map_bytes, max_dbs=len(self._names), create=create,
                    metasync=self._metasync, mode=0o640, readahead=False, max_readers=READERS, lib_version=LIB_VERSION,
                )  # fmt: skip
            except lmdb.MemoryError as error:
                # Address space is limited here (ulimit -v, a small container): a smaller map does, as it can grow.
                if self.map_bytes < 8 * MAP_BYTES_MIN:
                    raise _refusal(self.path, error) from error
                self.map_bytes //= 8
            except lmdb.Error as error:
                raise _refusal(self.path, error) from error

    def _open_databases(self) -> None:
        self._databases = {name: self._environment.open_db(name) for name in self._names}

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A read transaction of one moment, as short as possible: the writer cannot grow the map meanwhile.

        Raises:
            DataDirectoryError: it cannot begin.
        """
        with self._lock:
            try:
                transaction = self._environment.begin()
            except lmdb.Error as error:
                raise DataDirectoryError(f"cannot read {self.path}: {error}") from error
            with transaction:
                yield transaction, self._databases

    def write(self, work: Callable[[lmdb.Transaction[bytes], Databases], object]) -> None:
        """Commits one transaction with all that `work` does (again from the start when the map had to grow).

        Raises:
            DiskFull, or plain NotStored (memory, a file that cannot be looked at): nothing was changed; try again.
            ReadOnly: nothing more is written until a restart.
        """
        while self.error is None:
            self._check_directory()
            try:
                with self._environment.begin(write=True) as transaction:
                    work(transaction, self._databases)
                return
            except lmdb.MapFullError:
                self._grow()
            except Exception as error:  # whatever it is, the writer thread must go on answering
                raise self._failed(error) from error
        raise self.error.again()

    def _check_directory(self) -> None:
        """Whether the file is what its path names: nobody would find in a removed one what is committed to it."""
        path = self.path / DATA_FILE
        try:
            found = found_at(path)
        except OSError as error:  # says nothing about where it is
            raise NotStored(
                f"cannot look whether {path} is in its place: {error.strerror}; nothing was changed"
            ) from error
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            raise self._close_for_writing(OSError(f"{DATA_FILE} was moved, replaced or removed while it was in use"))

    def _grow(self) -> None:
        wanted_bytes = 2 * self.map_bytes
        if wanted_bytes > MAP_BYTES_MAX:
            raise DiskFull(f"{self.path} has used all of its {self.map_bytes} bytes, and they cannot become more")
        with self._lock:
            try:
                self._environment.set_mapsize(wanted_bytes)
                self.map_bytes = wanted_bytes
            except lmdb.Error as error:
                self._reopen()
                raise DiskFull(
                    f"{self.path} has used all of its {self.map_bytes} bytes, and the system gives no more: {error}"
                ) from error

    def _reopen(self) -> None:
        self._environment.close()
        try:
            self._environment = self._open(create=False)
            self._open_databases()
        except (lmdb.Error, EngineError) as error:
            raise self._close_for_writing(error) from error

    def _failed(self, error: Exception) -> NotStored:
        if isinstance(error, lmdb.MemoryError | MemoryError):
            return NotStored(f"not enough memory for changes in {self.path}: {error}")
        code = error.code if isinstance(error, lmdb.Error) else None
        if code in SPACE_ERRORS or (code == errno.EIO and self._no_room()):
            return DiskFull(f"no space for changes in {self.path}: {error}; free some, and it goes on by itself")
        return self._close_for_writing(error)

    def _no_room(self) -> bool:
        try:
            room = os.statvfs(self.path)
        except OSError:
            return False
        return room.f_bavail * room.f_frsize < NO_ROOM_BYTES

    def _close_for_writing(self, error: Exception) -> ReadOnly:
        self.error = ReadOnly(f"{self.path} is read-only until a restart, because a commit failed: {error}")
        log.error("%s", self.error)
        return self.error

    def reader_check(self) -> None:
        """Frees the slots of readers whose process has died. Writer thread."""
        try:
            self._environment.reader_check()
        except lmdb.Error as error:
            log.warning("cannot look for dead readers of %s: %s", self.path, error)

    def info(self) -> dict[str, int]:
        """Figures for metrics: used_bytes (of the file), map_bytes, readers; 0 where LMDB tells none any more."""
        with self._lock:
            try:
                info = self._environment.info()
                page_bytes = self._environment.stat()["psize"]
            except lmdb.Error:
                return {"used_bytes": 0, "map_bytes": self.map_bytes, "readers": 0}
        used_bytes = (info["last_pgno"] + 1) * page_bytes
        return {"used_bytes": used_bytes, "map_bytes": info["map_size"], "readers": info["num_readers"]}

    def close(self) -> None:
        """Closes the environment and notes that it was closed."""
        self._environment.close()
        try:
            if IN_USE_FILE in self._files.list_dir(self.path):
                self._files.remove(self.path / IN_USE_FILE)
        except OSError as error:
            log.warning("cannot note that %s was closed, it will be verified at the next start: %s", self.path, error)


class ReadOnlyEnvironment:
    """An environment opened for reading only, also beside the process that writes it. Nothing is made in its directory:
    where LMDB's lock file is missing, nobody has the environment open, and it is read without one."""

    def __init__(self, path: Path, databases: Sequence[bytes] = ()) -> None:
        """Opens it.

        Raises:
            Corrupt, UnsupportedFormat, DataDirectoryError: see Environment.
        """
        self.path = path
        self._names = databases
        try:
            self._open()
        except (lmdb.Error, OSError) as error:
            raise _refusal(path, error) from error

    def _open(self) -> None:
        _check_files(self.path)
        self._has_lock_file = found_at(self.path / LOCK_FILE) is not None
        self._environment = lmdb.open(
            str(self.path), readonly=True, create=False, max_dbs=len(self._names), readahead=False, max_readers=READERS,
            lib_version=LIB_VERSION, lock=self._has_lock_file,
        )  # fmt: skip
        self._databases = {name: self._environment.open_db(name, create=False) for name in self._names}

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A read transaction. Raises DataDirectoryError."""
        try:
            if not self._has_lock_file and found_at(self.path / LOCK_FILE) is not None:
                self._environment.close()
                self._open()  # somebody writes it by now
            try:
                transaction = self._environment.begin()
            except lmdb.MapResizedError:
                self._environment.set_mapsize(0)  # the writer grew it: take its size over
                transaction = self._environment.begin()
        except (lmdb.Error, OSError) as error:
            raise DataDirectoryError(f"cannot read {self.path}: {error}") from error
        with transaction:
            yield transaction, self._databases

    def copy(self, target: Path) -> None:
        """Writes a copy of one moment into a directory that is there and empty. Raises DataDirectoryError, DiskFull."""
        try:
            self._environment.copy(str(target))
        except lmdb.Error as error:
            if error.code in SPACE_ERRORS:
                raise DiskFull(f"no space for a copy of {self.path} in {target}") from error
            raise DataDirectoryError(f"cannot copy {self.path} to {target}: {error}") from error

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()


def _identity(path: Path) -> tuple[int, int]:
    """Device and inode of a file. Raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _check_files(path: Path) -> None:
    """Raises OSError: something else lies in the place of LMDB's files, which would be written or waited for."""
    for name in (DATA_FILE, LOCK_FILE):
        check_regular(path / name)


def move_aside(path: Path, files: Files) -> Path:
    """Renames the environment's files out of the way, keeping them; the directory that holds them now.

    Raises:
        OSError: as the system gave it.
    """
    taken = set(files.list_dir(path.parent))
    number = next(n for n in range(1, len(taken) + 2) if f"{path.name}.damaged-{n}" not in taken)
    aside = path.with_name(f"{path.name}.damaged-{number}")
    files.rename(path, aside)
    files.sync_dir(path.parent)
    return aside


def _refusal(path: Path, error: lmdb.Error | OSError) -> EngineError:
    if isinstance(error, lmdb.VersionMismatchError) or (isinstance(error, lmdb.InvalidError) and _is_of_lmdb_1(path)):
        return UnsupportedFormat(f"{path} was written by another major version of LMDB: {error}")
    if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError):
        return Corrupt(str(path / DATA_FILE), None, f"not an LMDB file: {error}")
    if "already open" in str(error):
        return LogLocked(f"{path} is already open in this process")
    if (error.code if isinstance(error, lmdb.Error) else error.errno) in (errno.EACCES, errno.EPERM):
        return DataDirectoryError(f"cannot open {told(_named(path, error))}")
    return DataDirectoryError(f"cannot open {path}: {error}")


def _named(path: Path, error: lmdb.Error | OSError) -> OSError:
    """A refusal with the file that is refused: LMDB does not tell which."""
    if isinstance(error, OSError) and error.filename:
        return error
    files = (path / LOCK_FILE, path / DATA_FILE)
    refused = [file for file in files if not os.access(file, os.R_OK | os.W_OK, effective_ids=True)]
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str((*refused, path)[0]))


def _is_of_lmdb_1(path: Path) -> bool:
    """LMDB 1.0 has its magic number 8 bytes further back than 0.9."""
    with (path / DATA_FILE).open("rb") as file:
        return file.read(28)[24:] == LMDB_MAGIC


def _fill_lock_file(path: Path, files: Files) -> None:
    if path.exists() and path.stat().st_size >= LOCK_FILE_BYTES:
        return
    fd = files.open(path, write=True) if path.exists() else files.create(path)
    try:
        files.write(fd, [bytes(LOCK_FILE_BYTES)], 0)
    finally:
        files.close(fd)


def faults(path: Path) -> list[str]:
    """What is wrong with the structure of the environment in directory `path`; read without LMDB, nobody may write."""
    try:
        return [str(problem) for problem in verify(str(path))]  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]


def _verify(path: Path, size_bytes: int, short: bool) -> bool:
    """Whether the file could be verified; raises Corrupt when something is wrong with it.

    A file that is shorter than its last page number says can be sound: LMDB does not write pages that a transaction
    both took and freed at the end of the file.
    """
    if size_bytes > LMDB_VERIFY_BYTES_MAX and not short:
        return False
    problems = faults(path.parent)
    if problems:
        position = size_bytes if short else None
        raise Corrupt(str(path), position, f"{len(problems)} faults in its structure, the first: {problems[0]}")
    return True


def _mark_in_use(path: Path, files: Files) -> None:
    if IN_USE_FILE not in files.list_dir(path):
        try:
            files.close(files.create(path / IN_USE_FILE))
        except OSError as error:
            # A full disk must not stop the start; without the mark only the next start's verification is less strict.
            log.warning("cannot mark %s as in use: %s", path, error)
    files.sync_dir(path)
