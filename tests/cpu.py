"""What something costs, whatever else the machine is doing: processor time of this thread, the least of a few runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], runs: int = 5) -> float:
    """Processor time of one run of ``work``."""
    least = float("inf")
    for _ in range(runs):
        started = time.thread_time()
        work()
        least = min(least, time.thread_time() - started)
    return least


class Pace:
    """How much longer work takes at present than at best, in processor time: caches are shared with other programs.

    Attributes:
        ratio: of what it takes mostly (nine times in ten) by what it took at best.
    """

    def __init__(self) -> None:
        self.ratio = 1.0
        self._least = float("inf")
        self._latest: deque[float] = deque(maxlen=200)
        for _ in range(10):
            self.sample()

    def sample(self) -> None:
        """Look again."""
        for _ in range(20):
            started = time.thread_time()
            _some_work()
            self._latest.append(time.thread_time() - started)
        self._least = min(self._least, *self._latest)
        self.ratio = sorted(self._latest)[len(self._latest) * 9 // 10] / self._least


def _some_work() -> int:
    """As a server's: objects are made, kept and found; a millisecond."""
    made = {number: (number, bytes(8)) for number in range(3000)}
    return sum(len(one[1]) for one in made.values())
