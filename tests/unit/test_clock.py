"""Clocks that jump (plan D9): numbers and times stay in order, nothing expires early, and nothing stays for ever."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.formats.batch_header import read_header
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.limits import CLOCK_DOUBT_MS
from engine.partitions.clock import RetentionClock, steady_ms
from engine.partitions.partition import Partition
from tests.engine_log import EngineLog, segments

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
DAY = 24 * HOUR
YEAR = 365 * DAY
START_MS = 1_795_773_600_000


class Time:
    """Real time, and a system's clock that is off by `offset_ms`."""

    def __init__(self) -> None:
        self.real_ms = 0
        self.offset_ms = START_MS

    def pass_on(self, ms: int) -> None:
        self.real_ms += ms

    def wall_ms(self) -> int:
        return self.real_ms + self.offset_ms

    def steady_ms(self) -> int:
        return self.real_ms + 17 * DAY

    def rule(self, engine: EngineLog) -> None:
        engine.log.now_ms = self.wall_ms  # type: ignore[method-assign]
        engine.log.steady_ms = self.steady_ms  # type: ignore[method-assign]
        engine.log.housekeeping._clock = RetentionClock(engine.log.report, self.wall_ms(), self.steady_ms)


def test_the_steady_clock_counts_on() -> None:
    before = steady_ms()
    assert 0 < before <= steady_ms()


