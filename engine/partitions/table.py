"""The partitions that were used since the start."""

from __future__ import annotations

from engine.context import EngineContext
from engine.errors import NotStored, ReadOnly, UnknownPartition
from engine.limits import PARTITION_INDEX_BITS
from engine.partitions.context import PartitionContext
from engine.partitions.partition import Partition
from engine.state.topic_entries import Topic, title


def _key(topic: Topic, index: int) -> int:
    """One number for both: a tuple takes 100 bytes more, and a topic's partitions are found without a look at all."""
    return topic.id << PARTITION_INDEX_BITS | index


class PartitionTable:
    """Partitions by topic and index. Owner's thread only."""

    def __init__(self, context: EngineContext, parts: PartitionContext) -> None:
        self._context = context
        self._parts = parts
        self._partitions: dict[int, Partition] = {}
        """By `_key`."""

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, topic: Topic, index: int = 0) -> Partition:
        """The partition of a topic.

        Raises:
            UnknownPartition: the topic has no such one, or was deleted.
            NotStored: its files cannot be looked for now.
        """
        partition = self.used(topic, index)
        if partition is None:
            if not 0 <= index < topic.partition_count:
                raise UnknownPartition(f"topic {title(topic.name)} has partitions 0 to {topic.partition_count - 1}")
            if self._context.catalog.by_id(topic.id) is not topic:
                raise UnknownPartition(f"topic {title(topic.name)} was deleted")
            if index not in topic.numbers and not topic.deleting:
                self._parts.adoption.look_for_files(topic, index)
            partition = Partition(self._context, self._parts, topic, index)
            self._partitions[_key(topic, index)] = partition
        return partition

    def used(self, topic: Topic, index: int) -> Partition | None:
        """The partition of a topic if it was used since the start."""
        return self._partitions.get(_key(topic, index)) if 0 <= index < topic.partition_count else None

    def all(self) -> list[Partition]:
        """Those that were used since the start."""
        return list(self._partitions.values())

    def drop(self, topic: Topic) -> list[Partition]:
        """Forgets the partitions of a deleted topic, which take nothing more from now on; returns them.

        There may be 65,535: `tell_dropped` is for each of them, in slices.
        """
        error = NotStored(f"topic {title(topic.name)} was deleted")
        first, pop = _key(topic, 0), self._partitions.pop
        keys = range(first, first + topic.partition_count)
        dropped = [partition for key in keys if (partition := pop(key, None)) is not None]
        for partition in dropped:
            partition.removed(error)
        return dropped

    def tell_dropped(self, partition: Partition) -> None:
        """Tells the users of a partition that was dropped."""
        self._parts.unopened.pop(partition.title, None)
        partition.tell_removed()

    def stop_writing(self, error: ReadOnly) -> None:
        """Nothing more is stored in any topic until a restart."""
        self._context.error = error
        for partition in self.all():
            partition.stop_writing(error)
