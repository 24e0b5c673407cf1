"""What is stored of cursors, and what is left of it after a crash: entries, the journal, numbers of cursors."""

from __future__ import annotations

import logging
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.cursors.cursor import Cursor
from engine.cursors.deliveries import DeliveryPolicy, load
from engine.cursors.policies import CursorPolicy
from engine.cursors.stored_cursors import CURSOR, JOURNAL, PAUSED, entry_key, id_of, put_entry
from engine.cursors.table import IDLE_MS, NEXT_CURSOR_ID, SWEEP_MS
from engine.cursors.writer import REWRITE_MS
from engine.errors import Corrupt, DiskFull
from engine.state.clock import steady_ms
from engine.state.store import LmdbState, Op, Put
from tests.cursor_log import OWNER, CursorLog, numbered


def test_after_a_crash_the_unacknowledged_come_again_under_the_same_id(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 200))
    assert cursor_log.seqs(cursor) == list(range(1, 201))
    assert cursor.acknowledge(1, 80) == 80
    assert cursor_log.flush() is None
    cursor_log.crash(tmp_path / "image")
    cursor = cursor_log.get(cursor)
    assert cursor_log.poll(cursor) == [(n, b"%d" % n) for n in range(81, 201)]
    assert [(run.first, run.last, run.attempts) for run in cursor.deliveries.runs()] == [(81, 200, 2)]
    assert cursor.base == 0
    assert cursor_log.subscribe().id > cursor.id


def test_a_crash_before_the_flush_only_repeats(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 10))
    cursor_log.seqs(cursor)
    cursor.acknowledge(1, 10)
    cursor_log.crash(tmp_path / "image")
    assert cursor_log.seqs(cursor_log.get(cursor)) == list(range(1, 11))


def test_moved_cursors_are_written_by_the_clock(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursors = [cursor_log.subscribe() for _ in range(5)]
    cursor_log.engine.append(numbered(1, 4))
    for cursor in cursors:
        cursor_log.seqs(cursor)
        cursor.acknowledge(1, 3)
    rounds = cursor_log.engine.log.state.rounds  # type: ignore[attr-defined]
    cursor_log.tick()
    cursor_log.engine.inbox.run_until(lambda: cursor_log.engine.log.state.pending_bytes == 0)
    assert cursor_log.engine.log.state.rounds == rounds + 1, "all in one submission"  # type: ignore[attr-defined]
    cursor_log.tick()
    assert cursor_log.engine.log.state.pending_bytes == 0, "nothing has moved"
    cursor_log.crash(tmp_path / "image")
    assert [cursor_log.seqs(cursor_log.get(cursor)) for cursor in cursors] == [[4]] * 5


def test_flush_answers_when_all_before_it_is_durable(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 4))
    cursor_log.seqs(cursor)
    answers: list[str] = []
    cursor_log.store.flush(lambda error: answers.append(f"first {error}"))
    cursor.acknowledge(1, 1)
    cursor_log.store.flush(lambda error: answers.append(f"second {error}"))
    cursor_log.store.flush(lambda error: answers.append(f"third {error}"))
    assert answers == []
    cursor_log.engine.inbox.run_until(lambda: len(answers) == 3)
    assert answers == ["first None", "second None", "third None"]
    cursor_log.store.flush(lambda error: answers.append("at once"))
    assert answers[-1] == "at once", "nothing is left to write"


def test_a_damaged_entry_costs_one_cursor(cursor_log: CursorLog) -> None:
    first, second = cursor_log.subscribe(), cursor_log.subscribe()
    answers: list[object] = []
    key = entry_key(first.id)
    cursor_log.engine.log.state.submit([Put(key, ["blipmq", b"", 1])], answers.append)
    cursor_log.engine.inbox.run_until(lambda: bool(answers))
    cursor_log.restart()
    assert cursor_log.store.get(first.id) is None
    assert cursor_log.get(second).id == second.id


