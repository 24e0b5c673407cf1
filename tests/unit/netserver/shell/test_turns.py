"""Turns of the event loop: which ones count as slow, and what the log says that they did."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from netserver.limits import SLOW_TURN_S
from netserver.shell.connection import Connection, Services, SessionFactory
from netserver.shell.turns import Turns
from netserver.shell.watched_loop import WatchedLoop
from netserver.testing import running
from tests.echo import ALONE, EchoSession, frame, until

WORK_S = 2.5 * SLOW_TURN_S


def work(seconds: float = WORK_S) -> None:
    """Take so much CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def watched(main: Callable[[Turns], Coroutine[Any, Any, None]]) -> Turns:
    """Run it in a watched loop; what was seen."""
    loops: list[WatchedLoop] = []

    def make() -> WatchedLoop:
        loops.append(WatchedLoop())
        return loops[0]

    async def with_turns() -> None:
        loops[0].turns.watch()
        await main(loops[0].turns)

    uvloop.run(with_turns(), loop_factory=make)
    return loops[0].turns


def count(turns: Turns) -> int:
    return sum(turns.slow.counts)


async def some_turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def by_call_soon() -> None:
    asyncio.get_running_loop().call_soon(work)


async def by_thread() -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=loop.call_soon_threadsafe, args=(work,)).start()


async def by_timer() -> None:
    asyncio.get_running_loop().call_later(0.001, work)


async def by_time() -> None:
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + 0.001, work)


async def by_task() -> None:
    async def work_in_task() -> None:
        work()

    await asyncio.create_task(work_in_task())


@pytest.mark.parametrize("way", [by_call_soon, by_thread, by_timer, by_time, by_task])
def test_a_slow_turn_is_counted_and_told_whoever_caused_it(
    way: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(turns: Turns) -> None:
        before = count(turns)
        await way()
        await until(lambda: count(turns) > before)

    with caplog.at_level(logging.WARNING):
        turns = watched(main)
    assert turns.longest_s >= WORK_S
    assert "of CPU time, while everybody waited" in caplog.text
    assert "work" in caplog.text.partition("longest in it")[2]


def test_reading_a_descriptor_counts_too() -> None:
    async def main(turns: Turns) -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        ours, theirs = socket.socketpair()
        with ours, theirs:

            def readable() -> None:
                loop.remove_reader(ours)
                work()
                done.set()

            loop.add_reader(ours, readable)
            theirs.send(b"x")
            await done.wait()
            await some_turns()

    assert count(watched(main)) >= 1


def test_many_short_pieces_in_one_turn_are_one_slow_turn() -> None:
    async def main(turns: Turns) -> None:
        for _ in range(2):  # the first long pieces make it look closely
            before = count(turns)
            for _ in range(10):
                asyncio.get_running_loop().call_soon(work, 0.3 * SLOW_TURN_S)
            await some_turns()
            assert count(turns) == before + 1

    assert watched(main).longest_s >= 3 * SLOW_TURN_S


def test_waiting_is_no_work() -> None:
    async def main(turns: Turns) -> None:
        before = count(turns)
        for _ in range(5):
            await asyncio.sleep(0.002)  # between turns
            asyncio.get_running_loop().call_soon(time.sleep, 2 * SLOW_TURN_S)  # in one
            await some_turns()
        assert count(turns) == before

    watched(main)


def test_starting_and_stopping_count_for_nothing() -> None:
    async def main(turns: Turns) -> None:
        async with running(settings=ALONE) as server:
            assert server.shell.turns is turns
            work()  # as in `Process.run`, before the first turn that serves somebody
            await some_turns()
            assert count(turns) == 0
            asyncio.get_running_loop().call_soon(work)
            await some_turns()
            assert count(turns) == 1
        await some_turns()
        assert count(turns) == 1

    loop = WatchedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop.turns))


def test_lines_about_slow_turns_are_few(caplog: pytest.LogCaptureFixture) -> None:
    async def main(turns: Turns) -> None:
        for _ in range(4):
            asyncio.get_running_loop().call_soon(work)
            await some_turns()

    with caplog.at_level(logging.WARNING):
        assert count(watched(main)) >= 4
    assert caplog.text.count("a turn of the event loop took") == 1


class Busy(EchoSession):
    def handle(self, whole: bytes) -> None:
        work()
        super().handle(whole)


def busy(services: Services) -> SessionFactory:
    def make(connection: Connection) -> Busy:
        return Busy(connection)

    return make


def test_a_connection_is_named_in_any_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running(settings=ALONE, protocols={"busy": busy}) as server:
            address = server.listeners["busy"].address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(frame(b"e"))
            await reader.readexactly(5)
            writer.write(frame(b"e"))
            await reader.readexactly(5)  # a turn is looked at when the next one begins
            peer = "{}:{}".format(*writer.get_extra_info("sockname"))
            assert f"ms: busy {peer}" in caplog.text
            writer.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())


def test_turns_of_nothing_but_slices_are_short_ones() -> None:
    async def main(turns: Turns) -> None:
        async with running(settings=ALONE) as server:
            await some_turns()
            before = count(turns)
            done = asyncio.Event()

            def steps() -> Iterator[None]:
                for _ in range(30):
                    work(0.2 * SLOW_TURN_S)
                    yield
                done.set()

            server.log.slices.run(steps())
            await done.wait()
            assert count(turns) == before

    loop = WatchedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop.turns))
