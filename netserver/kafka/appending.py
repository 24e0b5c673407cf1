"""Checked records into a partition."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

from engine.commit.transactions import NOT_YET_MS
from engine.formats.batch_header import QOS0_ATTRIBUTE
from engine.formats.extension import SEQUENCE_MASK, Producer
from engine.limits import WRITE_BATCH_BYTES_MAX
from engine.partitions.producers import OldEpoch, Plan, SequenceGap

from .limits import BATCH_MORE_BYTES, JOINED_BYTES_MAX, PACKED_OBJECTS_MAX, PACKED_RECORDS, RECORD_MORE_BYTES
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
    is_one_write_batch = room_bytes_of(records) <= WRITE_BATCH_BYTES_MAX and 2 * records.objects <= PACKED_OBJECTS_MAX
    if not is_one_write_batch:
        steps = append_in_steps(partition, records, waiter, qos0=qos0)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                appended: Appended = end.value
                return appended
    plan = _plan(partition, records)
    base_seq, found = plan.base_seq, _wait_for(plan, waiter)
    for span in plan.missing:
        appended = _append(partition, records, waiter, QOS0_ATTRIBUTE if qos0 else 0, span)
        base_seq = base_seq or appended.base_seq
        found += appended.write_batches
    return Appended(base_seq, found)


def append_in_steps(
    partition: Partition, records: Records, waiter: Waiter, *, qos0: bool = False
) -> Generator[None, None, Appended]:
    """The same in short steps, for many records.

    They are put into write batches apart, which get their numbers at once in the end: clients count on the numbers of
    a batch, so nobody else's may be among them. What was stored meanwhile, by another connection of the same producer,
    is left out.
    """
    packed: list[list[WriteBatch]] = []
    missing: list[tuple[int, int]] = []
    while (plan := _plan(partition, records)).missing != missing:
        packed, missing = [], plan.missing
        for span in missing:
            packed.append((yield from _pack(partition, records, QOS0_ATTRIBUTE if qos0 else 0, span)))
    if missing:
        partition.writer()  # raises what keeps records from being stored
    base_seq, found = plan.base_seq, _wait_for(plan, waiter)
    for (place, _), write_batches in zip(missing, packed, strict=True):
        for write_batch in write_batches:
            write_batch.waiters.append(waiter)
        _join(write_batches, records)
        partition.append_apart(write_batches)
        base_seq = base_seq or write_batches[0].first_seq
        for write_batch in write_batches:
            count = write_batch.records
            found.append((write_batch, count, write_batch.pending_bytes))
            if (producer := _producer_at(records, place)) is not None:
                partition.producers.appended(producer, count, write_batch.first_seq, write_batch)
            place += count
    return Appended(base_seq, found)


def room_bytes_of(records: Records) -> int:
    """What a write batch needs for all of them: one round stores them, or none."""
    return records.size_bytes + RECORD_MORE_BYTES * (records.count + records.objects) + BATCH_MORE_BYTES


def _join(write_batches: list[WriteBatch], records: Records) -> None:
    """Has one round store them or none: clients count the numbers of a batch from its first record on."""
    if records.size_bytes <= JOINED_BYTES_MAX:
        for write_batch in write_batches[:-1]:
            write_batch.is_continued = True


def _plan(partition: Partition, records: Records) -> Plan:
    """What is to be stored. Raises RecordsError by the producer's count."""
    producer = _producer_at(records, 0)
    if producer is None:
        return Plan(missing=[(0, records.count)])
    try:
        return partition.producers.plan(producer, records.count)
    except SequenceGap as error:
        raise RecordsError(OUT_OF_SEQUENCE, str(error)) from None
    except OldEpoch as error:
        raise RecordsError(OLD_EPOCH, str(error)) from None


def _producer_at(records: Records, place: int) -> Producer | None:
    """Whose records these are, with the count of the one at a place."""
    if records.producer_id < 0:
        return None
    return Producer(records.producer_id, records.producer_epoch, records.first_sequence + place & SEQUENCE_MASK)


def _wait_for(plan: Plan, waiter: Waiter) -> list[tuple[WriteBatch, int, int]]:
    """Waits for what is on its way already."""
    for write_batch in plan.waiting:
        write_batch.waiters.append(waiter)
    return [(write_batch, 0, 0) for write_batch in plan.waiting]


def _append(partition: Partition, records: Records, waiter: Waiter, attributes: int, span: tuple[int, int]) -> Appended:
    """Appends the records of a batch from one place to another."""
    walk = records.walk()
    place, stop = span
    while walk.index < place:
        walk.next()
    writer = partition.writer(room_bytes_of(records), attributes)
    base_seq, found = writer.next_seq, []
    while True:
        producer = _producer_at(records, place)
        if producer is not None:
            writer.produce(*producer)
        first_seq = writer.next_seq
        count, size_bytes, is_full = pack_records(walk, writer, stop, writer.append_time_ms)
        if count:
            write_batch = partition.appended(waiter, size_bytes)
            found.append((write_batch, count, size_bytes))
            if producer is not None:
                partition.producers.appended(producer, count, first_seq, write_batch)
            place += count
        if place == stop:
            return Appended(base_seq, found)
        # a round may have begun, and have taken the write batch
        writer = partition.writer(walk.room() if is_full else 0, attributes)


def _pack(
    partition: Partition, records: Records, attributes: int, span: tuple[int, int]
) -> Generator[None, None, list[WriteBatch]]:
    """Puts the records from one place to another into write batches that are numbered from 1 on, in short steps."""
    walk = records.walk()
    place, stop = span
    while walk.index < place:
        walk.next()
        if not walk.index % PACKED_RECORDS:
            yield
    made: list[WriteBatch] = []
    room_bytes, next_seq = 0, 1
    while place < stop:
        now_ms = partition.writer(0, attributes).append_time_ms
        write_batch = partition.write_batch_apart(next_seq, room_bytes)
        write_batch.writer.begin(NOT_YET_MS, attributes)
        producer = _producer_at(records, place)
        if producer is not None:
            write_batch.writer.produce(*producer)
        is_full = False
        while place < stop and not is_full:
            until = min(place + PACKED_RECORDS, stop)
            count, size_bytes, is_full = pack_records(walk, write_batch.writer, until, now_ms)
            place += count
            write_batch.pending_bytes += size_bytes
            yield
        room_bytes = walk.room()
        if write_batch.is_empty:
            continue  # the first record needs a larger one
        write_batch.close()
        made.append(write_batch)
        next_seq = write_batch.last_seq + 1
    return made


def new_producer_id() -> int:
    """An id that nobody has: 62 random bits."""
    return secrets.randbits(62)
