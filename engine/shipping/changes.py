"""What has changed in a log since it was last cut, and the cut itself. Owner's thread only, but for `request`.

A cut is taken between two rounds: of each partition that a round has touched, all that is written; and exactly those
changes of the state that were answered by then. So a transaction is in it with all its records and its marker, or not
at all; and a position of a reader is never ahead of the records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.commit.committer import Committer
from engine.commit.target import PartitionCommit
from engine.context import EngineContext
from engine.errors import EngineError
from engine.partitions.context import PartitionContext
from engine.partitions.partition import Partition
from engine.partitions.table import PartitionTable
from engine.remote.catalog import PartitionKey, Topic
from engine.remote.cutting import Written
from engine.remote.piece import Change
from engine.segments.active import ActiveSegment, SealedSegment
from engine.shipping.limits import CUT_OPENED_MAX, DELTA_BYTES_MAX, DELTA_CHANGES_MAX
from engine.state import topic_catalog, topic_entries
from engine.state.store import DeleteAll, LmdbState, Packed

_CHANGE_BYTES = 8  # beside key and value


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """A partition as it was between two rounds."""

    key: PartitionKey
    sealed: tuple[SealedSegment, ...]
    active: ActiveSegment
    last: int
    """Last number in the active segment; its first - 1: none."""
    end: int
    """Bytes of the active segment's file that count."""
    log_start: int

    def written(self) -> list[Written]:
        """Its segments, the oldest first."""
        found = [Written(one.segment_id, one.first_seq, one.last_seq, one.end) for one in self.sealed]
        header = self.active.header
        return [*found, Written(header.segment_id, header.first_seq, max(self.last, header.first_seq - 1), self.end)]

    def segment_ids(self) -> frozenset[int]:
        """Of all its segments."""
        return frozenset((*(one.segment_id for one in self.sealed), self.active.header.segment_id))


@dataclass(frozen=True, slots=True)
class Cut:
    """What a log has that it did not have at the cut before."""

    partitions: tuple[PartitionCut, ...] = ()
    topics: tuple[Topic, ...] = ()
    gone: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    has_all_changes: bool = True
    """The changes are all since the cut before, or since `request_state`; else a whole copy of the state is needed."""
    records: int = 0
    """Records, and their bytes, that rounds had written since the start."""
    size_bytes: int = 0
    began_s: float = 0.0
    """When the first of it was there, by the monotonic clock."""


