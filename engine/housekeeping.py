"""Housekeeping: what has to happen regularly, in a way that one failing topic cannot stop for the others.

A thread syncs changed watermarks (and topics with durability "interval") and asks the owner, every
`housekeeping_interval_ms`, to look at segments: aged ones are sealed, overtaken ones removed. Each partition is fenced:
its failure is reported and counted (`failing`), the others go on; `last_success_ms` tells that the whole pass ran.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from engine import retention
from engine.committer import segment_age_ms
from engine.errors import EngineError, ReadOnly
from engine.recovery import SealedSegment
from engine.segment import HEADER_BYTES

if TYPE_CHECKING:
    from engine.catalog import Change
    from engine.log import Log
    from engine.partition import Partition
    from engine.topics import Topic

OPENED_PER_PASS = 64
"""Closed partitions that one pass opens to look at their retention."""


class Housekeeping:
    """Made and stopped by the log; everything but `_run` is on the owner's thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stop = threading.Event()
        self._unsynced: dict[Partition, float] = {}
        self._soonest_s = float("inf")
        self._graves: deque[tuple[int, Partition, list[SealedSegment]]] = deque()
        self.failing: dict[str, str] = {}
        """Partitions whose housekeeping failed in the last pass, and why."""
        self.last_success_ms = log.now_ms()
        log.catalog.listen(self._topic_changed)
        self._thread = threading.Thread(target=self._run, name="quintlog-housekeeping", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; blocking."""
        self._stop.set()
        self._thread.join()

    def remove_later(self, partition: Partition, segments: list[SealedSegment]) -> None:
        """Removes files of segments that are no longer in the log after the grace time."""
        if segments:
            self._graves.append((self._log.now_ms() + self._log.config.retention_grace_ms, partition, segments))

    def sync_later(self, partition: Partition) -> None:
        """Has a partition with durability "interval" synced in time (committer thread)."""
        config = partition.config
        if config.durability == "interval":
            self._unsynced.setdefault(partition, time.monotonic() + config.sync_interval_ms / 1000)
            self._soonest_s = min(self._soonest_s, config.sync_interval_ms / 1000)

    def sync_all(self) -> None:
        """Syncs what is still unsynced, whatever its policy: at a clean stop, after the last round."""
        for partition in self._log.known_partitions():
            if partition.has_files and partition.active_segment.durable_position < partition.active_segment.position:
                self._sync(partition)

    def _sync_due(self) -> None:
        now = time.monotonic()
        for partition, deadline in list(self._unsynced.items()):
            if deadline <= now:
                del self._unsynced[partition]
                self._sync(partition)

    def _sync(self, partition: Partition) -> None:
        try:
            partition.active_segment.sync(self._log.files, self._log.handles)
        except OSError as problem:
            error = ReadOnly(
                f"{partition.title}: cannot sync: {problem.strerror or problem}; records of the last "
                f"{partition.config.sync_interval_ms} ms may be lost: check the disk, then restart the server"
            )
            self._log.report(str(error))
            self._log.post(lambda: partition.stop_writing(error))

    def clean(self) -> None:
        """One pass over all partitions."""
        log = self._log
        now_ms = log.now_ms()
        failing: dict[str, str] = {}
        opened = 0
        for topic in log.catalog:
            for index in list(topic.numbers):
                partition = log.partition(topic, index)
                try:
                    if partition.has_files:
                        self._clean(partition, now_ms)
                    elif _has_retention(partition) and partition.error is None and opened < OPENED_PER_PASS:
                        opened += 1
                        partition.when_open(lambda: None)
                except Exception as problem:  # noqa: BLE001 - one topic must not stop the others
                    failing[partition.title] = str(problem)
                    log.report_exception(f"housekeeping of {partition.title}", problem)
        self.failing = failing
        while self._graves and self._graves[0][0] <= now_ms:
            _, partition, segments = self._graves.popleft()
            self._remove(partition, segments)
        self.last_success_ms = now_ms

    def _clean(self, partition: Partition, now_ms: int) -> None:
        active = partition.active_segment
        if partition.committed_end > HEADER_BYTES and now_ms - active.header.created_ms > segment_age_ms(
            partition.config
        ):
            partition.roll_wanted = True
            self._log.committer.touch(partition)
        retention.apply(self._log, partition, now_ms)

    def _remove(self, partition: Partition, segments: list[SealedSegment]) -> None:
        log = self._log
        number = partition.topic.numbers.get(partition.index, 0)

        def done(result: object) -> None:
            if isinstance(result, EngineError):
                log.report(f"{partition.title}: cannot remove old segments: {result}")

        log.opener.submit(lambda: retention.remove_files(log, number, segments), done)

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change == "deleted":
            self._log.opener.remove_topic(topic, self._log.drop_partitions(topic))
        elif change == "configured":
            self._log.opener.describe(topic)

    def _run(self) -> None:
        log = self._log
        marks_s, pass_s = log.config.watermarks_sync_interval_ms / 1000, log.config.housekeeping_interval_ms / 1000
        next_marks = next_pass = time.monotonic()
        while not self._stop.wait(min(marks_s, pass_s, self._soonest_s)):
            self._sync_due()
            now = time.monotonic()
            if now >= next_marks:
                next_marks = now + marks_s
                self._sync_watermarks()
            if now >= next_pass:
                next_pass = now + pass_s
                log.post(self.clean)

    def _sync_watermarks(self) -> None:
        try:
            if self._log.watermarks.dirty:
                self._log.watermarks.sync()
        except OSError as problem:
            self._log.report(f"cannot sync watermarks: {problem.strerror or problem}")


def _has_retention(partition: Partition) -> bool:
    config = partition.config
    return bool(config.retention_ms or config.retention_bytes or config.retention_records)
