"""Histograms that hot paths add to: plain integers, read by whoever shows metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

TIME_BUCKETS_S: Final = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip


class Histogram:
    """Counts per bucket (the last one is "above all bounds") and the sum. Added to by one thread at a time."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = TIME_BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
