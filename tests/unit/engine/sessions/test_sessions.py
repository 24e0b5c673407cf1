"""Sessions one rule at a time; tests/property/test_sessions_model.py has them under failures and power cuts."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, LimitReached, TooLarge
from engine.limits import STATE_VALUE_BYTES_MAX
from engine.sessions.store import LAST_ID, Sessions
from engine.sessions.types import (
    OutOfOrderAck,
    SessionConfig,
    SessionFull,
    SessionReplaced,
    UnknownMessage,
    UnknownSession,
)
from tests.simulated_state import SimulatedState

ROOT = Path(__file__).parents[4]


class Texts:
    """States are dictionaries, messages are texts: anything that msgpack holds would do."""

    def pack_state(self, state: dict[str, int]) -> Any:
        return state

    def unpack_state(self, stored: Any) -> dict[str, int]:
        return dict(stored)

    def pack_messages(self, messages: Sequence[str]) -> Any:
        return list(messages)

    def unpack_messages(self, stored: Any, count: int) -> Sequence[str]:
        assert len(stored) == count
        return list(stored)


def one(state: dict[str, int]) -> tuple[str, dict[str, int]]:
    made = state["made"] + 1
    return f"message {made}", {"made": made}


def many(state: dict[str, int], limit: int) -> tuple[list[str], dict[str, int]]:
    messages = []
    for _ in range(limit):
        message, state = one(state)
        messages.append(message)
    return messages, state


class Connection:
    """An owner that remembers what it lost."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def session_lost(self, uuid: str) -> None:
        self.lost.append(uuid)


