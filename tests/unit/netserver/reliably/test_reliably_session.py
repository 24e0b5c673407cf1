"""The JSON streaming protocol in a running server: streams, acknowledgements, takeover, errors, the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.state.store import LmdbState, Put
from netserver.reliably import stream as stream_module
from netserver.reliably.limits import UNSTORED_BYTES_MAX
from tests.lmdb_state import data_file_replaced
from tests.reliably_peer import END_WAIT_S, Peer, place, run, values_of


def start(uuid: str, count: int) -> dict[str, Any]:
    return {"uuid": uuid, "params": {"count": count}}


def resume(uuid: str, message_id: int) -> dict[str, Any]:
    return {"uuid": uuid, "state": message_id}


def ack(uuid: str, message_id: int) -> dict[str, Any]:
    return {"uuid": uuid, "ack": message_id}


def check_stream(lines: list[bytes], count: int) -> list[int]:
    """A whole stream with the right checksum, and nothing behind it."""
    values = values_of(lines)
    assert len(values) == count
    crc = zlib.crc32(b"".join(value.to_bytes(4, "big") for value in values))
    assert json.loads(lines[-1])["data"]["crc"] == crc
    assert all(b"crc" not in line for line in lines[:-1])
    return values


LONG = 8000
"""Messages of a stream that is many times as long as what is let through at once; 5 bytes each are stored."""
TOTAL_BYTES_MAX = 64 << 10
"""Of all sessions together; less than the setting may be."""


# --- streams


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 47, 48, 49, 1000, pytest.param(65535, marks=pytest.mark.whole)])
def test_streams_of_every_length(count: int) -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", count))
            check_stream(await peer.rest(), count)

    run(test())


def test_many_streams_at_once_are_all_different() -> None:
    async def test() -> None:
        async with place() as here:
            peers = [await here.peer(start(f"u{n}", 300)) for n in range(40)]
            streams = [check_stream(await peer.rest(), 300) for peer in peers]
            assert len({values[0] for values in streams}) == 40

    run(test())


def test_replay_from_every_position() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 100))
            whole = await peer.rest()
            await peer.close()
            for position in (0, 0, 1, 15, 16, 17, 48, 98, 99):
                again = await here.peer(resume("u", position))
                assert await again.rest() == whole[position:]
                await again.close()

    run(test())


def test_at_the_end_nothing_is_left() -> None:
    async def test() -> None:
        async with place(end_wait_s=30.0) as here:
            peer = await here.peer(start("u", 3))
            await peer.lines(3)
            await peer.close()
            again = await here.peer(resume("u", 3))
            assert await again.rest() == []  # at once

    run(test())


def test_resume_on_the_same_connection() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 20))
            first = await peer.lines(20)
            peer.send(resume("u", 5))
            assert await peer.lines(15) == first[5:]
            peer.send(start("v", 2))
            check_stream(await peer.lines(2), 2)
            await here.until(lambda: here.sessions.info("u").expires_in_s is not None)
            assert await peer.rest() == []

    run(test())


def test_params_of_a_known_session_begin_anew() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 30))
            first = check_stream(await peer.rest(), 30)
            again = await here.peer(start("u", 40))
            assert check_stream(await again.rest(), 40)[:30] != first

    run(test())


def test_a_stateful_request_replaces_a_stateless_stream_and_not_the_other_way() -> None:
    async def test() -> None:
        async with place({"stateless_bytes_per_s": 20_000}) as here:
            peer = await here.peer(b"{}\n", start("u", 50))
            lines = []
            while not (line := await peer.line()).startswith(b'{"id"'):
                lines.append(line)
            assert lines
            peer.send(b'{"state":"5"}\n')
            check_stream([line, *await peer.rest()], 50)

    run(test())


def test_one_message_an_interval() -> None:
    async def test() -> None:
        async with place({"interval_ms": 30}) as here:
            loop = asyncio.get_running_loop()
            peer = await here.peer(start("u", 5))
            await peer.line()
            began = loop.time()
            await peer.lines(4)
            assert loop.time() - began > 4 * 0.03 * 0.8
            stateless = await here.peer(b"{}\n")
            await stateless.line()
            began = loop.time()
            await stateless.lines(4)
            assert loop.time() - began > 4 * 0.03 * 0.8

    run(test())


# --- positions and errors


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([resume("nobody", 1)], "Unknown client 'nobody'"),
        ([b'{"uuid":"h\xc3\xa9\\n\\"","state":3}\n'], "Unknown client 'hé\n\"'"),
        ([resume("u", 11)], "Unknown message ID '11'"),
        ([resume("u", 4)], "Out-of-order ACK"),
        ([resume("u", 0)], "Out-of-order ACK"),
        ([ack("u", 6)], "Cannot send ACK as the first message"),
        ([b"{}\n", ack("u", 6)], "Cannot send ACK as the first message"),
        ([resume("u", 6), ack("u", 5)], "Out-of-order ACK"),
        ([resume("u", 6), ack("u", 0)], "Out-of-order ACK"),
        ([resume("u", 6), ack("u", 11)], "Unknown message ID '11'"),
        ([resume("u", 6), ack("other", 7)], "The uuid is not that of this connection"),
        ([start("new", 5), ack("new", 1)], "Unknown message ID '1'"),
        ([start("new", 0)], "Invalid count: an integer from 1 to 65535 is expected"),
        ([start("new", 10**9)], "Invalid count: an integer from 1 to 65535 is expected"),
        ([b"hello\n"], "Invalid JSON"),
        ([b"\n"], "Invalid JSON"),
        ([b"[]\n"], "A message has to be a JSON object"),
        ([{"uuid": "u"}], "A message with a uuid needs params, state or ack"),
        ([{"state": "abc"}], "Invalid state: a decimal integer is expected"),
        ([start("new", 3), b"oops\n"], "Invalid JSON"),
    ],
)
def test_errors_end_the_connection(requests: list[dict[str, Any] | bytes], text: str) -> None:
    async def test() -> None:
        async with place() as here:
            before = await here.peer(start("u", 10))
            await before.lines(10)
            before.send(ack("u", 5))
            await here.until(lambda: here.sessions.position("u")[0] == 5)
            await before.close()
            peer = await here.peer(*requests)
            assert await peer.error() == text
            kinds = here.server.counters["json"].protocol_errors
            assert sum(kinds.values()) == 1
            await peer.close()
            await here.until(lambda: not here.server.shell.connections)

    run(test())


def test_after_an_error_nothing_is_answered() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(b"oops\n", start("u", 3))
            assert await peer.rest() == [b'{"error":"Invalid JSON"}']
            peer.send(start("u", 3))
            assert "u" not in here.sessions

    run(test())


def test_acks_that_are_fine() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 100))
            await peer.line()
            peer.send(ack("u", 0), ack("u", 1), ack("u", 1))
            lines = await peer.lines(99)
            peer.send(ack("u", 50), ack("u", 100))
            await here.until(lambda: here.sessions.position("u")[0] == 100)
            assert len(lines) == 99
            assert await peer.rest() == []

    run(test())


def test_state_0_gives_everything() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 5))
            whole = await peer.rest()
            again = await here.peer(resume("u", 0))
            assert await again.rest() == whole

    run(test())


# --- sessions and their connections


def test_the_newer_connection_takes_over() -> None:
    async def test() -> None:
        async with place({"interval_ms": 5}) as here:
            older = await here.peer(start("u", 60))
            seen = await older.lines(5)
            newer = await here.peer(resume("u", 3))
            rest = await newer.lines(10)
            seen += await older.rest()  # FIN, and no error
            assert 5 <= len(seen) < 20
            assert rest[: len(seen) - 3] == seen[3:][: len(rest)]
            older.send(ack("u", 1))  # whatever the older one still says: it is not heard
            check_stream(seen[:3] + rest + await newer.lines(47), 60)

    run(test())


def test_a_connection_that_only_failed_to_resume_takes_nothing() -> None:
    async def test() -> None:
        async with place({"interval_ms": 5}) as here:
            peer = await here.peer(start("u", 30))
            await peer.line()
            other = await here.peer(resume("u", 99))
            assert await other.error() == "Unknown message ID '99'"
            assert len(await peer.lines(29)) == 29

    run(test())


def test_sessions_expire_after_their_connection_not_before() -> None:
    async def test() -> None:
        async with place({"session_expiry_ms": 150}) as here:
            peer = await here.peer(start("u", 3))
            await peer.lines(3)
            await asyncio.sleep(0.4)
            here.sessions.sweep()
            assert "u" in here.sessions
            await peer.close()
            await here.until(lambda: here.sessions.info("u").expires_in_s is not None)
            again = await here.peer(resume("u", 1))
            await again.lines(2)
            await again.close()
            await asyncio.sleep(0.3)
            here.sessions.sweep()
            late = await here.peer(resume("u", 1))
            assert await late.error() == "Unknown client 'u'"

    run(test())


def test_a_removed_session_ends_its_connection() -> None:
    async def test() -> None:
        async with place({"interval_ms": 5}) as here:
            peer = await here.peer(start("u", 1000))
            await peer.line()
            here.sessions.drop("u")
            lines = await peer.rest()
            assert all(b"error" not in line for line in lines)
            again = await here.peer(resume("u", 1))
            assert await again.error() == "Unknown client 'u'"

    run(test())


def test_too_many_sessions() -> None:
    async def test() -> None:
        async with place({"sessions_max": 2}) as here:
            await (await here.peer(start("a", 1))).line()
            await (await here.peer(start("b", 1))).line()
            third = await here.peer(start("c", 1))
            assert await third.error() == "Too many sessions (2); try again later"
            await (await here.peer(start("b", 1))).line()

    run(test())


def test_sessions_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> list[bytes]:
        async with place({"interval_ms": 1}, tmp_path / "data") as here:
            peer = await here.peer(start("u", 300))
            return await peer.lines(40)

    async def second(seen: list[bytes]) -> None:
        async with place(None, tmp_path / "data") as here:
            peer = await here.peer(resume("u", 40))
            check_stream(seen + await peer.rest(), 300)

    run(second(asyncio.run(first())))


# --- the end


def test_the_client_closes_first() -> None:
    async def test() -> None:
        async with place(end_wait_s=30.0) as here:
            peer = await here.peer(start("u", 3))
            await peer.lines(3)
            await peer.nothing()
            peer.send(ack("u", 2))
            await here.until(lambda: here.sessions.position("u")[0] == 2)
            await peer.nothing()
            await peer.close()
            await here.until(lambda: not here.server.shell.connections)

    run(test())


def test_fin_waits_for_a_client_that_is_behind_and_acks_behind_it_count() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 30))
            await peer.lines(30)
            for number in range(1, 7):  # still at work: no FIN
                await asyncio.sleep(END_WAIT_S / 2)
                peer.send(ack("u", number))
                assert not peer.reader.at_eof()
            assert await peer.rest() == []
            peer.send(ack("u", 16))
            await here.until(lambda: here.sessions.position("u")[0] == 16)
            peer.send(ack("u", 3), b"junk\n", start("v", 3), ack("u", 30))
            await here.until(lambda: here.sessions.position("u")[0] == 30)
            assert "v" not in here.sessions
            assert len(here.server.shell.connections) == 1
            await peer.close()
            await here.until(lambda: not here.server.shell.connections)

    run(test())


def test_a_client_that_never_closes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.reliably.session.DRAIN_S", 0.2)

    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 1))
            await peer.rest()
            await asyncio.sleep(0.1)
            peer.send(ack("u", 1))
            await asyncio.sleep(0.15)
            assert here.server.shell.connections
            (connection,) = here.server.shell.connections
            await here.until(lambda: connection.closed)

    run(test())


@pytest.mark.parametrize("request_", [b"{}\n", start("u", 60000)])
def test_the_client_ends_in_mid_stream(request_: dict[str, Any] | bytes) -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(request_)
            await peer.line()
            peer.writer.write_eof()
            await peer.rest()
            await here.until(lambda: not here.server.shell.connections)
            reset = await here.peer(request_)
            await reset.line()
            reset.writer.transport.abort()
            await here.until(lambda: not here.server.shell.connections)
            assert here.server.counters["json"].session_errors == 0

    run(test())


def test_drain_stops_between_two_lines(tmp_path: Path) -> None:
    async def first() -> list[bytes]:
        async with place({"interval_ms": 1}, tmp_path / "data") as here:
            peer = await here.peer(start("u", LONG))
            idle = await here.peer(b'{"uu')
            stateless = await here.peer(b"{}\n")
            lines = await peer.lines(20)
            deadline = asyncio.get_running_loop().time() + 10
            draining = asyncio.ensure_future(here.server.listeners["json"].drain(deadline))
            lines += await peer.rest()
            await stateless.rest()
            assert await idle.rest() == []
            for one in here.peers:
                await one.close()
            await asyncio.wait_for(draining, 5)
            return lines

    async def second(seen: list[bytes]) -> None:
        async with place(None, tmp_path / "data") as here:
            peer = await here.peer(resume("u", len(seen)))
            check_stream(seen + await peer.rest(), LONG)

    run(second(asyncio.run(first())))


# --- flow


def test_a_client_that_acknowledges_has_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "RELIEF_S", 60.0)

    async def test() -> None:
        async with place({"window_messages": 20}) as here:
            peer = await here.peer(start("u", 65535))
            await peer.line()
            peer.send(ack("u", 1))
            stream = here.shared.streams["u"]
            await here.until(lambda: stream._window_full)
            assert stream._window == 20
            sent = stream.position
            await peer.lines(sent - 1)
            await peer.nothing()
            peer.send(ack("u", sent - 10))
            window = max(20, 2 * (sent - 11))  # who acknowledges rarely has a larger one
            await here.until(lambda: stream.position == sent - 10 + window)
            await peer.lines(window - 10)
            await peer.nothing()

    run(test())


def test_a_client_may_stop_acknowledging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "RELIEF_S", 0.03)

    async def test() -> None:
        async with place({"window_messages": 20}) as here:
            peer = await here.peer(start("u", 10000))
            first = await peer.lines(1)
            peer.send(ack("u", 1))
            check_stream(first + await peer.lines(9999), 10000)

    run(test())


def test_a_full_disk_is_a_pause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stream_module, "RETRY_S", 0.05)

    async def test() -> None:
        async with place({"interval_ms": 1}, tmp_path / "data") as here:
            peer = await here.peer(start("u", 400))
            seen = await peer.lines(50)
            with data_file_replaced(tmp_path / "data" / "state", "/dev/full", os.O_WRONLY):
                await asyncio.sleep(0.3)
                data = b"".join(seen) + await drained(peer)
                assert data.count(b"\n") < 400
                await peer.nothing(0.1)
            data += b"".join(await peer.lines(400 - data.count(b"\n")))
            check_stream(data.splitlines(), 400)

    run(test())


def test_a_store_that_others_have_filled_is_a_pause() -> None:
    async def test() -> None:
        async with place() as here:
            state = here.server.log.state
            assert isinstance(state, LmdbState)
            with state._environment._environment.begin(write=True):  # the store's writer waits
                state.submit([Put(b"z/", bytes(UNSTORED_BYTES_MAX))])
                peer = await here.peer(start("u", 5))
                await here.until(lambda: "u" in here.shared.sessions)
                await peer.nothing()
            check_stream(await peer.lines(5), 5)

    run(test())


async def drained(peer: Peer) -> bytes:
    """What is there."""
    data = b""
    with contextlib.suppress(TimeoutError):
        while more := await asyncio.wait_for(peer.reader.read(1 << 20), 0.05):
            data += more
    return data


def test_all_sessions_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "RETRY_S", 0.05)

    async def test() -> None:
        async with place() as here:
            here.sessions.config = replace(here.sessions.config, total_bytes_max=TOTAL_BYTES_MAX)
            peers = [await here.peer(start(f"u{n}", LONG)) for n in range(5)]
            await here.until(lambda: here.sessions.stored_bytes >= TOTAL_BYTES_MAX)
            seen = [await drained(peer) for peer in peers]
            assert sum(data.count(b"\n") for data in seen) < 5 * LONG
            assert here.sessions.stored_bytes < TOTAL_BYTES_MAX + 5 * 2 * 8192
            for number, peer in enumerate(peers):
                while (count := seen[number].count(b"\n")) < LONG:
                    peer.send(ack(f"u{number}", count))
                    seen[number] += await drained(peer)
                check_stream(seen[number].splitlines(), LONG)

    run(test())


def test_a_session_has_a_bound() -> None:
    async def test() -> None:
        async with place({"session_bytes_max": 16 * 1024}) as here:
            silent = await here.peer(start("u", LONG))
            assert (await silent.error()).startswith("Too many unacknowledged messages (")
            talking = await here.peer(start("v", LONG))
            lines: list[bytes] = []
            while len(lines) < LONG:
                lines.append(await talking.line())
                if len(lines) % 100 == 0:
                    talking.send(ack("v", len(lines)))
            check_stream(lines, LONG)

    run(test())


def test_a_stateless_stream_has_a_rate() -> None:
    async def test() -> None:
        async with place({"stateless_bytes_per_s": 200_000}) as here:
            peer = await here.peer(b"{}\n")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(peer.reader.readexactly(10_000_000), 1.0)
            assert 100_000 < here.server.counters["json"].delivered_bytes < 500_000

    run(test())


def test_a_damaged_message_ends_its_stream() -> None:
    async def test() -> None:
        async with place() as here:
            peer = await here.peer(start("u", 200))
            await peer.rest()
            state = here.server.log.state
            key = next(key for key, _ in state.scan(b"s/") if key[-4:] == (17).to_bytes(4, "big"))
            with state._environment._environment.begin(write=True) as transaction:  # type: ignore[attr-defined]
                transaction.put(key, b"\0" * 40)
            again = await here.peer(resume("u", 10))
            lines = await again.rest()
            assert len(lines) == 7
            assert lines[-1] == b'{"error":"The next message is damaged"}'

    run(test())
