"""Publishes of one record over HTTP: what their answers say, whatever the connection is, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime

import pytest

from tests.unit.netserver.admin.test_admin_http import Place, request_of, with_place

pytestmark = pytest.mark.whole

WHOLE = "POST /v1/topics/t/records?split=none"


async def answer_of(place: Place, *pieces: bytes) -> tuple[str, dict[str, str], bytes, bool]:
    """(status line, fields by their names in small letters, body, whether the connection is kept) of an answer."""
    reader, writer = await place.connect()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        named = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        body = await reader.readexactly(int(named["content-length"]))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            is_kept = (await reader.readline()).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            is_kept = False
    return line, named, body, is_kept


@pytest.mark.parametrize(
    ("version", "connection", "is_kept"),
    [("1.1", "", True), ("1.1", "close", False), ("1.0", "", False), ("1.0", "keep-alive", True)],
)
def test_the_answer_to_one_record(version: str, connection: str, is_kept: bool) -> None:
    """The same on each kind of connection, which is closed or kept as was asked for."""

    async def test(place: Place) -> None:
        rest = "Content-Length: 2\r\n" + (f"Connection: {connection}\r\n" if connection else "")
        request = request_of(place, WHOLE, rest).replace(b"HTTP/1.1", f"HTTP/{version}".encode()) + b"ab"
        line, fields, body, kept = await answer_of(place, request)
        assert line == f"HTTP/{version} 200 OK"
        assert fields["content-type"] == "application/json; charset=utf-8"
        assert parsedate_to_datetime(fields["date"]).year > 2000
        assert fields["server"]
        part = {"partition": 0, "first_offset": 1, "last_offset": 1, "records": 1}
        assert json.loads(body) == {"schema": 1, "records": 1, "partitions": [part]}
        assert kept is is_kept

    with_place(test)


def with_limit(test: Callable[[Place, int], Awaitable[None]]) -> None:
    """Runs a test with a topic ``t`` whose records are small."""

    async def limited(place: Place) -> None:
        body = json.dumps({"name": "t", "config": {"record_bytes_max": "1024"}}).encode()
        request = request_of(place, "POST /v1/topics", f"Content-Length: {len(body)}\r\n") + body
        assert await place.status(request) in (200, 201)
        await test(place, 1024)

    with_place(limited)


def test_a_record_that_comes_whole_or_in_pieces_has_the_same_bound() -> None:
    async def test(place: Place, most: int) -> None:
        for size in (0, 1, most, most + 1):
            head = request_of(place, WHOLE, f"Content-Length: {size}\r\n")
            value = b"x" * size
            for pieces in ((head + value,), (head, value[: size // 2], value[size // 2 :])):
                line, _, body, _ = await answer_of(place, *filter(None, pieces))
                assert ("200" in line) is (size <= most)
                assert (f"a record of {size} bytes; the limit is {most}" in body.decode()) is (size > most)

    with_limit(test)


def test_what_an_address_says_is_the_same_each_time() -> None:
    """It is worked out once, refusals again each time."""

    async def test(place: Place) -> None:
        for number in range(1, 4):
            asked = request_of(place, f"{WHOLE}&key=%FF&partition=0", "Content-Length: 1\r\n") + b"a"
            _, _, body, _ = await answer_of(place, asked)
            assert json.loads(body)["partitions"][0]["first_offset"] == number
            for query in ("split=xml", "split=none&partition=-1", "split=none&other=1"):
                refused = request_of(place, f"POST /v1/topics/t/records?{query}", "Content-Length: 1\r\n") + b"a"
                line, *_ = await answer_of(place, refused)
                assert " 400 " in line

    with_place(test)


def test_single_records_of_any_size_fill_write_batches() -> None:
    """Sent without waiting: they share write batches, and none of them is lost where one is full."""
    sizes = [(number * 7919) % 9000 for number in range(300)]

    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        for size in sizes:
            writer.write(request_of(place, WHOLE, f"Content-Length: {size}\r\n") + b"x" * size)
        async with asyncio.timeout(20):
            for number in range(1, len(sizes) + 1):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                assert json.loads(await reader.readexactly(length))["partitions"][0]["last_offset"] == number
        writer.write(request_of(place, f"GET /v1/topics/t/records?format=raw&limit={len(sizes)}"))
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n\r\n")
            body = b""
            while chunk := int(await reader.readline(), 16):
                body += await reader.readexactly(chunk)
                await reader.readline()
        assert body == b"".join(size.to_bytes(4, "big") + b"x" * size for size in sizes)

    with_place(test)
