"""Cuts that are not stored yet, as one: what a later one says of a partition counts instead of an earlier one's."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.remote.catalog import PartitionKey, Topic
from engine.remote.piece import Change
from engine.shipping.changes import Cut, PartitionCut


@dataclass(slots=True)
class Pending:
    """See the module's docstring."""

    partitions: dict[PartitionKey, PartitionCut] = field(default_factory=dict)
    topics: dict[int, Topic] = field(default_factory=dict)
    gone: dict[int, None] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    began_s: float | None = None

    def __bool__(self) -> bool:
        return bool(self.partitions or self.topics or self.gone or self.changes)

    def take(self, cut: Cut) -> None:
        """Takes a later cut in."""
        self.partitions.update((one.key, one) for one in cut.partitions)
        self.topics.update((topic.id, topic) for topic in cut.topics)
        self.gone.update(dict.fromkeys(cut.gone))
        self.changes += cut.changes
        self.records, self.size_bytes = cut.records, cut.size_bytes
        if self and self.began_s is None:
            self.began_s = cut.began_s
        for topic_id in cut.gone:
            self.topics.pop(topic_id, None)
            for key in [key for key in self.partitions if key.topic == topic_id]:
                del self.partitions[key]
