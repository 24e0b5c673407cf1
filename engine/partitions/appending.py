# cython: annotation_typing=False
"""The appending half of a partition: the open write batch, and numbers for what was put into it.

Compiled where there is a compiler: with many small publishers this is done for each record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.formats.batch_header import HEADER_BYTES
from engine.limits import RECORD_OVERHEAD_BYTES

if TYPE_CHECKING:
    from engine.config import TopicConfig
    from engine.context import EngineContext
    from engine.errors import EngineError
    from engine.formats.batch import BatchWriter
    from engine.partitions.context import PartitionContext
    from engine.segments.active import ActiveSegment
    from engine.segments.batches import Waiter, WriteBatch
    from engine.state.topic_entries import Topic

NO_FILES, MAKING, OPEN, OPENING, CLOSED, DELETED = range(6)  # up to OPEN numbers are known

# C variables of the compiled module
_OVERHEAD_BYTES = HEADER_BYTES + RECORD_OVERHEAD_BYTES
_NO_FILES = NO_FILES


class Appending:
    """See `engine.partitions.partition.Partition`, which is derived from this."""

    __slots__ = (
        "_active", "_append_ms", "_context", "_open_write_batch", "_parts", "_phase", "error", "last_seq", "log_start",
        "topic",
    )  # fmt: skip

    def __init__(self, context: EngineContext, parts: PartitionContext, topic: Topic) -> None:
        self._context = context
        self._parts = parts
        self.topic = topic
        self.error: EngineError | None = context.error
        """Why nothing can be stored here (read-only) or, when it is not open, why it could not be opened."""
        self.log_start = 1  # the first number that may be read
        self.last_seq = 0  # the last one given out
        self._append_ms = 0
        self._phase = NO_FILES
        self._active: ActiveSegment | None = None
        self._open_write_batch: WriteBatch | None = None

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration in force."""
        return self.topic.config

    def writer(self, room_bytes: int = 0, attributes: int = 0) -> BatchWriter:
        """The open write batch's writer, set to the present time, with room for a record of `room_bytes`.

        Ask again when its put() returned False. After the puts call `appended`.

        Raises:
            NotStored: nothing can be stored here now (read-only, offline); `ReadOnly` until a restart.
        """
        if self.error is not None:
            raise self.error.again()
        need = _OVERHEAD_BYTES + room_bytes
        writer = self._open_write_batch.writer if self._open_write_batch is not None else None
        if writer is None or writer.size - writer.position < need:
            writer = self._open_next_write_batch(need).writer
        self._append_ms = append_ms = max(self._context.now_ms(), self._append_ms)  # never back, whatever the clock
        writer.begin(append_ms, attributes)
        return writer

    def appended(self, waiter: Waiter | None, size_bytes: int) -> WriteBatch:
        """After puts into the writer: gives out the numbers and registers the write batch for the next round.

        Args:
            waiter: told when the write batch is committed or has failed.
            size_bytes: what these records count in the budget of pending bytes.
        """
        write_batch = self._open_write_batch
        assert write_batch is not None, "appended() without writer()"
        writer = write_batch.writer
        if not self.last_seq:  # the first record ever may bring a number of its own: nothing is below it
            self.log_start = writer.first_seq
        self.last_seq = writer.next_seq - 1
        write_batch.pending_bytes += size_bytes
        self._context.backlog.bytes += size_bytes
        waiters = write_batch.waiters
        if waiter is not None and (not waiters or waiters[len(waiters) - 1] is not waiter):
            waiters.append(waiter)
        if not write_batch.is_counted:  # its first records: from then on the committer knows of it
            self._count(write_batch)
            if self._active is not None:
                self._parts.committer.add(self)  # type: ignore[arg-type]
            elif self._phase == _NO_FILES:
                self._make_files()
        return write_batch

    def _open_next_write_batch(self, need: int) -> WriteBatch:
        raise NotImplementedError

    def _count(self, write_batch: WriteBatch) -> None:
        raise NotImplementedError

    def _make_files(self) -> None:
        raise NotImplementedError
