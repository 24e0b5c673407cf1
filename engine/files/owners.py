"""Owners of files: a command of root's in somebody else's directory leaves no file there that belongs to root.

What is made in a directory belongs to the directory's owner, what replaces a file to that file's, with its mode.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_ROOT = 0


def belong_to(directory: Path, change: Callable[[int, int], None]) -> None:
    """Hands to the directory's owner what root has just made in it, by `change(uid, gid)`.

    Where root may not (a container without that right, a network file system) it stays root's.
    """
    if os.geteuid() == _ROOT:
        with suppress(OSError):
            owner = os.stat(directory)
            if owner.st_uid != _ROOT:
                change(owner.st_uid, owner.st_gid)


def take_after(fd: int, path: Path, mode: int | None) -> None:
    """Gives a new file owner and mode of the one at `path`, which it is to replace; without one, `mode` if any.

    Raises:
        OSError: the file's owner is somebody else, who could not use what replaces it.
    """
    try:
        old = os.lstat(path)
    except FileNotFoundError:
        old = None
    if old is None or not stat.S_ISREG(old.st_mode):
        if mode is not None:
            os.fchmod(fd, mode)
        return
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(fd, old.st_uid, old.st_gid)
        except PermissionError:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path)) from None
    if new.st_mode != old.st_mode:
        os.fchmod(fd, stat.S_IMODE(old.st_mode))


def name_of(uid: int) -> str:
    """A user's name, or the number when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def refused_by(problem: OSError) -> str:
    """Whose the file is that a permission was refused for, and what to do; "" for any other error."""
    if problem.errno not in (errno.EACCES, errno.EPERM) or not isinstance(problem.filename, str | os.PathLike):
        return ""
    name = Path(problem.filename)
    for path in (name, *name.absolute().parents):
        try:
            found = path.stat()
        except OSError:  # what lies in a directory that is closed to us
            continue
        if found.st_uid == os.geteuid():
            return ""
        owner = name_of(found.st_uid)
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
        return f"{path} belongs to {owner} ({mode}): `sudo -u {owner} ...` may do it, `chown` changes whose it is"
    return ""


def told(problem: OSError) -> str:
    """An error of the system for an operator: the file, what is wrong, and for a refusal whose it is and what to do."""
    text = (
        f"{problem.filename}: {problem.strerror or problem}" if problem.filename else problem.strerror or str(problem)
    )
    reason = refused_by(problem)
    return f"{text}; {reason}" if reason else text
