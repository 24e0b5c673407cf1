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
from engine.partitions.partition import Partition
from engine.state.clock import KEY, DoubtedClock, StoredClock, steady_ms, stored_clock
from engine.state.store import Put
from tests.engine_log import EngineLog, segments
from tests.wrong_clock import DAY, HOUR, MINUTE, SECOND, START_MS, YEAR, Time

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


class Watched:
    """A clock that is looked at every minute, and what it reports."""

    def __init__(self, time: Time, known: StoredClock | None = None) -> None:
        self.time = time
        self.told: list[str] = []
        self.clock = DoubtedClock(self.told.append, known)

    def minutes(self, count: int) -> list[int]:
        """Lets time pass; what the clock says after each minute."""
        said = []
        for _ in range(count):
            self.time.pass_on(MINUTE)
            self.clock.look()
            said.append(self.clock.now_ms())
        return said


JUMPS = [-10 * YEAR, -DAY, -HOUR, HOUR, DAY, 91 * DAY, 10 * YEAR]
NAMES = ["-10 y", "-1 d", "-1 h", "+1 h", "+1 d", "+91 d", "+10 y"]
DOUBT_MINUTES = CLOCK_DOUBT_MS // MINUTE


def test_the_steady_clock_counts_on() -> None:
    before = steady_ms()
    assert 0 < before <= steady_ms()


@pytest.mark.parametrize("jump", JUMPS, ids=NAMES)
def test_a_jump_is_believed_after_the_time_of_doubt(time: Time, jump: int) -> None:
    watched = Watched(time)
    assert watched.minutes(10)[-1] == time.right_ms
    time.offset_ms += jump
    assert watched.minutes(DOUBT_MINUTES)[-1] == time.right_ms
    assert watched.clock.doubted_ms == jump
    assert len(watched.told) == 1, "said once"
    assert "believed if it lasts 60 minutes" in watched.told[0]
    assert watched.minutes(1)[-1] == time.wall_ms()
    assert "is believed" in watched.told[1]
    assert watched.clock.doubted_ms == 0


@pytest.mark.parametrize("jump", JUMPS, ids=NAMES)
def test_a_jump_that_is_taken_back_has_no_effect(time: Time, jump: int) -> None:
    watched = Watched(time)
    stamp_ms = watched.clock.now_ms()
    for _ in range(20):
        time.offset_ms += jump
        assert watched.minutes(DOUBT_MINUTES)[-1] == time.right_ms
        time.offset_ms -= jump
        assert watched.minutes(1)[-1] == time.right_ms
        assert watched.clock.age_ms(stamp_ms) == time.real_ms
        assert "right again" in watched.told[-1]


@pytest.mark.parametrize("jump", JUMPS, ids=NAMES)
def test_a_jump_that_is_believed_makes_nothing_older(time: Time, jump: int) -> None:
    watched = Watched(time)
    stamps = [*watched.minutes(30)]
    time.offset_ms += jump
    stamps += watched.minutes(DOUBT_MINUTES)
    watched.minutes(1)
    believed_ms = time.real_ms
    watched.minutes(5)
    for minute, stamp_ms in enumerate(stamps, 1):
        age_ms = watched.clock.age_ms(stamp_ms)
        assert age_ms <= time.real_ms - minute * MINUTE, "not older than it is"
        if time.wall_ms() - stamp_ms != age_ms:  # those that a clock set back comes by again
            assert age_ms <= time.real_ms - believed_ms, "counted from when the jump was believed"
    assert watched.clock.before_ms(4 * MINUTE) == time.wall_ms() - 4 * MINUTE
    assert watched.clock.before_ms(6 * MINUTE) == 0, "for that, it has not been long enough"


def test_small_corrections_are_followed_and_small_jumps_believed_late(time: Time) -> None:
    watched = Watched(time)
    for step in (900, -900, -5):
        time.offset_ms += step
        assert watched.minutes(1)[-1] == time.wall_ms()
    time.offset_ms += 30 * SECOND
    assert watched.minutes(DOUBT_MINUTES)[-1] == time.wall_ms() - 30 * SECOND
    assert watched.minutes(1)[-1] == time.wall_ms()
    assert watched.clock.leap_ms == 0, "too small to make anything look old"
    assert watched.told == []


