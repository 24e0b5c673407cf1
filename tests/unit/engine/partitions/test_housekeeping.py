"""What housekeeping does: cleaning, watermarks, syncs at intervals; topics that fail beside others."""

from __future__ import annotations

import errno
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import DataDirectoryError, ReadOnly
from tests.engine_log import SMALL, EngineLog, delete, fill, wait_for_burial
from tests.hooked_files import HookedFiles

# --- housekeeping


def test_one_poisoned_topic_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reliability row 16: KAFKA-7215, a cleaner that dies of one bad partition."""
    config = TopicConfig(segment_bytes=64 << 10, retention_records=10)
    with EngineLog(tmp_path / "d", topic=config, retention_grace_ms=0) as engine:
        for topic in ("a", "poisoned", "z"):
            fill(engine, 6, topic)
        engine.partition("poisoned").sealed[0].records = None  # type: ignore[assignment]
        keeping = engine.log.housekeeping
        keeping.last_success_ms = 0
        with caplog.at_level(logging.CRITICAL):
            keeping.clean()
        assert [engine.partition(topic).log_start > 1 for topic in ("a", "poisoned", "z")] == [True, False, True]
        assert len(keeping.failing) == 1
        assert list(keeping.failing) == [engine.partition("poisoned").title]
        assert keeping.last_success_ms > 0
        assert "internal error in housekeeping" in caplog.text
        engine.partition("poisoned").sealed[0].records = 10
        keeping.clean()
        assert keeping.failing == {}
        assert engine.partition("poisoned").log_start > 1


def test_a_defect_in_the_removal_of_segments_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
        keeping = engine.log.housekeeping

        def broken() -> None:
            raise RuntimeError("a defect")

        engine.log.parts.removal.unlink_due = broken  # type: ignore[method-assign]
        keeping.last_success_ms = 0
        with caplog.at_level(logging.CRITICAL):
            keeping.clean()
        assert keeping.failing == {"removal of old segments": "a defect"}
        assert "internal error in removal of old segments" in caplog.text
        assert keeping.last_success_ms > 0
        del engine.log.parts.removal.unlink_due  # type: ignore[method-assign]
        keeping.clean()
        assert keeping.failing == {}


def test_partitions_that_nobody_uses_are_opened_for_their_retention(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        fill(engine, 10)
    limited = replace(SMALL, retention_records=10)
    with EngineLog(tmp_path / "d", topic=limited, retention_grace_ms=0) as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        partition = engine.log.partition(topic)
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: partition.is_open)
        engine.log.housekeeping.clean()
        assert partition.log_start > 1


def test_a_partition_that_cannot_be_opened_is_not_tried_with_each_pass(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        fill(engine, 10)
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=replace(SMALL, retention_records=10)) as engine:
        files.failing("sync_dir", "/topics/1/0")
        with pytest.raises(DataDirectoryError):
            engine.partition()
        calls: list[str] = []
        files.hook = lambda call, path: calls.append(call)
        engine.log.housekeeping.clean()
        engine.inbox.run_pending()
        assert "sync_dir" not in calls
        assert engine.partition().log_start == 1, "it is tried when it is used"
        assert "sync_dir" in calls


def test_partitions_that_nobody_uses_cost_nothing(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        for number in range(20):
            engine.append([b"x"], topic=str(number))
        assert not hasattr(engine.partition("0"), "__dict__"), "there may be a hundred thousand"
    with EngineLog(tmp_path / "d") as engine:
        engine.log.housekeeping.clean()
        assert engine.log.housekeeping.failing == {}
        assert engine.log.known_partitions() == []
        assert engine.log.used_partition(engine.log.catalog.get_or_create(b"0"), 0) is None


def test_segments_are_looked_at_however_rarely_watermarks_are_synced(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", housekeeping_interval_ms=10, watermarks_sync_interval_ms=60_000) as engine:
        keeping = engine.log.housekeeping
        for _ in range(3):
            keeping.last_success_ms = 0
            engine.inbox.run_until(lambda: keeping.last_success_ms > 0)


def test_the_housekeeping_thread_survives_whatever_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EngineLog(tmp_path / "d", housekeeping_interval_ms=10, watermarks_sync_interval_ms=10) as engine:
        engine.append([b"x"])
        keeping = engine.log.housekeeping
        failed = threading.Event()

        def broken() -> None:
            failed.set()
            raise RuntimeError("a defect")

        engine.log.committer.interval_syncs.sync_due = broken  # type: ignore[method-assign]
        with caplog.at_level(logging.CRITICAL):
            assert failed.wait(30)
            failed.clear()
            assert failed.wait(30), "it comes round again"
        del engine.log.committer.interval_syncs.sync_due  # type: ignore[method-assign]
        keeping.last_success_ms = 0
        engine.inbox.run_until(lambda: keeping.last_success_ms > 0)


def test_many_partitions_are_looked_at_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    with EngineLog(tmp_path / "d") as engine:
        engine.log.catalog.create(b"wide", partition_count=200)
        topic = engine.log.catalog.get(b"wide")
        assert topic is not None
        topic.numbers.update({index: index + 1 for index in range(200)})
        keeping = engine.log.housekeeping
        turns: list[int] = []
        slices = engine.log.context.slices
        later = slices.later
        monkeypatch.setattr(slices, "later", lambda work: (turns.append(1), later(work)))
        keeping.last_success_ms = 0
        keeping._clean_in_turns()
        keeping._clean_in_turns()  # the next one comes due before the first is through: nothing happens
        engine.inbox.run_until(lambda: keeping.last_success_ms > 0)
        assert 100 <= len(turns) <= 200
        topic.numbers.clear()


def test_a_watermark_that_cannot_be_written_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"1"])
        files.failing("write", "watermarks", errno.ENOSPC)
        with caplog.at_level(logging.ERROR):
            engine.append([b"2"])
            engine.append([b"3"])
        assert caplog.text.count("cannot write its watermark") == 1, "told once, not once a round"
        files.hook = lambda call, path: None
        engine.log.housekeeping.clean()
        partition = engine.partition()
        engine.inbox.run_until(lambda: not partition.mark_failed)
        engine.image(tmp_path / "crashed")
    with EngineLog(tmp_path / "crashed") as engine:
        assert engine.values() == [b"1", b"2", b"3"]


def test_a_sync_is_not_believed_when_the_file_system_is_read_only_right_after_it(tmp_path: Path) -> None:
    """ext4 with errors=remount-ro may answer a sync well for a size of the file that its journal gives up."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"1"])
        files.failing("write", "watermarks", errno.EROFS)
        with pytest.raises(ReadOnly, match="Read-only file system"):
            engine.append([b"2"])
        with pytest.raises(ReadOnly):
            engine.append([b"3"])


