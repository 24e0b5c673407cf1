"""QUIC: datagrams without a connection or by another way, handshakes that give way, connections that fail."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicErrorCode

from netserver import fujin
from netserver.app import Server
from netserver.fujin import codec
from netserver.fujin.listener import FujinListener
from netserver.quic import certificates, handshakes
from netserver.quic.bounded import BoundedQuic, QuicConfiguration
from netserver.quic.datagrams import ResetTokens, network_of, parse_long_header
from netserver.quic.handshakes import Handshakes
from netserver.testing import running
from tests.echo import until
from tests.fujin_peer import client_configuration, connect
from tests.quic_attacker import Attacker, number, stream_frame

ALONE = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}
Test = Callable[[Server, FujinListener], Awaitable[None]]


def serve(test: Test, errors: int = 0, **settings: Any) -> None:
    async def main() -> None:
        insecure = {"server": {"insecure": True}}  # names that do not lead to this machine alone
        async with running(settings={**ALONE, **insecure, "fujin": settings}) as server:
            listener = server.listeners["fujin"]
            assert isinstance(listener, FujinListener)
            await test(server, listener)
            assert server.counters["fujin"].session_errors == errors

    asyncio.run(main())


def place(listener: FujinListener) -> tuple[str, int]:
    return "127.0.0.1", listener.address.port


# --- other paths


def test_a_connection_that_goes_on_over_the_other_family_is_answered_there(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def both(host: Any, *arguments: Any, **more: Any) -> Any:
        """A name with two addresses; not every machine's localhost is one."""
        if host != "both.invalid":
            return real(host, *arguments, **more)
        return real("127.0.0.1", *arguments, **more) + real("::1", *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", both)

    async def test(server: Server, listener: FujinListener) -> None:
        def attack() -> bytes:
            with Attacker(place(listener)) as attacker, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as other:
                attacker.handshake()
                other.settimeout(10)
                frame = stream_frame(0, 0, codec.connect_writer() + codec.write(1, b"t", b"x"))
                other.sendto(attacker.packet(frame), ("::1", listener.address.port))
                return other.recv(65536)

        assert await asyncio.to_thread(attack)
        async with connect(place(listener)) as peer:
            await peer.publish(b"t", b"y")

    serve(test, listen="both.invalid:0")


# --- fences


@pytest.mark.parametrize("method", ["datagrams_to_send", "handle_timer", "next_event"])
def test_a_connection_that_fails_is_given_up_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server, listener: FujinListener) -> None:
        async with connect(place(listener)) as bad, connect(place(listener)) as good:
            await bad.publish(b"t", b"x")
            await good.publish(b"t", b"x")
            victim = min(listener.endpoint.peers, key=lambda peer: peer.started_at)

            def fails(*arguments: Any) -> Any:
                raise RuntimeError("a defect")

            monkeypatch.setattr(victim.quic, method, fails)
            if method == "handle_timer":
                monkeypatch.setattr(victim.quic, "get_timer", time.monotonic)
            victim._set_timer(time.monotonic())
            victim.quic.send_ping(1)
            bad.writer()
            listener.endpoint.wants_flush(victim)
            await good.publish(b"t", b"y")
            await until(lambda: victim not in listener.endpoint.peers)
            await good.publish(b"t", b"z")

    serve(test, errors=1)


# --- handshakes


def test_who_gives_way_is_the_oldest_that_never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HALF_OPEN_MAX", 5)
    monkeypatch.setattr(handshakes, "HALF_OPEN_HOST_MAX", 3)
    found = Handshakes()
    peers: list[Any] = [object() for _ in range(5)]
    for peer, host in zip(peers, ["1.1.1.1", "2001:db8::1", "2001:db8::2", "2001:db8::3", "1.1.1.1"], strict=True):
        found.begun(peer, host)
    assert found.is_full("3.3.3.3")
    found.answered(peers[0])
    assert found.gives_way("3.3.3.3") is peers[1]
    assert found.over(peers[4])
    assert not found.over(peers[4])
    assert not found.is_full("3.3.3.3")
    assert found.is_full("2001:db8::ffff")
    found.answered(peers[1])
    assert found.gives_way("2001:db8::ffff") is peers[2]
    found.answered(peers[2])
    found.answered(peers[3])
    assert found.gives_way("2001:db8::ffff") is None
    assert len(found) == 4


def test_an_ipv6_host_is_its_network() -> None:
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("2001:db8:0:1::5") == network_of("2001:db8:0:1:ffff::") != network_of("2001:db8:0:2::5")
    assert network_of("10.0.0.1") == "10.0.0.1"


