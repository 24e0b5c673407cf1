"""Durable cursors over a real log: delivery, lazy writing, restart, retention, damage, expiry, dead letters."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import TopicConfig
from engine.cursor import Cursor
from engine.cursor_entries import JOURNAL, entry_key
from engine.cursor_writer import REWRITE_MS
from engine.cursors import IDLE_MS, NEXT_CURSOR_ID, SWEEP_MS, CursorPolicy
from engine.deliveries import DeliveryPolicy, load
from engine.errors import Corrupt, DiskFull, EngineError, InvalidConfig
from engine.state import LmdbState, Put
from tests.engine_log import EngineLog, segments

OWNER = "blipmq"


class Clock:
    """Monotonic milliseconds that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Fixture:
    """A log with its cursors; ``restart`` opens a copy as a kill -9 would leave it, or the same directory."""

    def __init__(self, path: Path, topic: TopicConfig | None = None, policy: CursorPolicy | None = None) -> None:
        self.path = path
        self.topic = topic
        self.clock = Clock()
        self.policy = policy or CursorPolicy()
        self._open(path)

    def _open(self, path: Path) -> None:
        self.engine = EngineLog(path, topic=self.topic, tail_cache_bytes=1 << 20)
        self.store = self.engine.log.cursors
        self.store.clock_ms = self.clock
        self.store.set_policy(OWNER, self.policy)

    def close(self) -> None:
        self.engine.close()

    def restart(self) -> None:
        self.close()
        self._open(self.path)

    def crash(self, target: Path) -> None:
        """Go on with what is on disk now."""
        self.engine.image(target)
        self.close()
        self.path = target
        self._open(target)

    def subscribe(self, topic: str = "t", **options: Any) -> Cursor:
        partition = self.engine.partition(topic)
        answers: list[EngineError | None] = []
        after_seq = options.pop("after_seq", partition.last_seq)
        cursor = self.store.create(
            OWNER,
            partition,
            after_seq=after_seq,
            on_durable=answers.append,
            **options,  # type: ignore[arg-type]
        )
        self.engine.inbox.run_until(lambda: bool(answers))
        assert answers == [None]
        return cursor

    def get(self, cursor: Cursor) -> Cursor:
        found = self.store.get(cursor.id)
        assert found is not None
        return found

    def poll(self, cursor: Cursor, limit: int = 1 << 30) -> list[tuple[int, bytes]]:
        """Deliver up to ``limit`` records: (number, value)."""
        got: list[tuple[int, bytes]] = []
        while len(got) < limit:
            plan = cursor.next(self.clock.now_ms)
            if plan is None:
                if not cursor.waiting:
                    break
                ready: list[bool] = []
                cursor.wait(lambda ready=ready: ready.append(True))  # type: ignore[misc]
                self.engine.inbox.run_until(lambda ready=ready: bool(ready))  # type: ignore[misc]
                continue
            reader = cursor.reader
            assert reader.records is not None
            record = reader.records.record()
            assert plan.first <= record.seq <= plan.last
            got.append((record.seq, record.value))
            reader.advance()
            reader.moved(record.seq + 1, reader.current)
            cursor.delivered(plan, record.seq, record.seq, self.clock.now_ms)
        return got

    def seqs(self, cursor: Cursor, limit: int = 1 << 30) -> list[int]:
        return [seq for seq, _ in self.poll(cursor, limit)]

    def flush(self) -> EngineError | None:
        answers: list[EngineError | None] = []
        self.store.flush(answers.append)
        self.engine.inbox.run_until(lambda: bool(answers))
        return answers[0]

    def tick(self, pass_ms: int = 100) -> None:
        self.clock.now_ms += pass_ms
        self.store.tick()
        self.engine.inbox.run_posted()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    made = Fixture(tmp_path / "d")
    yield made
    made.close()


def numbered(first: int, last: int, size: int = 0) -> list[bytes]:
    return [b"%d" % n + b"." * size for n in range(first, last + 1)]


