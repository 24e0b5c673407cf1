"""The TCP shell against real sockets, with asyncio's loop and uvloop; the protocol is the one of tests/echo.py."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable

import pytest

from netserver import connection as shell_module
from netserver.app import Server
from netserver.connection import Connection
from netserver.limits import DISCARD_BYTES, OUTPUT_STOP_BYTES, OWN_BUFFER_MIN_BYTES, READ_BUFFER_BYTES
from netserver.testing import running
from tests.echo import ALONE, FRAME_BYTES, LOOPS, Echo, EchoSession, frame, run, until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
pytestmark = pytest.mark.parametrize("loop", LOOPS)


class Place:
    """A running server with the echo protocol, and clients of it."""

    def __init__(self, server: Server, echo: Echo) -> None:
        self.server = server
        self.echo = echo
        self.counters = server.counters["echo"]
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Streams:
        address = self.server.addresses["echo"]
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1 << 24)
        self._writers.append(writer)
        return reader, writer

    async def session(self, streams: Streams) -> EchoSession:
        """The server's end of a connection."""
        host, port = streams[1].get_extra_info("sockname")
        peer = f"{host}:{port}"
        await until(lambda: any(session.connection.peer == peer for session in self.echo.sessions))
        return next(session for session in self.echo.sessions if session.connection.peer == peer)

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await until(lambda: self.counters.connections == 0)