def test_a_machine_that_has_not_been_told_the_time_is_believed_when_it_is(time: Time) -> None:
    time.offset_ms = 20 * SECOND  # 1970
    watched = Watched(time)
    stamp_ms = watched.minutes(3)[-1]
    assert stamp_ms == time.wall_ms()
    time.offset_ms = START_MS
    assert watched.minutes(1)[-1] == time.right_ms, "at once"
    assert watched.clock.age_ms(stamp_ms) == 0
    assert watched.minutes(10)[-1] == time.right_ms
    assert watched.clock.age_ms(stamp_ms) == 10 * MINUTE


def test_time_between_two_processes_is_held_for_a_while(time: Time) -> None:
    known = StoredClock(START_MS - 40 * DAY, 0)
    watched = Watched(time, known)
    stamp_ms = START_MS - 41 * DAY
    assert watched.clock.now_ms() == START_MS, "what is stored now has the right time"
    watched.minutes(DOUBT_MINUTES - 1)
    assert watched.clock.age_ms(stamp_ms) == DAY + time.real_ms
    assert watched.clock.before_ms(2 * DAY) < stamp_ms < watched.clock.before_ms(HOUR)
    watched.minutes(1)
    assert watched.clock.age_ms(stamp_ms) == 41 * DAY + time.real_ms
    assert watched.told == []


def test_a_clock_that_was_ahead_at_the_start_costs_nothing(time: Time) -> None:
    known = StoredClock(START_MS - MINUTE, 0)
    time.offset_ms += 31 * DAY
    watched = Watched(time, known)
    old_ms, new_ms = START_MS - DAY, watched.minutes(2)[-1]
    assert watched.clock.age_ms(old_ms) <= DAY + time.real_ms
    time.offset_ms -= 31 * DAY
    watched.time.pass_on(MINUTE)
    watched.clock.look()
    assert watched.clock.excess_ms == 31 * DAY, "ages told so far were too large by that"
    assert f"{31 * 86_400} s ahead at the start" in watched.told[-2]
    assert watched.clock.now_ms() == time.right_ms
    watched.minutes(2 * DOUBT_MINUTES)
    assert watched.clock.age_ms(new_ms) <= time.real_ms
    assert watched.clock.age_ms(old_ms) <= DAY + time.real_ms


@pytest.mark.parametrize("jump", [-60 * YEAR, -DAY, -HOUR, 10 * YEAR])
def test_a_clock_that_is_far_off_at_the_start_is_doubted(time: Time, jump: int) -> None:
    known = StoredClock(START_MS - 20 * SECOND, 0)
    time.offset_ms = max(START_MS + jump, 10 * SECOND)
    watched = Watched(time, known)
    stamp_ms = watched.minutes(3)[-1]
    assert stamp_ms == time.right_ms - 20 * SECOND, "it goes on where it was"
    time.offset_ms = START_MS
    assert watched.minutes(1)[-1] == time.right_ms, "at once"
    assert "right again" in watched.told[-1]
    watched.minutes(2 * DOUBT_MINUTES)
    assert abs(watched.clock.age_ms(stamp_ms) - time.real_ms + 3 * MINUTE) <= 20 * SECOND
    assert watched.clock.leap_ms == 0


def test_a_machine_that_was_off_for_long_and_starts_in_1970_has_the_right_time_when_it_is_told(time: Time) -> None:
    known = StoredClock(START_MS - 40 * DAY, 0)
    time.offset_ms = 20 * SECOND
    watched = Watched(time, known)
    stamp_ms = watched.minutes(3)[-1]
    assert stamp_ms == known.now_ms + time.real_ms
    time.offset_ms = START_MS
    assert watched.minutes(1)[-1] == time.right_ms
    watched.minutes(2 * DOUBT_MINUTES)
    assert watched.clock.age_ms(stamp_ms) == 2 * DOUBT_MINUTES * MINUTE, "not by the forty days"


def test_the_next_process_knows_the_time_and_the_last_leap(tmp_path: Path, time: Time) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.log.housekeeping.clean()
        time.offset_ms += YEAR
        for _ in range(DOUBT_MINUTES + 2):
            time.pass_on(MINUTE)
            engine.log.housekeeping.clean()
        leap_ms = engine.log.clock.leap_ms
        assert leap_ms == time.wall_ms() - MINUTE
    time.offset_ms -= 2 * DAY
    with EngineLog(tmp_path / "d") as engine:
        clock = engine.log.clock
        assert clock.leap_ms == leap_ms
        assert clock.now_ms() == time.wall_ms() + 2 * DAY
        assert clock.doubted_ms < -DAY
        assert stored_clock(engine.log.state) == (clock.now_ms(), leap_ms)


