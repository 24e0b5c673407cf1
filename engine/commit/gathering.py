"""Gathering: which write batches the next commit round takes.

The oldest pending ones, by turns over partitions, up to a size and a number of files. While one round is executed the
next one gathers: the sync is the batching window, there is no timer.
"""

from __future__ import annotations

from collections import deque

from engine.commit.round_steps import Round, RoundSteps
from engine.commit.target import CommitTarget, PartitionCommit, stop_writing
from engine.context import EngineContext
from engine.limits import SHARED_ROUND_BYTES, SHARED_ROUNDS
from engine.segments.batches import WriteBatch


class Gathering:
    """The queue of partitions with pending write batches. Owner's thread only."""

    def __init__(self, context: EngineContext, steps: RoundSteps) -> None:
        self._context = context
        self._steps = steps
        self._dirty: deque[CommitTarget] = deque()
        self._queued: set[CommitTarget] = set()
        """Those in `_dirty`."""
        self._roll_wanted: set[CommitTarget] = set()
        """Those that get a new segment with their next round."""
        self._shared_rounds = 0

    def __bool__(self) -> bool:
        return bool(self._dirty)

    def add(self, partition: CommitTarget) -> None:
        """Puts a partition in the queue, unless it is there."""
        if partition not in self._queued:
            self._queued.add(partition)
            self._dirty.append(partition)

    def roll_next(self, partition: CommitTarget) -> None:
        """Has the next round of a partition begin a new segment."""
        self._roll_wanted.add(partition)

    def take(self) -> Round | None:
        """The next round; None: there is nothing to commit."""
        parts: dict[CommitTarget, PartitionCommit] = {}
        round_bytes = self._round_bytes()
        bytes_left = round_bytes
        while self._dirty and len(parts) < self._context.config.round_files_max:
            partition = self._dirty[0]
            may_commit, write_batch = self._next_of(partition, bytes_left, first=not parts)
            if not may_commit:
                self._dirty.popleft()
                self._queued.discard(partition)
                if partition.error is not None:
                    self._roll_wanted.discard(partition)
                continue
            if write_batch is None and partition.has_pending:
                break
            self._dirty.popleft()
            part = parts.get(partition)
            if part is None:
                part = parts[partition] = PartitionCommit(
                    partition, partition.active_segment, sync=partition.sync_each_round
                )
            if partition in self._roll_wanted:
                self._roll_wanted.discard(partition)
                part.roll = True
            if write_batch is not None:
                part.roll = part.roll or partition.gap_before_next
                part.add(write_batch)
                bytes_left -= write_batch.end
            if partition.has_pending:
                self._dirty.append(partition)
            else:
                self._queued.discard(partition)
        if not parts:
            return None
        self._shared_rounds = SHARED_ROUNDS if len(parts) > 1 else max(self._shared_rounds - 1, 0)
        return Round(list(parts.values()), round_bytes - bytes_left)

    def _next_of(self, partition: CommitTarget, bytes_left: int, *, first: bool) -> tuple[bool, WriteBatch | None]:
        """Whether a partition may be in the round, and with what; a defect in one is not in the way of the others."""
        try:
            if partition.error is None and partition.may_commit():
                return True, partition.next_write_batch(bytes_left, first=first)
        except Exception as problem:  # noqa: BLE001 - see above
            stop_writing(partition, self._steps.defect(problem))
        return False, None

    def _round_bytes(self) -> int:
        """Bytes that the next round takes: fewer while several partitions are in use, since each waits for all."""
        limit = self._context.config.round_bytes_max
        return min(limit, SHARED_ROUND_BYTES) if self._shared_rounds else limit