class Clock:
    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Sessions over a simulated store; ``got`` collects what on_done was told."""

    def __init__(self, store: SimulatedState | None = None, **config: Any) -> None:
        self.store = store or SimulatedState()
        self.clock = Clock()
        self.config = SessionConfig(**config)
        self.sessions = Sessions(self.store, Texts(), self.config, self.clock)
        self.got: list[tuple[EngineError | None, int, list[str]]] = []

    def done(self, error: EngineError | None, first_id: int, messages: Sequence[str]) -> None:
        self.got.append((error, first_id, list(messages)))

    def make(self, uuid: str, count: int = 1, start: int = 0) -> None:
        """A session with `count` blocks of one message, all durable."""
        self.sessions.register(uuid, {"made": start})
        for _ in range(count):
            self.sessions.put(uuid, one, self.done)
        self.store.run()

    def reopen(self, kept: int = 0) -> Bench:
        return Bench(self.store.crash(kept), **{name: getattr(self.config, name) for name in self.config.__slots__})


# --- the interface of the specification


def test_message_id_and_state_in_one_round() -> None:
    bench = Bench()
    sessions, store = bench.sessions, bench.store
    sessions.register("u", {"made": 0})
    assert sessions.put("u", one, bench.done) == 1
    assert len(store.queue) == 1, "the session and its first message go together"
    assert bench.got == []
    assert sessions.after("u", 0) is None, "not durable yet"
    store.round()
    assert bench.got == []
    store.answer()
    assert bench.got == [(None, 1, ["message 1"])]
    assert sessions.after("u", 0) == "message 1"
    assert sessions.after("u", 1) is None
    assert sessions.state("u") == {"made": 1}
    again = bench.reopen()
    assert again.sessions.after("u", 0) == "message 1"
    assert again.sessions.state("u") == {"made": 1}
    assert again.sessions.position("u") == (0, 1, 1)


def test_register_can_be_awaited() -> None:
    bench = Bench()
    answers: list[EngineError | None] = []
    bench.sessions.register("u", {"made": 7}, on_done=answers.append)
    bench.store.round()
    assert answers == []
    bench.store.answer()
    assert answers == [None]
    assert bench.reopen().sessions.state("u") == {"made": 7}


def test_put_many_is_put_again_and_again() -> None:
    single, bulk = Bench(), Bench()
    single.make("u", 7)
    bulk.sessions.register("u", {"made": 0})
    assert [bulk.sessions.put_many("u", many, n, bulk.done) for n in (3, 4)] == [3, 4]
    bulk.store.run()
    texts = [f"message {n}" for n in range(1, 8)]
    assert [message for _, _, messages in single.got for message in messages] == texts
    assert bulk.got == [(None, 1, texts[:3]), (None, 4, texts[3:])]
    assert single.sessions.state("u") == bulk.sessions.state("u") == {"made": 7}
    for position in range(7):
        assert single.sessions.after("u", position) == bulk.sessions.after("u", position) == texts[position]
    assert list(bulk.sessions.after_many("u", 0)) == texts[:3]
    assert list(bulk.sessions.after_many("u", 4)) == texts[4:]


def test_nothing_to_say_stores_nothing() -> None:
    bench = Bench()
    bench.make("u")
    assert bench.sessions.put_many("u", lambda state, limit: ([], {"made": 99}), 5, bench.done) == 0
    assert not bench.store.queue
    assert bench.sessions.state("u") == {"made": 1}


def test_a_transformer_that_fails_changes_nothing() -> None:
    bench = Bench()
    bench.make("u")

    def fails(state: dict[str, int]) -> tuple[str, dict[str, int]]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.sessions.put("u", fails, bench.done)
    assert bench.sessions.position("u") == (0, 1, 1)
    assert not bench.store.queue


def test_unknown_sessions() -> None:
    bench = Bench()
    calls: list[Any] = [
        lambda: bench.sessions.put("x", one, bench.done),
        lambda: bench.sessions.after("x", 0),
        lambda: bench.sessions.ack("x", 0),
        lambda: bench.sessions.resume("x", 0),
        lambda: bench.sessions.disconnect("x"),
        lambda: bench.sessions.drop("x"),
        lambda: bench.sessions.info("x"),
    ]
    for call in calls:
        with pytest.raises(UnknownSession, match=r"^Unknown client 'x'$"):
            call()


def test_positions_that_are_not_allowed() -> None:
    bench = Bench()
    bench.make("u", 5)
    bench.sessions.put("u", one, bench.done)  # made, not durable: not sent
    bench.sessions.ack("u", 3)
    bench.sessions.ack("u", 3)
    for call in (bench.sessions.ack, bench.sessions.resume, bench.sessions.after):
        with pytest.raises(UnknownMessage, match=r"^Unknown message ID '6'$"):
            call("u", 6)
        with pytest.raises(OutOfOrderAck, match=r"^Out-of-order ACK$"):
            call("u", 2)
    bench.sessions.resume("u", 4)
    with pytest.raises(OutOfOrderAck):
        bench.sessions.ack("u", 3)


def test_ack_drops_messages_and_the_state_stays() -> None:
    bench = Bench()
    bench.make("u", 5)
    assert len(bench.store.durable) == 6
    bench.sessions.ack("u", 5)
    bench.sessions.flush()
    bench.store.run()
    assert len(bench.store.durable) == 2, "the session, and the last block with the state"
    again = bench.reopen()
    assert again.sessions.position("u") == (5, 5, 5)
    assert again.sessions.state("u") == {"made": 5}
    with pytest.raises(OutOfOrderAck):
        again.sessions.resume("u", 4)
    again.sessions.put("u", one, again.done)
    again.store.run()
    assert again.got == [(None, 6, ["message 6"])]
    assert len(again.store.durable) == 3
    again.sessions.put("u", one, again.done)
    again.store.run()
    assert len(again.store.durable) == 3, "what was acknowledged goes with the next block"


def test_ack_of_part_of_a_block() -> None:
    bench = Bench()
    bench.sessions.register("u", {"made": 0})
    bench.sessions.put_many("u", many, 4, bench.done)
    bench.store.run()
    bench.sessions.ack("u", 2)
    assert list(bench.sessions.after_many("u", 2)) == ["message 3", "message 4"]
    with pytest.raises(OutOfOrderAck):
        bench.sessions.after_many("u", 1)


def test_register_makes_a_known_session_anew() -> None:
    bench = Bench()
    bench.make("u", 3)
    bench.sessions.put("u", one, bench.done)
    bench.sessions.register("u", {"made": 100})
    bench.sessions.put("u", one, bench.done)
    bench.store.run()
    assert isinstance(bench.got[3][0], SessionReplaced)
    assert bench.got[4] == (None, 1, ["message 101"])
    again = bench.reopen()
    assert again.sessions.position("u") == (0, 1, 1)
    assert again.sessions.after("u", 0) == "message 101"
    assert len(again.store.durable) == 2


# --- owners and expiry


def test_the_newer_owner_takes_over() -> None:
    bench = Bench()
    first, second, third = Connection(), Connection(), Connection()
    bench.sessions.register("u", {"made": 0}, first)
    bench.sessions.put("u", one, bench.done)
    bench.store.run()
    bench.sessions.resume("u", 1, first)
    assert first.lost == []
    bench.sessions.resume("u", 1, second)
    assert first.lost == ["u"]
    bench.sessions.register("u", {"made": 0}, third)
    assert second.lost == ["u"]
    bench.sessions.disconnect("u", first)  # closes late: no business of its any more
    bench.clock.now += 31
    bench.sessions.sweep()
    assert "u" in bench.sessions
    bench.sessions.disconnect("u", third)
    bench.clock.now += 29.9
    bench.sessions.sweep()
    assert "u" in bench.sessions
    bench.clock.now += 0.1
    bench.sessions.sweep()
    assert "u" not in bench.sessions
    assert bench.sessions.expired == 1
    bench.store.run()
    assert bench.store.durable == {}


def test_a_failed_resume_takes_nothing_over() -> None:
    bench = Bench()
    owner, other = Connection(), Connection()
    bench.sessions.register("u", {"made": 0}, owner)
    with pytest.raises(UnknownMessage):
        bench.sessions.resume("u", 1, other)
    assert owner.lost == []
    bench.sessions.disconnect("u", other)
    assert bench.sessions.info("u").expires_in_s is None


def test_resuming_stops_the_clock_each_time() -> None:
    bench = Bench()
    owner = Connection()
    bench.make("u", 1)
    for _ in range(5):
        bench.clock.now += 29
        bench.sessions.sweep()
        bench.sessions.resume("u", 1, owner)
        bench.clock.now += 1000
        bench.sessions.sweep()
        bench.sessions.disconnect("u", owner)
    bench.clock.now += 30
    bench.sessions.sweep()
    assert "u" not in bench.sessions


def test_full_time_again_after_a_restart() -> None:
    bench = Bench()
    bench.make("u", 1)
    bench.clock.now += 29
    again = bench.reopen()
    again.clock.now += 29
    again.sessions.sweep()
    assert "u" in again.sessions
    again.clock.now += 1
    again.sessions.sweep()
    again.store.run()
    assert again.store.durable == {}


def test_sweeping_goes_by_slices() -> None:
    bench = Bench(sweep_slice=10)
    for n in range(35):
        bench.sessions.register(f"u{n}", {"made": 0})
    calls = 1
    while bench.sessions.flush():
        calls += 1
    assert calls == 4
    bench.store.run()
    assert len(bench.store.durable) == 35
    bench.clock.now += 30
    removed = [len(bench.sessions)]
    while bench.sessions.sweep():
        removed.append(len(bench.sessions))
    assert removed == [35, 25, 15, 5]
    assert len(bench.sessions) == 0


def test_sweeping_goes_by_what_is_to_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 sessions of thousands of blocks are more than one submission takes."""
    monkeypatch.setattr("engine.sessions.store.SESSION_REMOVALS_MAX", 40)
    monkeypatch.setattr("engine.state.store.STATE_ROUND_BYTES_MAX", 4000)
    bench = Bench()
    for n in range(12):
        bench.sessions.register(f"u{n}", {"made": 0})
        for _ in range(20):
            bench.sessions.put(f"u{n}", one, bench.done)
    bench.store.run()
    bench.clock.now += 30
    removed = [len(bench.sessions)]
    while bench.sessions.sweep():
        removed.append(len(bench.sessions))
    assert removed == [12, 10, 8, 6, 4, 2, 0]
    bench.store.run()
    assert bench.store.durable == {}


