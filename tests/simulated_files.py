"""A disk in memory that keeps what is synced and what is not apart, fails when told to, and can lose power.

At a power cut any subset of what was not synced may have reached the medium: each unsynced write whole, torn at a
sector, or not at all, in any order; each unsynced change of a directory (file made, renamed, removed) or not, where a
file's entry can only be lost together with the later changes of that name. What was synced is always there. The choice
is made by a seeded generator, so that every run can be repeated.

A failed sync is modelled after Linux: whatever reached the medium, all pages count as clean from then on. Reads still
see what was written, a later sync writes nothing of it and succeeds, and memory pressure (`evict`) may bring the
medium's content back. Only writing the same bytes again makes them dirty again.

All calls hold one lock (`lock`), so that a hook sees, and may copy, everything at one moment.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from engine.files.system import FILE_MODE, Buffer

SECTOR_BYTES = 512
PAGE_BYTES = 4096
FIRST_FD = 1000
UNLIMITED = 1 << 40

Change: TypeAlias = tuple[int, bytes | None]
"""(position, bytes), or (size, None) for a change of the size."""


def write_at(content: bytearray, change: Change) -> None:
    position, data = change
    if data is None:
        del content[position:]
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is not None:
        content[position : position + len(data)] = data


class LoseAll(random.Random):
    """The worst disk: nothing reaches the medium unless it is synced."""

    def random(self) -> float:
        return 0.99


class KeepAll(random.Random):
    """Everything that was written reached the medium."""

    def random(self) -> float:
        return 0.5


@dataclass(eq=False)
class Inode:
    """A file: its content as reads see it, its content on the medium, and the changes between the two."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)

    def apply(self, change: Change) -> None:
        write_at(self.content, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Dirty pages reach the medium, as they are now, and the size does."""
        for page in self._dirty_pages():
            write_at(self.durable, (page * PAGE_BYTES, bytes(self._page(self.content, page))))
        write_at(self.durable, (len(self.content), None))
        self.unsynced.clear()

    def fail_sync(self, dice: random.Random) -> None:
        """Some of it reached the medium; all of it counts as clean."""
        self.durable = self.survive(dice)
        self.unsynced.clear()

    def evict(self) -> None:
        """Clean pages are read from the medium again."""
        dirty = self._dirty_pages()
        for page in range((len(self.content) + PAGE_BYTES - 1) // PAGE_BYTES):
            if page not in dirty:
                size = len(self._page(self.content, page))
                stored = self._page(self.durable, page)[:size]
                write_at(self.content, (page * PAGE_BYTES, bytes(stored.ljust(size, b"\0"))))

    def survive(self, dice: random.Random) -> bytearray:
        """What is on the medium after a power cut."""
        content = bytearray(self.durable)
        kept = [change for change in self.unsynced if dice.random() < 0.6]
        if dice.random() < 0.3:
            dice.shuffle(kept)
        for position, data in kept:
            torn = data
            if data and dice.random() < 0.3:
                torn = data[: dice.randrange(0, len(data), SECTOR_BYTES)]
            if torn is None or torn:
                write_at(content, (position, torn))
        return content

    def _dirty_pages(self) -> set[int]:
        return {
            page
            for position, data in self.unsynced
            if data
            for page in range(position // PAGE_BYTES, (position + len(data) - 1) // PAGE_BYTES + 1)
            if page * PAGE_BYTES < len(self.content)
        }

    @staticmethod
    def _page(content: bytearray, page: int) -> bytearray:
        return content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]


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
            if name in lost or dice.random() >= 0.6:
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

    def clone(self) -> Directory:
        """A copy with everything, synced or not."""
        copies: dict[int, Inode | Directory] = {}

        def copy(target: Inode | Directory) -> Inode | Directory:
            known = copies.get(id(target))
            if known is None:
                if isinstance(target, Directory):
                    known = target.clone()
                else:
                    known = Inode(bytearray(target.content), bytearray(target.durable), list(target.unsynced))
                copies[id(target)] = known
            return known

        return Directory(
            {name: copy(target) for name, target in self.names.items()},
            {name: copy(target) for name, target in self.durable.items()},
            [(name, None if target is None else copy(target)) for name, target in self.changes],
        )

    def inodes(self) -> list[Inode]:
        """All files below it."""
        found = []
        for target in self.names.values():
            found.extend(target.inodes() if isinstance(target, Directory) else [target])
        return found


class Late(OSError):
    """Raised by a hook: the write is made, and fails nevertheless."""


class SimulatedFiles:
    """The disk. `hook(call, path)` is asked before every call that changes or syncs something, and may raise."""

    def __init__(self, root: Directory | None = None, hook: Callable[[str, Path], None] | None = None) -> None:
        self.root = root if root is not None else Directory()
        self.hook = hook
        self.calls: list[tuple[str, Path]] = []
        self.capacity_bytes = UNLIMITED
        self.dice = random.Random(0)
        """Decides what of a failed sync reached the medium."""
        self.lock = threading.RLock()
        self._open: dict[int, tuple[Inode, Path]] = {}
        self._next_fd = FIRST_FD

    def after_power_cut(self, dice: random.Random) -> SimulatedFiles:
        """The disk as the next start finds it."""
        with self.lock:
            return SimulatedFiles(self.root.survive(dice))

    def after_kill(self) -> SimulatedFiles:
        """The disk as the next process finds it, page cache and all."""
        with self.lock:
            return SimulatedFiles(self.root.clone())

    def evict(self) -> None:
        """Memory pressure: nothing that is clean stays in the page cache."""
        with self.lock:
            for inode in self.root.inodes():
                inode.evict()

    # --- Files

    def create(self, path: Path, mode: int = FILE_MODE) -> int:
        with self.lock:
            self._ask("create", path)
            directory = self._directory(path.parent)
            if path.name in directory.names:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            inode = Inode()
            directory.change(path.name, inode)
            return self._opened(inode, path)

    def take_after(self, fd: int, path: Path, mode: int | None) -> None:
        """There is one user."""

    def open(self, path: Path, *, write: bool = False) -> int:
        with self.lock:
            return self._opened(self._inode(path), path)

    def close(self, fd: int) -> None:
        with self.lock:
            del self._open[fd]

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        with self.lock:
            inode, path = self._open[fd]
            data = b"".join(buffers)
            try:
                self._ask("write", path)
            except Late:
                inode.apply((position, data))
                raise
            growth = position + len(data) - len(inode.content)
            if growth > 0 and self.capacity_bytes < UNLIMITED and self._used() + growth > self.capacity_bytes:
                fits = max(0, len(data) - (self._used() + growth - self.capacity_bytes))
                if fits:
                    inode.apply((position, data[:fits]))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if data:
                inode.apply((position, data))

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        with self.lock:
            return bytes(self._open[fd][0].content[position : position + size_bytes])

    def read_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        data = self.read(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def sync_data(self, fd: int) -> None:
        with self.lock:
            inode, path = self._open[fd]
            try:
                self._ask("sync_data", path)
            except OSError:
                inode.fail_sync(self.dice)
                raise
            inode.sync()

    def sync_dir(self, path: Path) -> None:
        with self.lock:
            self._ask("sync_dir", path)
            self._directory(path).sync()

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self.lock:
            inode, path = self._open[fd]
            self._ask("truncate", path)
            inode.apply((size_bytes, None))

    def size(self, fd: int) -> int:
        with self.lock:
            return len(self._open[fd][0].content)

    def make_dir(self, path: Path) -> bool:
        with self.lock:
            self._ask("make_dir", path)
            parent = self._directory(path.parent)
            if path.name in parent.names:
                return False
            parent.change(path.name, Directory())
            return True

    def exists(self, path: Path) -> bool:
        with self.lock:
            try:
                return path.name in self._directory(path.parent).names
            except FileNotFoundError:
                return False

    def is_link(self, path: Path) -> bool:
        return False

    def list_dir(self, path: Path) -> list[str]:
        with self.lock:
            try:
                return sorted(self._directory(path).names)
            except FileNotFoundError:
                return []

    def rename(self, old: Path, new: Path) -> None:
        with self.lock:
            self._ask("rename", old)
            target = self._directory(old.parent).names.get(old.name)
            if target is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
            self._directory(old.parent).change(old.name, None)
            self._directory(new.parent).change(new.name, target)

    def remove(self, path: Path) -> None:
        with self.lock:
            self._ask("remove", path)
            self._inode(path)
            self._directory(path.parent).change(path.name, None)

    def remove_dir(self, path: Path) -> None:
        with self.lock:
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
        return sum(len(inode.content) for inode in self.root.inodes())


def disk_with(path: Path) -> SimulatedFiles:
    """A disk on which the directory `path` (absolute) exists durably."""
    files = SimulatedFiles()
    here = files.root
    for name in path.parts[1:]:
        directory = Directory()
        here.names[name] = here.durable[name] = directory
        here = directory
    return files
