"""Retention and trimming: the start of the log, and the files below it, beside rounds, readers and crashes."""

from __future__ import annotations

import errno
import logging
import os
import random
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import NotStored, OutOfRange
from engine.formats.segment import HEADER_BYTES
from engine.partitions.removal import remove_files
from engine.reader import DirectoryReader
from tests.crash.world import Life
from tests.engine_log import SMALL, EngineLog, delete, fill, segments
from tests.hooked_files import HookedFiles, held
from tests.simulated_files import LoseAll, disk_with


def test_a_reader_in_a_file_that_is_removed_is_told_where_the_log_begins(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL, retention_grace_ms=0, tail_cache_bytes=1 << 20) as engine:
        partition = fill(engine, 40)
        read_batch = partition.read(1, 1000, lambda: None)
        while read_batch is None:
            engine.inbox.run_until(lambda: True)
            read_batch = partition.read(1, 1000, lambda: None)
        kept = bytes(read_batch.buffer)
        partition.trim(101)
        engine.inbox.run_until(lambda: partition.marked_log_start == 101)
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: not segments(engine.path)[0].name.endswith("00001.log"))
        assert bytes(read_batch.buffer) == kept, "what was handed out stays"
        with pytest.raises(OutOfRange) as gone:
            partition.read(read_batch.last_seq + 1, 1000, None)
        assert gone.value.first == 101


def test_a_start_of_the_log_in_a_gap_before_the_first_segment(tmp_path: Path) -> None:
    """A reader that begins there must meet the first segment, not the active one."""
    with EngineLog(tmp_path / "d", retention_grace_ms=0) as engine:
        partition = engine.partition()
        for first in (1, 21, 41):
            partition.last_seq = max(partition.last_seq, first - 1)  # as after publishes that failed
            engine.log.committer.roll_next(partition)
            engine.append([b"x"] * 10)
        partition.trim(15)
        assert partition.log_start == 15
        assert [segment.first_seq for segment in partition.sealed] == [21]
        assert [record.seq for record in engine.read()] == [*range(21, 31), *range(41, 51)]
    with EngineLog(tmp_path / "d") as engine:
        assert engine.partition().log_start == 15
        assert [record.seq for record in engine.read()] == [*range(21, 31), *range(41, 51)]


