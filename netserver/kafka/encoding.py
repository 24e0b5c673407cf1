"""What the log holds, as Kafka's clients read it: batches of records, and records by their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import records as codec

if TYPE_CHECKING:
    from engine.segments.batches import ReadBatch


@dataclass(frozen=True, slots=True)
class Encoded:
    """Batches of records, back to back.

    Attributes:
        data: empty when nothing was left to take.
        next_seq: number to go on with.
        count: records in them.
    """

    data: memoryview
    next_seq: int
    count: int


def encode_records(read_batch: ReadBatch, from_seq: int, bytes_max: int) -> Encoded:
    """The records of a read batch from ``from_seq`` on, uncompressed; about ``bytes_max``, at least one record."""
    data, next_seq, count = codec.build_records(read_batch.buffer, from_seq, bytes_max)
    return Encoded(data, next_seq if count else max(from_seq, read_batch.last_seq + 1), count)


def first_at_time(read_batch: ReadBatch, from_seq: int, timestamp_ms: int) -> tuple[int, int] | None:
    """Number and time of the first record from ``from_seq`` on that is not older; None: there is none."""
    return codec.first_at_time(read_batch.buffer, from_seq, timestamp_ms)


def latest_in(read_batch: ReadBatch, from_seq: int) -> tuple[int, int] | None:
    """Number and time of the newest record from ``from_seq`` on, the first of several; None: there is none."""
    return codec.latest_in(read_batch.buffer, from_seq)
