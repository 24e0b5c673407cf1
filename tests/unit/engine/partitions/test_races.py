"""Deletion of topics racing rounds, opening and transactions.

Each order of events is made by holding the thread that is to be late, never by waiting for a while.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest

from engine.commit.transactions import Transaction
from engine.errors import DiskFull, EngineError, NotStored, ReadOnly, UnknownPartition
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, FAILED, PENDING
from tests.engine_log import SMALL, EngineLog, delete, fill, wait_for_burial
from tests.hooked_files import HookedFiles, held

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
            write_batch = partition.append([b"x" * 4000] * 10)
            assert reached.wait(30)
            delete(engine, partition)
        engine.settle(write_batch)
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


def test_a_topic_of_very_many_partitions_is_deleted_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 100
    with EngineLog(tmp_path / "d") as engine:
        log = engine.log
        log.catalog.create(b"before", partition_count=2)
        topic = log.catalog.create(b"wide", partition_count=count)
        log.catalog.create(b"after", partition_count=2)
        partitions = [log.partition(topic, index) for index in range(count)]
        others = [
            log.partition(log.catalog.get_or_create(name), index) for name in (b"before", b"after") for index in (0, 1)
        ]
        for batch in [partition.append([b"x"]) for partition in (*partitions, *others)]:
            engine.settle(batch)
        told: list[int] = []
        for partition in partitions:
            partition.read(partition.committed_seq + 1, 1, partial(told.append, partition.index))
        turns: set[int] = set()
        wake = Partition._wake_readers
        monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
        monkeypatch.setattr(
            Partition, "_wake_readers", lambda self: (turns.add(log.context.slices.turn_of()), wake(self))
        )
        submitted: list[int] = []
        submit = log.state.submit
        monkeypatch.setattr(log.state, "submit", lambda ops, done=None: (submitted.append(len(ops)), submit(ops, done)))
        delete(engine, partitions[0])
        for partition in partitions:
            with pytest.raises(NotStored, match="was deleted"):
                partition.append([b"y"])
        wait_for_burial(engine, topic.id)
        engine.inbox.run_until(lambda: len(told) == count)
        assert sorted(told) == list(range(count))
        assert max(submitted) < 10, "changes of the state"
        assert len(turns) > count // 4, "turns of the loop"
        assert [partition.append([b"y"]).error for partition in others] == [None] * 4
    with EngineLog(tmp_path / "d") as again:
        names = {topic.name: dict(topic.numbers) for topic in again.log.catalog}
        assert [len(names[name]) for name in (b"before", b"after")] == [2, 2]
        assert b"wide" not in names


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
        assert partition.trim(2) == 0 or not (tmp_path / "d" / "topics" / "1").exists()
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
        write_batch = engine.log.partition(topic, 1).append([b"y"])
        engine.settle(write_batch)
        assert write_batch.state == FAILED
        engine.inbox.run_until(lambda: bool(deleted))
        assert engine.log.context.backlog.write_batches == 0
        wait_for_burial(engine)


def test_deleted_while_its_files_are_made(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        partition = engine.partition()
        with held(files, "create", ".log") as reached:
            write_batch = partition.append([b"x"])
            engine.inbox.run_until(reached.is_set)
            delete(engine, partition)
        engine.settle(write_batch)
        assert write_batch.state == FAILED
        wait_for_burial(engine)


def test_a_deletion_that_the_state_refuses_changes_nothing(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
        topic = engine.partition().topic
        engine.log.state.submit = lambda ops, done=None: engine.inbox.call_soon_threadsafe(
            lambda: done(DiskFull("full"))
        )  # type: ignore[method-assign,assignment]
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
    transaction = engine.log.transaction()
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
        assert engine.log.context.backlog.write_batches == 0


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


def test_what_stands_behind_a_transaction_goes_on_when_that_is_stored(tmp_path: Path) -> None:
    """The partition was taken out of the queue while the files of another one were made."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"x"], topic="b")
        engine.append([b"x"], topic="c")
        engine.partition("new")
        with held(files, "create", ".log") as reached:
            _, outcome = begin(engine, "new", "b")
            engine.inbox.run_until(reached.is_set)
            behind = engine.partition("b").append([b"behind the transaction"])
            engine.append([b"y"], topic="c")
            assert behind.state == PENDING
        engine.settle(behind)
        assert outcome == [None]
        assert engine.values("b") == [b"x", b"in b", b"behind the transaction"]
        assert engine.values("new") == [b"in new"]


def test_a_transaction_whose_marker_is_refused_leaves_nothing_and_partitions_go_on(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"], topic="a")
        engine.append([b"x"], topic="b")
        commit = engine.log.committer.markers.commit
        engine.log.committer.markers.commit = lambda _, done, _also: engine.inbox.call_soon_threadsafe(
            lambda: done(DiskFull("no space"))
        )  # type: ignore[method-assign]
        _, outcome = begin(engine, "a", "b")
        engine.inbox.run_until(lambda: bool(outcome))
        assert isinstance(outcome[0], DiskFull)
        engine.log.committer.markers.commit = commit  # type: ignore[method-assign]
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
        engine.log.committer.markers.commit = lambda _, done, _also: engine.inbox.call_soon_threadsafe(
            lambda: done(ReadOnly("commit failed"))
        )  # type: ignore[method-assign]
        _, outcome = begin(engine, "a", "b")
        engine.inbox.run_until(lambda: bool(outcome))
        assert isinstance(outcome[0], ReadOnly)
        for topic in ("a", "b"):
            with pytest.raises(ReadOnly, match="outcome is unknown"):
                engine.partition(topic).append([b"y"])
            assert engine.values(topic) == [b"x"]
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values("a") == engine.values("b") == [b"x"], "the marker is not there: it is cut"
