"""How far durable positions are behind (``engine.cursors.lags``), one of them and all together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from engine.cursors.lags import Key, Lag, Standing
from netserver.admin.slices import sliced

if TYPE_CHECKING:
    from engine.log import Log
    from engine.partitions.partition import Partition

CURSOR_PROTOCOLS: Final = ("blipmq", "fujin", "http")
"""Protocols whose consumers have a durable position in the log, which acknowledgements move."""

LAG_PROTOCOLS: Final = (*CURSOR_PROTOCOLS, "kafka")
"""Those whose lag is measured: Kafka's groups commit offsets, and acknowledge nothing."""


async def lag_of(log: Log, cursor_id: int) -> Lag:
    """How far a cursor is behind; the time of what waits may have to be read from the disk."""
    return await lag_at(log, cursor_id, lambda: log.cursors.standing(cursor_id))


async def lag_then(log: Log, key: Key, standing: Standing) -> Lag:
    """The same of a position as it was just now."""
    return await lag_at(log, key, lambda: standing)


async def lag_at(log: Log, key: Key, standing: Callable[[], Standing | None]) -> Lag:
    """The same of any position."""
    while True:
        ready = asyncio.Event()
        lag = log.cursors.lags.of_standing(key, standing(), ready.set)
        if lag is not None:
            return lag
        await ready.wait()


class CursorSums:
    """What the subscriptions have in common.

    Attributes:
        unacked: records delivered and not acknowledged, by protocol.
        lag: records that wait in the subscription that is furthest behind, by protocol.
        lag_s: age of the oldest record that waits for a subscription, by protocol.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.unacked: Counter[str] = Counter()
        self.lag: Counter[str] = Counter()
        self.lag_s: dict[str, float] = {}

    async def measure(self) -> None:
        """Look at all of them, in slices. Numbers of a partition rise with time: only one is read for all its users."""
        unacked: Counter[str] = Counter()
        lag: Counter[str] = Counter()
        furthest: dict[tuple[str, int, int], tuple[int, Key, Standing, Partition]] = {}  # its first number that waits
        lags = self._log.cursors.lags
        async for key, standing in sliced(self._log.slices, lags.standings()):
            waiting = lags.waiting(standing) if standing is not None else None
            if standing is None or waiting is None or standing.owner not in LAG_PROTOCOLS:
                continue
            unacked[standing.owner] += standing.unacknowledged
            lag[standing.owner] = max(lag[standing.owner], waiting.records or 0)
            place = standing.owner, standing.topic_id, standing.partition
            if waiting.first_seq and (place not in furthest or waiting.first_seq < furthest[place][0]):
                furthest[place] = waiting.first_seq, key, standing, waiting.partition
        lag_s: dict[str, float] = {}
        async for (owner, *_), (_, key, standing, partition) in sliced(self._log.slices, furthest.items()):
            if partition.is_open:
                seconds = (await lag_then(self._log, key, standing)).seconds
                lag_s[owner] = max(lag_s.get(owner, 0.0), seconds or 0.0)
            else:
                open_for_next_time(partition)
        self.unacked, self.lag, self.lag_s = unacked, lag, lag_s


def open_for_next_time(partition: Partition) -> None:
    """So that what waits in it can be told when somebody asks again; nobody waits for it."""
    if partition.error is None:
        partition.when_open(_nothing)


def _nothing() -> None:
    return
