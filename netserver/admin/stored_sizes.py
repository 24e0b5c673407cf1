"""How much is stored, of all partitions: from memory for those in use, from their directories for the others."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.log import Log

Key = tuple[int, int]
"""Topic id and partition."""

SUFFIX: Final = ".log"


def look(directories: dict[Key, Path]) -> dict[Key, tuple[int, int]]:
    """(segments, bytes) of each directory; slow, so a thread does it. What cannot be read counts as nothing."""
    found = {}
    for key, directory in directories.items():
        segments = size_bytes = 0
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    segments += 1
                    size_bytes += entry.stat(follow_symlinks=False).st_size
        found[key] = segments, size_bytes
    return found


class StoredSizes:
    """Segments and bytes of a log. Nothing writes to a partition that is not in use, so that one look is enough."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._closed: dict[Key, tuple[int, int]] = {}

    def unknown(self) -> dict[Key, Path]:
        """Directories that have to be looked at before `total` is right."""
        log = self._log
        in_use = {(one.topic.id, one.index) for one in log.known_partitions() if one.has_files}
        closed = {(topic.id, index) for topic in log.catalog for index in topic.numbers} - in_use
        self._closed = {key: sizes for key, sizes in self._closed.items() if key in closed}
        root = log.data_dir / "topics"
        return {key: root / str(key[0]) / str(key[1]) for key in closed - self._closed.keys()}

    def take(self, found: dict[Key, tuple[int, int]]) -> None:
        """What `look` has found."""
        self._closed.update(found)

    def total(self) -> tuple[int, int]:
        """(segments, bytes) of all partitions."""
        segments = sum(sizes[0] for sizes in self._closed.values())
        size_bytes = sum(sizes[1] for sizes in self._closed.values())
        for partition in self._log.known_partitions():
            if partition.has_files and (partition.topic.id, partition.index) not in self._closed:
                segments += len(partition.sealed) + 1
                size_bytes += partition.committed_end + sum(segment.size_bytes for segment in partition.sealed)
        return segments, size_bytes
