"""The QUIC shell: handshakes, windows, bounds, timers."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.connection import QuicConnection, QuicConnectionState

from engine.formats.batch import records
from netserver import errors
from netserver.app import Server
from netserver.config.settings import Address
from netserver.fujin import codec
from netserver.fujin.codec import Answer
from netserver.fujin.listener import FujinConnection, FujinListener
from netserver.limits import PEER_WINDOW_BYTES, STREAM_WINDOW_BYTES
from netserver.quic import endpoint as quic_server
from netserver.quic import handshakes
from netserver.quic.peer import QuicPeer
from netserver.quic.udp import Datagram
from netserver.shell.inherited import INHERITED
from netserver.testing import running
from tests.certificates import self_signed
from tests.echo import run, until
from tests.fujin_peer import Peer, client_configuration, connect

pytestmark = pytest.mark.whole

Test = Callable[[Server, FujinListener, tuple[str, int]], Awaitable[None]]
ALONE = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}


def serve(test: Test, loop: str = "asyncio", data: Path | None = None, **settings: Any) -> None:
    async def main() -> None:
        async with running(data, settings={**ALONE, "fujin": settings}) as server:
            listener = server.listeners["fujin"]
            assert isinstance(listener, FujinListener)
            await test(server, listener, (listener.address.host, listener.address.port))

    run(loop, main())


def settled(peer: Peer) -> Any:
    return peer._quic


def test_who_dials_too_late_is_answered_by_the_next_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        await listener.warn(loop.time())
        quic = QuicConnection(configuration=client_configuration())
        quic.connect(address, loop.time())
        [(first, _), *_] = quic.datagrams_to_send(loop.time())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect(address)
            client.send(first)  # once only: nobody repeats it
            await until(lambda: server.unanswered)
            monkeypatch.setattr(INHERITED, "unanswered", server.unanswered)
            await listener.finish(loop.time())
            here = {**ALONE, "fujin": {"listen": f"{address[0]}:{address[1]}"}}
            async with running(settings=here) as following:
                answer = await asyncio.wait_for(loop.sock_recv(client, 2000), 30)
                assert answer[0] & 0xC0 == 0xC0
                assert following.counters["fujin"].connections == 0, "its handshake has begun"
        assert INHERITED.unanswered == []

    serve(test)


# --- windows


def test_a_client_learns_the_bounds_in_the_handshake() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            quic = settled(peer)
            assert quic._remote_max_streams_bidi == 7
            assert quic._remote_max_streams_uni == 0
            assert quic._remote_max_data == PEER_WINDOW_BYTES
            assert quic._remote_max_stream_data_bidi_remote == STREAM_WINDOW_BYTES

    serve(test, streams_max=7)


def test_streams_are_bounded_and_ended_ones_do_not_count() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            streams = [peer.open(codec.connect_writer() + codec.write(1, b"t", b"x")) for _ in range(6)]
            for stream in streams[:4]:
                assert await stream.take(6) == codec.done(Answer.WRITE, 1)
            await asyncio.sleep(0.05)
            assert not streams[4].came, "the fifth waits at the client"
            for stream in streams[:2]:
                stream.send(codec.DISCONNECT, fin=True)
                assert await stream.rest() == codec.DISCONNECT
            for stream in streams[4:]:
                assert await stream.take(6) == codec.done(Answer.WRITE, 1)

    serve(test, streams_max=4)


def test_a_held_stream_stops_its_client_and_no_other() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            stream = peer.writer()
            stream.send(codec.write(0, b"t", b"x"))
            await stream.take(6)
            (quic,) = listener.endpoint.peers
            held = quic.streams[stream.id]
            held.hold("the test")
            message = codec.write(1, b"t", b"x" * 100_000)
            stream.send(message * 40)
            await until(lambda: held.session.pending > STREAM_WINDOW_BYTES - 2000)
            await asyncio.sleep(0.1)
            assert held.session.pending <= STREAM_WINDOW_BYTES + len(message), "the window has not moved"
            await peer.publish(b"other", *[b"y" * 50_000] * 20)
            held.release("the test")
            assert await stream.take(240) == codec.done(Answer.WRITE, 1) * 40
            assert quic.held_bytes == 0

    serve(test)


def test_large_frames_reserve_memory_and_give_it_back() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        budget = server.shell.budget
        async with connect(address) as first, connect(address) as second:
            whole = codec.write(1, b"t", b"x" * 900_000)
            streams = [peer.writer() for peer in (first, second)]
            streams[0].send(whole[:500_000])
            await until(lambda: budget.reserved == len(whole))
            budget.total_bytes_max = 1_000_000
            streams[1].send(whole[:700_000])
            await until(lambda: bool(budget.waiting) or budget.favoured is not None)
            streams[0].send(whole[500_000:])
            assert await streams[0].take(6) == codec.done(Answer.WRITE, 1)
            streams[1].send(whole[700_000:])
            assert await streams[1].take(6) == codec.done(Answer.WRITE, 1)
            await until(lambda: (budget.reserved, budget.kept, len(budget.waiting)) == (0, 0, 0))

    serve(test)


def test_a_half_sent_frame_that_does_not_get_on_ends_its_stream() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            stream = peer.writer()
            stream.send(codec.write(1, b"t", b"x" * 1000)[:500])
            (quic,) = listener.endpoint.peers
            await until(lambda: stream.id in quic.streams and quic.streams[stream.id].session.pending)
            now = time.monotonic()
            for seconds in (0, 30, 61):
                quic.check_progress(now + seconds)
            assert await stream.rest() == b""
            assert server.counters["fujin"].closed["stalled"] == 1

    serve(test)


def test_output_leaves_in_portions_and_streams_take_turns() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            await peer.publish(b"t", *[b"x" * 60_000] * 50)
            readers = [peer.open(codec.connect_reader(2, True, b"r%d" % n)) for n in range(3)]
            for reader in readers:
                assert await reader.take(2) == codec.connected()
                reader.send(codec.fetch(1, 50))
            for reader in readers:
                assert len(await reader.take(1_000_000)) == 1_000_000
            (quic,) = listener.endpoint.peers
            await until(lambda: quic.queued_bytes == 0)

    serve(test, readers={f"r{n}": {"topic": "t", "group": f"g{n}"} for n in range(3)})


# --- connections


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_another_application_protocol_is_refused(loop: str) -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with pytest.raises(ConnectionError):
            async with connect(address, client_configuration(alpn="h3")):
                pass
        await until(lambda: not listener.endpoint.peers)
        assert listener.endpoint.handshakes["failed"] == 1
        assert server.counters["fujin"].connections_total == 0

    serve(test, loop)


def test_certificates_decide_who_connects(tmp_path: Path) -> None:
    mine, key = self_signed(tmp_path, "mine")
    other, _ = self_signed(tmp_path, "other")

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address, client_configuration(Path(mine))) as peer:
            await peer.publish(b"t", b"x")
        with pytest.raises(ConnectionError):
            async with connect(address, client_configuration(Path(other))):
                pass
        renewed, renewed_key = self_signed(tmp_path, "renewed")
        shutil.copy(renewed, mine)
        shutil.copy(renewed_key, key)
        server.reload(server.config)
        async with connect(address, client_configuration(Path(renewed))) as peer:
            await peer.publish(b"t", b"x")
        shutil.copy(mine, key)
        with pytest.raises(errors.ConfigError):
            server.reload(server.config)
        async with connect(address, client_configuration(Path(renewed))) as peer:
            await peer.publish(b"t", b"still served")

    serve(test, tls_certificate=mine, tls_key=key)


def test_the_self_signed_certificate_is_kept(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        file = tmp_path / "fujin-certificate.pem"
        seen.append(file.read_bytes())
        async with connect(address, client_configuration(file)) as peer:
            await peer.publish(b"t", b"x")

    for _ in range(2):
        serve(test, data=tmp_path)
    assert seen[0] == seen[1]


def test_a_handshake_that_is_not_finished_is_given_up() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client = QuicConnection(configuration=client_configuration())
        client.connect(address, now=time.monotonic())
        with udp:
            for data, _ in client.datagrams_to_send(now=time.monotonic()):
                udp.sendto(data, address)
            await until(lambda: len(listener.endpoint.peers) == 1)
            await until(lambda: not listener.endpoint.peers)
        assert listener.endpoint.handshakes == {"completed": 0, "failed": 1, "refused": 0}

    serve(test, handshake_timeout=300)


def initial() -> tuple[QuicConnection, bytes]:
    client = QuicConnection(configuration=client_configuration())
    client.connect(("127.0.0.1", 1), now=time.monotonic())
    ((data, _),) = client.datagrams_to_send(now=time.monotonic())
    return client, data


def test_many_unfinished_handshakes_ask_for_a_token_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HALF_OPEN_RETRY", 3)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for _ in range(10):
                udp.sendto(initial()[1], address)
            await until(lambda: len(listener.endpoint.peers) == 3)
            async with connect(address) as peer:  # an honest client repeats the token
                await peer.publish(b"t", b"x")
                assert settled(peer)._retry_count == 1
        assert listener.endpoint.handshakes["completed"] == 1

    serve(test)


def test_no_more_handshakes_are_begun_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HALF_OPEN_MAX", 2)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for _ in range(10):
                udp.sendto(initial()[1], address)
            await until(lambda: listener.endpoint.handshakes["failed"] == 8)
            assert len(listener.endpoint.peers) == 2
            assert listener.endpoint.handshakes["refused"] == 0, "the oldest give way"

    serve(test)


def test_connections_are_bounded_and_later_ones_wait() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        listener.endpoint.connections_max = 1
        async with connect(address) as peer:
            await peer.publish(b"t", b"x")

            async def second() -> None:
                async with connect(address) as later:
                    await later.publish(b"t", b"y")

            waiting = asyncio.create_task(second())
            await until(lambda: listener.endpoint.handshakes["refused"] > 0)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 20)

    serve(test)


@pytest.mark.parametrize("version", [0, 0x1A2A3A4A, 0xFF00001D])
def test_other_versions_are_told_which_there_are(version: int) -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setblocking(False)
        with udp:
            data = bytearray(initial()[1])
            data[1:5] = version.to_bytes(4)
            udp.sendto(data, address)
            if version == 0:  # a Version Negotiation packet is never answered by another one
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(loop.sock_recv(udp, 2048), 0.1)
            else:
                answer = await asyncio.wait_for(loop.sock_recv(udp, 2048), 5)
                assert answer[1:5] == bytes(4)
                assert (1).to_bytes(4) in answer
        assert not listener.endpoint.peers

    serve(test)


def test_noise_is_ignored() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            await peer.publish(b"t", b"x")
            (quic,) = listener.endpoint.peers
            own_id = quic.quic.host_cid
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                for head in (b"", b"\x00", b"\x40", b"\x80", b"\xc0\x00\x00\x00\x01", b"\xff", b"\x40" + own_id):
                    for size in (0, 1, 20, 1200, 1472):
                        udp.sendto(head + os.urandom(size), address)
                udp.sendto(initial()[1][:1199], address)
                udp.sendto(initial()[1][:-4] + os.urandom(4), address)
            await peer.publish(b"t", b"y")
        assert server.counters["fujin"].session_errors == 0

    serve(test)


def test_an_idle_connection_is_closed_without_pings() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            started = time.monotonic()
            await asyncio.wait_for(peer.closed.wait(), 10)
            assert time.monotonic() - started >= 0.9
        await until(lambda: not listener.endpoint.peers)
        assert server.counters["fujin"].connections == 0

    serve(test, idle_timeout=1000, ping_interval=0)


def test_a_client_that_closes_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for clients to leave does not wait until their last packets cannot come any more."""
    gone = FujinListener.gone
    states: list[QuicConnectionState] = []

    def spy(listener: FujinListener, connection: FujinConnection, code: int, reason: str) -> None:
        states.append(connection.peer.quic._state)
        gone(listener, connection, code, reason)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            await peer.publish(b"t", b"m")
        await until(lambda: not listener.endpoint.peers)

    monkeypatch.setattr(FujinListener, "gone", spy)
    serve(test)
    assert states == [QuicConnectionState.DRAINING]


