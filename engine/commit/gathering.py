"""Gathering: which write batches the next commit round takes.

The oldest pending ones, by turns over those who wait for them and over their partitions, up to a size and a number of
files. So whoever waits for one partition is in the next round, however many another one has written to. While one round
is executed the next one gathers: the sync is the batching window, there is no timer.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from engine.commit.round_steps import Round, RoundSteps
from engine.commit.target import CommitTarget, PartitionCommit, stop_writing
from engine.context import EngineContext
from engine.limits import ROUND_NUMBERED_BYTES, SHARED_ROUND_BYTES, SHARED_ROUNDS
from engine.segments.batches import Waiter, WriteBatch


class Gathering:
    """The queue of partitions with pending write batches. Owner's thread only."""

    def __init__(self, context: EngineContext, steps: RoundSteps) -> None:
        self._context = context
        self._steps = steps
        self._lines: OrderedDict[Waiter | None, deque[CommitTarget]] = OrderedDict()
        """For each of those who wait, in the order of their turns, the partitions whose oldest records are theirs."""
        self._queued: set[CommitTarget] = set()
        """Those that stand in a line."""
        self._roll_wanted: set[CommitTarget] = set()
        """Those that get a new segment with their next round."""
        self._shared_rounds = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, partition: CommitTarget) -> None:
        """Puts a partition into a line, unless it stands in one."""
        if partition not in self._queued:
            self._queued.add(partition)
            self._enter(partition)

    def _enter(self, partition: CommitTarget) -> None:
        waiter = partition.first_waiter
        line = self._lines.get(waiter)
        if line is None:
            line = self._lines[waiter] = deque()
        line.append(partition)

    def _leave(self, waiter: Waiter | None) -> None:
        """The first partition of a line has had its turn."""
        line = self._lines[waiter]
        line.popleft()
        if not line:
            del self._lines[waiter]

    def roll_next(self, partition: CommitTarget) -> None:
        """Has the next round of a partition begin a new segment."""
        self._roll_wanted.add(partition)

    def take(self) -> Round | None:
        """The next round; None: there is nothing to commit."""
        parts: dict[CommitTarget, PartitionCommit] = {}
        bytes_left = self._round_bytes()
        while self._lines and len(parts) < self._context.config.round_files_max:
            waiter, line = next(iter(self._lines.items()))
            partition = line[0]
            may_commit, write_batch = self._next_of(partition, bytes_left, first=not parts)
            if not may_commit:
                self._leave(waiter)
                self._queued.discard(partition)
                if partition.error is not None:
                    self._roll_wanted.discard(partition)
                continue
            if write_batch is None and partition.has_pending:
                break
            self._lines.move_to_end(waiter)
            self._leave(waiter)
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
            while write_batch is not None:
                part.add(write_batch)
                bytes_left -= write_batch.end + ROUND_NUMBERED_BYTES * len(write_batch.produced)
                write_batch = self._next_of(partition, 0, first=True)[1] if write_batch.is_continued else None
            if partition.has_pending:
                self._enter(partition)
            else:
                self._queued.discard(partition)
        if not parts:
            return None
        self._shared_rounds = SHARED_ROUNDS if len(parts) > 1 else max(self._shared_rounds - 1, 0)
        return Round(list(parts.values()), sum(part.size_bytes for part in parts.values()))

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
