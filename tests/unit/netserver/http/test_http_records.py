"""Records over HTTP in a running server: publishing, reading, following; each answer, each refusal."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import MultiDict

from netserver.admin.api import Api
from netserver.http import choosing
from netserver.http.limits import HTTP_JSON_BYTES_MAX, HTTP_RECORDS_PIECE, HTTP_WRITE_BYTES
from netserver.http.query import Read
from netserver.http.reading import Item, Reader
from netserver.http.records_api import RecordsApi
from netserver.http.splitting import LENGTH
from netserver.testing import running
from tests.echo import ALONE, Echo, run
from tests.unit.netserver.admin.test_admin import Caller

LINES = {"Content-Type": "application/x-ndjson"}
QUERIES = [
    "form=1",
    "from=x",
    "limit=0",
    "partition=-1",
    "follow=maybe",
    "where=a",
    "from=1&format=xml",
    "progress=true&format=raw",
]
RAW = {"Content-Type": "application/octet-stream"}


class Records(Caller):
    """Calls one topic's records."""

    async def publish(self, path: str, body: bytes, headers: dict[str, str] = LINES) -> tuple[int, Any]:
        """(status, document)."""
        return await self("POST", f"/v1/topics/{path}", body, headers=self.bearer | headers)

    async def read(self, path: str, accept: str = "*/*") -> list[Any]:
        """The lines of an answer; of other forms its bytes."""
        async with self.http.get(f"{self.base}/v1/topics/{path}", headers=self.bearer | {"Accept": accept}) as answer:
            content = await answer.read()
            assert answer.status == 200, content
            if answer.content_type == "application/x-ndjson":
                return [json.loads(line) for line in content.splitlines() if line or "follow" not in path]
            return [content]

    @property
    def bearer(self) -> dict[str, str]:
        """The token."""
        return {"Authorization": f"Bearer {self.token}"}


def with_records(test: Callable[[Records], Awaitable[None]], data_dir: Path | None = None) -> None:
    async def main() -> None:
        async with running(data_dir, ALONE, {"echo": Echo()}) as server, aiohttp.ClientSession() as http:
            await test(Records(server, http))

    run("uvloop", main())


def test_lines_are_published_and_read() -> None:
    async def test(call: Records) -> None:
        body = b'{"value":"one"}\n\n{"value":"zw\xc3\xb6lf","key":"k","timestamp_ms":12}\n{"value_base64":"/w=="}'
        status, stored = await call.publish("t/records", body)
        assert status == 200
        part = {"partition": 0, "first_offset": 1, "last_offset": 3, "records": 3}
        assert stored == {"schema": 1, "records": 3, "partitions": [part]}
        first, second, third = await call.read("t/records")
        assert (first["offset"], first["value"]) == (1, "one")
        assert second == {"partition": 0, "offset": 2, "timestamp_ms": 12, "key": "k", "value": "zwölf"}
        assert (third["offset"], third["value_base64"]) == (3, "/w==")
        assert [one["offset"] for one in await call.read("t/records?from=2&limit=1")] == [2]
        assert [one["offset"] for one in await call.read("t/records?from=-1")] == [3]
        assert [one["offset"] for one in await call.read("t/records?to=3")] == [1, 2]
        assert [one["value"] for one in await call.read("t/records?key=k")] == ["zwölf"]
        assert [one["offset"] for one in await call.read("t/records?contains=ne")] == [1]
        (document,) = await call.read("t/records", "application/json")
        assert [one["offset"] for one in json.loads(document)["items"]] == [1, 2, 3]

    with_records(test)


