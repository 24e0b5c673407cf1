"""What goes into the log and what comes out of it, write batches and read batches: whole batches back to back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config import TopicConfig
from engine.errors import EngineError, TooLarge, too_large
from engine.formats.batch import BatchWriter
from engine.formats.batch_header import renumber
from engine.formats.extension import Producer
from engine.limits import EXTENSION_BYTES_MAX, KEY_BYTES_MAX

PENDING = 0
COMMITTED = 1
FAILED = 2


class Waiter(Protocol):
    """Somebody who waits for write batches to be committed, for example a connection with answers outstanding."""

    def round_done(self) -> None:
        """Called once for each commit round in which a write batch with this waiter changed its state."""


class WriteBatchOwner(Protocol):
    """The partition of a write batch, as far as a write batch knows it."""

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration in force."""


class WriteBatchGroup(Protocol):
    """What write batches belong to that become durable together or not at all: a transaction."""

    def fail(self, error: EngineError) -> None:
        """A partition cannot take its write batches: none takes any."""


class WriteBatch:
    """The unit of commit: a buffer of batches of one partition that becomes durable, or fails, as a whole."""

    __slots__ = (
        "append_time_ms",
        "batches",
        "buffer",
        "end",
        "error",
        "file_position",
        "first_seq",
        "is_continued",
        "is_counted",
        "last_seq",
        "max_timestamp_ms",
        "partition",
        "pending_bytes",
        "produced",
        "records",
        "segment_id",
        "state",
        "transaction",
        "transaction_id",
        "waiters",
        "writer",
    )

    def __init__(self, partition: WriteBatchOwner, buffer: bytearray, next_seq: int) -> None:
        self.partition = partition
        self.buffer = buffer
        self.writer = BatchWriter(self.buffer, next_seq)
        self.first_seq = next_seq
        self.last_seq = next_seq - 1
        self.end = 0
        self.records = 0
        self.batches = 0
        self.max_timestamp_ms = 0
        self.append_time_ms = 0
        self.segment_id = 0
        self.file_position = 0
        self.transaction: WriteBatchGroup | None = None
        self.transaction_id = 0
        self.pending_bytes = 0
        self.is_counted = False
        self.is_continued = False  # the next one of the partition goes into the same round
        self.state = PENDING
        self.error: EngineError | None = None
        self.waiters: list[Waiter] = []
        self.produced: list[tuple[Producer, int, int]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was put into it yet."""
        return self.writer.next_seq == self.first_seq

    def close(self) -> None:
        """Ends the open batch; nothing may be added any more."""
        writer = self.writer
        writer.close_batch()
        self.end = writer.position
        self.first_seq = writer.first_seq
        self.last_seq = writer.next_seq - 1
        self.records = writer.records
        self.batches = writer.batches
        self.max_timestamp_ms = writer.max_timestamp_ms
        self.append_time_ms = writer.append_time_ms

    def renumber(self, behind_seq: int, append_time_ms: int) -> None:
        """A closed one that was numbered from 1 on: puts its records after a number."""
        self.first_seq += behind_seq
        self.last_seq += behind_seq
        self.append_time_ms = append_time_ms
        self.max_timestamp_ms = min(self.max_timestamp_ms, append_time_ms)
        renumber(self.buffer, self.end, behind_seq, append_time_ms)


HEADER_ROOM_BYTES = 16
"""More than each part of a header takes beside its own bytes."""


def check_records(
    config: TopicConfig,
    values: Sequence[bytes | bytearray],
    keys: Sequence[bytes] | None,
    headers: Sequence[tuple[bytes, ...]] | None,
) -> None:
    """Raises TooLarge or ValueError if a partition of a topic can take one of these records in no case."""
    limit = config.record_bytes_max
    are_plain = headers is None and max(map(len, values), default=0) <= min(limit, EXTENSION_BYTES_MAX)
    for row, value in enumerate(() if are_plain else values):
        flat = headers[row] if headers is not None else ()
        size = len(value) + sum(map(len, flat))
        if size > limit:
            raise TooLarge(too_large(len(value) if len(value) > limit else size, limit), limit)
        if size + HEADER_ROOM_BYTES * len(flat) > EXTENSION_BYTES_MAX:
            raise TooLarge(f"a record with {len(flat) // 2} headers; a batch cannot hold them", limit)
    if keys is not None and max(map(len, keys), default=0) > KEY_BYTES_MAX:
        raise ValueError(f"a key of more than {KEY_BYTES_MAX} bytes")


def outcome(write_batches: Sequence[WriteBatch]) -> tuple[int, EngineError | None]:
    """The state of several write batches as one: PENDING while one is; FAILED, with the first error, if one has."""
    if len(write_batches) == 1:  # as nearly always
        write_batch = write_batches[0]
        return write_batch.state, write_batch.error if write_batch.state == FAILED else None
    if any(write_batch.state == PENDING for write_batch in write_batches):
        return PENDING, None
    failed = next((write_batch for write_batch in write_batches if write_batch.state == FAILED), None)
    return (COMMITTED, None) if failed is None else (FAILED, failed.error)


@dataclass(slots=True)
class ReadBatch:
    """Whole, verified, committed batches of one partition, back to back."""

    buffer: memoryview
    first_seq: int
    last_seq: int
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges of sequence numbers (inclusive) that damage took before or between these batches."""
