"""Quotas of Kafka's clients: how long they are told to pause, that they have to, and one thing too many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from netserver.access.rights import Right
from netserver.kafka.apis import Key
from netserver.kafka.errors import Code
from tests.access_place import Place, place
from tests.kafka_peer import Peer, batch, fetch, metadata, new_topic, produce

pytestmark = pytest.mark.whole

EVERYTHING: Final[dict[str, Any]] = {right.value: ["*"] for right in Right}
VALUE: Final = b"x" * 1000


def at_place(tmp_path: Path, quotas: dict[str, int], scenario: Callable[[Place, Peer], Awaitable[None]]) -> None:
    async def test() -> None:
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": quotas}, "everything": EVERYTHING}) as here:
            other = Peer(*await here.streams("kafka", "everything"))
            assert await other.make("t") == 0
            assert (await other.produce("t", *[VALUE] * 20))["error"] == 0
            await scenario(here, Peer(*await here.streams("kafka", "slow")))

    asyncio.run(test())


def test_who_publishes_too_much_is_told_to_pause_and_not_read(tmp_path: Path) -> None:
    async def scenario(here: Place, peer: Peer) -> None:
        found = await peer.ask(Key.PRODUCE, produce("t", batch(*[VALUE] * 20)))
        began = time.monotonic()
        assert 100 < found["throttle_ms"] <= 500, "20 kB at 40 kB a second, of which 10 kB were free"
        assert (await peer.ask(Key.API_VERSIONS, {}))["error"] == 0
        assert time.monotonic() - began > found["throttle_ms"] / 1000 - 0.1
        pace = here.server.access.meters["slow"].incoming
        assert pace.records == 20
        assert pace.waited_s > 0.1

    at_place(tmp_path, {"bytes_in_per_s": 40_000}, scenario)


@pytest.mark.parametrize("quotas", [{"bytes_out_per_s": 40_000}, {"records_out_per_s": 40}], ids=["bytes", "records"])
def test_who_reads_too_much_is_told_to_pause_and_answered_later(tmp_path: Path, quotas: dict[str, int]) -> None:
    async def scenario(here: Place, peer: Peer) -> None:
        found = await peer.ask(Key.FETCH, fetch("t", (0, 1)))
        began = time.monotonic()
        assert 100 < found["throttle_ms"] <= 600, "20 kB at 40 kB a second, of which 10 kB were free"
        beside = await Peer(*await here.streams("kafka", "everything")).ask(Key.FETCH, fetch("t", (0, 1)))
        assert beside["throttle_ms"] == 0
        assert (await peer.ask(Key.API_VERSIONS, {}))["error"] == 0, "the rest goes on"
        await peer.ask(Key.FETCH, fetch("t", (0, 1)))
        assert time.monotonic() - began > found["throttle_ms"] / 1000 - 0.1

    at_place(tmp_path, quotas, scenario)


def test_topics_and_partitions_are_bounded(tmp_path: Path) -> None:
    async def scenario(here: Place, peer: Peer) -> None:
        found = await peer.ask(Key.CREATE_TOPICS, new_topic("many", 4))
        assert found["topics"][0]["error"] == Code.POLICY
        assert found["topics"][0]["message"] == "slow may have 3 partitions, and has them"
        assert await peer.make("a", 2) == 0
        assert [one["error"] for one in (await peer.ask(Key.METADATA, metadata("b", "c")))["topics"]] == [
            0,
            Code.POLICY,
        ]
        assert here.server.access.meters["slow"].refused == {"partitions": 1, "topics": 1}

    at_place(tmp_path, {"topics": 2, "partitions": 3}, scenario)
