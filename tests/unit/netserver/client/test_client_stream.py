"""Prefetch and subscriptions of the clients: bounded, nothing dropped, any way of reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

import pytest

from netserver.client.stream import Batch, Prefetch, SubscriptionBase
from netserver.errors import Closed, ConnectionFailed, Refused, Timeout

pytestmark = pytest.mark.whole


class Numbers(Batch[int]):
    """Consecutive numbers; each counts 10 bytes."""

    __slots__ = ("numbers", "size_bytes")

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.size_bytes = 10 * len(numbers)

    @property
    def next_offset(self) -> int:  # type: ignore[override]
        return self.numbers[-1] + 1

    def __len__(self) -> int:
        return len(self.numbers)

    def records(self) -> list[int]:
        return list(self.numbers)

    def part(self, start: int, end: int) -> Self:
        return type(self)(self.numbers[start:end])


class Counting(SubscriptionBase[int, Numbers]):
    """A subscription that is filled by hand."""

    def __init__(self) -> None:
        super().__init__(100, 10_000, 0)
        self.calls: list[Any] = []
        self.gate: asyncio.Event | None = None
        self.refuse = False

    async def _do_open(self) -> None:
        self.calls.append("open")
        if self.gate is not None:
            await self.gate.wait()
        if self.refuse:
            raise Refused("no", "not now")

    async def _do_close(self) -> None:
        self.calls.append("close")

    async def _do_seek(self, start: int) -> None:
        self.calls.append(start)
        self._restart(start)

    def _do_room(self) -> None:
        self.calls.append("room")

    def _position_of(self, record: int) -> int:
        return record + 1

    def put(self, start: int, end: int) -> None:
        self._queue.put(Numbers(list(range(start, end))))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


def test_prefetch_says_when_it_is_full_and_when_there_is_room_again() -> None:
    async def test() -> None:
        calls: list[int] = []
        queue: Prefetch[Numbers] = Prefetch(10, 1000, lambda: calls.append(queue.records))
        queue.put(Numbers([1, 2, 3]))
        assert not queue.full
        queue.put(Numbers([4] * 7))
        assert queue.full
        assert await queue.take() is not None
        assert (queue.full, calls) == (True, [])
        assert await queue.take() is not None
        assert (queue.full, calls, queue.size_bytes) == (False, [0], 0)
        queue.put(Numbers([1] * 100))
        assert queue.full, "bytes count too"
        queue.clear()
        assert calls == [0, 0]

    run(test)


def test_takers_get_one_batch_each_also_when_one_is_cancelled() -> None:
    async def test() -> None:
        queue: Prefetch[Numbers] = Prefetch(10, 1000, lambda: None)
        first, second, third = (asyncio.create_task(queue.take()) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        queue.put(Numbers([1]))
        second.cancel()  # woken, and cancelled before it took the batch
        taken = await third
        assert taken is not None
        assert taken.numbers == [1]

    run(test)


def test_a_closed_prefetch_still_gives_what_it_has() -> None:
    async def test() -> None:
        queue: Prefetch[Numbers] = Prefetch(10, 1000, lambda: None)
        queue.put(Numbers([1]))
        queue.close(ConnectionFailed("gone"))
        queue.close(None)
        assert await queue.take() is not None
        with pytest.raises(ConnectionFailed):
            await queue.take()
        other: Prefetch[Numbers] = Prefetch(10, 1000, lambda: None)
        taker = asyncio.create_task(other.take())
        await asyncio.sleep(0)
        other.close(None)
        assert await taker is None

    run(test)


def test_every_way_of_reading_goes_on_where_the_other_stopped() -> None:
    async def test() -> None:
        subscription = Counting()
        subscription.put(0, 10)
        subscription.put(10, 30)
        assert subscription.position == 0
        async for number in subscription:
            if number == 3:
                break
        assert subscription.position == 4
        assert await subscription.next() == 4
        found = []
        async for batch in subscription.batches(max_records=4):
            found.append(batch.numbers)
            assert subscription.position == batch.next_offset
            if batch.numbers[-1] >= 17:
                break
        assert found == [[5, 6, 7, 8], [9], [10, 11, 12, 13], [14, 15, 16, 17]]
        async for number in subscription:
            assert number == 18
            assert await subscription.next(1) == 19
            break
        assert await subscription.next() == 20
        assert subscription.calls == ["open"]

    run(test)


def test_loops_end_when_the_subscription_does() -> None:
    async def test() -> None:
        async with Counting() as subscription:
            subscription.put(0, 5)
        assert [number async for number in subscription] == [0, 1, 2, 3, 4]
        assert [batch async for batch in subscription.batches()] == []
        with pytest.raises(Closed):
            await subscription.next()
        assert subscription.position == 5
        await subscription.close()
        assert subscription.calls == ["open", "close"]

    run(test)


def test_an_error_comes_behind_the_records() -> None:
    async def test() -> None:
        subscription = await Counting()
        subscription.put(0, 2)
        subscription._end(ConnectionFailed("gave up"))
        assert [await subscription.next(), await subscription.next()] == [0, 1]
        with pytest.raises(ConnectionFailed):
            await subscription.next()

    run(test)


def test_next_with_a_time_limit() -> None:
    async def test() -> None:
        subscription = Counting()
        with pytest.raises(Timeout) as caught:
            await subscription.next(0.01)
        assert isinstance(caught.value, TimeoutError)
        subscription.put(7, 8)
        assert await subscription.next(0.01) == 7

    run(test)


def test_several_readers_share_without_loss() -> None:
    async def test() -> None:
        subscription = Counting()
        found: list[int] = []

        async def read() -> None:
            async for number in subscription:
                found.append(number)
                await asyncio.sleep(0)

        readers = [asyncio.create_task(read()) for _ in range(5)]
        for start in range(0, 500, 7):
            subscription.put(start, min(start + 7, 500))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await subscription.close()
        await asyncio.gather(*readers)
        assert sorted(found) == list(range(500))

    run(test)


def test_seek_forgets_what_was_prefetched() -> None:
    async def test() -> None:
        subscription = Counting()
        subscription.put(0, 90)
        assert await subscription.next() == 0
        await subscription.seek(500)
        assert subscription.position == 500
        subscription.put(500, 510)
        assert await subscription.next() == 500
        assert subscription.calls == ["open", 500]

    run(test)


def test_opening() -> None:
    async def test() -> None:
        refused = Counting()
        refused.refuse = True
        for _ in range(2):
            with pytest.raises(Refused):
                await refused
        assert refused.calls == ["open", "open"]

        slow = Counting()
        slow.gate = asyncio.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await slow
        assert slow.calls == ["open", "close"]
        with pytest.raises(Closed):
            await slow.next()

        patient = Counting()
        patient.gate = asyncio.Event()
        with pytest.raises(Timeout):
            await patient.next(0.01)
        patient.gate.set()
        patient.put(0, 1)
        assert await patient.next() == 0
        assert patient.calls == ["open"]

        abandoned = Counting()
        abandoned.gate = asyncio.Event()
        waiting = asyncio.create_task(abandoned.next())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await abandoned.close()
        with pytest.raises(Closed):
            await waiting

    run(test)