# --- durability "interval"


INTERVAL = TopicConfig(durability="interval", sync_interval_ms=20, segment_bytes=64 << 10)


def test_what_was_written_behind_a_roll_is_synced_in_time_too(tmp_path: Path) -> None:
    files = HookedFiles()
    synced: list[str] = []
    config = replace(INTERVAL, sync_interval_ms=1500)  # all rounds are through before the first sync is due
    with EngineLog(tmp_path / "d", files=files, topic=config) as engine:
        partition = fill(engine, 1)
        files.hook = lambda call, path: synced.append(path.name) if call == "sync_data" else None
        fill(engine, 3)
        name = partition.active_segment.path.name
        assert partition.sealed
        engine.inbox.run_until(lambda: partition.active_segment.durable_position == partition.committed_end)
        assert name in synced


def test_a_failed_sync_at_intervals_makes_the_partition_read_only(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=INTERVAL) as engine:
        engine.append([b"1"])
        partition = engine.partition()
        files.failing("sync_data", ".log")
        partition.append([b"2"])
        engine.inbox.run_until(lambda: partition.error is not None)
        assert isinstance(partition.error, ReadOnly)
        assert engine.log.committer.counters.sync_failures == 1
        files.hook = lambda call, path: None
        with pytest.raises(ReadOnly):
            partition.append([b"3"])
        assert engine.values() == [b"1", b"2"], "reads go on"
        durable = partition.active_segment.durable_position
    assert partition.active_segment.durable_position == durable, "no second sync is taken for a success at the end"