def test_a_cursor_sees_what_comes_after_it(fixture: Fixture) -> None:
    fixture.engine.append([b"before"])
    cursor = fixture.subscribe()
    assert fixture.poll(cursor) == []
    fixture.engine.append([b"a", b"b"])
    other = fixture.subscribe()
    fixture.engine.append([b"c"])
    assert fixture.poll(cursor) == [(2, b"a"), (3, b"b"), (4, b"c")]
    assert fixture.poll(other) == [(4, b"c")]
    assert (cursor.base, other.base) == (1, 3)
    assert (cursor.id, other.id) == (1, 2)
    assert cursor.acknowledge(3, 3) == 1
    assert cursor.acknowledge(3, 3) == 0
    assert cursor.acknowledge(5, 5) == 0
    assert fixture.store.totals(OWNER).acknowledged == 1


def test_redelivery_after_the_backoff(fixture: Fixture) -> None:
    cursor = fixture.subscribe()
    fixture.engine.append([b"a", b"b"])
    assert fixture.seqs(cursor, 1) == [1]
    fixture.clock.now_ms += 400
    assert fixture.seqs(cursor) == [2, 1]
    fixture.clock.now_ms += 150
    assert fixture.seqs(cursor) == [2]
    assert fixture.store.totals(OWNER).redelivered == 2


def test_after_a_crash_the_unacknowledged_come_again_under_the_same_id(fixture: Fixture, tmp_path: Path) -> None:
    cursor = fixture.subscribe()
    fixture.engine.append(numbered(1, 200))
    assert fixture.seqs(cursor) == list(range(1, 201))
    assert cursor.acknowledge(1, 80) == 80
    assert fixture.flush() is None
    fixture.crash(tmp_path / "image")
    cursor = fixture.get(cursor)
    assert fixture.poll(cursor) == [(n, b"%d" % n) for n in range(81, 201)]
    assert [(run.first, run.last, run.attempts) for run in cursor.deliveries.runs()] == [(81, 200, 2)]
    assert cursor.base == 0
    assert fixture.subscribe().id == 2


def test_a_crash_before_the_flush_only_repeats(fixture: Fixture, tmp_path: Path) -> None:
    cursor = fixture.subscribe()
    fixture.engine.append(numbered(1, 10))
    fixture.seqs(cursor)
    cursor.acknowledge(1, 10)
    fixture.crash(tmp_path / "image")
    assert fixture.seqs(fixture.get(cursor)) == list(range(1, 11))


def test_moved_cursors_are_written_by_the_clock(fixture: Fixture, tmp_path: Path) -> None:
    cursors = [fixture.subscribe() for _ in range(5)]
    fixture.engine.append(numbered(1, 4))
    for cursor in cursors:
        fixture.seqs(cursor)
        cursor.acknowledge(1, 3)
    rounds = fixture.engine.log.state.rounds  # type: ignore[attr-defined]
    fixture.tick()
    fixture.engine.inbox.run_until(lambda: fixture.engine.log.state.pending_bytes == 0)
    assert fixture.engine.log.state.rounds == rounds + 1, "all in one submission"  # type: ignore[attr-defined]
    fixture.tick()
    assert fixture.engine.log.state.pending_bytes == 0, "nothing has moved"
    fixture.crash(tmp_path / "image")
    assert [fixture.seqs(fixture.get(cursor)) for cursor in cursors] == [[4]] * 5


def test_flush_answers_when_all_before_it_is_durable(fixture: Fixture) -> None:
    cursor = fixture.subscribe()
    fixture.engine.append(numbered(1, 4))
    fixture.seqs(cursor)
    answers: list[str] = []
    fixture.store.flush(lambda error: answers.append(f"first {error}"))
    cursor.acknowledge(1, 1)
    fixture.store.flush(lambda error: answers.append(f"second {error}"))
    fixture.store.flush(lambda error: answers.append(f"third {error}"))
    assert answers == []
    fixture.engine.inbox.run_until(lambda: len(answers) == 3)
    assert answers == ["first None", "second None", "third None"]
    fixture.store.flush(lambda error: answers.append("at once"))
    assert answers[-1] == "at once", "nothing is left to write"


