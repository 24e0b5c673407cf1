"""Groups over HTTP: those of all protocols in one list, and consumers that keep their position by committing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from multidict import MultiDict

from engine.cursors.cursor import Cursor
from engine.cursors.deliveries import Plan
from engine.partitions.partition import Partition
from netserver.admin import groups, metrics
from netserver.testing import server
from tests.blipmq_peer import Peer
from tests.unit.netserver.http.test_http_records import Records, with_records
from tests.unit.tools.logtool.test_logtool_sessions import stream

pytestmark = pytest.mark.whole
GROUP = "/v1/groups/billing"


async def with_topic(call: Records, records: int = 10, partitions: int = 1) -> None:
    assert (await call("POST", "/v1/topics", {"name": "orders", "partitions": partitions}))[0] == 201
    for partition in range(partitions):
        body = b"".join(b'{"value":"%d"}\n' % number for number in range(1, records + 1))
        assert (await call.publish(f"orders/records?partition={partition}", body))[0] == 200


async def read(call: Records, path: str) -> list[Any]:
    async with call.http.get(f"{call.base}{path}", headers=call.bearer) as answer:
        content = await answer.read()
        assert answer.status == 200, content
        return [json.loads(line) for line in content.splitlines() if line]


def test_a_consumer_goes_on_where_it_has_committed(tmp_path: Path) -> None:
    async def before(call: Records) -> None:
        await with_topic(call)
        status, made = await call("POST", "/v1/groups", {"name": "billing", "topic": "orders"})
        assert (status, made["protocol"], made["lag"], made["positions"][0]["next_offset"]) == (201, "http", 10, 1)
        assert [one["offset"] for one in await read(call, f"{GROUP}/records?limit=4")] == [1, 2, 3, 4]
        assert [one["offset"] for one in await read(call, f"{GROUP}/records?limit=1")] == [1], "nothing was committed"
        status, answer = await call("POST", f"{GROUP}/positions", {"positions": [{"next_offset": 5}]})
        assert (status, answer) == (200, {"positions": [{"partition": 0, "next_offset": 5}]})
        assert [one["offset"] for one in await read(call, f"{GROUP}/records")] == [5, 6, 7, 8, 9, 10]
        follow = await read(call, f"{GROUP}/records?follow=true&timeout_ms=50&key=none")
        assert follow == []

    async def after(call: Records) -> None:
        assert [one["offset"] for one in await read(call, f"{GROUP}/records?limit=2")] == [5, 6]
        status, found = await call("GET", GROUP)
        assert (status, found["lag"], found["positions"][0]["acknowledged_offset"]) == (200, 6, 4)
        assert 0 < found["lag_seconds"] < 60
        assert (await call("POST", f"{GROUP}/positions", {"positions": [{"next_offset": 11}]}))[0] == 200
        _, found = await call("GET", GROUP)
        assert (found["lag"], found["lag_seconds"]) == (0, 0)
        text = (await call("GET", "/metrics"))[1]
        assert 'quintlog_acks_total{protocol="http"} 6.0' in text

        assert (await call("POST", f"{GROUP}/pause"))[1]["positions"][0]["paused"]
        assert await call.error("GET", f"{GROUP}/records") == (409, "conflict")
        assert not (await call("POST", f"{GROUP}/resume"))[1]["positions"][0]["paused"]

    with_records(before, tmp_path)
    with_records(after, tmp_path)


def test_what_cannot_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(call: Records) -> None:
        await with_topic(call, partitions=2)
        new = {"name": "billing", "topic": "orders", "from": -3}
        assert (await call("POST", "/v1/groups", new))[1]["lag"] == 6
        assert await call.error("POST", "/v1/groups", new) == (409, "conflict")
        for body, expected in (
            ({}, (400, "bad_request")),
            ({"positions": []}, (400, "bad_request")),
            ({"positions": [{"partition": 0}]}, (400, "bad_request")),
            ({"positions": [{"partition": 2, "next_offset": 9}]}, (400, "bad_request")),
            ({"positions": [{"partition": 0, "next_offset": 12}]}, (400, "bad_request")),
            ({"positions": [{"next_offset": 9}, {"partition": 0, "next_offset": 10}]}, (400, "bad_request")),
            ({"positions": [{"partition": 1, "next_offset": 9}, {"next_offset": 7}]}, (409, "conflict")),
        ):
            assert await call.error("POST", f"{GROUP}/positions", body) == expected, body
        _, found = await call("GET", GROUP)
        assert [one["next_offset"] for one in found["positions"]] == [8, 8], "all or nothing"
        assert await call.error("GET", f"{GROUP}/records?from=1") == (400, "bad_request")
        assert await call.error("GET", f"{GROUP}/records?partition=2") == (400, "bad_request")
        assert await call.error("GET", "/v1/groups/none/records") == (404, "unknown_group")
        assert await call.error("GET", "/v1/groups?nam=x") == (400, "bad_request")
        for body, expected in (
            ({"name": "a"}, (400, "bad_request")),
            ({"topic": "orders"}, (400, "bad_request")),
            ({"name": "12", "topic": "orders"}, (400, "bad_request")),
            ({"name": "a", "topic": "none"}, (404, "unknown_topic")),
            ({"name": "a", "topic": "orders", "from": "x"}, (400, "bad_request")),
            ({"name": "a", "topic": "orders", "partitions": [2]}, (400, "bad_request")),
            ({"name": "a", "topic": "orders", "partitions": []}, (400, "bad_request")),
            ({"name": "a" * 1025, "topic": "orders"}, (400, "invalid_config")),
        ):
            assert await call.error("POST", "/v1/groups", body) == expected, body
        monkeypatch.setattr(groups, "HTTP_GROUPS_POSITIONS_MAX", 3)
        assert await call.error("POST", "/v1/groups", {"name": "a", "topic": "orders"}) == (409, "limit_reached")
        assert (await call("POST", "/v1/groups", {"name": "a", "topic": "orders", "partitions": [1]}))[0] == 201

    with_records(test)


def test_what_a_crash_left_of_a_group_is_completed() -> None:
    async def test(call: Records) -> None:
        await with_topic(call, partitions=3)
        part = {"name": "billing", "topic": "orders", "partitions": [1], "from": -3}
        assert len((await call("POST", "/v1/groups", part))[1]["positions"]) == 1
        assert (await call("POST", f"{GROUP}/positions", {"positions": [{"partition": 1, "next_offset": 9}]}))[0] == 200
        status, whole = await call("POST", "/v1/groups", {"name": "billing", "topic": "orders"})
        assert (status, [one["next_offset"] for one in whole["positions"]]) == (201, [1, 9, 1])
        await call("POST", "/v1/topics", {"name": "other"})
        for again in ({"name": "billing", "topic": "orders"}, {"name": "billing", "topic": "other"}):
            assert await call.error("POST", "/v1/groups", again) == (409, "conflict")

    with_records(test)


def test_nothing_is_answered_for_a_group_that_is_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its partitions are opened, which a start leaves to the first use."""

    async def test(call: Records) -> None:
        await with_topic(call)
        opened = groups.GroupsApi._opened
        for path, body in (("positions", {"positions": [{"next_offset": 5}]}), ("reset", {"to": "2"})):
            assert (await call("POST", "/v1/groups", {"name": "billing", "topic": "orders"}))[0] == 201

            async def and_deleted(self: groups.GroupsApi, cursor: Cursor) -> Partition:
                monkeypatch.setattr(groups.GroupsApi, "_opened", opened)
                await self.delete(b"billing", MultiDict())
                return await opened(self, cursor)

            monkeypatch.setattr(groups.GroupsApi, "_opened", and_deleted)
            assert await call.error("POST", f"{GROUP}/{path}", body) == (404, "unknown_group")

    with_records(test)


