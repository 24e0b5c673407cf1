"""Transactions: records of several partitions that become durable and visible together, or not at all.

A transaction gathers its records in memory (`TRANSACTION_BYTES_MAX` at most), in write batches of their own that are
numbered from 1 on. `commit` puts these after the last numbers given out, at the same moment in all partitions, so that
any two transactions stand in the same order everywhere; what takes time, a million small records, was done before. The
committer takes the write batches of a transaction in one round of their own, syncs all their files, whatever the
durability of the topics, and then has a *marker* written to `state`; only then do watermarks and readers move.
A transaction that is one batch in one partition needs no marker: a batch is whole or not there. What else has to
become durable with it or not at all (`also`) is written together with the marker.

Ids are those of `engine.state.markers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.commit.target import CommitTarget
from engine.config import TopicConfig
from engine.context import EngineContext
from engine.errors import EngineError, NotStored, TooLarge, too_large
from engine.formats.batch import BatchWriter
from engine.formats.batch_header import HEADER_BYTES
from engine.limits import (
    RECORD_OVERHEAD_BYTES,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_PARTITIONS_MAX,
    WRITE_BATCH_BYTES_MAX,
)
from engine.segments.batches import COMMITTED, PENDING, WriteBatch
from engine.state.store import Put

ROW_OVERHEAD_BYTES = 64
NOT_YET_MS = 1 << 62
"""An append time after all others."""


class TransactionQueue(Protocol):
    """Who makes transactions durable (`engine.commit.committer.Committer`)."""

    def add_transaction(self, transaction: Transaction) -> None:
        """Queues a transaction whose write batches stand in their partitions."""

    def fail_transaction(self, transaction: Transaction, error: EngineError) -> None:
        """Takes a waiting transaction out of all its partitions."""


class Transaction:
    """Records for several partitions (see `Log.transaction`). Owner's thread only; a commit or a rollback ends it."""

    def __init__(self, context: EngineContext, queue: TransactionQueue, attributes: int = 0) -> None:
        self._context = context
        self._queue = queue
        self._attributes = attributes  # of its batches
        self._gathered: dict[CommitTarget, list[WriteBatch]] = {}
        self._on_done: Callable[[EngineError | None], None] | None = None
        self.size_bytes = 0
        self.write_batches: list[WriteBatch] = []
        self.id = 0
        """Given when its round starts; 0: it needs no marker."""
        self.also: tuple[Put, ...] = ()
        """Changes of `state` that become durable with the records."""

    @property
    def partitions(self) -> tuple[CommitTarget, ...]:
        """Those that records were added for."""
        return tuple(self._gathered)

    def has_room(self, partition: CommitTarget, size_bytes: int) -> bool:
        """Whether a record of so many bytes (value, key and headers) for this partition still fits."""
        return self._may_take(partition) and self.size_bytes + size_bytes + ROW_OVERHEAD_BYTES <= TRANSACTION_BYTES_MAX

    def _may_take(self, partition: CommitTarget) -> bool:
        return partition in self._gathered or len(self._gathered) < TRANSACTION_PARTITIONS_MAX

    def append(
        self,
        partition: CommitTarget,
        value: bytes,
        *,
        key: bytes = b"",
        headers: tuple[bytes, ...] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Adds a record; nothing of it is visible before the commit. Without a time it gets that of this call.

        Raises:
            TooLarge: the record, or the transaction with it, is larger than allowed; the record was not added.
            NotStored: nothing can be stored in this partition now.
        """
        size = len(value) + len(key) + sum(map(len, headers))
        check_size(partition.config, size)
        if not self.has_room(partition, size):
            is_full = self._may_take(partition)
            limit = f"{TRANSACTION_BYTES_MAX} bytes" if is_full else f"{TRANSACTION_PARTITIONS_MAX} partitions"
            raise TooLarge(f"a transaction holds up to {limit}", TRANSACTION_BYTES_MAX)
        need = HEADER_BYTES + RECORD_OVERHEAD_BYTES + size + 16 * len(headers)
        write_batches = self._begun(partition, need)
        timestamp_ms = self._context.now_ms() if timestamp_ms is None else timestamp_ms
        write_batch = write_batches[-1]
        while not write_batch.writer.put_record(value, key, timestamp_ms, headers):
            write_batch = self._with_room(partition, write_batches, need)
        self.added(partition, size + ROW_OVERHEAD_BYTES)

    def writer(self, partition: CommitTarget, room_bytes: int) -> BatchWriter:
        """What gathers the records of a partition, with room for one of `room_bytes`. After the puts call `added`.

        Whoever puts records there keeps the bounds of a transaction himself.

        Raises:
            NotStored: nothing can be stored in this partition now.
        """
        need = HEADER_BYTES + RECORD_OVERHEAD_BYTES + room_bytes
        write_batches = self._begun(partition, need)
        writer = write_batches[-1].writer
        if writer.size - writer.position < need:
            writer = self._with_room(partition, write_batches, need).writer
        return writer

    def added(self, partition: CommitTarget, size_bytes: int) -> None:
        """Records that count so much were put into the partition's writer."""
        self._gathered[partition][-1].pending_bytes += size_bytes
        self.size_bytes += size_bytes

    def _begun(self, partition: CommitTarget, need: int) -> list[WriteBatch]:
        """What is gathered for a partition. Raises NotStored."""
        if partition.error is not None:
            raise partition.error.again()
        write_batches = self._gathered.get(partition)
        if write_batches is None:
            write_batches = self._gathered[partition] = [self._gathering(partition, bytearray(need), 1)]
        return write_batches

    def _with_room(self, partition: CommitTarget, write_batches: list[WriteBatch], need: int) -> WriteBatch:
        """The last write batch in a buffer twice as large, with room for `need` bytes, or a further one."""
        write_batch = write_batches[-1]
        writer, length = write_batch.writer, len(write_batch.buffer)
        wanted = writer.position + (length - writer.size) + need
        if wanted > WRITE_BATCH_BYTES_MAX and not write_batch.is_empty:
            write_batch.close()
            buffer = self._context.buffers.take(max(WRITE_BATCH_BYTES_MAX, need))
            write_batches.append(self._gathering(partition, buffer, write_batch.last_seq + 1))
            return write_batches[-1]
        larger = self._context.buffers.take(max(min(2 * length, WRITE_BATCH_BYTES_MAX), wanted))
        write_batch.writer.replace_buffer(larger)
        write_batch.buffer = larger
        return write_batch

    def _gathering(self, partition: CommitTarget, buffer: bytearray, first_seq: int) -> WriteBatch:
        """A write batch whose append time is not known: until it is, its batches keep their records' highest time."""
        write_batch = WriteBatch(partition, buffer, first_seq)
        write_batch.writer.begin(NOT_YET_MS, self._attributes)
        return write_batch

    def commit(self, on_done: Callable[[EngineError | None], None]) -> None:
        """Makes all records durable and visible; `on_done` gets None, or the reason why none of them is stored.

        Every partition must be open (`Partition.when_open`).
        """
        self._on_done = on_done
        for partition in self._gathered:
            if partition.error is not None or not partition.is_open:
                self._gathered = {}
                self.finish(partition.error or NotStored(f"{partition.title} is not open"))
                return
        for partition, write_batches in self._gathered.items():
            write_batches[-1].close()
            partition.append_apart(write_batches, self)
            self.write_batches += write_batches
        if self.write_batches:
            self._queue.add_transaction(self)
        else:
            self.finish(None)

    def rollback(self) -> None:
        """Drops all records."""
        self._gathered = {}
        self.size_bytes = 0

    @property
    def needs_marker(self) -> bool:
        """Whether a crash could leave a part of it."""
        return len(self.write_batches) > 1 or self.write_batches[0].batches > 1 or bool(self.also)

    @property
    def is_ready(self) -> bool:
        """Whether nothing stands before its write batches in their partitions any more."""
        return all(partition.has_files and partition.is_next(self) for partition in self._gathered)

    @property
    def is_pending(self) -> bool:
        """Whether it is neither committed nor failed."""
        return bool(self.write_batches) and self.write_batches[0].state == PENDING

    @property
    def is_committed(self) -> bool:
        """Whether all of it is durable and visible."""
        return bool(self.write_batches) and self.write_batches[0].state == COMMITTED

    def fail(self, error: EngineError) -> None:
        """A partition cannot take its part of it: none is stored."""
        self._queue.fail_transaction(self, error)

    def finish(self, error: EngineError | None) -> None:
        """Tells the outcome."""
        on_done, self._on_done = self._on_done, None
        assert on_done is not None, "a transaction ends once"
        on_done(error)


def check_size(config: TopicConfig, size_bytes: int) -> None:
    """Raises TooLarge: no transaction takes a record of so many bytes for a topic of this configuration."""
    limit = min(config.record_bytes_max, TRANSACTION_BYTES_MAX - ROW_OVERHEAD_BYTES)
    if size_bytes > limit:
        raise TooLarge(too_large(size_bytes, limit), limit)
