"""A subscription of a Figg connection: a cursor in the log, and the framed batches that several of them share.

Live and history are the same thing: read after the last number that was sent, wait when there is nothing, go on. A
subscriber that does not take its data is simply further back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import EngineError, OutOfRange
from engine.formats.record import BatchError, BundleError
from netserver.figg.dispatch import frame_data
from netserver.figg.limits import FRAMES_AGAIN_BYTES, FRAMES_BYTES, READ_BYTES, SHARED_FRAMES_BYTES_MAX

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.segments.batches import ReadBatch
    from netserver.figg.codec import Buffer
    from netserver.shell.counters import Counters

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Framed:
    """DATA frames of records that follow each other, never changed once made.

    ``skipped`` were too large for a frame, ``lost`` are damaged; ``next_seq`` is what comes after all of them.
    """

    frames: Buffer
    next_seq: int
    count: int = 0
    skipped: int = 0
    lost: int = 0


class SharedFrames:
    """Framed batches by (partition, first number), for the other subscribers that come by; first in, first out.

    They are kept for partitions with several subscribers only.
    """

    def __init__(self, bytes_max: int = SHARED_FRAMES_BYTES_MAX) -> None:
        self.subscribers: dict[Partition, int] = {}
        self.hits = 0
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._framed: dict[tuple[Partition, int], Framed] = {}

    def join(self, partition: Partition) -> None:
        """One subscriber more."""
        self.subscribers[partition] = self.subscribers.get(partition, 0) + 1

    def leave(self, partition: Partition) -> None:
        """One subscriber less."""
        left = self.subscribers[partition] - 1
        if left:
            self.subscribers[partition] = left
        else:
            del self.subscribers[partition]

    def get(self, partition: Partition, seq: int) -> Framed | None:
        """What another subscriber was sent from ``seq`` on."""
        framed = self._framed.get((partition, seq))
        if framed is None or (len(framed.frames) < FRAMES_AGAIN_BYTES and framed.next_seq <= partition.committed_seq):
            return None  # small, and there is more by now: once read again it is one piece, for all who are as late
        self.hits += 1
        return framed

    def put(self, partition: Partition, seq: int, framed: Framed) -> None:
        """Keep ``framed`` if anybody else may want it."""
        if self.subscribers.get(partition, 0) < 2:
            return
        before = self._framed.pop((partition, seq), None)
        self._framed[partition, seq] = framed
        self._size_bytes += len(framed.frames) - (len(before.frames) if before is not None else 0)
        while self._size_bytes > self._bytes_max:
            oldest = next(iter(self._framed))
            self._size_bytes -= len(self._framed.pop(oldest).frames)


class Subscription:
    """One topic of one connection.

    Args:
        offset: position after which reading begins; None: the latest message.
        on_ready: called (in the loop) when `advance` may give more.
        value_bytes_max: largest record that fits into a DATA frame.

    Attributes:
        topic: its name.
        next_seq: number of the record that it reads next.
        stopped: it is over.
        is_costly: what it was given last took long.
        is_counted: its client's quota has it.
        attached, queued: marks of its connection: ATTACHED was answered (for a topic made again);
            it stands in the queue.
    """

    __slots__ = (
        "_counters",
        "_live",
        "_offset",
        "_on_ready",
        "_partition",
        "_shared",
        "_value_bytes_max",
        "attached",
        "is_costly",
        "is_counted",
        "next_seq",
        "queued",
        "stopped",
        "topic",
    )

    def __init__(
        self,
        topic: bytes,
        offset: int | None,
        *,
        shared: SharedFrames,
        counters: Counters,
        on_ready: Callable[[Subscription], None],
        guarded: Callable[[Callable[[], object]], Callable[[], None]],
        value_bytes_max: int,
    ) -> None:
        self.topic = topic
        self.next_seq = 0
        self.attached = False
        self.is_counted = False
        self.queued = False
        self.stopped = False
        self.is_costly = False
        self._live = False  # it has everything, and waits for the next commit
        self._offset = offset
        self._partition: Partition | None = None
        self._shared = shared
        self._counters = counters
        self._value_bytes_max = value_bytes_max
        self._on_ready = guarded(lambda: on_ready(self))

    def start(self, partition: Partition) -> int:
        """Begin to read an open partition; the position after which reading begins, for ATTACHED.

        Everything that is committed after this call, and not before the position, will be delivered.
        """
        self._leave()
        self._partition = partition
        self._shared.join(partition)
        offset, end = self._offset, partition.committed_seq
        position = end if offset is None or offset > end else max(offset, partition.log_start - 1)
        if offset is not None and offset > end:  # the log may be an older copy that was put back
            log.warning("%s: a client attaches after record %d, beyond the end: it gets what comes after %d",
                partition.title, offset, end)  # fmt: skip
        self.next_seq = position + 1
        return position

    def stop(self) -> None:
        """It is over: nothing more is read, nobody is called."""
        self.stopped = True
        self._leave()
        self._on_ready = _nobody

    def _leave(self) -> None:
        partition, self._partition = self._partition, None
        if partition is not None:
            partition.forget(self._on_ready)
            self._shared.leave(partition)

    def advance(self) -> Framed | None:
        """The next frames; None: nothing now, ``on_ready`` is called when there may be.

        Raises:
            EngineError: the topic cannot be read; after a new `start` it goes on, or with the first record if the topic
                is then another one of the same name.
        """
        partition = self._partition
        if partition is None:
            return None
        seq = self.next_seq
        was_live, self._live = self._live, False
        framed = self._shared.get(partition, seq)
        if framed is None:
            try:
                read_batch = partition.read(seq, READ_BYTES, self._on_ready)
            except OutOfRange as gap:
                self._counters.skipped["expired"] += partition.gaps.count(seq, gap.first - 1).most
                framed = Framed(b"", gap.first)
            except EngineError:
                self._offset = seq - 1
                if partition.topic.deleting:  # another topic of this name begins again with number 1
                    self._offset = 0
                    self.attached = False
                self._leave()
                raise
            else:
                if read_batch is None:
                    self._live = seq > partition.committed_seq
                    return None
                framed = self._frame(partition, read_batch, seq)
                self._shared.put(partition, seq, framed)
        self._count(framed)
        if was_live and framed.count:
            self._counters.delivery_delay.observe(time.monotonic() - partition.committed_s, framed.count)
        self.next_seq = framed.next_seq
        return framed

    def _count(self, framed: Framed) -> None:
        counters = self._counters
        counters.records_delivered += framed.count
        counters.delivered_bytes += len(framed.frames)
        if framed.skipped:
            counters.skipped["too_large"] += framed.skipped
        if framed.lost:
            counters.skipped["damaged"] += framed.lost

    def _frame(self, partition: Partition, read_batch: ReadBatch, seq: int) -> Framed:
        lost = partition.gaps.most(read_batch.lost)
        if lost:
            log.warning("%s: a subscriber lost %d damaged records: %s", partition.title, lost, read_batch.lost)
        if not len(read_batch.buffer):
            return Framed(b"", read_batch.last_seq + 1, lost=lost)
        try:
            frames, next_seq, count, skipped = frame_data(
                read_batch.buffer, seq, read_batch.last_seq, self.topic, self._value_bytes_max, FRAMES_BYTES
            )
        except (BatchError, BundleError) as problem:  # it passed its checksum, so it was written like that
            lost += partition.gaps.count(max(seq, read_batch.first_seq), read_batch.last_seq).most
            log.error("%s: records %d to %d cannot be read: %s", partition.title, seq, read_batch.last_seq, problem)
            return Framed(b"", read_batch.last_seq + 1, lost=lost)
        return Framed(frames, next_seq, count, skipped, lost)


def _nobody() -> None:
    """Is called for a subscription that is over."""
