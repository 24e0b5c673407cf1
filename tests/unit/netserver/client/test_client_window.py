"""The window of publishing clients: places in order, what is sent next, acknowledgements, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from netserver.client.window import Entry, Window
from netserver.errors import Closed, ConnectionFailed, NotStored, Unknown

pytestmark = pytest.mark.whole

Test = Callable[[], Coroutine[Any, Any, None]]


def entry(first: int, count: int = 1, size_bytes: int = 10) -> Entry:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    frames = b"%d" % first
    return Entry(
        first, first + count - 1, frames.ljust(size_bytes, b"."), future, list(range(first, first + count)), count
    )


def filled(window: Window, *entries: Entry) -> tuple[Entry, ...]:
    for one in entries:
        assert window.try_room(one.count, one.size_bytes)
        window.add(one)
    return entries


def numbers(frames: list[bytes | bytearray]) -> list[int]:
    return [int(frame.rstrip(b".")) for frame in frames]


def run(test: Test) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


def test_limits() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Window(0, 1)
    window = Window(3, 100)
    assert window.try_room(2, 50)
    assert not window.try_room(2, 1)
    assert not window.try_room(1, 51)
    assert window.try_room(1, 50)
    window.give_back(3, 100)
    assert window.try_room(1000, 1000), "one that is larger than the window goes alone"
    assert not window.try_room(1, 0)


def test_room_is_granted_in_the_order_of_asking() -> None:
    async def test() -> None:
        window = Window(4, 1000)
        assert window.try_room(4, 40)
        order: list[str] = []

        async def ask(name: str, count: int) -> None:
            await window.room(count, 10)
            order.append(name)

        tasks = [asyncio.create_task(ask("large", 3))]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(ask("small", 1)), asyncio.create_task(ask("next", 1))]
        await asyncio.sleep(0)
        window.give_back(1, 10)
        await asyncio.sleep(0)
        assert order == [], "a small one does not overtake"
        window.give_back(2, 20)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["large"]
        assert not window.try_room(1, 1), "nor does a new one"
        window.give_back(2, 20)
        await asyncio.gather(*tasks)
        assert order == ["large", "small", "next"]

    run(test)


def test_a_cancelled_asker_leaves_its_place_to_the_next() -> None:
    async def test() -> None:
        window = Window(2, 1000)
        assert window.try_room(2, 20)
        first = asyncio.create_task(window.room(2, 20))
        second = asyncio.create_task(window.room(1, 10))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        window.give_back(1, 10)
        await second
        assert window.records == 2
        third = asyncio.create_task(window.room(1, 10))
        await asyncio.sleep(0)
        window.give_back(1, 10)
        third.cancel()  # granted, and cancelled before it went on
        with pytest.raises(asyncio.CancelledError):
            await third
        assert window.records == 1

    run(test)


def test_cumulative_acknowledgement() -> None:
    async def test() -> None:
        window = Window(100, 1000)
        first, pack, last = filled(window, entry(0), entry(1, 5), entry(6))
        assert numbers(window.take_unsent(1000)) == [0, 1, 6]
        assert not window.unsent
        assert window.ack_through(3) == 1
        assert [one.future.done() for one in (first, pack, last)] == [True, False, False]
        assert window.ack_through(6) == 6
        assert (window.records, window.size_bytes, len(window)) == (0, 0, 0)
        assert window.ack_through(6) == 0

    run(test)


def test_what_was_not_sent_is_not_acknowledged() -> None:
    async def test() -> None:
        window = Window(100, 1000)
        filled(window, entry(0), entry(1))
        assert numbers(window.take_unsent(10)) == [0]
        assert window.ack_through(9) == 1
        assert numbers(window.take_unsent(10)) == [1]
        window.rewind()
        assert window.ack_through(9) == 0
        assert numbers(window.take_unsent(10)) == [1]

    run(test)


def test_rewind_sends_all_again_in_the_old_order_before_anything_new() -> None:
    async def test() -> None:
        window = Window(100, 1000)
        filled(window, entry(0), entry(1), entry(2))
        window.take_unsent(25)
        window.ack_through(0)
        window.rewind()
        filled(window, entry(3))
        assert numbers(window.take_unsent(1)) == [1]
        assert numbers(window.take_unsent(1000)) == [2, 3]

    run(test)


def test_single_answers_in_any_order() -> None:
    async def test() -> None:
        window = Window(3, 1000)
        first, second, third = filled(window, entry(0), entry(1), entry(2))
        window.take_unsent(1000)
        window.settle(second, "answer")
        window.settle(third, error=NotStored("full"))
        window.settle(third, "too late")
        assert second.future.result() == "answer"
        assert isinstance(third.future.exception(), NotStored)
        assert window.records == 1
        flushed = asyncio.create_task(window.flushed())
        await asyncio.sleep(0)
        assert not flushed.done()
        window.rewind()
        assert numbers(window.take_unsent(1000)) == [0]
        window.settle(first)
        await flushed
        assert len(window) == 0

    run(test)


def test_flushed_waits_for_what_was_there_and_not_for_more() -> None:
    async def test() -> None:
        window = Window(100, 1000)
        await window.flushed()
        filled(window, entry(0))
        flushed = asyncio.create_task(window.flushed())
        await asyncio.sleep(0)
        filled(window, entry(1))
        window.take_unsent(1000)
        window.ack_through(0)
        await flushed
        assert len(window) == 1

    run(test)


def test_shrink() -> None:
    async def test() -> None:
        window = Window(10, 1000)
        (pack,) = filled(window, entry(5, 4, 40))
        window.take_unsent(1000)
        window.rewind()
        window.shrink(pack, 3, b"8")
        assert (window.records, window.size_bytes) == (1, 1)
        assert list(pack.records) == [8]
        assert numbers(window.take_unsent(1000)) == [8]
        assert window.ack_through(8) == 1

    run(test)


def test_the_end_tells_everybody_what_is_unknown() -> None:
    async def test() -> None:
        window = Window(2, 1000)
        one, two = filled(window, entry(0), entry(1))
        window.take_unsent(1000)
        asker = asyncio.create_task(window.room(1, 1))
        flushed = asyncio.create_task(window.flushed())
        await asyncio.sleep(0)
        window.fail(ConnectionFailed("gone"))
        window.fail(Closed("later"))
        for pending, records in ((one, [0]), (two, [1])):
            problem = pending.future.exception()
            assert isinstance(problem, Unknown)
            assert list(problem.records) == records
        with pytest.raises(ConnectionFailed):
            await asker
        with pytest.raises(Unknown) as caught:
            await flushed
        assert list(caught.value.records) == [0, 1]
        assert (caught.value.stored, caught.value.retryable) == (None, True)
        for call in (window.flushed(), window.room(1, 1)):
            with pytest.raises(ConnectionFailed):
                await call
        with pytest.raises(ConnectionFailed):
            window.add(two)

    run(test)


def test_a_future_that_the_application_gave_up_is_left_alone() -> None:
    async def test() -> None:
        window = Window(3, 1000)
        first, second, third = filled(window, entry(0), entry(1), entry(2))
        window.take_unsent(1000)
        for one in (first, second, third):
            one.future.cancel()
        assert window.ack_through(0) == 1
        window.settle(second, error=NotStored("full"))
        window.fail(Closed("closed"))

    run(test)
