"""The file layer without consequences: reads come from the disk, changes stay in memory.

So the plan of a repair is made by the repair itself: what it finds, renames, cuts and writes here is exactly what it
would do there, and every later step sees the outcome of the earlier ones.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from engine.files.system import FILE_MODE, Buffer, SystemFiles

PAGE_BYTES = 1 << 16


class _OverlayFile:
    """A file: what the disk has of it, and pages that were written since."""

    def __init__(self, fd: int | None, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self.kept_bytes = size_bytes
        """How much of the disk's content still counts where no page was written."""
        self.pages: dict[int, bytearray] = {}
        self.is_changed = fd is None
        self.opened = 0

    def page(self, files: SystemFiles, number: int) -> bytearray:
        found = self.pages.get(number)
        if found is not None:
            return found
        start = number * PAGE_BYTES
        size = min(PAGE_BYTES, max(0, self.kept_bytes - start))
        data = files.read(self.fd, size, start) if self.fd is not None and size else b""
        return bytearray(data.ljust(PAGE_BYTES, b"\0"))

    def read(self, files: SystemFiles, size_bytes: int, position: int) -> bytes:
        end = min(position + size_bytes, self.size_bytes)
        if position >= end:
            return b""
        if not self.is_changed and self.fd is not None:
            return files.read(self.fd, end - position, position)
        numbers = range(position // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)
        data = b"".join(self.page(files, number) for number in numbers)
        skip = position - numbers[0] * PAGE_BYTES
        return data[skip : skip + end - position]

    def write(self, files: SystemFiles, data: bytes, position: int) -> None:
        done = 0
        while done < len(data):
            number, offset = divmod(position + done, PAGE_BYTES)
            page = self.page(files, number)
            part = data[done : done + PAGE_BYTES - offset]
            page[offset : offset + len(part)] = part
            self.pages[number] = page
            done += len(part)
        self.size_bytes = max(self.size_bytes, position + len(data))
        self.is_changed = True

    def truncate(self, files: SystemFiles, size_bytes: int) -> None:
        number, offset = divmod(size_bytes, PAGE_BYTES)
        if offset:
            page = self.page(files, number)
            page[offset:] = bytes(PAGE_BYTES - offset)
            self.pages[number] = page
        for behind in [page for page in self.pages if page * PAGE_BYTES >= size_bytes]:
            del self.pages[behind]
        self.kept_bytes = min(self.kept_bytes, size_bytes)
        self.size_bytes = size_bytes
        self.is_changed = True


class OverlayFiles:
    """See the module. Implements `engine.files.system.Files`; `close_all` lets go of the disk's files."""

    def __init__(self) -> None:
        self._files = SystemFiles()
        self._overlays: dict[Path, _OverlayFile] = {}
        self._gone: set[Path] = set()
        self._directories: set[Path] = set()
        self._open: dict[int, _OverlayFile] = {}
        self._next_fd = 0

    def close_all(self) -> None:
        """Closes everything that is open on the disk."""
        for file in {*self._overlays.values(), *self._open.values()}:
            if file.fd is not None:
                self._files.close(file.fd)
        self._overlays.clear()
        self._open.clear()

    # --- Files

    def create(self, path: Path, mode: int = FILE_MODE) -> int:
        if self.exists(path):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._gone.discard(path)
        file = self._overlays[path] = _OverlayFile(None, 0)
        return self._opened(file)

    def take_after(self, fd: int, path: Path, mode: int | None) -> None:
        pass

    def open(self, path: Path, *, write: bool = False) -> int:
        return self._opened(self._file(path))

    def close(self, fd: int) -> None:
        file = self._open.pop(fd)
        file.opened -= 1
        if not file.opened and not file.is_changed and file.fd is not None:
            self._files.close(file.fd)
            for path in [path for path, other in self._overlays.items() if other is file]:
                del self._overlays[path]

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self._open[fd].write(self._files, b"".join(buffers), position)

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        return self._open[fd].read(self._files, size_bytes, position)

    def read_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        data = self.read(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def sync_data(self, fd: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._open[fd].truncate(self._files, size_bytes)

    def size(self, fd: int) -> int:
        return self._open[fd].size_bytes

    def make_dir(self, path: Path) -> bool:
        if self.exists(path):
            return False
        self._gone.discard(path)
        self._directories.add(path)
        return True

    def exists(self, path: Path) -> bool:
        if path in self._gone:
            return False
        return path in self._overlays or path in self._directories or self._files.exists(path)

    def is_link(self, path: Path) -> bool:
        return self.exists(path) and self._files.is_link(path)

    def list_dir(self, path: Path) -> list[str]:
        names = set() if path in self._gone else set(self._files.list_dir(path))
        names -= {gone.name for gone in self._gone if gone.parent == path}
        names |= {made.name for made in (*self._overlays, *self._directories) if made.parent == path}
        return sorted(names)

    def rename(self, old: Path, new: Path) -> None:
        if self._files.exists(old) and old.is_dir() and old not in self._overlays:
            self._gone.add(old)
            self._directories.add(new)
            return
        file = self._file(old)
        file.is_changed = True  # it has to be kept: the disk has it under the other name
        self._overlays.pop(old, None)
        self._gone.add(old)
        self._gone.discard(new)
        self._overlays[new] = file

    def remove(self, path: Path) -> None:
        self._file(path).is_changed = True
        self._overlays.pop(path, None)
        self._gone.add(path)

    def remove_dir(self, path: Path) -> None:
        code = errno.ENOENT if not self.exists(path) else errno.ENOTEMPTY if self.list_dir(path) else 0
        if code:
            raise OSError(code, os.strerror(code), str(path))
        self._directories.discard(path)
        self._gone.add(path)

    def free_bytes(self, path: Path) -> int:
        return self._files.free_bytes(path)

    # --- inside

    def _file(self, path: Path) -> _OverlayFile:
        file = self._overlays.get(path)
        if file is None:
            if path in self._gone:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            fd = self._files.open(path)
            try:
                file = self._overlays[path] = _OverlayFile(fd, self._files.size(fd))
            except OSError:
                self._files.close(fd)
                raise
        return file

    def _opened(self, file: _OverlayFile) -> int:
        self._next_fd += 1
        file.opened += 1
        self._open[self._next_fd] = file
        return self._next_fd
