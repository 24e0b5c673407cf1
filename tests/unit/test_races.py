"""Deletion, retention and trimming racing rounds, opening, transactions and reads; topics that fail beside others.

Each order of events is made by holding the thread that is to be late, never by waiting for a while.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
from pathlib import Path

import pytest

from engine import retention
from engine.chunk import COMMITTED, FAILED, PENDING
from engine.config import TopicConfig
from engine.errors import DiskFull, EngineError, NotStored, OutOfRange, ReadOnly, UnknownPartition
from engine.partition import Partition
from engine.transactions import Transaction
from tests.engine_log import EngineLog, segments
from tests.hooked_files import HookedFiles, held

SMALL = TopicConfig(segment_bytes=64 << 10)


def delete(engine: EngineLog, partition: Partition) -> None:
    """Deletes the topic and waits until that is durable (not for the files)."""
    deleted: list[object] = []
    engine.log.catalog.delete(partition.topic, deleted.append)
    engine.inbox.run_until(lambda: bool(deleted))
    assert deleted == [None]


def wait_for_burial(engine: EngineLog, topic_id: int = 1) -> None:
    engine.inbox.run_until(lambda: topic_id not in engine.log.catalog.tombstones)
    assert not (engine.path / "topics" / str(topic_id)).exists()


def fill(engine: EngineLog, rounds: int = 6, topic: str = "t") -> Partition:
    for number in range(rounds):
        engine.append([b"%d" % number + b"." * 4000] * 10, topic=topic)
    return engine.partition(topic)


# --- deletion


def test_deleted_during_a_round(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"1"])
        partition = engine.partition()
        with held(files, "sync_data", ".log") as reached:
            in_flight = partition.append([b"2"])
            assert reached.wait(30)
            behind = partition.append([b"3"])
            delete(engine, partition)
            assert behind.state == FAILED
            assert isinstance(behind.error, NotStored)
            assert in_flight.state == PENDING, "its round goes on"
        engine.settle(in_flight)
        assert in_flight.state == COMMITTED
        wait_for_burial(engine)
        engine.append([b"new"])
        assert engine.values() == [b"new"]


def test_deleted_while_a_round_rolls(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        with held(files, "create", ".log") as reached:
            chunk = partition.append([b"x" * 4000] * 10)
            assert reached.wait(30)
            delete(engine, partition)
        engine.settle(chunk)
        wait_for_burial(engine)
        assert len(engine.log.handles) == 0, "no descriptor holds the room of removed files"


def test_deleted_under_load_of_another_topic_is_removed_all_the_same(tmp_path: Path) -> None:
    """There is always a round in flight: the removal may not wait for a moment of peace."""
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
        partition, busy = engine.partition(), engine.partition("busy")
        rounds = 0

        class Again:
            def round_done(self) -> None:
                nonlocal rounds
                rounds += 1
                if (rounds < 10_000 and 1 in engine.log.catalog.tombstones) or rounds < 3:
                    busy.append([b"y"], waiter=self)

        waiter = Again()
        busy.append([b"y"], waiter=waiter)
        delete(engine, partition)
        wait_for_burial(engine)
        assert rounds < 10_000


def test_a_deleted_partition_cannot_be_opened_or_written_or_read_again(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
        partition = engine.partition()
        delete(engine, partition)
        wait_for_burial(engine)
        opened: list[bool] = []
        partition.when_open(lambda: opened.append(partition.is_open))
        assert opened == [False]
        assert "was deleted" in str(partition.error)
        with pytest.raises(NotStored, match="was deleted"):
            partition.append([b"y"])
        with pytest.raises(NotStored, match="was deleted"):
            partition.read(1, 1000, None)
        with pytest.raises(UnknownPartition, match="was deleted"):
            engine.log.partition(partition.topic)
        assert retention.trim(engine.log, partition, 2) == 0 or not (tmp_path / "d" / "topics" / "1").exists()
    assert not (tmp_path / "d" / "topics" / "1").exists()


def test_deleted_while_it_is_opened(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        partition = engine.log.partition(topic)
        called: list[bool] = []
        with held(files, "open", ".log") as reached:
            partition.when_open(lambda: called.append(partition.is_open))
            assert reached.wait(30)
            delete(engine, partition)
        engine.inbox.run_until(lambda: bool(called))
        assert called == [False]
        wait_for_burial(engine)


def test_opened_again_after_its_opening_was_overtaken_by_deletion(tmp_path: Path) -> None:
    """The job that opens stands behind the one that removes: it may not make the directory again."""
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
    with EngineLog(tmp_path / "d") as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        partition = engine.log.partition(topic)
        deleted: list[object] = []
        engine.log.catalog.delete(topic, deleted.append)
        engine.inbox.run_until(lambda: bool(deleted))
        partition.when_open(lambda: None)
        wait_for_burial(engine)
        engine.append([b"y"])
        assert engine.values() == [b"y"]


def test_the_first_record_of_a_topic_that_is_being_deleted(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.log.catalog.create(b"t", partition_count=2)
        engine.append([b"x"])
        topic = engine.partition().topic
        deleted: list[object] = []
        engine.log.catalog.delete(topic, deleted.append)
        chunk = engine.log.partition(topic, 1).append([b"y"])
        engine.settle(chunk)
        assert chunk.state == FAILED
        engine.inbox.run_until(lambda: bool(deleted))
        assert engine.log.pending_chunks == 0
        wait_for_burial(engine)


def test_deleted_while_its_files_are_made(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        partition = engine.partition()
        with held(files, "create", ".log") as reached:
            chunk = partition.append([b"x"])
            engine.inbox.run_until(reached.is_set)
            delete(engine, partition)
        engine.settle(chunk)
        assert chunk.state == FAILED
        wait_for_burial(engine)


def test_a_deletion_that_the_state_refuses_changes_nothing(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
        topic = engine.partition().topic
        engine.log.state.submit = lambda ops, done=None: engine.inbox.post(lambda: done(DiskFull("full")))  # type: ignore[method-assign,assignment]
        refused: list[object] = []
        engine.log.catalog.delete(topic, refused.append)
        engine.inbox.run_until(lambda: bool(refused))
        del engine.log.state.submit  # type: ignore[method-assign]
        engine.append([b"y"])
        assert engine.values() == [b"x", b"y"]


def test_files_that_cannot_be_removed_go_at_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HookedFiles()
    with caplog.at_level(logging.ERROR), EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"x"])
        files.failing("remove", ".log")
        delete(engine, engine.partition())
        engine.inbox.run_until(lambda: "Input/output error" in caplog.text)
        engine.append([b"new"])
    with EngineLog(tmp_path / "d") as engine:
        wait_for_burial(engine)
        assert engine.values() == [b"new"]


# --- transactions


def begin(engine: EngineLog, *topics: str) -> tuple[Transaction, list[EngineError | None]]:
    transaction = Transaction(engine.log)
    for topic in topics:
        transaction.append(engine.partition(topic), b"in " + topic.encode())
    outcome: list[EngineError | None] = []
    transaction.commit(outcome.append)
    return transaction, outcome


def test_a_topic_deleted_under_a_waiting_transaction_fails_it_and_nothing_behind_it_hangs(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"x"], topic="a")
        engine.append([b"x"], topic="b")
        with held(files, "sync_data", ".log") as reached:
            engine.partition("a").append([b"in flight"])
            assert reached.wait(30)
            _, outcome = begin(engine, "a", "b")
            behind = engine.partition("b").append([b"behind the transaction"])
            delete(engine, engine.partition("a"))
        engine.inbox.run_until(lambda: bool(outcome))
        assert isinstance(outcome[0], NotStored)
        engine.settle(behind)
        assert behind.state == COMMITTED
        assert engine.values("b") == [b"x", b"behind the transaction"]
        assert engine.log.pending_chunks == 0


def test_a_transaction_that_fails_while_files_are_made_leaves_nothing_behind_it_hangs(tmp_path: Path) -> None:
    """The partition that stood behind the transaction was taken out of the queue meanwhile."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"x"], topic="b")
        engine.append([b"x"], topic="c")
        new = engine.partition("new")
        with held(files, "create", ".log") as reached:
            _, outcome = begin(engine, "new", "b")
            engine.inbox.run_until(reached.is_set)
            behind = engine.partition("b").append([b"behind the transaction"])
            engine.append([b"y"], topic="c")  # a round, for which the queue was looked through
            assert behind.state == PENDING
            delete(engine, new)
        engine.inbox.run_until(lambda: bool(outcome))
        assert isinstance(outcome[0], NotStored)
        engine.settle(behind)
        assert engine.values("b") == [b"x", b"behind the transaction"]