def test_an_answer_with_an_end_has_no_empty_lines(tmp_path: Path) -> None:
    """Also where records come from the disk, which is waited for."""
    values = [f"{number:0500}" for number in range(5000)]

    async def publish(call: Records) -> None:
        body = "".join(f'{{"value":"{value}"}}\n' for value in values).encode()
        assert (await call.publish("t/records", body))[0] == 200

    def forget() -> None:
        for path in tmp_path.rglob("*.log"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    async def read(call: Records) -> None:
        for query in ("", "&contains=0", "&from=2500"):
            forget()
            found = [one["value"] for one in await call.read(f"t/records?limit=1000000{query}")]
            assert found == values[-len(found) :]

    with_records(publish, tmp_path)
    with_records(read, tmp_path)


def test_raw_values() -> None:
    async def test(call: Records) -> None:
        values = [b"", b"\0\xff", b"x" * 300_000]
        body = b"".join(LENGTH.pack(len(value)) + value for value in values)
        status, stored = await call.publish("t/records?split=length", body, RAW)
        assert (status, stored["records"]) == (200, 3)
        assert await call.read("t/records", "application/octet-stream") == [body]
        assert await call.read("t/records?format=raw&limit=1&from=2") == [b"\0\0\0\2\0\xff"]
        assert (await call.publish("t/records?key=k&split=none", b"all\nof it", RAW))[1]["records"] == 1
        assert (await call.publish("t/records?split=lines", b"a\nb", RAW))[1]["records"] == 2
        last = await call.read("t/records?from=4")
        assert [(one.get("key"), one["value"]) for one in last] == [("k", "all\nof it"), (None, "a"), (None, "b")]

    with_records(test)


def test_many_lines_in_any_portions() -> None:
    """More than one piece, usual lines and others in between, and each comes back once and in order."""

    async def test(call: Records) -> None:
        count = 3 * HTTP_RECORDS_PIECE
        lines = [json.dumps({"value": f"é{n}" if n % 7 == 0 else f"record {n}"}).encode() for n in range(count)]
        body = b"\n".join(lines)

        async def portions() -> Any:
            for at in range(0, len(body), 997):
                yield body[at : at + 997]

        async with call.http.post(
            f"{call.base}/v1/topics/t/records", data=portions(), headers=call.bearer | LINES
        ) as answer:
            assert (await answer.json())["records"] == count
        found = await call.read("t/records")
        assert [one["offset"] for one in found] == list(range(1, count + 1))
        assert [one["value"] for one in found] == [json.loads(line)["value"] for line in lines]

    with_records(test)


def test_partitions_by_name_by_key_and_by_turns() -> None:
    async def test(call: Records) -> None:
        await call("POST", "/v1/topics", {"name": "t", "partitions": 3})
        body = b"".join(b'{"value":"%d","key":"key-%d","timestamp_ms":%d}\n' % (n, n % 5, n) for n in range(60))
        assert (await call.publish("t/records", body))[0] == 200
        found = await call.read("t/records")
        assert [one["timestamp_ms"] for one in found] == list(range(60)), "merged by time"
        where = {one["key"]: one["partition"] for one in found}
        assert all(where[one["key"]] == one["partition"] for one in found)
        assert len(set(where.values())) > 1
        await call.publish("t/records?partition=2", b'{"value":"here","key":"key-0"}\n')
        assert (await call.read("t/records?partition=2&from=-1"))[0]["value"] == "here"
        turns = [(await call.publish("t/records", b'{"value":"x"}\n'))[1]["partitions"][0] for _ in range(3)]
        assert {turn["partition"] for turn in turns} == {0, 1, 2}

    with_records(test)


@pytest.mark.parametrize(
    ("path", "body", "headers", "code"),
    [
        ("t/records", b'{"value":"a"}\n{"vlaue":"b"}\n', LINES, "bad_request"),
        ("t/records", b'{"value":"a"}\nno json\n', LINES, "bad_request"),
        ("t/records", b'{"value":"a"}\n{"value":"b","value_base64":""}\n', LINES, "bad_request"),
        ("t/records", b'{"value":"a"}\n{"value":"b","partition":9}\n', LINES, "unknown_partition"),
        ("t/records", b'{"value":"a"}\n{"value":"b","timestamp_ms":-1}\n', LINES, "bad_request"),
        ("t/records", b'{"value":"a"}\n' + b"[" * 100_000 + b"\n", LINES, "bad_request"),
        ("t/records", b'{"value":"a"}\n{"value_json":' + b"[0]," * 600_000, LINES, "bad_request"),
        ("t/records", b'{"value":"a"}\n{"value":"b","headers":[' + b"{}," * 1000 + b"{}]}\n", LINES, "bad_request"),
        ("t/records?split=length", b"\0\0\0\1a\0\0\0\2b", RAW, "bad_request"),
        ("t/records?split=length", b"\0\0\0\1a\xff\xff\xff\xffb", RAW, "bad_request"),
    ],
)
def test_what_is_refused_says_what_is_stored(path: str, body: bytes, headers: dict[str, str], code: str) -> None:
    async def test(call: Records) -> None:
        status, document = await call.publish(path, body, headers)
        assert status in (400, 404)
        assert document["code"] == code
        left = await call.read("t/records")
        assert [one["value"] for one in left] in ([], ["a"])
        assert ("1 records of this request are stored" in document["detail"]) is bool(left)

    with_records(test)


@pytest.mark.parametrize("query", QUERIES)
def test_parameters_are_checked(query: str) -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b'{"value":"a"}\n')
        assert await call.error("GET", f"/v1/topics/t/records?{query}") == (400, "bad_request")
        assert await call.error("GET", "/v1/topics/t/records?partition=1") == (404, "unknown_partition")
        assert await call.error("GET", "/v1/topics/none/records") == (404, "unknown_topic")

    with_records(test)