def test_partitions_are_merged_or_chosen() -> None:
    async def test(call: Records) -> None:
        await with_topic(call, 3, partitions=2)
        await call("POST", "/v1/groups", {"name": "billing", "topic": "orders"})
        assert len(await read(call, f"{GROUP}/records")) == 6
        assert {one["partition"] for one in await read(call, f"{GROUP}/records?partition=1")} == {1}
        status, _ = await call("POST", f"{GROUP}/positions", {"positions": [{"partition": 1, "next_offset": 4}]})
        assert status == 200
        assert [(one["partition"], one["offset"]) for one in await read(call, f"{GROUP}/records")] == [
            (0, 1), (0, 2), (0, 3),
        ]  # fmt: skip

    with_records(test)


def test_a_reset_says_what_it_means_before_it_does_it() -> None:
    async def test(call: Records) -> None:
        await with_topic(call)
        await call("POST", "/v1/groups", {"name": "billing", "topic": "orders", "from": 8})
        plan = {"id": 1, "partition": 0, "from_offset": 8, "next_offset": 3, "again": 5, "passed": 0}
        status, dry = await call("POST", f"{GROUP}/reset", {"to": 3, "dry_run": True})
        assert (status, dry) == (200, {"dry_run": True, "again": 5, "passed": 0, "positions": [plan]})
        assert (await call("GET", GROUP))[1]["positions"][0]["next_offset"] == 8
        status, done = await call("POST", f"{GROUP}/reset", {"to": "3"})
        assert (status, done) == (200, {"dry_run": False, "again": 5, "passed": 0, "positions": [plan]})
        assert (await call("GET", GROUP))[1]["lag"] == 8
        status, done = await call("POST", f"{GROUP}/reset", {"to": "latest", "partition": 0})
        assert (done["again"], done["passed"]) == (0, 8)
        for body in ({}, {"to": "x"}, {"to": 1, "dry_run": 1}, {"to": 1, "partition": 1}):
            assert await call.error("POST", f"{GROUP}/reset", body) == (400, "bad_request"), body
        assert await call("DELETE", GROUP) == (200, {"deleted": "billing"})
        assert await call.error("GET", GROUP) == (404, "unknown_group")
        assert (await call("GET", "/v1/groups"))[1]["items"] == []

    with_records(test)