def test_ids_are_never_used_again(fixture: Fixture) -> None:
    first = fixture.subscribe()
    second = fixture.subscribe()
    fixture.store.delete(second)
    assert fixture.store.get(second.id) is None
    assert not second.alive
    fixture.restart()
    assert fixture.store.ids() == [first.id]
    assert fixture.store.get(second.id) is None
    assert fixture.subscribe().id == 3


def test_groups_are_found_by_name(fixture: Fixture) -> None:
    cursor = fixture.subscribe(name=b"workers")
    partition = fixture.engine.partition()
    assert fixture.store.group(OWNER, b"workers", partition) is cursor
    assert fixture.store.group(OWNER, b"others", partition) is None
    assert fixture.store.group("fujin", b"workers", partition) is None
    with pytest.raises(InvalidConfig):
        fixture.store.create(OWNER, partition, after_seq=0, name=b"workers")
    with pytest.raises(InvalidConfig):
        fixture.store.create(OWNER, partition, after_seq=0, name=b"w" * 1025)
    fixture.restart()
    found = fixture.store.group(OWNER, b"workers", fixture.engine.partition())
    assert found is not None
    assert found.id == cursor.id
    fixture.store.delete(found)
    assert fixture.store.group(OWNER, b"workers", fixture.engine.partition()) is None


def test_a_deleted_topic_takes_its_cursors_along(fixture: Fixture) -> None:
    cursor = fixture.subscribe("gone", name=b"g")
    unloaded = fixture.subscribe("gone")
    kept = fixture.subscribe("kept")
    fixture.engine.append(numbered(1, 3), "gone")
    called: list[bool] = []
    cursor.wait(lambda: called.append(True))
    fixture.tick(IDLE_MS + SWEEP_MS)
    topic = fixture.engine.log.catalog.get(b"gone")
    assert topic is not None
    done: list[object] = []
    fixture.engine.log.catalog.delete(topic, done.append)
    fixture.engine.inbox.run_until(lambda: bool(done) and not fixture.engine.log.catalog.tombstones)
    assert called, "who waits finds out"
    assert [fixture.store.get(one.id) for one in (cursor, unloaded)] == [None, None]
    assert fixture.store.ids() == [kept.id]
    fixture.restart()
    assert fixture.store.ids() == [kept.id]
    assert fixture.subscribe("gone").base == 0, "a new topic of that name begins anew"


def test_retention_passes_a_cursor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fixture = Fixture(tmp_path / "d", TopicConfig(segment_bytes=64 << 10, retention_records=500))
    cursor = fixture.subscribe()
    fixture.engine.append(numbered(1, 100, 300))
    assert fixture.seqs(cursor, 50) == list(range(1, 51))
    cursor.acknowledge(1, 40)
    for first in range(101, 2000, 100):
        fixture.engine.append(numbered(first, first + 99, 300))
    fixture.engine.log.housekeeping.clean()
    partition = fixture.engine.partition()
    assert partition.log_start > 101
    with caplog.at_level(logging.WARNING):
        assert fixture.seqs(cursor, 1) == [partition.log_start]
        assert fixture.seqs(cursor, 1) == [partition.log_start + 1]
    expected = partition.log_start - 41
    assert cursor.lost == fixture.store.totals(OWNER).lost == expected
    assert [record.message for record in caplog.records if "retention" in record.message] == [
        f"blipmq subscription 1 of topic 't' partition 0: retention removed {expected} records before they were "
        "acknowledged"
    ]
    assert cursor.acknowledge(45, 45) == 0
    fixture.close()


