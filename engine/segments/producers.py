"""Producers that number their records: which of these are stored, so that sending them again stores nothing twice.

A producer counts its records from any number up to 2^31 - 1, and then on from 0; here its counts go on instead of
beginning anew, by taking each for the one nearest to what is expected. A *run* is a row of records with rising counts
and rising numbers in the log, whatever batches they came in: a part of what came together may be stored, and is known.

The table belongs to the active segment as its other counts do: it changes when a round is applied, goes into the footer
when the segment is sealed and on to the next one, and is put together from both when a partition is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import msgpack

from engine.formats.extension import SEQUENCE_MASK, Producer
from engine.limits import PRODUCER_KEEP_MS, PRODUCER_RUNS_MAX, PRODUCERS_MAX

HALF = (SEQUENCE_MASK + 1) // 2


class Run(NamedTuple):
    """Records of a producer that follow each other in its count and in the log."""

    first: int
    """Count of the first one."""
    end: int
    """Count after the last one."""
    first_seq: int
    """Number of the first one in the log."""


_end_of = attrgetter("end")


@dataclass(slots=True)
class StoredProducer:
    """What is stored of a producer."""

    epoch: int
    floor: int
    """From this count on `runs` tell of everything: what is not in them is not stored."""
    time_ms: int
    """When something was stored last."""
    runs: list[Run] = field(default_factory=list)
    """As they were stored."""
    failed_end: int = 0
    """Up to this count records came behind some that could not be stored. Not for the footer."""

    @property
    def next(self) -> int:
        """The count that is expected."""
        return max(map(_end_of, self.runs), default=self.floor)


def nearest(sequence: int, expected: int) -> int:
    """The count that a sequence number of 31 bits stands for, where ``expected`` is."""
    return expected + (sequence - expected + HALF & SEQUENCE_MASK) - HALF


class StoredProducers:
    """The producers of a partition, those first that have been silent for longest."""

    def __init__(self) -> None:
        self._producers: dict[int, StoredProducer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int, now_ms: int) -> StoredProducer | None:
        """What is stored of a producer; None: nothing, or it was silent for so long that it is forgotten."""
        found = self._producers.get(producer_id)
        return None if found is None or now_ms - found.time_ms > PRODUCER_KEEP_MS else found

    def note(self, producer: Producer, count: int, first_seq: int, time_ms: int) -> None:
        """Records of a producer were stored, the first of them with this number."""
        known = self._producers.pop(producer.id, None)
        if known is None or known.epoch != producer.epoch or time_ms - known.time_ms > PRODUCER_KEEP_MS:
            known = StoredProducer(producer.epoch, producer.first_sequence, time_ms)
        known.time_ms = time_ms
        self._producers[producer.id] = known
        first = nearest(producer.first_sequence, known.next)
        runs, last = known.runs, known.runs[-1] if known.runs else Run(0, 0, 0)
        if first == last.end and first_seq == last.first_seq + first - last.first and first + count - last.first < HALF:
            runs[-1] = Run(last.first, first + count, last.first_seq)
        else:
            runs.append(Run(first, first + count, first_seq))
            if len(runs) > PRODUCER_RUNS_MAX:
                known.floor = max(known.floor, runs.pop(0).end)
        self._forget_one()

    def missed(self, producer: Producer, count: int, time_ms: int) -> None:
        """The first of a producer's records, or what followed, could not be stored: they are expected to come again."""
        known = self._producers.get(producer.id)
        if known is None or known.epoch < producer.epoch:
            known = self._producers[producer.id] = StoredProducer(producer.epoch, producer.first_sequence, time_ms)
        if known.epoch == producer.epoch:
            first = nearest(producer.first_sequence, known.next)
            known.failed_end = max(known.failed_end, first + count)
            if len(known.runs) < PRODUCER_RUNS_MAX:  # nothing older was forgotten
                known.floor = min(known.floor, first)
        self._forget_one()

    def _forget_one(self) -> None:
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    def packed(self, now_ms: int) -> bytes:
        """For the footer of a segment; empty without producers. By a thread: `missed` may come between."""
        rows = [
            [id_, known.epoch, known.floor, known.time_ms, *(item for run in known.runs for item in run)]
            for id_, known in list(self._producers.items())
            if now_ms - known.time_ms <= PRODUCER_KEEP_MS
        ]
        return bytes(msgpack.packb(rows)) if rows else b""


def unpacked(data: bytes) -> StoredProducers:
    """What a footer had of `StoredProducers.packed`."""
    found = StoredProducers()
    for id_, epoch, floor, time_ms, *numbers in msgpack.unpackb(data) if data else ():
        runs = [Run(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)]
        found._producers[id_] = StoredProducer(epoch, floor, time_ms, runs)
    return found