def test_a_name_of_several_groups_wants_more_said() -> None:
    async def test(call: Records) -> None:
        await with_topic(call)
        cursors = call.server.log.cursors
        partition = call.server.log.partition(call.server.log.catalog.get_or_create(b"orders"))
        other = call.server.log.partition(call.server.log.catalog.get_or_create(b"others"))
        fujin = cursors.create("fujin", partition, after_seq=0, name=b"billing")
        cursors.create("fujin", other, after_seq=0, name=b"billing")
        assert await call.error("GET", GROUP) == (409, "conflict")
        assert await call.error("GET", f"{GROUP}?topic=none") == (404, "unknown_group")
        status, found = await call("GET", f"{GROUP}?topic=orders")
        assert (status, found["protocol"], found["lag"]) == (200, "fujin", 10)
        await call("POST", "/v1/groups", {"name": "billing", "topic": "orders"})
        assert await call.error("GET", f"{GROUP}?topic=orders") == (409, "conflict")
        which = "?topic=orders&protocol=fujin"
        body = {"positions": [{"next_offset": 3}]}
        assert await call.error("POST", f"{GROUP}/positions{which}", body) == (409, "conflict"), "its readers do that"
        fujin.delivered(Plan(1, 4, False), 1, 4, cursors.clock_ms())
        fujin.acknowledge(1, 2)
        assert [one["offset"] for one in await read(call, f"{GROUP}/records{which}&limit=2")] == [3, 4]
        status, reset = await call("POST", f"{GROUP}/reset{which}", {"to": 4})
        assert (status, reset["again"], reset["passed"]) == (200, 1, 1), "3 was not acknowledged"
        status, listed = await call("GET", "/v1/groups?name=bill*&topic=orders")
        assert [(one["protocol"], one["topic"]) for one in listed["items"]] == [("fujin", "orders"), ("http", "orders")]
        assert [one["topic"] for one in (await call("GET", "/v1/groups?protocol=fujin"))[1]["items"]] == [
            "orders", "others",
        ]  # fmt: skip

    with_records(test)