def test_a_follower_gets_each_record_when_it_is_there() -> None:
    async def test(call: Records) -> None:
        await call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        async with call.http.get(f"{call.base}/v1/topics/t/records?follow=true", headers=call.bearer) as answer:
            for n in range(5):
                await call.publish(f"t/records?partition={n % 2}", b'{"value":"%d"}\n' % n)
                while not (line := (await answer.content.readline()).strip()):
                    pass
                assert json.loads(line)["value"] == str(n)
        assert await call.read("t/records?follow=true&from=earliest&limit=5") != []
        assert await call.read("t/records?follow=true&timeout_ms=20") == []

    with_records(test)


def test_a_websocket_gets_what_it_has_credit_for() -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b"".join(b'{"value":"%d"}\n' % n for n in range(10)))
        url = f"{call.base}/v1/topics/t/records?from=earliest&follow=true"
        async with call.http.ws_connect(url, headers=call.bearer) as socket:
            found: list[str] = []
            for credit in (3, 4, 3):
                await socket.send_json({"credit": credit})
                expected = len(found) + credit
                while len(found) < expected:
                    text = await socket.receive_str()
                    found += [json.loads(line)["value"] for line in text.splitlines()]
                assert len(found) == expected
            assert found == [str(n) for n in range(10)]
            await socket.send_json({"credit": 1})
            await call.publish("t/records", b'{"value":"new"}\n')
            assert json.loads(await socket.receive_str())["value"] == "new"
            await socket.send_str('{"credit": -1}')
            assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)

    with_records(test)


def test_a_websocket_gets_large_records_one_by_one() -> None:
    """Not as many as it has credit for in one message: that would be in memory, however large it is."""

    async def test(call: Records) -> None:
        for n in range(8):
            await call.publish("t/records?split=none", b"%d" % n * HTTP_WRITE_BYTES, RAW)
        url = f"{call.base}/v1/topics/t/records?from=earliest&credit=1000"
        async with call.http.ws_connect(url, headers=call.bearer) as socket:
            for n in range(8):
                (line,) = (await socket.receive_str()).splitlines()
                assert json.loads(line)["value"] == str(n) * HTTP_WRITE_BYTES
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE

    with_records(test)


