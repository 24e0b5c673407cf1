"""Slices of long work: one budget a turn, everybody gets on, a defect costs nobody else anything."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from engine.slices import Slices
from netserver.blipmq import codec
from tests.blipmq_place import Place, with_server


class Loop:
    """Calls what was asked for, turn by turn."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def turn(self) -> bool:
        due, self.soon = self.soon, []
        for callback in due:
            callback()
        return bool(due)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def slices(loop: Loop) -> Slices:
    return Slices(lambda callback: loop.soon.append(callback))


def test_time_is_counted_from_the_first_question_of_a_turn(
    loop: Loop, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1.0]
    monkeypatch.setattr("engine.slices.time.perf_counter", lambda: now[0])
    assert not slices.is_over()
    now[0] += 1
    assert slices.is_over()
    loop.turn()
    assert not slices.is_over()


def test_each_turn_does_one_slice_and_all_get_on(loop: Loop, slices: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    done: list[str] = []

    def steps(name: str) -> Iterator[None]:
        for number in range(5):
            done.append(f"{name}{number}")
            yield

    slices.run(steps("a"))
    slices.run(steps("b"))
    assert done == ["a0", "a1", "b0"]  # the first question starts the clock
    lengths = [len(done)]
    while loop.turn():
        lengths.append(len(done))
    assert done[3:] == ["a2", "a3", "b1", "b2", "a4", "b3", "b4"]
    assert max(after - before for before, after in itertools.pairwise(lengths)) == 2


def test_what_raises_costs_others_nothing(loop: Loop, slices: Slices) -> None:
    done: list[int] = []
    slices.later(lambda: 1 / 0)
    slices.later(lambda: done.append(1))
    slices.call_each("a test", (lambda: 1 / 0, lambda: done.append(2)))
    while loop.turn():
        pass
    assert sorted(done) == [1, 2]


def test_many_frames_of_one_read_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)

    async def test(place: Place) -> None:
        topics = place.server.log.catalog
        seen = [len(topics)]

        async def watch() -> None:
            while True:
                await asyncio.sleep(0)
                seen.append(len(topics))

        watching = asyncio.ensure_future(watch())
        peer = await place.peer()
        peer.send(b"".join(codec.subscribe(cid, b"t%d" % cid, 1) for cid in range(10, 210)))
        cids = [(await peer.frame()).cid for _ in range(200)]
        watching.cancel()
        assert cids == list(range(10, 210))
        assert max(after - before for before, after in itertools.pairwise(seen)) <= 2

    with_server(test)
