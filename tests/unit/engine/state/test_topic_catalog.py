"""The catalog over a real state store: topics, numbers, configuration, deletion, refusals, damage, restarts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from engine.config import EngineConfig, TopicConfig
from engine.errors import (
    DiskFull,
    EngineError,
    InvalidConfig,
    LimitReached,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from engine.state.store import Delete, Put, pack_value
from engine.state.topic_catalog import Catalog, Change
from engine.state.topic_entries import NEXT_TOPIC_ID, Topic
from tests.cpu import cpu_seconds
from tests.lmdb_state import Owner, data_file_replaced, opened, writing_held_up

NOW_MS = 1_795_000_000_000


class Opened(Owner):
    """An owner with a catalog and the answers that came."""

    catalog: Catalog

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[EngineError | None] = []
        self.changes: list[tuple[bytes, Change]] = []

    def answered(self) -> list[str]:
        """Names of the errors (or "ok") of all changes asked for since the last call, which are waited for."""
        self.run()
        names = ["ok" if answer is None else type(answer).__name__ for answer in self.answers]
        self.answers.clear()
        return names

    def answer(self, error: EngineError | None) -> None:
        self.answers.append(error)


@contextmanager
def catalog(path: Path, **settings: Any) -> Iterator[Opened]:
    with opened(path / "state") as plain:
        owner = Opened()
        owner.posted, owner.call_soon_threadsafe, owner.store = plain.posted, plain.call_soon_threadsafe, plain.store
        owner.catalog = Catalog(owner.store, EngineConfig(**settings), lambda: NOW_MS)
        owner.catalog.listen(lambda topic, change: owner.changes.append((topic.name, change)))
        yield owner


@contextmanager
def disk_full(path: Path) -> Iterator[None]:
    with data_file_replaced(path / "state", "/dev/full", os.O_RDWR):
        yield


def shape(found: Catalog) -> list[tuple[object, ...]]:
    """Everything that a restart must give back."""
    return [
        (topic.id, topic.name, topic.partition_count, topic.settings, topic.config, topic.created_ms, topic.numbers)
        for topic in found
    ]


def raw(path: Path, **puts: object) -> None:
    """Writes stored bytes past the store: key (hexadecimal) = value; None deletes."""
    with lmdb.open(str(path / "state"), lib_version=0) as environment, environment.begin(write=True) as transaction:
        for key, value in puts.items():
            transaction.put(bytes.fromhex(key[1:]), value)


def test_a_new_topic_is_usable_at_once_and_there_after_a_restart(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        assert owner.catalog.get(b"a") is None
        topic = owner.catalog.create(b"a", partition_count=3, on_durable=owner.answer)
        assert [topic.id, topic.name, topic.partition_count, topic.created_ms] == [1, b"a", 3, NOW_MS]
        assert owner.catalog.get(b"a") is topic
        assert owner.catalog.by_id(1) is topic
        assert [len(owner.catalog), list(owner.catalog), owner.catalog.generation] == [1, [topic], 1]
        assert repr(topic) == "Topic(1, b'a')"
        assert owner.answers == []
        assert owner.answered() == ["ok"]
        assert topic.durable
        own = TopicConfig(durability="never", retention_ms=60_000)
        other = owner.catalog.create(
            bytes(range(256)) * 4, settings={"durability": "never", "retention_ms": "60 s"}, on_durable=owner.answer
        )
        assert [other.id, other.config, other.settings] == [2, own, {"durability": "never", "retention_ms": "1min"}]
        assert owner.catalog.generation == 2
        assert owner.changes == [(b"a", "created"), (other.name, "created")]
        assert owner.answered() == ["ok"]
        before = shape(owner.catalog)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before
        assert owner.catalog.damaged == []
        assert owner.catalog.create(b"c").id == 3


def test_what_cannot_be_made(tmp_path: Path) -> None:
    with catalog(tmp_path, topics_max=3, partitions_max=10) as owner:
        owner.catalog.create(b"a", partition_count=8)
        for name, count, kind, message in (
            (b"a", 1, TopicExists, "exists already"), (b"x" * 65_536, 1, InvalidConfig, "at most 65535"),
            (b"b", 0, InvalidConfig, "expected 1 to 65535"), (b"b", 65536, InvalidConfig, "expected 1 to 65535"),
            (b"b", 3, LimitReached, "partitions_max"),
        ):  # fmt: skip
            with pytest.raises(kind, match=message):
                owner.catalog.create(name, partition_count=count)
        owner.catalog.create(b"")
        owner.catalog.create(b"x" * 65_535)
        with pytest.raises(LimitReached, match="topics_max"):
            owner.catalog.create(b"d")
        owner.run()
        # A topic that is gone makes room again.
        owner.catalog.delete(owner.catalog.get(b"a"))
        owner.run()
        owner.catalog.create(b"d", partition_count=8)


def test_made_on_first_use_unless_switched_off(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        topic = owner.catalog.get_or_create(b"a")
        assert owner.catalog.get_or_create(b"a") is topic
    with catalog(tmp_path, auto_create=False) as owner:
        assert owner.catalog.get_or_create(b"a").id == topic.id
        with pytest.raises(UnknownTopic, match="auto_create is off"):
            owner.catalog.get_or_create(b"b")


def test_numbers_are_given_at_first_use_and_kept(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        a, b = owner.catalog.create(b"a", partition_count=3), owner.catalog.create(b"b")
        numbers = [owner.catalog.number(topic, index, owner.answer) for topic, index in ((a, 2), (b, 0), (a, 0))]
        assert numbers == [1, 2, 3]
        assert owner.answers == []
        assert owner.catalog.number(a, 2) == 1
        assert owner.answered() == ["ok"] * 3
        owner.catalog.number(a, 0, owner.answer)
        assert owner.answers == [None]
        for index in (-1, 3):
            with pytest.raises(UnknownPartition, match="partitions 0 to 2"):
                owner.catalog.number(a, index)
        before = shape(owner.catalog)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before
        a = owner.catalog.get(b"a")
        assert [owner.catalog.number(a, index) for index in (0, 1, 2)] == [3, 4, 1]


def test_number_answers_only_when_its_topic_is_durable_too(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        with disk_full(tmp_path):
            topic = owner.catalog.create(b"a", on_durable=owner.answer)
            number = owner.catalog.number(topic, 0, owner.answer)
            assert owner.answered() == ["DiskFull", "DiskFull"]
        assert not topic.durable
        assert owner.catalog.number(topic, 0, owner.answer) == number
        assert owner.answered() == ["ok"]
        assert topic.durable
        before = shape(owner.catalog)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before
        assert owner.catalog.create(b"b").id == 2


def test_a_refused_number_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        topic = owner.catalog.create(b"a")
        owner.run()
        with disk_full(tmp_path):
            assert owner.catalog.number(topic, 0, owner.answer) == 1
            assert owner.answered() == ["DiskFull"]
        assert owner.catalog.number(topic, 0, owner.answer) == 1
        assert owner.answers == []
        assert owner.answered() == ["ok"]


def test_making_a_refused_topic_again(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        with disk_full(tmp_path):
            topic = owner.catalog.create(b"a", on_durable=owner.answer)
            with pytest.raises(TopicExists):
                owner.catalog.create(b"a")
            assert owner.answered() == ["DiskFull"]
        # Whoever attached to it meanwhile still has the same object.
        again = owner.catalog.create(b"a", partition_count=2, settings={"durability": "never"}, on_durable=owner.answer)
        assert again is topic
        assert [topic.partition_count, topic.config.durability, len(owner.catalog)] == [2, "never", 1]
        assert owner.answered() == ["ok"]
        with pytest.raises(TopicExists):
            owner.catalog.create(b"a")
        before = shape(owner.catalog)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before


def test_what_was_given_is_kept_whatever_the_defaults_are(tmp_path: Path) -> None:
    """0 is the built-in default of retention, and a server's default may be another one, today or later."""
    given = {"retention_ms": "0", "durability": "always", "segment_bytes": "default"}
    with catalog(tmp_path) as owner:
        topic = owner.catalog.create(b"audit", settings=given, on_durable=owner.answer)
        assert owner.answered() == ["ok"]
        assert topic.settings == {"retention_ms": "0", "durability": "always"}
    with catalog(tmp_path, topic=TopicConfig(retention_ms=3_600_000, durability="never")) as owner:
        (topic,) = owner.catalog
        assert (topic.config.retention_ms, topic.config.durability) == (0, "always")
        with pytest.raises(InvalidConfig, match="did you mean retention"):
            owner.catalog.create(b"b", settings={"retentio": "1d"})
        topic = owner.catalog.create(b"b", settings={"retention": "1d"})
        assert topic.settings == {"retention_ms": "1d"}, "stored by the name that older versions know"
        owner.answered()
        owner.catalog.configure(topic, {"retention": "default"}, owner.answer)
        assert owner.answered() == ["ok"]
        assert topic.settings == {}


