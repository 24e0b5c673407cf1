"""A stream's offsets, as they are in Spark's checkpoints: ``{topic: {partition: next number, "id": the topic's id}}``.

The id tells a topic that was deleted and made again from the one that was read. Checkpoints of before it was noted have
none; it comes with their next batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.spark.source.plan import Key

Offsets = dict[str, dict[str, int]]
ID = "id"


@dataclass(frozen=True, slots=True)
class Positions:
    """The next number of each partition; the ids of topics, as far as they are known."""

    numbers: Mapping[Key, int]
    ids: Mapping[str, int] = field(default_factory=dict)

    def is_of(self, topic: str, topic_id: int | None) -> bool:
        """Whether that id may be the topic's: it is, or one of the two is not known."""
        known = self.ids.get(topic)
        return topic_id is None or known is None or topic_id == known

    def pack(self) -> Offsets:
        """In one order, since Spark compares the JSON."""
        offsets: Offsets = {}
        for (topic, partition), number in sorted(self.numbers.items()):
            offsets.setdefault(topic, {})[str(partition)] = number
        for topic, row in offsets.items():
            if topic in self.ids:
                row[ID] = self.ids[topic]
        return offsets

    @classmethod
    def unpack(cls, offsets: Offsets) -> Positions:
        """The reverse of `pack`."""
        numbers = {
            (topic, int(index)): number
            for topic, row in offsets.items()
            for index, number in row.items()
            if index != ID
        }
        return cls(numbers, {topic: row[ID] for topic, row in offsets.items() if ID in row})