def test_a_deleted_topic_is_not_synced_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = TopicConfig(durability="interval", sync_interval_ms=3_600_000)
    with caplog.at_level(logging.ERROR), EngineLog(tmp_path / "d", topic=config) as engine:
        engine.append([b"1"])
        partition = engine.partition()
        active = partition.active_segment
        delete(engine, partition)
        wait_for_burial(engine)
        assert not engine.log.committer.interval_syncs.sync(partition, active)
    assert "cannot sync" not in caplog.text


def test_a_clean_stop_notes_what_it_synced(tmp_path: Path) -> None:
    never = TopicConfig(durability="never")
    with EngineLog(tmp_path / "d", topic=never) as engine:
        engine.append([b"x" * 100] * 10)
    with EngineLog(tmp_path / "d", topic=never) as engine:
        active = engine.partition().active_segment
        file = active.path
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with EngineLog(tmp_path / "d", topic=never) as engine:
        engine.read()
        assert engine.lost == [(1, 10)], "it was on disk: damage, not a torn tail"


def test_the_thread_sleeps_until_something_is_due(tmp_path: Path) -> None:
    """A topic with a short interval that was deleted, or is idle, wakes nobody."""
    config = TopicConfig(durability="interval", sync_interval_ms=1)
    with EngineLog(tmp_path / "d", topic=config, watermarks_sync_interval_ms=100) as engine:
        engine.append([b"x"])
        partition = engine.partition()
        engine.inbox.run_until(lambda: partition.active_segment.durable_position == partition.active_segment.position)
        delete(engine, partition)
        keeping = engine.log.housekeeping
        wakes: list[None] = []
        looks = threading.Semaphore(0)
        real_look = keeping._check_directory

        def look() -> None:
            looks.release()
            real_look()

        syncs = engine.log.committer.interval_syncs
        syncs.sync_due = lambda: iter((wakes.append(None),)[1:])  # type: ignore[method-assign]
        keeping._check_directory = look  # type: ignore[method-assign]
        for _ in range(4):
            assert looks.acquire(timeout=30)
        assert len(wakes) <= 5, "once for each look at the watermarks"


def test_what_falls_due_while_the_thread_sleeps_long_is_synced(tmp_path: Path) -> None:
    config = TopicConfig(durability="interval", sync_interval_ms=5)
    with EngineLog(tmp_path / "d", topic=config, watermarks_sync_interval_ms=60_000) as engine:
        for _ in range(3):
            engine.append([b"x"])
            active = engine.partition().active_segment
            engine.inbox.run_until(lambda active=active: active.durable_position == active.position)  # type: ignore[misc]


def test_a_disk_that_cannot_be_read_is_no_defect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, with the file's name, whatever number of partitions and passes meet it."""
    with EngineLog(tmp_path / "d") as engine:
        for topic in "abc":
            engine.append([b"x"], topic=topic)
    with EngineLog(tmp_path / "d") as engine:
        marks = engine.log.watermarks
        kept, directory = os.dup(marks.fd), os.open(tmp_path, os.O_RDONLY)
        os.dup2(directory, marks.fd)  # reading it is an error
        for _ in range(2):
            engine.log.housekeeping.clean()
        assert len(engine.log.housekeeping.failing) == 3
        os.dup2(kept, marks.fd)
        engine.log.housekeeping.clean()
        assert engine.log.housekeeping.failing == {}
        os.close(kept)
        os.close(directory)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.text.count(f"partition 0: {tmp_path}: Is a directory; it is tried again") == 1
    assert "Traceback" not in caplog.text
