"""When a partition begins a new segment, and how: the old one is sealed for its size, its age, or when asked to."""

from __future__ import annotations

from engine.commit.target import PartitionCommit
from engine.config import TopicConfig
from engine.context import EngineContext
from engine.formats.segment import HEADER_BYTES
from engine.limits import CLOCK_STEP_MS, SEGMENT_AGE_MS_MIN, SEGMENT_BYTES_MIN
from engine.segments.active import create_segment, new_header


def segment_age_ms(config: TopicConfig) -> int:
    """Age at which a segment is sealed: with retention by age, a quarter of that at most, so that records do not stay
    much longer than they should (whole segments are removed)."""
    if not config.retention_ms:
        return config.segment_age_ms
    return min(config.segment_age_ms, max(config.retention_ms // 4, SEGMENT_AGE_MS_MIN))


def segment_bytes(config: TopicConfig) -> int:
    """Size at which a segment is sealed: as for the age, a quarter of what is kept at most."""
    if not config.retention_bytes:
        return config.segment_bytes
    return min(config.segment_bytes, max(config.retention_bytes // 4, SEGMENT_BYTES_MIN))


def is_aged(config: TopicConfig, created_ms: int, now_ms: int) -> bool:
    """Whether a segment that was made at `created_ms` is to be sealed for its age. One that comes from the future is:
    the clock was set back, and by this one's time it would stay for as long."""
    return now_ms - created_ms > segment_age_ms(config) or created_ms - now_ms > CLOCK_STEP_MS


def is_roll_due(context: EngineContext, part: PartitionCommit) -> bool:
    """Whether the round is to begin a new segment."""
    active = part.active
    if active.position == HEADER_BYTES:  # an empty segment never rolls, unless it is followed by a gap
        return part.roll and part.partition.gap_before_next and bool(part.write_batches)
    if part.roll:
        return True
    config = part.partition.config
    return active.position + part.size_bytes > segment_bytes(config) or is_aged(
        config, active.header.created_ms, context.now_ms()
    )


def roll(context: EngineContext, part: PartitionCommit) -> None:
    """Seals the active segment and begins the next one, both durable. Raises OSError."""
    files, handles, old, partition = context.files, context.handles, part.active, part.partition
    context.check_directory()
    first_seq = part.write_batches[0].first_seq if part.write_batches else old.last_seq + 1
    header = new_header(
        partition.topic.id, partition.index, partition.number, first_seq, context.now_ms(), follows=old.last_seq + 1
    )
    sealed = old.seal(files, handles)
    part.active = create_segment(files, handles, old.directory, header, max_timestamp_ms=old.max_timestamp_ms)
    part.active.last_append_ms = old.last_append_ms
    part.active.producers = old.producers
    part.sealed = sealed
