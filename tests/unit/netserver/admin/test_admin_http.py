"""Admin HTTP under peers that speak no HTTP, say nothing, or come in crowds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import Awaitable, Callable

import pytest

from netserver.access.quotas import QuotaReached
from netserver.admin import http as admin_http
from netserver.admin.places import NoPlace, Places
from netserver.app import Server
from netserver.shell.listener import ConnectionGate
from netserver.testing import running
from tests.echo import ALONE, Echo, run

pytestmark = pytest.mark.whole

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Place:
    """A server and raw connections to its admin listener."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self.server.admin_address
        assert address is not None
        reader, writer = await asyncio.open_connection(address.host, address.port)
        self.writers.append(writer)
        return reader, writer

    async def status(self, request: bytes) -> int:
        """The status of the answer to these bytes on a connection of their own."""
        reader, writer = await self.connect()
        writer.write(request)
        async with asyncio.timeout(20):
            line = await reader.readline()
        writer.close()
        return int(line.split()[1])


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait for the end of a connection on which nothing was answered: it may be a reset."""
    with contextlib.suppress(ConnectionError):
        assert not await reader.read()


def with_place(test: Callable[[Place], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(None, ALONE, {"echo": Echo()}) as server:
            place = Place(server)
            try:
                await test(place)
            finally:
                for writer in place.writers:
                    writer.transport.abort()

    run("uvloop", main())


def test_a_token_of_any_bytes_is_just_wrong(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place) -> None:
        for token in (b"\xff", b"\xe9", b"\xed\xa0\x80", b"x" * 8000):
            head = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token
            assert await place.status(head + b"\r\n\r\n") == 401

    with_place(test)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\n\xff\xfe: x\r\n\r\n",
    ],
)
def test_what_is_no_request_is_one_line_in_the_log(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place) -> None:
        assert await place.status(request_) == 400
        assert await place.status(HEALTH) == 200

    with_place(test)
    (found,) = [record for record in caplog.records if record.name.startswith(admin_http.__name__)]
    assert found.levelno == logging.WARNING
    assert "\n" not in logging.Formatter().format(found)


def test_who_says_nothing_is_closed_and_the_rest_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_http, "ADMIN_CONNECTIONS_MAX", 3)
    monkeypatch.setattr(admin_http, "ADMIN_KEEPALIVE_S", 0.5)

    async def test(place: Place) -> None:
        silent = [await place.connect() for _ in range(5)]
        silent[0][1].write(HEALTH[:-2])  # a head that never ends
        assert await place.status(HEALTH) == 200  # in its turn: when those in front have been closed
        async with asyncio.timeout(20):
            for reader, _ in silent:
                await ended(reader)

    with_place(test)


def held(kind: str) -> bytes:
    """What somebody sends who wants to keep a connection: nothing, half a head, a body that never comes, or a request
    whose answer nobody reads."""
    rest = b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    form = b"Content-Type: application/x-www-form-urlencoded\r\n\r\nkey="
    return {
        "silent": b"",
        "half a head": HEALTH[:-2],
        "half a body": b"POST /v1/topics" + rest + b"\r\n",
        "half a login": b"POST /console/login" + rest + form,
        "half a form": b"POST /console/topics" + rest + form,
        "answered": HEALTH,
    }[kind]


@pytest.mark.parametrize("kind", ["silent", "half a head", "half a body", "half a login", "half a form", "answered"])
def test_health_is_answered_however_many_connections_are_held(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_http, "ADMIN_KEEPALIVE_S", 1000.0)  # nobody's patience comes to an end

    async def test(place: Place) -> None:
        for _ in range(3 * admin_http.ADMIN_CONNECTIONS_MAX):
            _, writer = await place.connect()
            writer.write(held(kind))
            await writer.drain()
            if kind.startswith("half a"):
                await asyncio.sleep(0)  # it is in work before the next one comes
        assert await place.status(HEALTH) == 200

    with_place(test)


def test_requests_in_work_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be are in work; one more is told to come later, a health check is answered."""
    monkeypatch.setattr(admin_http, "ADMIN_REQUESTS_MAX", 3)
    monkeypatch.setattr(admin_http, "ADMIN_REQUESTS_OPERATORS", 1)

    async def test(place: Place) -> None:
        writers = [(await place.connect())[1] for _ in range(4)]
        for writer in writers:
            writer.write(request_of(place, "POST /v1/topics", "Content-Length: 100\r\n") + b"{")
        status = request_of(place, "GET /v1/status")
        async with asyncio.timeout(20):
            while await place.status(status) != 503:
                pass
        assert await place.status(HEALTH) == 200
        writers[0].transport.abort()
        async with asyncio.timeout(20):
            while await place.status(status) == 503:
                pass

    with_place(test)


def test_who_goes_while_a_refusal_waits_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place) -> None:
        for _ in range(20):
            place.server.access.guard.failed("127.0.0.1", "wrong")
        _, writer = await place.connect()
        writer.write(
            HEALTH.replace(b"/healthz", b"/v1/status").replace(b"\r\n\r\n", b"\r\nAuthorization: wrong\r\n\r\n")
        )
        before = place.server.access.audit.refused
        while place.server.access.audit.refused == before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        writer.transport.abort()
        admin = place.server.admin
        assert admin is not None
        async with asyncio.timeout(20):
            while admin.connection_count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert await place.status(HEALTH) == 200

    with_place(test)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_http, "ADMIN_CONNECTIONS_FULL", 3)
    monkeypatch.setattr(admin_http, "ADMIN_CONNECTIONS_MAX", 4)


