"""The simulated store behaves as the real one, and a crash at any step leaves what the real one could leave."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import Corrupt, DiskFull, EngineError, ReadOnly
from engine.state.store import Delete, Op, Put, StateStore
from engine.state.topic_catalog import Catalog
from tests.crash.sim_state import MemoryState
from tests.lmdb_state import opened
from tests.processes import Started

ROOT = str(Path(__file__).resolve().parents[2])


class Inbox:
    def __init__(self) -> None:
        self.queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.call_soon_threadsafe = self.queue.put

    def run(self) -> None:
        while True:
            try:
                self.queue.get_nowait()()
            except Empty:
                return


def everything(store: StateStore) -> dict[bytes, Any]:
    return dict(store.scan(b""))


def some_ops(chosen: random.Random) -> list[Op]:
    ops: list[Op] = []
    for _ in range(chosen.randrange(0, 6)):
        key = b"%c/%d" % (chosen.choice(b"abc"), chosen.randrange(8))
        ops.append(Delete(key) if chosen.random() < 0.3 else Put(key, [chosen.randrange(1000), b"\xff" * 3]))
    return ops


@pytest.mark.parametrize("seed", range(10))
def test_same_answers_as_the_real_store(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    inbox = Inbox()
    simulated = MemoryState(inbox.call_soon_threadsafe)
    with opened(tmp_path / "state") as owner:
        for _ in range(40):
            answers: dict[str, list[EngineError | None]] = {"real": [], "simulated": []}
            for _ in range(chosen.randrange(1, 5)):
                ops = some_ops(chosen)
                owner.store.submit(ops, answers["real"].append)
                simulated.submit(ops, answers["simulated"].append)
            assert simulated.pending_bytes > 0
            owner.run()
            simulated.run_round()
            inbox.run()
            assert simulated.pending_bytes == owner.store.pending_bytes == 0
            assert answers["real"] == answers["simulated"]
            for prefix in (b"", b"a/", b"b/1", b"x"):
                assert list(owner.store.scan(prefix)) == list(simulated.scan(prefix))
            assert owner.store.get(b"a/1") == simulated.get(b"a/1")


def at_step(step: str, inbox: Inbox, seed: int = 0) -> tuple[MemoryState, list[EngineError | None]]:
    """A store with one durable round and a second one at a step; the second's answers."""
    store = MemoryState(inbox.call_soon_threadsafe, seed=seed)
    store.submit([Put(b"a", 1), Put(b"b", 1)])
    store.run_round()
    inbox.run()
    answers: list[EngineError | None] = []
    store.submit([Put(b"a", 2), Delete(b"b")], answers.append)
    store.submit([Put(b"c", 2)], answers.append)
    for name in ("gather", "write", "sync", "answer"):
        if step == "queued":
            break
        getattr(store, name)()
        if name == step:
            break
    store.submit([Put(b"d", 3)], answers.append)
    return store, answers


BEFORE, AFTER = {b"a": 1, b"b": 1}, {b"a": 2, b"c": 2}


@pytest.mark.parametrize(
    ("step", "keep", "expected"),
    [("queued", True, BEFORE), ("gather", True, BEFORE), ("write", False, BEFORE), ("write", True, AFTER),
     ("sync", False, AFTER), ("answer", False, AFTER)],
)  # fmt: skip
def test_a_crash_at_each_step(step: str, keep: bool, expected: dict[bytes, int]) -> None:
    inbox = Inbox()
    store, answers = at_step(step, inbox)
    assert everything(store) == (AFTER if step in ("sync", "answer") else BEFORE)
    assert answers == []
    found = store.crash(inbox.call_soon_threadsafe, keep=keep)
    assert everything(found) == expected
    assert [found.pending_bytes, found.error] == [0, None]
    for use in (lambda: store.submit([]), lambda: store.get(b"a"), lambda: store.crash(inbox.call_soon_threadsafe)):
        with pytest.raises(ReadOnly):
            use()
    found.submit([Put(b"e", 1)])
    found.run_round()
    assert found.get(b"e") == 1