def test_a_damaged_record_of_the_clock_is_as_none(tmp_path: Path, time: Time) -> None:
    with EngineLog(tmp_path / "d") as engine:
        written: list[object] = []
        engine.log.state.submit([Put(KEY, "nonsense")], written.append)
        engine.inbox.run_until(lambda: bool(written))
        assert stored_clock(engine.log.state) is None
        assert engine.log.now_ms() == time.wall_ms()


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
def test_nothing_expires_early_or_late_whatever_the_clock_does(tmp_path: Path, time: Time, jumps: list[int]) -> None:
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        for jump in [0, *jumps]:
            time.offset_ms += jump
            for _ in range(20):
                keeper.minute()
        for _ in range(100):
            keeper.minute(append=False)
        assert keeper.partition.log_start == keeper.partition.last_seq + 1, "an idle topic becomes empty"


def test_a_random_walk_of_the_clock(tmp_path: Path, time: Time) -> None:
    dice = random.Random(9)
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        for _ in range(2000 if NIGHTLY else 120):
            if dice.random() < 0.15:
                time.offset_ms = START_MS + dice.choice((0, 1, -1)) * dice.choice((MINUTE, HOUR, DAY, 10 * YEAR))
                time.offset_ms = max(time.offset_ms, DAY)
            keeper.minute(append=dice.random() < 0.9)


def test_numbers_times_and_the_time_index_stay_in_order(tmp_path: Path, time: Time) -> None:
    with EngineLog(tmp_path / "d") as engine:
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
        engine.append([b"after a restart"])
        assert [record.seq for record in engine.read()] == list(range(1, 17))


def test_append_times_do_not_go_back_where_a_restart_finds_an_empty_segment(tmp_path: Path, time: Time) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        engine.log.committer.roll_next(partition)
        engine.log.committer.request_watermark(partition)
        engine.inbox.run_until(lambda: bool(partition.sealed))
    time.offset_ms -= DAY
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"after"])
        path = segments(engine.path)[1]
        data = path.read_bytes()
        batch = read_header(data, HEADER_BYTES, parse_header(data, path).segment_id, HEADER_BYTES)
    assert batch is not None
    assert batch.append_time_ms == START_MS


def test_a_restart_after_a_time_with_a_clock_far_ahead(tmp_path: Path, time: Time) -> None:
    """Append times never go back, so that those of the files stay in the future: retention gets by without them."""
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
        keeper.partition.set_segment_ages()
        keeper.real_ms = {}
        for _ in range(2 * LATEST_MS // MINUTE):
            keeper.minute()
            for seq, appended_ms in real_ms.items():
                if time.real_ms - appended_ms <= RETENTION_MS:
                    assert seq >= keeper.partition.log_start
        assert keeper.partition.log_start > max(real_ms), "nothing stays because its time is in the future"


def test_a_restart_with_a_clock_that_is_ahead_ends_nothing_early(tmp_path: Path, time: Time) -> None:
    """What was opened while it was ahead is found younger when that is known, before retention looks at it again."""
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        for _ in range(20):
            keeper.minute()
        real_ms = dict(keeper.real_ms)
    time.offset_ms += 31 * DAY
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        keeper.real_ms = real_ms
        keeper.minute(append=False)
        time.offset_ms -= 31 * DAY
        for _ in range(LATEST_MS // MINUTE + 20):
            keeper.minute(append=False)
        assert keeper.partition.log_start > max(real_ms)


def test_a_record_dated_far_ahead_does_not_block_its_neighbours(tmp_path: Path, time: Time) -> None:
    """Row 15 (guides to Kafka's retention): the record's own time is the publisher's affair."""
    with EngineLog(tmp_path / "d", topic=CONFIG, retention_grace_ms=0) as engine:
        keeper = Keeper(engine, time)
        engine.append([b"dated ahead"], timestamps_ms=[time.wall_ms() + 10 * YEAR])
        for _ in range(LATEST_MS // MINUTE + 2):
            keeper.minute(append=False)
        assert keeper.partition.log_start == 2
