"""A transactional producer of Kafka's protocol, request by request."""

from __future__ import annotations

from typing import Any

from netserver.kafka.apis import Key
from netserver.kafka.schema import Values
from tests.kafka_peer import Peer, Record, batch, by_topic, produce, result_of

TRANSACTIONAL = 1 << 4
"""Of a batch's attributes."""
DEEP = 60_000
"""Milliseconds that a transaction may take, where no test waits for its end."""


class Producer:
    """A transactional producer by hand. Its methods give error codes."""

    def __init__(self, peer: Peer, name: str = "mine") -> None:
        self.peer = peer
        self.name = name
        self.id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, timeout_ms: int = DEEP, version: int = 4, *, again: bool = False) -> int:
        known = {"producer": self.id, "epoch": self.epoch} if again else {}
        body = {"transactional_id": self.name, "timeout_ms": timeout_ms, **known}
        found = await self.peer.ask(Key.INIT_PRODUCER_ID, body, version)
        if not found["error"]:
            self.id, self.epoch = found["producer"], found["epoch"]
            self.sequences.clear()
        return int(found["error"])

    @property
    def who(self) -> Values:
        return {"transactional_id": self.name, "producer": self.id, "epoch": self.epoch}

    async def add(self, topic: str, *partitions: int, version: int = 2) -> list[int]:
        body = self.who | {"topics": [{"name": topic, "partitions": list(partitions or (0,))}]}
        found = await self.peer.ask(Key.ADD_PARTITIONS_TO_TXN, body, version)
        return [one["error"] for one in found["topics"][0]["partitions"]]

    async def produce(self, topic: str, *records: Record | bytes, index: int = 0, sequence: int = -1) -> int:
        first = self.sequences.get((topic, index), 0) if sequence < 0 else sequence
        data = batch(*records, producer=(self.id, self.epoch, first), attributes=TRANSACTIONAL)
        body = produce(topic, data, index=index) | {"transactional_id": self.name}
        found = result_of(await self.peer.ask(Key.PRODUCE, body))
        assert found["offset"] == -1, "nothing has an offset before the commit"
        if not found["error"]:
            self.sequences[topic, index] = first + len(records)
        return int(found["error"])

    async def group(self, group: str = "g") -> int:
        return int((await self.peer.ask(Key.ADD_OFFSETS_TO_TXN, self.who | {"group": group}))["error"])

    async def offset(self, topic: str, offset: int, group: str = "g", **more: Any) -> int:
        places = [{"index": 0, "offset": offset, "metadata": more.pop("metadata", "")}]
        body = by_topic(topic, places, **self.who, group=group, **more)
        found = result_of(await self.peer.ask(Key.TXN_OFFSET_COMMIT, body))
        return int(found["error"])

    async def end(self, commit: bool = True, version: int = 2) -> int:
        return int((await self.peer.ask(Key.END_TXN, self.who | {"commit": commit}, version))["error"])