def test_a_transaction_whose_marker_is_refused_leaves_nothing_and_partitions_go_on(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"], topic="a")
        engine.append([b"x"], topic="b")
        commit = engine.log.markers.commit
        engine.log.markers.commit = lambda _, done, _also: engine.inbox.post(lambda: done(DiskFull("no space")))  # type: ignore[method-assign]
        _, outcome = begin(engine, "a", "b")
        engine.inbox.run_until(lambda: bool(outcome))
        assert isinstance(outcome[0], DiskFull)
        engine.log.markers.commit = commit  # type: ignore[method-assign]
        _, again = begin(engine, "a", "b")
        engine.inbox.run_until(lambda: bool(again))
        assert again == [None]
        assert engine.values("a") == [b"x", b"in a"]
        engine.image(tmp_path / "crashed")
    with EngineLog(tmp_path / "crashed") as engine:
        assert engine.values("a") == [b"x", b"in a"]
        assert engine.values("b") == [b"x", b"in b"]


def test_a_transaction_of_unknown_outcome_makes_its_partitions_read_only(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"], topic="a")
        engine.append([b"x"], topic="b")
        engine.log.markers.commit = lambda _, done, _also: engine.inbox.post(lambda: done(ReadOnly("commit failed")))  # type: ignore[method-assign]
        _, outcome = begin(engine, "a", "b")
        engine.inbox.run_until(lambda: bool(outcome))
        assert isinstance(outcome[0], ReadOnly)
        for topic in ("a", "b"):
            with pytest.raises(ReadOnly, match="outcome is unknown"):
                engine.partition(topic).append([b"y"])
            assert engine.values(topic) == [b"x"]
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values("a") == engine.values("b") == [b"x"], "the marker is not there: it is cut"


# --- retention and trimming


def test_a_reader_in_a_file_that_is_removed_is_told_where_the_log_begins(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL, retention_grace_ms=0, tail_cache_bytes=1 << 20) as engine:
        partition = fill(engine, 40)
        slab = partition.read(1, 1000, lambda: None)
        while slab is None:
            engine.inbox.run_until(lambda: True)
            slab = partition.read(1, 1000, lambda: None)
        kept = bytes(slab.buffer)
        retention.trim(engine.log, partition, 101)
        engine.inbox.run_until(lambda: partition.marked_log_start == 101)
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: not segments(engine.path)[0].name.endswith("00001.log"))
        assert bytes(slab.buffer) == kept, "what was handed out stays"
        with pytest.raises(OutOfRange) as gone:
            partition.read(slab.last_seq + 1, 1000, None)
        assert gone.value.first == 101


def test_a_start_of_the_log_in_a_gap_before_the_first_segment(tmp_path: Path) -> None:
    """A reader that begins there must meet the first segment, not the active one."""
    with EngineLog(tmp_path / "d", retention_grace_ms=0) as engine:
        partition = engine.partition()
        for first in (1, 21, 41):
            partition.last_seq = max(partition.last_seq, first - 1)  # as after publishes that failed
            partition.roll_wanted = True
            engine.append([b"x"] * 10)
        retention.trim(engine.log, partition, 15)
        assert partition.log_start == 15
        assert [segment.first_seq for segment in partition.sealed] == [21]
        assert [record.seq for record in engine.read()] == [*range(21, 31), *range(41, 51)]
    with EngineLog(tmp_path / "d") as engine:
        assert engine.partition().log_start == 15
        assert [record.seq for record in engine.read()] == [*range(21, 31), *range(41, 51)]


def test_no_file_goes_before_the_raised_start_is_on_disk(tmp_path: Path) -> None:
    files = HookedFiles()
    calls: list[tuple[str, str]] = []
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 10)
        files.hook = lambda call, path: calls.append((call, path.name))
        retention.trim(engine.log, partition, 51)
        engine.inbox.run_until(lambda: partition.marked_log_start == 51)
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: ("remove", "00000000000000000001.log") in calls)
    marked = calls.index(("write", "watermarks"))
    synced = calls.index(("sync_data", "watermarks"), marked)
    assert synced < min(at for at, (call, _) in enumerate(calls) if call == "remove")


