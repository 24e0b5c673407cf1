"""Readers take turns: so many go on in a turn of the loop, in their order; who is gone takes nobody's turn."""

from __future__ import annotations

import asyncio
import time

from engine.limits import SLICES_S
from engine.slices import Slices
from netserver.http.limits import HTTP_READERS_TURN
from netserver.http.taking_turns import TakingTurns


def use_up(slices: Slices) -> None:
    """The time of this turn."""
    slices.is_over()
    until = time.perf_counter() + SLICES_S
    while time.perf_counter() < until:
        pass


def test_so_many_go_on_in_a_turn_in_their_order() -> None:
    async def main() -> None:
        slices = Slices(asyncio.get_running_loop().call_soon)
        turns, went = TakingTurns(slices), list[tuple[int, int]]()

        async def read(number: int) -> None:
            await turns.wait()
            went.append((slices.turn_of(), number))

        await read(-1)
        assert [number for _, number in went] == [-1], "who comes while there is time does not wait"
        asyncio.get_running_loop().call_soon(use_up, slices)  # in the turn in which all of them begin
        count = 3 * HTTP_READERS_TURN
        tasks = [asyncio.create_task(read(number)) for number in range(count)]
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [number for _, number in went[1:]] == [0, *range(2, count)]
        in_turn = [turn for turn, _ in went[1:]]
        assert max(map(in_turn.count, in_turn)) <= HTTP_READERS_TURN
        assert not turns._waiting

    asyncio.run(main())
