"""What `bench` measures, with the clients of this package: publishing, reading history, one record at a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tools.logtool.lib.sending import GROUP_RECORDS, sender
from tools.logtool.lib.splitting import Input
from tools.logtool.publish import Progress

SHARED_POSITION = {"fujin"}
"""Protocols whose readers go on where their group is: reading moves a position that is not the measurement's own."""
GROUP_BYTES = 4 << 20
"""... and as few as have so many bytes together."""


@dataclass(slots=True)
class Times:
    """How long each of many things took, in seconds."""

    seconds: list[float] = field(default_factory=list)

    def add(self, started: float) -> None:
        """Something that began at `started` (`time.perf_counter`) is done now."""
        self.seconds.append(time.perf_counter() - started)

    def item(self, name: str) -> dict[str, float]:
        """Percentiles in milliseconds, under `NAME_p50_ms` and so on; {} when there are none.

        A percentile is the smallest time that so many of a hundred do not exceed, without interpolation.
        """
        if not self.seconds:
            return {}
        ordered = sorted(self.seconds)
        found = {
            f"{name}_p{percent}_ms": round(ordered[-(-percent * len(ordered) // 100) - 1] * 1000, 3)
            for percent in (50, 95, 99)
        }
        return found | {f"{name}_max_ms": round(ordered[-1] * 1000, 3)}


def different(size_bytes: int) -> list[Input]:
    """Records for one group, which no compression makes smaller; of large ones a few at a time."""
    count = max(1, min(GROUP_RECORDS, GROUP_BYTES // size_bytes))
    return [Input(os.urandom(size_bytes)) for _ in range(count)]


@dataclass(slots=True)
class Load:
    """A load on one partition: what it consists of, and what it has measured so far.

    Attributes:
        client: not connected yet; each method enters it, and leaves it when all is acknowledged or read.
        started, ended: of what is measured, by `time.perf_counter`; 0 before.
    """

    protocol: str
    client: AbstractAsyncContextManager[Any]
    topic: bytes
    records: int
    size_bytes: int
    progress: Progress
    acknowledgements: Times = field(default_factory=Times)
    deliveries: Times = field(default_factory=Times)
    read: int = 0
    read_bytes: int = 0
    started: float = 0.0
    ended: float = 0.0

    async def publish(self) -> None:
        """Sends the records as fast as the window lets it. Times are those of groups that are sent as one."""
        values = different(self.size_bytes)
        async with self.client as client:
            send = sender(self.protocol, client, self.topic, 0)
            self.started = time.perf_counter()
            for first in range(0, self.records, len(values)):
                group = values[: self.records - first]
                began = time.perf_counter()
                for future, count in await send(group):
                    self.progress.add(future, count)
                    future.add_done_callback(partial(self._acknowledged, began))
                self.progress.tick()
                if self.progress.problem is not None:
                    raise self.progress.problem
            while self.progress.pending:
                await asyncio.wait(self.progress.pending, timeout=0.2)
                self.progress.tick()
            self.ended = time.perf_counter()
        if self.progress.problem is not None:
            raise self.progress.problem

    def _acknowledged(self, began: float, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.acknowledgements.add(began)

    async def begin_group(self) -> None:
        """Lets the group of readers begin while the topic is empty: the server may be told to begin at the newest."""
        async with self.client as client, client.subscribe(self.topic, mode="pull"):
            pass

    async def consume(self, timeout_s: float) -> None:
        """Reads the topic's first records. Raises TimeoutError: none came for so long."""
        async with self.client as client:
            self.started = time.perf_counter()
            async with self._history(client) as subscription:
                batches = subscription.batches()
                while self.read < self.records:
                    async with asyncio.timeout(timeout_s):
                        batch = await anext(batches)
                    self.read += len(batch)
                    records = self.protocol in ("blipmq", "fujin")
                    values = [record.value for record in batch.records()] if records else batch.values
                    self.read_bytes += sum(map(len, values))
                self.ended = time.perf_counter()

    def _history(self, client: Any) -> Any:
        if self.protocol == "figg":
            from netserver import figg

            return client.subscribe(self.topic, start=figg.EARLIEST)
        if self.protocol == "tank":
            from netserver import tank

            return client.subscribe(self.topic, start=tank.EARLIEST)
        if self.protocol == "fujin":
            return client.subscribe(self.topic, ack="auto")
        from netserver import blipmq

        return client.subscribe(self.topic, start=blipmq.EARLIEST, qos=0)

    async def latency(self, timeout_s: float) -> None:
        """Publishes one record after the other, each when a subscriber of its own has the one before.

        Raises:
            TimeoutError: a record was not acknowledged or did not arrive in this time.
        """
        async with self.client as client:
            no_acknowledgements: dict[str, dict[str, Any]] = {"blipmq": {"qos": 0}, "fujin": {"ack": "auto"}}
            more = no_acknowledgements.get(self.protocol, {})
            async with client.subscribe(self.topic, **more) as subscription:
                arriving = aiter(subscription)
                self.started = time.perf_counter()
                for number in range(self.records):
                    async with asyncio.timeout(timeout_s):
                        await self._one(client, arriving, b"%0*d" % (self.size_bytes, number))
                    self.progress.acknowledged = self.progress.sent = number + 1
                    self.progress.tick()
                self.ended = time.perf_counter()

    async def _one(self, client: Any, arriving: AsyncIterator[Any], value: bytes) -> None:
        """A record, until it is acknowledged and has arrived; those of other publishers are passed over."""
        began = time.perf_counter()

        async def arrive() -> None:
            while (await anext(arriving)).value != value:
                continue
            self.deliveries.add(began)

        async def acknowledge() -> None:
            await client.publish(self.topic, value)
            self.acknowledgements.add(began)

        tasks: Sequence[asyncio.Task[None]] = [asyncio.ensure_future(arrive()), asyncio.ensure_future(acknowledge())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
