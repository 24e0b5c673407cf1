"""When the interpreter looks for circles of objects, and what such a look finds."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine, Iterator

import pytest
import uvloop

from netserver.shell import collection
from netserver.shell.collection import Collection
from tests.echo import until

GROWTH = 20_000
LOOKED_AT_MAX = 5 * 2000
"""Objects in one look: what is new since the one before, and what was looked at once."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory grows soon; the tests' own interpreter is as before afterwards."""
    monkeypatch.setattr(collection, "COLLECT_LATE_TIMES", 1.0)
    monkeypatch.setattr(collection, "COLLECT_LATE_BLOCKS", GROWTH)
    monkeypatch.setattr(collection, "COLLECT_THING_BLOCKS", 100)
    monkeypatch.setattr(collection, "COLLECT_TICK_S", 0.05)
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*before)
    gc.unfreeze()


class Circle:
    def __init__(self) -> None:
        self.me = self


def old_circle() -> Callable[[], object]:
    """One that the looks at young objects do not find any more."""
    made = Circle()
    gc.collect(1)
    return weakref.ref(made)


def run(main: Callable[[Collection], Coroutine[None, None, None]], things: Callable[[], int] = lambda: 0) -> None:
    async def with_collection() -> None:
        collector = Collection(things)
        collector.begin(asyncio.get_running_loop())
        await main(collector)

    uvloop.run(with_collection())


def test_all_objects_are_looked_at_when_memory_has_grown_without_a_reason() -> None:
    async def main(collector: Collection) -> None:
        circle, found = old_circle(), collector.found
        await asyncio.sleep(0.2)
        assert not collector.looks
        kept = [[] for _ in range(GROWTH + 1000)]
        await until(lambda: collector.looks == 1)
        assert circle() is None
        assert collector.found > found
        await asyncio.sleep(0.2)
        assert collector.looks == 1, "it has not grown since then"
        del kept

    run(main)


def test_memory_that_is_taken_for_something_is_no_reason_to_look_at_all_objects() -> None:
    things = 0

    async def main(collector: Collection) -> None:
        nonlocal things
        things = GROWTH // 50
        kept = [[] for _ in range(2 * GROWTH)]
        await asyncio.sleep(0.2)
        assert not collector.looks
        things = 0
        await until(lambda: collector.looks)
        del kept

    run(main, lambda: things)


def test_no_look_is_at_more_than_some_thousand_objects_however_many_there_are() -> None:
    async def main(collector: Collection) -> None:
        most = 0

        def count(phase: str, info: dict[str, int]) -> None:
            nonlocal most
            if phase == "start":
                most = max(most, sum(len(gc.get_objects(number)) for number in range(info["generation"] + 1)))

        gc.callbacks.append(count)
        kept = [[] for _ in range(20 * LOOKED_AT_MAX)]
        gc.callbacks.remove(count)
        assert len(gc.get_objects()) > len(kept)
        assert 0 < most <= LOOKED_AT_MAX
        assert collector.longest_s > 0

    run(main)


def test_what_is_there_at_the_start_is_never_looked_at() -> None:
    async def main(_collector: Collection) -> None:
        assert gc.get_freeze_count() > 10_000
        assert gc.isenabled()

    run(main)
