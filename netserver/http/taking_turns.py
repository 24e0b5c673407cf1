"""Readers take turns: a record that a thousand of them wait for is not written to all of them in one turn of the loop.

A piece of an answer is a millisecond of work at most, and there may be thousands of readers. A reader goes on at once
while the turn has time (`engine.slices`) and nobody waits; else it waits in a queue, of which some go on in each turn.
"""

from __future__ import annotations

import asyncio
from collections import deque

from engine.slices import Slices
from netserver.http.limits import HTTP_READERS_TURN


class TakingTurns:
    """See the module: one for all readers."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Until it is the caller's turn."""
        if not self._waiting and not self._slices.is_over():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._slices.later(self._next)
        await turn

    def _next(self) -> None:
        left = HTTP_READERS_TURN
        while self._waiting and left:
            turn = self._waiting.popleft()
            if not turn.done():  # its reader has not gone
                turn.set_result(None)
                left -= 1
        if self._waiting:
            self._slices.later(self._next)