def test_no_file_goes_before_the_watermark_tells_where_the_log_begins_now(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 10)
        files.failing("write", "watermarks", errno.ENOSPC)
        before = segments(engine.path)
        retention.trim(engine.log, partition, 51)
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
        retention.trim(engine.log, partition, 51)
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
        retention.trim(engine.log, partition, 51)
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
        retention.trim(engine.log, partition, 61)
        engine.inbox.run_until(lambda: partition.marked_log_start == 61)
        victims = [s for s in segments(engine.path) if s not in {one.path for one in partition.sealed}][:-1]
        removed_bytes = sum(path.stat().st_size for path in victims)
        files.failing(call, victims[-1].name if call == "remove" else "0")
        engine.log.housekeeping.clean()
        engine.inbox.run_until(lambda: bool(engine.log.housekeeping._burials_failing))
        engine.log.housekeeping.clean()
        assert engine.log.housekeeping.failing
        files.hook = lambda call, path: None
        passes = engine.log.housekeeping.last_success_ms
        engine.inbox.run_until(lambda: engine.log.now_ms() > passes)

        def is_clean() -> bool:
            engine.log.housekeeping.clean()
            return not engine.log.housekeeping.failing and not engine.log.housekeeping._graves

        engine.inbox.run_until(is_clean)
        assert engine.log.housekeeping.last_success_ms > passes
        assert not any(path.exists() for path in victims)
        assert engine.log.removed_bytes == removed_bytes, "each is counted once"


