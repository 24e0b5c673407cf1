"""A topic, and how the catalog stores topics in ``state`` (keys: engine/state/store.py)::

    c/next_topic_id          the id that the next new topic gets; ids are never used again
    t/ >Q id                 [name, partition count, {setting: text}, created ms]
    p/ >QI id, partition     partition number: the slot in the watermarks file, and the prefix of index keys
    d/ >Q id                 [name, deleted ms, [partition numbers]]: tombstone, until the segments are gone

and, for a topic whose entry was lost, ``topic.json`` in its directory::

    {"id", "name" (for people), "name_base64", "partitions", "created_ms", "config": {setting: text}}
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config import TopicConfig
from engine.errors import Corrupt, InvalidConfig, named
from engine.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_ID_MAX, TOPIC_NAME_BYTES_MAX
from engine.state.store import (
    COUNTER,
    PARTITION,
    RESERVED,
    TOMBSTONE,
    TOPIC,
    Delete,
    DeleteAll,
    Op,
    Put,
    StateReader,
    StateStore,
)

NEXT_TOPIC_ID = COUNTER + b"next_topic_id"
_TOPIC_KEY = struct.Struct(">Q")
_PARTITION_KEY = struct.Struct(">QI")
# Topic ids left unused when the counter is damaged.
_ID_LEAP = 1 << 20
_DEFAULT = TopicConfig()


class Topic:
    """One topic. Attributes are for reading; the catalog changes them.

    Attributes:
        id: never used for another topic, also after deletion.
        name: up to `TOPIC_NAME_BYTES_MAX` bytes of any kind.
        partition_count: partitions 0 to partition_count - 1 exist.
        config: the configuration in force: server's defaults and own settings.
        settings: own settings as text.
        created_ms: when it was made.
        numbers: partition numbers given so far, by partition index.
        durable: its entry is on disk.
        deleting: its deletion is on its way to the disk, or done.
    """

    __slots__ = ("config", "created_ms", "deleting", "durable", "id", "name", "numbers", "partition_count", "settings")

    def __init__(
        self, topic_id: int, name: bytes, partition_count: int, settings: dict[str, str], created_ms: int
    ) -> None:
        self.id = topic_id
        self.name = name
        self.partition_count = partition_count
        self.settings = settings
        self.created_ms = created_ms
        self.config = _DEFAULT
        self.numbers: dict[int, int] = {}
        self.durable = False
        self.deleting = False

    def __repr__(self) -> str:
        return f"Topic({self.id}, {self.name!r})"


def check_name(name: bytes) -> None:
    """Raises InvalidConfig for a name that is too long; the empty one is allowed (Figg knows it)."""
    if len(name) > TOPIC_NAME_BYTES_MAX:
        raise InvalidConfig(f"a topic name of {len(name)} bytes: at most {TOPIC_NAME_BYTES_MAX} are allowed")


def check_partition_count(partition_count: int) -> None:
    """Raises InvalidConfig."""
    if not 1 <= partition_count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidConfig(f"{partition_count} partitions: expected 1 to {PARTITIONS_PER_TOPIC_MAX}")


def title(name: bytes) -> str:
    """A topic's name for messages."""
    return repr(name.decode("utf-8", "backslashreplace")[:100])


def describe(topic: Topic) -> dict[str, Any]:
    """What ``topic.json`` says of a topic."""
    return {
        "id": topic.id,
        "name": topic.name.decode("utf-8", "backslashreplace"),
        "name_base64": base64.b64encode(topic.name).decode(),
        "partitions": topic.partition_count,
        "created_ms": topic.created_ms,
        "config": dict(topic.settings),
    }


