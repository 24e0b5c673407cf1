"""When the interpreter looks for circles of objects, in a server that runs for months and must not stand still.

Objects go away with their last reference; only those that refer to each other in a circle wait for the interpreter to
look through all objects, while everybody waits: 40 to 400 ms with 10,000 topics in memory. So:

- Nothing that comes and goes (connections, requests, topics, transactions) leaves circles behind; what ends takes its
  own apart. `tests/unit/netserver/test_circles.py` holds that.
- What there is at the start is never looked at: it stays.
- The interpreter looks at young objects by itself, twice, which takes some milliseconds; at old ones it does not.
- All are looked at when memory has grown by so many objects that circles would matter, and nobody is in a hurry: few
  turns of the event loop in the last second, and next to no work in them. If there is no such second, then when it has
  grown several times over. A server whose topics are its memory does that a few times in its life; one with a leak
  stays bounded.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time

from netserver.limits import (
    COLLECT_DUE_BLOCKS,
    COLLECT_DUE_TIMES,
    COLLECT_LATE_BLOCKS,
    COLLECT_LATE_TIMES,
    COLLECT_TICK_S,
    COLLECT_YOUNG,
    QUIET_CPU_SHARE,
    QUIET_TURNS,
)
from netserver.shell.watched_loop import WatchedLoop

log = logging.getLogger(__name__)

NEVER = 1 << 30


class Collection:
    """See the module. It is the process's: there is one, in its main thread.

    Attributes:
        looks: how often all objects were looked at.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.looks = 0
        self._loop = loop
        self._blocks = 0  # in use after the last look at all
        self._turn = 0
        self._cpu_s = 0.0

    def begin(self) -> None:
        """The start is over, for which collection was switched off: what it made stays, be it never so much."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_YOUNG, NEVER)
        gc.enable()
        self._blocks = sys.getallocatedblocks()
        self._later()

    def _later(self) -> None:
        self._loop.call_later(COLLECT_TICK_S, self._tick)

    def _tick(self) -> None:
        self._later()
        turn, cpu_s = self._turns(), time.thread_time()
        is_quiet = turn - self._turn < QUIET_TURNS and cpu_s - self._cpu_s < QUIET_CPU_SHARE * COLLECT_TICK_S
        self._turn, self._cpu_s = turn, cpu_s
        blocks = sys.getallocatedblocks()
        is_due = blocks > self._blocks * COLLECT_DUE_TIMES + COLLECT_DUE_BLOCKS
        is_late = blocks > self._blocks * COLLECT_LATE_TIMES + COLLECT_LATE_BLOCKS
        if is_late or (is_due and is_quiet):
            self._look(blocks)

    def _turns(self) -> int:
        return self._loop.turn_of() if isinstance(self._loop, WatchedLoop) else 0

    def _look(self, before: int) -> None:
        started = time.perf_counter()
        found = gc.collect()
        seconds = time.perf_counter() - started
        self.looks += 1
        grown_from, self._blocks = self._blocks, sys.getallocatedblocks()
        log.info(
            "memory had grown from %d to %d blocks: %d objects in circles were found in %.0f ms, %d blocks are left",
            grown_from, before, found, seconds * 1e3, self._blocks,
        )  # fmt: skip
