"""Housekeeping: what has to happen regularly, in a way that one failing topic cannot stop for the others.

A thread syncs changed watermarks (and topics with durability "interval") and asks the owner, every
`housekeeping_interval_ms`, to look at segments: aged ones are sealed, overtaken ones removed. Each partition is fenced:
its failure is reported and counted (`failing`), the others go on; `last_success_ms` tells that the whole pass ran.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from engine.commit.committer import is_aged
from engine.errors import EngineError, LogLocked, ReadOnly
from engine.files.lock import LOCK_FILE
from engine.files.owners import told as why
from engine.formats.segment import HEADER_BYTES
from engine.limits import FILES_CHECKED_MS
from engine.partitions import retention
from engine.segments.active import ActiveSegment, SealedSegment
from engine.segments.watermarks import Owner
from engine.state.clock import wall_ms

if TYPE_CHECKING:
    from engine.log import Log
    from engine.partitions.partition import Partition
    from engine.state.catalog import Change
    from engine.state.topics import Topic

OPENED_PER_PASS = 64
"""Closed partitions that one pass opens to look at their retention."""

PARTITIONS_PER_TURN = 500
"""Partitions looked at in one turn of the owner's loop: about a millisecond."""


@dataclass(slots=True)
class _Grave:
    """Files below the start of the log, to be removed when nobody reads them any more."""

    due_s: float
    partition: Partition
    segments: list[SealedSegment]
    log_start: int
    """The start of the log that has to be on disk before."""


