"""Bursts of new topics: their files are made together, and what fails of one costs the others nothing."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from engine.errors import EngineError, ReadOnly
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, FAILED, WriteBatch
from engine.segments.recovery import Recovered
from tests.engine_log import EngineLog, delete, segments
from tests.hooked_files import HookedFiles, held

TOPICS = 200


def burst(engine: EngineLog, count: int) -> list[WriteBatch]:
    catalog = engine.log.catalog
    return [engine.log.partition(catalog.get_or_create(b"%d" % at)).append([b"value %d" % at]) for at in range(count)]


def test_what_waits_at_the_same_time_is_made_together(tmp_path: Path) -> None:
    files = HookedFiles()
    calls: Counter[tuple[str, str]] = Counter()
    with EngineLog(tmp_path / "d", files=files) as engine:
        rounds = engine.log.state.rounds  # type: ignore[attr-defined]
        files.hook = lambda call, path: calls.update([(call, path.name)])
        for write_batch in burst(engine, TOPICS):
            assert engine.settle(write_batch).state == COMMITTED
        # One by one it would be all of them; how many come together depends on the machine.
        assert engine.log.state.rounds - rounds < TOPICS * 3 // 4  # type: ignore[attr-defined]
        assert calls["sync_dir", "topics"] < TOPICS * 3 // 4
        assert calls["sync_data", "topic.json.new"] == TOPICS
        assert calls["sync_data", "00000000000000000001.log"] == TOPICS, "with its first batch"
        assert calls["sync_dir", "0"] == TOPICS
    with EngineLog(tmp_path / "d") as engine:
        assert [engine.values(str(at)) for at in range(TOPICS)] == [[b"value %d" % at] for at in range(TOPICS)]


@pytest.mark.parametrize("call", ["create", "write", "sync_data", "sync_dir"])
def test_one_that_fails_costs_the_others_nothing(tmp_path: Path, call: str) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        files.failing(call, "/topics/3/0" if call == "sync_dir" else "/topics/3/0/00000000000000000001.log")
        write_batches = burst(engine, 6)
        states = [engine.settle(write_batch).state for write_batch in write_batches]
        assert states == [COMMITTED, COMMITTED, FAILED, COMMITTED, COMMITTED, COMMITTED]
        files.hook = lambda call, path: None
        if call == "sync_data":  # the file's first sync is that of its first batch: a restart is due, as after any
            with pytest.raises(ReadOnly):
                engine.append([b"again"], "2")
        else:
            engine.append([b"again"], "2")
            assert engine.values("2") == [b"again"]
    with EngineLog(tmp_path / "d") as engine:
        if call == "sync_data":
            engine.append([b"again"], "2")
        assert engine.values("2")[-1] == b"again"
        assert engine.values("5") == [b"value 5"]


def test_more_than_are_made_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.partitions.file_worker.PARTITIONS_MADE_TOGETHER", 3)
    with EngineLog(tmp_path / "d") as engine:
        assert [engine.settle(write_batch).state for write_batch in burst(engine, 20)] == [COMMITTED] * 20


def test_very_many_new_partitions_are_told_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    told: Counter[int] = Counter()
    files = HookedFiles()
    files_made = Partition.files_made
    with EngineLog(tmp_path / "d", files=files) as engine:

        def watched(self: Partition, result: Recovered | EngineError) -> None:
            told[engine.log.slices.turn_of()] += 1
            files_made(self, result)

        monkeypatch.setattr(Partition, "files_made", watched)
        with held(files, "sync_dir", "/topics/1/0") as reached:
            write_batches = burst(engine, 40)  # all but the first wait for it
            engine.inbox.run_until(reached.is_set)
            engine.inbox.run_until(lambda: engine.log.state.pending_bytes == 0)
        assert [engine.settle(write_batch).state for write_batch in write_batches] == [COMMITTED] * 40
    assert max(told.values()) <= 2


@pytest.mark.parametrize(
    ("made", "suffix"),
    [("create", "0/00000000000000000001.log"), ("sync_dir", "0"), ("sync_dir", ""), ("open", "topic.json.new")],
)
@pytest.mark.parametrize("failures", [3, 1000])
def test_descriptors_that_others_give_back_are_waited_for(
    tmp_path: Path, failures: int, made: str, suffix: str
) -> None:
    files = HookedFiles()
    left = failures
    about = Path("/topics/3", suffix)
    all_wait = threading.Event()

    def hook(call: str, path: Path) -> None:
        nonlocal left
        if "/topics/2/" in str(path):  # the first one: the others are made together after it
            assert all_wait.wait(30)
        if call == made and str(path).endswith(str(about)) and left:
            left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.partition("first")
        files.hook = hook
        write_batches = burst(engine, 6)
        all_wait.set()
        states = [engine.settle(write_batch).state for write_batch in write_batches]
        assert states == [COMMITTED, FAILED if left else COMMITTED, *[COMMITTED] * 4]
        assert (left == 0) == (failures == 3)
    with EngineLog(tmp_path / "d") as engine:
        for at in range(6):
            assert engine.values(str(at)) == ([] if left and at == 1 else [b"value %d" % at])


@pytest.mark.parametrize("path", ["/topics", "/topics/2", "/topics/2/topic.json.new"])
def test_a_topic_whose_directory_cannot_be_made_has_no_partition(tmp_path: Path, path: str) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        topic = engine.log.catalog.create(b"first")
        wide = engine.log.catalog.create(b"wide", partition_count=3)
        files.failing("sync_data" if path.endswith("new") else "sync_dir", path)
        write_batches = [engine.log.partition(wide, at).append([b"lost"]) for at in range(3)]
        write_batches.append(engine.log.partition(topic).append([b"lost"]))
        states = [engine.settle(write_batch).state for write_batch in write_batches]
        assert states == [FAILED, FAILED, FAILED, FAILED if path == "/topics" else COMMITTED]
        assert "Input/output error" in str(write_batches[0].error)
        calls: list[tuple[str, str]] = []
        files.hook = lambda call, path: calls.append((call, path.name))
        for at in range(3):
            engine.append([b"%d" % at], "wide", at)
        assert ("sync_dir", "2") in calls, "what may not be on disk is synced again"
        assert path != "/topics" or ("sync_dir", "topics") in calls
    with EngineLog(tmp_path / "d") as engine:
        assert [engine.values("wide", at) for at in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_a_first_watermark_that_cannot_be_written(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        files.failing("write", "watermarks", errno.ENOSPC)
        write_batch = engine.settle(engine.partition().append([b"refused"]))
        assert write_batch.state == FAILED
        assert os.strerror(errno.ENOSPC) in str(write_batch.error)
        files.hook = lambda call, path: None
        engine.append([b"stored"])
        assert engine.values() == [b"stored"]


def test_a_topic_that_is_deleted_among_new_ones(tmp_path: Path) -> None:
    """What is to be done in between is done in between."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"gone"], "gone")
        with held(files, "sync_dir", "/topics/2/0") as reached:
            first = engine.partition("first").append([b"1"])
            engine.inbox.run_until(reached.is_set)
            before = engine.partition("before").append([b"2"])
            engine.inbox.run_until(lambda: engine.log.state.pending_bytes == 0)
            delete(engine, engine.partition("gone"))
            engine.inbox.run_pending()
            after = engine.partition("after").append([b"3"])
            engine.inbox.run_until(lambda: engine.log.state.pending_bytes == 0)
        for write_batch in (first, before, after):
            assert engine.settle(write_batch).state == COMMITTED
        engine.inbox.run_until(lambda: not engine.log.catalog.tombstones)
        assert segments(tmp_path / "d", 1) == []


def test_a_defect_is_told_to_everybody_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineLog(tmp_path / "d") as engine:

        def broken(*_: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr("engine.partitions.creation.PartitionCreator.make", broken)
        write_batches = burst(engine, 3)
        assert [engine.settle(write_batch).state for write_batch in write_batches] == [FAILED] * 3
        assert "a defect" in str(write_batches[0].error)
        monkeypatch.undo()
        engine.append([b"stored"], "0")
        assert engine.values("0") == [b"stored"]
