"""Subscriptions as tools see and change them: items, what is pending, resets, dead letters that are redriven."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.documents import (
    REDRIVE_OWNER,
    Redrive,
    UnknownSubscription,
    entry_item,
    find,
    pending_items,
    pending_now,
    reset,
    stored_entries,
)
from engine.cursors.policies import CursorPolicy
from engine.cursors.stored_cursors import entry_key
from engine.errors import Corrupt, DiskFull, EngineError
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.state.store import Put
from tests.cursor_log import CursorLog, numbered
from tests.engine_log import SMALL, fill
from tests.hooked_files import ColdFiles, HookedFiles

POLICY = CursorPolicy(DeliveryPolicy(deliveries_max=1), dead_letter_suffix=b".dead")


def marks(subscription: int, seq: int) -> tuple[bytes, ...]:
    """Headers of a dead letter."""
    return (
        b"dead-letter-topic", b"t", b"dead-letter-seq", b"%d" % seq,
        b"dead-letter-subscription", b"%d" % subscription, b"dead-letter-deliveries", b"3",
    )  # fmt: skip


class Ended:
    """Takes the end of a redrive."""

    def __init__(self, log: CursorLog, subscription: int, limit: int = 1000) -> None:
        self.result: tuple[int, EngineError | None] | None = None
        self.log = log
        self.redrive = Redrive(
            log.store, subscription, log.engine.partition("t.dead"), log.engine.partition("t"), limit, self.end
        )

    def end(self, count: int, error: EngineError | None) -> None:
        assert self.result is None, "called once"
        self.result = count, error

    def wait(self) -> tuple[int, EngineError | None]:
        self.log.engine.inbox.run_until(lambda: self.result is not None)
        assert self.result is not None
        return self.result


def redrive(log: CursorLog, subscription: int, limit: int = 1000) -> tuple[int, EngineError | None]:
    ended = Ended(log, subscription, limit)
    ended.redrive.work()
    return ended.wait()


# --- looking


def test_items_of_subscriptions(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe(name=b"\xff", after_seq=2)
    cursor_log.engine.append(numbered(1, 10))
    assert cursor_log.seqs(cursor, 4) == [3, 4, 5, 6]
    cursor.acknowledge(3, 4)
    item = entry_item(cursor.entry(), b"t", 10)
    del item["created_ms"], item["used_ms"]
    assert item == {
        "id": 1, "protocol": "blipmq", "group_base64": "/w==", "topic": "t", "partition": 0, "qos": 1,
        "next_offset": 7, "acknowledged_offset": 4, "unacknowledged": 2, "lag": 6,
        "lag_seconds": None, "lag_trend": None, "paused": False,
    }  # fmt: skip
    assert entry_item(cursor.entry(), None, None)["topic"] is None
    assert entry_item(cursor.entry(), None, None)["lag"] is None
    assert entry_item(cursor.entry(), b"t", 1)["lag"] == 2, "what is delivered is there, whatever was looked up"
    with pytest.raises(Corrupt, match="subscription 1: "):
        entry_item(cursor.entry()._replace(deliveries=[1, 2]), b"t", 10)


def test_what_is_pending_and_when_it_comes_again(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d", policy=CursorPolicy(DeliveryPolicy(deliveries_max=2, retry_backoff_ms=500)))
    cursor = log.subscribe(after_seq=2)
    log.engine.append(numbered(1, 20))
    log.seqs(cursor, 9)
    cursor.acknowledge(4, 4)
    cursor.give_back(6, 7, log.clock.now_ms)
    log.clock.now_ms += 100
    items = pending_now(cursor, log.clock.now_ms)
    assert [(item["first_offset"], item["last_offset"], item["state"]) for item in items] == [
        (3, 3, "in flight"), (5, 5, "in flight"), (6, 7, "queued"), (8, 11, "in flight"),
    ]  # fmt: skip
    due_ms = cursor.deliveries.next_due_ms - log.clock.now_ms
    assert 0 < due_ms < 500
    assert [item["due_ms"] for item in items] == [due_ms, due_ms, None, due_ms]
    assert [(item["first_tag"], item["records"], item["deliveries"]) for item in items][:3] == [
        (1, 1, 1), (3, 1, 1), (4, 2, 1),
    ]  # fmt: skip
    stored = pending_items(cursor.entry())
    assert {item["state"] for item in stored} == {"queued"}
    assert sum(item["records"] for item in stored) == 8
    assert log.seqs(cursor, 2) == [6, 7]
    cursor.deliveries.fall_due(20, log.clock.now_ms + 10_000)
    states = {item["first_offset"]: item["state"] for item in pending_now(cursor, log.clock.now_ms)}
    assert states == {3: "queued", 5: "queued", 6: "given up", 8: "queued"}
    log.close()


def test_entries_of_a_state_that_is_only_read(cursor_log: CursorLog) -> None:
    cursors = [cursor_log.subscribe() for _ in range(12)]
    cursor_log.store.create(REDRIVE_OWNER, cursors[0].partition, after_seq=0, name=b"1")
    cursor_log.engine.append(numbered(1, 5))
    for cursor in cursors:
        cursor_log.seqs(cursor, 3)
    cursor_log.flush()
    state = cursor_log.engine.log.state
    done: list[object] = []
    state.submit([Put(entry_key(cursors[1].id), ["no entry"])], done.append)
    cursor_log.engine.inbox.run_until(lambda: bool(done))
    problems: list[Exception] = []
    found = stored_entries(state, problems.append)
    assert [entry.id for entry in found] == [cursor.id for cursor in cursors if cursor is not cursors[1]]
    assert {entry_item(entry, None, None)["next_offset"] for entry in found} == {4}, "the journal's news counts"
    assert [str(problem) for problem in problems] == ["state: the entry of cursor 2 is not one of ours"]


def test_finding_and_resetting(cursor_log: CursorLog) -> None:
    cursor = cursor_log.subscribe()
    other = cursor_log.store.create(REDRIVE_OWNER, cursor.partition, after_seq=0, name=b"1")
    cursor_log.engine.append(numbered(1, 5))
    cursor_log.seqs(cursor)
    assert find(cursor_log.store, cursor.id) is cursor
    for missing in (other.id, 99):
        with pytest.raises(UnknownSubscription, match=f"no subscription {missing}"):
            find(cursor_log.store, missing)
    done: list[object] = []
    reset(cursor_log.store, cursor, 4, done.append)
    cursor_log.engine.inbox.run_until(lambda: bool(done))
    assert done == [None]
    cursor_log.restart()
    assert cursor_log.seqs(cursor_log.get(cursor)) == [4, 5]


# --- redriving


def test_dead_letters_of_one_subscription_are_appended_once_more(cursor_log: CursorLog) -> None:
    engine = cursor_log.engine
    for seq in range(1, 9):
        engine.append([b"%d" % seq], "t.dead", headers=[(*marks(seq % 2, seq), b"own", b"header")], keys=[b"k"])
    assert redrive(cursor_log, 1, 3) == (3, None)
    first, *_ = found = engine.read("t")
    assert [record.value for record in found] == [b"1", b"3", b"5"]
    assert (first.key, first.headers) == (b"k", (b"own", b"header"))
    assert redrive(cursor_log, 1) == (1, None), "it goes on there"
    assert redrive(cursor_log, 1) == (0, None)
    assert redrive(cursor_log, 3) == (0, None), "there are none of this one"
    assert engine.values("t") == [b"1", b"3", b"5", b"7"]
    cursor_log.restart()
    assert redrive(cursor_log, 1) == (0, None), "also after a restart"


def test_more_than_one_step(cursor_log: CursorLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cursors.documents.REDRIVE_RECORDS", 4)
    cursor_log.engine.append([b"%d" % n for n in range(10)], "t.dead", headers=[marks(1, n) for n in range(10)])
    ended = Ended(cursor_log, 1)
    ended.redrive.work()
    ended.redrive.work()  # as when the disk answers while a write batch is being stored: nothing is appended twice
    ended.redrive.round_done()
    assert ended.wait() == (10, None)
    ended.redrive.work()
    ended.redrive.round_done()
    assert cursor_log.engine.values("t") == [b"%d" % n for n in range(10)]


def test_from_the_disk_and_over_what_retention_removed(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d", SMALL, files=ColdFiles())
    partition = fill(log.engine, 10, "t.dead")
    log.engine.append([b"dead"], "t.dead", headers=[marks(1, 1)])
    partition.trim(51)
    log.restart()
    assert redrive(log, 1) == (1, None)
    assert log.engine.values("t") == [b"dead"]
    log.close()


def test_records_that_cannot_be_decoded_end_it(cursor_log: CursorLog) -> None:
    engine = cursor_log.engine
    bundle = encode_bundle([b"1", b"2"], None, [1, 1])
    info = check_bundle(bundle, 0, len(bundle))
    engine.settle(engine.partition("t.dead").append_bundle(b"\xff" * len(bundle), 0, len(bundle), info))
    count, error = redrive(cursor_log, 1)
    assert count == 0
    assert isinstance(error, Corrupt)
    assert "nothing behind it was redriven" in str(error)


def test_a_disk_that_cannot_be_read_ends_it_and_another_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ColdFiles()
    log = CursorLog(tmp_path / "d", files=files)
    log.engine.append([b"dead"], "t.dead", headers=[marks(1, 1)])
    log.restart()
    ended = Ended(log, 1)
    files.code = errno.ENOMEM
    with caplog.at_level(logging.CRITICAL):
        ended.redrive.work()
        count, error = ended.wait()
    assert count == 0
    assert "Cannot allocate memory" in str(error)
    files.code = 0
    assert redrive(log, 1) == (1, None)
    log.close()


def test_dead_letters_of_which_a_full_disk_took_only_the_last_are_redriven_again(tmp_path: Path) -> None:
    files = HookedFiles()
    log = CursorLog(tmp_path / "d", files=files)
    log.engine.append([b"x"])
    log.engine.append([b"%d" % n * 60_000 for n in range(4)], "t.dead", headers=[marks(1, n) for n in range(4)])
    log.restart()  # so that they are read from the file, several at once
    files.failing_once("write", ".log", errno.ENOSPC)
    count, error = redrive(log, 1)
    assert (count, type(error)) == (0, DiskFull)
    assert redrive(log, 1) == (4, None)
    assert {value[:1] for value in log.engine.values()} == {b"x", b"0", b"1", b"2", b"3"}
    log.close()


def test_a_target_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    files = HookedFiles()
    log = CursorLog(tmp_path / "d", files=files)
    log.engine.append([b"x"])
    log.engine.append([b"dead"], "t.dead", headers=[marks(1, 1)])
    files.failing("write", ".log")
    count, error = redrive(log, 1)
    assert count == 0
    assert "Input/output error" in str(error)
    files.hook = lambda call, path: None
    log.restart()
    assert redrive(log, 1) == (1, None), "none was lost"
    assert log.engine.values() == [b"x", b"dead"]
    log.close()