@pytest.mark.parametrize(
    "headers",
    [
        {"Connection": "keep-alive"},
        {"Sec-WebSocket-Version": "99"},
        {"Sec-WebSocket-Key": "not base64"},
    ],
)
def test_a_handshake_that_is_none_is_refused(headers: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    right = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }

    async def test(call: Records) -> None:
        await call.publish("t/records", b'{"value":"a"}\n')
        url = f"{call.base}/v1/topics/t/records"
        async with call.http.get(url, headers=call.bearer | right | headers) as answer:
            assert answer.status == 400
            assert json.loads(await answer.read())["code"] == "bad_request"

    with_records(test)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_deleted_topic_ends_its_websockets() -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b'{"value":"a"}\n')
        url = f"{call.base}/v1/topics/t/records?from=earliest&follow=true&credit=10"
        async with call.http.ws_connect(url, headers=call.bearer) as socket:
            await socket.receive_str()
            await call("DELETE", "/v1/topics/t")
            assert "deleted" in json.loads(await socket.receive_str())["error"]
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == aiohttp.WSCloseCode.INTERNAL_ERROR

    with_records(test)


def test_a_deleted_topic_ends_its_followers() -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b'{"value":"a"}\n')
        async with call.http.get(f"{call.base}/v1/topics/t/records?follow=true", headers=call.bearer) as answer:
            await answer.content.readline()
            await call("DELETE", "/v1/topics/t")
            assert "deleted" in json.loads(await answer.content.readline())["error"]
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.content.read()

    with_records(test)


def test_a_topic_without_a_name_is_not_made() -> None:
    async def test(call: Records) -> None:
        assert (await call.publish("/records", b'{"value":"x"}'))[0] == 400
        assert await call.error("POST", "/v1/topics//records", {"records": [{"value": "x"}]}) == (400, "bad_request")
        assert call.server.log.catalog.get(b"") is None

    with_records(test)


def test_a_number_that_is_not_there_is_told() -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b"".join(b'{"value":"%d"}\n' % n for n in range(9)))
        (remark,) = await call.read("t/records?from=12")
        assert remark == {
            "partition": 0,
            "first_offset": 10,
            "last_offset": 11,
            "remark": "the log ends before 12: its last record is 9",
        }
        assert await call.read("t/records?from=10") == []
        followed = await call.read("t/records?from=12&follow=true&timeout_ms=50")
        assert [line["remark"] for line in followed] == [remark["remark"]]
        (document,) = await call.read("t/records?from=12", "application/json")
        assert json.loads(document)["items"] == [remark]

    with_records(test)


def test_a_search_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "HTTP_PROGRESS_S", 0.0)

    async def test(call: Records) -> None:
        await call.publish("t/records", b"".join(b'{"value":"%d"}\n' % n for n in range(2000)))
        *lines, last = await call.read("t/records?contains=1999&progress=true")
        assert last == {"progress": {"scanned": 2000, "total": 2000}}
        assert [line["value"] for line in lines if "value" in line] == ["1999"]
        steps = [line["progress"]["scanned"] for line in lines if "progress" in line]
        assert steps == sorted(steps)
        assert len(steps) > 1
        assert (await call.read("t/records?from=-5&progress=true"))[-1] == {"progress": {"scanned": 5, "total": 5}}

    with_records(test)


class Unbounded:
    """A sender without a rate."""

    def received(self, _size_bytes: int, _records: int) -> float:
        return 0.0

    def sent(self, _size_bytes: int, _records: int) -> float:
        return 0.0

    async def pause(self, _seconds: float, /) -> None:
        raise AssertionError


async def longest_turn(work: Callable[[], Awaitable[None]]) -> float:
    """Which share of the CPU time of some work its longest turn of this loop takes; the best of three times."""
    return min([await _longest_turn(work) for _ in range(3)])