def test_a_step_forward_is_believed_after_an_hour() -> None:
    time = Time()
    told: list[str] = []
    clock = RetentionClock(told.append, time.wall_ms(), time.steady_ms)
    for _ in range(10):
        time.pass_on(10 * SECOND)
        assert clock.now_ms(time.wall_ms()) == START_MS + time.real_ms
    time.offset_ms += 10 * YEAR
    for _ in range(CLOCK_DOUBT_MS // MINUTE):
        time.pass_on(MINUTE)
        assert clock.now_ms(time.wall_ms()) == START_MS + time.real_ms
    assert len(told) == 1
    assert "set forward by" in told[0]
    time.pass_on(MINUTE)
    assert clock.now_ms(time.wall_ms()) == time.wall_ms()


def test_a_step_forward_that_is_taken_back_was_never_believed() -> None:
    time = Time()
    clock = RetentionClock(lambda _: None, time.wall_ms(), time.steady_ms)
    for _ in range(20):
        time.offset_ms += YEAR
        time.pass_on(CLOCK_DOUBT_MS - MINUTE)
        assert clock.now_ms(time.wall_ms()) == START_MS + time.real_ms
        time.offset_ms -= YEAR
        time.pass_on(MINUTE)
        assert clock.now_ms(time.wall_ms()) == time.wall_ms()


def test_a_step_back_and_small_corrections_are_followed_at_once() -> None:
    time = Time()
    clock = RetentionClock(lambda _: None, time.wall_ms(), time.steady_ms)
    for step in (-400 * DAY, 30 * SECOND, -5, -HOUR):
        time.offset_ms += step
        assert clock.now_ms(time.wall_ms()) == time.wall_ms()


RETENTION_MS = HOUR
CONFIG = TopicConfig(retention_ms=RETENTION_MS)
# Whole segments of a quarter of the time are removed, at passes a minute apart.
LATEST_MS = RETENTION_MS + RETENTION_MS // 4 + 3 * MINUTE


class Keeper:
    """Appends a record a minute and looks after each pass what is still there."""

    def __init__(self, engine: EngineLog, time: Time) -> None:
        self.engine = engine
        self.time = time
        self.real_ms: dict[int, int] = {}
        time.rule(engine)

    @property
    def partition(self) -> Partition:
        return self.engine.partition()

    def minute(self, *, append: bool = True) -> None:
        if append:
            self.engine.append([b"x"])
            self.real_ms[self.partition.last_seq] = self.time.real_ms
        self.time.pass_on(MINUTE)
        for _ in range(2):  # the first may roll, the second removes what is sealed
            self.engine.log.housekeeping.clean()
            self.settle()
        self.check()

    def settle(self) -> None:
        """Waits until no round is under way."""
        idle: list[bool] = []
        self.engine.log.committer.after_round(lambda: idle.append(True))
        self.engine.inbox.run_until(lambda: bool(idle))

    def check(self) -> None:
        for seq, appended_ms in self.real_ms.items():
            age_ms = self.time.real_ms - appended_ms
            if age_ms <= RETENTION_MS:
                assert seq >= self.partition.log_start, f"record {seq} went after {age_ms // SECOND} s"
            if age_ms > LATEST_MS:
                assert seq < self.partition.log_start, f"record {seq} is still there after {age_ms // SECOND} s"


@pytest.mark.parametrize(
    "jumps",
    [
        [10 * YEAR],
        [-400 * DAY],
        [10 * YEAR, -10 * YEAR],
        [-400 * DAY, 400 * DAY],
        [10 * YEAR, -10 * YEAR - 400 * DAY, 400 * DAY],
        [HOUR, -2 * HOUR, HOUR] * 4,
    ],
    ids=["+10 y", "-400 d", "+10 y and back", "-400 d and back", "far ahead, far behind, right", "to and fro"],
)
def test_nothing_expires_early_or_late_whatever_the_clock_does(tmp_path: Path, jumps: list[int]) -> None:
    time = Time()
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        for jump in [0, *jumps]:
            time.offset_ms += jump
            for _ in range(20):
                keeper.minute()
        for _ in range(100):
            keeper.minute(append=False)
        assert keeper.partition.log_start == keeper.partition.last_seq + 1, "an idle topic becomes empty"


def test_a_random_walk_of_the_clock(tmp_path: Path) -> None:
    dice = random.Random(9)
    time = Time()
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        for _ in range(2000 if NIGHTLY else 120):
            if dice.random() < 0.15:
                time.offset_ms = START_MS + dice.choice((0, 1, -1)) * dice.choice((MINUTE, HOUR, DAY, 10 * YEAR))
                time.offset_ms = max(time.offset_ms, DAY)
            keeper.minute(append=dice.random() < 0.9)


def test_numbers_times_and_the_time_index_stay_in_order(tmp_path: Path) -> None:
    time = Time()
    with EngineLog(tmp_path / "d") as engine:
        time.rule(engine)
        for jump in (0, 10 * YEAR, -10 * YEAR, -400 * DAY, 400 * DAY):
            time.offset_ms += jump
            for _ in range(3):
                time.pass_on(SECOND)
                engine.append([b"x" * 100_000])
        found = engine.read()
        assert [record.seq for record in found] == list(range(1, 16))
        engine.log.index.flush()
        assert engine.partition().seq_at_time(START_MS) == 1
        for at in range(3):
            moment_ms = START_MS + (at + 1) * SECOND
            first = engine.partition().seq_at_time(moment_ms)
            assert 1 <= first <= at + 1, "nothing of that time or later is passed over"
    with EngineLog(tmp_path / "d") as engine:
        time.rule(engine)
        engine.append([b"after a restart"])
        assert [record.seq for record in engine.read()] == list(range(1, 17))


def test_append_times_do_not_go_back_where_a_restart_finds_an_empty_segment(tmp_path: Path) -> None:
    time = Time()
    with EngineLog(tmp_path / "d") as engine:
        time.rule(engine)
        engine.append([b"before"])
        partition = engine.partition()
        partition.roll_wanted = True
        engine.log.committer.touch(partition)
        engine.inbox.run_until(lambda: bool(partition.sealed))
    time.offset_ms -= DAY
    with EngineLog(tmp_path / "d") as engine:
        time.rule(engine)
        engine.append([b"after"])
        path = segments(engine.path)[1]
        data = path.read_bytes()
        batch = read_header(data, HEADER_BYTES, parse_header(data, path).segment_id, HEADER_BYTES)
    assert batch is not None
    assert batch.append_time_ms == START_MS


def test_a_restart_after_a_time_with_a_clock_far_ahead(tmp_path: Path) -> None:
    """Append times never go back, so that those of the files stay in the future: retention gets by without them."""
    time = Time()
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        time.offset_ms += 10 * YEAR
        for _ in range(20):
            keeper.minute()
        time.offset_ms -= 10 * YEAR
        for _ in range(40):
            keeper.minute()
        real_ms = dict(keeper.real_ms)
    time.pass_on(10 * MINUTE)
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        engine.log.housekeeping.date(keeper.partition)
        keeper.real_ms = {}
        for _ in range(2 * LATEST_MS // MINUTE):
            keeper.minute()
            for seq, appended_ms in real_ms.items():
                if time.real_ms - appended_ms <= RETENTION_MS:
                    assert seq >= keeper.partition.log_start
        assert keeper.partition.log_start > max(real_ms), "nothing stays because its time is in the future"


def test_a_record_dated_far_ahead_does_not_block_its_neighbours(tmp_path: Path) -> None:
    """Row 15 (guides to Kafka's retention): the record's own time is the publisher's affair."""
    time = Time()
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        engine.append([b"dated ahead"], timestamps_ms=[time.wall_ms() + 10 * YEAR])
        for _ in range(LATEST_MS // MINUTE + 2):
            keeper.minute(append=False)
        assert keeper.partition.log_start == 2