def with_server(
    loop: str, test: Callable[[Place], Awaitable[None]], settings: dict[str, dict[str, object]] | None = None
) -> None:
    async def main() -> None:
        echo = Echo()
        async with running(settings={**ALONE, **(settings or {})}, protocols={"echo": echo}) as server:
            place = Place(server, echo)
            try:
                await test(place)
            finally:
                await place.close()
            assert (server.shell.budget.reserved, server.shell.budget.kept) == (0, 0)
            assert server.shell.pressure.total == 0
            assert server.shell.pressure.active == 0
            assert all(session.gone == 1 for session in echo.sessions)

    run(loop, main())


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that still comes until the server closes."""
    return await asyncio.wait_for(reader.read(-1), 10)


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


def test_memory_follows_the_bytes_that_came_not_those_announced(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        writer.write(FRAME_BYTES.to_bytes(4, "big") + b"e" + bytes(99_999))
        await writer.drain()
        session = await place.session((reader, writer))
        await until(lambda: session.connection.bytes_in == 100_004)
        await until(lambda: session.connection.reserved == 4 + FRAME_BYTES)
        assert session.connection.receive_buffer_bytes < 4 * 100_004
        writer.write(bytes(FRAME_BYTES - 100_000))
        assert await reader.readexactly(4 + FRAME_BYTES)
        assert place.server.shell.budget.reserved == 0

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

    with caplog.at_level(logging.ERROR, "netserver.connection"):
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


def test_peer_that_never_closes_is_given_up(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_module, "LINGER_S", 0.05)
    monkeypatch.setattr(shell_module, "FLUSH_S", 0.2)

    async def test(place: Place) -> None:
        first, second = await place.connect(), await place.connect()
        reading, stalled = await place.session(first), await place.session(second)
        reading.connection.close()
        started = time.monotonic()
        stalled.connection.write(bytes(30_000_000))
        second[1].transport.pause_reading()  # type: ignore[attr-defined]
        stalled.connection.close()
        await until(lambda: place.counters.connections == 0)
        assert 0.2 <= time.monotonic() - started < 5

    with_server(loop, test)


def test_peer_that_floods_after_the_end_is_cut_off(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        session.connection.close()

        async def flood() -> None:
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()

        with pytest.raises(ConnectionError):
            await flood()
        assert session.connection.bytes_in < 4 * DISCARD_BYTES
        await until(lambda: session.gone)

    with_server(loop, test)


def test_writing_from_resume_output_uvloop_498(loop: str) -> None:
    """A session that sends history writes each time the output has drained."""
    total = 30_000_000

    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        left = total

        def more() -> None:
            nonlocal left
            while left and session.connection.writable:
                size = min(left, 100_000)
                left -= size
                session.connection.write(bytes(size))

        session.resume_output = more  # type: ignore[method-assign]
        more()
        assert len(await reader.readexactly(total)) == total

    with_server(loop, test)


def test_output_marks(loop: str) -> None:
    """Above the high-water mark the session is told; a peer that only asks is not read any more."""

    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        asked = 0
        while not session.connection.held:
            writer.write(frame(b"w100000") * 10)
            asked += 1_000_000
            await asyncio.wait([asyncio.create_task(writer.drain())], timeout=0.05)
            await asyncio.sleep(0.001)
            assert asked < 2_000_000_000
        assert session.connection.writable is False
        assert session.connection.hold_reasons == ["output"]
        waiting = session.connection.transport.get_write_buffer_size()
        assert OUTPUT_STOP_BYTES < waiting < 64 * OUTPUT_STOP_BYTES
        writer.write_eof()
        assert len(await ended(reader)) == asked
        assert session.resumed >= 1

    with_server(loop, test)


def test_half_sent_frames_share_a_budget_that_the_rest_does_not_feel(loop: str) -> None:
    half = FRAME_BYTES.to_bytes(4, "big") + b"e" + bytes(FRAME_BYTES // 2)

    async def test(place: Place) -> None:
        budget = place.server.shell.budget
        clients = [await place.connect() for _ in range(6)]
        for _, writer in clients:
            writer.write(half)
        await until(lambda: budget.waiting)
        assert budget.reserved <= budget.total_bytes_max + FRAME_BYTES + 4
        small_reader, small_writer = await place.connect()
        small_writer.write(frame(b"e" + bytes(60_000)))
        assert len(await small_reader.readexactly(60_005)) == 60_005

        async def finish(client: Streams) -> None:
            client[1].write(bytes(4 + FRAME_BYTES - len(half)))
            assert len(await client[0].readexactly(4 + FRAME_BYTES)) == 4 + FRAME_BYTES

        await asyncio.gather(*(finish(client) for client in clients))
        assert budget.reserved == 0
        assert not budget.waiting

    with_server(loop, test, {"server": {"receive_bytes_max": "10 MiB"}})


def test_half_sent_frames_without_progress_are_closed(loop: str) -> None:
    half = FRAME_BYTES.to_bytes(4, "big") + b"e" + bytes(FRAME_BYTES // 2)

    async def test(place: Place) -> None:
        shell = place.server.shell
        clients = [await place.connect() for _ in range(5)]
        for _, writer in clients:
            writer.write(half)
        await until(lambda: shell.budget.waiting)
        tiny_reader, tiny_writer = await place.connect()
        tiny_writer.write(b"\0\0")
        tiny = await place.session((tiny_reader, tiny_writer))
        await until(lambda: tiny.connection.bytes_in == 2)
        idle = await place.session(await place.connect())

        now = time.monotonic()
        shell.sweep(now, False)
        shell.sweep(now + 1.9, False)
        assert place.counters.closed["stalled"] == 0
        turn = 0
        while shell.budget.waiting:  # those that waited get their turn, stall, and go too
            turn += 1
            shell.sweep(now + 3 * turn, False)
            await asyncio.sleep(0.01)
            assert turn < 30
        assert place.counters.closed["stalled"] >= 3
        assert not tiny.gone  # holds nothing that others wait for

        shell.sweep(now + 200, True)
        shell.sweep(now + 259, True)
        assert not tiny.gone
        tiny_writer.write(b"\0")
        await until(lambda: tiny.connection.bytes_in == 3)
        shell.sweep(now + 261, True)
        shell.sweep(now + 320, True)
        assert not tiny.connection.closed
        shell.sweep(now + 322, True)
        await until(lambda: tiny.gone)
        assert place.counters.closed["stalled"] == 6
        assert not idle.connection.closed

    with_server(loop, test, {"server": {"receive_bytes_max": "10 MiB"}})


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


def test_a_flood_is_not_read_above_its_share_and_a_quiet_publisher_does_not_wait(loop: str) -> None:
    share = 128 * 1024

    async def test(place: Place) -> None:
        flood = frame(b"s" + bytes(8_000))
        clients = [await place.connect() for _ in range(4)]
        highest = 0

        async def pour(client: Streams) -> None:
            for _ in range(30):
                client[1].write(flood * 40)
                await client[1].drain()
            client[1].write_eof()

        async def answers(client: Streams) -> int:
            return len(await ended(client[0]))

        pours = [asyncio.create_task(pour(client)) for client in clients]
        results = [asyncio.create_task(answers(client)) for client in clients]
        sessions = [await place.session(client) for client in clients]
        quiet_reader, quiet_writer = await place.connect()
        quiet = await place.session((quiet_reader, quiet_writer))
        turns = 0
        while not all(task.done() for task in results):
            quiet_writer.write(frame(b"s"))
            await quiet_reader.readexactly(5)
            assert not quiet.connection.held
            highest = max(highest, *(session.connection.charged for session in sessions))
            turns += 1
        await asyncio.gather(*pours)
        assert [task.result() for task in results] == [30 * 40 * len(flood)] * 4
        assert highest > 0
        assert highest <= share + 2 * READ_BUFFER_BYTES  # what one read may add
        assert place.counters.backpressure_s > 0
        assert turns >= 1

    with_server(loop, test, {"server": {"publish_share_bytes": share}})


def test_at_the_total_everybody_waits_and_goes_on_later(loop: str) -> None:
    async def test(place: Place) -> None:
        pressure = place.server.shell.pressure
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        other = await place.session(await place.connect())
        other.connection.charge(pressure.total_bytes_max)
        late_reader, late_writer = await place.connect()
        late = await place.session((late_reader, late_writer))
        for connection in (session.connection, late.connection, other.connection):
            assert connection.held
        writer.write(frame(b"e1"))
        late_writer.write(frame(b"e2"))
        other.connection.discharge(pressure.total_bytes_max // 2)
        assert await reader.readexactly(6) == frame(b"e1")
        assert await late_reader.readexactly(6) == frame(b"e2")
        assert other.connection.held  # still above its own share
        other.connection.discharge(pressure.total_bytes_max - pressure.total_bytes_max // 2)
        assert not other.connection.held

    with_server(loop, test)


def test_drain_answers_what_is_outstanding_and_reads_no_more(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        idle_reader, _ = await place.connect()
        writer.write(frame(b"l1"))
        await until(lambda: session.later)
        started = time.monotonic()
        draining = asyncio.create_task(place.server.listeners["echo"].drain(asyncio.get_running_loop().time() + 2))
        assert await ended(idle_reader) == b""
        writer.write(frame(b"e2"))
        await asyncio.sleep(0.05)
        session.answer_later()
        assert await ended(reader) == frame(b"l1")
        await place.close()
        await draining
        assert time.monotonic() - started < 1
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


def test_frame_above_the_sessions_limit_that_it_does_not_notice(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        session.frame_bytes_max = 200_000  # type: ignore[misc]
        writer.write((300_000).to_bytes(4, "big") + bytes(300_000))
        assert await ended(reader) == b""
        assert dict(place.counters.protocol_errors) == {"frame_size": 1}

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


def test_many_small_connections(loop: str) -> None:
    async def test(place: Place) -> None:
        async def one(number: int) -> None:
            reader, writer = await place.connect()
            payload = frame(b"e" + os.urandom(number))
            writer.write(payload)
            writer.write_eof()
            assert await ended(reader) == payload
            writer.close()

        await asyncio.gather(*(one(number) for number in range(300)))
        await until(lambda: place.counters.connections == 0)
        assert place.counters.connections_total == 300
        assert place.server.gate.connections == 0

    with_server(loop, test)
