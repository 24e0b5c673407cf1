"""A set of sequence numbers as ascending runs: what one reader has been given and has not acknowledged."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Runs:
    """Numbers in runs. Acknowledged in order they are one run, however many they are.

    Attributes:
        count: how many numbers there are.
    """

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def add(self, first: int, last: int) -> None:
        """Add numbers, none of which is in it."""
        firsts, lasts = self._firsts, self._lasts
        self.count += last - first + 1
        if lasts and lasts[-1] + 1 == first:
            lasts[-1] = last
            return
        index = bisect_right(firsts, first)
        if index and lasts[index - 1] + 1 == first:
            lasts[index - 1] = last
            index -= 1
        else:
            firsts.insert(index, first)
            lasts.insert(index, last)
        if index + 1 < len(firsts) and lasts[index] + 1 == firsts[index + 1]:
            lasts[index] = lasts.pop(index + 1)
            del firsts[index + 1]

    def remove(self, first: int, last: int) -> int:
        """Take out those of the numbers ``first`` to ``last`` that are in it; returns how many that were."""
        firsts, lasts = self._firsts, self._lasts
        index = max(bisect_right(firsts, first) - 1, 0)
        removed = 0
        while index < len(firsts) and firsts[index] <= last:
            low, high = max(firsts[index], first), min(lasts[index], last)
            if low > high:
                index += 1
                continue
            removed += high - low + 1
            if low == firsts[index] and high == lasts[index]:
                del firsts[index], lasts[index]
                continue
            if low == firsts[index]:
                firsts[index] = high + 1
            elif high == lasts[index]:
                lasts[index] = low - 1
            else:
                firsts.insert(index + 1, high + 1)
                lasts.insert(index, low - 1)
            index += 1
        self.count -= removed
        return removed

    def clear(self) -> None:
        """Take out all."""
        self._firsts.clear()
        self._lasts.clear()
        self.count = 0
