"""Groups of Kafka's consumers in the one list of groups: over HTTP, in metrics, in the console."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from netserver.admin.names import TOKEN_FILE
from netserver.app import Server
from netserver.kafka import coordinator
from netserver.kafka.describe import assigned
from tests.console_visitor import Visitor
from tests.kafka_peer import Peer, Record, with_server
from tests.unit.netserver.http.test_http_records import Records
from tests.unit.netserver.kafka.test_kafka_groups import GROUP, Member

pytestmark = pytest.mark.whole
ALL = "/v1/groups?protocol=kafka"
ONE = f"/v1/groups/{GROUP}"
TO_END = {"to": "latest"}


@pytest.fixture(autouse=True)
def shorter_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "JOIN_DELAY_S", 0.02)


def assignment(**topics: list[int]) -> bytes:
    """What a consumer is told to read, as clients write it."""
    out = struct.pack(">hi", 0, len(topics))
    for name, indexes in topics.items():
        out += struct.pack(f">h{len(name)}si{len(indexes)}i", len(name), name.encode(), len(indexes), *indexes)
    return out + struct.pack(">i", -1)


def with_calls(test: Callable[[Server, Records], Awaitable[None]], path: Path | None = None) -> None:
    async def scenario(server: Server) -> None:
        async with aiohttp.ClientSession() as http:
            await test(server, Records(server, http))

    with_server(scenario, path)


async def joined(server: Server, **topics: list[int]) -> Member:
    member = await Member.of(server)
    assert (await member.join())["error"] == 0
    await member.sync(**{member.id: assignment(**topics)})
    return member


async def with_topics(server: Server) -> Peer:
    """Two topics with two partitions, and ten records in each first one."""
    peer = await Peer.open(server.addresses["kafka"])
    for topic in ("t", "u"):
        assert await peer.make(topic, 2) == 0
        assert (await peer.produce(topic, *[b"x"] * 10))["error"] == 0
    return peer


def test_a_group_and_its_members_are_in_the_list(tmp_path: Path) -> None:
    async def test(server: Server, call: Records) -> None:
        await with_topics(server)
        member = await joined(server, t=[1, 0], u=[0])
        (found,) = (await call("GET", ALL))[1]["items"]
        assert (found["topic"], found["positions"], found["lag"]) == (None, [], None), "nothing is committed yet"
        assert await call.error("DELETE", ONE) == (409, "conflict"), "somebody is in it"
        assert await member.commit(4) == 0
        assert await member.commit(11, topic="u") == 0
        by_topic = {one["topic"]: one for one in (await call("GET", ALL))[1]["items"]}
        assert by_topic.keys() == {"t", "u"}
        found = by_topic["t"]
        assert (found["name"], found["protocol"], found["lag"], found["state"]) == (GROUP, "kafka", 7, "Stable")
        assert 0 < found["lag_seconds"] < 60
        (position,) = found["positions"]
        assert (position["partition"], position["next_offset"], position["acknowledged_offset"]) == (0, 4, 3)
        (told,) = found["members"]
        assert (told["id"], told["partitions"], told["client_id"]) == (member.id, [0, 1], "test")
        assert (by_topic["u"]["lag"], by_topic["u"]["lag_seconds"]) == (0, 0)
        assert [one["partitions"] for one in by_topic["u"]["members"]] == [[0]]
        assert await call.error("GET", ONE) == (409, "conflict"), "of which topic?"
        assert (await call("GET", f"{ONE}?topic=t"))[1]["lag"] == 7
        assert [one["topic"] for one in (await call("GET", f"{ALL}&topic=u&name=g*"))[1]["items"]] == ["u"]
        text = (await call("GET", "/metrics"))[1]
        assert 'quintlog_subscription_lag_records_max{protocol="kafka"} 7.0' in text
        assert 'quintlog_acks_total{protocol="kafka"}' not in text, "Kafka's consumers acknowledge nothing"
        text = (await call("GET", "/metrics/topics"))[1]
        assert 'quintlog_group_lag_records{group="g",protocol="kafka",topic="t"} 7.0' in text

    async def after(_server: Server, call: Records) -> None:
        found = (await call("GET", f"{ONE}?topic=t"))[1]
        assert (found["lag"], found["state"], found["members"]) == (7, "Empty", []), "members come anew"

    with_calls(test, tmp_path)
    with_calls(after, tmp_path)


def test_a_group_is_reset_and_removed_when_nobody_is_in_it(tmp_path: Path) -> None:
    async def test(server: Server, call: Records) -> None:
        peer = await with_topics(server)
        member = await joined(server, t=[0])
        assert await member.commit(4) == 0
        assert await member.commit(5, topic="u") == 0
        of_t = f"{ONE}{{}}?topic=t"
        for body in (TO_END, TO_END | {"dry_run": True}):
            assert await call.error("POST", of_t.format("/reset"), body) == (409, "conflict")
        assert await call.error("DELETE", of_t.format("")) == (409, "conflict")
        assert await member.commit(4) == 0, "it was left alone"
        await member.leave()
        for action in ("/pause", "/resume", "/redrive", "/positions"):
            body = {"positions": [{"next_offset": 5}]} if action == "/positions" else {}
            assert await call.error("POST", of_t.format(action), body) == (409, "conflict"), action
        assert await call.error("GET", of_t.format("/records")) == (409, "conflict")
        assert await call.error("POST", of_t.format("/reset"), {"to": "1", "partition": 1}) == (400, "bad_request")

        dry = (await call("POST", of_t.format("/reset"), {"to": "2", "dry_run": True}))[1]
        assert (dry["again"], dry["passed"]) == (2, 0)
        assert dry["positions"] == [
            {"id": None, "partition": 0, "from_offset": 4, "next_offset": 2, "again": 2, "passed": 0}
        ]
        assert (await member.committed())["t", 0] == (4, "")
        assert (await call("POST", of_t.format("/reset"), TO_END))[1]["passed"] == 7
        assert (await member.committed())["t", 0] == (11, "")
        assert (await call("POST", of_t.format("/reset"), {"to": "-3"}))[0] == 200
        assert (await member.committed())["t", 0] == (8, "")

        assert (await call("DELETE", of_t.format("")))[1] == {"deleted": GROUP}
        assert await call.error("DELETE", of_t.format("")) == (404, "unknown_group")
        assert await member.committed() == {("u", 0): (5, "")}
        await peer.close()

    async def after(server: Server, call: Records) -> None:
        member = await Member.of(server)
        assert await member.committed() == {("u", 0): (5, "")}, "what it has of other topics stays"
        assert (await call("DELETE", ONE))[0] == 200
        assert (await member.state())["state"] == "Dead"

    with_calls(test, tmp_path)
    with_calls(after, tmp_path)


def test_the_console_shows_members_and_resets_when_they_have_left() -> None:
    async def test(server: Server) -> None:
        await with_topics(server)
        member = await joined(server, t=[0, 1])
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            visitor = Visitor(server, http)
            await visitor.log_in((server.data_dir / TOKEN_FILE).read_text().strip())
            where = f"/console/groups/{GROUP}?protocol=kafka"
            assert "nothing is committed yet" in await visitor.get(where)
            assert await member.commit(4) == 0
            page = await visitor.get(where)
            assert "<td>0, 1</td>" in page
            assert "when nobody is in it" in page
            assert "reset?" not in page
            await member.leave()
            page = await visitor.get(where)
            assert "Nobody is in it" in page
            assert "redrive" not in page
            assert "7 records are passed over" in await visitor.post(
                f"/console/groups/{GROUP}/reset?protocol=kafka", 200, position="latest"
            )
            assert ">kafka</td>" in await visitor.get("/console/groups?text=g")

    with_server(test)


def test_the_console_shows_what_is_null() -> None:
    async def test(server: Server) -> None:
        peer = await with_topics(server)
        await peer.produce("t", Record(None, b"k" * 300, headers=(("<h>", None),)), index=1)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            visitor = Visitor(server, http)
            await visitor.log_in((server.data_dir / TOKEN_FILE).read_text().strip())
            page = await visitor.get("/console/topics/t/records/1/1")
            assert "The value is null" in page
            assert "k" * 300 in page
            assert '<span class="quiet">null</span></td>' in page, "the header's"
            assert '<span class="quiet">null</span></td>' in await visitor.get("/console/topics/t/records?partition=1")

    with_server(test)


def test_what_retention_took_does_not_wait() -> None:
    async def test(server: Server, call: Records) -> None:
        await with_topics(server)
        member = await Member.of(server)
        for offset in (0, -7, 3):
            assert await member.commit(offset) == 0
            assert (await call("GET", ONE))[1]["lag"] == 10 - max(offset - 1, 0)
        assert (await call("POST", "/v1/groups", {"name": "of http", "topic": "t"}))[1]["lag"] == 10
        assert (await call("POST", "/v1/topics/t/trim", {"before": 6}))[0] == 200
        assert [one["lag"] for one in (await call("GET", "/v1/groups"))[1]["items"]] == [5, 5]
        assert await member.commit(99) == 0
        assert (await call("GET", ONE))[1]["lag"] == 0

    with_calls(test)


def test_a_group_of_the_log_is_meant_before_one_of_kafka() -> None:
    """Consumers over HTTP name no protocol: a consumer of Kafka that takes their name is not in their way."""

    async def test(server: Server, call: Records) -> None:
        await with_topics(server)
        assert await (await Member.of(server)).commit(4) == 0
        assert (await call("POST", "/v1/groups", {"name": GROUP, "topic": "t"}))[0] == 201
        assert (await call("GET", ONE))[1]["protocol"] == "http"
        assert (await call("GET", f"{ONE}?protocol=kafka"))[1]["lag"] == 7
        assert len((await call("GET", "/v1/groups"))[1]["items"]) == 2

    with_calls(test)


def test_members_may_agree_on_another_form() -> None:
    assert assigned(assignment(t=[2, 0], other=[])) == {"t": [0, 2], "other": []}
    for data in (b"", b"mine", assignment(t=[1])[:-9]):
        assert assigned(data) == {}
