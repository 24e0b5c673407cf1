"""Turns of the event loop: which ones took long, and what they did.

Whoever sends something waits for the loop's turn that is under way. So what counts is the work of a whole turn, by the
CPU time of the loop's thread: a loaded machine, a wait for the disk or for the interpreter lock is not its work.

Everything that the loop calls marks what it is (``mark``). The first mark of a turn ends the one before it; what took
longest from one mark to the next is named in the log. A turn costs about a microsecond: the wall clock is cheap, and
CPU time cannot be more than wall time, so that the thread's clock, which is a system call, is read a few hundred times
a second, and behind turns that may have been slow.
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
from netserver.limits import SLOW_TURN_LOG_S, SLOW_TURN_S, TURN_CLOCK_S

log = logging.getLogger(__name__)

NOTHING: Final = "-"


class Turns:
    """Watches the turns of one loop; everything here runs in its thread.

    Args:
        turn_of: another number in each turn.

    Attributes:
        slow: CPU seconds of the turns above ``SLOW_TURN_S``.
        longest_s: CPU time of the longest turn.
    """

    __slots__ = (
        "_at", "_cpu", "_cpu_at", "_logged_at", "_look_s", "_most", "_most_s", "_running", "_started", "_turn",
        "_turn_of", "longest_s", "slow",
    )  # fmt: skip

    def __init__(self, turn_of: TurnCounter) -> None:
        self._turn_of = turn_of
        self._turn = -1
        self.slow = Histogram()
        self.longest_s = 0.0
        self._look_s = math.inf  # wall time from which a turn is looked at
        self._started = self._at = 0.0
        self._cpu = self._cpu_at = 0.0
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
        self._started = self._at = self._cpu_at = time.perf_counter()
        self._cpu = time.thread_time()

    def stop(self) -> None:
        """Count none any more."""
        self._look_s = math.inf

    def mark(self, what: object) -> None:
        """From now on ``what`` is running: a function, or something with a ``title``."""
        now = time.perf_counter()
        turn = self._turn_of()
        if turn != self._turn:
            self._turn = turn
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
        """A turn begins, and so the one before it has ended."""
        if now - self._started >= self._look_s:
            self._look(now)
        self._started = now
        self._most_s = 0.0
        if now - self._cpu_at > TURN_CLOCK_S:
            self._cpu_at = now
            self._cpu = time.thread_time()

    def _look(self, now: float) -> None:
        """The turn before this one, or the wait behind it, was long enough to look at the thread's clock."""
        cpu = time.thread_time()
        spent_s = min(now - self._started, cpu - self._cpu)
        self._cpu, self._cpu_at = cpu, now
        self.longest_s = max(self.longest_s, spent_s)
        self._look_s = min(self.longest_s, SLOW_TURN_S)
        if spent_s >= SLOW_TURN_S:
            self.slow.observe(spent_s)
            last_s = spent_s - (self._at - self._started)
            if last_s > self._most_s:
                self._most_s, self._most = last_s, self._running
            self._tell(now, spent_s)

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
