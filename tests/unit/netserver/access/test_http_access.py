"""Certificates, quotas and rights that are taken back, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from netserver.access.rights import Right
from netserver.http.limits import HTTP_RECORDS_FRAMED
from netserver.limits import (
    ADMIN_CONNECTIONS_MAX,
    QUOTA_BURST_S,
    QUOTA_REFUSED_DELAY_MAX_S,
    QUOTA_WAIT_MAX_S,
    QUOTA_WAITING_MAX,
    WRONG_KEYS_FREE,
)
from tests.access_place import Place, https, key_of, place

pytestmark = pytest.mark.whole

EVERYTHING: Final[dict[str, Any]] = {right.value: ["*"] for right in Right}
RECORDS: Final = "/v1/topics/t/records"


def url(here: Place, path: str) -> str:
    host, port = here.address("admin")
    return f"http://{host}:{port}{path}"


def bearer(who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key_of(who)}"}


# --- certificates


def test_a_certificate_is_an_identity_and_a_key_goes_before_it(tmp_path: Path) -> None:
    async def test() -> None:
        identities = {"writer": {"publish": ["t"], "subscribe": []}, "reader": {"publish": [], "subscribe": ["t"]}}
        async with place(tmp_path, identities, {"admin": https(tmp_path)}) as here:
            body = {"records": [{"value": "x"}]}
            assert (await here.http("POST", RECORDS, "writer", body, certificate=True))[0] == 200
            assert (await here.http("GET", RECORDS, "writer", certificate=True))[0] == 403
            assert (await here.http("GET", RECORDS, "reader", certificate=True))[0] == 200
            key = bearer("reader")
            assert (await here.http("GET", RECORDS, "writer", certificate=True, headers=key))[0] == 200
            wrong = {"Authorization": "Bearer of nothing"}
            assert (await here.http("GET", RECORDS, "reader", certificate=True, headers=wrong))[0] == 401
            assert (await here.http("GET", RECORDS, "reader"))[0] == 200, "a key alone"
            assert (await here.http("GET", RECORDS, "", certificate=True))[0] == 401, "nothing at all"

    asyncio.run(test())


def test_a_certificate_does_not_count_for_a_page_of_another_site(tmp_path: Path) -> None:
    """A browser shows it for whatever page sends a form, or opens a WebSocket."""

    async def test() -> None:
        async with place(tmp_path, {"all": EVERYTHING}, {"admin": https(tmp_path)}) as here:
            host, port = here.address("admin")
            for origin, status in [(f"https://{host}:{port}", 200), ("https://evil.example", 401), ("null", 401)]:
                headers = {"Origin": origin, "Content-Type": "text/plain"}
                found = await here.http("POST", RECORDS + "?split=none", "all", "x", certificate=True, headers=headers)
                assert found[0] == status, origin

    asyncio.run(test())


def test_a_certificate_that_is_taken_back_ends_what_was_begun(tmp_path: Path) -> None:
    async def test() -> None:
        identities = {"gone": EVERYTHING, "admin": {"role": "operator"}}
        async with place(tmp_path, identities, {"admin": https(tmp_path)}) as here:
            host, port = here.address("admin")
            body = {"records": [{"value": "x"}]}
            assert (await here.http("POST", RECORDS, "gone", body, certificate=True))[0] == 200
            async with aiohttp.ClientSession() as http:
                following = f"https://{host}:{port}{RECORDS}?follow=true&from=earliest"
                async with http.get(following, ssl=here.tls("gone")) as answer:
                    assert json.loads(await answer.content.readline())["value"] == "x"
                    assert (await here.http("DELETE", "/v1/keys/gone", "admin", certificate=True))[0] == 200
                    with pytest.raises(aiohttp.ClientError):
                        await asyncio.wait_for(answer.content.read(), 20)
            assert (await here.http("GET", RECORDS, "gone", certificate=True))[0] == 401

    asyncio.run(test())


# --- rights that are taken back


def test_a_websocket_gets_nothing_of_what_was_read_before_its_right_was_taken_back(tmp_path: Path) -> None:
    """It has credit for one record; the rest of the piece was read with the right, and waits."""

    async def test() -> None:
        async with place(tmp_path, {"gone": EVERYTHING, "admin": {"role": "operator"}}) as here:
            body = {"records": [{"value": str(number)} for number in range(100)]}
            assert (await here.http("POST", RECORDS, "gone", body))[0] == 200
            following = url(here, RECORDS + "?from=earliest")
            async with aiohttp.ClientSession(headers=bearer("gone")) as http, http.ws_connect(following) as socket:
                await socket.send_json({"credit": 1})
                assert json.loads(await socket.receive_str())["value"] == "0"
                assert (await here.http("DELETE", "/v1/keys/gone", "admin"))[0] == 200
                with contextlib.suppress(ConnectionError):
                    await socket.send_json({"credit": 10})
                found = await asyncio.wait_for(socket.receive(), 20)
                assert found.type is not aiohttp.WSMsgType.TEXT, found.data

    asyncio.run(test())


# --- quotas


async def published(http: aiohttp.ClientSession, here: Place, count: int) -> tuple[int, dict[str, str], Any]:
    records = {"records": [{"value": "x" * 50}] * count}
    async with http.post(url(here, RECORDS), json=records) as answer:
        return answer.status, dict(answer.headers), await answer.json(content_type=None)


def test_a_publisher_is_slowed_down_and_then_told_when_to_come_again(tmp_path: Path) -> None:
    async def test() -> None:
        quotas = {"records_in_per_s": 100}
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": quotas}, "other": EVERYTHING}) as here:
            async with aiohttp.ClientSession(headers=bearer("slow")) as http:
                began, stored = time.monotonic(), 0
                while time.monotonic() - began < 1:
                    assert (await published(http, here, 20))[0] == 200
                    stored += 20
                assert stored <= 100 * (time.monotonic() - began + QUOTA_BURST_S) + 20
                assert (await published(http, here, 1000))[0] == 200, "what has come is taken"
                status, headers, problem = await published(http, here, 1)
                assert (status, problem["code"]) == (429, "quota_reached")
                assert QUOTA_WAIT_MAX_S < int(headers["Retry-After"]) <= 11
            async with aiohttp.ClientSession(headers=bearer("slow")) as http:
                assert (await published(http, here, 1))[0] == 429, "another connection makes no difference"
            async with aiohttp.ClientSession(headers=bearer("other")) as http:
                assert (await published(http, here, 500))[0] == 200
            metrics = (await here.http("GET", "/metrics", ""))[1]
            assert b'quintlog_identity_quota_refusals_total{identity="slow",quota="rate"} 2' in metrics
            assert b'quintlog_identity_records_total{direction="in",identity="slow"}' in metrics

    asyncio.run(test())


def test_who_comes_again_at_once_is_answered_later_and_nobody_else(tmp_path: Path) -> None:
    async def test() -> None:
        quotas = {"records_in_per_s": 100}
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": quotas}, "other": EVERYTHING}) as here:
            async with aiohttp.ClientSession(headers=bearer("slow")) as http:
                assert (await published(http, here, 2000))[0] == 200
                began, count = time.monotonic(), WRONG_KEYS_FREE + 3
                for _ in range(count):
                    assert (await published(http, here, 1))[0] == 429
                assert time.monotonic() - began > 0.1 + 0.2 + 0.4
                late = asyncio.ensure_future(published(http, here, 1))
                async with aiohttp.ClientSession(headers=bearer("other")) as other:
                    assert (await published(other, here, 1))[0] == 200
                assert not late.done()
                assert (await late)[0] == 429
            assert here.server.access.guard.refused("slow") <= QUOTA_REFUSED_DELAY_MAX_S
            assert here.server.access.guard.refused("other") == 0

    asyncio.run(test())


@pytest.mark.parametrize("form", ["?split=lines", "?split=length", "?split=jsonl"])
def test_a_body_that_flows_is_read_at_the_rate(tmp_path: Path, form: str) -> None:
    async def test() -> None:
        shapes = {"?split=lines": b"x\n", "?split=length": b"\0\0\0\1x", "?split=jsonl": b'{"value":"x"}\n'}
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": {"records_in_per_s": 20_000}}}) as here:
            async with aiohttp.ClientSession(headers=bearer("slow")) as http:
                began = time.monotonic()
                async with http.post(url(here, RECORDS + form), data=shapes[form] * 12_000) as answer:
                    assert (await answer.json())["records"] == 12_000
                taken_s = time.monotonic() - began
            assert taken_s >= (12_000 - HTTP_RECORDS_FRAMED) / 20_000 - QUOTA_BURST_S

    asyncio.run(test())


@pytest.mark.parametrize("form", ["raw", "jsonl", "json", "socket", "jsonl&contains=y"])
def test_an_answer_flows_at_the_rate(tmp_path: Path, form: str) -> None:
    async def test() -> None:
        identities = {"slow": EVERYTHING | {"quotas": {"bytes_out_per_s": 800_000}}, "other": EVERYTHING}
        async with place(tmp_path, identities) as here:
            body = {"records": [{"value": "y" * 1000}] * 600}
            assert (await here.http("POST", RECORDS, "other", body))[0] == 200
            async with aiohttp.ClientSession(headers=bearer("slow")) as http:
                began = time.monotonic()
                if form == "socket":
                    async with http.ws_connect(url(here, RECORDS + "?from=earliest&credit=1000")) as socket:
                        size_bytes = sum([len(message.data) async for message in socket])
                else:
                    async with http.get(url(here, f"{RECORDS}?format={form}&limit=600")) as answer:
                        size_bytes = len(await answer.read())
                taken_s = time.monotonic() - began
            assert size_bytes > 600_000
            assert taken_s >= 500_000 / 800_000 - QUOTA_BURST_S, "the last piece is waited for by the next request"

    asyncio.run(test())


def test_connections_topics_and_readers_are_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        quotas = {"connections": 2, "topics": 1, "partitions": 2, "subscriptions": 1}
        async with place(tmp_path, {"few": EVERYTHING | {"quotas": quotas}, "other": EVERYTHING}) as here:
            status, content = await here.http("POST", "/v1/topics", "few", {"name": "a", "partitions": 3})
            assert (status, json.loads(content)["code"]) == (429, "quota_reached")
            assert (await here.http("POST", RECORDS, "few", {"records": [{"value": "x"}]}))[0] == 200
            assert (await here.http("POST", RECORDS.replace("t/", "u/"), "few", {"records": []}))[0] == 429
            assert here.server.log.catalog.get(b"u") is None
            meter = here.server.access.meters["few"]
            async with (
                aiohttp.ClientSession(headers=bearer("few")) as http,
                http.get(url(here, RECORDS + "?follow=true")),
                http.get(url(here, "/v1/topics/t")) as second,
            ):
                assert second.status == 200
                assert (await here.http("GET", "/v1/topics/t", "few"))[0] == 429, "the third connection"
                assert (await here.http("GET", "/v1/topics/t", "other"))[0] == 200
                async with http.get(url(here, RECORDS)) as another:
                    assert another.status == 429, "the second reader"
            while meter.connections or meter.subscriptions:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert meter.refused == {"partitions": 1, "topics": 1, "connections": 1, "subscriptions": 1}

    asyncio.run(test())


def test_bodies_that_come_slowly_keep_no_operator_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.admin.http.ADMIN_CONNECTIONS_MAX", 4)

    async def test() -> None:
        async with place(tmp_path, {"slow": EVERYTHING, "boss": {"role": "operator"}}) as here:
            address = here.server.admin_address
            assert address is not None
            head = f"POST /v1/groups HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key_of('slow')}\r\n"
            writers = []
            for _ in range(8):
                _, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(head.encode() + b"Content-Length: 100\r\n\r\n{")
                writers.append(writer)
            assert (await asyncio.wait_for(here.http("GET", "/v1/topics", "boss"), 20))[0] == 200
            for writer in writers:
                writer.transport.abort()

    asyncio.run(test())


def test_who_waits_for_a_rate_or_for_a_refusal_takes_nobodys_place(tmp_path: Path) -> None:
    """All connections that there may be are open; a request of somebody else is answered at once."""

    async def test() -> None:
        quotas = {"records_in_per_s": 1000}
        async with place(tmp_path, {"slow": EVERYTHING | {"quotas": quotas}, "other": EVERYTHING}) as here:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as http:
                wrong = {"Authorization": "Bearer of nothing"}

                async def guess() -> None:
                    try:
                        async with http.get(url(here, "/v1/status"), headers=wrong) as answer:
                            assert answer.status == 401
                    except aiohttp.ClientError:  # it gave way
                        pass

                for _ in range(WRONG_KEYS_FREE + 8):
                    here.server.access.guard.failed("127.0.0.1", "of nothing")
                guesses = [asyncio.ensure_future(guess()) for _ in range(ADMIN_CONNECTIONS_MAX + 20)]
                refused = here.server.access.audit.refused
                while here.server.access.audit.refused < refused + ADMIN_CONNECTIONS_MAX:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                assert (await asyncio.wait_for(here.http("GET", "/v1/topics", "other"), 2))[0] == 403
                for task in guesses:
                    task.cancel()
                await asyncio.wait(guesses)
            async with aiohttp.ClientSession(headers=bearer("slow"), connector=aiohttp.TCPConnector(limit=0)) as http:
                assert (await published(http, here, 2000))[0] == 200
                found = await asyncio.gather(*(published(http, here, 1) for _ in range(QUOTA_WAITING_MAX + 4)))
                assert [status for status, _, _ in found].count(429) >= 4

    asyncio.run(test())


# --- the audit


def test_the_audit_names_the_group_and_its_topic(tmp_path: Path) -> None:
    async def test() -> None:
        identities = {"all": EVERYTHING | {"role": "operator"}, "reader": {"publish": [], "subscribe": ["t"]}}
        settings = {"access": {"audit": str(tmp_path / "audit")}}
        async with place(tmp_path, identities, settings) as here:
            await here.http("POST", "/v1/topics", "all", {"name": "t"})
            await here.http("POST", "/v1/groups", "all", {"name": "g", "topic": "t"})
            await here.http("POST", "/v1/groups/g/pause", "all")
            await here.http("POST", "/v1/groups/g/reset", "reader", {"to": "earliest"})
            await here.http("DELETE", "/v1/groups/g", "all")
        lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        assert [(line["what"], line["on"], line.get("group"), line["result"]) for line in lines] == [
            ("POST /v1/topics", "t", None, "done"),
            ("POST /v1/groups", "t", "g", "done"),
            ("POST /v1/groups/NAME/pause", "t", "g", "done"),
            ("POST /v1/groups/NAME/reset", "t", "g", "refused"),
            ("DELETE /v1/groups/NAME", "t", "g", "done"),
        ]
        assert all("time" in line for line in lines)

    asyncio.run(test())