def store(cursor_log: CursorLog, *ops: Op) -> None:
    """Changes the state directly."""
    answers: list[object] = []
    cursor_log.engine.log.state.submit(ops, answers.append)
    cursor_log.engine.inbox.run_until(lambda: bool(answers))
    assert answers == [None]


def unload(cursor_log: CursorLog) -> None:
    """Lets go of all cursors that nobody uses."""
    cursor_log.tick(IDLE_MS + SWEEP_MS)
    cursor_log.engine.inbox.run_until(lambda: cursor_log.engine.log.state.pending_bytes == 0)
    cursor_log.tick(IDLE_MS + SWEEP_MS)
    assert cursor_log.store.loaded() == []


@pytest.mark.parametrize("deliveries", [[1, 2], ["text"], [1, -5, 1, 1]])
def test_a_group_whose_entry_turns_out_to_be_damaged_can_be_made_anew(
    cursor_log: CursorLog, deliveries: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    first = cursor_log.subscribe(name=b"workers")
    partition = first.partition
    store(cursor_log, put_entry(first.entry()._replace(deliveries=deliveries)))
    cursor_log.restart()
    partition = cursor_log.engine.partition()
    with caplog.at_level(logging.ERROR):
        assert cursor_log.store.group(OWNER, b"workers", partition) is None
    assert "a cursor is lost" in caplog.text
    assert first.id not in cursor_log.store.ids()
    second = cursor_log.subscribe(name=b"workers")
    cursor_log.restart()
    found = cursor_log.store.group(OWNER, b"workers", cursor_log.engine.partition())
    assert found is not None
    assert found.id == second.id


def test_an_entry_that_is_damaged_while_it_is_not_in_memory(
    cursor_log: CursorLog, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = cursor_log.subscribe(name=b"g"), cursor_log.subscribe()
    unload(cursor_log)
    store(cursor_log, Put(entry_key(first.id), ["blipmq", b"", 1]))
    with caplog.at_level(logging.ERROR):
        assert [entry.id for entry in cursor_log.store.entries()] == [second.id]
        assert cursor_log.store.get(first.id) is None
        assert [entry.id for entry in cursor_log.store.entries()] == [second.id]
    assert caplog.text.count("a cursor is lost") == 1, "told once"
    assert cursor_log.subscribe(name=b"g").id == 3


def test_a_cursor_of_a_topic_that_is_being_deleted_is_not_there(cursor_log: CursorLog) -> None:
    cursor, named = cursor_log.subscribe(), cursor_log.subscribe(name=b"g")
    partition = cursor.partition
    unload(cursor_log)
    done: list[object] = []
    cursor_log.engine.log.catalog.delete(partition.topic, done.append)
    assert cursor_log.store.get(cursor.id) is None
    cursor_log.engine.inbox.run_until(lambda: bool(done))
    assert cursor_log.store.get(named.id) is None
    assert cursor_log.store.group(OWNER, b"g", partition) is None
    assert len(cursor_log.store) == 0


def test_very_many_cursors_of_a_deleted_topic_go_in_turns(
    cursor_log: CursorLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    monkeypatch.setattr("engine.cursors.table.WALK_KEYS", 7)
    store, engine = cursor_log.store, cursor_log.engine
    cursors = [cursor_log.subscribe(name=b"g%d" % number if number % 2 else b"") for number in range(50)]
    other = cursor_log.store.create(OWNER, engine.partition("other"), after_seq=0)
    engine.log.catalog.delete(cursors[0].partition.topic)
    left = []

    def is_over() -> bool:
        left.append(len(store))
        return left[-1] == 1

    engine.inbox.run_until(is_over)
    assert max(before - after for before, after in pairwise(left)) < 5
    assert not any(cursor.alive for cursor in cursors)
    assert store.group(OWNER, b"g1", cursors[1].partition) is None
    engine.inbox.run_until(lambda: engine.log.state.pending_bytes == 0)
    assert [id_of(key) for key, _ in engine.log.state.scan(CURSOR)] == store.ids() == [other.id]


def test_a_cursor_whose_topic_is_gone_is_removed_and_one_of_a_damaged_topic_stays(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe(name=b"g")
    for topic_id in (1000, 1001):
        store(cursor_log, put_entry(cursor.entry()._replace(id=topic_id, topic_id=topic_id)))
    (cursor_log.path / "topics" / "1001").mkdir()
    cursor_log.restart()
    assert cursor_log.store.ids() == [cursor.id, 1000, 1001]
    unload(cursor_log)
    assert cursor_log.store.ids() == [cursor.id, 1001]
    cursor_log.restart()
    assert cursor_log.store.ids() == [cursor.id, 1001]


def test_cursors_expire_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of many is looked through over several ticks, whatever is deleted meanwhile."""
    monkeypatch.setattr("engine.cursors.table.EXPIRY_SLICE", 2)
    cursor_log = CursorLog(tmp_path / "d", policy=CursorPolicy(expiry_ms=60_000))
    cursors = [cursor_log.subscribe() for _ in range(10)]
    unload(cursor_log)
    while cursor_log.store._expiry_queue:
        cursor_log.tick(1)
    later_ms = steady_ms() + 120_000
    monkeypatch.setattr("engine.state.clock.steady_ms", lambda: later_ms)
    cursor_log.tick(SWEEP_MS)
    assert len(cursor_log.store) == 8
    cursor_log.store.delete(cursor_log.get(cursors[0]))
    cursor_log.tick(SWEEP_MS)  # the next sweep is due, but this one is not yet through
    assert len(cursor_log.store) == 5
    for _ in range(3):
        cursor_log.tick(1)
    assert len(cursor_log.store) == 0
    assert cursor_log.store.totals(OWNER).expired == 9
    cursor_log.close()


def test_a_policy_holds_for_the_cursors_of_its_owner(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    other = cursor_log.store.create("fujin", cursor.partition, after_seq=0)
    cursor_log.store.set_policy(OWNER, CursorPolicy(DeliveryPolicy(unacknowledged_max=2)))
    cursor_log.engine.append(numbered(1, 5))
    assert cursor_log.seqs(cursor) == [1, 2]
    assert cursor_log.seqs(other) == [1, 2, 3, 4, 5]


def journal(cursor_log: CursorLog) -> list[Any]:
    return [value for _, value in cursor_log.engine.log.state.scan(JOURNAL)]


def test_many_moved_cursors_cost_one_value(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursors = [cursor_log.subscribe() for _ in range(30)]
    cursor_log.engine.append(numbered(1, 10))
    for count, cursor in enumerate(cursors):
        cursor_log.seqs(cursor, 10)
        cursor.acknowledge(1, count % 10 + 1)
    cursor_log.flush()
    assert [len(rows) for rows in journal(cursor_log)] == [30]
    cursors[3].acknowledge(1, 10)
    cursor_log.flush()
    assert len(journal(cursor_log)) == 1, "few are written to their places"
    cursor_log.tick(IDLE_MS - 1000)
    assert len(cursor_log.store.loaded()) == 30, "what only the journal has stays in memory"
    cursor_log.crash(tmp_path / "image")
    assert len(cursor_log.store.loaded()) == 0
    for count, cursor in enumerate(cursors):
        floor = 10 if count == 3 else count % 10 + 1
        assert cursor_log.get(cursor).deliveries.floor == floor
    cursor_log.engine.inbox.run_until(lambda: not journal(cursor_log))
    cursor_log.restart()
    assert [cursor_log.get(cursor).deliveries.floor for cursor in cursors[:5]] == [1, 2, 3, 10, 5]


def test_the_journal_is_worked_in(cursor_log: CursorLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cursors.writer.REWRITE_SLICE", 7)
    cursors = [cursor_log.subscribe() for _ in range(20)]
    cursor_log.engine.append(numbered(1, 10))
    for cursor in cursors:
        cursor_log.seqs(cursor, 5)
    cursor_log.flush()
    assert len(journal(cursor_log)) == 1
    cursor_log.store.delete(cursors[0])
    cursor_log.tick(REWRITE_MS + 1000)
    for _ in range(10):
        cursor_log.engine.inbox.run_until(lambda: cursor_log.engine.log.state.pending_bytes == 0)
        cursor_log.tick(1)
    assert journal(cursor_log) == []
    assert not any(cursor_log.store.writer.needs(cursor) for cursor in cursors)
    cursor_log.tick(IDLE_MS + SWEEP_MS)
    assert cursor_log.store.loaded() == []
    assert [cursor_log.get(cursor).deliveries.next_seq for cursor in cursors[1:]] == [6] * 19
    assert cursor_log.store.get(cursors[0].id) is None


def test_a_refused_write_is_tried_again(cursor_log: CursorLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cursors = [cursor_log.subscribe() for _ in range(20)]
    cursor_log.engine.append(numbered(1, 10))
    for cursor in cursors:
        cursor_log.seqs(cursor, 5)
    with monkeypatch.context() as patch:
        patch.setattr(cursor_log.engine.log.state, "_commit", lambda _batch: DiskFull("injected"))
        assert isinstance(cursor_log.flush(), DiskFull)
        cursor_log.tick(REWRITE_MS + 1)
        cursor_log.tick(REWRITE_MS + 1)
    cursor_log.tick()
    cursor_log.engine.inbox.run_until(lambda: cursor_log.engine.log.state.pending_bytes == 0)
    cursor_log.crash(tmp_path / "image")
    assert [cursor_log.get(cursor).deliveries.next_seq for cursor in cursors] == [6] * 20


@pytest.mark.parametrize("seed", range(3))
def test_what_was_flushed_is_never_older_after_a_crash(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cursors.writer.REWRITE_SLICE", 9)
    chance = random.Random(seed)
    cursor_log = CursorLog(tmp_path / "0")
    cursors = [cursor_log.subscribe() for _ in range(40)]
    cursor_log.engine.append(numbered(1, 2000))
    for number in range(1, 9):
        for _ in range(chance.randrange(1, 12)):
            for cursor in chance.sample(cursors, chance.choice((1, 3, 8, 9, 25, 40))):
                cursor = cursor_log.get(cursor)
                seqs = cursor_log.seqs(cursor, chance.randrange(1, 6))
                if seqs and chance.random() < 0.8:
                    cursor.acknowledge(seqs[0], chance.choice(seqs))
            action = chance.random()
            if action < 0.4:
                cursor_log.flush()
            elif action < 0.8:
                cursor_log.tick(chance.choice((100, 10_000, REWRITE_MS + 1, IDLE_MS + SWEEP_MS)))
        cursor_log.flush()
        # loaded and dumped: what was in flight since different times is one run then
        expected = [load(cursor_log.get(cursor).deliveries.dump(), DeliveryPolicy()).dump() for cursor in cursors]
        if chance.random() < 0.5:
            cursor_log.tick(REWRITE_MS + 1)
        cursor_log.crash(tmp_path / str(number))
        assert [cursor_log.get(cursor).deliveries.dump() for cursor in cursors] == expected
    cursor_log.close()


def test_a_damaged_counter_gives_no_id_twice(cursor_log: CursorLog, monkeypatch: pytest.MonkeyPatch) -> None:
    last = cursor_log.subscribe()
    cursor_log.store.delete(last)
    get = LmdbState.get

    def damaged(state: LmdbState, key: bytes) -> Any:
        if key == NEXT_CURSOR_ID:
            raise Corrupt("state", None, "injected")
        return get(state, key)

    with monkeypatch.context() as patch:
        patch.setattr(LmdbState, "get", damaged)
        cursor_log.restart()
    assert cursor_log.subscribe().id > last.id


def test_the_newest_row_of_a_journal_counts_and_damaged_ones_cost_themselves(
    cursor_log: CursorLog, caplog: pytest.LogCaptureFixture
) -> None:
    cursors = [cursor_log.subscribe() for _ in range(3)]
    cursor_log.engine.append(numbered(1, 10))
    old, new = ([list(cursor.entry()._replace(version=v, deliveries=[v])) for cursor in cursors] for v in (5, 9))
    damaged: list[Any] = [[], 7, [cursors[0].id, "blipmq"]]
    store(
        cursor_log,
        Put(JOURNAL + bytes(7) + b"\1", [*damaged, *new]),
        Put(JOURNAL + bytes(7) + b"\2", old),
        Put(JOURNAL + bytes(7) + b"\3", "no rows"),
    )
    with caplog.at_level(logging.ERROR):
        cursor_log.restart()
    assert caplog.text.count("a cursor is lost") == 3
    assert [cursor_log.get(cursor).deliveries.next_seq for cursor in cursors] == [9, 9, 9]


def test_many_entries_are_written_in_several_submissions(
    cursor_log: CursorLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cursors.writer.CURSOR_ROUND_NUMBERS_MAX", 100)
    cursors = [cursor_log.subscribe() for _ in range(30)]
    cursor_log.engine.append(numbered(1, 10))
    for cursor in cursors:
        cursor_log.seqs(cursor, 7)
    assert cursor_log.flush() is None, "called when all of it is durable"
    cursor_log.crash(tmp_path / "image")
    assert [cursor_log.get(cursor).deliveries.next_seq for cursor in cursors] == [8] * 30


def test_a_journal_that_could_not_be_worked_in_is_kept_and_tried_again(
    cursor_log: CursorLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = [cursor_log.subscribe() for _ in range(20)]
    cursor_log.engine.append(numbered(1, 10))
    for cursor in cursors:
        cursor_log.seqs(cursor, 5)
    assert cursor_log.flush() is None
    with monkeypatch.context() as patch:
        patch.setattr(cursor_log.engine.log.state, "_commit", lambda _batch: DiskFull("injected"))
        cursor_log.tick(REWRITE_MS + 1)
        cursor_log.engine.inbox.run_until(lambda: cursor_log.engine.log.state.pending_bytes == 0)
    assert len(journal(cursor_log)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(LmdbState, "_commit", lambda _state, _batch: DiskFull("injected"))
        cursor_log.crash(tmp_path / "image")
        cursor_log.engine.inbox.run_until(lambda: cursor_log.engine.log.state.pending_bytes == 0)
    assert [cursor_log.get(cursor).deliveries.next_seq for cursor in cursors] == [6] * 20
    assert len(journal(cursor_log)) == 1
    cursor_log.tick()
    cursor_log.engine.inbox.run_until(lambda: not journal(cursor_log))
    cursor_log.crash(tmp_path / "another")
    assert [cursor_log.get(cursor).deliveries.next_seq for cursor in cursors] == [6] * 20


def test_nothing_is_written_after_the_store_was_closed(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 4))
    assert cursor_log.seqs(cursor) == [1, 2, 3, 4]
    assert cursor_log.flush() is None
    cursor_log.store.close()
    cursor.acknowledge(1, 4)
    cursor_log.store.flush()
    assert cursor_log.engine.log.state.pending_bytes == 0
    cursor_log.restart()
    assert cursor_log.seqs(cursor_log.get(cursor)) == [1, 2, 3, 4]


@pytest.fixture
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submissions of a thousandth of the usual size, and so what cursors put into one."""
    monkeypatch.setattr("engine.cursors.writer.CURSOR_ROUND_NUMBERS_MAX", 8 << 10)
    monkeypatch.setattr("engine.state.store.STATE_VALUE_BYTES_MAX", 64 << 10)
    monkeypatch.setattr("engine.state.store.STATE_ROUND_BYTES_MAX", 64 << 10)


def scattered(log: CursorLog, count: int) -> list[Cursor]:
    """Cursors of which every second record is unacknowledged, in the journal only."""
    cursors = [log.subscribe() for _ in range(count)]
    log.engine.append(numbered(1, 600))
    for cursor in cursors:
        log.seqs(cursor)
        for seq in range(1, 601, 2):
            cursor.acknowledge(seq, seq)
    assert log.flush() is None
    assert len(log.store.writer.journal)
    return cursors


def is_scattered(log: CursorLog, cursor: Cursor) -> bool:
    return log.seqs(log.get(cursor)) == list(range(2, 601, 2))


@pytest.mark.usefixtures("small_rounds")
def test_a_journal_larger_than_a_submission_does_not_stop_the_start(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursors = scattered(cursor_log, 100)
    cursor_log.crash(tmp_path / "image")
    store = cursor_log.store
    deleted, moved = cursor_log.get(cursors[99]), cursor_log.get(cursors[98])
    store.delete(deleted)  # both while the journal is being worked in
    assert is_scattered(cursor_log, moved)
    cursor_log.get(moved).acknowledge(2, 600)
    cursor_log.engine.inbox.run_until(lambda: not store.writer.overlay and not len(store.writer.journal))
    assert cursor_log.flush() is None
    cursor_log.crash(tmp_path / "image 2")
    assert all(is_scattered(cursor_log, cursor) for cursor in cursors[:98])
    assert cursor_log.seqs(cursor_log.get(moved)) == []
    assert cursor_log.store.get(deleted.id) is None


@pytest.mark.usefixtures("small_rounds")
def test_a_journal_larger_than_a_submission_is_worked_in(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursors = scattered(cursor_log, 100)
    cursor_log.tick(2 * REWRITE_MS)
    for _ in range(200):
        cursor_log.engine.inbox.run_until(lambda: not cursor_log.engine.log.state.pending_bytes)
        cursor_log.tick()
    assert not len(cursor_log.store.writer.journal)
    cursor_log.crash(tmp_path / "image")
    assert all(is_scattered(cursor_log, cursor) for cursor in cursors)


@pytest.mark.usefixtures("small_rounds")
def test_long_names_count_in_what_is_written_at_once(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursors = [cursor_log.subscribe(name=b"%04d" % n * 256) for n in range(70)]
    cursor_log.engine.append([b"x"])
    for cursor in cursors:
        assert cursor_log.seqs(cursor) == [1]
        cursor.acknowledge(1, 1)
    assert cursor_log.flush() is None
    cursor_log.crash(tmp_path / "image")
    assert [cursor_log.seqs(cursor_log.get(cursor)) for cursor in cursors] == [[]] * 70


def test_a_paused_cursor_delivers_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d")
    cursor = log.subscribe(after_seq=0)
    log.engine.append(numbered(1, 5))
    assert log.seqs(cursor, 2) == [1, 2]
    answers: list[object] = []
    log.store.pause(cursor, True, answers.append)
    log.engine.inbox.run_until(lambda: bool(answers))
    assert log.seqs(cursor) == []
    cursor.acknowledge(1, 2)
    assert log.flush() is None
    log.restart()
    cursor = log.get(cursor)
    assert (cursor.is_paused, log.store.is_paused(cursor.id)) == (True, True)
    assert log.seqs(cursor) == []
    woken: list[object] = []
    cursor.wait(lambda: woken.append(None))
    log.store.pause(cursor, False)
    assert woken == [None]
    assert log.seqs(cursor) == [3, 4, 5]
    log.store.pause(cursor, True)
    log.store.delete(cursor)
    log.restart()
    assert list(log.engine.log.state.scan(PAUSED, print)) == []
    log.close()