def test_a_refused_topic_is_gone_after_a_restart(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner, disk_full(tmp_path):
        owner.catalog.create(b"a", on_durable=owner.answer)
        assert owner.answered() == ["DiskFull"]
    with catalog(tmp_path) as owner:
        assert list(owner.catalog) == []


def test_configuration_changes_when_durable(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        topic = owner.catalog.create(b"a", settings={"retention_ms": 1000})
        owner.catalog.configure(topic, {"durability": "never", "segment_bytes": "1 MiB"}, owner.answer)
        owner.catalog.configure(topic, {"retention_ms": "default", "segment_bytes": "2m"}, owner.answer)
        assert topic.config == TopicConfig(retention_ms=1000)
        assert owner.answered() == ["ok", "ok"]
        assert topic.config == TopicConfig(durability="never", segment_bytes=2 << 20)
        assert topic.settings == {"durability": "never", "segment_bytes": "2MiB"}
        assert owner.changes == [(b"a", "created"), (b"a", "configured"), (b"a", "configured")]
        for changes, message in (
            ({"segment_byte": "1m"}, "did you mean segment_bytes"), ({"segment_bytes": "1"}, "64KiB to 16GiB"),
            ({"segment_byte": "default"}, "did you mean segment_bytes"),
        ):  # fmt: skip
            with pytest.raises(InvalidConfig, match=message):
                owner.catalog.configure(topic, changes)
        before = shape(owner.catalog)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before


def test_a_refused_change_leaves_memory_and_state_equal(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        topic = owner.catalog.create(b"a")
        owner.run()
        with disk_full(tmp_path):
            owner.catalog.configure(topic, {"durability": "never"}, owner.answer)
            assert owner.answered() == ["DiskFull"]
        assert [topic.config, topic.settings] == [TopicConfig(), {}]
        owner.catalog.configure(topic, {"retention_records": "5"}, owner.answer)
        assert owner.answered() == ["ok"]
        before = shape(owner.catalog)
        assert topic.config == TopicConfig(retention_records=5)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before


def test_topics_follow_new_defaults_in_what_is_not_their_own(tmp_path: Path) -> None:
    with catalog(tmp_path, topic=TopicConfig(retention_ms=1000)) as owner:
        follows = owner.catalog.create(b"a")
        own = owner.catalog.create(b"b", settings={"retention_ms": 2000})
        owner.run()
        owner.changes.clear()
        defaults = TopicConfig(retention_ms=3000, durability="interval")
        owner.catalog.set_defaults(EngineConfig(topic=defaults, auto_create=False))
        assert follows.config == defaults
        assert own.config == TopicConfig(retention_ms=2000, durability="interval")
        assert owner.changes == [(b"a", "configured"), (b"b", "configured")]
        owner.catalog.set_defaults(EngineConfig(topic=defaults))
        assert len(owner.changes) == 2
    with catalog(tmp_path) as owner:
        assert owner.catalog.get(b"a").config == TopicConfig()
        assert owner.catalog.get(b"b").config == TopicConfig(retention_ms=2000)


def test_a_deleted_topic_leaves_a_tombstone_until_it_is_forgotten(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        old = owner.catalog.create(b"a", partition_count=2)
        assert [owner.catalog.number(old, 1), owner.catalog.number(owner.catalog.create(b"z"), 0)] == [1, 2]
        owner.run()
        owner.store.submit([Put(b"r/" + bytes([0] * 7 + [1] + [0] * 3 + [1]), 7)])
        generation = owner.catalog.generation
        owner.catalog.delete(old, owner.answer)
        assert old.deleting
        assert owner.catalog.get(b"a") is old
        for refused in (
            lambda: owner.catalog.delete(old), lambda: owner.catalog.configure(old, {}),
            lambda: owner.catalog.number(old, 0),
        ):  # fmt: skip
            with pytest.raises(UnknownTopic, match="is being deleted"):
                refused()
        assert owner.catalog.number(old, 1) == 1  # it has one
        with pytest.raises(TopicExists, match="is being deleted"):
            owner.catalog.create(b"a")
        assert owner.answered() == ["ok"]
        assert owner.catalog.get(b"a") is None
        assert owner.catalog.by_id(1) is None
        assert [owner.catalog.tombstones, owner.catalog.deleted_numbers(1)] == [{1: b"a"}, [1]]
        assert owner.catalog.generation == generation + 1
        assert owner.changes[-1] == (b"a", "deleted")
        assert list(owner.store.scan(b"r/")) == []
        new = owner.catalog.create(b"a")
        assert [new.id, owner.catalog.number(new, 0)] == [3, 3]
        owner.run()
        before = shape(owner.catalog)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before
        assert owner.catalog.tombstones == {1: b"a"}
        assert owner.catalog.number(owner.catalog.create(b"b"), 0) == 4
        owner.catalog.forget_tombstone(1, owner.answer)
        assert owner.answered() == ["ok"]
        assert [owner.catalog.tombstones, owner.catalog.deleted_numbers(1)] == [{}, []]
        owner.catalog.forget_tombstone(1, owner.answer)
        assert owner.answered() == ["ok"]
        assert [owner.catalog.number(owner.catalog.create(name), 0) for name in (b"c", b"d")] == [1, 5]
        owner.run()
    with catalog(tmp_path) as owner:
        assert owner.catalog.tombstones == {}
        assert owner.catalog.create(b"e").id == 7


def test_ids_are_not_used_again_even_if_the_last_topic_is_gone(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        for _ in range(3):
            owner.catalog.delete(owner.catalog.create(b"a"))
            owner.run()
        for topic_id in (1, 2, 3):
            owner.catalog.forget_tombstone(topic_id)
        owner.run()
        assert owner.catalog.tombstones == {}
    with catalog(tmp_path) as owner:
        assert owner.catalog.create(b"a").id == 4


def test_a_refused_deletion_leaves_the_topic(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        topic, gone = owner.catalog.create(b"a"), owner.catalog.create(b"b")
        owner.run()
        owner.catalog.delete(gone)
        owner.run()
        with disk_full(tmp_path):
            owner.catalog.delete(topic, owner.answer)
            owner.catalog.forget_tombstone(gone.id, owner.answer)
            assert owner.answered() == ["DiskFull", "DiskFull"]
        assert [topic.deleting, list(owner.catalog.tombstones)] == [False, [gone.id]]
        assert owner.catalog.get(b"a") is topic
        owner.catalog.configure(topic, {"durability": "never"}, owner.answer)
        owner.catalog.delete(topic, owner.answer)
        assert owner.answered() == ["ok", "ok"]
        assert owner.catalog.get(b"a") is None


def test_changes_behind_a_deletion_cannot_bring_a_topic_back(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        with writing_held_up(owner):
            topic = owner.catalog.create(b"a", on_durable=owner.answer)
            owner.catalog.configure(topic, {"durability": "never"}, owner.answer)
            owner.catalog.configure(topic, {"durability": "interval"}, owner.answer)
            owner.catalog.delete(topic, owner.answer)
        assert owner.answered() == ["ok", "UnknownTopic", "UnknownTopic", "ok"]
        assert list(owner.catalog) == []
    with catalog(tmp_path) as owner:
        assert list(owner.catalog) == []
        assert owner.catalog.damaged == []


def test_a_topic_refused_while_its_number_was_not(tmp_path: Path) -> None:
    # The topic's round fails, then there is room, and the number's round succeeds: the entry must follow.
    with catalog(tmp_path) as owner:
        with disk_full(tmp_path):
            topic = owner.catalog.create(b"a", on_durable=owner.answer)
            call = owner.posted.get(timeout=30)
        owner.catalog.number(topic, 0, owner.answer)
        answer = owner.posted.get(timeout=30)
        call()
        answer()
        assert [type(error) for error in owner.answers] == [DiskFull]
        owner.answers.clear()
        assert not topic.durable
        assert owner.answered() == ["ok"]
        assert topic.durable
        before = shape(owner.catalog)
    with catalog(tmp_path) as owner:
        assert shape(owner.catalog) == before


def test_the_id_of_a_topic_refused_and_then_deleted_is_not_given_again(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        with disk_full(tmp_path):
            topic = owner.catalog.create(b"a", on_durable=owner.answer)
            assert owner.answered() == ["DiskFull"]
        owner.catalog.delete(topic, owner.answer)
        assert owner.answered() == ["ok"]
        owner.catalog.forget_tombstone(topic.id, owner.answer)
        assert owner.answered() == ["ok"]
    with catalog(tmp_path) as owner:
        assert owner.catalog.create(b"b").id > topic.id


def test_a_callback_or_listener_that_raises_holds_nothing_up(tmp_path: Path) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("in a callback")

    with catalog(tmp_path) as owner:
        topic = owner.catalog.create(b"a", on_durable=fails)
        owner.catalog.configure(topic, {"durability": "never"}, owner.answer)
        with pytest.raises(RuntimeError):
            owner.run()
        assert owner.answered() == ["ok"]
        told: list[Change] = []
        owner.catalog.listen(fails)
        owner.catalog.listen(lambda _, change: told.append(change))
        owner.catalog.configure(topic, {"durability": "interval"}, owner.answer)
        assert owner.answered() == ["ok"]
        assert topic.config.durability == "interval"
        assert told == ["configured"]
        assert owner.catalog.create(b"b").name == b"b"


def test_described_and_adopted(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        for name in (b"plain", b"\xff\x00", b""):
            owner.catalog.create(name, partition_count=3, settings={"retention_bytes": 5 << 20})
        described = [Catalog.describe(topic) for topic in owner.catalog]
        before = shape(owner.catalog)
        assert described[1] == {
            "id": 2, "name": "\\xff\x00", "name_base64": "/wA=", "partitions": 3, "created_ms": NOW_MS,
            "config": {"retention_bytes": "5MiB"},
        }  # fmt: skip
    (tmp_path / "new").mkdir()
    with catalog(tmp_path / "new") as owner:
        for description in reversed(described):
            owner.catalog.adopt(description, owner.answer)
        assert owner.answered() == ["ok"] * 3
        assert owner.catalog.create(b"next").id == 4
        owner.run()
    with catalog(tmp_path / "new") as owner:
        assert shape(owner.catalog)[:3] == before


def test_what_is_not_adopted(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        topic = owner.catalog.create(b"a")
        description = Catalog.describe(topic)
        with pytest.raises(TopicExists):
            owner.catalog.adopt(description)
        with pytest.raises(TopicExists):
            owner.catalog.adopt(description | {"id": 9})
        owner.catalog.delete(topic)
        owner.run()
        with pytest.raises(InvalidConfig, match="was deleted"):
            owner.catalog.adopt(description)
        good = description | {"id": 9, "name_base64": "Yg=="}
        for wrong in (
            {"id": 0}, {"id": 1 << 63}, {"id": "x"}, {"name_base64": "?"}, {"name_base64": "YQ" * 50_000},
            {"partitions": 0}, {"partitions": 70_000}, {"config": {"no": "1"}}, {"config": []}, {"created_ms": None},
        ):  # fmt: skip
            with pytest.raises(InvalidConfig):
                owner.catalog.adopt(good | wrong)
        with pytest.raises(InvalidConfig):
            owner.catalog.adopt({})
        assert owner.catalog.adopt(good).id == 9


def test_damaged_entries_cost_themselves_only(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        for name in (b"a", b"b", b"c", b"d"):
            owner.catalog.number(owner.catalog.create(name), 0)
        owner.catalog.delete(owner.catalog.get(b"d"))
        owner.run()
        described = {topic.id: Catalog.describe(topic) for topic in owner.catalog}
    a, b = (f"_{b't/'.hex()}{number:016x}" for number in (1, 2))
    zeros = bytes(20)
    raw(tmp_path, **{a: zeros, b: pack_value(bytes.fromhex(b[1:]), "no topic")})
    with catalog(tmp_path) as owner:
        assert [topic.name for topic in owner.catalog] == [b"c"]
        assert len(owner.catalog.damaged) == 2
        assert "checksum" in str(owner.catalog.damaged[0])
        assert "another form" in str(owner.catalog.damaged[1])
        # From its topic.json each comes back under its old number, and nothing took the numbers meanwhile.
        new = owner.catalog.create(b"new")
        assert [new.id, owner.catalog.number(new, 0)] == [5, 5]
        for topic_id in (1, 2):
            topic = owner.catalog.adopt(described[topic_id], owner.answer)
            assert topic.numbers == {0: topic_id}
            assert owner.catalog.number(topic, 0, owner.answer) == topic_id
        assert owner.answered() == ["ok"] * 4
        before = sorted(shape(owner.catalog))
    with catalog(tmp_path) as owner:
        assert sorted(shape(owner.catalog)) == before
        assert owner.catalog.damaged == []


def test_a_damaged_counter_skips_ids(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        owner.catalog.create(b"a")
    raw(tmp_path, **{f"_{NEXT_TOPIC_ID.hex()}": bytes(12)})
    with catalog(tmp_path) as owner:
        assert len(owner.catalog.damaged) == 1
        assert owner.catalog.create(b"b").id > 1 << 20
    raw(tmp_path, **{f"_{NEXT_TOPIC_ID.hex()}": pack_value(NEXT_TOPIC_ID, "x")})
    with catalog(tmp_path) as owner:
        assert owner.catalog.create(b"c").id > 1 << 20


def test_entries_that_contradict_each_other(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        for name in (b"a", b"b"):
            owner.catalog.number(owner.catalog.create(name), 0)
        owner.run()
        topic_2, number_2 = b"t/" + bytes([0] * 7 + [2]), b"p/" + bytes([0] * 7 + [2] + [0] * 4)
        entry = owner.store.get(b"t/" + bytes([0] * 7 + [1]))
        assert owner.submit(Put(topic_2, entry), Put(number_2, 1), Put(topic_2 + b"x", entry)) is None
    with catalog(tmp_path) as owner:
        assert [(topic.id, topic.name, topic.numbers) for topic in owner.catalog] == [(1, b"a", {0: 1})]
        assert ["same name" in str(owner.catalog.damaged[0]), len(owner.catalog.damaged)] == [True, 3]
        assert owner.catalog.number(owner.catalog.create(b"c"), 0) == 2
        assert owner.submit(Delete(topic_2)) is None


def test_stored_settings_that_are_not_valid_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with catalog(tmp_path) as owner:
        owner.catalog.create(b"a", settings={"retention_ms": 5000})
        owner.run()
        key = b"t/" + bytes([0] * 7 + [1])
        entry = owner.store.get(key)
        entry[2] |= {"of_a_newer_version": "1", "segment_bytes": "1"}
        assert owner.submit(Put(key, entry)) is None
    with catalog(tmp_path) as owner:
        topic = owner.catalog.get(b"a")
        assert topic.config == TopicConfig(retention_ms=5000)
        assert "of_a_newer_version" in caplog.text
        owner.catalog.configure(topic, {"segment_bytes": "1m"}, owner.answer)
        assert owner.answered() == ["ok"]
        assert topic.settings["of_a_newer_version"] == "1"


def test_many_topics_load_quickly(tmp_path: Path) -> None:
    """In time that grows with their number: 100,000 take a second."""

    def cost(count: int) -> float:
        path = tmp_path / str(count)
        path.mkdir()
        with catalog(path, topics_max=100_000) as owner:
            for number in range(count):
                topic = owner.catalog.create(b"topic-%d" % number)
                owner.catalog.number(topic, 0)
            owner.run()

        def load() -> None:
            with catalog(path) as owner:
                assert len(owner.catalog) == count

        return cpu_seconds(load, 3)

    assert cost(16_000) < 5 * 8 * cost(2_000), "if it were quadratic, it would be 64 times as long"


def test_topics_of_one_configuration_share_it(tmp_path: Path) -> None:
    with catalog(tmp_path) as owner:
        made: list[Topic] = [
            owner.catalog.create(b"%d" % number, settings={"retention_ms": 1000 + number % 2}) for number in range(10)
        ]
        assert len({id(topic.config) for topic in made}) == 2