def test_the_seed_decides_and_can_be_replayed() -> None:
    def outcome(seed: int) -> bool:
        inbox = Inbox()
        return everything(at_step("write", inbox, seed)[0].crash(inbox.call_soon_threadsafe)) == AFTER

    outcomes = [outcome(seed) for seed in range(40)]
    assert outcomes == [outcome(seed) for seed in range(40)]
    assert 5 < sum(outcomes) < 35


def test_a_refused_round_is_gone_and_the_next_one_goes_on() -> None:
    inbox = Inbox()
    store, answers = at_step("write", inbox)
    full = DiskFull("full")
    store.refuse_round(full)
    inbox.run()
    assert answers == [full, full]
    assert everything(store) == BEFORE
    store.run_round()
    inbox.run()
    assert answers == [full, full, None]
    assert everything(store) == BEFORE | {b"d": 3}
    assert store.rounds == 2


def test_a_failed_round_ends_writing_until_a_restart() -> None:
    inbox = Inbox()
    store, answers = at_step("gather", inbox)
    broken = ReadOnly("input/output error")
    store.refuse_round(broken)
    store.run_round()
    store.close()
    inbox.run()
    assert answers == [broken] * 3
    assert store.error is broken
    assert store.pending_bytes == 0


def test_close_finishes_what_was_submitted() -> None:
    inbox = Inbox()
    store, answers = at_step("write", inbox)
    store.close()
    store.close()
    store.run_round()
    inbox.run()
    assert answers == [None] * 3
    assert store.history[-1].keys() == {b"a", b"c", b"d"}


def test_rounds_that_run_by_themselves() -> None:
    inbox = Inbox()
    store = MemoryState(inbox.call_soon_threadsafe, rounds_run_by_themselves=True)
    answers: list[EngineError | None] = []
    for number in range(10):
        store.submit([Put(b"a", number)], answers.append)
    inbox.run()
    assert answers == [None] * 10
    assert [store.rounds, store.get(b"a")] == [1, 9]
    assert everything(store.crash(inbox.call_soon_threadsafe)) == {b"a": 9}


def test_an_answer_that_raises_costs_the_others_nothing() -> None:
    inbox = Inbox()
    store = MemoryState(inbox.call_soon_threadsafe)
    answers: list[EngineError | None] = []

    def fails(_: EngineError | None) -> None:
        raise RuntimeError("in the callback")

    store.submit([], fails)
    store.submit([], answers.append)
    store.submit([])
    store.run_round()
    with pytest.raises(RuntimeError):
        inbox.run()
    inbox.run()
    assert answers == [None]


def test_a_round_without_submissions_is_none() -> None:
    inbox = Inbox()
    store = MemoryState(inbox.call_soon_threadsafe)
    assert not store.gather()
    store.run_round()
    store.answer()
    assert inbox.queue.empty()
    assert store.rounds == 0


