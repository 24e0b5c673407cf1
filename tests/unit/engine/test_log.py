"""The log as a whole: append, commit, read from memory and from files, roll, restart, retention, deletion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import (
    DataDirectoryError,
    LogLocked,
    NotStored,
    OutOfRange,
    TooLarge,
    UnknownPartition,
    UnsupportedFormat,
)
from engine.formats.record import Record
from tests.engine_log import EngineLog, segments

SMALL = TopicConfig(segment_bytes=64 << 10)


def numbered(first: int, last: int, size: int = 100) -> list[bytes]:
    return [b"%d" % n + b"." * size for n in range(first, last + 1)]


def test_numbers_start_at_1_and_records_come_back_as_they_went_in(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"one", b""], keys=[b"k", b""], timestamps_ms=[5, 6], headers=[(b"a", b"b"), ()])
        engine.append([b"three"], qos0=True)
        partition = engine.partition()
        assert (partition.log_start, partition.last_seq, partition.committed_seq) == (1, 3, 3)
        first, second, third = engine.read()
        assert first == Record(1, 5, b"k", b"one", (b"a", b"b"))
        assert second == Record(2, 6, b"", b"")
        assert (third.seq, third.value, third.qos0) == (3, b"three", True)


def test_the_same_numbers_from_memory_from_files_and_after_a_restart(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL, tail_cache_bytes=1 << 20) as engine:
        for first in range(1, 20_001, 1000):
            engine.append(numbered(first, first + 999))
        expected = numbered(1, 20_000)
        assert [record.seq for record in engine.read()] == list(range(1, 20_001))
        assert engine.values() == expected
        assert len(segments(tmp_path / "d")) > 10
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        assert engine.partition().last_seq == 20_000
        assert engine.values() == expected
        engine.append([b"more"])
        assert engine.read(start=20_001)[0].value == b"more"


def test_a_read_from_any_number_begins_with_the_batch_that_holds_it(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL, tail_cache_bytes=1 << 20) as engine:
        for first in range(1, 8001, 500):
            engine.append(numbered(first, first + 499))
        for start in (1, 2, 255, 256, 3999, 4000, 4001, 7999, 8000):
            assert [record.seq for record in engine.read(start=start)] == list(range(start, 8001))


def test_several_topics_and_partitions_in_one_round(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.log.catalog.create(b"wide", partition_count=50)
        topic = engine.log.catalog.get(b"wide")
        assert topic is not None
        write_batches = [engine.log.partition(topic, index).append([b"%d" % index]) for index in range(50)]
        for write_batch in write_batches:
            engine.settle(write_batch)
        assert [engine.values("wide", index) for index in range(50)] == [[b"%d" % index] for index in range(50)]
        with pytest.raises(UnknownPartition):
            engine.log.partition(topic, 50)


def test_waiters_hear_once_a_round_and_readers_when_something_came(tmp_path: Path) -> None:
    class Waiter:
        rounds = 0

        def round_done(self) -> None:
            self.rounds += 1

    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        woken: list[int] = []
        assert partition.read(1, 1000, lambda: woken.append(partition.committed_seq)) is None
        waiter = Waiter()
        write_batch = partition.append([b"a"], waiter=waiter)
        assert partition.append([b"b"], waiter=waiter) is write_batch
        engine.settle(write_batch)
        engine.inbox.run_until(lambda: bool(woken))
        assert (woken, waiter.rounds) == ([2], 1)
        forgotten: list[bool] = []
        callback = lambda: forgotten.append(True)  # noqa: E731 - the same object is needed twice
        assert partition.read(3, 1000, callback) is None
        partition.forget(callback)
        engine.append([b"c"])
        engine.inbox.run_pending()
        assert not forgotten


def test_nothing_is_visible_before_its_round(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        partition.append([b"a"])
        assert (partition.last_seq, partition.committed_seq) == (1, 0)
        assert partition.read(1, 1000, None) is None
        assert engine.log.pending_bytes > 0
        drained: list[bool] = []
        engine.log.drain(lambda: drained.append(True))
        engine.inbox.run_until(lambda: bool(drained))
        assert (partition.committed_seq, engine.log.pending_bytes) == (1, 0)


def test_too_large_records_are_refused_whole(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=TopicConfig(record_bytes_max=1000)) as engine:
        engine.append([b"x" * 1000])
        with pytest.raises(TooLarge) as refused:
            engine.append([b"small", b"x" * 1001])
        assert refused.value.limit_bytes == 1000
        assert engine.partition().last_seq == 1


def test_a_record_larger_than_a_write_batch_goes_alone(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"a", b"x" * (5 << 20), b"b"])
        assert [len(value) for value in engine.values()] == [1, 5 << 20, 1]
    with EngineLog(tmp_path / "d") as engine:
        assert [len(value) for value in engine.values()] == [1, 5 << 20, 1]


def test_one_process_has_the_directory(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d"), pytest.raises(LogLocked, match="in use by process"):
        EngineLog(tmp_path / "d")


def test_foreign_and_newer_directories_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious.txt").write_text("mine")
    with pytest.raises(DataDirectoryError, match=r"precious\.txt"):
        EngineLog(foreign)
    EngineLog(tmp_path / "d").close()
    version = tmp_path / "d" / "VERSION"
    fields = json.loads(version.read_text())
    version.write_text(json.dumps({**fields, "format": 2}))
    with pytest.raises(UnsupportedFormat, match="format 2"):
        EngineLog(tmp_path / "d")
    version.write_text("{")
    with pytest.raises(DataDirectoryError, match="damaged"):
        EngineLog(tmp_path / "d")


def test_retention_by_records_removes_whole_segments_after_the_grace_time(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=64 << 10, retention_records=3000)
    with EngineLog(tmp_path / "d", topic=config, retention_grace_ms=0, tail_cache_bytes=1 << 20) as engine:
        for first in range(1, 10_001, 500):
            engine.append(numbered(first, first + 499))
        before = len(segments(tmp_path / "d"))
        partition = engine.partition()
        reader_at = 1
        engine.log.housekeeping.clean()
        assert partition.log_start > 6000
        assert 10_000 - partition.log_start + 1 >= 3000
        with pytest.raises(OutOfRange) as gone:
            partition.read(reader_at, 1000, None)
        assert gone.value.first == partition.log_start
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: len(segments(tmp_path / "d")) < before)
        assert [record.seq for record in engine.read()] == list(range(partition.log_start, 10_001))
        log_start = partition.log_start
    with EngineLog(tmp_path / "d", topic=config) as engine:
        assert engine.partition().log_start == log_start


def test_an_idle_topic_with_retention_by_age_becomes_empty(tmp_path: Path) -> None:
    config = TopicConfig(retention_ms=1000)
    with EngineLog(tmp_path / "d", topic=config, retention_grace_ms=0) as engine:
        engine.append(numbered(1, 10))
        partition = engine.partition()
        now_ms, steady_ms = engine.log.now_ms(), engine.log.context.steady_ms()
        engine.log.context.now_ms = lambda: now_ms + 1500
        engine.log.context.steady_ms = lambda: steady_ms + 1500
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: bool(partition.sealed))
        engine.log.housekeeping.clean()
        assert partition.log_start == 11
        engine.append([b"next"])
        assert [record.seq for record in engine.read()] == [11]


def test_a_deleted_topic_leaves_no_files_and_its_name_starts_anew(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"old"])
        partition = engine.partition()
        deleted: list[object] = []
        engine.log.catalog.delete(partition.topic, deleted.append)
        engine.inbox.run_until(lambda: bool(deleted))
        with pytest.raises(NotStored, match="deleted"):
            partition.append([b"late"])
        engine.append([b"new"])
        assert [(record.seq, record.value) for record in engine.read()] == [(1, b"new")]
        assert engine.partition().topic.id != partition.topic.id
        engine.inbox.run_until(lambda: not (tmp_path / "d" / "topics" / "1").exists())
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values() == [b"new"]


def test_reserved_numbers_after_a_crash_and_after_a_clean_stop(tmp_path: Path) -> None:
    never = TopicConfig(durability="never")
    with EngineLog(tmp_path / "d", topic=never) as engine:
        engine.append(numbered(1, 10))
        engine.image(tmp_path / "crashed")
    with EngineLog(tmp_path / "d", topic=never) as engine:
        engine.append([b"x"])
        assert engine.partition().last_seq == 11
    with EngineLog(tmp_path / "crashed", topic=never) as engine:
        assert [record.seq for record in engine.read()] == list(range(1, 11))
        engine.append([b"x"])
        assert engine.partition().last_seq >= 1 << 20
        assert len(engine.read()) == 11


def test_a_topic_missing_in_the_state_is_adopted(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"kept"], topic="lost from state")
    for file in (tmp_path / "d" / "state").iterdir():
        file.unlink()
    with EngineLog(tmp_path / "d") as engine:
        assert engine.log.catalog.get(b"lost from state") is not None
        assert engine.values("lost from state") == [b"kept"]
        engine.append([b"more"], topic="lost from state")
        assert engine.values("lost from state") == [b"kept", b"more"]


def test_no_round_begins_once_the_log_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another process may have the directory by then, and something else the descriptors."""
    log = EngineLog(tmp_path)
    synced, unsynced = log.partition("t"), log.partition("u")
    log.log.catalog.configure(unsynced.topic, {"durability": "never"})
    log.inbox.run_until(lambda: unsynced.config.durability == "never")
    log.append([b"1"], "t")
    log.append([b"1"], "u")
    log.log.committer.request_watermark(synced)
    log.log.committer.request_watermark(unsynced)  # waits for the round of the other
    log.log.close()
    log.inbox.run_pending()
    assert caplog.text == ""


def test_readers_of_the_files_see_how_a_topic_is_configured_now(tmp_path: Path) -> None:
    """topic.json is written anew; a topic without files gets its own with the first record."""
    with EngineLog(tmp_path / "d") as engine:
        for name in ("stored", "empty"):
            topic = engine.partition(name).topic
            if name == "stored":
                engine.append([b"x"], name)
            done: list[object] = []
            engine.log.catalog.configure(topic, {"retention_ms": "3h"}, done.append)
            engine.inbox.run_until(lambda done=done: bool(done))  # type: ignore[misc]
            assert done == [None]
    described = {path: json.loads(path.read_text()) for path in tmp_path.rglob("topic.json")}
    assert [path.parent.name for path in described] == ["1"]
    assert [one["config"]["retention_ms"] for one in described.values()] == ["3h"]
