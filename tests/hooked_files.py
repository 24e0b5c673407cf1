"""The disk, with a hook before each call of it: a test makes one fail, or holds the thread that makes it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.files.system import FILE_MODE, SystemFiles


class HookedFiles(SystemFiles):
    """The disk, with a hook before each call that changes or syncs something: it may wait, or raise."""

    def __init__(self) -> None:
        self.hook: Callable[[str, Path], None] = lambda call, path: None
        self.names: dict[int, Path] = {}

    def create(self, path: Path, mode: int = FILE_MODE) -> int:
        self.hook("create", path)
        fd = super().create(path, mode)
        self.names[fd] = path
        return fd

    def open(self, path: Path, *, write: bool = False) -> int:
        self.hook("open", path)
        fd = super().open(path, write=write)
        self.names[fd] = path
        return fd

    def write(self, fd: int, buffers, position: int) -> None:  # type: ignore[no-untyped-def]
        self.hook("write", self.names[fd])
        super().write(fd, buffers, position)

    def sync_data(self, fd: int) -> None:
        self.hook("sync_data", self.names[fd])
        super().sync_data(fd)

    def sync_dir(self, path: Path) -> None:
        self.hook("sync_dir", path)
        super().sync_dir(path)

    def remove(self, path: Path) -> None:
        self.hook("remove", path)
        super().remove(path)

    def failing(self, call: str, suffix: str, code: int = errno.EIO) -> None:
        """From now on this call fails for files whose path ends so."""

        def hook(made: str, path: Path) -> None:
            if made == call and str(path).endswith(suffix):
                raise OSError(code, os.strerror(code), str(path))

        self.hook = hook

    def failing_once(self, call: str, suffix: str, code: int = errno.EIO) -> None:
        """The next such call fails, those behind it do not."""
        self.failing(call, suffix, code)
        fails = self.hook

        def hook(made: str, path: Path) -> None:
            try:
                fails(made, path)
            except OSError:
                self.hook = lambda call, path: None
                raise

        self.hook = hook


@contextmanager
def held(files: HookedFiles, call: str, suffix: str) -> Iterator[threading.Event]:
    """The first such call waits until the block ends; the event is set when it is reached."""
    reached, go_on = threading.Event(), threading.Event()

    def hook(made: str, path: Path) -> None:
        if made == call and str(path).endswith(suffix) and not reached.is_set():
            reached.set()
            assert go_on.wait(30)

    files.hook = hook
    try:
        yield reached
    finally:
        files.hook = lambda call, path: None
        go_on.set()


class ColdFiles(SystemFiles):
    """A disk of which nothing is in the page cache, and which may fail to read, or take its time.

    Attributes:
        code: errno of every read; 0: they succeed.
        answers: reads wait until it is set.
    """

    def __init__(self) -> None:
        self.code = 0
        self.answers = threading.Event()
        self.answers.set()

    def read_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        return 0

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        assert self.answers.wait(30)
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        return super().read(fd, size_bytes, position)
