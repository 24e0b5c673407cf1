"""Hostile and careless input of the JSON streaming protocol: refused, at little cost, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

import pytest

from netserver.reliably.limits import LINE_BYTES_MAX, LONG_LINE_BYTES_MAX, STATE_DIGITS_MAX
from tests.reliably_peer import Peer, Place, place, run, values_of

pytestmark = pytest.mark.whole

START: dict[str, Any] = {"uuid": "u", "params": {"count": 5}}


async def is_well(here: Place) -> None:
    """Somebody else is served; what hangs fails, a machine that is busy does not."""
    async with asyncio.timeout(30):
        peer = await here.peer({"uuid": "innocent", "params": {"count": 100}})
        assert len(values_of(await peer.lines(100))) == 100
        await peer.close()


async def write_slowly(peer: Peer, data: bytes, piece_bytes: int) -> None:
    for at in range(0, len(data), piece_bytes):
        peer.writer.write(data[at : at + piece_bytes])
        await peer.writer.drain()


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b'{"x":' * 12_000,
        b'{"state":NaN}',
        b'{"state":-Infinity}',
        b'{"state":' + b"9" * 60_000 + b".5}",
        b'{"uuid":"u","state":' + b"9" * 60_000 + b"}",
        b'{"uuid":"u","params":{"count":1e999999999}}',
        b'{"uuid":"u","params":{"count":1000000000}}',
        b'{"uuid":"\\ud800","params":{"count":5}}',
        b'{"uuid":"u","params":{"topic":"\\udfff","offset":0}}',
        b'{"uuid":"' + b"x" * 60_000 + b'","params":{"count":5}}',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\0}\0",
        b"\0" * 60_000,
        b'{"\xc0\xaf":1}',
        b'{"state":"' + b"9" * (STATE_DIGITS_MAX + 1) + b'"}',
        b'{"x":"' + b"y" * LINE_BYTES_MAX + b'"}',
    ],
    ids=range(17),
)
def test_one_bad_line(line: bytes) -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(line + b"\n")
            await peer.error()
            await is_well(here)
            assert here.server.counters["json"].session_errors == 0

    run(test())


@pytest.mark.parametrize("begin", [b"", b'{"uuid":"u', b'{"state":"1'], ids=["zeros", "text", "digits"])
def test_a_line_of_64_mib(begin: bytes) -> None:
    """It is refused at the limit; what comes behind it is thrown away as it comes."""

    async def test() -> None:
        async with place() as here:
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            peer = await here.peer()
            piece = (b"1" if begin.startswith(b'{"state') else b"x") * 65536
            peer.writer.write(begin)
            for _ in range(1024):
                peer.writer.write(piece)
                await peer.writer.drain()
            assert await peer.error() == "Line too long"
            assert here.server.counters["json"].protocol_errors["line_size"] == 1
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
            assert grown_kib < 40 * 1024
            await is_well(here)

    run(test())


def test_who_goes_on_sending_after_an_error_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.reliably.session.DRAIN_S", 0.3)
    monkeypatch.setattr("netserver.shell.connection.LINGER_S", 0.1)

    async def test() -> None:
        async with place() as here:
            peer = await here.peer(b"oops\n")
            with contextlib.suppress(ConnectionError):
                while here.server.shell.connections:
                    peer.writer.write(b"more\n")
                    await peer.writer.drain()
                    await asyncio.sleep(0.01)
            await here.until(lambda: not here.server.shell.connections)

    run(test())


def test_the_error_for_a_long_line_arrives() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(b"x" * (LINE_BYTES_MAX + 1))
            assert await peer.error() == "Line too long"
            digits = await here.peer(b'{"state":"' + b"1" * LONG_LINE_BYTES_MAX)
            assert await digits.error() == "Line too long"

    run(test())


def test_a_long_state_byte_by_byte_and_in_pieces() -> None:
    async def test() -> None:
        async with place() as here:
            digits = "1" * 300_000
            peer = await here.peer()
            await write_slowly(peer, b'{"state":"', 1)
            await write_slowly(peer, digits.encode() + b'"}\n', 997)
            line = await peer.line()
            assert line == b'{"data":"' + b"2" * 300_000 + b'"}\n'
            await is_well(here)

    run(test())


def test_a_request_byte_by_byte() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer()
            for byte in b'{"uuid":"u","params":{"count":5}}\r\n':
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()
                await asyncio.sleep(0.001)
            assert len(await peer.lines(5)) == 5

    run(test())


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b'{"uuid":"u","params":{"count":65535}}\n',
        b'{"uuid":"u","state":0}\n',
        b'{"uuid":"u","ack":0}\n',
    ],
)
def test_a_flood_of_requests(line: bytes) -> None:
    """Two megabytes of them on one connection; the others go on, and memory stays."""

    async def test() -> None:
        async with place({"stateless_bytes_per_s": 100_000}) as here:
            peer = await here.peer({"uuid": "u", "params": {"count": 60000}})
            await peer.line()

            async def flood() -> None:
                for _ in range(32):
                    peer.writer.write(line * (65536 // len(line)))
                    await peer.writer.drain()

            flooding = asyncio.ensure_future(flood())
            reading = asyncio.ensure_future(peer.reader.read())
            for _ in range(5):
                await is_well(here)
            await asyncio.wait_for(flooding, 30)
            assert here.server.counters["json"].session_errors == 0
            assert len(here.sessions) <= 2
            reading.cancel()

    run(test())


def test_a_flood_of_sessions_by_one_connection() -> None:
    async def test() -> None:
        async with place({"sessions_max": 3000}) as here:
            lines = b"".join(b'{"uuid":"u%d","params":{"count":65535}}\n' % n for n in range(5000))
            peer = await here.peer(lines)
            reading = asyncio.ensure_future(peer.reader.read())
            await here.until(lambda: len(here.sessions) == 3000)
            text = (await reading).splitlines()[-1]
            assert text == b'{"error":"Too many sessions (3000); try again later"}'
            assert sum(1 for info in here.sessions if info.expires_in_s is None) == 0
            total = sum(info.last_id for info in here.sessions)
            assert total < 20_000  # sessions that were left at once have made next to nothing

    run(test())


def test_a_client_that_never_reads_its_stateless_stream() -> None:
    async def test() -> None:
        async with place({"stateless_bytes_per_s": 1 << 40}) as here:
            peers = [await here.peer({"state": "9" * 50_000}, limit=1024) for _ in range(5)]
            counters = here.server.counters["json"]
            sent = -1
            while sent != counters.delivered_bytes:
                sent = counters.delivered_bytes
                await asyncio.sleep(0.2)
            assert counters.delivered_bytes < 5 * (16 << 20)
            await is_well(here)
            assert len(peers) == 5

    run(test())