class Changes:
    """Gathers what changes.

    Args:
        on_bytes: told how many bytes of records wait for the next cut, after each round.

    Attributes:
        records, size_bytes: written by rounds since the start.
        waiting_since_s: when the oldest was there that is in no cut yet; None: there is nothing.
    """

    def __init__(
        self,
        context: EngineContext,
        parts: PartitionContext,
        partitions: PartitionTable,
        committer: Committer,
        state: LmdbState,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._context = context
        self._parts = parts
        self._partitions = partitions
        self._committer = committer
        self._state = state
        self._on_bytes = on_bytes
        self._touched: dict[Partition, None] = {}
        """By rounds: each of them is in the next cut, or a transaction would be torn."""
        self._opened: dict[Partition, None] = {}
        """Others, which may have what is not stored yet: some at a time."""
        self._topics: dict[int, Topic | None] = {}
        """Changed ones by id; None: deleted."""
        self._changes: list[Change] = []
        self._change_bytes = 0
        self._is_gathering_state = False
        self._cut_bytes = 0
        self.records = 0
        self.size_bytes = 0
        self.waiting_since_s: float | None = None
        context.catalog.listen(self._topic_changed)

    def begin(self) -> None:
        """Begins to watch. All topics count as changed, and all partitions in use."""
        for topic in self._context.catalog:
            self._topics[topic.id] = topic_row(topic)
        for partition in self._partitions.all():
            if partition.has_files:
                self._opened[partition] = None
        self._committer.tell_rounds(self._round)
        self._state.tap = self._state_changed
        self._parts.on_opened = self._partition_opened
        self._note_time()

    def end(self) -> None:
        """Watches no more."""
        self._committer.tell_rounds(None)
        self._state.tap = None
        self._parts.on_opened = None

    def forgotten(self, topic_ids: Iterable[int]) -> None:
        """These are stored, and were deleted before the start."""
        self._topics.update(dict.fromkeys(topic_ids))
        self._note_time()

    @property
    def has_any(self) -> bool:
        """Whether there is something for a cut (any thread: soon, if not now)."""
        return self.waiting_since_s is not None

    @property
    def has_opened(self) -> bool:
        """Whether partitions wait for a later cut (any thread)."""
        return bool(self._opened)

    def request(
        self,
        done: Callable[[Cut | Exception], None],
        *,
        look_at: Iterable[PartitionKey] = (),
        behind_state: bool = False,
    ) -> None:
        """Has a cut taken between two rounds (any thread); `done` is called on the owner's thread, in any case: a
        defect is its answer, too, since who waits for a cut would wait for ever.

        Args:
            look_at: partitions that are in it in any case.
            behind_state: the cut has every change of the state that can be read now.
        """

        def take() -> None:
            try:
                self._touch(look_at)
                answer: Cut | Exception = self.cut()
            except Exception as defect:  # noqa: BLE001 - told by the thread that waits
                answer = defect
            done(answer)

        def begin(_: EngineError | None = None) -> None:
            self._committer.after_round(take)

        self._context.call_soon_threadsafe(partial(self._state.submit, [], begin) if behind_state else begin)

    def request_state(self, done: Callable[[], None]) -> None:
        """Has changes of the state gathered from now on (any thread): those before are in what can be read of it."""

        def begin() -> None:
            self._changes, self._change_bytes = [], 0
            self._is_gathering_state = True
            done()

        self._context.call_soon_threadsafe(begin)

    def _touch(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            topic = self._context.catalog.by_id(key.topic)
            partition = self._partitions.used(topic, key.partition) if topic is not None else None
            if partition is not None:
                self._touched[partition] = None

    def cut(self) -> Cut:
        """What has changed; between two rounds only."""
        for partition in list(self._opened)[:CUT_OPENED_MAX]:
            del self._opened[partition]
            self._touched[partition] = None
        touched, self._touched = self._touched, {}
        topics, self._topics = self._topics, {}
        changes, self._changes = self._changes, []
        self._change_bytes = self._cut_bytes = 0
        began_s, self.waiting_since_s = self.waiting_since_s, None
        if self._opened:
            self._note_time()
        return Cut(
            tuple(partition_cut(partition) for partition in touched if _is_kept(partition)),
            tuple(topic for topic in topics.values() if topic is not None),
            tuple(topic_id for topic_id, topic in topics.items() if topic is None),
            tuple(changes),
            self._is_gathering_state,
            self.records,
            self.size_bytes,
            time.monotonic() if began_s is None else began_s,
        )

    # --- what is told

    def _round(self, parts: Sequence[PartitionCommit]) -> None:
        for part in parts:
            partition = part.partition
            assert isinstance(partition, Partition)
            self._touched[partition] = None
            if part.error is None:
                self.records += part.records
                self.size_bytes += part.size_bytes
                self._cut_bytes += part.size_bytes
        self._note_time()
        self._on_bytes(self._cut_bytes)

    def _partition_opened(self, topic: topic_entries.Topic, index: int) -> None:
        partition = self._partitions.used(topic, index)
        if partition is not None:
            self._opened[partition] = None
            self._note_time()

    def _topic_changed(self, topic: topic_entries.Topic, change: topic_catalog.Change) -> None:
        self._topics[topic.id] = None if change == "deleted" else topic_row(topic)
        self._note_time()

    def _state_changed(self, changes: Sequence[Packed]) -> None:
        if not changes or not self._is_gathering_state:
            return
        for change in changes:
            assert not isinstance(change, DeleteAll), "the tap sees single keys"
            key, value = change
            self._changes.append(Change(key, value))
            self._change_bytes += len(key) + len(value or b"") + _CHANGE_BYTES
        if self._change_bytes > DELTA_BYTES_MAX or len(self._changes) > DELTA_CHANGES_MAX:
            # Nobody takes them: a whole copy will be less.
            self._changes, self._change_bytes = [], 0
            self._is_gathering_state = False
        self._note_time()

    def _note_time(self) -> None:
        if self.waiting_since_s is None:
            self.waiting_since_s = time.monotonic()


def partition_cut(partition: Partition) -> PartitionCut:
    """A partition that has files, between two rounds."""
    active = partition.active_segment
    return PartitionCut(
        PartitionKey(partition.topic.id, partition.index),
        tuple(partition.sealed),
        active,
        active.last_seq,
        active.position,
        partition.log_start,
    )


def topic_row(topic: topic_entries.Topic) -> Topic:
    """A topic as a catalog in object storage has it."""
    return Topic(topic.id, topic.name, topic.partition_count, topic.created_ms, dict(topic.settings))


def _is_kept(partition: Partition) -> bool:
    return partition.has_files and partition.is_open