def test_a_gap_before_the_oldest_segment_is_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The start of the log lies in numbers that were never stored, and what was before them is removed."""
    with EngineLog(tmp_path / "d", retention_grace_ms=0) as engine:
        partition = engine.partition()
        for first in (1, 21, 41):
            partition.last_seq = max(partition.last_seq, first - 1)  # as after publishes that failed
            engine.log.committer.roll_next(partition)
            engine.append([b"x"] * 10)
        partition.trim(15)
        engine.inbox.run_until(lambda: partition.marked_log_start == 15)
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: len(segments(engine.path)) == 2)
    with caplog.at_level(logging.ERROR), EngineLog(tmp_path / "d") as engine:
        assert engine.partition().log_start == 15
        assert [record.seq for record in engine.read()] == [*range(21, 31), *range(41, 51)]
        assert engine.log.figures.lost_records == 0
    assert "lost" not in caplog.text
    reader = DirectoryReader(tmp_path / "d")
    assert reader.partition(reader.topic(b"t")).log_start == 15
    reader.close()
    segments(tmp_path / "d")[0].unlink()
    with caplog.at_level(logging.ERROR), EngineLog(tmp_path / "d") as engine:
        assert engine.partition().log_start == 31
    assert "ACKNOWLEDGED records 15 to 30 are lost" in caplog.text


def test_an_empty_segment_goes_once_the_start_of_the_log_behind_it_is_on_disk(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=TopicConfig(durability="never"), retention_grace_ms=0) as engine:
        engine.append([b"gone"])
        killed = engine.image(tmp_path / "killed")
    os.truncate(segments(killed)[0], HEADER_BYTES)
    (killed / "watermarks").unlink()
    files = HookedFiles()
    with EngineLog(killed, files=files, retention_grace_ms=0) as engine:
        first = engine.partition().last_seq + 1
        engine.append([b"1", b"2"])
        partition = engine.partition()
        assert [segment.last_seq for segment in partition.sealed] == [0]
        files.failing("write", "watermarks")
        partition.trim(first + 1)
        engine.inbox.run_until(lambda: partition.mark_failed)
        engine.log.housekeeping.clean()
        engine.append([b"3"])
        assert len(segments(killed)) == 2
        files.hook = lambda call, path: None
        engine.append([b"4"])
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: len(segments(killed)) == 1)
    with EngineLog(killed) as engine:
        assert engine.partition().log_start == first + 1
        assert engine.values() == [b"2", b"3", b"4"]


def test_no_file_goes_before_the_raised_start_is_on_disk(tmp_path: Path) -> None:
    files = HookedFiles()
    calls: list[tuple[str, str]] = []
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 10)
        files.hook = lambda call, path: calls.append((call, path.name))
        partition.trim(51)
        engine.inbox.run_until(lambda: partition.marked_log_start == 51)
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: ("remove", "00000000000000000001.log") in calls)
    marked = calls.index(("write", "watermarks"))
    synced = calls.index(("sync_data", "watermarks"), marked)
    assert synced < min(at for at, (call, _) in enumerate(calls) if call == "remove")


def test_no_file_goes_on_the_word_of_a_sync_behind_a_failed_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel calls clean what it failed to write: the next sync succeeds, and the raised start is not on disk."""
    files = disk_with(tmp_path)
    life = Life(tmp_path, random.Random(1), files, {})
    partition = life.partition(b"a")
    for number in range(20):
        life.put(partition, b"%d" % number + b"." * 9000)
        life.settle()
    life.log.watermarks.sync()
    oldest = partition.sealed[:1]
    partition.trim(15)
    life.inbox.run_until(lambda: partition.marked_log_start == 15)

    def fail(call: str, path: Path) -> None:
        if (call, path.name) == ("sync_data", "watermarks"):
            raise OSError(errno.EIO, "Input/output error")

    files.dice, files.hook = LoseAll(), fail
    with pytest.raises(OSError, match="Input/output"):
        life.log.watermarks.sync()
    files.hook = None
    with pytest.raises(NotStored, match="written again"):  # it failed since housekeeping looked
        remove_files(life.log.context, partition.number, oldest)
    while ("remove", tmp_path / "topics/1/0/00000000000000000001.log") not in files.calls:
        life.log.housekeeping.clean()
        life.settle()
    images = files.after_power_cut(LoseAll())
    state = dict(life.state.durable)
    life.close()
    with caplog.at_level(logging.ERROR):
        after = Life(tmp_path, random.Random(1), images, state)
        assert after.partition(b"a").log_start == 15
        assert after.log.figures.lost_records == 0
        after.close()
    assert "lost" not in caplog.text


def test_no_file_goes_before_the_watermark_tells_where_the_log_begins_now(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 10)
        files.failing("write", "watermarks", errno.ENOSPC)
        before = segments(engine.path)
        partition.trim(51)
        engine.inbox.run_until(lambda: partition.mark_failed)
        for _ in range(3):
            engine.log.housekeeping.clean()
            engine.append([b"x"])
        assert segments(engine.path) == before
        files.hook = lambda call, path: None
        engine.append([b"x"])
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: len(segments(engine.path)) < len(before))


def test_files_that_a_crash_left_below_the_start_are_removed_by_the_next_process(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        partition = fill(engine, 10)
        partition.trim(51)
        engine.inbox.run_until(lambda: partition.marked_log_start == 51)
        before = segments(engine.path)
        engine.log.housekeeping.clean()
    assert segments(engine.path) == before, "the grace time has not passed"
    with EngineLog(tmp_path / "d", topic=SMALL, retention_grace_ms=0) as engine:
        partition = engine.partition()
        assert partition.log_start == 51
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: len(segments(engine.path)) < len(before))
        assert [record.seq for record in engine.read()] == list(range(51, 101))


