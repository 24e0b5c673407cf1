"""Checked records into a partition."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from engine.formats.batch_header import QOS0_ATTRIBUTE

from .records import pack_records

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.segments.batches import Waiter, WriteBatch

    from .checking import Records


class Appended(NamedTuple):
    """Where records are, or will be.

    Attributes:
        base_seq: number of the first one.
        write_batches: what they are stored with, how many each has of them, and their bytes.
    """

    base_seq: int
    write_batches: list[tuple[WriteBatch, int, int]]


def append_records(partition: Partition, records: Records, waiter: Waiter, *, qos0: bool = False) -> Appended:
    """Appends all records of a batch, one after the other; on the owner's thread.

    Args:
        waiter: told when their write batches are committed or have failed.
        qos0: no acknowledgement was asked for.

    Raises:
        EngineError: nothing can be stored in the partition now; nothing was appended.
    """
    attributes = QOS0_ATTRIBUTE if qos0 else 0
    writer = partition.writer(0, attributes)
    base_seq = writer.next_seq
    walk = records.walk()
    found = []
    while True:
        count, size_bytes, is_full = pack_records(walk, writer, records.count)
        if count:
            found.append((partition.appended(waiter, size_bytes), count, size_bytes))
        if not is_full:
            return Appended(base_seq, found)
        writer = partition.writer(walk.room(), attributes)


def new_producer_id() -> int:
    """An id that nobody has: 62 random bits."""
    return secrets.randbits(62)
