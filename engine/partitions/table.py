"""The partitions that were used since the start."""

from __future__ import annotations

from engine.context import EngineContext
from engine.errors import ReadOnly, UnknownPartition
from engine.partitions.context import PartitionContext
from engine.partitions.partition import Partition
from engine.state.topic_entries import Topic, title


class PartitionTable:
    """Partitions by topic and index. Owner's thread only."""

    def __init__(self, context: EngineContext, parts: PartitionContext) -> None:
        self._context = context
        self._parts = parts
        self._partitions: dict[tuple[int, int], Partition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, topic: Topic, index: int = 0) -> Partition:
        """The partition of a topic.

        Raises:
            UnknownPartition: the topic has no such one, or was deleted.
            NotStored: its files cannot be looked for now.
        """
        partition = self._partitions.get((topic.id, index))
        if partition is None:
            if not 0 <= index < topic.partition_count:
                raise UnknownPartition(f"topic {title(topic.name)} has partitions 0 to {topic.partition_count - 1}")
            if self._context.catalog.by_id(topic.id) is not topic:
                raise UnknownPartition(f"topic {title(topic.name)} was deleted")
            if index not in topic.numbers and not topic.deleting:
                self._parts.adoption.look_for_files(topic, index)
            partition = Partition(self._context, self._parts, topic, index)
            self._partitions[topic.id, index] = partition
        return partition

    def used(self, topic: Topic, index: int) -> Partition | None:
        """The partition of a topic if it was used since the start."""
        return self._partitions.get((topic.id, index))

    def all(self) -> list[Partition]:
        """Those that were used since the start."""
        return list(self._partitions.values())

    def drop(self, topic: Topic) -> list[Partition]:
        """Forgets the partitions of a deleted topic, and tells their users; returns them."""
        keys = [key for key in self._partitions if key[0] == topic.id]
        dropped = [self._partitions.pop(key) for key in keys]
        for partition in dropped:
            self._parts.unopened.pop(partition.title, None)
            partition.removed()
        return dropped

    def stop_writing(self, error: ReadOnly) -> None:
        """Nothing more is stored in any topic until a restart."""
        self._context.error = error
        for partition in self.all():
            partition.stop_writing(error)