def test_files_below_the_start_are_removed_though_nobody_uses_the_topic_any_more(tmp_path: Path) -> None:
    """Neither retention nor a reader opens the partition again: housekeeping does."""
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        partition = fill(engine, 10)
        fill(engine, 3, topic="untouched")
        partition.trim(51)
        engine.inbox.run_until(lambda: partition.marked_log_start == 51)
        oldest = partition.sealed[0].path
    with EngineLog(tmp_path / "d", topic=SMALL, retention_grace_ms=0) as engine:
        catalog = engine.log.catalog
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: engine.log.partition(catalog.get(b"t")).is_open)
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: segments(engine.path)[0] == oldest)
        assert not engine.log.partition(catalog.get(b"untouched")).is_open, "nothing to be done there"


@pytest.mark.parametrize("call", ["remove", "sync_dir"])
def test_housekeeping_goes_on_when_a_removal_failed_at_its_end(tmp_path: Path, call: str) -> None:
    """The files are gone, but their directory was not synced, or the last one is left: it is tried again."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 10)
        partition.trim(61)
        engine.inbox.run_until(lambda: partition.marked_log_start == 61)
        victims = [s for s in segments(engine.path) if s not in {one.path for one in partition.sealed}][:-1]
        removed_bytes = sum(path.stat().st_size for path in victims)
        files.failing(call, victims[-1].name if call == "remove" else "0")
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: bool(engine.log.parts.removal.failing))
        engine.log.housekeeping.clean()
        assert engine.log.housekeeping.failing
        files.hook = lambda call, path: None
        engine.log.housekeeping.last_success_ms = 0

        def is_clean() -> bool:
            engine.log.housekeeping.clean()
            return not engine.log.housekeeping.failing and not engine.log.parts.removal

        engine.inbox.run_until(is_clean)
        assert engine.log.housekeeping.last_success_ms
        assert not any(path.exists() for path in victims)
        assert engine.log.figures.removed_bytes == removed_bytes, "each is counted once"


def test_removing_goes_on_after_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 10)
        partition.trim(61)
        engine.inbox.run_until(lambda: partition.marked_log_start == 61)
        victims = [s for s in segments(engine.path) if int(s.stem) < 50]
        files.failing("remove", victims[1].name)
        with caplog.at_level(logging.ERROR):
            engine.log.housekeeping.clean()
            engine.inbox.run_until(lambda: "cannot remove old segments" in caplog.text)
            engine.log.housekeeping.clean()
            assert list(engine.log.housekeeping.failing) == [partition.title]
            engine.inbox.run_until(lambda: caplog.text.count("cannot remove old segments") == 2)
        files.hook = lambda call, path: None
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: not victims[1].exists() and not victims[-1].exists())
        engine.log.housekeeping.clean()
        assert engine.log.housekeeping.failing == {}


def test_trimming_while_a_round_rolls(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 1)
        with held(files, "create", ".log") as reached:
            write_batch = partition.append([b"x" * 4000] * 10)
            assert reached.wait(30)
            partition.trim(11)
        engine.settle(write_batch)
        engine.append([b"next"])
        engine.inbox.run_until(lambda: partition.marked_log_start == 11)
        assert [record.seq for record in engine.read()] == list(range(11, 22))
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == list(range(11, 22))


def test_a_closed_partition_is_trimmed_only_once_it_is_open(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"] * 10)
    with EngineLog(tmp_path / "d") as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        assert engine.log.partition(topic).trim(5) == 0
        assert engine.partition().log_start == 1


# --- what is not ours


def test_a_deletion_removes_nothing_that_is_not_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link in a partition's place leads elsewhere, and people put files anywhere."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "00000000000000000001.log").write_bytes(b"of another log")
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
        engine.append([b"x"], topic="u")
        topics = tmp_path / "d" / "topics"
        (topics / "1" / "1").symlink_to(foreign)
        (topics / "2" / "0" / "notes.txt").write_bytes(b"mine")
        for topic in ("t", "u"):
            delete(engine, engine.partition(topic))
        engine.inbox.run_until(lambda: not engine.log.catalog.tombstones)
    assert (foreign / "00000000000000000001.log").read_bytes() == b"of another log"
    assert not (topics / "1").exists()
    assert os.listdir(topics / "2" / "0") == ["notes.txt"]
    assert f"{topics}/2/0 stays, as not all in it is ours: notes.txt" in caplog.text
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"y"])
        assert engine.values() == [b"y"]
