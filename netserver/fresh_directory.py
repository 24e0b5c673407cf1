"""Undoes a failed start: what it made in a new data directory is removed, so that the next start finds the same."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from engine.errors import LogLocked
from engine.files.lock import DirectoryLock


@dataclass(frozen=True, slots=True)
class FreshDirectory:
    """A data directory as a start finds it.

    Attributes:
        missing: it and its parents as far as they were not there, the innermost first.
        is_fresh: it was missing, or empty.
    """

    path: Path
    missing: tuple[Path, ...]
    is_fresh: bool

    @classmethod
    def before(cls, path: Path) -> Self:
        """Looks at a directory before anything is made in it."""
        path = path.absolute()
        missing = tuple(one for one in (path, *path.parents) if not os.path.lexists(one))
        try:
            is_fresh = bool(missing) or not any(path.iterdir())
        except OSError:  # not a directory, or not ours to read
            is_fresh = False
        return cls(path, missing, is_fresh)

    def undo(self) -> None:
        """Removes what was made in it, unless another process has it by now; what cannot be removed stays."""
        if not self.is_fresh:
            return
        with suppress(OSError, LogLocked):
            lock = DirectoryLock(self.path)
            try:
                for entry in list(self.path.iterdir()):
                    if entry.is_dir():
                        shutil.rmtree(entry)
                    else:
                        entry.unlink()
            finally:
                lock.close()
        with suppress(OSError):
            for path in self.missing:
                path.rmdir()