def test_an_error_in_a_connection_ends_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as good, connect(address) as bad:
            for peer in (good, bad):
                await peer.publish(b"t", b"x")
            victim = next(one for one in listener.endpoint.peers if bad._quic._peer_cid.cid == one.quic.host_cid)
            victim.quic.receive_datagram = lambda *_, **__: 1 / 0  # type: ignore[method-assign, assignment]
            bad.open(codec.connect_writer())
            await until(lambda: victim not in listener.endpoint.peers)
            assert server.counters["fujin"].session_errors == 1
            await good.publish(b"t", b"y")

    serve(test)


def test_while_the_socket_takes_nothing_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            await peer.publish(b"t", b"x")
            (channel,) = listener.endpoint._channels

            udp, refused = channel.udp, 0

            class Full:
                """A socket whose buffer is full."""

                socket = udp.socket

                def send(self, datagrams: list[Datagram]) -> int:
                    nonlocal refused
                    refused += 1
                    return 0

            channel.udp = Full()  # type: ignore[assignment]
            stream = peer.open(codec.connect_writer() + codec.write(1, b"t", b"y"))
            await until(lambda: refused)
            channel.udp = udp
            assert await stream.take(6) == codec.done(Answer.WRITE, 1)
            assert not channel.is_blocked

    serve(test)


