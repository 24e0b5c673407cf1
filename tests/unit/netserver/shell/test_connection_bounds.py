"""What a connection may hold: receive memory, output, pending publishes; on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from itertools import pairwise

import pytest

from netserver.limits import DISCARD_BYTES, OUTPUT_STOP_BYTES, READ_BUFFER_BYTES, READS_IN_A_ROW_MAX
from netserver.shell import connection as shell_module
from tests.echo import FRAME_BYTES, LOOPS, frame, until
from tests.echo_place import Place, Streams, ended, with_server

pytestmark = [pytest.mark.whole, pytest.mark.parametrize("loop", LOOPS)]


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


def test_one_turn_of_the_loop_takes_a_part_of_what_has_arrived(loop: str) -> None:
    async def test(place: Place) -> None:
        address = place.server.addresses["echo"]
        silent = frame(b"w" + b"0" * 4000) * 16
        with socket.create_connection((address.host, address.port)) as flood:
            await until(lambda: bool(place.echo.sessions))
            connection = place.echo.sessions[0].connection
            flood.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent += flood.send(silent)
            turns = [0]
            while connection.bytes_in < sent:
                await asyncio.sleep(0)
                turns.append(connection.bytes_in)
        most = READS_IN_A_ROW_MAX * READ_BUFFER_BYTES
        assert sent > most
        assert max(behind - before for before, behind in pairwise(turns)) <= most

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
        assert time.monotonic() - started >= 0.2

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


def test_frame_above_the_sessions_limit_that_it_does_not_notice(loop: str) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.connect()
        session = await place.session((reader, writer))
        session.frame_bytes_max = 200_000  # type: ignore[misc]
        writer.write((300_000).to_bytes(4, "big") + bytes(300_000))
        assert await ended(reader) == b""
        assert dict(place.counters.protocol_errors) == {"frame_size": 1}

    with_server(loop, test)


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
