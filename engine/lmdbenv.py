"""Opening of LMDB environments, the same way for ``state`` and ``index``.

Rules that hold for both (py-lmdb 3.0, LMDB 0.9):

- ``lib_version=0`` is always passed: py-lmdb holds two libraries with file formats that exclude each other.
- No WRITEMAP: a full disk would be a SIGBUS instead of an error, and the file would have the size of the map.
- The map is large from the start: addresses cost nothing, and the file only has the size of its pages.
- LMDB does not sync the directory after it has made its files; we do, and the parent's too.
- LMDB trusts its file. A file shorter than its meta pages say would be a SIGBUS at the first access, so the size is
  checked before the first transaction begins.
- An environment belongs to the process that opened it: children are spawned, never forked, and open their own.
- A read transaction pins pages, even when its process has died: transactions are short, and ``reader_check()`` is
  called at the start and regularly.
"""

from __future__ import annotations

from pathlib import Path

import lmdb

from engine.errors import Corrupt, DataDirectoryError, LogLocked, UnsupportedFormat
from engine.files import Files

LIB_VERSION = 0
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"


def open_environment(
    path: Path, map_bytes: int, files: Files, *, max_dbs: int = 0, create: bool, metasync: bool = True
) -> lmdb.Environment:
    """Opens (with `create`, also makes) the environment in directory `path`.

    Raises:
        Corrupt: it cannot be an LMDB file, or it is shorter than it says.
        UnsupportedFormat: it was made by another major version of LMDB.
        LogLocked: this process has it open already.
        DataDirectoryError: it is missing, or the system refuses it.
    """
    existed = (path / DATA_FILE).exists()
    if not existed and not create:
        raise DataDirectoryError(f"{path / DATA_FILE} is missing: `logtool repair` shows what can be restored")
    try:
        files.make_dir(path)
        environment = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=max_dbs, create=create, metasync=metasync, mode=0o640,
            readahead=False, lib_version=LIB_VERSION,
        )  # fmt: skip
    except lmdb.VersionMismatchError as error:
        raise UnsupportedFormat(f"{path} was written by another major version of LMDB: {error}") from error
    except (lmdb.InvalidError, lmdb.CorruptedError) as error:
        raise Corrupt(str(path), None, f"not an LMDB file: {error}") from error
    except lmdb.Error as error:
        if "already open" in str(error):
            raise LogLocked(f"{path} is already open in this process") from error
        raise DataDirectoryError(f"cannot open {path}: {error}") from error
    except OSError as error:
        raise DataDirectoryError(f"cannot open {path}: {error}") from error
    try:
        _check_size(path, environment)
        environment.reader_check()
        if not existed:
            files.sync_dir(path)
            files.sync_dir(path.parent)
    except BaseException:
        environment.close()
        raise
    return environment


def _check_size(path: Path, environment: lmdb.Environment) -> None:
    pages = environment.info()["last_pgno"] + 1
    need_bytes = pages * environment.stat()["psize"]
    have_bytes = (path / DATA_FILE).stat().st_size
    if have_bytes < need_bytes:
        raise Corrupt(str(path / DATA_FILE), have_bytes, f"the file is cut short: {need_bytes} bytes are in use")
