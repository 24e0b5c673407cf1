"""What the TANK client hands out: records, batches of them, and where to begin reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Self

from netserver.client.stream import Batch

from .limits import RECORD_OVERHEAD_BYTES


class Start(Enum):
    """Where a subscription begins, besides a sequence number."""

    EARLIEST = "earliest"
    LATEST = "latest"


EARLIEST: Final = Start.EARLIEST
LATEST: Final = Start.LATEST


def after(seq: int) -> int:
    """The start that leaves out everything up to the record ``seq``."""
    return seq + 1


class Record(NamedTuple):
    """One message.

    Attributes:
        seq: its number in its partition.
        timestamp_ms: milliseconds since 1970.
        key: ``b""`` is none.
    """

    seq: int
    timestamp_ms: int
    key: bytes
    value: bytes
    partition: int


_new_record = partial(tuple.__new__, Record)  # half the time of Record(...)


class RecordBatch(Batch[Record]):
    """Messages of one partition that came together; the lists belong to each other by position.

    Attributes:
        seqs, timestamps_ms, keys, values: as in Record.
        next_offset: number to ask for to go on after them.
        high_water_mark: last number of the partition when they were read.
    """

    __slots__ = (
        "high_water_mark",
        "keys",
        "next_offset",
        "partition",
        "seqs",
        "size_bytes",
        "timestamps_ms",
        "topic",
        "values",
    )

    def __init__(
        self,
        topic: bytes,
        partition: int,
        seqs: list[int],
        timestamps_ms: list[int],
        keys: list[bytes],
        values: list[bytes],
        high_water_mark: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.seqs = seqs
        self.timestamps_ms = timestamps_ms
        self.keys = keys
        self.values = values
        self.high_water_mark = high_water_mark
        self.next_offset = seqs[-1] + 1
        self.size_bytes = sum(map(len, values)) + sum(map(len, keys)) + RECORD_OVERHEAD_BYTES * len(values)

    def __len__(self) -> int:
        return len(self.seqs)

    def records(self) -> list[Record]:
        columns = zip(self.seqs, self.timestamps_ms, self.keys, self.values, strict=True)
        return [_new_record((*row, self.partition)) for row in columns]

    def part(self, start: int, end: int) -> Self:
        return type(self)(
            self.topic,
            self.partition,
            self.seqs[start:end],
            self.timestamps_ms[start:end],
            self.keys[start:end],
            self.values[start:end],
            self.high_water_mark,
        )


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one Consume said of one partition.

    Attributes:
        batch: the messages, None when there are none.
        next_offset: number to ask for next.
        high_water_mark: last number of the partition.
        first_available: its first number, when the one asked for was not there (``batch`` is None then).
        is_cut: not even the first bundle fitted: ask again with a larger fetch size.
    """

    topic: bytes
    partition: int
    batch: RecordBatch | None
    next_offset: int
    high_water_mark: int
    first_available: int | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Records for one partition, one part of a request; they become one bundle.

    Attributes:
        keys, timestamps_ms: one of each a record; without: no keys, the present time.
        seqs: rising numbers of their own, above the last one there (for copies of other logs).
        compress: "auto" is with snappy above the thresholds of the original's client, if that makes it smaller.
    """

    topic: str | bytes
    values: Sequence[bytes]
    partition: int = 0
    keys: Sequence[bytes] | None = None
    timestamps_ms: Sequence[int] | None = None
    seqs: Sequence[int] | None = None
    compress: bool | str = "auto"


@dataclass(frozen=True, slots=True)
class Batching:
    """When records that are published one by one are sent: a bundle is full, or ``linger_s`` after its first record.

    All that waits leaves in one request, one bundle for each partition.
    """

    linger_s: float = 0.005
    records_max: int = 255
    bytes_max: int = 64 * 1024