@pytest.mark.parametrize("batch_s", [1e-9, 0.001, 3600.0])
def test_between_datagrams_others_have_their_turns(monkeypatch: pytest.MonkeyPatch, batch_s: float) -> None:
    """With turns of one datagram each: what a message brings is handled in any number of portions."""
    monkeypatch.setattr(quic_server, "QUIC_TURN_S", 1e-9)
    monkeypatch.setattr(quic_server, "QUIC_BATCH_S", batch_s)
    ticks, looks = 0, 0
    taken: list[tuple[int, int]] = []
    take = QuicPeer.datagram

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        asyncio.get_running_loop().call_soon(tick)

    def poll_completion() -> None:
        nonlocal looks
        looks += 1

    def datagram(peer: QuicPeer, data: bytes, address: object, now: float) -> None:
        taken.append((ticks, looks))
        take(peer, data, address, now)

    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        async with connect(address) as peer:
            stream = peer.writer()
            tick()
            monkeypatch.setattr(listener.endpoint, "_poll_completion", poll_completion)
            monkeypatch.setattr(QuicPeer, "datagram", datagram)
            values = [os.urandom(size) for size in (1, 100_000, 2, 200_000, 3)]
            stream.send(b"".join(codec.write(at, b"t", value) for at, value in enumerate(values)))
            assert await stream.take(6 * 5) == b"".join(codec.done(Answer.WRITE, at) for at in range(5))
            monkeypatch.undo()
        assert len(taken) > 300_000 // 1500
        assert len(set(taken)) == len(taken)
        for one in (0, 1):
            assert len({pair[one] for pair in taken}) == len(taken)
        partition = server.log.partition(server.log.catalog.get_or_create(b"t"))
        found: list[bytes] = []
        while len(found) < len(values):
            read_batch = partition.read(len(found) + 1, 1 << 20, None)
            assert read_batch is not None
            found += [record.value for record in records(read_batch.buffer)]
        assert found == values

    serve(test)


def test_addresses_that_cannot_be_bound() -> None:
    async def test(server: Server, listener: FujinListener, address: tuple[str, int]) -> None:
        for where in (Address("127.0.0.1", listener.address.port), Address("no-such-host.invalid", 1)):
            endpoint = quic_server.QuicEndpoint(
                "fujin",
                where,
                listener.endpoint.configuration,
                lambda peer: pytest.fail("no peer"),
                listener.endpoint._bounds,
                streams_max=1,
                connections_max=1,
                handshake_timeout_s=1,
                on_tick=lambda now: None,
                poll_completion=lambda: None,
            )
            with pytest.raises(errors.ListenError, match="fujin: cannot"):
                endpoint.start()

    serve(test)


def test_all_addresses_of_a_name_are_served() -> None:
    async def main() -> None:
        async with running(settings={**ALONE, "fujin": {"listen": "localhost:0"}}) as server:
            port = server.addresses["fujin"].port
            families = {info[0] for info in socket.getaddrinfo("localhost", port, type=socket.SOCK_DGRAM)}
            for family in families:
                async with connect(("127.0.0.1" if family == socket.AF_INET else "::1", port)) as peer:
                    await peer.publish(b"t", b"x")

    run("asyncio", main())