def request_of(place: Place, line: str, rest: str = "") -> bytes:
    """A request of the operator."""
    admin = place.server.admin
    assert admin is not None
    return f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {admin._token}\r\n{rest}\r\n".encode()


FOLLOW = "GET /v1/topics/t/records?follow=true"


@pytest.mark.parametrize("kind", ["reader", "publisher"])
def test_requests_that_last_take_no_places_of_the_admin(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_places(monkeypatch)

    async def test(place: Place) -> None:
        place.server.log.catalog.get_or_create(b"t")
        publish = request_of(place, "POST /v1/topics/t/records?split=lines", "Content-Length: 10\r\n") + b"a\n"
        for _ in range(10):
            reader, writer = await place.connect()
            writer.write(request_of(place, FOLLOW) if kind == "reader" else publish)
            if kind == "reader":
                assert await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(20):
            assert await place.status(HEALTH) == 200
            assert await place.status(request_of(place, "GET /v1/status")) == 200
            assert await place.status(request_of(place, "GET /v1/status")) == 200

    with_place(test)


def test_readers_have_a_share_of_the_connections_and_are_told_when_it_is_used_up() -> None:
    async def test(place: Place) -> None:
        place.server.log.catalog.get_or_create(b"t")
        place.server.gate.connections_max = 8
        first = [await place.connect() for _ in range(2)]
        for reader, writer in first:
            writer.write(request_of(place, FOLLOW))
            assert b" 200 " in await reader.readline()
        assert place.server.gate.connections == 2
        reader, writer = await place.connect()
        writer.write(request_of(place, FOLLOW))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 429 " in head
        assert b"Retry-After: 1\r\n" in head
        first[0][1].transport.abort()
        while place.server.gate.connections != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await place.status(request_of(place, FOLLOW)) == 200

    with_place(test)


def test_places_are_shared_by_hosts_and_are_not_all_of_the_connections() -> None:
    gate = ConnectionGate(8)
    places = Places(gate)
    leave = [places.take(host) for host in ("a", "a", "b")]
    with pytest.raises(QuotaReached):
        places.take("a")
    leave.append(places.take("c"))
    with pytest.raises(NoPlace):
        places.take("d")
    for give_back in leave:
        give_back()
    assert (gate.connections, places.taken) == (0, {})
    gate.connections = 8
    with pytest.raises(NoPlace):
        places.take("a")


def test_a_request_in_work_gives_way_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    few_places(monkeypatch)

    async def test(place: Place) -> None:
        admin = place.server.admin
        assert admin is not None
        head = b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + admin._token.encode()
        reader, writer = await place.connect()
        writer.write(head + b"\r\nContent-Length: 12\r\n\r\n")
        others = [await place.connect() for _ in range(6)]
        assert await place.status(HEALTH) == 200
        writer.write(b'{"name":"a"}')
        assert (await reader.readline()).split()[1] == b"201"
        await ended(others[0][0])

    with_place(test)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "x-of-ours"])
@pytest.mark.parametrize("token", [True, False])
def test_bodies_are_not_unpacked(coding: str, token: bool) -> None:
    packed = zlib.compress(bytes(100 << 20), wbits=31 if coding == "gzip" else 15)

    async def test(place: Place) -> None:
        admin = place.server.admin
        assert admin is not None
        head = f"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: {coding}\r\n"
        head += f"Content-Length: {len(packed)}\r\nAuthorization: Bearer {admin._token if token else 'x'}\r\n\r\n"
        before_s = time.thread_time()
        assert await place.status(head.encode() + packed) == (415 if token else 401)
        assert time.thread_time() - before_s < 0.1  # unpacking it takes 0.2

    with_place(test)


def test_patterns_of_others_are_short(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place) -> None:
        for glob, status in (("a*" * 128, 200), ("a*" * 129, 400), ("a" * 5000, 200), ("[" * 257, 400)):
            request = f"GET /metrics/topics?topic={glob} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert await place.status(request.encode()) == status

    with_place(test)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_connection_with_a_request_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_http, "ADMIN_KEEPALIVE_S", 0.2)

    async def test(place: Place) -> None:
        http = place.server.admin
        assert http is not None
        token = http._token.encode()
        reader, writer = await place.connect()
        head = b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token
        writer.write(head + b"\r\nContent-Length: 12\r\n\r\n")
        late, _ = await place.connect()
        async with asyncio.timeout(20):
            await ended(late)
            writer.write(b'{"name":"a"}')
            assert (await reader.readline()).split()[1] == b"201"

    with_place(test)


def test_the_end_does_not_wait_for_idle_connections() -> None:
    async def main() -> None:
        async with running(None, ALONE, {"echo": Echo()}) as server:
            place = Place(server)
            asking, silent = [await place.connect() for _ in range(5)], [await place.connect() for _ in range(5)]
            for reader, writer in asking:
                writer.write(HEALTH)
                assert (await reader.readline()).split()[1] == b"200"
            started = time.monotonic()
        assert time.monotonic() - started < 5  # the promise of every stop
        for reader, _ in silent:
            await ended(reader)
        for writer in place.writers:
            writer.transport.abort()

    run("uvloop", main())
