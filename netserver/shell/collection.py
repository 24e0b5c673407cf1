"""When the interpreter looks for circles of objects, in a server that runs for months and must not stand still.

Objects go away with their last reference; only those that refer to each other in a circle wait for the interpreter to
look through objects, while everybody waits: 10 ms for each thousand topics, if it looks at all. So:

- Nothing that comes and goes (connections, requests, topics, transactions) leaves circles behind; what ends takes its
  own apart. `tests/unit/netserver/test_circles.py` holds that.
- The interpreter looks at new objects by itself, twice, a few thousand at a time. What is left then is never
  looked at again: each object costs two looks, however many there are.
- Only if memory grows far beyond what there is to be remembered, circles must be what it is full of: a defect of ours.
  Then, a few times in the life of a server, all objects are looked at, however long it takes: it stays bounded.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable

from netserver.limits import (
    COLLECT_LATE_BLOCKS,
    COLLECT_LATE_TIMES,
    COLLECT_THING_BLOCKS,
    COLLECT_TICK_S,
    COLLECT_YOUNG,
)

log = logging.getLogger(__name__)

NEVER = 1 << 30


class Collection:
    """See the module. It is the process's: there is one, in its main thread.

    Args:
        things: how many partitions and connections are in memory.

    Attributes:
        looks: how often all objects were looked at.
        longest_s: CPU time of the longest look at objects, all or some.
    """

    def __init__(self, things: Callable[[], int]) -> None:
        self.looks = 0
        self.longest_s = 0.0
        self._things = things
        self._blocks = 0  # in use after the last look at all
        self._cpu_s = 0.0

    @property
    def found(self) -> int:
        """Objects in circles since the start."""
        return sum(generation["collected"] for generation in gc.get_stats())

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The start is over, for which collection was switched off: what it made stays, be it never so much."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_YOUNG, NEVER)
        gc.callbacks.append(self._measure)
        gc.enable()
        self._blocks = sys.getallocatedblocks()
        self._later(loop)

    def _measure(self, phase: str, _info: object) -> None:
        cpu_s = time.thread_time()
        if phase == "start":
            self._cpu_s = cpu_s
        else:
            self.longest_s = max(self.longest_s, cpu_s - self._cpu_s)

    def _later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(COLLECT_TICK_S, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._later(loop)
        blocks = sys.getallocatedblocks()
        if blocks > self._blocks * COLLECT_LATE_TIMES + COLLECT_LATE_BLOCKS + self._things() * COLLECT_THING_BLOCKS:
            self._look_at_all(blocks)

    def _look_at_all(self, before: int) -> None:
        started = time.perf_counter()
        found = gc.collect()
        seconds = time.perf_counter() - started
        self.looks += 1
        grown_from, self._blocks = self._blocks, sys.getallocatedblocks()
        log.warning(
            "memory had grown from %d to %d blocks: all objects were looked at in %.0f ms, while everybody waited; "
            "%d were in circles, %d blocks are left",
            grown_from, before, seconds * 1e3, found, self._blocks,
        )  # fmt: skip
