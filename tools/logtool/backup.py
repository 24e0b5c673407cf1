"""`backup` and `restore`: a whole log as of one moment, taken while the server runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from engine.files.lock import DirectoryLock
from engine.files.system import make_directory
from tools.logtool.cli import Command, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure, Finding
from tools.logtool.lib.output import size_text
from tools.logtool.lib.progress import BytesProgress, stored_bytes


@contextmanager
def empty_directory(path: Path) -> Iterator[None]:
    """Makes a directory for what follows, which nobody else may use; when that fails, what it made is removed.

    Raises:
        Failure: there is something in it already.
        LogLocked: another process has it, a server perhaps whose files somebody removed.
    """
    there = path.exists()
    if there and (not path.is_dir() or any(path.iterdir())):
        raise Failure(errors.CONFLICT, "not_empty", f"{path} is not empty; name a directory that is, or a new one")
    make_directory(path)
    lock = DirectoryLock(path, file=False)
    try:
        yield
    except BaseException:
        for entry in path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if not there:
            path.rmdir()
        raise
    finally:
        lock.close()


@click.command(cls=Command)
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.pass_obj
def backup(settings: Settings, out: Path) -> None:
    """Copy the whole log into the new directory OUT, also while a server writes to it. Works on files.

    Everything that was acknowledged before the copy began is in it, a transaction as a whole or not at all; what is
    published meanwhile may be in it. Topics, subscriptions and sessions are in it; admin.token is not. Every batch is
    checked on the way: damage is copied as it is, named on stderr, and the exit code is 1. OUT is a data directory
    that cat, verify and a server can use as it is; `logtool restore` compares every byte with what was written.
    """
    from tools.logtool.lib.backup_copy import Backup

    data_dir, output = settings.need_directory(), settings.output
    if out.absolute().is_relative_to(data_dir.absolute()):
        raise click.UsageError("OUT lies in the data directory itself")
    with empty_directory(out), BytesProgress(output, "copied", stored_bytes(data_dir)) as progress:
        copied = Backup(data_dir, out, progress.add).run()
    for problem in copied.damaged:
        output.warn(f"logtool: {problem}")
    item = {
        "backup": str(out.absolute()),
        "topics": copied.topics,
        "partitions_with_records": copied.partitions,
        "records": copied.records,
        "files": len(copied.files),
        "bytes": copied.size_bytes,
        "damaged": len(copied.damaged),
    }
    output.fields(item, {"bytes": size_text})
    if copied.damaged:
        raise Finding


@click.command(cls=Command)
@click.argument("source", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.pass_obj
def restore(settings: Settings, source: Path, target: Path) -> None:
    """Make the new data directory DIR of the backup OUT, and compare every byte with what was backed up.

    DIR must be empty or not be there. When a file of the backup is damaged or missing, DIR is left as it was and the
    exit code is 1. Then start a server on it: engine-server --data-dir DIR.
    """
    from tools.logtool.lib.backup_copy import manifest_of, restored

    output = settings.output
    total_bytes = sum(size_bytes for _, size_bytes, _ in manifest_of(source))
    with empty_directory(target), BytesProgress(output, "restored", total_bytes) as progress:
        files = sum(1 for _ in restored(source, target, progress.add))
    output.fields({"data_dir": str(target.absolute()), "files": files, "bytes": total_bytes}, {"bytes": size_text})
