"""Records into a client's window: how each protocol's client takes them, and which partition they go to."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from netserver.client.partitioning import partition_of
from netserver.errors import Refused
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.splitting import Input

Sent = tuple["asyncio.Future[Any]", int]
"""A future and how many records are stored when it is done."""
Send = Callable[[list[Input]], Awaitable[list[Sent]]]
GROUP_RECORDS = 256
"""Records whose acknowledgement is counted as one, where the client packs them together."""


def sender(
    protocol: str, client: Any, topic: bytes, partition: int | None, note: Callable[[str], None] = lambda _: None
) -> Send:
    """The call that puts records into the client's window.

    Args:
        partition: None: by each record's key (`netserver.client.partitioning`). `note` is told where records without a
            key go.
    """
    if protocol == "tank" and partition is None:
        return _ByKey(client, topic, note)

    async def figg(records: list[Input]) -> list[Sent]:
        return [(await client.send_many(topic, [record.value for record in records]), len(records))]

    async def tank(records: list[Input]) -> list[Sent]:
        return [await _to_partition(client, topic, partition or 0, records)]

    async def blipmq(records: list[Input]) -> list[Sent]:
        return [(await client.send(topic, record.value), 1) for record in records]

    async def fujin(records: list[Input]) -> list[Sent]:
        if not all(record.value for record in records):
            raise Failure(errors.REFUSED, "empty", "Fujin has no records of 0 bytes")
        return [(await client.send_many(topic, [record.value for record in records]), len(records))]

    async def kafka(records: list[Input]) -> list[Sent]:
        return [(await client.send(topic, partition, record), 1) for record in records]

    return {"figg": figg, "tank": tank, "blipmq": blipmq, "fujin": fujin, "kafka": kafka}[protocol]


async def _to_partition(client: Any, topic: bytes, partition: int, records: list[Input]) -> Sent:
    values = [record.value for record in records]
    keys = [record.key for record in records] if any(record.key for record in records) else None
    return await client.send_many(topic, values, partition=partition, keys=keys), len(records)


class _ByKey:
    """Sends to all partitions of a topic through TANK, each record where its key belongs."""

    def __init__(self, client: Any, topic: bytes, note: Callable[[str], None]) -> None:
        self._client = client
        self._topic = topic
        self._note: Callable[[str], None] | None = note
        self._count = 0

    async def __call__(self, records: list[Input]) -> list[Sent]:
        if not self._count:
            try:
                self._count = len(await self._client.discover(self._topic))
            except Refused:  # publishing says better what is wrong
                self._count = 1
        found: defaultdict[int, list[Input]] = defaultdict(list)
        for record in records:
            if record.key or self._count == 1:
                found[partition_of(record.key, self._count)].append(record)
            else:
                found[0].append(record)
                self._tell()
        return [await _to_partition(self._client, self._topic, *part) for part in found.items()]

    def _tell(self) -> None:
        if self._note is not None:
            self._note(f"logtool: records without a key go to partition 0 of {self._count}; TOPIC:N names another one")
            self._note = None
