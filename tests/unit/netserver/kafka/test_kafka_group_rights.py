"""Who may be in a group of Kafka's consumers, see it, and throw others out of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from netserver.access.rights import Right
from netserver.kafka import coordinator
from netserver.kafka.apis import Key
from netserver.kafka.errors import Code
from tests import access_place
from tests.access_place import Place, place
from tests.kafka_peer import Peer, all_errors, by_topic

pytestmark = pytest.mark.whole
IDENTITIES: Final[dict[str, dict[str, Any]]] = {
    "everything": {right.value: ["*"] for right in Right},
    "shop": {"publish": [], "subscribe": ["orders"]},
    "mill": {"publish": [], "subscribe": ["flour"]},
    "writer": {"publish": ["orders"], "subscribe": []},
}


async def ask(here: Place, who: str, key: Key, body: dict[str, Any]) -> dict[str, Any]:
    return await Peer(*await here.streams("kafka", who)).ask(key, body)


async def join(here: Place, who: str, group: str, instance: str | None = None) -> dict[str, Any]:
    body = {
        "group": group, "session_ms": 10_000, "rebalance_ms": 10_000, "member": "", "instance": instance,
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    return await ask(here, who, Key.JOIN_GROUP, body)


def test_being_in_a_group_needs_the_right_to_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "JOIN_DELAY_S", 0.01)

    async def test() -> None:
        async with place(tmp_path, IDENTITIES) as here:
            for topic in (b"orders", b"flour"):
                assert await access_place.figg_publish(here, "everything", topic)
            assert (await join(here, "writer", "new"))["error"] == Code.GROUP_FORBIDDEN, "it may subscribe to nothing"
            assert (await join(here, "mill", "new", "m"))["error"] == 0, "of what it reads is known nothing yet"
            body = by_topic("orders", [{"index": 0, "offset": 1, "metadata": None}])
            body |= {"group": "packers", "generation": -1, "member": ""}
            assert all_errors(await ask(here, "shop", Key.OFFSET_COMMIT, body)) == [0]
            assert (await join(here, "mill", "packers", "m"))["error"] == Code.GROUP_FORBIDDEN
            assert (await join(here, "shop", "packers", "at the door"))["error"] == 0
            gone = {"group": "packers", "members": [{"member": "", "instance": "at the door"}]}
            assert (await ask(here, "mill", Key.LEAVE_GROUP, gone))["error"] == Code.GROUP_FORBIDDEN
            left = await ask(here, "shop", Key.LEAVE_GROUP, gone)
            assert (left["error"], [one["error"] for one in left["members"]]) == (0, [0])
            for who, seen in (("shop", ["packers"]), ("mill", []), ("writer", []), ("everything", ["new", "packers"])):
                found = (await ask(here, who, Key.LIST_GROUPS, {"states": ()}))["groups"]
                assert sorted(one["group"] for one in found) == seen, who

    asyncio.run(test())