def from_description(description: Mapping[str, Any]) -> Topic:
    """The topic that `describe()` described. Raises InvalidConfig."""
    try:
        name = base64.b64decode(description["name_base64"], validate=True)
        topic_id, partition_count = int(description["id"]), int(description["partitions"])
        settings = {str(key): str(value) for key, value in description["config"].items()}
        created_ms = int(description["created_ms"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidConfig(f"not the description of a topic: {named(error)}") from error
    if not 1 <= topic_id <= TOPIC_ID_MAX:
        raise InvalidConfig(f"not the description of a topic: id {topic_id}")
    check_name(name)
    check_partition_count(partition_count)
    TopicConfig.from_mapping(settings)
    return Topic(topic_id, name, partition_count, settings, created_ms)


def put_topic(topic: Topic, settings: Mapping[str, str]) -> Put:
    """Stores a topic with these settings of its own."""
    entry = [topic.name, topic.partition_count, dict(settings), topic.created_ms]
    return Put(TOPIC + _TOPIC_KEY.pack(topic.id), entry)


def put_number(topic: Topic, index: int, number: int) -> Put:
    """Stores a partition's number."""
    return Put(PARTITION + _PARTITION_KEY.pack(topic.id, index), number)


def reserved_key(topic_id: int, index: int) -> bytes:
    """Where the number is stored up to which sequence numbers of a partition are reserved."""
    return RESERVED + _PARTITION_KEY.pack(topic_id, index)


def put_tombstone(topic: Topic, now_ms: int) -> list[Op]:
    """Replaces everything of a topic by a tombstone, in as many changes for 65,535 partitions as for one."""
    key = _TOPIC_KEY.pack(topic.id)  # with which those of its partitions begin
    return [
        Delete(TOPIC + key),
        DeleteAll(PARTITION + key),
        DeleteAll(RESERVED + key),
        Put(TOMBSTONE + key, [topic.name, now_ms, list(topic.numbers.values())]),
    ]


def delete_tombstone(topic_id: int) -> Delete:
    """Removes the tombstone of a topic."""
    return Delete(TOMBSTONE + _TOPIC_KEY.pack(topic_id))


class Stored:
    """Everything that is stored of topics, as far as it is sound.

    Attributes:
        topics: in the order of their ids, with their numbers.
        tombstones: names of deleted topics by id.
        dead_numbers: partition numbers of deleted topics by id.
        orphan_numbers: numbers by partition index of topics whose entry is missing or damaged, by id.
        next_id: the id of the next new topic.
        next_number, free_numbers: partition numbers that nobody has.
        damaged: what was left out.
    """

    def __init__(self, state: StateStore | StateReader) -> None:
        self._state = state
        self.damaged: list[Corrupt] = []
        self.topics: list[Topic] = []
        self.tombstones: dict[int, bytes] = {}
        self.dead_numbers: dict[int, list[int]] = {}
        self.orphan_numbers: dict[int, dict[int, int]] = {}
        self._load_topics()
        self._load_numbers()
        self.next_id = self._load_next_id()

    def _load_topics(self) -> None:
        ids: dict[bytes, int] = {}
        for (topic_id,), fields in self._entries(TOPIC, _TOPIC_KEY, (bytes, int, dict, int)):
            other_id = ids.setdefault(fields[0], topic_id)
            if other_id != topic_id:
                self._report(f"topics {other_id} and {topic_id} have the same name {title(fields[0])}")
                continue
            topic = Topic(topic_id, *fields)
            topic.durable = True
            self.topics.append(topic)
        for (topic_id,), (name, _deleted_ms, numbers) in self._entries(TOMBSTONE, _TOPIC_KEY, (bytes, int, list)):
            self.tombstones[topic_id] = name
            self.dead_numbers[topic_id] = numbers

    def _load_numbers(self) -> None:
        numbers_of = {topic.id: topic.numbers for topic in self.topics}
        used = {number for numbers in self.dead_numbers.values() for number in numbers}
        for (topic_id, index), (number,) in self._entries(PARTITION, _PARTITION_KEY, (int,)):
            if number in used:
                self._report(f"partition {index} of topic {topic_id} has the number {number} of another one")
                continue
            used.add(number)
            numbers = numbers_of.get(topic_id)
            if numbers is None:
                numbers = self.orphan_numbers.setdefault(topic_id, {})
            numbers[index] = number
        self.next_number = max(used, default=0) + 1
        self.free_numbers = [number for number in range(1, self.next_number) if number not in used]

    def _load_next_id(self) -> int:
        seen = max((0, *(topic.id for topic in self.topics), *self.tombstones, *self.orphan_numbers))
        try:
            stored = self._state.get(NEXT_TOPIC_ID)
        except Corrupt as error:
            self.damaged.append(error)
            stored = seen + _ID_LEAP  # topics that were deleted and forgotten are not seen any more: keep clear of them
        return max(seen + 1, stored if isinstance(stored, int) else 1)

    def _entries(
        self, prefix: bytes, key_form: struct.Struct, shape: tuple[type, ...]
    ) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
        """(parts of the key, fields of the value) of all entries of a kind whose form is right."""
        skip = len(prefix)
        key_bytes = skip + key_form.size
        unpack = key_form.unpack_from
        single = len(shape) == 1
        for key, value in self._state.scan(prefix, self.damaged.append):
            fields = [value] if single else value
            if len(key) != key_bytes or type(fields) is not list or tuple(map(type, fields)) != shape:
                self._report(f"the entry of key {key!r} has another form than it should")
            else:
                yield unpack(key, skip), fields

    def _report(self, reason: str) -> None:
        self.damaged.append(Corrupt("state", None, reason))