def test_older_copies_and_damage() -> None:
    inbox = Inbox()
    store = MemoryState(inbox.call_soon_threadsafe, seed=5)
    for number in range(5):
        store.submit([Put(b"a", number), Put(b"%d" % number, number)])
        store.run_round()
    assert [store.older(inbox.call_soon_threadsafe, rounds).get(b"a") for rounds in (0, 1, 4, 5, 99)] == [
        4,
        3,
        0,
        None,
        None,
    ]
    for _ in range(50):
        copy = store.crash(inbox.call_soon_threadsafe)
        copy.damage(b"a")
        with pytest.raises(Corrupt, match="b'a'"):
            copy.get(b"a")
        with pytest.raises(Corrupt):
            list(copy.scan(b""))
        damaged: list[Corrupt] = []
        assert len(list(copy.scan(b"", damaged.append))) == 5
        assert len(damaged) == 1
        store = store.older(inbox.call_soon_threadsafe, 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_catalog_survives_crashes_at_any_step(seed: int) -> None:
    """Acknowledged changes are there after any crash, refused ones are not, and no id or number names two things."""
    chosen = random.Random(seed)
    inbox = Inbox()
    store = MemoryState(inbox.call_soon_threadsafe, seed=seed)
    durable: dict[bytes, int] = {}
    numbered: dict[tuple[bytes, int], int] = {}
    ids: dict[int, bytes] = {}
    for life in range(6):
        catalog = Catalog(store, EngineConfig(), lambda: 0)
        assert catalog.damaged == []
        for name, topic_id in durable.items():
            topic = catalog.get(name)
            assert topic is not None, (life, name)
            assert topic.id == topic_id
        for (name, index), number in numbered.items():
            if name in durable:
                assert catalog.by_id(durable[name]).numbers[index] == number
        for _ in range(chosen.randrange(1, 30)):
            step(chosen, catalog, store, inbox, durable, numbered, ids)
        inbox.run()
        store = store.crash(inbox.call_soon_threadsafe)
        inbox.queue = SimpleQueue()
        inbox.call_soon_threadsafe = inbox.queue.put
        store._call_soon_threadsafe = inbox.call_soon_threadsafe
    catalog = Catalog(store, EngineConfig(), lambda: 0)
    numbers = [number for topic in catalog for number in topic.numbers.values()]
    assert len(numbers) == len(set(numbers))


def step(
    chosen: random.Random, catalog: Catalog, store: MemoryState, inbox: Inbox, durable: dict[bytes, int],
    numbered: dict[tuple[bytes, int], int], ids: dict[int, bytes],
) -> None:  # fmt: skip
    action = chosen.choice(["create", "create", "number", "delete", "gather", "write", "sync", "answer", "refuse"])
    under_way = store._step
    topics = [topic for topic in catalog if not topic.deleting]
    if action == "create":
        name = b"%d" % chosen.randrange(12)
        if catalog.get(name) is None:

            def created(error: EngineError | None) -> None:
                if error is None and not topic.deleting:
                    assert ids.setdefault(topic.id, name) == name
                    durable[name] = topic.id

            topic = catalog.create(name, partition_count=2, on_durable=created)
    elif action == "number" and topics:
        topic, index = chosen.choice(topics), chosen.randrange(2)

        def answered(error: EngineError | None) -> None:
            if error is None and not topic.deleting:
                durable[topic.name] = topic.id
                numbered[topic.name, index] = number

        number = catalog.number(topic, index)
        catalog.number(topic, index, answered)
    elif action == "delete" and topics:
        topic = chosen.choice(topics)
        # From now on a crash may leave it or not.
        durable.pop(topic.name, None)
        for index in (0, 1):
            numbered.pop((topic.name, index), None)
        catalog.delete(topic)
    elif (action, under_way) in (("gather", "idle"), ("write", "gathered"), ("sync", "written"), ("answer", "synced")):
        getattr(store, action)()
        inbox.run()
    elif action == "refuse" and under_way in ("gathered", "written"):
        store.refuse_round(DiskFull("full"))
        inbox.run()


KILLED = """
    import os, signal, sys, threading
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from engine.state.store import Put
    from tests.lmdb_state import opened
    with opened(Path(sys.argv[1])) as owner:
        first = owner.store.get(b"last") or 0
        for number in range(first + 1, first + 10_000):
            ops = [Put(b"last", number), Put(b"%d" % (number % 50), number)]
            owner.store.submit(ops, lambda error, number=number: print(number, flush=True))
            if number % 20 == 0:
                owner.run()
"""


def test_the_real_store_killed_in_mid_load(tmp_path: Path) -> None:
    """What the simulation promises, seen on the real one: answered = there, and every submission whole."""
    arguments = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "state"), ROOT]
    for _ in range(4):
        with Started(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(random.Random().randrange(50, 500)):
                answered = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
            rest = process.stdout.read().split("\n")
            answered = max([answered, *(int(line) for line in rest[:-1])])
        with opened(tmp_path / "state", create=False) as owner:
            last = owner.store.get(b"last")
            assert last >= answered
            for number in range(max(1, last - 49), last + 1):
                assert owner.store.get(b"%d" % (number % 50)) == number
