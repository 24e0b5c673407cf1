"""Housekeeping: what has to happen regularly, in a way that one failing topic cannot stop for the others.

A thread syncs changed watermarks (and topics with durability "interval") and asks the owner, every
`housekeeping_interval_ms`, to look at segments: aged ones are sealed, overtaken ones removed. Each partition is fenced:
its failure is reported and counted (`failing`), the others go on; `last_success_ms` tells that the whole pass ran.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from engine.commit.committer import Committer
from engine.commit.rolling import is_aged
from engine.context import EngineContext
from engine.errors import LogLocked, ReadOnly
from engine.files.lock import LOCK_FILE
from engine.files.owners import told as why
from engine.formats.segment import HEADER_BYTES
from engine.limits import FILES_CHECKED_MS
from engine.partitions.file_worker import FileWorker
from engine.partitions.partition import Partition
from engine.partitions.removal import SegmentRemoval
from engine.partitions.table import PartitionTable
from engine.reports import report, report_exception
from engine.segments.watermarks import Owner
from engine.state.clock import wall_ms
from engine.state.topic_catalog import Change
from engine.state.topic_entries import Topic, title

OPENED_PER_PASS = 64
"""Closed partitions that one pass opens to look at their retention."""


class Housekeeping:
    """Created and stopped by the log; everything but what `_run` calls is on the owner's thread."""

    def __init__(
        self,
        context: EngineContext,
        partitions: PartitionTable,
        committer: Committer,
        file_worker: FileWorker,
        removal: SegmentRemoval,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._committer = committer
        self._file_worker = file_worker
        self._removal = removal
        self._syncs = committer.interval_syncs
        self._stop = threading.Event()
        self._passing = False
        self._told: set[str] = set()
        """Errors of the disk that the last pass met."""
        self._marks_failing = False
        self._lock_failing = False
        self._directory_failing = False
        self.failing: dict[str, str] = {}
        """Partitions whose housekeeping failed in the last pass, and why."""
        self.last_success_ms = wall_ms()
        """When the last pass went through all topics."""
        context.catalog.listen(self._topic_changed)
        self._thread = threading.Thread(target=self._run, name="quintlog-housekeeping", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; blocking."""
        self._stop.set()
        self._syncs.wake()
        self._thread.join()

    def sync_all(self) -> None:
        """Syncs what is still unsynced, whatever its policy: at a clean stop, after the last round."""
        for partition in self._partitions.all():
            if not partition.has_files:
                continue
            active = partition.active_segment
            if partition.error is None:
                with suppress(OSError):  # what was refused may be found again then, as after a crash
                    active.cut(self._context.files, self._context.handles)
            if active.durable_position < active.position:
                self._syncs.sync(partition, active)

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
        slices = self._context.slices
        for _ in steps:
            if slices.is_over():
                self._passing = True
                slices.later(lambda: None if self._stop.is_set() else self._turn(steps))
                return

    def _pass(self) -> Iterator[None]:
        context = self._context
        context.clock.look()
        context.clock.save(context.state)
        now_ms = context.now_ms()
        failing = {partition.title: why for partition, why in self._removal.failing.items()}
        opened = 0
        told: set[str] = set()
        for topic in context.catalog:
            for index in list(topic.numbers):
                if topic.deleting:  # also since the last turn
                    break
                try:
                    partition = self._partitions.used(topic, index)  # none is made for one that nobody uses
                    if partition is not None and partition.has_files:
                        self._clean(partition, now_ms)
                    elif opened < OPENED_PER_PASS and self._has_work_at(topic, index, partition):
                        opened += 1
                        self._partitions.get(topic, index).when_open(lambda: None)
                except Exception as problem:  # noqa: BLE001 - one topic must not stop the others
                    named = f"topic {title(topic.name)} partition {index}"
                    failing[named] = str(problem)
                    self._tell(f"housekeeping of {named}", problem, told)
                yield
        try:
            self._removal.unlink_due()
        except Exception as problem:  # noqa: BLE001 - one removal must not stop all that follows, for good
            failing["removal of old segments"] = str(problem)
            self._tell("removal of old segments", problem, told)
        self._told = told
        self.failing = failing
        self.last_success_ms = wall_ms()

    def _tell(self, what: str, problem: Exception, told: set[str]) -> None:
        """Tells what failed; a disk that fails is no defect, and may fail for every partition, in every pass: once."""
        if not isinstance(problem, OSError):
            report_exception(what, problem)
            return
        text = why(problem)
        if text not in told | self._told:
            report(f"{what}: {text}; it is tried again")
        told.add(text)

    def _has_work_at(self, topic: Topic, index: int, used: Partition | None) -> bool:
        """Whether a closed partition has to be opened: for its retention, or because its start was raised once, and a
        process that ended within the grace time may have left files below it."""
        if used is not None and used.error is not None:
            return False
        config = topic.config
        if config.retention_ms or config.retention_bytes or config.retention_records:
            return True
        mark = self._context.watermarks.read(Owner(topic.numbers[index], topic.id, index))
        return mark is not None and mark.log_start > 1

    def _clean(self, partition: Partition, now_ms: int) -> None:
        created_ms = partition.active_segment.header.created_ms
        if partition.committed_end > HEADER_BYTES and is_aged(partition.config, created_ms, now_ms):
            self._committer.roll_next(partition)
            self._committer.request_watermark(partition)
        elif partition.mark_failed:
            self._committer.request_watermark(partition)
        partition.apply_retention(self._context.steady_ms() - self._context.clock.held_ms)

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change == "deleted":
            self._context.slices.run(self._bury(topic.id, self._partitions.drop(topic)))
        elif change == "configured":
            self._file_worker.describe(topic)

    def _bury(self, topic_id: int, dropped: list[Partition]) -> Iterator[None]:
        """What follows the deletion of a topic, a step for each of its partitions that were used."""
        while dropped:
            partition = dropped.pop()
            self._partitions.tell_dropped(partition)
            self._removal.forget(partition)
            yield
        self._committer.after_round(lambda: self._file_worker.remove_leftovers(topic_id))  # none can touch them now

    # --- the thread

    def _run(self) -> None:
        context = self._context
        marks_s, pass_s = (
            context.config.watermarks_sync_interval_ms / 1000,
            context.config.housekeeping_interval_ms / 1000,
        )
        next_marks = next_pass = time.monotonic() + min(marks_s, pass_s)
        while True:
            self._syncs.wait(min(next_marks, next_pass))
            if self._stop.is_set():
                break
            try:
                for partition in self._syncs.sync_due():
                    context.call_soon_threadsafe(partial(self._committer.request_watermark, partition))
                now = time.monotonic()
                if now >= next_marks:
                    next_marks = now + marks_s
                    self._check_directory()
                    self._sync_watermarks()
                if now >= next_pass:
                    next_pass = now + pass_s
                    context.call_soon_threadsafe(self._clean_in_turns)
            except Exception as problem:  # noqa: BLE001 - this thread must not end before the log
                report_exception("housekeeping", problem)

    def _check_directory(self) -> None:
        """Whether all is where it was opened: nothing may be acknowledged that a restart would not find."""
        context = self._context
        if context.error is None:
            try:
                context.check_directory()
                self._check_files()
                self._check_lock()
            except ReadOnly as problem:
                error = problem
                report(str(error))
                context.call_soon_threadsafe(lambda: self._partitions.stop_writing(error))
            except OSError as problem:  # a failing disk: no sign that anything was moved
                if not self._directory_failing:
                    report(f"cannot look whether all files are in their place: {why(problem)}; it is tried again")
                self._directory_failing = True
            else:
                self._directory_failing = False

    def _check_lock(self) -> None:
        context = self._context
        try:
            if context.lock.renew_file():
                report(f"{context.data_dir / LOCK_FILE} was removed or replaced while in use, and was put back")
        except (OSError, LogLocked) as problem:
            if not self._lock_failing:
                report(f"{context.data_dir / LOCK_FILE} was removed or replaced, and cannot be put back: {problem}")
            self._lock_failing = True
        else:
            self._lock_failing = False

    def _check_files(self) -> None:
        context = self._context
        since_ms = context.steady_ms() - FILES_CHECKED_MS
        for partition in self._partitions.all():
            if not partition.has_files or partition.error is not None:
                continue
            active = partition.active_segment
            if active.appended_steady_ms < since_ms:
                continue
            if context.files.exists(active.path) or partition.active_segment is not active or partition.is_deleted:
                continue
            error = ReadOnly(
                f"{partition.title}: {active.path} was moved or removed while it was in use: nothing more is stored "
                "there; put it back and restart the server"
            )
            report(str(error))
            context.call_soon_threadsafe(lambda partition=partition, error=error: partition.stop_writing(error))  # type: ignore[misc]

    def _sync_watermarks(self) -> None:
        if not self._context.watermarks.dirty:
            return
        try:
            self._context.watermarks.sync()
        except OSError as problem:
            if not self._marks_failing:  # not every second
                report(f"cannot sync watermarks: {problem.strerror or problem}; it is tried again and again")
            self._marks_failing = True
        else:
            self._marks_failing = False
