"""Durable subscriptions as the files of a data directory know them, read beside a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.cursors.documents import entry_item, stored_entries
from engine.reader import DirectoryReader
from engine.state.store import StateReader
from tools.logtool.lib.stored import stored_topics
from tools.stored_topics import STATE

if TYPE_CHECKING:
    from engine.cursors.entries import Entry
    from engine.segments.gaps import Gaps
    from tools.logtool.cli import Settings


class StoredSubscriptions:
    """The subscriptions of the directory's files, as of what was last written there."""

    def __init__(self, settings: Settings) -> None:
        data_dir = settings.need_directory()
        self._reader = DirectoryReader(data_dir)
        self._topics = {topic.id: topic for topic in stored_topics(self._reader)}
        self._ends: dict[tuple[int, int], tuple[int, Gaps]] = {}
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
        if place not in self._ends:
            partition = self._reader.partition(topic, entry.partition)
            self._ends[place] = partition.committed_seq, partition.gaps()
        return entry_item(entry, topic.name, *self._ends[place])
