"""Topics as a data directory's state knows them, also those without a record; read while a server runs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from engine.errors import Corrupt
from engine.reader import StoredTopic
from engine.state.store import TOPIC, StateReader

_TOPIC_KEY = struct.Struct(">Q")


def topics_of_state(path: Path, on_corrupt: Callable[[Corrupt], None]) -> list[StoredTopic]:
    """All topics by name, as a state has them. Raises EngineError: it cannot be read."""
    topics: list[StoredTopic] = []
    state = StateReader.open(path)
    try:
        for key, value in state.scan(TOPIC, on_corrupt):
            name, partition_count, settings, created_ms = value
            (topic_id,) = _TOPIC_KEY.unpack_from(key, len(TOPIC))
            topics.append(StoredTopic(topic_id, name, partition_count, created_ms, settings))
    finally:
        state.close()
    return sorted(topics, key=lambda topic: topic.name)
