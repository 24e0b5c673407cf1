"""Records that a cursor gave up: dropped, or appended to a dead-letter topic before they count as acknowledged.

A dead letter is the record as it was, with these headers in front of its own::

    dead-letter-topic, dead-letter-seq, dead-letter-subscription, dead-letter-deliveries

It is appended at least once: after a crash between writing it and writing the cursor, the record is delivered, and
given up, once more. It may be larger than ``record_bytes_max`` by these headers: what was a record once is never
refused for its size.

What stands in the way (a full disk, no room for the topic, records that cannot be read now) passes: the dead letters of
that cursor wait, and are tried again. A record is given up for good only when it is no longer there, cannot be decoded,
or cannot be a record with its headers, and that costs no other one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import xxhash

from engine.context import EngineContext
from engine.cursors.cursor import Cursor
from engine.cursors.policies import CursorPolicies
from engine.cursors.reader import BatchError, BundleError, ReadBatchCache, Reader
from engine.errors import EngineError, NotStored, OutOfRange
from engine.formats.record import Record
from engine.limits import DEAD_LETTERS_PENDING_MAX, TOPIC_NAME_BYTES_MAX
from engine.partitions.partition import Partition
from engine.partitions.table import PartitionTable
from engine.reports import report_exception
from engine.segments.batches import COMMITTED, PENDING, WriteBatch

log = logging.getLogger("quintlog.cursors")

RETRY_MS = 1_000
"""Pause after what stood in the way of a cursor's dead letters."""


def dead_letter_topic(name: bytes, suffix: bytes) -> bytes:
    """The topic for the dead letters of a topic: its name and the suffix.

    Where that is too long for a name, its end is replaced by ``~`` and a hash of all of it (no character is cut).
    """
    if len(name) + len(suffix) <= TOPIC_NAME_BYTES_MAX:
        return name + suffix
    rest = b"~" + xxhash.xxh3_64_hexdigest(name).encode() + suffix
    end = TOPIC_NAME_BYTES_MAX - len(rest)
    while end > 0 and name[end] & 0xC0 == 0x80:  # within a character of UTF-8
        end -= 1
    return name[:end] + rest


def _nothing() -> None:
    return


class Job(NamedTuple):
    """Given-up records ``first`` to ``last`` of a cursor, delivered ``attempts`` times."""

    first: int
    last: int
    attempts: int


class Appended(NamedTuple):
    """A dead letter on its way to the disk; ``era``: that of the cursor when it was given up."""

    write_batch: WriteBatch
    cursor: Cursor
    era: int
    job: Job