def test_damage_costs_its_records_once(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path / "d", TopicConfig(segment_bytes=64 << 10))
    cursor = fixture.subscribe()
    acknowledging = fixture.subscribe()
    for first in range(1, 1000, 100):
        fixture.engine.append(numbered(first, first + 99, 300))
    assert fixture.seqs(acknowledging, 300) == list(range(1, 301))
    fixture.restart()
    path = segments(tmp_path / "d")[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    got = fixture.seqs(fixture.get(cursor))
    missing = sorted(set(range(1, 1001)) - set(got))
    assert got == sorted(got)
    assert 0 < len(missing) <= 255
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert fixture.get(cursor).lost == len(missing)
    assert fixture.get(cursor).deliveries.unacknowledged == len(got)
    again = fixture.get(acknowledging)
    assert fixture.seqs(again) == got, "what was in flight comes first, in order, but for the damage"
    assert again.lost == len(missing)
    fixture.close()


def test_an_older_log_puts_the_cursor_at_its_end(fixture: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    cursor = fixture.subscribe()
    fixture.engine.append(numbered(1, 10))
    ahead = fixture.subscribe(after_seq=20)
    assert len(fixture.seqs(cursor)) == 10
    cursor.deliveries.next_seq = 16  # as if the log had been longer
    cursor.touch()
    fixture.restart()
    cursor, ahead = fixture.get(cursor), fixture.get(ahead)
    with caplog.at_level(logging.ERROR):
        assert fixture.seqs(cursor) == list(range(1, 11))
        assert fixture.seqs(ahead) == []
    assert [record.message for record in caplog.records] == [
        "blipmq subscription 1 of topic 't' partition 0 was 5 records beyond the end of the log; set to its end",
        "blipmq subscription 2 of topic 't' partition 0 was 10 records beyond the end of the log; set to its end",
    ]
    fixture.engine.append([b"new"])
    assert fixture.poll(ahead) == [(11, b"new")]
    assert ahead.base == 10


def test_reading_from_files_waits_for_the_disk(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path / "d", TopicConfig(segment_bytes=64 << 10))
    cursor = fixture.subscribe()
    for first in range(1, 2001, 100):
        fixture.engine.append(numbered(first, first + 99, 1000))
    fixture.restart()
    cursor = fixture.get(cursor)
    assert fixture.poll(cursor) == [(n, b"%d" % n + b"." * 1000) for n in range(1, 2001)]
    assert fixture.store.slabs.size_bytes < 4 << 20
    fixture.close()


def test_cursors_share_what_they_read(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path / "d", TopicConfig(segment_bytes=1 << 20))
    cursors = [fixture.subscribe() for _ in range(50)]
    for first in range(1, 1001, 100):
        fixture.engine.append(numbered(first, first + 99, 1000))
    fixture.restart()
    for cursor in cursors:
        assert fixture.seqs(fixture.get(cursor), 3) == [1, 2, 3]
    assert fixture.store.slabs.size_bytes < 1 << 20
    fixture.close()


def test_slabs_are_bounded(fixture: Fixture) -> None:
    fixture.store.slabs._bytes_max = 300_000
    cursors = [fixture.subscribe(f"t{n}") for n in range(20)]
    for n in range(20):
        fixture.engine.append(numbered(1, 40, 1000), f"t{n}")
    for _ in range(3):
        for cursor in cursors:
            assert len(fixture.seqs(cursor, 5)) == 5
            assert fixture.store.slabs.size_bytes <= 300_000
    assert [fixture.seqs(cursor) for cursor in cursors] == [list(range(16, 41))] * 20


def test_waiting_for_something_new(fixture: Fixture) -> None:
    cursor = fixture.subscribe()
    called: list[str] = []

    def one() -> None:
        called.append("one")

    def two() -> None:
        called.append("two")

    cursor.wait(one)
    cursor.wait(one)
    cursor.wait(two)
    cursor.forget(two)
    fixture.engine.append([b"x"])
    fixture.engine.inbox.run_until(lambda: bool(called))
    assert called == ["one"]
    assert fixture.seqs(cursor) == [1]
    cursor.wait(one)
    assert cursor.give_back(1, 1, fixture.clock.now_ms) == 1
    assert called == ["one", "one"]
    assert fixture.seqs(cursor) == [1]
    cursor.wait(two)
    fixture.tick(400)
    assert called == ["one", "one", "two"], "it fell due"
    cursor.wait(one)
    cursor.reset(0)
    assert called[-1] == "one"
    assert fixture.seqs(cursor) == [1]
    assert cursor.base == 0


def test_reset_backwards_moves_the_base(fixture: Fixture) -> None:
    fixture.engine.append(numbered(1, 5))
    cursor = fixture.subscribe()
    cursor.reset(2)
    assert fixture.seqs(cursor) == [3, 4, 5]
    assert cursor.base == 2


def test_idle_cursors_are_let_go_and_come_back(fixture: Fixture) -> None:
    cursor = fixture.subscribe()
    pinned = fixture.subscribe()
    pinned.pins += 1
    fixture.engine.append(numbered(1, 3))
    fixture.seqs(cursor, 2)
    fixture.flush()
    fixture.tick(IDLE_MS // 2)
    assert fixture.get(cursor) is cursor
    fixture.tick(IDLE_MS)
    assert fixture.store.loaded() == [pinned]
    assert [entry.id for entry in fixture.store.entries()] == [cursor.id, pinned.id]
    assert [entry.deliveries for entry in fixture.store.entries()] == [[3, 2, 2, 1], [1]]
    assert fixture.store.loaded() == [pinned], "looking loads nothing"
    assert fixture.seqs(fixture.get(cursor)) == [1, 2, 3]


def test_abandoned_cursors_expire(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path / "d", policy=CursorPolicy(expiry_ms=86_400_000))
    old, young = fixture.subscribe(name=b"old"), fixture.subscribe()
    old.used_ms -= 90_000_000
    old.is_dirty = True
    fixture.store.writer.moved(old)
    fixture.flush()
    fixture.tick(IDLE_MS * 2)
    assert fixture.store.loaded() == []
    fixture.tick(SWEEP_MS)
    assert fixture.store.ids() == [young.id]
    assert fixture.store.get(old.id) is None
    assert fixture.store.group(OWNER, b"old", fixture.engine.partition()) is None
    assert fixture.store.totals(OWNER).expired == 1
    fixture.restart()
    assert fixture.store.ids() == [young.id]
    fixture.close()


def test_use_keeps_a_cursor(fixture: Fixture) -> None:
    cursor = fixture.subscribe()
    cursor.used()
    assert not cursor.is_dirty
    cursor.used_ms -= 2 * 3_600_000
    cursor.used()
    assert cursor.is_dirty
    assert fixture.engine.log.now_ms() - cursor.used_ms < 3_600_000


def test_given_up_records_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fixture = Fixture(tmp_path / "d", policy=CursorPolicy(DeliveryPolicy(deliveries_max=2)))
    cursor = fixture.subscribe()
    fixture.engine.append([b"a", b"b"])
    assert fixture.seqs(cursor) == [1, 2]
    fixture.clock.now_ms += 1000
    assert fixture.seqs(cursor) == [1, 2]
    cursor.acknowledge(1, 1)
    with caplog.at_level(logging.WARNING):
        fixture.tick(1000)
    assert "records 2 to 2 were delivered 2 times" in caplog.text
    assert cursor.deliveries.floor == 2
    assert cursor.acknowledge(2, 2) == 0
    totals = fixture.store.totals(OWNER)
    assert (totals.given_up, totals.dead_letters) == (1, 0)
    fixture.close()


def test_given_up_records_go_to_the_dead_letter_topic(tmp_path: Path) -> None:
    policy = CursorPolicy(DeliveryPolicy(deliveries_max=1), dead_letter_suffix=b".dead")
    fixture = Fixture(tmp_path / "d", policy=policy)
    cursor = fixture.subscribe()
    dead_cursor = fixture.subscribe("t.dead")
    fixture.engine.append([b"a", b"b", b"c"], keys=[b"k", b"", b""], headers=[(b"h", b"v"), (), ()])
    fixture.seqs(cursor)
    cursor.acknowledge(2, 2)
    fixture.tick(1000)
    fixture.engine.inbox.run_until(lambda: cursor.deliveries.unacknowledged == 0)
    first, second = fixture.engine.read("t.dead")
    assert (first.key, first.value, second.value) == (b"k", b"a", b"c")
    assert first.headers == (
        b"dead-letter-topic", b"t", b"dead-letter-seq", b"1", b"dead-letter-subscription", b"1",
        b"dead-letter-deliveries", b"1", b"h", b"v",
    )  # fmt: skip
    assert second.headers[3] == b"3"
    totals = fixture.store.totals(OWNER)
    assert (totals.given_up, totals.dead_letters) == (2, 2)
    assert fixture.seqs(dead_cursor) == [1, 2]
    fixture.tick(1000)
    assert dead_cursor.deliveries.unacknowledged == 0, "a dead letter that is given up is dropped"
    assert fixture.engine.log.catalog.get(b"t.dead.dead") is None
    fixture.close()


def test_dead_letters_survive_a_crash_on_the_way(tmp_path: Path) -> None:
    policy = CursorPolicy(DeliveryPolicy(deliveries_max=1), dead_letter_suffix=b".dead")
    fixture = Fixture(tmp_path / "d", policy=policy)
    cursor = fixture.subscribe()
    fixture.engine.append([b"a"])
    fixture.seqs(cursor)
    fixture.flush()
    fixture.clock.now_ms += 1000
    cursor.fall_due(fixture.clock.now_ms)
    assert len(fixture.store.dead_letters) == 1
    fixture.crash(tmp_path / "image")
    assert fixture.seqs(fixture.get(cursor)) == [1], "delivered once more rather than never"
    fixture.close()


def test_a_damaged_entry_costs_one_cursor(fixture: Fixture) -> None:
    first, second = fixture.subscribe(), fixture.subscribe()
    answers: list[object] = []
    key = entry_key(first.id)
    fixture.engine.log.state.submit([Put(key, ["blipmq", b"", 1])], answers.append)
    fixture.engine.inbox.run_until(lambda: bool(answers))
    fixture.restart()
    assert fixture.store.get(first.id) is None
    assert fixture.get(second).id == second.id


def test_the_limit_of_unacknowledged(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path / "d", policy=CursorPolicy(DeliveryPolicy(retry_backoff_ms=0, unacknowledged_max=10)))
    cursor = fixture.subscribe()
    fixture.engine.append(numbered(1, 100))
    assert fixture.seqs(cursor) == list(range(1, 11))
    cursor.acknowledge(5, 7)
    assert fixture.seqs(cursor) == [11, 12, 13]
    fixture.store.set_policy(OWNER, CursorPolicy(DeliveryPolicy(retry_backoff_ms=0, unacknowledged_max=12)))
    assert fixture.seqs(cursor) == [14, 15], "a new policy holds at once"
    fixture.close()


# --- many at once


def journal(fixture: Fixture) -> list[Any]:
    return [value for _, value in fixture.engine.log.state.scan(JOURNAL)]


def test_many_moved_cursors_cost_one_value(fixture: Fixture, tmp_path: Path) -> None:
    cursors = [fixture.subscribe() for _ in range(30)]
    fixture.engine.append(numbered(1, 10))
    for count, cursor in enumerate(cursors):
        fixture.seqs(cursor, 10)
        cursor.acknowledge(1, count % 10 + 1)
    fixture.flush()
    assert [len(rows) for rows in journal(fixture)] == [30]
    cursors[3].acknowledge(1, 10)
    fixture.flush()
    assert len(journal(fixture)) == 1, "few are written to their places"
    fixture.tick(IDLE_MS - 1000)
    assert len(fixture.store.loaded()) == 30, "what only the journal has stays in memory"
    fixture.crash(tmp_path / "image")
    assert len(fixture.store.loaded()) == 0
    for count, cursor in enumerate(cursors):
        floor = 10 if count == 3 else count % 10 + 1
        assert fixture.get(cursor).deliveries.floor == floor
    fixture.engine.inbox.run_until(lambda: not journal(fixture))
    fixture.restart()
    assert [fixture.get(cursor).deliveries.floor for cursor in cursors[:5]] == [1, 2, 3, 10, 5]


def test_the_journal_is_worked_in(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cursor_writer.REWRITE_SLICE", 7)
    cursors = [fixture.subscribe() for _ in range(20)]
    fixture.engine.append(numbered(1, 10))
    for cursor in cursors:
        fixture.seqs(cursor, 5)
    fixture.flush()
    assert len(journal(fixture)) == 1
    fixture.store.delete(cursors[0])
    fixture.tick(REWRITE_MS + 1000)
    for _ in range(10):
        fixture.engine.inbox.run_until(lambda: fixture.engine.log.state.pending_bytes == 0)
        fixture.tick(1)
    assert journal(fixture) == []
    assert not any(fixture.store.writer.needs(cursor) for cursor in cursors)
    fixture.tick(IDLE_MS + SWEEP_MS)
    assert fixture.store.loaded() == []
    assert [fixture.get(cursor).deliveries.next_seq for cursor in cursors[1:]] == [6] * 19
    assert fixture.store.get(cursors[0].id) is None


def test_a_refused_write_is_tried_again(fixture: Fixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cursors = [fixture.subscribe() for _ in range(20)]
    fixture.engine.append(numbered(1, 10))
    for cursor in cursors:
        fixture.seqs(cursor, 5)
    with monkeypatch.context() as patch:
        patch.setattr(fixture.engine.log.state, "_commit", lambda _batch: DiskFull("injected"))
        assert isinstance(fixture.flush(), DiskFull)
        fixture.tick(REWRITE_MS + 1)
        fixture.tick(REWRITE_MS + 1)
    fixture.tick()
    fixture.engine.inbox.run_until(lambda: fixture.engine.log.state.pending_bytes == 0)
    fixture.crash(tmp_path / "image")
    assert [fixture.get(cursor).deliveries.next_seq for cursor in cursors] == [6] * 20


@pytest.mark.parametrize("seed", range(3))
def test_what_was_flushed_is_never_older_after_a_crash(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cursor_writer.REWRITE_SLICE", 9)
    chance = random.Random(seed)
    fixture = Fixture(tmp_path / "0")
    cursors = [fixture.subscribe() for _ in range(40)]
    fixture.engine.append(numbered(1, 2000))
    for number in range(1, 9):
        for _ in range(chance.randrange(1, 12)):
            for cursor in chance.sample(cursors, chance.choice((1, 3, 8, 9, 25, 40))):
                cursor = fixture.get(cursor)
                seqs = fixture.seqs(cursor, chance.randrange(1, 6))
                if seqs and chance.random() < 0.8:
                    cursor.acknowledge(seqs[0], chance.choice(seqs))
            action = chance.random()
            if action < 0.4:
                fixture.flush()
            elif action < 0.8:
                fixture.tick(chance.choice((100, 10_000, REWRITE_MS + 1, IDLE_MS + SWEEP_MS)))
        fixture.flush()
        # loaded and dumped: what was in flight since different times is one run then
        expected = [load(fixture.get(cursor).deliveries.dump(), DeliveryPolicy()).dump() for cursor in cursors]
        if chance.random() < 0.5:
            fixture.tick(REWRITE_MS + 1)
        fixture.crash(tmp_path / str(number))
        assert [fixture.get(cursor).deliveries.dump() for cursor in cursors] == expected
    fixture.close()


def test_a_damaged_counter_gives_no_id_twice(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    last = fixture.subscribe()
    fixture.store.delete(last)
    get = LmdbState.get

    def damaged(state: LmdbState, key: bytes) -> Any:
        if key == NEXT_CURSOR_ID:
            raise Corrupt("state", None, "injected")
        return get(state, key)

    with monkeypatch.context() as patch:
        patch.setattr(LmdbState, "get", damaged)
        fixture.restart()
    assert fixture.subscribe().id > last.id