class Housekeeping:
    """Made and stopped by the log; everything but `sync_later` and what `_run` calls is on the owner's thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stop = threading.Event()
        self._unsynced: dict[Partition, tuple[float, float, ActiveSegment]] = {}
        """(since, due, what), by `time.monotonic()`."""
        self._syncing_since_s = math.inf
        self._unsynced_lock = threading.Lock()
        self._wake = threading.Event()
        self._asleep_until_s = 0.0
        self._graves: list[_Grave] = []
        self._burials_failing: dict[Partition, str] = {}
        self._passing = False
        self._told: set[str] = set()
        """Errors of the disk that the last pass met."""
        self._marks_failing = False
        self._lock_failing = False
        self._place_failing = False
        self.failing: dict[str, str] = {}
        """Partitions whose housekeeping failed in the last pass, and why."""
        self.last_success_ms = wall_ms()
        """When the last pass went through all topics."""
        log.catalog.listen(self._topic_changed)
        self._thread = threading.Thread(target=self._run, name="quintlog-housekeeping", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; blocking."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    # --- syncing of what was not synced in its round

    def sync_later(self, partition: Partition, active: ActiveSegment) -> None:
        """Has a partition with durability "interval" synced in time (committer thread)."""
        config = partition.config
        if config.durability != "interval":
            return
        interval_s = config.sync_interval_ms / 1000
        with self._unsynced_lock:
            entry = self._unsynced.get(partition)
            if entry is None or entry[2] is not active:  # the one before was synced when it was sealed
                now = time.monotonic()
                self._unsynced[partition] = (now, now + interval_s, active)
                if now + interval_s < self._asleep_until_s:
                    self._wake.set()

    def unsynced_age_s(self) -> float:
        """Age of the oldest record that a sync is due for (durability "interval"); 0: there is none."""
        with self._unsynced_lock:
            since = min((entry[0] for entry in self._unsynced.values()), default=math.inf)
            since = min(since, self._syncing_since_s)
        return max(0.0, time.monotonic() - since)

    def sync_all(self) -> None:
        """Syncs what is still unsynced, whatever its policy: at a clean stop, after the last round."""
        for partition in self._log.known_partitions():
            if not partition.has_files:
                continue
            active = partition.active_segment
            if partition.error is None:
                with suppress(OSError):  # what was refused may be found again then, as after a crash
                    active.cut(self._log.files, self._log.handles)
            if active.durable_position < active.position:
                self._sync(partition, active)

    def _sync_due(self) -> None:
        now = time.monotonic()
        with self._unsynced_lock:
            due = [(partition, entry) for partition, entry in self._unsynced.items() if entry[1] <= now]
            for partition, _ in due:
                del self._unsynced[partition]
            self._syncing_since_s = min((entry[0] for _, entry in due), default=math.inf)
        for partition, (_, _, active) in due:
            if self._sync(partition, active):
                self._log.post(lambda partition=partition: self._log.committer.touch(partition))  # type: ignore[misc]
        self._syncing_since_s = math.inf

    def _sync(self, partition: Partition, active: ActiveSegment) -> bool:
        """Syncs a segment; False when that failed, may not be tried again, or a round does it."""
        if active.sync_failed:
            return False
        try:
            return active.sync_if_idle(self._log.files, self._log.handles)
        except OSError as problem:
            if partition.is_deleted:
                return False
            self._log.committer.counters.sync_failures += 1
            error = ReadOnly(
                f"{partition.title}: cannot sync: {problem.strerror or problem}; records of the last "
                f"{partition.config.sync_interval_ms} ms may be lost: check the disk, then restart the server"
            )
            self._log.report(str(error))
            self._log.post(lambda: partition.stop_writing(error))
            return False

    # --- passes

    def clean(self) -> None:
        """One pass over all partitions."""
        for _ in self._pass():
            pass

    def _clean_in_turns(self) -> None:
        """One pass, in turns of the owner's loop; nothing when one is under way."""
        if not self._passing and not self._stop.is_set():
            self._passing = True
            self._turn(self._pass())

    def _turn(self, steps: Iterator[None]) -> None:
        self._passing = False  # whatever happens in this turn, there will be another pass
        self._passing = sum(1 for _ in islice(steps, PARTITIONS_PER_TURN)) == PARTITIONS_PER_TURN
        if self._passing:
            self._log.post(lambda: None if self._stop.is_set() else self._turn(steps))

    def _pass(self) -> Iterator[None]:
        log = self._log
        self._look_at_clock()
        now_ms = log.now_ms()
        failing = {partition.title: why for partition, why in self._burials_failing.items()}
        opened = 0
        told: set[str] = set()
        for topic in log.catalog:
            for index in list(topic.numbers):
                if topic.deleting:  # also since the last turn
                    break
                try:
                    partition = log.used_partition(topic, index)  # none is made for one that nobody uses
                    if partition is not None and partition.has_files:
                        self._clean(partition, now_ms)
                    elif opened < OPENED_PER_PASS and self._has_work_at(topic, index, partition):
                        opened += 1
                        log.partition(topic, index).when_open(lambda: None)
                except Exception as problem:  # noqa: BLE001 - one topic must not stop the others
                    failing[f"{topic} partition {index}"] = str(problem)
                    self._tell(f"housekeeping of {topic} partition {index}", problem, told)
                yield
        try:
            self._bury()
        except Exception as problem:  # noqa: BLE001 - one grave must not stop all that follows, for good
            failing["removal of old segments"] = str(problem)
            self._tell("removal of old segments", problem, told)
        self._told = told
        self.failing = failing
        self.last_success_ms = wall_ms()

    def _tell(self, what: str, problem: Exception, told: set[str]) -> None:
        """Tells what failed; a disk that fails is no defect, and may fail for every partition, in every pass: once."""
        if not isinstance(problem, OSError):
            self._log.report_exception(what, problem)
            return
        text = why(problem)
        if text not in told | self._told:
            self._log.report(f"{what}: {text}; it is tried again")
        told.add(text)

    def date(self, partition: Partition) -> None:
        """Dates the segments of a partition that was just opened by the steady clock."""
        retention.date(partition, self._log.clock, self._log.steady_ms())

    def _look_at_clock(self) -> None:
        log = self._log
        excess_ms = log.clock.look()
        if excess_ms:
            for partition in log.known_partitions():
                retention.make_younger(partition, excess_ms, log.clock.started_ms)
        log.clock.save(log.state)

    def _has_work_at(self, topic: Topic, index: int, used: Partition | None) -> bool:
        """Whether a closed partition has to be opened: for its retention, or because its start was raised once, and a
        process that ended within the grace time may have left files below it."""
        if used is not None and used.error is not None:
            return False
        config = topic.config
        if config.retention_ms or config.retention_bytes or config.retention_records:
            return True
        mark = self._log.watermarks.read(Owner(topic.numbers[index], topic.id, index))
        return mark is not None and mark.log_start > 1

    def _clean(self, partition: Partition, now_ms: int) -> None:
        created_ms = partition.active_segment.header.created_ms
        if partition.committed_end > HEADER_BYTES and is_aged(partition.config, created_ms, now_ms):
            partition.roll_wanted = True
            self._log.committer.touch(partition)
        elif partition.mark_failed:
            self._log.committer.touch(partition)
        retention.apply(self._log, partition, self._log.steady_ms() - self._log.clock.held_ms)

    # --- removing files

    def remove_later(self, partition: Partition, segments: list[SealedSegment]) -> None:
        """Removes files of segments that are no longer in the log after the grace time."""
        if segments:
            due_s = time.monotonic() + self._log.config.retention_grace_ms / 1000
            self._graves.append(_Grave(due_s, partition, segments, partition.log_start))

    def _bury(self) -> None:
        now, marks = time.monotonic(), self._log.watermarks
        graves, self._graves = self._graves, []
        for grave in graves:
            partition = grave.partition
            if partition.is_deleted:
                continue  # its files go with it
            if grave.due_s > now:
                self._graves.append(grave)
            elif partition.marked_log_start < grave.log_start or not marks.covers(partition.number):
                self._graves.append(grave)
                self._log.committer.touch(partition)
            else:
                self._remove(grave)

    def _remove(self, grave: _Grave) -> None:
        log, partition = self._log, grave.partition

        def done(result: object) -> None:
            if isinstance(result, EngineError):
                self._burials_failing[partition] = f"cannot remove old segments: {result}"
                log.report(f"{partition.title}: cannot remove old segments: {result}")
                self._graves.append(grave)
            else:
                self._burials_failing.pop(partition, None)

        log.opener.submit(lambda: retention.remove_files(log, partition.number, grave.segments), done)

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change == "deleted":
            partitions = self._log.drop_partitions(topic)
            for partition in partitions:
                self._burials_failing.pop(partition, None)
            self._log.opener.remove_topic(topic, partitions)
        elif change == "configured":
            self._log.opener.describe(topic)

    # --- the thread

    def _run(self) -> None:
        log = self._log
        marks_s, pass_s = log.config.watermarks_sync_interval_ms / 1000, log.config.housekeeping_interval_ms / 1000
        next_marks = next_pass = time.monotonic() + min(marks_s, pass_s)
        while True:
            self._sleep(min(next_marks, next_pass))
            if self._stop.is_set():
                break
            try:
                self._sync_due()
                now = time.monotonic()
                if now >= next_marks:
                    next_marks = now + marks_s
                    self._check_place()
                    self._sync_watermarks()
                if now >= next_pass:
                    next_pass = now + pass_s
                    log.post(self._clean_in_turns)
            except Exception as problem:  # noqa: BLE001 - this thread must not end before the log
                log.report_exception("housekeeping", problem)

    def _sleep(self, until_s: float) -> None:
        """Until a time, the end, or a segment is to be synced."""
        self._wake.clear()  # before it is said how long: who comes later wakes this thread
        with self._unsynced_lock:
            self._asleep_until_s = min([until_s, *(due_s for _, due_s, _ in self._unsynced.values())])
        if not self._stop.is_set():
            self._wake.wait(max(0.0, self._asleep_until_s - time.monotonic()))

    def _check_place(self) -> None:
        """Whether all is where it was opened: nothing may be acknowledged that a restart would not find."""
        log = self._log
        if log.error is None:
            try:
                log.check_place()
                self._check_files()
                self._check_lock()
            except ReadOnly as problem:
                error = problem
                log.report(str(error))
                log.post(lambda: log.stop_writing(error))
            except OSError as problem:  # a failing disk: no sign that anything was moved
                if not self._place_failing:
                    log.report(f"cannot look whether all files are in their place: {why(problem)}; it is tried again")
                self._place_failing = True
            else:
                self._place_failing = False

    def _check_lock(self) -> None:
        log = self._log
        try:
            if log.lock.renew_file():
                log.report(f"{log.data_dir / LOCK_FILE} was removed or replaced while in use, and was put back")
        except (OSError, LogLocked) as problem:
            if not self._lock_failing:
                log.report(f"{log.data_dir / LOCK_FILE} was removed or replaced, and cannot be put back: {problem}")
            self._lock_failing = True
        else:
            self._lock_failing = False

    def _check_files(self) -> None:
        log = self._log
        since_ms = log.steady_ms() - FILES_CHECKED_MS
        for partition in log.known_partitions():
            if not partition.has_files or partition.error is not None:
                continue
            active = partition.active_segment
            if active.appended_steady_ms < since_ms:
                continue
            if log.files.exists(active.path) or partition.active_segment is not active or partition.is_deleted:
                continue
            error = ReadOnly(
                f"{partition.title}: {active.path} was moved or removed while it was in use: nothing more is stored "
                "there; put it back and restart the server"
            )
            log.report(str(error))
            log.post(lambda partition=partition, error=error: partition.stop_writing(error))  # type: ignore[misc]

    def _sync_watermarks(self) -> None:
        if not self._log.watermarks.dirty:
            return
        try:
            self._log.watermarks.sync()
        except OSError as problem:
            if not self._marks_failing:  # not every second
                self._log.report(f"cannot sync watermarks: {problem.strerror or problem}; it is tried again and again")
            self._marks_failing = True
        else:
            self._marks_failing = False
