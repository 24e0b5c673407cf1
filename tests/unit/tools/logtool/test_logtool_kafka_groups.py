"""`logtool groups` on groups of Kafka's consumers: through a server, and on the files of one that was killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import ServerProcess, server
from tests.kafka_peer import OPEN, Peer
from tests.unit.conftest import Logtool
from tests.unit.netserver.kafka.test_kafka_group_list import assignment
from tests.unit.netserver.kafka.test_kafka_groups import GROUP, Member
from tests.unit.tools.logtool.test_logtool_groups import rows

pytestmark = pytest.mark.whole
SETTINGS = {name: {"listen": "off"} for name in ("figg", "tank", "fujin", "blipmq", "reliably")}
MEMBERSHIP = ("state", "members")


async def fill(process: ServerProcess, look: Any) -> None:
    """A topic of 10 records of which a group has read 3, by a member that leaves when it was looked at."""
    member = Member(await Peer.open(process.address("kafka")))
    await member.peer.make("orders", 2)
    await member.peer.make("other")
    await member.peer.produce("orders", *[b"x"] * 10)
    await member.join()
    await member.sync(**{member.id: assignment(orders=[0, 1])})
    assert await member.commit(4, topic="orders") == 0
    assert await member.commit(1, topic="other") == 0
    await asyncio.to_thread(look, member.id)
    await member.leave()
    while OPEN:
        await OPEN.pop().close()


def without_members(items: list[Any]) -> list[Any]:
    """What a server and its files tell alike."""
    return [{key: value for key, value in item.items() if key not in MEMBERSHIP} for item in items]


def test_by_server_and_by_files(tmp_path: Path, logtool: Logtool) -> None:
    of_orders = ("--topic", "orders")
    with server(tmp_path / "data", SETTINGS) as process:
        place = ("--data-dir", str(process.data_dir))
        address = ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token"))

        def listed(*how: str) -> list[Any]:
            return without_members(rows(logtool(*how, "groups", "list", "-o", "json")[1]))

        def look(member: str) -> None:
            served = listed(*address)
            assert [(one["name"], one["protocol"], one["topic"], one["lag"]) for one in served] == [
                (GROUP, "kafka", "orders", 7), (GROUP, "kafka", "other", 0),
            ]  # fmt: skip
            assert served == listed(*place)
            code, shown, _ = logtool(*address, "groups", "show", GROUP, *of_orders)
            assert code == 0
            assert f"{member}" in shown
            assert "0,1" in shown, "what it reads"
            for change in (("reset", GROUP, "--to", "1"), ("delete", GROUP)):
                code, _, told = logtool(*address, "groups", *change, *of_orders, "--yes")
                assert (code, "consumers are in the group" in told) == (6, True)
            assert logtool(*address, "groups", "show", GROUP)[0] == 6, "of which topic?"

        asyncio.run(fill(process, look))
        reset = ("groups", "reset", GROUP, *of_orders, "--to", "2")
        code, dry, told = logtool(*address, *reset, "--dry-run", "-o", "json")
        assert (code, "2 records come again, 0 never" in told) == (0, True)
        assert logtool(*address, "groups", "reset", GROUP, *of_orders, "--to", "3", "--yes")[0] == 0
        assert logtool(*address, "groups", "create", "billing", "orders")[0] == 0
        process.admin("POST", "/v1/topics/orders/trim", {"before": 5})
        served = listed(*address)
        assert [one["lag"] for one in served] == [6, 6, 0], "what was removed does not wait"
        for _ in range(300):  # the start of the log is written by the next round
            if [one["lag"] for one in listed(*place)] == [6, 6, 0]:
                break
        process.kill()

    assert listed(*place) == served
    assert logtool(*place, "groups", "delete", "billing", "--yes")[0] == 0
    assert logtool(*place, "groups", "pause", GROUP, *of_orders)[0] == 6
    assert json.loads(logtool(*place, *reset, "--dry-run", "-o", "json")[1])["items"] == [
        json.loads(dry)["items"][0] | {"from_offset": 3, "next_offset": 5, "again": 0, "passed": 2}
    ]
    assert logtool(*place, *reset, "--yes")[0] == 0
    assert [one["next_offset"] for one in listed(*place)[0]["positions"]] == [5]
    assert logtool(*place, "groups", "delete", GROUP, *of_orders, "--yes")[0] == 0
    assert [one["topic"] for one in listed(*place)] == ["other"], "what it has of other topics stays"
    assert logtool(*place, "groups", "show", GROUP, *of_orders)[0] == 5
