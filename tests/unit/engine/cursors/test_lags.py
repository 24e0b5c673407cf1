"""Lags of cursors in seconds and records, against a model that knows when each record was appended."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cursors import lags
from engine.cursors.cursor import Cursor
from engine.cursors.lags import Lag, Standing
from engine.files.descriptors import Handles
from engine.files.system import SystemFiles
from engine.formats.segment import parse_header
from engine.reader import DirectoryReader
from engine.segments.active import create_segment
from engine.state.clock import steady_ms
from tests.cursor_log import CursorLog, lag_of, numbered
from tests.engine_log import segments
from tools.logtool.lib.stored_subscriptions import age_s


class Moved:
    """The steady clock and what a test adds to it."""

    ahead_ms = 0

    def __call__(self) -> int:
        return steady_ms() + self.ahead_ms


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Moved:
    clock = Moved()
    monkeypatch.setattr("engine.state.clock.steady_ms", clock)
    return clock


def acknowledge(log: CursorLog, cursor: Cursor, count: int) -> None:
    for seq, _ in log.poll(cursor, count):
        cursor.acknowledge(seq, seq)


def test_lags_are_those_of_a_model(tmp_path: Path, moved: Moved) -> None:
    """Some at rest, some that catch up, some that fall behind; now and then after a restart, or not in memory."""
    draw = random.Random(19)
    log = CursorLog(tmp_path / "d")
    paces = [0, 0, 3, 3, 40, 7, 25]
    cursors = [log.subscribe(after_seq=0) for _ in paces]
    ids = [cursor.id for cursor in cursors]
    done = [0] * len(paces)
    appended_ms: list[int] = []
    try:
        for step in range(200 if os.environ.get("QUINTLOG_NIGHTLY") else 40):
            count = draw.choice([0, 1, 5, 30])
            if count:
                now_ms = log.engine.log.now_ms()
                log.engine.append(numbered(len(appended_ms) + 1, len(appended_ms) + count))
                appended_ms += [now_ms] * count
            moved.ahead_ms += draw.choice([0, 700, 4_000, 90_000])
            if step % 13 == 12:
                assert log.flush() is None
                log.restart()
            for at, pace in enumerate(paces):
                cursor = log.store.get(ids[at]) if pace else None
                if cursor is not None:
                    acknowledge(log, cursor, pace)
                    done[at] = min(done[at] + pace, len(appended_ms))
            now_ms = log.engine.log.now_ms()
            for at, cursor_id in enumerate(ids):
                lag = lag_of(log, cursor_id)
                waiting = appended_ms[done[at] :]
                assert lag.records == len(waiting)
                assert lag.seconds is not None
                expected_s = (now_ms - waiting[0]) / 1000 if waiting else 0.0
                assert abs(lag.seconds - expected_s) < 1, (step, at, lag, expected_s)
    finally:
        log.close()


def test_the_oldest_that_is_not_acknowledged_counts(tmp_path: Path, moved: Moved) -> None:
    log = CursorLog(tmp_path / "d")
    cursor = log.subscribe(after_seq=0)
    for _ in range(3):
        log.engine.append([b"x"])
        moved.ahead_ms += 10_000
    assert log.seqs(cursor) == [1, 2, 3]
    cursor.acknowledge(2, 2)
    lag = lag_of(log, cursor.id)
    assert (lag.records, round(lag.seconds or 0)) == (2, 30)
    cursor.acknowledge(1, 1)
    lag = lag_of(log, cursor.id)
    assert (lag.records, round(lag.seconds or 0)) == (1, 10)
    cursor.acknowledge(3, 3)
    assert lag_of(log, cursor.id)[:2] == (0, 0.0)
    log.close()


def test_numbers_left_out_before_the_first_record_wait_for_nobody(tmp_path: Path) -> None:
    """As in a topic that was empty when it was restored: its first segment is told which numbers it leaves out."""
    log = CursorLog(tmp_path / "d")
    cursor = log.subscribe(after_seq=0)
    log.engine.append([b"it takes a record to have a segment"])
    assert log.flush() is None
    log.close()
    (path,) = segments(tmp_path / "d")
    header = parse_header(path.read_bytes(), path)
    path.unlink()
    (tmp_path / "d" / "watermarks").unlink()
    files = SystemFiles()
    create_segment(files, Handles(files, 10), path.parent, replace(header, first_seq=1 << 40, follows=1))
    log = CursorLog(tmp_path / "d")
    for held in range(4):
        partition = log.engine.partition()
        assert lag_of(log, cursor.id).records == held
        log.engine.append([b"x"])
        if held == 2:
            log.engine.log.committer.roll_next(partition)
        assert lag_of(log, cursor.id).records == held + 1
        log.restart()
    log.close()


def test_time_between_two_processes_counts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is removed by it before the clock is believed; but who was behind is told so."""
    log = CursorLog(tmp_path / "d")
    cursor = log.subscribe(after_seq=0)
    log.engine.append([b"x"])
    assert log.flush() is None
    monkeypatch.setattr("engine.state.clock.wall_ms", lambda: time.time_ns() // 1_000_000 + 600_000)
    log.restart()
    assert log.engine.log.context.clock.held_ms > 590_000
    seconds = lag_of(log, cursor.id).seconds
    assert seconds is not None
    assert 590 < seconds < 660
    log.close()


def test_files_tell_the_age_of_the_first_record_that_waits(
    tmp_path: Path, moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that of a batch before it, which is read with it."""
    with monkeypatch.context() as past:
        past.setattr("engine.state.clock.wall_ms", lambda: time.time_ns() // 1_000_000 - 2_000_000 + moved.ahead_ms)
        log = CursorLog(tmp_path / "d")
        for _ in range(3):
            log.engine.append([b"x"])
            moved.ahead_ms += 600_000
        log.close()
    reader = DirectoryReader(tmp_path / "d")
    (topic,) = reader.topics()
    ages = [age_s(reader.partition(topic, 0), seq) for seq in (1, 2, 3, 4)]
    reader.close()
    for age, expected_s in zip(ages, (2000, 1400, 800, 0), strict=True):
        assert age is not None
        assert expected_s <= age < expected_s + 60


def test_the_trend_says_whether_a_lag_grows(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d")
    slow, quick, level = (log.subscribe(after_seq=0) for _ in range(3))
    log.engine.append(numbered(1, 100))
    assert lag_of(log, slow.id).trend is None, "nobody has looked before"
    log.tick()
    log.clock.now_ms += 10_000
    acknowledge(log, slow, 10)
    log.engine.append(numbered(101, 150))
    acknowledge(log, quick, 150)
    acknowledge(log, level, 50)
    assert [lag_of(log, cursor.id).trend for cursor in (slow, quick, level)] == [4.0, -10.0, 0.0]
    log.close()


def test_an_hour_of_the_first_positions_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "LAG_HISTORIES_MAX", 3)
    monkeypatch.setattr(lags, "LAG_HISTORY_SAMPLES", 4)
    log = CursorLog(tmp_path / "d")
    first, second, third = (log.subscribe(after_seq=0) for _ in range(3))
    standing = Standing("reliably", first.partition.topic.id, 0, 0, 3, 2)
    log.store.lags.others = lambda: [("session", standing)]
    for count in range(1, 7):
        log.engine.append([b"x"])
        log.tick(10_000)
        if count == 4:
            acknowledge(log, first, 4)
    history = log.store.lags.history
    assert history([first.id]) == [3, 4, 1, 2]
    assert history([first.id, second.id]) == [6, 8, 6, 8]
    assert history([first.id, "session"]) == [], "it comes after so many others"
    log.store.delete(third)
    log.tick(10_000)
    log.tick(10_000)
    assert history(["session"]) == [6], "2 that are not acknowledged, and 3 to 6"
    lag = log.store.lags.of_standing("session", standing, None)
    assert lag is not None
    assert (lag.records, lag.trend) == (6, 0.0)
    log.close()


def test_cursors_without_a_partition_have_no_lag(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d")
    cursor = log.subscribe()
    assert lag_of(log, cursor.id + 1) == Lag()
    deleted: list[object] = []
    log.engine.log.catalog.delete(cursor.partition.topic, deleted.append)
    log.engine.inbox.run_until(lambda: bool(deleted))
    assert lag_of(log, cursor.id) == Lag()
    log.tick(20_000)
    log.close()
