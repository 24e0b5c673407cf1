"""What the console remembers: rates of a quarter of an hour, free room of a day. Some kilobytes a protocol.

Each second the sums that the metrics read are noted, and once a minute the room on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from engine.histogram import TIME_BUCKETS_S
from netserver.console.limits import DISK_RATE_LEAST_S, HISTORY_DISK_MINUTES, HISTORY_SECONDS

if TYPE_CHECKING:
    from netserver.admin.served import Served
    from netserver.shell.counters import Counters

log = logging.getLogger(__name__)

FIELDS: Final = ("records_published", "published_bytes", "records_delivered", "delivered_bytes")
TICK_S: Final = 1.0
RECENT_S: Final = 10
"""A rate now is that of so many seconds."""
LATENCY_S: Final = 60


class History:
    """Owner's thread only."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._sums: dict[tuple[str, str], deque[int]] = {}
        self._acks: deque[tuple[int, ...]] = deque(maxlen=LATENCY_S + 1)
        self._free: deque[tuple[float, int]] = deque(maxlen=HISTORY_DISK_MINUTES)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Note now, and each second."""
        self._tick()

    def close(self) -> None:
        """Note nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        for counters in self._counters():
            for field in FIELDS:
                series = self._sums.setdefault((counters.name, field), deque(maxlen=HISTORY_SECONDS + 1))
                series.append(getattr(counters, field))
        self._acks.append(self._ack_counts())
        now = time.monotonic()
        if not self._free or now - self._free[-1][0] >= 60:
            try:
                disk = os.statvfs(self._server.data_dir)
            except OSError as error:
                log.debug("free room is not known: %s", error)
            else:
                self._free.append((now, disk.f_bavail * disk.f_frsize))

    def _counters(self) -> list[Counters]:
        return [*self._server.counters.values(), self._server.http]

    def _ack_counts(self) -> tuple[int, ...]:
        found = [source.counts for counters in self._counters() for source in counters.ack_seconds.values()]
        return tuple(map(sum, zip(*found, strict=True))) if found else (0,) * (len(TIME_BUCKETS_S) + 1)

    # --- what was noted

    def rate(self, protocol: str, field: str) -> float:
        """Of the last seconds, each second."""
        series = self._sums.get((protocol, field))
        if series is None or len(series) < 2:
            return 0.0
        back = min(RECENT_S, len(series) - 1)
        return (series[-1] - series[-1 - back]) / (back * TICK_S)

    def rates(self, protocol: str, field: str, points: int) -> list[float]:
        """So many rates over the time that is kept, the newest last; fewer while there are fewer."""
        series = list(self._sums.get((protocol, field), ()))
        step = max(HISTORY_SECONDS // points, 1)
        marks = series[::-1][::step][::-1]
        return [(after - before) / (step * TICK_S) for before, after in pairwise(marks)]

    def ack_s(self, share: float) -> float | None:
        """In this time so large a share of the publishes of the last minute was acknowledged, at most; None: none was
        published."""
        newest, oldest = self._ack_counts(), self._acks[0] if self._acks else ()
        counts = [after - before for after, before in zip(newest, oldest, strict=False)]
        return quantile(counts, TIME_BUCKETS_S, share)

    def free_rate(self) -> float | None:
        """Bytes of room that come each second; below 0: the disk fills; None: it was not watched for long enough."""
        if not self._free:
            return None
        (first_s, first), now = self._free[0], time.monotonic()
        last_s, last = self._free[-1]
        return (last - first) / (last_s - first_s) if now - first_s >= DISK_RATE_LEAST_S and last_s > first_s else None


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """The upper bound of the bucket that a share of all lies below; above the last bound it is infinite."""
    total, reached = sum(counts), 0
    if not total:
        return None
    for count, bound in zip(counts, (*bounds, float("inf")), strict=True):
        reached += count
        if reached >= share * total:
            return bound
    return None
