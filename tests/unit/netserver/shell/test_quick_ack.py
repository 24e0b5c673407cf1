"""Confirming at once what has arrived: by an option of a descriptor that is not ours to close."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct

import pytest

from netserver.shell.quick_ack import QUICKACK, QuickAck

pytestmark = pytest.mark.skipif(QUICKACK is None, reason="this kernel has no TCP_QUICKACK")


async def connected(server: socket.socket) -> tuple[asyncio.Transport, socket.socket]:
    """A transport, and the other end of it."""
    loop = asyncio.get_running_loop()
    server.setblocking(False)
    (transport, _), (peer, _) = await asyncio.gather(
        loop.create_connection(asyncio.Protocol, *server.getsockname()), loop.sock_accept(server)
    )
    peer.setblocking(False)
    return transport, peer


def test_the_transport_keeps_its_descriptor() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            transport, peer = await connected(server)
            with peer:
                confirm = QuickAck(transport)
                confirm()
                del confirm
                gc.collect()
                transport.write(b"still there")
                assert await asyncio.get_running_loop().sock_recv(peer, 100) == b"still there"
                transport.close()
                assert await asyncio.get_running_loop().sock_recv(peer, 100) == b""

    asyncio.run(scenario())


def test_a_peer_that_is_gone_is_no_trouble() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            transport, peer = await connected(server)
            confirm = QuickAck(transport)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets
            peer.close()
            confirm()
            transport.abort()

    asyncio.run(scenario())
