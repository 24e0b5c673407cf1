"""Clients that keep to QUIC's rules only where it suits them: what they can make the server keep, and for how long it
can be kept from others, is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aioquic import tls

from netserver.app import Server
from netserver.fujin import codec
from netserver.fujin.codec import Answer, Op
from netserver.fujin.limits import COMMANDS_TURN_MAX
from netserver.fujin.listener import FujinListener
from netserver.limits import OUTPUT_HIGH_BYTES, QUIC_CRYPTO_BYTES_MAX, QUIC_GAPS_MAX, STREAM_WINDOW_BYTES
from netserver.quic import bounded as quic_bounded
from netserver.quic import handshakes
from netserver.testing import running
from tests.echo import until
from tests.fujin_peer import client_configuration, connect
from tests.quic_attacker import Attacker, crypto_frame, packed, stream_frame

pytestmark = pytest.mark.whole

ALONE = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}
Test = Callable[[Server, FujinListener, tuple[str, int]], Awaitable[None]]


def serve(test: Test, **settings: Any) -> None:
    async def main() -> None:
        async with running(settings={**ALONE, "fujin": settings}) as server:
            listener = server.listeners["fujin"]
            assert isinstance(listener, FujinListener)
            await test(server, listener, (listener.address.host, listener.address.port))
            assert server.counters["fujin"].session_errors == 0

    asyncio.run(main())


async def in_thread(attack: Callable[[], Any]) -> Any:
    """Run blocking code beside the server."""
    return await asyncio.wait_for(asyncio.to_thread(attack), 60)


# --- what is missing in between


def test_gaps_in_a_stream_are_few_and_what_was_dropped_is_taken_later() -> None:
    """aioquic looks at every gap for every frame: 20,000 of them, 130 packets, held the server up for nine seconds."""
    whole = codec.connect_writer() + codec.write(7, b"t", bytes(range(1, 251)) * 80)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with await in_thread(lambda: Attacker(address).handshake()) as attacker:
            (peer,) = listener.endpoint.peers

            def attack() -> None:
                pieces = [stream_frame(0, at, whole[at : at + 1]) for at in range(9, len(whole), 2)]
                for payload in packed(pieces):
                    attacker.send(payload)

            await in_thread(attack)
            await until(lambda: 0 in peer.quic._streams and peer.quic._gaps)
            await asyncio.sleep(0)
            assert len(peer.quic._streams[0].receiver._ranges) <= QUIC_GAPS_MAX

            def repair() -> None:
                for at in range(0, len(whole), 1000):
                    attacker.send(stream_frame(0, at, whole[at : at + 1000]))
                while codec.done(Answer.WRITE, 7) not in attacker.received.get(0, b""):
                    assert attacker.closed is None
                    attacker.quic._get_or_create_stream_for_send(0)
                    attacker.listen()

            await in_thread(repair)
            assert not peer.quic._gaps
            assert listener.endpoint._out_of_order.size_bytes == 0

    serve(test)


def test_gaps_of_all_connections_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte at the end of a window takes room for the whole of it: 100 connections took 100 MB with 400 bytes."""
    monkeypatch.setattr(quic_bounded, "QUIC_GAPS_BYTES_MAX", 3 * STREAM_WINDOW_BYTES)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        attackers: list[Attacker] = []

        def attack() -> None:
            for _ in range(4):
                attacker = Attacker(address).handshake()
                attackers.append(attacker)
                for stream_id in (0, 4, 8):
                    attacker.send(stream_frame(stream_id, STREAM_WINDOW_BYTES - 1, b"x"))

        await in_thread(attack)
        shared = listener.endpoint._out_of_order
        await until(lambda: shared.size_bytes >= 3 * STREAM_WINDOW_BYTES)
        async with connect(address) as honest:
            await honest.publish(b"t", *[b"x" * 50_000] * 20)
        assert shared.size_bytes <= 4 * STREAM_WINDOW_BYTES
        for peer in tuple(listener.endpoint.peers):
            peer.forget()
        assert shared.size_bytes == 0
        for attacker in attackers:
            attacker.udp.close()

    serve(test)


def test_gaps_in_the_handshake_are_few() -> None:
    """Anybody can send these, under any address."""

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with Attacker(address) as attacker:
            for payload in packed([crypto_frame(at, b"x") for at in range(9, 9000, 2)], 1100):
                attacker.udp.sendto(attacker.initial(payload), address)
            await until(lambda: bool(listener.endpoint.peers))
            (peer,) = listener.endpoint.peers
            receiver = peer.quic._crypto_streams[tls.Epoch.INITIAL].receiver
            await until(lambda: len(receiver._ranges) >= QUIC_GAPS_MAX)
            async with connect(address) as honest:
                await honest.publish(b"t", b"x")
            assert len(receiver._ranges) == QUIC_GAPS_MAX

    serve(test)


@pytest.mark.parametrize("at", [QUIC_CRYPTO_BYTES_MAX, 500_000])
def test_a_handshake_is_short(at: int) -> None:
    """aioquic takes half a megabyte with gaps, and messages of 16 MiB."""

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with Attacker(address) as attacker:
            attacker.udp.sendto(attacker.initial(crypto_frame(at, b"x")), address)
            await until(lambda: attacker.listen() and attacker.closed is not None)
        with await in_thread(lambda: Attacker(address).handshake()) as attacker:

            def attack() -> None:
                for offset in range(0, QUIC_CRYPTO_BYTES_MAX + 1000, 1000):
                    attacker.send(crypto_frame(offset, b"\x01\xff\xff\xff" * 250))
                while attacker.closed is None:
                    attacker.listen()

            await in_thread(attack)

    serve(test)


