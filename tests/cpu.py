"""What something costs, whatever else the machine is doing: processor time of this thread, the least of a few runs."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], runs: int = 5) -> float:
    """Processor time of one run of ``work``."""
    least = float("inf")
    for _ in range(runs):
        started = time.thread_time()
        work()
        least = min(least, time.thread_time() - started)
    return least
