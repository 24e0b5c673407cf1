"""A disk in memory that keeps what is synced and what is not apart, fails when told to, and can lose power.

At a power cut any subset of what was not synced may have reached the medium: each unsynced write whole, torn at a
sector, or not at all, in any order; each unsynced change of a directory (file made, renamed, removed) or not, where a
file's entry can only be lost together with the later changes of that name. What was synced is always there. The choice
is made by a seeded generator, so that every run can be repeated.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from engine.files import Buffer

SECTOR_BYTES = 512
FIRST_FD = 1000

Write: TypeAlias = tuple[int, bytes]
"""(position, bytes); a truncation is (size, b"")."""


@dataclass(eq=False)
class Inode:
    """A file: its content now, its content on the medium, and the writes between the two."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    unsynced: list[Write] = field(default_factory=list)

    def apply(self, position: int, data: bytes) -> None:
        write_at(self.content, position, data)
        self.unsynced.append((position, data))

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.unsynced.clear()

    def survive(self, dice: random.Random) -> bytes:
        """What is on the medium after a power cut."""
        content = bytearray(self.durable)
        kept = [write for write in self.unsynced if dice.random() < 0.6]
        if dice.random() < 0.3:
            dice.shuffle(kept)
        for position, data in kept:
            if data and dice.random() < 0.3:
                data = data[: dice.randrange(0, len(data), SECTOR_BYTES)]
                if not data:
                    continue
            write_at(content, position, data)
        return bytes(content)


def write_at(content: bytearray, position: int, data: bytes) -> None:
    if not data:
        del content[position:]
        return
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


@dataclass
class Directory:
    """Names now and on the medium; `changes` are the unsynced ones in order: (name, inode or None)."""

    names: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    changes: list[tuple[str, Inode | Directory | None]] = field(default_factory=list)

    def change(self, name: str, target: Inode | Directory | None) -> None:
        if target is None:
            del self.names[name]
        else:
            self.names[name] = target
        self.changes.append((name, target))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def survive(self, dice: random.Random) -> Directory:
        names = dict(self.durable)
        lost: set[str] = set()
        for name, target in self.changes:
            if name in lost or dice.random() < 0.4:
                lost.add(name)
            elif target is None:
                names.pop(name, None)
            else:
                names[name] = target
        result = Directory()
        for name, target in names.items():
            kept: Inode | Directory
            if isinstance(target, Directory):
                kept = target.survive(dice)
            else:
                content = target.survive(dice)
                kept = Inode(bytearray(content), content)
            result.names[name] = kept
        result.durable = dict(result.names)
        return result


class PowerCut(BaseException):
    """Raised by the call at which the power was cut; nothing after it happens."""


class SimulatedFiles:
    """The disk. `hook(call, path)` is asked before every call that changes or syncs something, and may raise."""

    def __init__(self, root: Directory | None = None, hook: Callable[[str, Path], None] | None = None) -> None:
        self.root = root if root is not None else Directory()
        self.hook = hook
        self.calls: list[tuple[str, Path]] = []
        self.capacity_bytes = 1 << 40
        self._open: dict[int, tuple[Inode, Path]] = {}
        self._next_fd = FIRST_FD

    def after_power_cut(self, dice: random.Random) -> SimulatedFiles:
        """The disk as the next start finds it."""
        return SimulatedFiles(self.root.survive(dice))

    # --- Files

    def create(self, path: Path) -> int:
        self._ask("create", path)
        directory = self._directory(path.parent)
        if path.name in directory.names:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        inode = Inode()
        directory.change(path.name, inode)
        return self._opened(inode, path)

    def open(self, path: Path, *, write: bool = False) -> int:
        return self._opened(self._inode(path), path)

    def close(self, fd: int) -> None:
        del self._open[fd]

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        inode, path = self._open[fd]
        self._ask("write", path)
        data = b"".join(buffers)
        growth = position + len(data) - len(inode.content)
        if growth > 0 and self._used() + growth > self.capacity_bytes:
            fits = max(0, len(data) - (self._used() + growth - self.capacity_bytes))
            if fits:
                inode.apply(position, data[:fits])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if data:
            inode.apply(position, data)

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        return bytes(self._open[fd][0].content[position : position + size_bytes])

    def read_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        data = self.read(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def sync_data(self, fd: int) -> None:
        inode, path = self._open[fd]
        self._ask("sync_data", path)
        inode.sync()

    def sync_dir(self, path: Path) -> None:
        self._ask("sync_dir", path)
        self._directory(path).sync()

    def truncate(self, fd: int, size_bytes: int) -> None:
        inode, path = self._open[fd]
        self._ask("truncate", path)
        inode.apply(size_bytes, b"")

    def size(self, fd: int) -> int:
        return len(self._open[fd][0].content)

    def make_dir(self, path: Path) -> None:
        self._ask("make_dir", path)
        parent = self._directory(path.parent)
        if path.name not in parent.names:
            parent.change(path.name, Directory())

    def exists(self, path: Path) -> bool:
        try:
            return path.name in self._directory(path.parent).names
        except FileNotFoundError:
            return False

    def list_dir(self, path: Path) -> list[str]:
        try:
            return sorted(self._directory(path).names)
        except FileNotFoundError:
            return []

    def rename(self, old: Path, new: Path) -> None:
        self._ask("rename", old)
        target = self._directory(old.parent).names.get(old.name)
        if target is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        self._directory(old.parent).change(old.name, None)
        self._directory(new.parent).change(new.name, target)

    def remove(self, path: Path) -> None:
        self._ask("remove", path)
        self._inode(path)
        self._directory(path.parent).change(path.name, None)

    def remove_dir(self, path: Path) -> None:
        self._ask("remove_dir", path)
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self._directory(path.parent).change(path.name, None)

    def free_bytes(self, path: Path) -> int:
        return self.capacity_bytes - self._used()

    # --- inside

    def _ask(self, call: str, path: Path) -> None:
        self.calls.append((call, path))
        if self.hook is not None:
            self.hook(call, path)

    def _opened(self, inode: Inode, path: Path) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = (inode, path)
        return self._next_fd

    def _directory(self, path: Path) -> Directory:
        here = self.root
        for name in path.parts[1:]:
            found = here.names.get(name)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            here = found
        return here

    def _inode(self, path: Path) -> Inode:
        found = self._directory(path.parent).names.get(path.name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(found, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return found

    def _used(self) -> int:
        return sum(len(inode.content) for inode in _inodes(self.root))


def _inodes(directory: Directory) -> list[Inode]:
    found = []
    for target in directory.names.values():
        found.extend(_inodes(target) if isinstance(target, Directory) else [target])
    return found


def disk_with(path: Path) -> SimulatedFiles:
    """A disk on which the directory `path` (absolute) exists durably."""
    files = SimulatedFiles()
    here = files.root
    for name in path.parts[1:]:
        directory = Directory()
        here.names[name] = here.durable[name] = directory
        here = directory
    return files
