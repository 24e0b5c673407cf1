"""The ledger: what it remembers of writers, and when it forgets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import LimitReached
from engine.limits import LEDGER_KEEP_MS
from engine.state.store import Put, hashed_key
from engine.state.writer_ledger import PREFIX, Entry, Ledger
from tests.engine_log import EngineLog
from tests.wrong_clock import DAY, MINUTE, START_MS, Time

NOW_MS = START_MS


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


@pytest.fixture
def engine(tmp_path: Path, time: Time) -> Iterator[EngineLog]:
    with EngineLog(tmp_path / "d") as engine:
        yield engine


def entry(writer: str, files: tuple[str, ...] = (), time_ms: int = NOW_MS) -> Entry:
    return Entry(writer, 7, files, 1, 2, 3, 4, time_ms, ((1, 0), (2, 5)))


def remember(engine: EngineLog, *entries: Entry) -> None:
    done: list[object] = []
    engine.log.state.submit([Ledger(engine.log.state).put(one) for one in entries], done.append)
    engine.inbox.run_until(lambda: bool(done))
    assert done == [None]


def settle(engine: EngineLog) -> None:
    engine.inbox.run_until(lambda: engine.log.state.pending_bytes == 0)


def test_each_writer_has_its_last_batch(engine: EngineLog) -> None:
    ledger = Ledger(engine.log.state)
    assert ledger.get("a") is None
    remember(engine, entry("a"), entry("b", ("f1", "f2")))
    remember(engine, entry("a")._replace(batch=8))
    assert ledger.get("a") == entry("a")._replace(batch=8)
    assert ledger.get("b") == entry("b", ("f1", "f2"))
    assert sorted(one.writer for one in ledger.entries()) == ["a", "b"]
    assert [one.is_complete for one in sorted(ledger.entries())] == [True, False]


def test_what_nobody_will_repeat_is_forgotten(engine: EngineLog) -> None:
    ledger = Ledger(engine.log.state)
    old_ms = NOW_MS - LEDGER_KEEP_MS - 1
    remember(
        engine, entry("old", time_ms=old_ms), entry("old, in the middle", ("f",), old_ms), entry("new"),
        entry("just not old", time_ms=old_ms + 1),
    )  # fmt: skip
    assert list(ledger.forget_old(engine.log.clock))[-1] == 3
    settle(engine)
    assert ledger.get("old") is None
    assert {one.writer for one in ledger.entries()} == {"old, in the middle", "new", "just not old"}
    assert list(ledger.forget_old(engine.log.clock))[-1] == 3, "nothing is left to forget"
    assert engine.log.state.pending_bytes == 0


def test_a_large_ledger_is_gone_through_in_steps(engine: EngineLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.state.writer_ledger.WALK_KEYS", 4)
    ledger = Ledger(engine.log.state)
    remember(engine, *(entry(f"old {number}", time_ms=0) for number in range(10)), entry("new"))
    steps = ledger.forget_old(engine.log.clock)
    pending = [engine.log.state.pending_bytes for _ in steps]
    assert len(pending) == 11, "a step for each"
    assert pending[0] == pending[2] == 0, "what is removed is submitted a few at a time"
    assert 0 < pending[-1] < engine.log.state.pending_bytes
    settle(engine)
    assert [one.writer for one in ledger.entries()] == ["new"]


def test_a_clock_that_is_ahead_for_a_while_makes_nothing_forgotten(engine: EngineLog, time: Time) -> None:
    ledger = Ledger(engine.log.state)
    remember(engine, entry("a"))
    for jump in (91 * DAY, 3650 * DAY):
        time.offset_ms += jump
        time.pass_on(5 * MINUTE)
        engine.log.housekeeping.clean()
        assert list(ledger.forget_old(engine.log.clock))[-1] == 1
        time.offset_ms -= jump
    assert ledger.get("a") is not None


def test_as_many_writers_as_are_allowed(engine: EngineLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.state.writer_ledger.LEDGER_WRITERS_MAX", 3)
    ledger = Ledger(engine.log.state)
    remember(engine, entry("1"), entry("2"))
    assert list(ledger.forget_old(engine.log.clock))[-1] == 2
    remember(engine, entry("3"), entry("old", time_ms=0))
    with pytest.raises(LimitReached, match="3 writers are remembered already"):
        list(ledger.forget_old(engine.log.clock))
    settle(engine)
    assert ledger.get("old") is None, "forgotten all the same"


def test_another_writer_at_the_place_of_one_is_not_taken_for_it(engine: EngineLog) -> None:
    done: list[object] = []
    place = hashed_key(PREFIX, b"a")
    engine.log.state.submit([Put(place, list(entry("whose name has the same hash")))], done.append)
    engine.inbox.run_until(lambda: bool(done))
    assert Ledger(engine.log.state).get("a") is None
