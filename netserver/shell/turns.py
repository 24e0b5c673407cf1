# cython: annotation_typing=False
"""Turns of the event loop: which ones took long, and what they did.

Whoever sends something waits for the loop's turn that is under way. So what counts is the work of a whole turn, by the
CPU time of the loop's thread: a loaded machine, a wait for the disk or for the interpreter lock is not its work.

Everything that the loop calls marks what it is (``mark``); what took longest from one mark to the next is named in the
log. A mark is a look at the wall clock, 0.1 us. To be told of the end of a turn costs another round of the loop, and
the thread's clock is a system call: so both are asked for once in a millisecond, by the first mark after it. Turns
within that time are looked at together, and are known to be short; of a longer one the first piece may be missed, which
has been looked at by itself. For a second after any long piece every turn is looked at.

Compiled where there is a compiler, since everything is marked.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

from engine.histogram import Histogram
from engine.slices import TurnCounter
from netserver.limits import EXACT_S, LONG_TURN_S, SLOW_TURN_LOG_S, SLOW_TURN_S, TURN_CLOCK_S

log = logging.getLogger(__name__)

NOTHING: Final = "-"


class Turns:
    """Watches the turns of one loop; everything here runs in its thread.

    Args:
        turn_of: numbers the turns.

    Attributes:
        slow: CPU seconds of the turns above ``SLOW_TURN_S``.
        longest_s: CPU time of the longest turn.
    """

    __slots__ = (
        "_at", "_clock_s", "_cpu", "_exact_until", "_logged_at", "_look_s", "_most", "_most_s", "_running", "_started",
        "_turn", "_turn_of", "longest_s", "slow",
    )  # fmt: skip

    def __init__(self, turn_of: TurnCounter) -> None:
        self._turn_of = turn_of
        self._turn = -1
        self.slow = Histogram()
        self.longest_s = 0.0
        self._look_s = math.inf  # CPU time from which a turn counts for something
        self._started = self._at = 0.0  # of the turn that is looked at; of the latest mark
        self._cpu = 0.0
        self._clock_s = TURN_CLOCK_S
        self._exact_until = 0.0
        self._running: object = NOTHING
        self._most: object = NOTHING
        self._most_s = 0.0
        self._logged_at = -SLOW_TURN_LOG_S

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Turns:
        """Those that the loop watches by itself, or new ones, which see what marks itself."""
        found = getattr(loop, "turns", None)
        return found if isinstance(found, cls) else cls(TurnCounter(loop.call_soon))

    def watch(self) -> None:
        """Count turns from now on: a start is one long turn that nobody waits for."""
        self._look_s = 0.0
        self._most_s = 0.0
        self._started = self._at = time.perf_counter()
        self._cpu = time.thread_time()

    def stop(self) -> None:
        """Count none any more."""
        self._look_s = math.inf

    def mark(self, what: object) -> None:
        """From now on ``what`` is running: a function, or something with a ``title``."""
        now = time.perf_counter()
        if now - self._started > self._clock_s:
            if self._turn_of.number != self._turn:
                self._begin(now)
            elif now - self._at > self._most_s:
                self._most_s = now - self._at
                self._most = self._running
        self._at = now
        self._running = what

    def run(self, callback: Callable[..., object], *args: object) -> None:
        """Call something that marks nothing itself."""
        self.mark(callback)
        callback(*args)

    def _begin(self, now: float) -> None:
        """What was looked at has ended, and the next turn begins, or is under way."""
        cpu = time.thread_time()
        spent_s = min(now - self._started, cpu - self._cpu)
        if spent_s >= self._look_s:
            self.longest_s = max(self.longest_s, spent_s)
            self._look_s = min(self.longest_s, SLOW_TURN_S)
            if spent_s >= SLOW_TURN_S:
                self.slow.observe(spent_s)
                last_s = spent_s - (self._at - self._started)
                if last_s > self._most_s:
                    self._most_s, self._most = last_s, self._running
                self._tell(now, spent_s)
        if spent_s > LONG_TURN_S:
            self._clock_s, self._exact_until = 0.0, now + EXACT_S
        elif now > self._exact_until:
            self._clock_s = TURN_CLOCK_S
        self._started, self._cpu, self._most_s = now, cpu, 0.0
        self._turn = self._turn_of()

    def _tell(self, now: float, spent_s: float) -> None:
        if now - self._logged_at >= SLOW_TURN_LOG_S:
            self._logged_at = now
            log.warning(
                "a turn of the event loop took %.0f ms of CPU time, while everybody waited; longest in it, %.0f ms: %s "
                "(%d such turns since the start)",
                spent_s * 1e3, self._most_s * 1e3, describe(self._most), sum(self.slow.counts),
            )  # fmt: skip


def describe(what: Any) -> str:
    """What a mark stands for: its title, or the function's name with the title of what it belongs to."""
    if isinstance(what, str):
        return what
    if isinstance(what, functools.partial):
        return " ".join(describe(part) for part in (what.func, *what.args) if callable(part))
    owner = getattr(what, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner.get_name())}"
    title = getattr(owner, "title", None) or getattr(what, "title", None)
    name = getattr(what, "__qualname__", None)
    return " ".join(str(part) for part in (title, name) if part) or repr(what)[:200]