async def _longest_turn(work: Callable[[], Awaitable[None]]) -> float:
    longest_s = last_s = 0.0

    def end_turn() -> None:
        nonlocal longest_s, last_s
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s

    async def watch() -> None:
        while True:
            await asyncio.sleep(0)
            end_turn()

    gc.collect()
    gc.disable()
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    first_s = last_s = time.thread_time()
    try:
        await work()
        end_turn()
        return longest_s / (last_s - first_s)
    finally:
        gc.enable()
        watching.cancel()
        await asyncio.wait([watching])


def test_many_partitions_are_published_and_read_in_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece of lines is for all of them, and the oldest of their records is wanted first."""
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0002)  # as if there were more of them
    lines = [b'{"value":"%d","partition":%d}\n' % (number, number % 100) for number in range(1000)]

    async def test(call: Records) -> None:
        await call("POST", "/v1/topics", {"name": "t", "partitions": 100})
        await call.publish("t/records", b"".join(lines[:100]))
        api = RecordsApi(call.server, Api(call.server))

        async def publish() -> None:
            await call.publish("t/records", b"".join(lines))

        async def begin() -> None:
            pieces = read()
            assert await anext(pieces)
            await pieces.aclose()

        async def read() -> AsyncGenerator[list[Item], None]:
            starts = await api.starts(api._api.find(b"t"), Read.of(MultiDict(), ""))
            reader = Reader(starts, Unbounded(), lambda: True, call.server.log.slices, call.server.http)
            async for piece in reader.pieces(None):
                yield piece
            reader.close()

        assert await longest_turn(publish) < 1 / 4
        assert await longest_turn(begin) < 1 / 2
        found = [item async for piece in read() for item in piece]
        assert len(found) == 100 + 3 * len(lines)
        times = [item[1].timestamp_ms for item in found if isinstance(item, tuple)]
        assert times == sorted(times)


def test_a_body_without_its_type_is_told_which_there_are() -> None:
    """As curl sends one, and lines of JSON without their type."""

    async def test(call: Records) -> None:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        for body in (b"hello", b'{"value":"a"}\n{"value":"b"}\n'):
            status, problem = await call.publish("t/records", body, form)
            assert (status, problem["code"]) == (400, "bad_request")
            for told in ("application/x-ndjson", "?split=lines", "--data-binary", '{"records": [{"value": "text"}]}'):
                assert told in problem["detail"]
        status, problem = await call.publish("t/records", b'{"value":"a"}', form)
        assert (status, '{"records": [{"value": "text"}]}' in problem["detail"]) == (400, True)
        _, problem = await call("POST", "/v1/topics", b"hello", headers=call.bearer)
        assert "split" not in problem["detail"]

    with_records(test)


def test_a_search_by_pointer_tells_of_values_that_are_too_large() -> None:
    """To decode one of 16 MiB would stop everybody for two seconds."""

    async def test(call: Records) -> None:
        values = [json.dumps({"a": n, "b": "x" * n * HTTP_JSON_BYTES_MAX}).encode() for n in range(2)]
        for value in values:
            await call.publish("t/records?split=none&key=k", value, RAW)
        (remark,) = await call.read("t/records?where=/a=1")
        assert remark == {
            "partition": 0,
            "first_offset": 2,
            "last_offset": 2,
            "remark": f"a value of {len(values[1])} bytes: where looks into JSON of up to {HTTP_JSON_BYTES_MAX}",
        }
        assert await call.read("t/records?where=/a=1&key=other") == []
        assert [line["offset"] for line in await call.read("t/records?where=/a=0&limit=1")] == [1]


def test_the_status_counts_what_came_over_http() -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b'{"value":"a"}\n{"value":"b"}\n')
        await call("POST", "/v1/topics/t/records", {"records": [{"value": "c"}]})
        assert (await call("GET", "/v1/status"))[1]["records_published"] == 3

    with_records(test)


def test_a_key_that_is_no_text_is_stored_and_found_as_it_is() -> None:
    async def test(call: Records) -> None:
        assert (await call.publish("t/records?split=none&key=%FF%00%C3%A9", b"a", RAW))[0] == 200
        assert (await call.publish("t/records?split=none&key=%EF%BF%BD", b"b\xfe", RAW))[0] == 200
        (line,) = await call.read("t/records?key=%FF%00%C3%A9")
        assert base64.b64decode(line["key_base64"]) == b"\xff\0\xc3\xa9"
        (line,) = await call.read("t/records?contains=%FE")
        assert line["offset"] == 2

    with_records(test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"records": [{"value": "x"}], "partiton": 0}),
        ("", {"records": [{"value": "x", "kye": "k"}]}),
        ("?split=jsonl", {"value": "x", "kye": "k"}),
    ],
)
def test_a_misspelled_field_is_refused(path: str, body: dict[str, Any]) -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b'{"value":"a"}\n')
        headers = {"Content-Type": "application/json"}
        status, answer = await call.publish(f"t/records{path}", json.dumps(body).encode(), headers)
        assert (status, answer["code"]) == (400, "bad_request")
        assert "field" in answer["detail"]
        assert len(await call.read("t/records")) == 1

    with_records(test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("t/records?split=none", b"x"),
        ("t/records", b'{"records":[{"value":"x"}]}'),
    ],
)
def test_a_client_that_asks_first_is_told_to_send_its_body(path: str, body: bytes) -> None:
    async def test(call: Records) -> None:
        host, port = call.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/topics/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
        head += "Expect: 100-continue\r\n"
        for token, line in (("wrong", b"401"), (call.token, b"100")):
            writer.write(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
            async with asyncio.timeout(20):
                answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.split()[1] == line
            if line == b"401":
                writer.close()
                reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(body)
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()

    with_records(test)


@pytest.mark.parametrize("path", ["topics/t/records?split=none", "topics/t/records?split=length", "groups"])
def test_bodies_that_are_held_are_bounded_together(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two have come in half and fill the room; a third is told to come later, unless it is small."""
    monkeypatch.setattr("netserver.http.bodies.HTTP_BODIES_BYTES_MAX", 1 << 20)
    half = (600_000).to_bytes(4, "big") + b" " * 520_000

    async def test(call: Records) -> None:
        await call.publish("t/records?split=none", b"x", RAW)
        host, port = call.base.removeprefix("http://").split(":")
        room, writers = call.server.admin._records.room, []  # type: ignore[union-attr]
        for _ in range(2):
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {call.token}\r\n"
            writer.write(head.encode() + b"Content-Length: 600004\r\n\r\n" + half)
            writers.append(writer)
        async with asyncio.timeout(20):
            while room._held_bytes < 2 * len(half):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        status, answer = await call("POST", f"/v1/{path}", half + b" " * 80_000, headers=call.bearer)
        assert (status, answer["code"]) == (503, "busy")
        assert (await call.publish("t/records?split=none", b"x" * 100_000, RAW))[0] == 200
        for writer in writers:
            writer.transport.abort()
        async with asyncio.timeout(20):
            while room._held_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    with_records(test)


def test_a_large_record_after_its_length_costs_no_more_than_one_that_is_a_body() -> None:
    """What has come of it is not copied with each piece of it."""
    value = b"x" * (8 << 20)

    async def test(call: Records) -> None:
        async def cpu_s(path: str, body: bytes) -> float:
            before_s = time.thread_time()
            assert (await call.publish(path, body, RAW))[0] == 200
            return time.thread_time() - before_s

        whole_s = min([await cpu_s("t/records?split=none", value) for _ in range(3)])
        body = len(value).to_bytes(4, "big") + value
        assert min([await cpu_s("t/records?split=length", body) for _ in range(3)]) < 4 * whole_s

    with_records(test)