def test_drop() -> None:
    bench = Bench()
    owner = Connection()
    answers: list[EngineError | None] = []
    bench.sessions.register("u", {"made": 0}, owner)
    bench.sessions.put("u", one, bench.done)
    bench.sessions.drop("u", answers.append)
    assert owner.lost == ["u"]
    bench.store.run()
    assert isinstance(bench.got[0][0], SessionReplaced)
    assert answers == [None]
    assert bench.store.durable == {}
    assert bench.sessions.stored_bytes == 0


def test_drop_one_that_nobody_has() -> None:
    bench = Bench()
    bench.make("u", 1)
    answers: list[EngineError | None] = []
    bench.sessions.drop("u", answers.append)
    bench.store.run()
    assert answers == [None]
    assert len(bench.sessions) == 0
    assert bench.store.durable == {}


def test_what_tools_see() -> None:
    bench = Bench()
    bench.make("u", 3)
    bench.sessions.ack("u", 2)
    bench.clock.now += 10
    (info,) = bench.sessions
    assert (info.uuid, info.state, info.last_id, info.acknowledged_id) == ("u", {"made": 3}, 3, 2)
    assert info.expires_in_s == pytest.approx(20)
    assert info.stored_bytes == bench.sessions.stored_bytes > 0
    bench.sessions.resume("u", 2, Connection())
    assert bench.sessions.replays == 1
    assert bench.sessions.info("u").expires_in_s is None


