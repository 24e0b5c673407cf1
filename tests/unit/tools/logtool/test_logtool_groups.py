"""`logtool groups`: groups of all protocols, through a server and on the files of one that was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import server
from tests.blipmq_peer import Peer
from tests.unit.conftest import Logtool
from tests.unit.tools.logtool.test_logtool_sessions import stream

pytestmark = pytest.mark.whole

MOVING = ("lag_seconds", "lag_trend")
SETTINGS = {"figg": {"listen": "off"}, "tank": {"listen": "off"}, "fujin": {"listen": "off"}}


def rows(text: str) -> list[Any]:
    """Without what changes from one second to the next."""
    items = json.loads(text)["items"]
    for item in items:
        for moving in (item, *item.get("positions", ())):
            for name in MOVING:
                moving.pop(name, None)
    return list(items)


def test_groups_of_all_protocols_by_server_and_by_files(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", SETTINGS) as process:
        place = ("--data-dir", str(process.data_dir))
        address = ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token"))
        process.admin("POST", "/v1/topics", {"name": "orders", "partitions": 2})
        for partition in (0, 1):
            body = {"partition": partition, "records": [{"value": str(n)} for n in range(5)]}
            process.admin("POST", "/v1/topics/orders/records", body)
        with Peer(process.address("blipmq")) as peer:
            subscription = peer.subscribe(b"orders")
            peer.publish(b"orders", b"x")
            assert len(peer.poll(subscription, 1)) == 1
            assert logtool(*address, "groups", "create", "billing", "orders", "--from", "-2")[0] == 0
            assert logtool(*place, "groups", "create", "billing", "orders")[0] == 6, "there is one"
            assert logtool(*place, "groups", "create", "17", "orders")[0] == 2
            request = {"uuid": "stream-1", "params": {"topic": "orders", "offset": 1, "count": 3}}
            stream(process.address("reliably"), request, 3).close()
            process.admin("POST", "/v1/groups/billing/positions", {"positions": [{"partition": 1, "next_offset": 5}]})
            served = rows(logtool(*address, "groups", "list", "-o", "json")[1])
            assert served == rows(logtool(*place, "groups", "list", "-o", "json")[1])
            assert [(one["name"], one["protocol"], one["unacknowledged"], one["lag"]) for one in served] == [
                (str(subscription), "blipmq", 1, 1), ("billing", "http", 0, 3), ("stream-1", "reliably", 3, 5),
            ]  # fmt: skip
            for command in (("billing",), (str(subscription),), ("stream-1",)):
                by_url, by_files = (logtool(*how, "groups", "show", *command, "-o", "json") for how in (address, place))
                assert rows(by_url[1]) == rows(by_files[1])
        code, dry, told = logtool(*address, "groups", "reset", "billing", "--to", "1", "--dry-run", "-o", "json")
        assert code == 0
        assert "8 records come again, 0 never" in told
        assert [(one["partition"], one["from_offset"], one["again"]) for one in rows(dry)] == [(0, 5, 4), (1, 5, 4)]
        process.kill()
        assert rows(logtool(*place, "groups", "list", "-o", "json")[1]) == served
        to_first = (*place, "groups", "reset", "billing", "--to", "1")
        assert rows(logtool(*to_first, "--dry-run", "-o", "json")[1]) == rows(dry)
        assert logtool(*to_first)[0] == 2, "not confirmed"
        assert logtool(*to_first, "--partition", "7", "--yes")[0] == 5
        assert logtool(*place, "groups", "reset", "stream-1", "--to", "1", "--yes")[0] == 6
        assert logtool(*to_first, "--partition", "1", "--yes")[0] == 0
        (shown,) = rows(logtool(*place, "groups", "show", "billing", "-o", "json")[1])
        assert [one["next_offset"] for one in shown["positions"]] == [5, 1]
        assert logtool(*place, "groups", "create", "other", "orders", "--from", "latest")[0] == 0
        assert logtool(*place, "groups", "create", "other", "orders")[0] == 6
        for name in ("other", "stream-1", str(subscription)):
            assert logtool(*place, "groups", "delete", name, "--yes")[0] == 0
        assert [one["name"] for one in rows(logtool(*place, "groups", "list", "-o", "json")[1])] == ["billing"]
        assert logtool(*place, "groups", "show", "other")[0] == 5
        assert "billing" in logtool(*place, "groups", "list", "b*", "--protocol", "http", "--topic", "orders")[1]
        assert "NEXT" in logtool(*place, "groups", "show", "billing")[1]


def test_a_name_of_several_groups(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", {**SETTINGS, "blipmq": {"listen": "off"}}) as process:
        place = ("--data-dir", str(process.data_dir))
        for topic in ("a", "b"):
            process.admin("POST", "/v1/topics", {"name": topic})
        assert logtool(*place, "groups", "create", "g", "a")[0] == 0
        process.kill()
        assert logtool(*place, "groups", "show", "g", "--topic", "b")[0] == 5
        assert logtool(*place, "groups", "show", "g", "--topic", "a", "--protocol", "http")[0] == 0


def test_a_group_is_paused_and_resumed_by_name(tmp_path: Path, logtool: Logtool) -> None:
    """Through the server and on the files; lists and what is shown tell of it."""
    with server(tmp_path / "data", SETTINGS) as process:
        place = ("--data-dir", str(process.data_dir))
        address = ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token"))
        process.admin("POST", "/v1/topics", {"name": "orders", "partitions": 2})
        assert logtool(*place, "groups", "create", "billing", "orders")[0] == 0
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "x"}] * 3})
        request = {"uuid": "stream-1", "params": {"topic": "orders", "offset": 1, "count": 3}}
        stream(process.address("reliably"), request, 2).close()

        def listed(*how: str) -> list[str]:
            header, row = logtool(*how, "groups", "list", "billing", "-o", "csv")[1].splitlines()
            return [dict(zip(header.split(","), row.split(","), strict=True))["paused"]] + [
                line.split()[-1] for line in logtool(*how, "groups", "show", "billing")[1].splitlines()[1:]
            ]

        assert listed(*address) == listed(*place) == ["-", "-", "-"]
        assert logtool(*address, "groups", "pause", "billing") == (0, "", "paused billing\n")
        assert listed(*address) == listed(*place) == ["yes", "yes", "yes"]
        position = process.admin("GET", "/v1/groups/billing")["positions"][0]
        assert logtool(*place, "subscriptions", "resume", str(position["id"]))[0] == 0
        assert listed(*place) == ["1 of 2", "-", "yes"]
        assert logtool(*place, "groups", "pause", "stream-1")[0] == 6
        assert logtool(*place, "groups", "pause", "none")[0] == 5
        code, _, err = logtool(*place, "subscriptions", "pause", "billing")
        assert code == 2
        assert "`logtool groups pause NAME`" in err
        process.kill()
        assert logtool(*place, "groups", "resume", "billing", "--yes")[0] == 0
        assert listed(*place) == ["-", "-", "-"]
        assert logtool(*place, "groups", "pause", "billing")[0] == 0
        assert listed(*place) == ["yes", "yes", "yes"]


def test_the_audit_of_a_server_has_the_name_that_was_given(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", {**SETTINGS, "access": {"audit": str(tmp_path / "audit")}}) as process:
        address = ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token"))
        process.admin("POST", "/v1/topics", {"name": "orders", "partitions": 2})
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "x"}] * 3})
        for command in (("create", "g", "orders"), ("pause", "g"), ("reset", "g", "--to", "latest"), ("delete", "g")):
            assert logtool(*address, "groups", *command, "--yes")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    told = [(line["what"], line["on"], line["group"]) for line in lines if "group" in line and line["result"] == "done"]
    assert [(what.removeprefix("POST /v1/groups"), on, name) for what, on, name in told] == [
        ("", "orders", "g"), ("/NAME/pause", "orders", "g"), ("/NAME/reset", "orders", "g"),
        ("DELETE /v1/groups/NAME", "orders", "g"),
    ], "a dry run changes nothing"  # fmt: skip
