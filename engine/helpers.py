"""Threads that do the same to many things: syncs that wait at the same time share one write of the file system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Helpers:
    """Up to `count` threads of one owner's thread, which waits for them."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def each(self, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
        """What `work` gives for each item; it raises nothing."""
        if len(items) < 2:
            return [work(item) for item in items]
        results: list[Result] = [None] * len(items)  # type: ignore[list-item]
        # Each thread takes what is next: to hand over each item would cost more than most of them do.
        left = iter(enumerate(items))

        def take() -> None:
            for at, item in left:
                results[at] = work(item)

        for task in [self._pool.submit(take) for _ in range(min(self._count, len(items)))]:
            task.result()
        return results

    def stop(self) -> None:
        """Ends the threads; blocking."""
        self._pool.shutdown()
