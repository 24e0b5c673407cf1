"""Sessions when rounds are refused, stored values are damaged, or the process is killed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from engine.errors import Corrupt, DiskFull, EngineError, NotStored, ReadOnly
from engine.files.system import SystemFiles
from engine.sessions.records import BLOCK, FORMAT, HEAD, block_key, read_sessions, session_key
from engine.sessions.store import Sessions
from engine.sessions.types import OutOfOrderAck
from engine.state.store import LmdbState, Put
from tests.processes import Started
from tests.unit.engine.sessions.test_sessions import Bench, Texts, one

ROOT = Path(__file__).parents[4]


def test_a_refused_round_goes_back() -> None:
    bench = Bench()
    bench.make("u", 2)
    for _ in range(2):
        bench.sessions.put("u", one, bench.done)
    full = DiskFull("no space")
    bench.store.round(1, full)
    bench.store.round(1)  # goes through, but hangs in the air
    assert bench.sessions.state("u") == {"made": 4}
    bench.store.answer(1)
    assert bench.sessions.state("u") == {"made": 2}
    bench.store.answer()
    assert bench.got[2][0] is full
    assert isinstance(bench.got[3][0], NotStored)
    crashed = bench.reopen()
    assert crashed.sessions.position("u") == (0, 2, 2)
    bench.sessions.put("u", one, bench.done)
    bench.store.run()
    assert bench.got[4] == (None, 3, ["message 3"])
    assert bench.reopen().sessions.position("u") == (0, 3, 3)


def test_blocks_of_a_round_after_the_refused_one_do_not_count() -> None:
    bench = Bench()
    bench.sessions.register("u", {"made": 0})
    bench.sessions.flush()
    for _ in range(3):
        bench.sessions.put("u", one, bench.done)
    bench.store.round(1)
    bench.store.round(1, DiskFull("no space"))
    bench.store.round(2)
    crashed = bench.reopen()
    assert crashed.sessions.position("u") == (0, 0, 0)
    crashed.sessions.put("u", one, crashed.done)
    crashed.sessions.flush()
    crashed.store.run()
    assert crashed.reopen().sessions.position("u") == (0, 1, 1)
    assert len(crashed.store.durable) == 2


def test_what_is_left_of_an_older_session_is_not_taken_for_the_new_one() -> None:
    bench = Bench()
    bench.make("u", 2)
    del bench.store.durable[session_key("u") + HEAD]
    again = bench.reopen()
    assert "u" not in again.sessions
    again.make("u", 1, start=10)
    again.sessions.flush()
    again.store.run()
    third = again.reopen()
    assert third.sessions.position("u") == (0, 1, 1)
    assert third.sessions.after("u", 0) == "message 11"


def test_a_refused_registration_is_stored_with_the_next_message() -> None:
    bench = Bench()
    answers: list[EngineError | None] = []
    bench.sessions.register("u", {"made": 0}, on_done=answers.append)
    bench.store.round(error=DiskFull("no space"))
    bench.store.answer()
    assert isinstance(answers[0], DiskFull)
    bench.sessions.put("u", one, bench.done)
    bench.store.run()
    assert bench.reopen().sessions.after("u", 0) == "message 1"


def test_a_refused_removal_does_not_hit_the_next_session_of_that_name() -> None:
    bench = Bench()
    bench.make("u", 1)
    bench.clock.now += 30
    bench.sessions.sweep()
    bench.store.round(error=DiskFull("no space"))
    bench.store.answer()
    bench.make("u", 1, start=10)
    bench.sessions.sweep()
    bench.store.run()
    assert bench.reopen().sessions.after("u", 0) == "message 11"
    assert len(bench.store.durable) == 2


def test_nothing_is_tried_on_a_store_that_is_read_only() -> None:
    bench = Bench()
    bench.sessions.register("u", {"made": 0})
    bench.store.error = ReadOnly("until a restart")
    assert bench.sessions.sweep() is False
    assert not bench.store.queue


# --- damage


def damaged(count: int, block: int | None, acknowledged: int = 0) -> Bench:
    """Sessions opened again after a bit of block number `block` (None: the session's own value) has flipped."""
    bench = Bench()
    bench.make("other", 1)
    bench.make("u", count)
    bench.sessions.ack("u", acknowledged)
    bench.sessions.flush()
    bench.store.run()
    (stored,) = (found for found in read_sessions(bench.store).sessions if found.uuid == "u")
    bench.store.damage(
        stored.key + HEAD if block is None else block_key(stored.key, stored.incarnation, block)
    )  # blocks of one message: number = id
    return bench.reopen()


@pytest.mark.parametrize("block", [1, 2, 3])
def test_damage_in_the_middle_costs_what_is_before_it(block: int) -> None:
    bench = damaged(5, block)
    assert bench.sessions.damaged == 1
    assert bench.sessions.position("u") == (block, 5, 5)
    with pytest.raises(OutOfOrderAck):
        bench.sessions.resume("u", block - 1)
    bench.sessions.resume("u", block)
    assert bench.sessions.after("u", block) == f"message {block + 1}"
    assert bench.sessions.after("other", 0) == "message 1"


def test_damage_behind_an_acknowledgement() -> None:
    bench = damaged(5, 4, acknowledged=3)
    assert bench.sessions.position("u") == (4, 5, 5)


@pytest.mark.parametrize("block", [5, None])
def test_damage_of_the_state_ends_the_session(block: int | None) -> None:
    bench = damaged(5, block)
    assert "u" not in bench.sessions
    assert "other" in bench.sessions
    bench.sessions.flush()
    bench.store.run()
    assert all(not key.startswith(session_key("u") + BLOCK) for key in bench.store.durable)


def test_a_message_that_cannot_be_read() -> None:
    bench = Bench()
    bench.make("u", 2)
    (stored,) = read_sessions(bench.store).sessions
    key = block_key(stored.key, stored.incarnation, 1)
    bench.store.damage(key)
    with pytest.raises(Corrupt, match="checksum"):
        bench.sessions.after("u", 0)
    del bench.store.durable[key]
    with pytest.raises(Corrupt, match="missing"):
        bench.sessions.after("u", 0)


def test_an_unknown_format_is_removed() -> None:
    bench = Bench()
    bench.make("u", 1)
    bench.store.submit([Put(session_key("v") + HEAD, [FORMAT + 1, "v", "whatever"])])
    bench.store.run()
    again = bench.reopen()
    assert [info.uuid for info in again.sessions] == ["u"]
    again.sessions.flush()
    again.store.run()
    assert len(again.store.durable) == 2


# --- on disk


CHILD = textwrap.dedent(
    """
    import sys
    from queue import SimpleQueue
    from pathlib import Path
    from engine.files.system import SystemFiles
    from engine.sessions.store import Sessions
    from engine.state.store import LmdbState
    from tests.unit.engine.sessions.test_sessions import Texts, many

    posted = SimpleQueue()
    store = LmdbState(Path(sys.argv[1]), posted.put, SystemFiles(), create=True)
    sessions = Sessions(store, Texts())

    def done(uuid):
        def told(error, first_id, messages):
            assert error is None
            print(uuid, first_id + len(messages) - 1, flush=True)
            sessions.put_many(uuid, many, 7, done(uuid))
        return told

    for uuid in ("a", "b", "c"):
        if uuid not in sessions:
            sessions.register(uuid, {"made": 0})
        sessions.put_many(uuid, many, 3, done(uuid))
    while True:
        posted.get()()
    """
)


@pytest.mark.slow
def test_kill_minus_nine(tmp_path: Path) -> None:
    told = {"a": 0, "b": 0, "c": 0}
    for round_number in range(8):
        command = [sys.executable, "-c", CHILD, str(tmp_path / "state")]
        with Started(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            for _ in range(20 + 7 * round_number):
                uuid, last = child.stdout.readline().split()
                told[uuid] = int(last)
            child.kill()
            for line in child.stdout.readlines():
                if line.endswith("\n"):
                    uuid, last = line.split()
                    told[uuid] = int(last)
        posted: SimpleQueue[Any] = SimpleQueue()
        store = LmdbState(tmp_path / "state", posted.put, SystemFiles(), create=False)
        sessions = Sessions(store, Texts())
        for uuid, last in told.items():
            base, durable, made = sessions.position(uuid)
            assert (base, durable) == (0, made)
            assert durable >= last
            assert sessions.state(uuid) == {"made": durable}
            assert sessions.after(uuid, durable - 1) == f"message {durable}"
        store.close()
