"""Topics as the files of a data directory know them: state and segments, read while a server runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from engine.config import spelled_settings
from engine.directory_layout import STATE
from engine.errors import Corrupt, EngineError, UnknownTopic
from engine.reader import DirectoryReader, PartitionReader, StoredTopic
from tools.logtool.lib.output import bytes_fields, name_text
from tools.stored_topics import topics_of_state

NAMES_COMPARED = 1000
"""Of so many topics the nearest name is looked for."""


def stored_topics(reader: DirectoryReader) -> list[StoredTopic]:
    """All topics by name: those of the state; if that cannot be read, those that have files."""
    try:
        return topics_of_state(reader.data_dir / STATE, reader.damaged.append)
    except EngineError as error:
        reader.damaged.append(
            Corrupt(str(reader.data_dir / STATE), None, f"{error}; topics without records are not seen")
        )
        return reader.topics()


def find_topic(reader: DirectoryReader, name: bytes) -> StoredTopic:
    """The topic of this name. Raises UnknownTopic."""
    topics = stored_topics(reader)
    for topic in topics:
        if topic.name == name:
            return topic
    names = [name_text(topic.name) for topic in topics[:NAMES_COMPARED]]
    near = difflib.get_close_matches(name_text(name), names, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise UnknownTopic(f"no topic {name.decode('utf-8', 'backslashreplace')!r} in {reader.data_dir}{meant}")


def partitions_of(reader: DirectoryReader, topic: StoredTopic) -> Iterator[PartitionReader]:
    """The partitions of a topic that have files."""
    for index in range(topic.partition_count):
        partition = reader.partition(topic, index)
        if partition.segments:
            yield partition


def partition_item(partition: PartitionReader) -> dict[str, Any]:
    """A partition in the form of the admin API."""
    return {
        "partition": partition.index,
        "first_offset": partition.log_start,
        "next_offset": partition.committed_seq + 1,
        "size_bytes": sum(segment.size_bytes for segment in partition.segments),
    }


def topic_item(reader: DirectoryReader, topic: StoredTopic) -> dict[str, Any]:
    """A topic in the form of the admin API, but for ``config``: the server's defaults are not in the files."""
    return {
        **bytes_fields("name", topic.name),
        "id": topic.id,
        "created_ms": topic.created_ms,
        "partitions": topic.partition_count,
        "settings": spelled_settings(topic.config),
        "partition_details": [partition_item(partition) for partition in partitions_of(reader, topic)],
    }
