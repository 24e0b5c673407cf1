"""A partition as commit rounds see it, and what one round does to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.callbacks import call_each
from engine.config import TopicConfig
from engine.errors import EngineError, ReadOnly
from engine.files.descriptors import Handle
from engine.segments.active import ActiveSegment, SealedSegment
from engine.segments.batches import Waiter, WriteBatch, WriteBatchGroup
from engine.segments.watermarks import Owner, Watermark
from engine.state.topic_entries import Topic


class CommitTarget(Protocol):
    """What rounds need of a partition (`engine.partitions.partition.Partition`).

    Owner's thread only, but for the properties, which do not change while a round is under way.
    """

    # --- facts

    @property
    def title(self) -> str:
        """Name for people: topic and index."""

    @property
    def topic(self) -> Topic:
        """Its topic."""

    @property
    def index(self) -> int:
        """Its index in the topic."""

    @property
    def number(self) -> int:
        """Its number in the catalog."""

    @property
    def owner(self) -> Owner:
        """Whose watermark is written."""

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration in force."""

    @property
    def error(self) -> EngineError | None:
        """Why nothing can be stored here."""

    @property
    def is_open(self) -> bool:
        """Whether numbers are known."""

    @property
    def is_deleted(self) -> bool:
        """Whether its topic was deleted."""

    @property
    def has_files(self) -> bool:
        """Whether segment files exist and are open for use."""

    @property
    def active_segment(self) -> ActiveSegment:
        """The end of the log (only once files exist)."""

    @property
    def log_start(self) -> int:
        """First sequence number that may be read."""

    @property
    def marked_log_start(self) -> int:
        """The same as the watermark says: files below it may go."""

    @property
    def sync_each_round(self) -> bool:
        """Whether an acknowledgement waits for the disk."""

    @property
    def gap_before_next(self) -> bool:
        """Whether the next record begins a new segment, as the numbers before it were not given out."""

    # --- what waits for a round

    @property
    def has_pending(self) -> bool:
        """Whether records wait for a round."""

    @property
    def first_waiter(self) -> Waiter | None:
        """Who waits for the oldest of them; None: nobody, or there are none."""

    def may_commit(self) -> bool:
        """Whether the next write batch may be written now; if not, the partition puts itself into the queue again."""

    def next_write_batch(self, bytes_left: int, *, first: bool) -> WriteBatch | None:
        """Takes the oldest pending write batch; None when it is larger than what is left of the round."""

    def append_apart(self, write_batches: list[WriteBatch], group: WriteBatchGroup) -> None:
        """Numbers the write batches of a transaction, which wait for a round of their own."""

    def is_next(self, group: WriteBatchGroup) -> bool:
        """Whether the oldest pending write batch belongs to this transaction."""

    def take_apart(self, group: WriteBatchGroup) -> list[WriteBatch]:
        """Takes the write batches of a transaction, which are the oldest ones."""

    def drop_apart(self, group: WriteBatchGroup, error: EngineError) -> None:
        """Fails the write batches of a transaction that wait here."""

    # --- outcomes

    def round_done(self, part: PartitionCommit) -> None:
        """Takes the outcome of a round: write batches become visible or fail."""

    def settle(self, write_batch: WriteBatch, state: int, error: EngineError | None) -> None:
        """Takes the outcome of one write batch."""

    def stop_writing(self, error: ReadOnly) -> None:
        """Takes no more records until a restart."""

    def marked(self, log_start: int, problem: OSError | None) -> None:
        """A watermark that says `log_start` was written, or was not (any thread, one at a time)."""


@dataclass(slots=True, eq=False)
class PartitionCommit:
    """What one round does to one partition."""

    partition: CommitTarget
    active: ActiveSegment
    write_batches: list[WriteBatch] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    """Of the write batches, as `records`."""
    sync: bool = True
    """The acknowledgement waits for the disk (durability "always")."""
    transaction_id: int = 0
    """Of one whose marker is to be written before the watermark."""
    roll: bool = False
    """Begin a new segment even if there is nothing to write."""
    sealed: SealedSegment | None = None
    """The segment that came to its end."""
    error: EngineError | None = None
    """Why nothing of it is stored."""
    owner: Owner | None = None
    """Whose watermark this is: once it is prepared."""
    mark: Watermark | None = None
    """As it will be when the write batches are committed."""
    handle: Handle | None = None
    """Of the file, in use until the round is executed."""
    is_locked: bool = False
    """The round has the segment's `sync_lock`."""
    problem: OSError | None = None
    """Why it failed; what it wrote is not taken back yet."""
    mark_problem: OSError | None = None
    """Why the watermark was not written."""

    def add(self, write_batch: WriteBatch) -> None:
        """Has the round write a further write batch."""
        self.write_batches.append(write_batch)
        self.records += write_batch.records
        self.size_bytes += write_batch.end


def stop_writing(partition: CommitTarget, error: ReadOnly) -> None:
    """Stops a partition for a defect, whatever it does then."""
    call_each("a defect in a commit round", (lambda: partition.stop_writing(error),))