def test_groups_of_all_protocols_are_in_one_list(tmp_path: Path) -> None:
    """A BlipMQ subscription by its id, a session of a topic by its uuid; what is redriven, and what goes."""
    with server(tmp_path / "data") as process, Peer(process.address("blipmq")) as peer:
        subscription = peer.subscribe(b"orders")
        peer.publish(b"orders", b"a", b"b")
        assert len(peer.poll(subscription, 1)) == 1
        (found,) = process.admin("GET", "/v1/groups")["items"]
        assert (found["name"], found["protocol"], found["lag"]) == (str(subscription), "blipmq", 2)
        assert process.admin("GET", f"/v1/groups/{subscription}")["unacknowledged"] == 1
        assert process.admin("DELETE", f"/v1/groups/{subscription}") == {"deleted": str(subscription)}
        assert process.admin("GET", "/v1/groups")["items"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/groups", {"name": "others", "topic": "orders", "form": "latest"}),
        (f"{GROUP}/reset", {"to": "earliest", "dryrun": True}),
        (f"{GROUP}/positions", {"positions": [{"partiton": 1, "next_offset": 11}]}),
    ],
)
def test_a_misspelled_field_moves_nothing(path: str, body: dict[str, Any]) -> None:
    async def test(call: Records) -> None:
        await with_topic(call, partitions=2)
        await call("POST", "/v1/groups", {"name": "billing", "topic": "orders", "from": 8})
        status, answer = await call("POST", path, body)
        assert (status, answer["code"]) == (400, "bad_request"), answer
        assert "no field" in answer["detail"]
        (group,) = (await call("GET", "/v1/groups"))[1]["items"]
        assert [one["next_offset"] for one in group["positions"]] == [8, 8]

    with_records(test)


def test_a_session_tells_how_far_it_is_behind(tmp_path: Path) -> None:
    """It has ten of twenty records, and has acknowledged none of them."""
    with server(tmp_path / "data", {"reliably": {"session_expiry": "1h"}}) as process:
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "x"}] * 20})
        request = {"uuid": "s1", "params": {"topic": "orders", "offset": 0, "count": 10}}
        with stream(process.address("reliably"), request, 10):
            found = process.admin("GET", "/v1/groups/s1")
            assert (found["lag"], found["unacknowledged"]) == (20, 10)
            assert 0 <= found["lag_seconds"] < 60
            assert found["lag_trend"] is None or found["lag_trend"] == 0
            for name in ("one", "two"):
                process.admin("POST", "/v1/groups", {"name": name, "topic": "orders", "from": 16})
            text = process.admin("GET", "/metrics/topics?family=quintlog_group_lag_records")
            assert 'quintlog_group_lag_records{group="one",protocol="http",topic="orders"} 5.0' in text
            text = process.admin("GET", "/metrics/topics?family=quintlog_group_lag_seconds&topic=o*")
            assert text.count('quintlog_group_lag_seconds{group="') == 2
            assert "group=" not in process.admin("GET", "/metrics/topics?topic=other")


def test_series_of_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS_GROUPS", 2)

    async def test(call: Records) -> None:
        await with_topic(call)
        for name in "abcd":
            assert (await call("POST", "/v1/groups", {"name": name, "topic": "orders", "from": 9}))[0] == 201
        text = (await call("GET", "/metrics/topics"))[1]
        lines = [line for line in text.splitlines() if line.startswith("quintlog_group_lag_records{")]
        assert lines == [
            'quintlog_group_lag_records{group="a",protocol="http",topic="orders"} 2.0',
            'quintlog_group_lag_records{group="b",protocol="http",topic="orders"} 2.0',
            'quintlog_group_lag_records{group="_other",protocol="_other",topic="_other"} 4.0',
        ]

    with_records(test)