def test_removing_goes_on_after_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL, retention_grace_ms=0) as engine:
        partition = fill(engine, 10)
        retention.trim(engine.log, partition, 61)
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
            chunk = partition.append([b"x" * 4000] * 10)
            assert reached.wait(30)
            retention.trim(engine.log, partition, 11)
        engine.settle(chunk)
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
        assert retention.trim(engine.log, engine.log.partition(topic), 5) == 0
        assert engine.partition().log_start == 1


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
        assert "poisoned" in next(iter(keeping.failing))
        assert keeping.last_success_ms > 0
        assert "internal error in housekeeping" in caplog.text
        engine.partition("poisoned").sealed[0].records = 10
        keeping.clean()
        assert keeping.failing == {}
        assert engine.partition("poisoned").log_start > 1


def test_the_housekeeping_thread_survives_whatever_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EngineLog(tmp_path / "d", housekeeping_interval_ms=10, watermarks_sync_interval_ms=10) as engine:
        engine.append([b"x"])
        keeping = engine.log.housekeeping
        failed = threading.Event()

        def broken() -> None:
            failed.set()
            raise RuntimeError("a defect")

        keeping._sync_due = broken  # type: ignore[method-assign]
        with caplog.at_level(logging.CRITICAL):
            assert failed.wait(30)
            failed.clear()
            assert failed.wait(30), "it comes round again"
        del keeping._sync_due  # type: ignore[method-assign]
        keeping.last_success_ms = 0
        engine.inbox.run_until(lambda: keeping.last_success_ms > 0)