class DeadLetters:
    """The given-up records of a log's cursors, in a queue for each cursor; a waiter of its write batches."""

    def __init__(
        self,
        context: EngineContext,
        partitions: PartitionTable,
        read_batches: ReadBatchCache,
        policies: CursorPolicies,
        clock_ms: Callable[[], int],
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._policies = policies
        self._clock_ms = clock_ms
        self._queues: dict[Cursor, deque[Job]] = {}
        self._retry_ms: dict[Cursor, int] = {}  # whose dead letters have to wait, as the operator was told, until then
        self._appended: list[Appended] = []
        self._reader = Reader(read_batches)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._appended)

    def needs(self, cursor: Cursor) -> bool:
        """It has dead letters on their way, and has to stay in memory."""
        return cursor in self._queues or any(cursor is entry.cursor for entry in self._appended)

    def forget(self, cursor: Cursor) -> None:
        """Nothing of what it gave up is wanted any more."""
        self._queues.pop(cursor, None)
        self._retry_ms.pop(cursor, None)

    def take(self, cursor: Cursor) -> None:
        """Take over what a cursor has given up."""
        runs, cursor.deliveries.given_up = cursor.deliveries.given_up, []
        suffix = self._policies.policy(cursor.owner).dead_letter_suffix
        totals = self._policies.totals(cursor.owner)
        for run in runs:
            totals.given_up += run.last - run.first + 1
            if suffix and not cursor.partition.topic.name.endswith(suffix):
                self._queues.setdefault(cursor, deque()).append(Job(run.first, run.last, run.attempts))
                continue
            cursor.settle(run.first, run.last)
            log.warning(
                "%s: records %d to %d were delivered %d times without an acknowledgement and are dropped",
                cursor.title, run.first, run.last, run.attempts,
            )  # fmt: skip
        if self._queues:
            self._context.call_soon_threadsafe(self.work)

    def work(self) -> None:
        """Go on with the queues as far as nothing has to be waited for; what waits holds up its own cursor only."""
        now_ms = self._clock_ms()
        for cursor in list(self._queues):
            if self._retry_ms.get(cursor, 0) > now_ms:
                continue
            try:
                self._move(cursor)
            except EngineError as problem:
                if cursor not in self._retry_ms:
                    log.warning("%s: dead letters have to wait: %s", cursor.title, problem)
                self._retry_ms[cursor] = now_ms + RETRY_MS
            except Exception as problem:  # noqa: BLE001 - a defect costs no other cursor its dead letters
                if cursor not in self._retry_ms:
                    report_exception(f"the dead letters of {cursor.title}", problem)
                self._retry_ms[cursor] = now_ms + RETRY_MS

    def _move(self, cursor: Cursor) -> None:
        """Move records of a cursor until they are all on their way, or something has to be waited for.

        Raises:
            EngineError: not now
        """
        jobs = self._queues[cursor]
        while jobs and cursor.alive:
            if len(self._appended) >= DEAD_LETTERS_PENDING_MAX or not self._move_one(cursor, jobs):
                return
        self.forget(cursor)

    def _move_one(self, cursor: Cursor, jobs: deque[Job]) -> bool:
        """Append the next record, or pass what is none. False: something is being opened, or read from the disk."""
        job, reader, partition = jobs[0], self._reader, cursor.partition
        try:
            if not reader.open(partition, job.first, self.work):
                return False
            records = reader.records
            record = records.record() if records is not None and reader.current and records.seq <= job.last else None
        except OutOfRange:
            self._pass(cursor, jobs, partition.log_start - 1)
            return True
        except (BatchError, BundleError) as problem:
            last = min(job.last, max(reader.last_seq, job.first))
            log.error("%s: records %d to %d are no dead letters: %s", cursor.title, job.first, last, problem)
            reader.close()
            self._pass(cursor, jobs, last)
            return True
        if record is None:
            self._pass(cursor, jobs, job.last if reader.current else max(reader.last_seq, job.first))
            return True
        target = self._target(cursor)
        if target is None:
            return False
        self._pass(cursor, jobs, record.seq - 1)
        job = job._replace(first=record.seq, last=record.seq)
        try:
            write_batch = self._append(target, cursor, job, record)
        except ValueError as problem:
            log.error("%s: record %d is dropped, it cannot be a dead letter: %s", cursor.title, record.seq, problem)
            self._pass(cursor, jobs, record.seq)
            return True
        self._appended.append(Appended(write_batch, cursor, cursor.era, job))
        self._retry_ms.pop(cursor, None)
        self._shorten(jobs, record.seq)
        return True

    def _pass(self, cursor: Cursor, jobs: deque[Job], last: int) -> None:
        """The first job has no record (any more) up to ``last``."""
        job = jobs[0]
        if last >= job.first:
            cursor.settle(job.first, min(last, job.last))
            self._shorten(jobs, last)

    @staticmethod
    def _shorten(jobs: deque[Job], last: int) -> None:
        """The first job begins after ``last``, or is done."""
        job = jobs.popleft()
        if last < job.last:
            jobs.appendleft(job._replace(first=last + 1))

    def _target(self, cursor: Cursor) -> Partition | None:
        """The partition for dead letters, None while it is being opened."""
        name = dead_letter_topic(cursor.partition.topic.name, self._policies.policy(cursor.owner).dead_letter_suffix)
        partition = self._partitions.get(self._context.catalog.get_or_create(name))
        if not partition.is_open:
            problem = partition.error
            partition.when_open(self.work if problem is None else _nothing)
            if problem is not None:  # it is tried again meanwhile
                raise NotStored(str(problem))
            return None
        return partition

    def _append(self, target: Partition, cursor: Cursor, job: Job, record: Record) -> WriteBatch:
        """Append one record with the headers of a dead letter.

        Raises:
            ValueError: it cannot be a record, for the size of its headers
        """
        headers = (
            b"dead-letter-topic", cursor.partition.topic.name,
            b"dead-letter-seq", b"%d" % record.seq,
            b"dead-letter-subscription", b"%d" % cursor.id,
            b"dead-letter-deliveries", b"%d" % job.attempts,
            *record.headers,
        )  # fmt: skip
        size_bytes = len(record.value) + len(record.key) + sum(map(len, headers)) + 16 * len(headers)
        while not target.writer(size_bytes).put_record(record.value, record.key, record.timestamp_ms, headers):
            pass  # a buffer with room for it comes next
        return target.appended(self, size_bytes)

    def round_done(self) -> None:
        """A commit round has stored dead letters, or failed to."""
        appended, self._appended = self._appended, []
        failed: list[Appended] = []
        for entry in appended:
            cursor, job = entry.cursor, entry.job
            if entry.write_batch.state == PENDING:
                self._appended.append(entry)
            elif entry.write_batch.state == COMMITTED:
                self._policies.totals(cursor.owner).dead_letters += 1
                if entry.era == cursor.era:
                    cursor.settle(job.first, job.last)
            elif cursor.alive and entry.era == cursor.era:
                failed.append(entry)
        for entry in reversed(failed):
            self._queues.setdefault(entry.cursor, deque()).appendleft(entry.job)
        if self._queues and not failed:  # else the clock comes by, and a full disk is not asked without a pause
            self._context.call_soon_threadsafe(self.work)
