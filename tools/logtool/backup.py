"""`backup` and `restore`: a whole log as of one moment, taken while the server runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from engine.files.lock import DirectoryLock
from engine.files.system import make_directory
from tools.logtool.cli import Command, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.errors import Failure, Finding
from tools.logtool.lib.events import Event, OnBytes, begun, followed, served
from tools.logtool.lib.limits import BACKUP_FREE_SHARE
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


def backed_up(data_dir: Path, out: Path, on_bytes: OnBytes, *, leaves_room: bool = False) -> Iterator[Event]:
    """Copies a directory: a ``problem`` for each piece of damage, then what the ``backup`` holds.

    Args:
        leaves_room: it is refused where less room would be left than the log has now: that of a log that goes on.

    Raises:
        Failure, EngineError, OSError: nothing is left of it.
    """
    from tools.logtool.lib.backup_copy import Backup

    total_bytes = stored_bytes(data_dir)
    if leaves_room:
        disk = os.statvfs(out.parent)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes - total_bytes < disk.f_blocks * disk.f_frsize * BACKUP_FREE_SHARE:
            text = f"{out.parent} has {size_text(free_bytes)} of room, the log has {size_text(total_bytes)}"
            raise Failure(errors.NO_ROOM, "no_space", f"{text}: too little would be left for what is published")
    with empty_directory(out):
        backup = Backup(data_dir, out, on_bytes)
        yield begun(total_bytes)
        copied = backup.run()
    for problem in copied.damaged:
        yield {"problem": problem}
    item = {
        "backup": str(out.absolute()),
        "topics": copied.topics,
        "partitions_with_records": copied.partitions,
        "records": copied.records,
        "files": len(copied.files),
        "bytes": copied.size_bytes,
        "damaged": len(copied.damaged),
    }
    yield {"backup": item}


@click.command(cls=Command)
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.pass_obj
def backup(settings: Settings, out: Path) -> None:
    """Copy the whole log into the new directory OUT, also while a server writes to it. From files or server.

    Everything that was acknowledged before the copy began is in it, a transaction as a whole or not at all; what is
    published meanwhile may be in it. Topics, subscriptions and sessions are in it; admin.token is not. Every batch is
    checked on the way: damage is copied as it is, named on stderr, and the exit code is 1. OUT is a data directory
    that cat, verify and a server can use as it is; `logtool restore` compares every byte with what was written.

    With --server, OUT is a name: the server makes a directory of that name where its setting [admin] backup_dir says.
    """
    output = settings.output
    with BytesProgress(output, "copied") as progress:
        for event in followed(_events(settings, out, progress.add), progress):
            if "problem" in event:
                output.warn(f"logtool: {event['problem']}")
            elif "backup" in event:
                item = event["backup"]
    output.fields(item, {"bytes": size_text})
    if item["damaged"]:
        raise Finding


def _events(settings: Settings, out: Path, on_bytes: OnBytes) -> Iterator[Event]:
    data_dir = settings.data_dir
    if data_dir is None:
        return served(need_admin(settings), "POST", "/v1/backups", {"name": str(out)})
    if out.absolute().is_relative_to(data_dir.absolute()):
        raise click.UsageError("OUT lies in the data directory itself")
    return backed_up(data_dir, out, on_bytes)


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
