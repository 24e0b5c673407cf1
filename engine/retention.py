"""Retention: which segments of a partition are due, and their removal. Whole segments, oldest first.

By age (of the append, not of the record), by bytes, by count, as the topic is configured; the active segment stays.
Two steps, so that no reader is cut off in the middle of a file: the start of the log is raised at once (and is in
`watermarks` with the next round), the files go after a grace time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.recovery import SealedSegment

if TYPE_CHECKING:
    from engine.log import Log
    from engine.partition import Partition


def due_segments(partition: Partition, now_ms: int) -> int:
    """How many of the partition's oldest sealed segments retention has overtaken."""
    config = partition.config
    sealed = partition.sealed
    due = 0
    if config.retention_ms:
        while due < len(sealed) and now_ms - sealed[due].last_append_ms > config.retention_ms:
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


def trim(log: Log, partition: Partition, before_seq: int) -> int:
    """Raises the start of the log to `before_seq` (at most behind the last committed record).

    Returns:
        Number of whole segments that go away after the grace time.
    """
    before_seq = min(before_seq, partition.committed_seq + 1)
    if before_seq <= partition.log_start:
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


def apply(log: Log, partition: Partition, now_ms: int) -> int:
    """Raises the start of the log past what is due; returns the number of segments."""
    due = due_segments(partition, now_ms)
    if due:
        trim(log, partition, partition.sealed[due - 1].last_seq + 1)
    return due


def remove_files(log: Log, number: int, segments: list[SealedSegment]) -> None:
    """Unlinks segments below the start of the log (opener thread). Raises OSError."""
    for segment in segments:
        log.handles.forget(segment.path)
        log.files.remove(segment.path)
        log.removed_bytes += segment.size_bytes
    if segments:
        log.files.sync_dir(segments[0].path.parent)
        log.index.remove(number, segments[-1].last_seq + 1)
