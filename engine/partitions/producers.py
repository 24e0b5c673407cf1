"""Which records of a producer are to be stored: those that are neither stored nor on their way.

A producer that gets no answer sends its records again. What is stored already is told by the active segment
(`engine.segments.producers`), what waits for a round is remembered here. All on the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from engine.context import EngineContext
from engine.errors import NotStored
from engine.formats.extension import Producer
from engine.segments.batches import FAILED, PENDING, WriteBatch
from engine.segments.producers import Run, StoredProducer, StoredProducers, nearest

if TYPE_CHECKING:
    from engine.commit.target import CommitTarget


class SequenceGap(Exception):
    """Neither the records that are expected next nor any that are known: some before them did not come."""


class OldEpoch(Exception):
    """Another one with the same id has begun since."""


class Waiting(NamedTuple):
    """Records that wait for a round."""

    producer: Producer
    records: int
    first_seq: int
    write_batch: WriteBatch


class Piece(NamedTuple):
    """A run, and what it waits for if it is not stored."""

    run: Run
    write_batch: WriteBatch | None = None


@dataclass(slots=True)
class Plan:
    """What is to be done with records that came together."""

    base_seq: int = 0
    """Number of the first one; 0: it is still to be stored."""
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Which are to be stored: places of the first one and after the last one, in pieces."""
    waiting: list[WriteBatch] = field(default_factory=list)
    """What others of them wait for."""


class Producers:
    """The producers of one partition. It is told of rounds as a `Waiter`."""

    def __init__(self, context: EngineContext, partition: CommitTarget) -> None:
        self._context = context
        self._partition = partition
        self._before_files = StoredProducers()
        self._waiting: dict[int, list[Waiting]] = {}

    @property
    def _stored(self) -> StoredProducers:
        """What the active segment knows; while the first one is made, what failed meanwhile."""
        return self._partition.active_segment.producers if self._partition.has_files else self._before_files

    def plan(self, producer: Producer, count: int) -> Plan:
        """What to do with ``count`` records of a producer.

        Raises:
            NotStored: they follow records that came before them and could not be stored: those have to come first.
            SequenceGap: they do not follow, or are so old that nobody knows any more whether they are stored.
            OldEpoch: the producer's epoch is over.
        """
        waiting = self._still_waiting(producer.id)
        known = self._known(producer.id, waiting)
        if producer.epoch < (0 if known is None else known.epoch):
            raise OldEpoch(f"producer {producer.id}: epoch {producer.epoch} is over")
        if known is None:
            return Plan(missing=[(0, count)])
        if producer.epoch > known.epoch:
            if producer.first_sequence:
                raise SequenceGap(f"producer {producer.id}: a new epoch begins with {producer.first_sequence}, not 0")
            return Plan(missing=[(0, count)])
        pieces, expected = [Piece(run) for run in known.runs], known.next
        for item in waiting:
            if item.producer.epoch == producer.epoch:
                first = nearest(item.producer.first_sequence, expected)
                pieces.append(Piece(Run(first, first + item.records, item.first_seq), item.write_batch))
                expected = max(expected, first + item.records)
        first = nearest(producer.first_sequence, expected)
        if expected < first <= known.failed_end:
            known.failed_end = max(known.failed_end, first + count)
            raise NotStored(f"producer {producer.id}: records before count {first} were not stored: send them first")
        return _planned(first, count, known.floor, expected, pieces)

    def appended(self, producer: Producer, count: int, first_seq: int, write_batch: WriteBatch) -> None:
        """Records of a producer were appended, and are stored with a write batch."""
        write_batch.produced.append((producer, count, first_seq))
        self._waiting.setdefault(producer.id, []).append(Waiting(producer, count, first_seq, write_batch))
        if self not in write_batch.waiters[:2]:
            write_batch.waiters.insert(1, self)  # rounds go by turns of the first ones: they are those who publish

    def round_done(self) -> None:
        """Forgets what is stored, and remembers that what has failed is expected again."""
        for producer_id in list(self._waiting):
            self._still_waiting(producer_id)

    def _still_waiting(self, producer_id: int) -> list[Waiting]:
        """What of a producer waits for a round, in its order; what does no longer is let go."""
        waiting = self._waiting.get(producer_id, [])
        if all(item.write_batch.state == PENDING for item in waiting):
            return waiting
        for item in waiting:
            if item.write_batch.state == FAILED:
                self._stored.missed(item.producer, item.records, self._context.now_ms())
        left = [item for item in waiting if item.write_batch.state == PENDING]
        if left:
            self._waiting[producer_id] = left
        else:
            del self._waiting[producer_id]
        return left

    def _known(self, producer_id: int, waiting: list[Waiting]) -> StoredProducer | None:
        """What is stored, or a beginning by what waits: that of a later epoch counts alone."""
        now_ms = self._context.now_ms()
        known = self._stored.get(producer_id, now_ms)
        for item in waiting:
            if known is None or known.epoch < item.producer.epoch:
                known = StoredProducer(item.producer.epoch, item.producer.first_sequence, now_ms)
        return known


def _planned(first: int, count: int, floor: int, expected: int, pieces: list[Piece]) -> Plan:
    """The plan for so many counts from ``first`` on: those that are in no piece are missing.

    From ``expected`` on they follow; what is missing between ``floor`` and that a failed round has left out.
    """
    plan, at, end = Plan(), first, first + count

    def miss(stop: int) -> None:
        if at < floor or at > expected:
            raise SequenceGap(f"count {at} of a producer, of which {expected} is expected")
        plan.missing.append((at - first, stop - first))

    held = [piece for piece in pieces if piece.run.first < end and piece.run.end > first]
    for run, write_batch in sorted(held, key=lambda piece: piece.run):
        if run.first > at:
            miss(run.first)
        if run.first <= first:
            plan.base_seq = run.first_seq + first - run.first
        if write_batch is not None and write_batch not in plan.waiting:
            plan.waiting.append(write_batch)
        at = max(at, run.end)
    if at < end:
        miss(end)
    return plan
