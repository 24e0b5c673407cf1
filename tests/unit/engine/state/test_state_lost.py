"""`state` lost, or replaced by an older copy (question 7 of the design): nothing in the files is lost by it, no number
is given again, and what is gone is said."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
from pathlib import Path

import lmdb
import pytest

from engine.config import TopicConfig
from engine.formats.record import Record
from engine.limits import LOST_RESERVATION
from engine.reader import DirectoryReader
from engine.state.environment import DATA_FILE
from engine.state.markers import PREFIX
from engine.state.topic_entries import reserved_key
from tests.crash.world import Life
from tests.engine_log import EngineLog, segments
from tests.simulated_files import SimulatedFiles, disk_with

NEVER = TopicConfig(durability="never")


def lose_state(path: Path) -> None:
    shutil.rmtree(path / "state")


def beside(path: Path, topic: bytes) -> list[bytes]:
    """What a reader of the files sees."""
    reader = DirectoryReader(path)
    partition = reader.partition(reader.topic(topic))
    items = list(partition.records(partition.log_start, partition.committed_seq + 1))
    reader.close()
    return [item.value for item in items if isinstance(item, Record)]


@pytest.mark.parametrize("how", ["directory", "data file", "emptied"])
def test_a_missing_state_is_told_and_topics_are_taken_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"kept"], topic="a")
        engine.append([b"kept, too"] * 3, topic="b")
    if how == "directory":
        lose_state(path)
    elif how == "data file":
        (path / "state" / DATA_FILE).unlink()
    else:
        os.truncate(path / "state" / DATA_FILE, 0)
    with caplog.at_level(logging.ERROR), EngineLog(path) as engine:
        assert "data.mdb is missing: topics are taken in again" in caplog.text
        assert "Gone are subscriptions" in caplog.text
        assert engine.values("b") == [b"kept, too"] * 3
        engine.append([b"more"], topic="a")
        assert engine.values("a") == [b"kept", b"more"]
        engine.append([b"new"], topic="c")
        assert engine.partition("c").topic.id == 3
    assert beside(path, b"a") == [b"kept", b"more"]


def test_a_first_start_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
    assert caplog.text == ""


def test_numbers_that_were_seen_before_they_were_on_disk_are_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path, topic=NEVER) as engine:
        engine.append([b"x"] * 10)
        engine.image(tmp_path / "crashed")
    lose_state(tmp_path / "crashed")
    with EngineLog(tmp_path / "crashed", topic=NEVER) as engine:
        assert [record.seq for record in engine.read()] == list(range(1, 11))
        engine.append([b"y"])
        assert engine.partition().last_seq == 10 + LOST_RESERVATION


def test_damaged_reservations_of_numbers_do_not_keep_a_partition_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EngineLog(tmp_path / "d", topic=NEVER) as engine:
        engine.append([b"seen"])
        image = engine.image(tmp_path / "image")
    with lmdb.open(str(image / "state"), lib_version=0) as environment, environment.begin(write=True) as transaction:
        assert transaction.put(reserved_key(1, 0), b"no reservation")
    for last_seq in (2 + LOST_RESERVATION, 3 + LOST_RESERVATION):
        with caplog.at_level(logging.ERROR), EngineLog(image, topic=NEVER) as engine:
            assert engine.values()[0] == b"seen"
            engine.append([b"new"])
            assert engine.partition().last_seq == last_seq
    assert caplog.text.count("go on far behind the last one") == 1


def test_partitions_get_the_numbers_back_that_their_files_say(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.log.catalog.create(b"wide", partition_count=20)
        for index in (7, 3, 11):
            engine.append([b"%d" % index], topic="wide", index=index)
        numbers = dict(engine.partition("wide", 3).topic.numbers)
    lose_state(path)
    with EngineLog(path) as engine:
        topic = engine.log.catalog.get(b"wide")
        assert topic is not None
        assert topic.numbers == numbers
        engine.append([b"new"], topic="wide", index=0)
        assert topic.numbers[0] not in numbers.values()
        for index in (7, 3, 11):
            assert engine.values("wide", index) == [b"%d" % index]
            assert engine.partition("wide", index).last_seq == 1


def test_an_older_state_in_which_another_partition_has_the_number(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"old"] * 5, topic="old")
    shutil.copytree(path / "state", tmp_path / "copy")
    with EngineLog(path) as engine:
        old = engine.partition("old").topic
        engine.log.catalog.delete(old)
        engine.inbox.run_until(lambda: not (path / "topics" / "1").exists())
        engine.inbox.run_until(lambda: old.id not in engine.log.catalog.tombstones)
        engine.append([b"%d" % n for n in range(1000)], topic="young")
        assert engine.partition("young").number == 1, "the number was given again"
    lose_state(path)
    shutil.copytree(tmp_path / "copy", path / "state")
    with EngineLog(path) as engine:
        assert engine.partition("old").last_seq == 0, "the marks of another partition are not taken for its own"
        assert engine.values("old") == []
        assert len(engine.values("young")) == 1000
        assert engine.partition("young").number != 1
        engine.append([b"next"], topic="young")
        assert engine.partition("young").last_seq == 1001
        engine.append([b"first"], topic="old")
        assert engine.partition("old").last_seq == 1
    assert beside(path, b"young")[-1] == b"next", "readers of the files find the new number"
    assert beside(path, b"old") == [b"first"]
    with EngineLog(path) as engine:
        assert len(engine.values("young")) == 1001
        assert engine.values("old") == [b"first"]


def test_an_older_state_that_does_not_know_a_partition_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.log.catalog.create(b"t", partition_count=2)
        engine.append([b"x"])
    shutil.copytree(path / "state", tmp_path / "copy")
    with EngineLog(path) as engine:
        engine.append([b"%d" % n for n in range(50)], index=1)
    lose_state(path)
    shutil.copytree(tmp_path / "copy", path / "state")
    with caplog.at_level(logging.ERROR), EngineLog(path) as engine:
        assert engine.partition(index=1).last_seq == 50
        engine.append([b"next"], index=1)
        assert [record.seq for record in engine.read(index=1)] == list(range(1, 52))
    assert "partition 1 was not in the state: its files were found" in caplog.text


def test_a_directory_that_nobody_knows_keeps_its_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"whose"], topic="unknown")
    lose_state(path)
    (path / "topics" / "1" / "topic.json").write_text("[" * 100_000)
    for name in ("²", "007", "9" * 40, "notes"):
        (path / "topics" / name).mkdir()
    with caplog.at_level(logging.ERROR), EngineLog(path) as engine:
        engine.append([b"new"], topic="new")
        assert engine.partition("new").topic.id == 2
        assert engine.values("new") == [b"new"]
    assert "topics/1: a directory of no known topic, left alone" in caplog.text
    assert segments(path, 1), "it is still there"


@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", '{"id": 2}', '{"id": 1, "name_base64": 7}'])
def test_descriptions_that_are_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"x"], topic="unknown")
    lose_state(path)
    (path / "topics" / "1" / "topic.json").write_text(content)
    with EngineLog(path) as engine:
        assert len(engine.log.catalog) == 0


def test_a_partition_directory_beyond_the_count_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"x"])
    lose_state(path)
    shutil.copytree(path / "topics" / "1" / "0", path / "topics" / "1" / "5")
    with EngineLog(path) as engine:
        assert engine.values() == [b"x"]
        assert set(engine.partition().topic.numbers) == {0}


def test_a_transaction_whose_marker_is_damaged_counts_as_committed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        transaction = engine.log.transaction()
        for topic in ("a", "b"):
            transaction.append(engine.partition(topic), b"both")
        done: list[object] = []
        transaction.commit(done.append)
        engine.inbox.run_until(lambda: bool(done))
        assert done == [None]
        engine.image(tmp_path / "crashed")
    crashed = tmp_path / "crashed"
    (crashed / "watermarks").unlink()  # so that nothing but the marker says that it was committed
    environment = lmdb.open(str(crashed / "state"), map_size=1 << 20, lib_version=0)
    with environment, environment.begin(write=True) as changes:
        ((key, value),) = [item for item in changes.cursor() if item[0].startswith(PREFIX)]
        changes.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    with caplog.at_level(logging.ERROR), EngineLog(crashed) as engine:
        assert engine.values("a") == engine.values("b") == [b"both"]
    assert re.search("checksum of the value of key b['\"]x/", caplog.text)  # the quotes are those that the key has not


def test_epochs_of_transactions_are_never_counted_on(tmp_path: Path) -> None:
    """Partitions are recovered on first use: an id that was given again would resurrect what was cut nowhere yet."""
    ids = set()
    for _ in range(5):
        with EngineLog(tmp_path / "d") as engine:
            ids.add(engine.log.committer.markers.next_id() >> 32)
    assert len(ids) == 5
    assert 0 not in ids


def test_a_directory_that_was_made_by_a_killed_process_can_be_opened_after_a_power_cut(tmp_path: Path) -> None:
    """What the first process did not come to sync is synced before anything is built on it."""
    files = disk_with(tmp_path)
    killed: list[SimulatedFiles] = []
    cut: list[SimulatedFiles] = []

    def kill(call: str, path: Path) -> None:
        if (call, path) == ("sync_dir", tmp_path) and not killed:
            killed.append(files.after_kill())

    def cut_power(call: str, path: Path) -> None:
        if (call, path) == ("sync_dir", tmp_path):
            cut.extend(killed[0].after_power_cut(random.Random(seed)) for seed in range(20))

    files.hook = kill
    Life(tmp_path, random.Random(0), files, {}).close()
    assert killed[0].exists(tmp_path / "VERSION")
    killed[0].hook = cut_power
    Life(tmp_path, random.Random(0), killed[0], {}).close()
    assert len(cut) >= 40
    for left in cut:
        Life(tmp_path, random.Random(0), left, {}).close()
