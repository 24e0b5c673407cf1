"""Checked records into a partition."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from engine.formats.batch_header import QOS0_ATTRIBUTE
from engine.formats.extension import SEQUENCE_MASK, Producer
from engine.partitions.producers import OldEpoch, SequenceGap

from .record_errors import OLD_EPOCH, OUT_OF_SEQUENCE, RecordsError
from .records import pack_records

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.segments.batches import Waiter, WriteBatch

    from .checking import Records


class Appended(NamedTuple):
    """Where records are, or will be.

    Attributes:
        base_seq: number of the first one, also if it was stored before.
        write_batches: what they are stored with, how many each has of them, and their bytes: none of those that were on
            their way before.
    """

    base_seq: int
    write_batches: list[tuple[WriteBatch, int, int]]


def append_records(partition: Partition, records: Records, waiter: Waiter, *, qos0: bool = False) -> Appended:
    """Appends what of a batch is neither stored nor on its way, all one after the other; on the owner's thread.

    Args:
        waiter: told when their write batches are committed or have failed.
        qos0: no acknowledgement was asked for.

    Raises:
        RecordsError: OUT_OF_SEQUENCE or OLD_EPOCH, by the producer's count.
        EngineError: nothing can be stored in the partition now; nothing was appended.
    """
    attributes = QOS0_ATTRIBUTE if qos0 else 0
    if records.producer_id < 0:
        return _append(partition, records, waiter, attributes, (0, records.count))
    producer = Producer(records.producer_id, records.producer_epoch, records.first_sequence)
    try:
        plan = partition.producers.plan(producer, records.count)
    except SequenceGap as error:
        raise RecordsError(OUT_OF_SEQUENCE, str(error)) from None
    except OldEpoch as error:
        raise RecordsError(OLD_EPOCH, str(error)) from None
    base_seq, found = plan.base_seq, []
    for write_batch in plan.waiting:
        found.append((write_batch, 0, 0))
        write_batch.waiters.append(waiter)
    for span in plan.missing:
        appended = _append(partition, records, waiter, attributes, span, producer)
        base_seq = base_seq or appended.base_seq
        found += appended.write_batches
    return Appended(base_seq, found)


def _append(
    partition: Partition,
    records: Records,
    waiter: Waiter,
    attributes: int,
    span: tuple[int, int],
    producer: Producer | None = None,
) -> Appended:
    """Appends the records of a batch from one place to another."""
    walk = records.walk()
    place, stop = span
    while walk.index < place:
        walk.next()
    writer = partition.writer(0, attributes)
    base_seq, found = writer.next_seq, []
    while True:
        made = None
        if producer is not None:
            made = producer._replace(first_sequence=producer.first_sequence + place & SEQUENCE_MASK)
            writer.produce(*made)
        first_seq = writer.next_seq
        count, size_bytes, is_full = pack_records(walk, writer, stop)
        if count:
            write_batch = partition.appended(waiter, size_bytes)
            found.append((write_batch, count, size_bytes))
            if made is not None:
                partition.producers.appended(made, count, first_seq, write_batch)
            place += count
        if not is_full:
            return Appended(base_seq, found)
        writer = partition.writer(walk.room(), attributes)


def new_producer_id() -> int:
    """An id that nobody has: 62 random bits."""
    return secrets.randbits(62)
