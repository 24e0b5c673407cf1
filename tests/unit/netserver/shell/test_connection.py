"""The TCP shell against real sockets, with asyncio's loop and uvloop; the protocol is the one of tests/echo.py."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from netserver.app import Server
from netserver.limits import OWN_BUFFER_MIN_BYTES, READ_BUFFER_BYTES
from netserver.shell import connection as shell_module
from netserver.shell.connection import Connection
from netserver.testing import running
from tests.echo import ALONE, FRAME_BYTES, LOOPS, Echo, frame, run, until
from tests.echo_place import Place, ended, with_server

pytestmark = [pytest.mark.whole, pytest.mark.parametrize("loop", LOOPS)]


def test_frames_of_all_sizes_come_back_however_they_are_cut(loop: str) -> None:
    source = random.Random(7)
    sizes = [1, 2, 100, OWN_BUFFER_MIN_BYTES, READ_BUFFER_BYTES - 5, READ_BUFFER_BYTES, 300_000, 5 << 20, 10, 70_000]
    data = b"".join(frame(b"e" + source.randbytes(size - 1)) for size in [*sizes, *[100] * 3000, *sizes])

    async def test(place: Place) -> None:
        reader, writer = await place.connect()

        async def send() -> None:
            position = 0
            while position < len(data):
                size = source.choice([1, 7, 1000, 64 * 1024, 1 << 20])
                writer.write(data[position : position + size])
                position += size
                await writer.drain()
            writer.write_eof()

        task = asyncio.create_task(send())
        assert await ended(reader) == data
        await task
        assert dict(place.counters.closed) == {"peer": 1}

    with_server(loop, test)


def test_one_byte_at_a_time(loop: str) -> None:
    data = b"".join(frame(b"e" + bytes(size)) for size in (0, 1, 5))

    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(len(data)) == data

    with_server(loop, test)


def test_protocol_error_ends_only_its_connection_after_the_answers_before_it(loop: str) -> None:
    async def test(place: Place) -> None:
        other_reader, other_writer = await place.connect()
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        writer.write(frame(b"e1") + frame(b"l2") + (FRAME_BYTES + 1).to_bytes(4, "big") + frame(b"e3"))
        assert await reader.readexactly(6) == frame(b"e1")
        await until(lambda: session.ending)
        writer.write(bytes(2_000_000))  # nobody reads it: it must not turn the answer into a reset
        session.answer_later()
        assert await ended(reader) == frame(b"l2")
        assert dict(place.counters.protocol_errors) == {"frame_size": 1}
        other_writer.write(frame(b"e4"))
        assert await other_reader.readexactly(6) == frame(b"e4")
        writer.close()
        await until(lambda: place.counters.closed["protocol"] == 1)

    with_server(loop, test)


def test_error_in_a_session_is_logged_and_ends_only_its_connection(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place) -> None:
        other_reader, other_writer = await place.connect()
        reader, writer = await place.connect()
        writer.write(frame(b"x"))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert place.counters.session_errors == 1
        other_writer.write(frame(b"e4"))
        assert await other_reader.readexactly(6) == frame(b"e4")
        assert dict(place.counters.closed) == {"error": 1}

    with caplog.at_level(logging.ERROR, "netserver.shell.connection"):
        with_server(loop, test)
    assert "a defect" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("method", ["eof", "resume_output", "closed", "drain"])
def test_errors_in_the_other_callbacks_are_contained_too(loop: str, method: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))

        def fail() -> None:
            session.gone += method == "closed"
            raise RuntimeError("a defect")

        setattr(session, method, fail)
        match method:
            case "eof":
                writer.write_eof()
            case "resume_output":
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(frame(b"w30000000"))
                await until(lambda: session.connection.writable is False)
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(40_000_000)
            case "closed":
                writer.close()
            case "drain":
                session.connection.drain()
        await until(lambda: place.counters.connections == 0)
        assert place.counters.session_errors == 1

    with_server(loop, test)


def test_a_session_that_cannot_be_made(loop: str) -> None:
    async def test(place: Place) -> None:
        place.echo.fail = True
        reader, _ = await place.connect()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert place.counters.session_errors == 1
        place.echo.fail = False
        reader, writer = await place.connect()
        writer.write(frame(b"e"))
        assert await reader.readexactly(5) == frame(b"e")

    with_server(loop, test)


def test_held_connection_parses_its_rest_on_release_and_then_reads_on(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        writer.write(frame(b"e1") + frame(b"h") + frame(b"e2") + frame(b"h") + frame(b"e3"))
        assert await reader.readexactly(6) == frame(b"e1")
        await until(lambda: session.connection.held)
        writer.write(frame(b"e4"))
        writer.write_eof()
        session.connection.hold("another")
        session.connection.release("test")
        assert session.connection.hold_reasons == ["another"]
        session.connection.release("another")
        assert await reader.readexactly(6) == frame(b"e2")
        await until(lambda: session.connection.held)
        calls = session.received_calls
        session.connection.release("no such reason")
        session.connection.release("test")
        assert await ended(reader) == frame(b"e3") + frame(b"e4")
        assert session.received_calls > calls

    with_server(loop, test)


def test_hold_and_release_within_one_call_of_received(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        plain = session.handle

        def handle(whole: bytes) -> None:
            plain(whole)
            if whole == frame(b"h"):
                session.connection.release("test")

        def received(data: memoryview, length: int) -> int:
            size = int.from_bytes(data[:4], "big")
            handle(bytes(data[: 4 + size]))
            return 4 + size

        session.received = received  # type: ignore[method-assign]
        writer.write(frame(b"h") + frame(b"e2"))
        assert await reader.readexactly(6) == frame(b"e2")

    with_server(loop, test)


def test_a_rest_larger_than_the_shared_buffer_survives_a_hold(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        big = frame(b"e" + bytes(600_000))
        many = b"".join(frame(b"e%07d" % number) for number in range(50_000))
        writer.write(big + frame(b"h") + many)
        received = asyncio.create_task(reader.readexactly(len(big)))
        await until(lambda: session.connection.held)
        assert await received == big
        session.connection.release("test")
        assert await reader.readexactly(len(many)) == many

    with_server(loop, test)


def test_writes_after_the_end_are_ignored(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        session.connection.close("enough")
        session.connection.write(b"too late")
        session.connection.close("again")
        assert await ended(reader) == b""
        writer.close()
        await until(lambda: session.gone)
        session.connection.write(b"much too late")
        session.connection.abort("again")
        assert dict(place.counters.closed) == {"server": 1}

        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        session.connection.transport.abort()  # lost, but connection_lost has not been called yet
        session.connection.write(b"into the void")
        session.connection.hold("test")
        await until(lambda: session.gone)

    with_server(loop, test)


def test_output_that_ends_before_input(loop: str) -> None:
    """After ``end_output`` the peer sees the end, and what it still sends is parsed as before."""

    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        session.connection.write(b"last")
        session.connection.end_output()
        session.connection.end_output()
        session.connection.write(b"never sent")
        assert await ended(reader) == b"last"
        writer.write(frame(b"l1"))
        await until(lambda: session.later == [frame(b"l1")])
        assert not session.connection.closed
        session.later.clear()
        writer.write_eof()
        await until(lambda: session.gone)
        assert dict(place.counters.closed) == {"peer": 1}

        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        session.connection.end_output()
        session.connection.close()
        assert await ended(reader) == b""
        writer.close()
        await until(lambda: session.gone)

    with_server(loop, test)


def test_publishes_are_acknowledged_in_order_and_counted(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        frames = b"".join(frame(b"s%d" % number) for number in range(1000))
        writer.write(frames)
        writer.write_eof()
        assert await ended(reader) == frames
        assert place.counters.records_published == 2000
        assert place.counters.published_bytes == 2 * len(frames)
        histogram = place.counters.ack_seconds["always"]
        assert sum(histogram.counts) == 2000
        assert 0 < histogram.total / 2000 < 10

    with_server(loop, test)


def test_connection_lost_with_publishes_outstanding(loop: str) -> None:
    async def test(place: Place) -> None:
        for _ in range(20):
            _, writer = await place.connect()
            writer.write(frame(b"s" + bytes(10_000)) * 50)
            await writer.drain()
            writer.transport.abort()
        await until(lambda: place.counters.connections == 0)
        await until(lambda: place.server.shell.pressure.total == 0)
        assert place.counters.session_errors == 0

    with_server(loop, test)


def test_drain_answers_what_is_outstanding_and_reads_no_more(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        idle_reader, _ = await place.connect()
        writer.write(frame(b"l1"))
        await until(lambda: session.later)
        draining = asyncio.create_task(place.server.listeners["echo"].drain(asyncio.get_running_loop().time() + 3600))
        assert await ended(idle_reader) == b""
        writer.write(frame(b"e2"))
        await asyncio.sleep(0.05)
        session.answer_later()
        assert await ended(reader) == frame(b"l1")
        await place.close()
        await draining  # without waiting for its end
        assert dict(place.counters.closed) == {"drain": 2}

    with_server(loop, test)


def test_drain_gives_up_those_that_do_not_finish(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        writer.write(frame(b"l1"))
        await until(lambda: session.later)
        await place.server.listeners["echo"].drain(asyncio.get_running_loop().time() + 0.1)
        await until(lambda: session.gone)

    with_server(loop, test)


def test_guarded_callbacks_end_their_connection_only_and_nothing_after_the_end(loop: str) -> None:
    async def test(place: Place) -> None:
        session = await place.session(await place.connect())
        calls: list[int] = []
        session.connection.guarded(lambda: calls.append(1))()
        later = session.connection.guarded(lambda: calls.append(2))
        session.connection.guarded(lambda: 1 // 0)()
        later()
        assert calls == [1]
        assert place.counters.session_errors == 1

    with_server(loop, test)


def test_ipv6_peers_are_named_in_brackets(loop: str) -> None:
    async def main() -> None:
        echo = Echo()
        async with running(settings=ALONE, protocols={"echo": echo}) as server:
            connection = Connection(server_services(server), echo(server_services(server)))
            assert connection.peer == "?"

    def server_services(server: Server) -> shell_module.Services:
        return shell_module.Services(server.log, server.config, server.counters["echo"], server.shell)

    run(loop, main())
