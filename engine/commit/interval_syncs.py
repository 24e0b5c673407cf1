"""Syncs of topics with durability "interval": what rounds wrote is synced in time, by the housekeeping's thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

from engine.commit.counters import Counters
from engine.commit.target import CommitTarget
from engine.context import EngineContext
from engine.errors import ReadOnly
from engine.reports import report
from engine.segments.active import ActiveSegment


class IntervalSyncs:
    """Which segments are to be synced, and when; the thread that does it waits here."""

    def __init__(self, context: EngineContext, counters: Counters) -> None:
        self._context = context
        self._counters = counters
        self._unsynced: dict[CommitTarget, tuple[float, float, ActiveSegment]] = {}
        """(since, due, what), by `time.monotonic()`."""
        self._syncing_since_s = math.inf
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._asleep_until_s = 0.0

    def add(self, partition: CommitTarget, active: ActiveSegment) -> None:
        """A round has written to a segment without a sync: it is synced in time if the topic says so (any thread)."""
        config = partition.config
        if config.durability != "interval":
            return
        interval_s = config.sync_interval_ms / 1000
        with self._lock:
            entry = self._unsynced.get(partition)
            if entry is None or entry[2] is not active:  # the one before was synced when it was sealed
                now = time.monotonic()
                self._unsynced[partition] = (now, now + interval_s, active)
                if now + interval_s < self._asleep_until_s:
                    self._wake.set()

    def oldest_age_s(self) -> float:
        """Age of the oldest record that a sync is due for; 0 when nothing waits for one (any thread)."""
        with self._lock:
            since = min((entry[0] for entry in self._unsynced.values()), default=math.inf)
            since = min(since, self._syncing_since_s)
        return max(0.0, time.monotonic() - since)

    def wait(self, until_s: float) -> None:
        """Waits until a time (`time.monotonic()`), until a segment is to be synced, or for `wake`."""
        with self._lock:
            self._asleep_until_s = min([until_s, *(due_s for _, due_s, _ in self._unsynced.values())])
        self._wake.wait(max(0.0, self._asleep_until_s - time.monotonic()))
        self._wake.clear()

    def wake(self) -> None:
        """Ends the wait, or the next one."""
        self._wake.set()

    def sync_due(self) -> Iterator[CommitTarget]:
        """Syncs what is due; gives those of which the watermark may say so now."""
        now = time.monotonic()
        with self._lock:
            due = [(partition, entry) for partition, entry in self._unsynced.items() if entry[1] <= now]
            for partition, _ in due:
                del self._unsynced[partition]
            self._syncing_since_s = min((entry[0] for _, entry in due), default=math.inf)
        for partition, (_, _, active) in due:
            if self.sync(partition, active):
                yield partition
        self._syncing_since_s = math.inf

    def sync(self, partition: CommitTarget, active: ActiveSegment) -> bool:
        """Syncs a segment; False when that failed, may not be tried again, or a round does it (any thread)."""
        if active.sync_failed:
            return False
        try:
            return active.sync_if_idle(self._context.files, self._context.handles)
        except OSError as problem:
            if partition.is_deleted:
                return False
            self._counters.sync_failures += 1
            error = ReadOnly(
                f"{partition.title}: cannot sync: {problem.strerror or problem}; records of the last "
                f"{partition.config.sync_interval_ms} ms may be lost: check the disk, then restart the server"
            )
            report(str(error))
            self._context.call_soon_threadsafe(lambda: partition.stop_writing(error))
            return False
