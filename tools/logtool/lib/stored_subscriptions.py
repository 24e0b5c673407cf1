"""Durable subscriptions as the files of a data directory know them, read while a server runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.cursors.documents import entry_item, oldest_seq, reset_item, stored_entries
from engine.cursors.lags import Lag
from engine.cursors.stored_cursors import read_paused
from engine.directory_layout import STATE
from engine.reader import DirectoryReader, headers_of
from engine.segments.damage import Damage
from engine.state.store import StateReader
from netserver.kafka.committed import Committed, stored_offsets
from netserver.kafka.describe import group_item, next_seq
from netserver.kafka.describe import reset_item as kafka_reset_item
from tools.logtool.lib.stored import stored_topics

if TYPE_CHECKING:
    from engine.cursors.stored_cursors import Entry
    from engine.reader import PartitionReader, StoredTopic
    from engine.segments.missing_numbers import Gaps
    from engine.sessions.types import SessionInfo
    from netserver.reliably.applications import RecordsState, State
    from tools.logtool.cli import Settings


class StoredSubscriptions:
    """The subscriptions of the directory's files, as of what was last written there."""

    def __init__(self, settings: Settings) -> None:
        data_dir = self._data_dir = settings.need_directory()
        self._reader = DirectoryReader(data_dir)
        self._topics = {topic.id: topic for topic in stored_topics(self._reader)}
        self._partitions: dict[tuple[int, int], tuple[PartitionReader, Gaps]] = {}
        state = StateReader.open(data_dir / STATE)
        try:
            warn = lambda problem: settings.output.warn(f"logtool: {problem}")  # noqa: E731
            self.entries = stored_entries(state, warn)
            self._paused = read_paused(state, warn)
            self._kafka: dict[tuple[str, int], dict[int, Committed]] = {}
            for group, (topic_id, index), committed in stored_offsets(state, warn):
                if topic_id in self._topics:
                    self._kafka.setdefault((group, topic_id), {})[index] = committed
        finally:
            state.close()

    def item(self, entry: Entry) -> dict[str, Any]:
        """A subscription as the admin API tells it."""
        topic = self._topics.get(entry.topic_id)
        if topic is None:
            return entry_item(entry, None, None, paused=entry.id in self._paused)
        partition, gaps = self._opened(topic, entry.partition)
        seconds = age_s(partition, oldest_seq(entry))
        paused = entry.id in self._paused
        return entry_item(
            entry, topic.name, partition.committed_seq, gaps,
            log_start=partition.log_start, lag_seconds=seconds, paused=paused,
        )  # fmt: skip

    def reset_item(self, subscription_id: int, next_seq: int) -> dict[str, Any]:
        """What a reset to a number means, as the admin API tells it; the topic is there."""
        (entry,) = (entry for entry in self.entries if entry.id == subscription_id)
        _, gaps = self._opened(self._topics[entry.topic_id], entry.partition)
        return reset_item(entry, next_seq, gaps)

    def session_groups(self) -> Iterator[dict[str, Any]]:
        """The sessions of topics, as groups."""
        from netserver.reliably.applications import RecordsState
        from netserver.reliably.describe import session_group

        for info in stored_sessions(self._data_dir):
            if not isinstance(info.state, RecordsState):
                continue
            topic = self._topics.get(info.state.topic_id)
            waiting = None
            if topic is not None:
                partition, gaps = self._opened(topic, 0)
                first = max(info.state.offset + 1, partition.log_start)
                waiting = gaps.count(first, partition.committed_seq).most
                waiting += info.last_id - info.acknowledged_id
            yield session_group(cast("SessionInfo[RecordsState]", info), topic.name if topic else None, Lag(waiting))

    def kafka_groups(self) -> Iterator[dict[str, Any]]:
        """What groups of Kafka's consumers have committed, as groups."""
        for (name, topic_id), found in self._kafka.items():
            topic = self._topics[topic_id]
            positions = {index: (one, self._lag(topic, index, one)) for index, one in found.items()}
            yield group_item(name, topic.name.decode(), positions)

    def _lag(self, topic: StoredTopic, index: int, committed: Committed) -> Lag:
        partition, gaps = self._opened(topic, index)
        first = max(next_seq(committed), partition.log_start)
        return Lag(gaps.count(first, partition.committed_seq).most, age_s(partition, first))

    def kafka_reset_item(self, group: dict[str, Any], index: int, to_seq: int) -> dict[str, Any]:
        """What a reset of such a group to a number means, as the admin API tells it."""
        name, text = group["name"], group["topic"]
        (topic,) = (topic for topic in self._topics.values() if topic.name == text.encode())
        _, gaps = self._opened(topic, index)
        return kafka_reset_item(index, self._kafka[name, topic.id][index], to_seq, gaps)

    def _opened(self, topic: StoredTopic, index: int) -> tuple[PartitionReader, Gaps]:
        place = (topic.id, index)
        if place not in self._partitions:
            opened = self._reader.partition(topic, index)
            self._partitions[place] = opened, opened.gaps()
        return self._partitions[place]


def stored_sessions(data_dir: Path) -> list[SessionInfo[State]]:
    """The sessions of a directory's files; nobody knows from there who is connected."""
    from engine.sessions.store import Sessions
    from engine.state.store import StateStore
    from netserver.reliably.applications import ApplicationCodec

    state = StateReader.open(data_dir / STATE)
    try:
        return list(Sessions(cast(StateStore, state), ApplicationCodec()))  # only looked at, so reading is enough
    finally:
        state.close()


def age_s(partition: PartitionReader, seq: int) -> float | None:
    """How long ago the first record from a number on was appended; 0: there is none, None: damage took it."""
    for segment, found in partition.batches(max(seq, partition.log_start), partition.committed_seq + 1):
        if isinstance(found, Damage):
            return None
        for header in headers_of(found, segment.header.segment_id):
            if header.last_seq < seq:  # batches before it are found with its own
                continue
            return max(time.time() * 1000 - header.append_time_ms, 0) / 1000
    return 0.0
