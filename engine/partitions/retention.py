"""Retention: which segments of a partition are due, and their removal. Whole segments, oldest first.

By age (of the append, not of the record), by bytes, by count, as the topic is configured; the active segment stays. Age
is counted by a clock that nobody sets; the clock of the log only tells how old a segment was when it was opened.
Three steps, so that no reader is cut off in the middle of a file and no crash brings back what was removed: the start
of the log is raised at once, is in `watermarks` with the next round, and the files go after a grace time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.errors import NotStored
from engine.limits import CLOCK_STEP_MS

if TYPE_CHECKING:
    from engine.log import Log
    from engine.partitions.partition import Partition
    from engine.segments.active import ActiveSegment, SealedSegment
    from engine.state.clock import DoubtedClock


def due_segments(partition: Partition, steady_ms: int) -> int:
    """How many of the partition's oldest sealed segments retention has overtaken."""
    config = partition.config
    sealed = partition.sealed
    due = 0
    if config.retention_ms:
        while due < len(sealed) and steady_ms - sealed[due].appended_steady_ms > config.retention_ms:
            due += 1
    if config.retention_bytes:
        size = partition.committed_end + sum(segment.size_bytes for segment in sealed[due:])
        while due < len(sealed) and size > config.retention_bytes:
            size -= sealed[due].size_bytes
            due += 1
    if config.retention_records:
        records = partition.active_segment.records + sum(segment.records for segment in sealed[due:])
        while due < len(sealed) and records - sealed[due].records >= config.retention_records:
            records -= sealed[due].records
            due += 1
    return due


def date(partition: Partition, clock: DoubtedClock, steady_ms: int) -> None:
    """Says for the segments that were found at the start when they were last appended to, by the steady clock."""
    created = [*(segment.created_ms for segment in partition.sealed), partition.active_segment.header.created_ms]
    now_ms = clock.now_ms()
    for at, segment in enumerate(_segments(partition)):
        age_ms = _age_ms(segment.last_append_ms, created, at, now_ms)
        segment.appended_steady_ms = steady_ms - clock.likely_age_ms(now_ms - age_ms)


def make_younger(partition: Partition, by_ms: int, before_ms: int) -> None:
    """The clock that the segments from before a time (by the steady clock) were dated by was ahead."""
    if partition.has_files:
        for segment in _segments(partition):
            if segment.appended_steady_ms < before_ms:
                segment.appended_steady_ms += by_ms


def _segments(partition: Partition) -> list[SealedSegment | ActiveSegment]:
    return [*partition.sealed, partition.active_segment]


def _age_ms(appended_ms: int, created: Sequence[int], at: int, now_ms: int) -> int:
    """Time since the last append to the segment that is the `at`-th by creation.

    Append times never go backwards, so that after a time with a clock far ahead they stay in the future. Then the
    segment is as old as the next one whose creation is neither in the future nor before that of an earlier segment.
    """
    if appended_ms <= now_ms + CLOCK_STEP_MS:
        return max(0, now_ms - appended_ms)
    earliest_ms = max((created_ms for created_ms in created[: at + 1] if created_ms <= now_ms), default=0)
    for created_ms in created[at + 1 :]:
        if earliest_ms <= created_ms <= now_ms:
            return now_ms - created_ms
    return 0


def trim(log: Log, partition: Partition, before_seq: int) -> int:
    """Raises the start of the log to `before_seq` (at most behind the last committed record).

    Returns:
        Number of whole segments that go away after the grace time.
    """
    before_seq = min(before_seq, partition.committed_seq + 1)
    if before_seq <= partition.log_start or not partition.has_files:
        return 0
    partition.log_start = before_seq
    sealed = partition.sealed
    due = 0
    while due < len(sealed) and sealed[due].last_seq < before_seq:
        due += 1
    removed = sealed[:due]
    del sealed[:due]
    log.committer.touch(partition)
    log.housekeeping.remove_later(partition, removed)
    return due


def apply(log: Log, partition: Partition, steady_ms: int) -> int:
    """Raises the start of the log past what is due; returns the number of segments."""
    due = due_segments(partition, steady_ms)
    if due:
        trim(log, partition, partition.sealed[due - 1].last_seq + 1)
    return due


def remove_files(log: Log, number: int, segments: list[SealedSegment]) -> None:
    """Unlinks segments below the start of the log (opener thread).

    Raises:
        OSError: some of them may be there; to be called again.
        NotStored: the raised start has to be written again first; to be called again, too.
    """
    directory, behind = segments[0].path.parent, segments[-1].last_seq + 1
    log.watermarks.sync()  # the raised start is on disk before what lies below it goes
    if not log.watermarks.covers(number):
        raise NotStored("a sync of the watermarks failed, and the start of the log is written again")
    for segment in segments:
        with suppress(FileNotFoundError):  # removed by an attempt that failed later
            log.files.remove(segment.path)
            log.removed_bytes += segment.size_bytes
        log.handles.forget(segment.path)  # after the removal: a reader would open it again
    log.files.sync_dir(directory)
    log.index.remove(number, behind)
