"""Durable subscriptions as the files of a data directory know them, read beside a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.cursors.documents import entry_item, oldest_seq, stored_entries
from engine.reader import DirectoryReader, headers_of
from engine.segments.scan import Damage
from engine.state.clock import wall_ms
from engine.state.store import StateReader
from tools.logtool.lib.stored import stored_topics
from tools.stored_topics import STATE

if TYPE_CHECKING:
    from engine.cursors.entries import Entry
    from engine.reader import PartitionReader
    from engine.segments.gaps import Gaps
    from tools.logtool.cli import Settings


class StoredSubscriptions:
    """The subscriptions of the directory's files, as of what was last written there."""

    def __init__(self, settings: Settings) -> None:
        data_dir = settings.need_directory()
        self._reader = DirectoryReader(data_dir)
        self._topics = {topic.id: topic for topic in stored_topics(self._reader)}
        self._partitions: dict[tuple[int, int], tuple[PartitionReader, Gaps]] = {}
        state = StateReader.open(data_dir / STATE)
        try:
            self.entries = stored_entries(state, lambda problem: settings.output.warn(f"logtool: {problem}"))
        finally:
            state.close()

    def item(self, entry: Entry) -> dict[str, Any]:
        """A subscription as the admin API tells it."""
        topic = self._topics.get(entry.topic_id)
        if topic is None:
            return entry_item(entry, None, None)
        place = (entry.topic_id, entry.partition)
        if place not in self._partitions:
            opened = self._reader.partition(topic, entry.partition)
            self._partitions[place] = opened, opened.gaps()
        partition, gaps = self._partitions[place]
        seconds = _age_s(partition, oldest_seq(entry))
        return entry_item(entry, topic.name, partition.committed_seq, gaps, lag_seconds=seconds)


def _age_s(partition: PartitionReader, seq: int) -> float | None:
    """How long ago the first record from a number on was appended; 0: there is none, None: damage took it."""
    for segment, found in partition.batches(max(seq, partition.log_start), partition.committed_seq + 1):
        if isinstance(found, Damage):
            return None
        for header in headers_of(found, segment.header.segment_id):
            return max(wall_ms() - header.append_time_ms, 0) / 1000
    return 0.0