def test_a_host_has_its_share_of_the_handshakes_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins as many as there may be kept everybody else from connecting."""
    monkeypatch.setattr(handshakes, "HALF_OPEN_HOST_MAX", 3)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        endpoint = listener.endpoint
        for _ in range(10):
            with Attacker(address) as attacker:
                ((data, _),) = attacker.quic.datagrams_to_send(now=time.monotonic())
                attacker.udp.sendto(data, address)
        await until(lambda: endpoint.handshakes["failed"] == 7)
        assert len(endpoint.peers) == 3
        with Attacker(address) as other:
            other.udp.bind(("127.0.0.2", 0))
            await in_thread(other.handshake)
        assert endpoint.handshakes == {"completed": 1, "failed": 7, "refused": 0}
        await until(lambda: endpoint.handshakes["failed"] == 10)
        with await in_thread(lambda: Attacker(address).handshake()):
            assert endpoint.handshakes["completed"] == 2

    serve(test, handshake_timeout=1500)


def test_names_of_connections_have_a_length() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with Attacker(address) as attacker:
            for size in (0, 1, 7, 8):
                head = b"\xc0\0\0\0\1" + bytes([size]) + b"x" * size + b"\0\0\x44\x00"
                attacker.udp.sendto(head.ljust(1200, b"\0"), address)
            await until(lambda: bool(listener.endpoint.peers))
            assert len(listener.endpoint.peers) == 1
            assert b"x" * 8 in listener.endpoint._by_id

    serve(test)


# --- what is not read


@pytest.mark.parametrize("commands", [codec.tx(Op.COMMIT, 1), codec.write(1, b"t", b"x")], ids=["COMMIT", "WRITE"])
def test_answers_that_are_not_read_end_the_reading_of_commands(commands: bytes) -> None:
    """Four megabytes of COMMIT made 55 MB of answers."""
    configuration = client_configuration()
    configuration.max_data = configuration.max_stream_data = 0

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address, configuration) as peer:
            stream = peer.open(codec.connect_writer())
            stream.send(commands * (3_000_000 // len(commands)))
            (quic,) = listener.endpoint.peers
            await until(lambda: bool(quic.streams) and quic.queued_bytes >= OUTPUT_HIGH_BYTES)
            own = quic.streams[stream.id]
            await until(lambda: own.held and not own.charged)
            async with connect(address) as honest:
                await honest.publish(b"t", *[b"x"] * 100)
            assert own.session.pending <= 2 * STREAM_WINDOW_BYTES
            assert quic.queued_bytes <= OUTPUT_HIGH_BYTES + 2 * STREAM_WINDOW_BYTES

    serve(test)


def test_acknowledgements_that_are_not_acknowledged_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic_bounded, "QUIC_SENT_MAX", 20)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with await in_thread(lambda: Attacker(address).handshake()) as attacker:
            (peer,) = listener.endpoint.peers
            space = peer.quic._spaces[tls.Epoch.ONE_RTT]

            def is_answered() -> bool:
                return space.ack_at is None and space.largest_received_packet == attacker.quic._packet_number - 1

            for _ in range(150):
                attacker.send(b"\x01")  # PING
                await until(is_answered)
            assert len(space.sent_packets) <= 60

    serve(test, ping_interval=0)


# --- floods


def test_small_commands_leave_the_loop_to_others() -> None:
    """A window of them took more than half a second, in which nobody else had a turn."""

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        turns, most, before = 0, 0, 0
        shared = listener.shared

        def done() -> int:
            return sum(shared.transactions.values())

        def tick() -> None:
            nonlocal turns, most, before
            turns += 1
            most = max(most, done() - before)
            before = done()
            loop.call_soon(tick)

        async with connect(address) as peer:
            stream = peer.writer()
            pairs = 20_000
            tick()
            stream.send((codec.tx(Op.BEGIN, 1) + codec.tx(Op.ROLLBACK, 2)) * pairs)
            answers = codec.done(Answer.BEGIN, 1) + codec.done(Answer.ROLLBACK, 2)
            assert await stream.take(len(answers) * pairs) == answers * pairs
            assert most <= COMMANDS_TURN_MAX

    serve(test)


def test_streams_that_were_broken_off_before_they_began_make_room_for_others() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            await peer.publish(b"t", b"x")
            for number in range(20):  # more than there may be at once
                stream = peer.open()
                if number % 2:
                    stream.stop()
                stream.reset()
                await until(lambda at=stream.id: at not in peer._quic._streams)  # type: ignore[misc]
            await peer.publish(b"t", b"x")

    serve(test, streams_max=4)


def test_streams_that_are_reset_under_way() -> None:
    """What was sent of them counts once in the window of the connection, and not at all in memory."""

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            for _ in range(40):
                stream = peer.writer()
                stream.send(codec.write(1, b"t", b"x" * 60_000)[:50_000])
                await asyncio.sleep(0)
                stream.reset()
            started = time.monotonic()
            await peer.publish(b"t", *[b"x" * 60_000] * 20)
            assert time.monotonic() - started < 60
            (quic,) = listener.endpoint.peers
            await until(lambda: not quic.streams)
            assert server.shell.budget.kept == 0
            assert server.shell.budget.reserved == 0

    serve(test)
