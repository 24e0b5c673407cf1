"""Retention: which segments of a partition are due. Whole segments, oldest first.

By age (of the append, not of the record), by bytes, by count, as the topic is configured; the active segment stays. Age
is counted by a clock that nobody sets; the clock of the log only tells how old a segment was when it was opened.
Three steps, so that no reader is cut off in the middle of a file and no crash brings back what was removed: the start
of the log is raised at once (`Partition.trim`), is in `watermarks` with the next round, and the files go after a grace
time (`engine.partitions.removal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from engine.config import TopicConfig
from engine.limits import CLOCK_STEP_MS
from engine.segments.active import ActiveSegment, SealedSegment
from engine.state.clock import DoubtedClock

Segments: TypeAlias = Sequence[SealedSegment | ActiveSegment]
"""All of a partition, in order: the last one is the active one."""


def due_segments(
    config: TopicConfig, sealed: Sequence[SealedSegment], active: ActiveSegment, committed_end: int, steady_ms: int
) -> int:
    """How many of the oldest sealed segments retention has overtaken.

    Args:
        committed_end: bytes of the active segment that count.
        steady_ms: the present time by the clock that nobody sets.
    """
    due = 0
    if config.retention_ms:
        while due < len(sealed) and steady_ms - sealed[due].appended_steady_ms > config.retention_ms:
            due += 1
    if config.retention_bytes:
        size = committed_end + sum(segment.size_bytes for segment in sealed[due:])
        while due < len(sealed) and size > config.retention_bytes:
            size -= sealed[due].size_bytes
            due += 1
    if config.retention_records:
        records = active.records + sum(segment.records for segment in sealed[due:])
        while due < len(sealed) and records - sealed[due].records >= config.retention_records:
            records -= sealed[due].records
            due += 1
    return due


def take_below(sealed: list[SealedSegment], before_seq: int) -> list[SealedSegment]:
    """Takes those segments out of a list that have no number from `before_seq` on."""
    due = 0
    while due < len(sealed) and sealed[due].last_seq < before_seq:
        due += 1
    taken = sealed[:due]
    del sealed[:due]
    return taken


def set_segment_ages(segments: Segments, clock: DoubtedClock, steady_ms: int) -> None:
    """Says for the segments that were found at the start when they were last appended to, by the steady clock."""
    created = [
        segment.header.created_ms if isinstance(segment, ActiveSegment) else segment.created_ms for segment in segments
    ]
    now_ms = clock.now_ms()
    for at, segment in enumerate(segments):
        age_ms = _age_ms(segment.last_append_ms, created, at, now_ms)
        segment.appended_steady_ms = steady_ms - clock.likely_age_ms(now_ms - age_ms)


def make_younger(segments: Segments, by_ms: int, before_ms: int) -> None:
    """The clock that the segments from before a time (by the steady clock) were dated by was ahead."""
    for segment in segments:
        if segment.appended_steady_ms < before_ms:
            segment.appended_steady_ms += by_ms


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