def test_handshakes_that_were_given_up_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test(server: Server, listener: FujinListener) -> None:
        for _ in range(20):
            with Attacker(place(listener)) as attacker:
                ((data, _),) = attacker.quic.datagrams_to_send(now=time.monotonic())
                attacker.udp.sendto(data, place(listener))
        await until(lambda: listener.endpoint.handshakes["failed"] == 20)

    serve(test, handshake_timeout=100)
    assert sum("given up" in record.getMessage() for record in caplog.records) == 1


# --- versions, and what is not allowed


@pytest.mark.parametrize("flags", [0x80, 0xC0])
@pytest.mark.parametrize("sizes", [(0, 0), (8, 8), (21, 21), (255, 255)])
def test_an_unknown_version_is_told_which_there_are(flags: int, sizes: tuple[int, int]) -> None:
    async def test(server: Server, listener: FujinListener) -> None:
        destination_id, source_id = bytes(sizes[0]), bytes([7]) * sizes[1]
        head = bytes([flags]) + b"\x1a\x2a\x3a\x4a"
        for one in (destination_id, source_id):
            head += bytes([len(one)]) + one
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.settimeout(10)
            udp.sendto(head.ljust(1200, b"\0"), place(listener))
            answer = await asyncio.to_thread(udp.recv, 65536)
        assert parse_long_header(answer) == (0, source_id, destination_id)
        assert (1).to_bytes(4) in answer[-8:]

    serve(test)


def test_a_header_that_is_cut_off_is_none() -> None:
    whole = b"\xc0\0\0\0\1" + b"\2ab" + b"\1c"
    assert parse_long_header(whole) == (1, b"ab", b"c")
    assert all(parse_long_header(whole[:size]) is None for size in range(len(whole)))


def test_an_acknowledgement_of_what_was_never_sent_ends_the_connection() -> None:
    async def test(server: Server, listener: FujinListener) -> None:
        def attack() -> int:
            with Attacker(place(listener)) as attacker:
                attacker.handshake()
                attacker.send(b"\x02" + number(1_000_000) + number(0) * 3)
                while attacker.closed is None:
                    attacker.listen()
                return attacker.closed.error_code

        assert await asyncio.wait_for(asyncio.to_thread(attack), 30) == QuicErrorCode.PROTOCOL_VIOLATION

    serve(test)


def test_a_transport_parameter_comes_once() -> None:
    quic = BoundedQuic(client_configuration(), 10)
    parameter = number(0x04) + number(1) + number(7)
    with pytest.raises(QuicConnectionError, match="twice") as refused:
        quic._parse_transport_parameters(parameter * 2)
    assert refused.value.error_code == QuicErrorCode.TRANSPORT_PARAMETER_ERROR


# --- stateless reset


def test_a_client_learns_at_once_that_its_connection_is_not_known_any_more() -> None:
    async def test(server: Server, listener: FujinListener) -> None:
        address = f"127.0.0.1:{listener.address.port}"
        reasons: list[str] = []
        async with fujin.connect(address, verify=False, idle_timeout_s=600) as client:
            await client.publish("t", b"x")

            async def watch() -> None:
                async for event in client.events():
                    if event.name == "disconnected":
                        reasons.append(str(event.reason))

            watching = asyncio.create_task(watch())
            (peer,) = listener.endpoint.peers
            peer.forget()  # as a kill does: nobody is told
            await asyncio.wait_for(client.publish("t", b"y"), 60)
            assert reasons == ["the server does not know the connection any more"]
            watching.cancel()

    serve(test)


def test_resets_are_shorter_than_what_they_answer_and_outlive_the_server(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        configuration = QuicConfiguration(is_client=False)
        certificates.load(configuration, *certificates.own_certificate(tmp_path, "fujin"))
        found.append(ResetTokens(configuration.private_key))
    assert found[0].token(b"12345678") == found[1].token(b"12345678") != found[0].token(b"12345679")
    assert [len(found[0].reset(b"12345678", size)) for size in (21, 22, 40, 1200)] == [0, 21, 39, 43]
    assert found[0].reset(b"12345678", 30)[0] >> 6 == 1


def test_no_id_is_given_out_before_it_is_known() -> None:
    """Its first packets would be dropped, or answered with a reset."""

    async def test(server: Server, listener: FujinListener) -> None:
        endpoint = listener.endpoint
        real = endpoint.send
        unknown: list[bytes] = []

        def send(peer: Any, datagrams: Any) -> None:
            unknown.extend(one.cid for one in peer.quic._host_cids if one.was_sent and one.cid not in endpoint._by_id)
            real(peer, datagrams)

        endpoint.send = send  # type: ignore[method-assign]
        async with connect(place(listener)) as peer:
            await peer.publish(b"t", b"x")
        assert unknown == []

    serve(test)