# --- bounds


def test_bounds() -> None:
    bench = Bench(sessions_max=2, session_bytes_max=600, total_bytes_max=1000)  # a share is 500, a block about 170
    for uuid in ("a", "b"):
        bench.sessions.register(uuid, {"made": 0})
    with pytest.raises(LimitReached, match="Too many sessions"):
        bench.sessions.register("c", {"made": 0})
    bench.sessions.register("b", {"made": 0})
    for _ in range(4):
        bench.sessions.put("a", one, bench.done)
    with pytest.raises(SessionFull, match=r"Too many unacknowledged messages \(4\)"):
        bench.sessions.put("a", one, bench.done)
    for _ in range(3):
        bench.sessions.put("b", one, bench.done)
    assert bench.sessions.stored_bytes > 1000
    with pytest.raises(LimitReached, match="all sessions"):
        bench.sessions.put("b", one, bench.done)
    bench.store.run()
    bench.sessions.ack("a", 4)
    bench.sessions.put("b", one, bench.done)
    bench.sessions.put("a", one, bench.done)


def test_ids_end() -> None:
    bench = Bench()
    bench.sessions.register("u", {"made": 0})
    bench.sessions._find("u").last = LAST_ID - 2
    assert bench.sessions.put_many("u", many, 100, bench.done) == 2
    with pytest.raises(SessionFull, match="No message ids"):
        bench.sessions.put("u", one, bench.done)


def test_an_oversized_message_is_refused() -> None:
    bench = Bench()
    bench.make("u", 2)
    bench.sessions.ack("u", 2)

    def huge(state: dict[str, int]) -> tuple[str, dict[str, int]]:
        return "x" * (STATE_VALUE_BYTES_MAX + 1), {"made": 99}

    with pytest.raises(TooLarge):
        bench.sessions.put("u", huge, bench.done)
    assert bench.sessions.state("u") == {"made": 2}
    bench.sessions.put("u", one, bench.done)
    bench.store.run()
    assert bench.got[-1] == (None, 3, ["message 3"])
    assert bench.reopen().sessions.position("u") == (2, 3, 3)


def test_an_idle_session_is_small() -> None:
    count = 2000
    bench = Bench()
    uuids = [f"bf575c35-c25b-4386-8430-{n:012d}" for n in range(count)]
    gc.collect()
    tracemalloc.start()
    for uuid in uuids:
        bench.sessions.register("".join(uuid), {"made": 0})
        bench.sessions.put_many(uuid, many, 16, lambda *answer: None)
        bench.store.run()
        bench.sessions.ack(uuid, 16)
    while bench.sessions.flush():
        pass
    bench.store.round()
    bench.store.answer()
    store_bytes = sum(sys.getsizeof(stored) + sys.getsizeof(key) for key, stored in bench.store.durable.items())
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (used - store_bytes) / count < 2048
    assert store_bytes / count < 2048
