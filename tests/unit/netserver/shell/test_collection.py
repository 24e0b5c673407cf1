"""When the interpreter looks for circles of objects, and what such a look finds."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator

import pytest
import uvloop

from netserver.shell import collection
from netserver.shell.collection import Collection
from netserver.shell.watched_loop import WatchedLoop
from tests.echo import until

GROWTH = 20_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory grows soon, seconds are short; the tests' own interpreter is as before afterwards."""
    monkeypatch.setattr(collection, "COLLECT_DUE_TIMES", 1.0)
    monkeypatch.setattr(collection, "COLLECT_DUE_BLOCKS", GROWTH)
    monkeypatch.setattr(collection, "COLLECT_LATE_TIMES", 1.0)
    monkeypatch.setattr(collection, "COLLECT_LATE_BLOCKS", 4 * GROWTH)
    monkeypatch.setattr(collection, "COLLECT_TICK_S", 0.05)
    monkeypatch.setattr(collection, "QUIET_CPU_SHARE", 0.5)  # a test itself makes some turns
    before = gc.get_threshold()
    yield
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


async def many_turns() -> None:
    while True:  # noqa: ASYNC110  (it waits for nothing)
        await asyncio.sleep(0)


async def long_turns() -> None:
    """Fewer turns than timers make, and no rest."""
    while True:
        end = time.thread_time() + 0.015
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0)


def run(main: Callable[[Collection], object]) -> None:
    async def with_collection() -> None:
        collector = Collection(asyncio.get_running_loop())
        collector.begin()
        await main(collector)  # type: ignore[misc]

    uvloop.run(with_collection(), loop_factory=WatchedLoop)


def test_all_objects_are_looked_at_when_memory_has_grown_and_nobody_is_in_a_hurry() -> None:
    async def main(collector: Collection) -> None:
        circle = old_circle()
        await asyncio.sleep(0.2)
        assert not collector.looks
        kept = [bytes(number) for number in range(2, GROWTH + 1000)]
        await until(lambda: collector.looks == 1)
        assert circle() is None
        await asyncio.sleep(0.2)
        assert collector.looks == 1, "it has not grown since then"
        del kept

    run(main)


@pytest.mark.parametrize("work", [many_turns, long_turns])
def test_it_waits_for_a_quiet_moment_while_memory_allows(work: Callable[[], Coroutine[None, None, None]]) -> None:
    async def main(collector: Collection) -> None:
        others = asyncio.ensure_future(work())
        await asyncio.sleep(0.2)
        circle = old_circle()
        kept = [[] for _ in range(2 * GROWTH)]
        await asyncio.sleep(0.3)
        assert not collector.looks
        assert circle() is not None
        more = [[] for _ in range(3 * GROWTH)]
        await until(lambda: collector.looks)
        assert circle() is None
        others.cancel()
        del kept, more

    run(main)


def test_what_is_there_at_the_start_is_never_looked_at() -> None:
    async def main(_collector: Collection) -> None:
        assert gc.get_freeze_count() > 10_000
        assert gc.isenabled()
        assert gc.get_threshold()[2] > 1_000_000

    run(main)
