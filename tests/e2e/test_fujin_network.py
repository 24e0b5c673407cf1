"""Fujin under loads that leak or stall elsewhere: many idle connections, many short streams, handshakes never finished.

QUINTLOG_NIGHTLY=1 makes it 1,000 connections and 100,000 streams. Each prints its figures.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aioquic.quic.connection import QuicConnection

from netserver import fujin
from netserver.fujin import codec
from netserver.testing import ServerProcess, server
from tests.fujin_peer import client_configuration, connect

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
CONNECTIONS = 1000 if NIGHTLY else 100
STREAMS = 100_000 if NIGHTLY else 4000
HANDSHAKES = 20_000 if NIGHTLY else 2000
AT_ONCE = 50
KIB_PER_CONNECTION = 400
LEAK_KIB = 20 * 1024
PING_MS = 10 * CONNECTIONS
"""A hundred PINGs a second for all, however many there are: the client in this test has to answer them."""
IDLE_S = 20 if NIGHTLY else 2
PING_CPU_MS = 5.0
"""For each PING and its answer; it takes about half a millisecond."""
OFF = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}


def rss_kib(process: ServerProcess) -> int:
    """Memory of the server."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def cpu_s(process: ServerProcess) -> float:
    """CPU time of the server."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


@pytest.mark.timeout(600 if NIGHTLY else 120)
def test_idle_connections_cost_little_and_are_all_told_of_the_end() -> None:
    with server(settings={**OFF, "fujin": {"ping_interval": PING_MS, "ping_timeout": 60_000}}) as process:
        host, port = process.address("fujin")

        async def main() -> None:
            async with AsyncExitStack() as stack:
                first = await stack.enter_async_context(connect((host, port)))
                await first.publish(b"t", b"x")
                before = rss_kib(process)
                peers = [first]
                while len(peers) < CONNECTIONS:
                    peers.append(await stack.enter_async_context(connect((host, port))))
                grown = rss_kib(process) - before
                started, used = time.monotonic(), cpu_s(process)
                await asyncio.sleep(IDLE_S)  # what is measured is what silence costs
                share = (cpu_s(process) - used) / (time.monotonic() - started)
                print(
                    f"\n{CONNECTIONS} idle QUIC connections: {grown / 1024:.0f} MB more"
                    f" ({grown / CONNECTIONS:.0f} KiB each), {100 * share:.1f} % of a core, a PING each in {PING_MS} ms"
                )
                assert grown < KIB_PER_CONNECTION * CONNECTIONS
                assert share < PING_CPU_MS * CONNECTIONS / PING_MS
                for peer in peers[:: CONNECTIONS // 10]:
                    await peer.ping_stream(1)  # the second one: the first was answered
                    await asyncio.wait_for(peer.publish(b"t", b"y"), 30)
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(None, process.stop) == 0
                for peer in peers:
                    await asyncio.wait_for(peer.closed.wait(), 5)
                    assert peer.closed_with is not None
                    assert peer.closed_with[0] == 0

        run(main())


@pytest.mark.timeout(1200 if NIGHTLY else 120)
def test_short_streams_leave_nothing_behind() -> None:
    with server(settings=OFF) as process:
        host, port = process.address("fujin")

        async def main() -> None:
            async with connect((host, port)) as peer:

                async def one(number: int) -> None:
                    if number % 4 == 3:
                        stream = peer.open(codec.connect_reader(2, True, b"t"))
                        assert await stream.take(2) == codec.connected()
                        stream.send(codec.DISCONNECT, fin=True)
                    else:
                        stream = peer.open(
                            codec.connect_writer() + codec.write(1, b"t", b"x") + codec.DISCONNECT, fin=True
                        )
                    assert (await stream.rest())[-1:] == codec.DISCONNECT
                    del peer.streams[stream.id]

                halfway = 0
                for number in range(0, STREAMS, AT_ONCE):
                    await asyncio.gather(*(one(at) for at in range(number, number + AT_ONCE)))
                    if number == STREAMS // 2:
                        halfway = rss_kib(process)
                assert halfway
                grown = rss_kib(process) - halfway
                print(f"\n{STREAMS} short streams on a connection: {grown} KiB more in the second half of them")
                assert grown < LEAK_KIB

        run(main())


def test_handshakes_that_are_never_finished_cost_no_memory_and_no_service() -> None:
    with server(settings={**OFF, "fujin": {"handshake_timeout": 1000}}) as process:
        host, port = process.address("fujin")

        async def main() -> None:
            async with fujin.connect(f"{host}:{port}", verify=False) as client:
                await client.publish("t", b"x")
                before = rss_kib(process)
                udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                with udp:
                    for number in range(HANDSHAKES):
                        if number % 10 == 0:
                            victim = QuicConnection(configuration=client_configuration())
                            victim.connect((host, port), now=time.monotonic())
                            ((data, _),) = victim.datagrams_to_send(now=time.monotonic())
                        changed = bytearray(data)
                        changed[6:14] = os.urandom(8)  # another connection, whose packets nobody can decrypt
                        udp.sendto(changed if number % 10 else data, (host, port))
                        if number % 100 == 0:
                            await client.publish("t", b"y")
                grown = rss_kib(process) - before
                print(f"\n{HANDSHAKES} handshakes that nobody finishes: {grown} KiB more")
                assert grown < 64 * 1024
                async with fujin.connect(f"{host}:{port}", verify=False) as other:
                    await other.publish("t", b"z")

        run(main())
        assert "Traceback" not in process.log_text, process.log_text[-3000:]
