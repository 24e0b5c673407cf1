"""Cursors over real logs: deliveries, groups, waiting, retention, damage, giving up."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config import TopicConfig
from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.policies import CursorPolicy
from engine.cursors.stored_cursors import Entry
from engine.cursors.table import IDLE_MS, SWEEP_MS
from engine.errors import InvalidConfig
from tests.cursor_log import OWNER, CursorLog, numbered
from tests.engine_log import segments
from tests.wrong_clock import DAY, MINUTE, SECOND, START_MS, Time

pytestmark = pytest.mark.checked


def test_a_cursor_sees_what_comes_after_it(cursor_log: CursorLog) -> None:
    cursor_log.engine.append([b"before"])
    cursor = cursor_log.subscribe()
    assert cursor_log.poll(cursor) == []
    cursor_log.engine.append([b"a", b"b"])
    other = cursor_log.subscribe()
    cursor_log.engine.append([b"c"])
    assert cursor_log.poll(cursor) == [(2, b"a"), (3, b"b"), (4, b"c")]
    assert cursor_log.poll(other) == [(4, b"c")]
    assert (cursor.base, other.base) == (1, 3)
    assert (cursor.id, other.id) == (1, 2)
    assert cursor.acknowledge(3, 3) == 1
    assert cursor.acknowledge(3, 3) == 0
    assert cursor.acknowledge(5, 5) == 0
    assert cursor_log.store.totals(OWNER).acknowledged == 1


def test_redelivery_after_the_backoff(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    cursor_log.engine.append([b"a", b"b"])
    assert cursor_log.seqs(cursor, 1) == [1]
    cursor_log.clock.now_ms += 400
    assert cursor_log.seqs(cursor) == [2, 1]
    cursor_log.clock.now_ms += 150
    assert cursor_log.seqs(cursor) == [2]
    assert cursor_log.store.totals(OWNER).redelivered == 2


def test_ids_are_never_used_again(cursor_log: CursorLog) -> None:
    first = cursor_log.subscribe()
    second = cursor_log.subscribe()
    cursor_log.store.delete(second)
    assert cursor_log.store.get(second.id) is None
    assert not second.alive
    cursor_log.restart()
    assert cursor_log.store.ids() == [first.id]
    assert cursor_log.store.get(second.id) is None
    assert cursor_log.subscribe().id > second.id


def test_ids_are_not_given_again_by_an_older_copy_or_without_the_state(cursor_log: CursorLog, tmp_path: Path) -> None:
    cursor_log.subscribe()
    copy, bare = cursor_log.engine.image(tmp_path / "copy"), cursor_log.engine.image(tmp_path / "bare")
    later = {cursor_log.subscribe().id for _ in range(100)}
    cursor_log.close()
    shutil.rmtree(bare / "state")
    for path in (copy, bare):
        cursor_log._open(path)
        assert not {cursor_log.subscribe().id for _ in range(100)} & (later | {1})
        if path == copy:
            cursor_log.close()


def test_groups_are_found_by_name(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe(name=b"workers")
    partition = cursor_log.engine.partition()
    assert cursor_log.store.group(OWNER, b"workers", partition) is cursor
    assert cursor_log.store.group(OWNER, b"others", partition) is None
    assert cursor_log.store.group("fujin", b"workers", partition) is None
    with pytest.raises(InvalidConfig):
        cursor_log.store.create(OWNER, partition, after_seq=0, name=b"workers")
    with pytest.raises(InvalidConfig):
        cursor_log.store.create(OWNER, partition, after_seq=0, name=b"w" * 1025)
    cursor_log.restart()
    found = cursor_log.store.group(OWNER, b"workers", cursor_log.engine.partition())
    assert found is not None
    assert found.id == cursor.id
    cursor_log.store.delete(found)
    assert cursor_log.store.group(OWNER, b"workers", cursor_log.engine.partition()) is None


def test_a_deleted_topic_takes_its_cursors_along(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe("gone", name=b"g")
    unloaded = cursor_log.subscribe("gone")
    kept = cursor_log.subscribe("kept")
    cursor_log.engine.append(numbered(1, 3), "gone")
    called: list[bool] = []
    cursor.wait(lambda: called.append(True))
    cursor_log.tick(IDLE_MS + SWEEP_MS)
    topic = cursor_log.engine.log.catalog.get(b"gone")
    assert topic is not None
    done: list[object] = []
    cursor_log.engine.log.catalog.delete(topic, done.append)
    cursor_log.engine.inbox.run_until(lambda: bool(done) and not cursor_log.engine.log.catalog.tombstones)
    assert called, "who waits finds out"
    assert [cursor_log.store.get(one.id) for one in (cursor, unloaded)] == [None, None]
    assert cursor_log.store.ids() == [kept.id]
    cursor_log.restart()
    assert cursor_log.store.ids() == [kept.id]
    assert cursor_log.subscribe("gone").base == 0, "a new topic of that name begins anew"


def test_retention_passes_a_cursor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cursor_log = CursorLog(tmp_path / "d", TopicConfig(segment_bytes=64 << 10, retention_records=500))
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 100, 300))
    assert cursor_log.seqs(cursor, 50) == list(range(1, 51))
    cursor.acknowledge(1, 40)
    for first in range(101, 2000, 100):
        cursor_log.engine.append(numbered(first, first + 99, 300))
    cursor_log.engine.log.housekeeping.clean()
    partition = cursor_log.engine.partition()
    assert partition.log_start > 101
    with caplog.at_level(logging.WARNING):
        assert cursor_log.seqs(cursor, 1) == [partition.log_start]
        assert cursor_log.seqs(cursor, 1) == [partition.log_start + 1]
    expected = partition.log_start - 41
    assert cursor.lost == cursor_log.store.totals(OWNER).lost == expected
    assert [record.message for record in caplog.records if "retention" in record.message] == [
        f"blipmq subscription 1 of topic 't' partition 0: retention removed {expected} records before they were "
        "acknowledged"
    ]
    assert cursor.acknowledge(45, 45) == 0
    cursor_log.close()


def test_damage_costs_its_records_once(tmp_path: Path) -> None:
    cursor_log = CursorLog(tmp_path / "d", TopicConfig(segment_bytes=64 << 10))
    cursor = cursor_log.subscribe()
    acknowledging = cursor_log.subscribe()
    for first in range(1, 1000, 100):
        cursor_log.engine.append(numbered(first, first + 99, 300))
    assert cursor_log.seqs(acknowledging, 300) == list(range(1, 301))
    cursor_log.restart()
    path = segments(tmp_path / "d")[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    got = cursor_log.seqs(cursor_log.get(cursor))
    missing = sorted(set(range(1, 1001)) - set(got))
    assert got == sorted(got)
    assert 0 < len(missing) <= 255
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert cursor_log.get(cursor).lost == len(missing)
    assert cursor_log.get(cursor).deliveries.unacknowledged == len(got)
    again = cursor_log.get(acknowledging)
    assert cursor_log.seqs(again) == got, "what was in flight comes first, in order, but for the damage"
    assert again.lost == len(missing)
    cursor_log.close()


def test_an_older_log_puts_the_cursor_at_its_end(cursor_log: CursorLog, caplog: pytest.LogCaptureFixture) -> None:
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 10))
    ahead = cursor_log.subscribe(after_seq=20)
    assert len(cursor_log.seqs(cursor)) == 10
    cursor.deliveries.next_seq = 16  # as if the log had been longer
    cursor.touch()
    cursor_log.restart()
    cursor, ahead = cursor_log.get(cursor), cursor_log.get(ahead)
    with caplog.at_level(logging.ERROR):
        assert cursor_log.seqs(cursor) == list(range(1, 11))
        assert cursor_log.seqs(ahead) == []
    assert [record.message for record in caplog.records] == [
        "blipmq subscription 1 of topic 't' partition 0 was beyond the end of the log by 5 numbers; set to its end",
        "blipmq subscription 2 of topic 't' partition 0 was beyond the end of the log by 10 numbers; set to its end",
    ]
    cursor_log.engine.append([b"new"])
    assert cursor_log.poll(ahead) == [(11, b"new")]
    assert ahead.base == 10


def test_what_is_published_before_a_cursor_beyond_the_end_is_used_reaches_it(cursor_log: CursorLog) -> None:
    cursor, other = cursor_log.subscribe(), cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 10))
    assert len(cursor_log.seqs(cursor)) == 10
    cursor.acknowledge(1, 10)
    cursor.deliveries.next_seq = 16  # as if the log had been longer
    cursor.touch()
    cursor_log.restart()
    cursor_log.engine.append([b"new"] * 3)
    cursor, other = cursor_log.get(cursor), cursor_log.get(other)
    assert cursor_log.seqs(cursor) == [11, 12, 13]
    assert cursor_log.seqs(other) == list(range(1, 14))
    for one in (cursor, other):
        one.acknowledge(1, 13)
    assert cursor_log.flush() is None
    cursor_log.tick(10 * 60_000)  # they are let go of, and loaded again
    cursor_log.engine.append([b"last"])
    assert cursor_log.seqs(cursor_log.get(cursor)) == [14]


def test_reading_from_files_waits_for_the_disk(tmp_path: Path) -> None:
    cursor_log = CursorLog(tmp_path / "d", TopicConfig(segment_bytes=64 << 10))
    cursor = cursor_log.subscribe()
    for first in range(1, 2001, 100):
        cursor_log.engine.append(numbered(first, first + 99, 1000))
    cursor_log.restart()
    cursor = cursor_log.get(cursor)
    assert cursor_log.poll(cursor) == [(n, b"%d" % n + b"." * 1000) for n in range(1, 2001)]
    assert cursor_log.store.read_batches.size_bytes < 4 << 20
    cursor_log.close()


def test_cursors_share_what_they_read(tmp_path: Path) -> None:
    cursor_log = CursorLog(tmp_path / "d", TopicConfig(segment_bytes=1 << 20))
    cursors = [cursor_log.subscribe() for _ in range(50)]
    for first in range(1, 1001, 100):
        cursor_log.engine.append(numbered(first, first + 99, 1000))
    cursor_log.restart()
    for cursor in cursors:
        assert cursor_log.seqs(cursor_log.get(cursor), 3) == [1, 2, 3]
    assert cursor_log.store.read_batches.size_bytes < 1 << 20
    cursor_log.close()


def test_read_batches_are_bounded(cursor_log: CursorLog) -> None:
    cursor_log.store.read_batches._bytes_max = 300_000
    cursors = [cursor_log.subscribe(f"t{n}") for n in range(20)]
    for n in range(20):
        cursor_log.engine.append(numbered(1, 40, 1000), f"t{n}")
    for _ in range(3):
        for cursor in cursors:
            assert len(cursor_log.seqs(cursor, 5)) == 5
            assert cursor_log.store.read_batches.size_bytes <= 300_000
    assert [cursor_log.seqs(cursor) for cursor in cursors] == [list(range(16, 41))] * 20


def test_waiting_for_something_new(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    called: list[str] = []

    def one() -> None:
        called.append("one")

    def two() -> None:
        called.append("two")

    cursor.wait(one)
    cursor.wait(one)
    cursor.wait(two)
    cursor.forget(two)
    cursor_log.engine.append([b"x"])
    cursor_log.engine.inbox.run_until(lambda: bool(called))
    assert called == ["one"]
    assert cursor_log.seqs(cursor) == [1]
    cursor.wait(one)
    assert cursor.give_back(1, 1, cursor_log.clock.now_ms) == 1
    assert called == ["one", "one"]
    assert cursor_log.seqs(cursor) == [1]
    cursor.wait(two)
    cursor_log.tick(400)
    assert called == ["one", "one", "two"], "it fell due"
    cursor.wait(one)
    cursor.reset(0)
    assert called[-1] == "one"
    assert cursor_log.seqs(cursor) == [1]
    assert cursor.base == -1, "tag 2: 1 was given out before"


def test_reset_backwards_moves_the_base(cursor_log: CursorLog) -> None:
    cursor_log.engine.append(numbered(1, 5))
    cursor = cursor_log.subscribe()
    cursor.reset(2)
    assert cursor_log.seqs(cursor) == [3, 4, 5]
    assert cursor.base == 2


def test_idle_cursors_are_let_go_and_come_back(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    pinned = cursor_log.subscribe()
    pinned.pins += 1
    cursor_log.engine.append(numbered(1, 3))
    cursor_log.seqs(cursor, 2)
    cursor_log.flush()
    cursor_log.tick(IDLE_MS // 2)
    assert cursor_log.get(cursor) is cursor
    cursor_log.tick(IDLE_MS)
    assert cursor_log.store.loaded() == [pinned]
    assert [entry.id for entry in cursor_log.store.entries()] == [cursor.id, pinned.id]
    assert [entry.deliveries for entry in cursor_log.store.entries()] == [[3, 2, 2, 1], [1]]
    assert cursor_log.store.loaded() == [pinned], "looking loads nothing"
    assert cursor_log.seqs(cursor_log.get(cursor)) == [1, 2, 3]


def test_abandoned_cursors_expire(tmp_path: Path) -> None:
    cursor_log = CursorLog(tmp_path / "d", policy=CursorPolicy(expiry_ms=86_400_000))
    old, young = cursor_log.subscribe(name=b"old"), cursor_log.subscribe()
    old.used_ms -= 90_000_000
    old.is_dirty = True
    cursor_log.store.writer.moved(old)
    cursor_log.flush()
    cursor_log.tick(IDLE_MS * 2)
    assert cursor_log.store.loaded() == []
    cursor_log.tick(SWEEP_MS)
    assert cursor_log.store.ids() == [young.id]
    assert cursor_log.store.get(old.id) is None
    assert cursor_log.store.group(OWNER, b"old", cursor_log.engine.partition()) is None
    assert cursor_log.store.totals(OWNER).expired == 1
    cursor_log.restart()
    assert cursor_log.store.ids() == [young.id]
    cursor_log.close()


@pytest.mark.parametrize("started_at_ms", [START_MS, 20 * SECOND], ids=["now", "1970"])
def test_a_wrong_clock_removes_no_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started_at_ms: int
) -> None:
    time = Time(monkeypatch)
    time.offset_ms = started_at_ms
    cursor_log = CursorLog(tmp_path / "d", policy=CursorPolicy(expiry_ms=30 * DAY))
    idle = cursor_log.subscribe()

    def look() -> list[int]:
        time.pass_on(MINUTE)
        cursor_log.engine.log.housekeeping.clean()
        for _ in range(2):
            cursor_log.tick(IDLE_MS * 2)
        assert cursor_log.store.loaded() == []
        return cursor_log.store.ids()

    for offset_ms in (0, 31 * DAY, -400 * DAY, 3650 * DAY, 0):
        time.offset_ms = START_MS + offset_ms
        assert look() == [idle.id]
    for _ in range(30):
        assert look() == [idle.id]
        time.pass_on(DAY - MINUTE)
    assert look() == [], "thirty days of real time"
    cursor_log.close()


def test_use_by_a_clock_that_was_ahead_is_put_right(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    cursor.used_ms += 2 * DAY
    cursor.used()
    assert abs(cursor_log.engine.log.now_ms() - cursor.used_ms) < MINUTE


def test_use_keeps_a_cursor(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    cursor.used()
    assert not cursor.is_dirty
    cursor.used_ms -= 2 * 3_600_000
    cursor.used()
    assert cursor.is_dirty
    assert cursor_log.engine.log.now_ms() - cursor.used_ms < 3_600_000


def test_given_up_records_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cursor_log = CursorLog(tmp_path / "d", policy=CursorPolicy(DeliveryPolicy(deliveries_max=2)))
    cursor = cursor_log.subscribe()
    cursor_log.engine.append([b"a", b"b"])
    assert cursor_log.seqs(cursor) == [1, 2]
    cursor_log.clock.now_ms += 1000
    assert cursor_log.seqs(cursor) == [1, 2]
    cursor.acknowledge(1, 1)
    with caplog.at_level(logging.WARNING):
        cursor_log.tick(1000)
    assert "records 2 to 2 were delivered 2 times" in caplog.text
    assert cursor.deliveries.floor == 2
    assert cursor.acknowledge(2, 2) == 0
    totals = cursor_log.store.totals(OWNER)
    assert (totals.given_up, totals.dead_letters) == (1, 0)
    cursor_log.close()


def test_given_up_records_go_to_the_dead_letter_topic(tmp_path: Path) -> None:
    policy = CursorPolicy(DeliveryPolicy(deliveries_max=1), dead_letter_suffix=b".dead")
    cursor_log = CursorLog(tmp_path / "d", policy=policy)
    cursor = cursor_log.subscribe()
    dead_cursor = cursor_log.subscribe("t.dead")
    cursor_log.engine.append([b"a", b"b", b"c"], keys=[b"k", b"", b""], headers=[(b"h", b"v"), (), ()])
    cursor_log.seqs(cursor)
    cursor.acknowledge(2, 2)
    cursor_log.tick(1000)
    cursor_log.engine.inbox.run_until(lambda: cursor.deliveries.unacknowledged == 0)
    first, second = cursor_log.engine.read("t.dead")
    assert (first.key, first.value, second.value) == (b"k", b"a", b"c")
    assert first.headers == (
        b"dead-letter-topic", b"t", b"dead-letter-seq", b"1", b"dead-letter-subscription", b"1",
        b"dead-letter-deliveries", b"1", b"h", b"v",
    )  # fmt: skip
    assert second.headers[3] == b"3"
    totals = cursor_log.store.totals(OWNER)
    assert (totals.given_up, totals.dead_letters) == (2, 2)
    assert cursor_log.seqs(dead_cursor) == [1, 2]
    cursor_log.tick(1000)
    assert dead_cursor.deliveries.unacknowledged == 0, "a dead letter that is given up is dropped"
    assert cursor_log.engine.log.catalog.get(b"t.dead.dead") is None
    cursor_log.close()


def test_dead_letters_survive_a_crash_on_the_way(tmp_path: Path) -> None:
    policy = CursorPolicy(DeliveryPolicy(deliveries_max=1), dead_letter_suffix=b".dead")
    cursor_log = CursorLog(tmp_path / "d", policy=policy)
    cursor = cursor_log.subscribe()
    cursor_log.engine.append([b"a"])
    cursor_log.seqs(cursor)
    cursor_log.flush()
    cursor_log.clock.now_ms += 1000
    cursor.fall_due(cursor_log.clock.now_ms)
    assert len(cursor_log.store.dead_letters) == 1
    cursor_log.crash(tmp_path / "image")
    assert cursor_log.seqs(cursor_log.get(cursor)) == [1], "delivered once more rather than never"
    cursor_log.close()


def test_the_limit_of_unacknowledged(tmp_path: Path) -> None:
    policy = DeliveryPolicy(retry_backoff_ms=0, unacknowledged_max=10)
    cursor_log = CursorLog(tmp_path / "d", policy=CursorPolicy(policy))
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(1, 100))
    assert cursor_log.seqs(cursor) == list(range(1, 11))
    cursor.acknowledge(5, 7)
    assert cursor_log.seqs(cursor) == [11, 12, 13]
    cursor_log.store.set_policy(OWNER, CursorPolicy(DeliveryPolicy(retry_backoff_ms=0, unacknowledged_max=12)))
    assert cursor_log.seqs(cursor) == [14, 15], "a new policy holds at once"
    cursor_log.close()


def test_one_that_waits_and_raises_costs_no_other_its_call(
    cursor_log: CursorLog, caplog: pytest.LogCaptureFixture
) -> None:
    cursor = cursor_log.subscribe()
    called: list[str] = []

    def broken() -> None:
        raise RuntimeError("a defect")

    cursor.wait(broken)
    cursor.wait(lambda: called.append("second"))
    cursor_log.engine.append([b"1"])
    cursor_log.engine.inbox.run_until(lambda: bool(called))
    assert "a defect" in caplog.text


def test_a_cursor_that_raises_stops_neither_the_clock_nor_the_writing_of_others(
    cursor_log: CursorLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = cursor_log.subscribe(), cursor_log.subscribe()
    cursor_log.engine.append([b"1", b"2"])
    for cursor in (first, second):
        assert cursor_log.seqs(cursor) == [1, 2]
        cursor_log.store.watched.add(cursor)
    second.acknowledge(1, 1)
    first.deliveries.given_up = None  # type: ignore[assignment]
    first.deliveries.set_policy(DeliveryPolicy(deliveries_max=1))
    first.touch()
    cursor_log.tick(1000)
    assert "internal error in the clock of blipmq subscription 1" in caplog.text
    assert cursor_log.flush() is None
    cursor_log.crash(tmp_path / "image")
    assert cursor_log.seqs(cursor_log.get(second)) == [2]


def test_one_who_waits_for_the_writing_and_raises_costs_no_other_the_answer(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    cursor.touch()
    answers: list[object] = []

    def broken(_: object) -> None:
        raise RuntimeError("a defect")

    cursor_log.store.flush(broken)
    cursor_log.store.flush(answers.append)
    cursor_log.engine.inbox.run_until(lambda: bool(answers))
    assert answers == [None]


def test_an_entry_that_cannot_be_made_costs_no_other_cursor_its_own(
    cursor_log: CursorLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cursor_log.subscribe(), cursor_log.subscribe()
    cursor_log.engine.append([b"1", b"2"])
    cursor_log.seqs(first)
    cursor_log.seqs(second)
    second.acknowledge(1, 2)

    def broken(cursor_id: int, *values: Any) -> Entry:
        if cursor_id == first.id:
            raise RuntimeError("a defect")
        return Entry(cursor_id, *values)

    with monkeypatch.context() as patch:
        patch.setattr("engine.cursors.cursor.Entry", broken)
        assert cursor_log.flush() is None
    cursor_log.crash(tmp_path / "image")
    assert cursor_log.seqs(cursor_log.get(second)) == []


@pytest.mark.parametrize("after_seq", [0, 20, 52, 58, 60])
def test_no_tag_names_another_record_after_a_reset(cursor_log: CursorLog, after_seq: int) -> None:
    """To before the base, to behind it, to what is in flight, and forward."""
    cursor_log.engine.append(numbered(1, 50))
    cursor = cursor_log.subscribe()
    cursor_log.engine.append(numbered(51, 60))
    assert cursor_log.seqs(cursor, 5) == [51, 52, 53, 54, 55]
    used = {seq - cursor.base for seq in range(51, 56)}
    cursor.reset(after_seq)
    again = cursor_log.seqs(cursor, 5)
    assert again == [seq for seq in range(after_seq + 1, after_seq + 6) if seq <= 60]
    assert not used & {seq - cursor.base for seq in again}
    for tag in used:
        assert cursor.acknowledge(cursor.base + tag, cursor.base + tag) == 0
    assert cursor.deliveries.unacknowledged == len(again)
