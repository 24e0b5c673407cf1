"""Stored bytes of all partitions: from memory for those in use, from their directories for the others."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netserver.admin.slices import sliced

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
    """Segments and bytes of a log. Nothing writes to a partition that is not in use, so that one look is enough.

    Attributes:
        partitions, read_only, segments, size_bytes: as ``measure`` has last found them; read-only ones and those that
            cannot be opened count together.
        unopened: partitions with records that nobody has used since the start.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._closed: dict[Key, tuple[int, int]] = {}
        self.partitions = self.read_only = self.unopened = self.segments = self.size_bytes = 0

    async def measure(self) -> None:
        """Look at all partitions, in slices."""
        log, known = self._log, self._closed
        root = log.data_dir / "topics"
        closed: dict[Key, tuple[int, int]] = {}
        unknown: dict[Key, Path] = {}
        read_only = unopened = segments = size_bytes = 0
        async for partition in sliced(log.slices, log.known_partitions()):
            read_only += partition.error is not None
            if partition.has_files:
                segments += len(partition.sealed) + 1
                size_bytes += partition.committed_end + sum(segment.size_bytes for segment in partition.sealed)
        topics = list(log.catalog)
        async for topic, index in sliced(log.slices, ((one, index) for one in topics for index in tuple(one.numbers))):
            used = log.used_partition(topic, index)
            unopened += used is None
            if used is None or not used.has_files:
                key = topic.id, index
                if key in known:
                    closed[key] = known[key]
                else:
                    unknown[key] = root / str(topic.id) / str(index)
        if unknown:
            closed |= await asyncio.to_thread(look, unknown)
        self._closed = closed
        self.partitions = log.catalog.partition_total
        self.read_only = read_only
        self.unopened = unopened
        self.segments = segments + sum(sizes[0] for sizes in closed.values())
        self.size_bytes = size_bytes + sum(sizes[1] for sizes in closed.values())
