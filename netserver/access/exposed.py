"""Secret files that every user of this machine can read: a warning names them."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("quintlog.access")


def warn_of_readers(what: str, path: Path) -> None:
    """Tells of a secret file that everybody on this machine can read. One that is not there says so elsewhere."""
    with suppress(OSError):
        if path.stat().st_mode & stat.S_IROTH:
            log.warning("%s %s can be read by everybody on this machine: chmod o-r it", what, path)


def warn_of_writers(data_dir: Path) -> None:
    """Tells of a data directory in which everybody can replace files."""
    with suppress(OSError):
        if os.stat(data_dir).st_mode & stat.S_IWOTH:
            log.warning("everybody on this machine can replace files in the data directory %s: chmod o-w it", data_dir)
