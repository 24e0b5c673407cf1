"""Slices of the owner's loop: work that one input can make long is done in slices, so that nobody waits for it long.

All sliced work shares one budget of time a turn, whoever it is for: what finds it used up waits in one queue, the
oldest first, and every turn does at least one slice. The cost of asking is that of reading a clock: ask before each
piece of work of some ten microseconds or more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from engine.callbacks import call_each
from engine.limits import SLICES_FREE_S, SLICES_S

CallSoon = Callable[[Callable[[], None]], object]
"""Calls a function in the next turn of the loop."""


class TurnCounter:
    """Numbers the turns of a loop; the first question in a turn costs a call in the next one.

    Attributes:
        number: of the turn of the latest question, until that turn has ended.
    """

    def __init__(self, call_soon: CallSoon) -> None:
        self._call_soon = call_soon
        self.number = 0
        self._is_asked = False

    def __call__(self) -> int:
        """The same number within a turn."""
        if not self._is_asked:
            self._is_asked = True
            self._call_soon(self._next)
        return self.number

    def _next(self) -> None:
        self.number += 1
        self._is_asked = False


class Slices:
    """The budget and the queue. Owner's thread only.

    Args:
        call_soon: calls a function in the next turn of the loop.

    Attributes:
        call_soon: as given.
        turn_of: gives another number in each turn.
    """

    def __init__(self, call_soon: CallSoon) -> None:
        self.turn_of = TurnCounter(call_soon)
        self.call_soon = call_soon
        self._turn = -1
        self._until = 0.0
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_scheduled = False

    def is_over(self) -> bool:
        """Whether this turn's time is used up. The first question in a turn starts its clock."""
        now = time.perf_counter()
        turn = self.turn_of()
        if turn == self._turn:
            return now >= self._until
        self._turn = turn
        self._until = now + SLICES_S
        return False

    def later(self, work: Callable[[], object]) -> None:
        """Has `work` called in a turn that has time for it. It looks at `is_over` itself, if it may take long."""
        self._waiting.append(work)
        self._schedule()

    def run(self, steps: Iterator[object]) -> None:
        """Goes through `steps`, now and in later turns; each step is short."""
        free_until = time.perf_counter() + min(SLICES_FREE_S, SLICES_S)
        for _ in steps:
            if time.perf_counter() > free_until and self.is_over():
                self.later(partial(self.run, steps))
                return

    def call_each(self, event: str, callbacks: Iterable[Callable[[], object]]) -> None:
        """`engine.callbacks.call_each`, now and in later turns."""
        call_each(event, self._while_there_is_time(event, iter(callbacks)))

    def _while_there_is_time(
        self, event: str, callbacks: Iterator[Callable[[], object]]
    ) -> Iterator[Callable[[], object]]:
        free_until = time.perf_counter() + min(SLICES_FREE_S, SLICES_S)
        for callback in callbacks:
            yield callback
            if time.perf_counter() > free_until and self.is_over():
                self.later(partial(self.call_each, event, callbacks))
                return

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.call_soon(self._begin)

    def _begin(self) -> None:
        """What waits has its turn."""
        self._is_scheduled = False
        self._turn = -1
        for _ in range(len(self._waiting)):
            call_each("a turn", (self._waiting.popleft(),))
            if self.is_over():
                break
        if self._waiting:
            self._schedule()
