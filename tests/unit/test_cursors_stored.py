"""What is stored of cursors, and what is left of it after a crash: entries, the journal, numbers of cursors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.cursor_entries import JOURNAL, entry_key
from engine.cursor_writer import REWRITE_MS
from engine.cursors import IDLE_MS, NEXT_CURSOR_ID, SWEEP_MS
from engine.deliveries import DeliveryPolicy, load
from engine.errors import Corrupt, DiskFull
from engine.state import LmdbState, Put
from tests.cursor_log import CursorLog, numbered


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
    assert cursor_log.subscribe().id == 2


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
    monkeypatch.setattr("engine.cursor_writer.REWRITE_SLICE", 7)
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
    monkeypatch.setattr("engine.cursor_writer.REWRITE_SLICE", 9)
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
