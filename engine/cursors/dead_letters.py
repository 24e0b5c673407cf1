"""Records that a cursor gave up: dropped, or appended to a dead-letter topic before they count as acknowledged.

A dead letter is the record as it was, with these headers in front of its own::

    dead-letter-topic, dead-letter-seq, dead-letter-subscription, dead-letter-deliveries

It is appended at least once: after a crash between writing it and writing the cursor, the record is delivered, and
given up, once more.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from engine.cursors.reader import BatchError, BundleError, Reader
from engine.errors import EngineError, NotStored, OutOfRange
from engine.limits import DEAD_LETTERS_PENDING_MAX
from engine.segments.chunk import COMMITTED, PENDING, Chunk

if TYPE_CHECKING:
    from engine.cursors.cursor import Cursor
    from engine.cursors.store import CursorStore
    from engine.formats.record import Record
    from engine.partitions.partition import Partition

log = logging.getLogger("quintlog.cursors")


class Job(NamedTuple):
    """Given-up records ``first`` to ``last`` of a cursor, delivered ``attempts`` times."""

    cursor: Cursor
    first: int
    last: int
    attempts: int


class DeadLetters:
    """The queue of a log's given-up records; a waiter of the chunks it appends to."""

    def __init__(self, store: CursorStore) -> None:
        self._store = store
        self._jobs: deque[Job] = deque()
        self._appended: deque[tuple[Chunk, Job]] = deque()
        self._told: set[Cursor] = set()  # whose dead letters have to wait, as the operator was told
        self._reader = Reader(store.slabs)

    def __len__(self) -> int:
        return len(self._jobs) + len(self._appended)

    def take(self, cursor: Cursor) -> None:
        """Take over what a cursor has given up."""
        runs, cursor.deliveries.given_up = cursor.deliveries.given_up, []
        suffix = self._store.policy(cursor.owner).dead_letter_suffix
        totals = self._store.totals(cursor.owner)
        for run in runs:
            totals.given_up += run.last - run.first + 1
            if suffix and not cursor.partition.topic.name.endswith(suffix):
                self._jobs.append(Job(cursor, run.first, run.last, run.attempts))
                continue
            cursor.settle(run.first, run.last)
            log.warning(
                "%s: records %d to %d were delivered %d times without an acknowledgement and are dropped",
                cursor.title, run.first, run.last, run.attempts,
            )  # fmt: skip
        if self._jobs:
            self._store.log.post(self.work)

    def work(self) -> None:
        """Go on with the queue as far as nothing has to be waited for; what waits holds up its own cursor only."""
        waiting: list[Job] = []
        held: set[Cursor] = set()
        while self._jobs and len(self._appended) < DEAD_LETTERS_PENDING_MAX:
            job = self._jobs.popleft()
            if job.cursor in held or not self._moved(job):
                held.add(job.cursor)
                waiting.append(job)
        self._jobs.extendleft(reversed(waiting))
        self._told &= held

    def _moved(self, job: Job) -> bool:
        """Move the first record of a job, or drop it all. False: it has to wait."""
        cursor = job.cursor
        try:
            return not cursor.alive or self._move_one(job)
        except NotStored as problem:
            if cursor not in self._told:
                self._told.add(cursor)
                log.warning("%s: dead letters have to wait: %s", cursor.title, problem)
            return False
        except EngineError as problem:
            log.error("%s: records %d to %d are dropped: %s", cursor.title, job.first, job.last, problem)
            cursor.settle(job.first, job.last)
            return True

    def _move_one(self, job: Job) -> bool:
        """Append the first record of a job and queue the rest. False: try again later (the clock comes by anyway).

        Raises:
            NotStored: not now
            EngineError: never
        """
        cursor = job.cursor
        try:
            if not self._reader.open(cursor.partition, job.first, self.work):
                return False
        except (OutOfRange, BatchError, BundleError):
            cursor.settle(job.first, job.last)
            return True
        records = self._reader.records
        if records is None or not self._reader.current or records.seq > job.last:
            behind = job.last if self._reader.current else min(job.last, max(self._reader.last_seq, job.first))
            cursor.settle(job.first, behind)
            if behind < job.last:
                self._jobs.appendleft(job._replace(first=behind + 1))
            return True
        target = self._target(cursor)
        if target is None:
            return False
        record = records.record()
        self._append(target, job, record)
        if record.seq > job.first:
            cursor.settle(job.first, record.seq - 1)
        if record.seq < job.last:
            self._jobs.appendleft(job._replace(first=record.seq + 1))
        return True

    def _target(self, cursor: Cursor) -> Partition | None:
        """The partition for dead letters, None while it is being opened."""
        name = cursor.partition.topic.name + self._store.policy(cursor.owner).dead_letter_suffix
        partition = self._store.log.partition(self._store.log.catalog.get_or_create(name))
        if not partition.is_open:
            if partition.error is not None:
                raise NotStored(str(partition.error))
            partition.when_open(self.work)
            return None
        return partition

    def _append(self, target: Partition, job: Job, record: Record) -> None:
        headers = (
            b"dead-letter-topic", job.cursor.partition.topic.name,
            b"dead-letter-seq", b"%d" % record.seq,
            b"dead-letter-subscription", b"%d" % job.cursor.id,
            b"dead-letter-deliveries", b"%d" % job.attempts,
        )  # fmt: skip
        chunk = target.append(
            [record.value],
            keys=[record.key],
            timestamps_ms=[record.timestamp_ms],
            headers=[(*headers, *record.headers)],
            waiter=self,
        )
        self._appended.append((chunk, job._replace(first=record.seq, last=record.seq)))

    def round_done(self) -> None:
        """A commit round has stored dead letters, or failed to."""
        waiting = [entry for entry in self._appended if entry[0].state == PENDING]
        has_failed = False
        for chunk, job in self._appended:
            if chunk.state == PENDING:
                continue
            if chunk.state == COMMITTED:
                job.cursor.settle(job.first, job.last)
                self._store.totals(job.cursor.owner).dead_letters += 1
            else:
                self._jobs.append(job)
                has_failed = True
        self._appended = deque(waiting)
        if self._jobs and not has_failed:  # else the clock comes by, and a full disk is not asked without a pause
            self._store.log.post(self.work)