def test_many_partitions_are_looked_at_in_turns(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.log.catalog.create(b"wide", partition_count=1200)
        topic = engine.log.catalog.get(b"wide")
        assert topic is not None
        topic.numbers.update({index: index + 1 for index in range(1200)})
        keeping = engine.log.housekeeping
        turns: list[int] = []
        post = engine.log.post
        engine.log.post = lambda callback: (turns.append(1), post(callback))[1]
        keeping.last_success_ms = 0
        keeping._clean_in_turns()
        keeping._clean_in_turns()  # the next one comes due before the first is through: nothing happens
        engine.inbox.run_until(lambda: keeping.last_success_ms > 0)
        assert len(turns) == 2
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


# --- durability "interval"


INTERVAL = TopicConfig(durability="interval", sync_interval_ms=20, segment_bytes=64 << 10)


def test_what_was_written_behind_a_roll_is_synced_in_time_too(tmp_path: Path) -> None:
    files = HookedFiles()
    synced: list[str] = []
    with EngineLog(tmp_path / "d", files=files, topic=INTERVAL) as engine:
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
        assert not engine.log.housekeeping._sync(partition, active)
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


# --- failures of rolling


def test_a_footer_that_cannot_be_synced_makes_the_partition_read_only(tmp_path: Path) -> None:
    """The footer shares a page with records: after a failed sync nothing in it may be called durable."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        files.failing("sync_data", "00001.log")
        chunk = engine.settle(partition.append([b"x" * 4000] * 10))
        assert chunk.state == FAILED
        assert isinstance(chunk.error, ReadOnly)
        files.hook = lambda call, path: None
        with pytest.raises(ReadOnly):
            partition.append([b"y"])
        assert engine.log.committer.counters.sync_failures == 1
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        assert len(engine.read()) == 10


@pytest.mark.parametrize("call", ["create", "write", "sync_data", "sync_dir"])
def test_a_new_segment_that_cannot_be_made_is_tried_again(tmp_path: Path, call: str) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        files.failing(call, "/1/0" if call == "sync_dir" else "00011.log", errno.ENOSPC)
        chunk = engine.settle(partition.append([b"x" * 40_000]))
        assert chunk.state == FAILED
        assert isinstance(chunk.error, DiskFull)
        files.hook = lambda call, path: None
        engine.append([b"y" * 40_000])
        assert [record.seq for record in engine.read()] == [*range(1, 11), 12]
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == [*range(1, 11), 12]


def test_a_failed_new_segment_that_cannot_even_be_removed(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        partition.roll_wanted = True

        def hook(call: str, path: Path) -> None:
            if (call, path.name) in (("sync_data", "00000000000000000011.log"), ("remove", "00000000000000000011.log")):
                raise OSError(errno.EIO, "Input/output error")

        files.hook = hook
        rounds = engine.log.committer.counters.rounds
        engine.log.committer.touch(partition)
        engine.inbox.run_until(lambda: engine.log.committer.counters.rounds > rounds and not partition.queued)
        files.hook = lambda call, path: None
        partition.roll_wanted = True
        engine.append([b"x"])
        assert [record.seq for record in engine.read()] == list(range(1, 12))
        assert len(list(partition.active_segment.directory.glob("*.unused"))) == 1


# --- descriptors


def with_descriptors(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_descriptors_used_up_are_an_error_that_passes(tmp_path: Path) -> None:
    """EMFILE: descriptors that lie idle in the cache are given up first; then records are refused, and it goes on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with EngineLog(tmp_path / "d") as engine:
        for number in range(20):
            engine.append([b"x"], topic=str(number))
        taken: list[int] = []
        try:
            with_descriptors(max(map(int, os.listdir("/proc/self/fd"))) + 16)
            while True:
                try:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    break
            engine.append([b"y"], topic="new")  # what lies idle is closed for it
            assert len(engine.log.handles) < 20
            for number in range(20):
                engine.append([b"z"], topic=str(number))
                assert engine.values(str(number)) == [b"x", b"z"]
        finally:
            for fd in taken:
                os.close(fd)
            with_descriptors(before)


def test_descriptors_used_up_altogether_refuse_and_recover(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"x"])
        engine.log.handles.forget(engine.partition().active_segment.path)
        files.failing("open", ".log", errno.EMFILE)
        chunk = engine.settle(engine.partition().append([b"y"]))
        assert chunk.state == FAILED
        assert "Too many open files" in str(chunk.error)
        files.hook = lambda call, path: None
        engine.append([b"z"])
        assert engine.values() == [b"x", b"z"]
