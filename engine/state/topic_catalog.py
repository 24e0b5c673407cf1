"""The catalog of topics: held in memory, stored in ``state`` (forms: engine/state/topic_entries.py).

A topic stores only the settings that were made for it; the others follow the server's defaults.

What a change means and when. A new topic can be used at once: its entry is durable before its first record is
acknowledged, because `number()` answers only when both the topic and the number are. A changed configuration and a
deletion take effect when they are durable. Changes of one topic's entry are made one after the other, so that a
refused one (full disk) leaves memory and ``state`` equal.

Partition numbers start at 1 and are given at a partition's first record. A number is given again only after its topic
was deleted *and* `forget_tombstone()` said that nothing of it is left: segments unlinked, watermark slots cleared,
index entries dropped. Until then a tombstone holds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Literal, TypeAlias

from engine.callbacks import call_each
from engine.config import UNSET, EngineConfig, TopicConfig, field_names, unknown_setting_text
from engine.config import settings as topic_settings
from engine.errors import EngineError, InvalidConfig, LimitReached, TopicExists, UnknownPartition, UnknownTopic
from engine.state import topic_entries
from engine.state.shares import Shares
from engine.state.store import OnDone, Op, Put, StateStore
from engine.state.topic_entries import NEXT_TOPIC_ID, Stored, Topic, check_name, check_partition_count, title

__all__ = ["Catalog", "Change", "Listener", "Topic"]

log = logging.getLogger(__name__)

Change: TypeAlias = Literal["created", "configured", "deleted"]
Listener: TypeAlias = Callable[[Topic, Change], None]


class Catalog:
    """All topics. Owner thread only; `state` posts its answers to that thread."""

    def __init__(self, state: StateStore, config: EngineConfig, now_ms: Callable[[], int]) -> None:
        """Loads everything. What is damaged is left out and reported in `damaged`; it never stops the start."""
        stored = Stored(state)
        self.generation = 0
        self.damaged = stored.damaged
        self.tombstones = stored.tombstones
        self._state = state
        self._config = config
        self._now_ms = now_ms
        self._topics: dict[bytes, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._listeners: list[Listener] = []
        self._configs: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        # Topics whose entry is being written, and the changes that wait after it.
        self._writes: dict[int, list[tuple[Mapping[str, str], OnDone | None]]] = {}
        # Partition numbers (topic id, index) that are not durable yet.
        self._unsettled: set[tuple[int, int]] = set()
        self._partition_total = 0
        self._shares = Shares()
        self._dead_numbers = stored.dead_numbers
        self._orphan_numbers = stored.orphan_numbers
        self._next_id = stored.next_id
        self._next_number = stored.next_number
        self._free_numbers = stored.free_numbers
        for topic in stored.topics:
            self._enter(topic)

    # --- looking ---

    def get(self, name: bytes) -> Topic | None:
        """The topic of this name."""
        return self._topics.get(name)

    def by_id(self, topic_id: int) -> Topic | None:
        """The topic of this id."""
        return self._by_id.get(topic_id)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def partition_total(self) -> int:
        """Partitions of all topics."""
        return self._partition_total

    def listen(self, listener: Listener) -> None:
        """`listener(topic, change)` is called after a topic was made, given another configuration, or deleted."""
        self._listeners.append(listener)

    @staticmethod
    def describe(topic: Topic) -> dict[str, Any]:
        """What ``topic.json`` repeats of a topic; `adopt()` takes it back."""
        return topic_entries.describe(topic)

    # --- making ---

    def create(
        self,
        name: bytes,
        *,
        partition_count: int = 1,
        settings: Mapping[str, str | int] | None = None,
        on_durable: OnDone | None = None,
        maker: str = "",
    ) -> Topic:
        """A new topic, usable at once. `settings` become its own, also what is the server's default today.

        `maker` is who asks for it (`engine.state.shares`); without one there is no share.

        Raises:
            TopicExists: also while the topic of that name is being deleted.
            InvalidConfig: name, partition count or settings.
            LimitReached: topics_max or partitions_max of the configuration, or the maker's share of them.
        """
        check_name(name)
        check_partition_count(partition_count)
        topic = self._topics.get(name)
        if topic is not None and (topic.durable or topic.id in self._writes or topic.deleting):
            raise TopicExists(f"topic {title(name)} {'is being deleted' if topic.deleting else 'exists already'}")
        own = _merge({}, settings or {})
        if topic is not None:
            # Its making was refused (full disk), and whoever asked was told so: this is another attempt.
            self._remove(topic)
            topic.partition_count = max(partition_count, *(index + 1 for index in topic.numbers), 1)
            topic.settings = own
        else:
            self._check_room(partition_count, maker)
            topic = Topic(self._next_id, name, partition_count, own, self._now_ms())
            self._next_id += 1
            if maker:
                self._shares.take(maker, partition_count)
        self._enter(topic)
        self._write(topic, {}, on_durable)
        self._tell(topic, "created")
        return topic

    def get_or_create(self, name: bytes, maker: str = "") -> Topic:
        """The topic of this name, made with the defaults when there is none.

        Raises:
            UnknownTopic: there is none, and auto_create is off.
            InvalidConfig, LimitReached: see create().
        """
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        if not self._config.auto_create:
            raise UnknownTopic(f"no topic {title(name)}, and auto_create is off")
        return self.create(name, maker=maker)

    def get_or_create_to_read(self, name: bytes, maker: str = "") -> Topic:
        """The same for who reads it. Raises as :meth:`get_or_create`, and where only publishing makes topics."""
        if name not in self._topics:
            if self._config.auto_create and not self._config.auto_create_by_readers:
                raise UnknownTopic(f"no topic {title(name)}, and auto_create_by_readers is off")
            log.info("topic %s is made because somebody asks for it", title(name))
        return self.get_or_create(name, maker)

    def adopt(self, description: Mapping[str, Any], on_durable: OnDone | None = None) -> Topic:
        """Takes in a topic whose directory is there but whose entry is not, from its ``topic.json``.

        Raises:
            InvalidConfig: the description is not one of `describe()`, or the topic was deleted.
            TopicExists: the id, or the name, belongs to another topic.
        """
        topic = topic_entries.from_description(description)
        if topic.id in self.tombstones:
            raise InvalidConfig(f"{topic} was deleted")
        if topic.name in self._topics or topic.id in self._by_id:
            raise TopicExists(f"there is a topic of the name or id of {topic}")
        self._next_id = max(self._next_id, topic.id + 1)
        topic.numbers = self._orphan_numbers.pop(topic.id, {})
        self._enter(topic)
        self._write(topic, {}, on_durable)
        self._tell(topic, "created")
        return topic

    def keep_clear(self, topic_id: int) -> None:
        """There is a directory of this id that nobody knows: no new topic gets it."""
        self._next_id = max(self._next_id, topic_id + 1)

    def number(self, topic: Topic, index: int, on_durable: OnDone | None = None, *, wanted: int = 0) -> int:
        """The number of a partition, given at the first call. `on_durable` gets None once topic and number are durable
        (at once when they are already), else the error; another call then tries again.

        Args:
            wanted: the number that its files say; taken if nobody has it.

        Raises:
            UnknownPartition: no such partition.
            UnknownTopic: the topic is being deleted.
        """
        if not 0 <= index < topic.partition_count:
            raise UnknownPartition(f"topic {title(topic.name)} has partitions 0 to {topic.partition_count - 1}")
        number = topic.numbers.get(index)
        if number is not None and topic.durable and (topic.id, index) not in self._unsettled:
            if on_durable is not None:
                on_durable(None)
            return number
        if topic.deleting:
            raise UnknownTopic(f"topic {title(topic.name)} is being deleted")
        if number is None:
            number = topic.numbers[index] = self._new_number(wanted)
            self._unsettled.add((topic.id, index))
        self._state.submit(
            [topic_entries.put_number(topic, index, number)],
            lambda error: self._numbered(topic, index, error, on_durable),
        )
        return number

    def _numbered(self, topic: Topic, index: int, error: EngineError | None, on_durable: OnDone | None) -> None:
        if error is None:
            self._unsettled.discard((topic.id, index))
        if error is None and not topic.durable:
            # The round that held the topic's entry was refused, but not this one: the entry comes first.
            self._write(topic, {}, on_durable)
        elif on_durable is not None:
            on_durable(error)

    # --- changing ---

    def configure(self, topic: Topic, changes: Mapping[str, str], on_durable: OnDone | None = None) -> None:
        """Sets settings of a topic at run time; the text "default" takes one back. In force once durable.

        Raises:
            InvalidConfig: names the setting, the nearest known one if it is unknown, and the valid range.
            UnknownTopic: the topic is being deleted.
        """
        if topic.deleting:
            raise UnknownTopic(f"topic {title(topic.name)} is being deleted")
        _merge({}, changes)
        self._write(topic, changes, on_durable)

    def set_defaults(self, config: EngineConfig) -> None:
        """New configuration of the server: topics follow it in all settings that are not their own."""
        self._config = config
        self._configs.clear()
        for topic in self:
            before = topic.config
            topic.config = self._config_of(topic.settings)
            if topic.config != before:
                self._tell(topic, "configured")

    def delete(self, topic: Topic, on_durable: OnDone | None = None) -> None:
        """Deletes a topic; done when durable. The caller unlinks its segments, then calls `forget_tombstone()`.

        Raises:
            UnknownTopic: it is being deleted already.
        """
        if topic.deleting:
            raise UnknownTopic(f"topic {title(topic.name)} is being deleted")
        topic.deleting = True
        numbers = list(topic.numbers.values())

        def done(error: EngineError | None) -> None:
            if error is None:
                self._remove(topic)
                self.tombstones[topic.id] = topic.name
                self._dead_numbers[topic.id] = numbers
                self._tell(topic, "deleted")
            else:
                topic.deleting = False
            if on_durable is not None:
                on_durable(error)

        ops: list[Op] = [*topic_entries.put_tombstone(topic, self._now_ms())]
        if not topic.durable:  # its making was refused, and with it the note that its id is taken
            ops.append(Put(NEXT_TOPIC_ID, self._next_id))
        self._state.submit(ops, done)

    def deleted_numbers(self, topic_id: int) -> list[int]:
        """Partition numbers that the tombstone of a deleted topic holds."""
        return list(self._dead_numbers.get(topic_id, ()))

    def forget_tombstone(self, topic_id: int, on_durable: OnDone | None = None) -> None:
        """Nothing of a deleted topic is left on disk: the tombstone goes, and its partition numbers become free."""

        def done(error: EngineError | None) -> None:
            if error is None and self.tombstones.pop(topic_id, None) is not None:
                self._set_free(self._dead_numbers.pop(topic_id))
            if on_durable is not None:
                on_durable(error)

        self._state.submit([topic_entries.delete_tombstone(topic_id)], done)

    # --- inside ---

    def _set_free(self, numbers: list[int]) -> None:
        """Partition numbers may be given out again, the lowest first."""
        if len(numbers) < len(self._free_numbers) // 16:
            for number in numbers:
                heappush(self._free_numbers, number)
        else:
            self._free_numbers += numbers
            heapify(self._free_numbers)

    def _write(self, topic: Topic, changes: Mapping[str, str], on_done: OnDone | None) -> None:
        """Writes the topic's entry with changed settings, after the writes of it that are on their way."""
        waiting = self._writes.get(topic.id)
        if waiting is not None:
            waiting.append((changes, on_done))
            return
        self._writes[topic.id] = []
        self._write_now(topic, changes, on_done)

    def _write_now(self, topic: Topic, changes: Mapping[str, str], on_done: OnDone | None) -> None:
        settings = _merge(topic.settings, changes) if changes else topic.settings

        def done(error: EngineError | None) -> None:
            try:
                if error is None:
                    topic.durable = True
                if error is None and changes:
                    topic.settings = settings
                    topic.config = self._config_of(settings)
                    self._tell(topic, "configured")
                if on_done is not None:
                    on_done(error)
            finally:
                waiting = self._writes[topic.id]
                if waiting:
                    self._write_now(topic, *waiting.pop(0))
                else:
                    del self._writes[topic.id]

        if topic.deleting:
            done(UnknownTopic(f"topic {title(topic.name)} is being deleted"))
            return
        ops: list[Op] = [topic_entries.put_topic(topic, settings)]
        if not topic.durable:
            ops.append(Put(NEXT_TOPIC_ID, self._next_id))
        self._state.submit(ops, done)

    def _enter(self, topic: Topic) -> None:
        topic.config = self._config_of(topic.settings)
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._partition_total += topic.partition_count
        self.generation += 1

    def _remove(self, topic: Topic) -> None:
        del self._topics[topic.name], self._by_id[topic.id]
        self._partition_total -= topic.partition_count
        self.generation += 1

    def _tell(self, topic: Topic, change: Change) -> None:
        call_each("a change of a topic", (partial(listener, topic, change) for listener in self._listeners))

    def _check_room(self, partition_count: int, maker: str) -> None:
        topics_left = self._config.topics_max - len(self._topics)
        partitions_left = self._config.partitions_max - self._partition_total
        if topics_left <= 0:
            raise LimitReached(f"there are {len(self._topics)} topics: topics_max allows no more")
        if partition_count > partitions_left:
            raise LimitReached(f"there are {self._partition_total} partitions: partitions_max allows no more")
        if maker:
            self._shares.check(maker, partition_count, topics_left, partitions_left)

    def _config_of(self, settings: Mapping[str, str]) -> TopicConfig:
        # One object for all topics with the same settings: there may be a hundred thousand.
        key = tuple(sorted(settings.items()))
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = self._lenient_config(settings)
        return config

    def _lenient_config(self, settings: Mapping[str, str]) -> TopicConfig:
        """Stored settings were valid once; one that this version does not take falls back to the default."""
        config = self._config.topic
        for name, text in settings.items():
            try:
                config = TopicConfig.from_mapping({name: text}, config)
            except InvalidConfig as error:
                log.warning("stored setting of a topic is not valid here, the default applies: %s", error)
        return config

    def _new_number(self, wanted: int) -> int:
        if self._next_number <= wanted <= self._config.partitions_max:
            for number in range(self._next_number, wanted):
                heappush(self._free_numbers, number)
            self._next_number = wanted + 1
            return wanted
        if wanted in self._free_numbers:
            self._free_numbers.remove(wanted)
            heapify(self._free_numbers)
            return wanted
        if self._free_numbers:
            return heappop(self._free_numbers)
        self._next_number += 1
        return self._next_number - 1


def _merge(settings: Mapping[str, str], changes: Mapping[str, str | int]) -> dict[str, str]:
    """Settings after changes, in their exact text. Raises InvalidConfig."""
    fields = field_names(topic_settings(TopicConfig))
    own = {name: text for name, text in changes.items() if str(text).strip().lower() != UNSET}
    parsed = TopicConfig.from_mapping(own).to_mapping()
    merged = {**settings, **{fields[name]: parsed[fields[name]] for name in own}}
    for name in changes.keys() - own.keys():
        if name not in fields:
            raise InvalidConfig(unknown_setting_text(name, fields))
        merged.pop(fields[name], None)
    return merged
