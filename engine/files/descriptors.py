"""Open segment files: a bounded cache of file descriptors, so that many partitions live under a small limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from engine.files.system import Files


class Handle:
    """An open file, closed when it is no longer wanted and nobody uses it."""

    __slots__ = ("fd", "retired", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.retired = False


class Handles:
    """Descriptors by path, opened for reading and writing, least recently used closed first.

    A descriptor in use is never closed, so the count may pass `open_files_max` while more threads than that are
    inside `use`. Callers on any thread.
    """

    def __init__(self, files: Files, open_files_max: int) -> None:
        self._files = files
        self._open_files_max = open_files_max
        self._handles: OrderedDict[Path, Handle] = OrderedDict()
        self._lock = threading.RLock()  # opening a file may ask to `relieve`

    def __len__(self) -> int:
        return len(self._handles)

    @contextmanager
    def use(self, path: Path) -> Iterator[int]:
        """The descriptor of `path` for the time of the ``with`` block.

        Raises:
            OSError: the file cannot be opened.
        """
        handle = self.acquire(path)
        try:
            yield handle.fd
        finally:
            self.release(handle)

    def add(self, path: Path, fd: int) -> None:
        """Takes over a descriptor that was just made for a new file."""
        with self._lock:
            self._handles[path] = Handle(fd)
            self._evict()

    def forget(self, path: Path) -> None:
        """Closes the descriptor of a file that is renamed or removed, as soon as nobody uses it."""
        with self._lock:
            handle = self._handles.pop(path, None)
            if handle is not None:
                self._retire(handle)

    def close(self) -> None:
        """Closes all descriptors (those in use when their users are done)."""
        with self._lock:
            while self._handles:
                self._retire(self._handles.popitem()[1])

    def relieve(self) -> int:
        """Closes half of the descriptors that nobody uses, as the process has none left; how many."""
        with self._lock:
            idle = [path for path, handle in self._handles.items() if not handle.users]
            chosen = idle[: (len(idle) + 1) // 2]
            for path in chosen:
                self._retire(self._handles.pop(path))
            return len(chosen)

    def acquire(self, path: Path) -> Handle:
        """The descriptor of `path`, in use until `release`. Raises OSError: it cannot be opened."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                handle = Handle(self._files.open(path, write=True))
                self._handles[path] = handle
                handle.users = 1
                self._evict()
                return handle
            handle.users += 1
            self._handles.move_to_end(path)
            return handle

    def release(self, handle: Handle) -> None:
        """Ends one use."""
        with self._lock:
            handle.users -= 1
            if handle.retired and not handle.users:
                self._files.close(handle.fd)

    def _retire(self, handle: Handle) -> None:
        handle.retired = True
        if not handle.users:
            self._files.close(handle.fd)

    def _evict(self) -> None:
        excess = len(self._handles) - self._open_files_max
        if excess <= 0:
            return
        for path in list(islice((path for path, handle in self._handles.items() if not handle.users), excess)):
            self._retire(self._handles.pop(path))
