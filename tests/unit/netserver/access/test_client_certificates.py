"""Who somebody is by the certificate that he shows, over TCP and over QUIC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from netserver.access.key_file import add_identity
from netserver.app import Server
from netserver.fujin import codec as fujin
from netserver.fujin.codec import Answer
from netserver.quic.client_certificates import BAD_CERTIFICATE, CERTIFICATE_REQUIRED
from netserver.testing import running
from tests import fujin_peer
from tests.certificates import self_signed, signed
from tests.figg_peer import publish_frame

pytestmark = pytest.mark.whole


class Files:
    """An authority, a server's certificate and an access file in which `shop` may publish to orders."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = self_signed(directory, "authority")
        self.server = signed(directory, "localhost", self.authority, for_clients=False)
        self.shop = signed(directory, "shop", self.authority)
        self.unknown = signed(directory, "unknown", self.authority)
        self.forged = signed(directory, "shop2", self_signed(directory, "another"))
        self.access = directory / "access"
        rights = {"publish": ["orders"], "subscribe": []}
        add_identity(self.access, {"name": "shop", "certificates": ["DNS:shop.example"]} | rights)

    def settings(self, listener: str, **more: str) -> dict[str, dict[str, Any]]:
        tls = {"tls_certificate": self.server[0], "tls_key": self.server[1], "tls_client_ca": self.authority[0]}
        return {"access": {"file": str(self.access)}, listener: tls | more}

    def client(self, files: tuple[str, str] | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority[0])
        context.check_hostname = False
        if files is not None:
            context.load_cert_chain(*files)
        return context


async def publish(server: Server, context: ssl.SSLContext, topic: bytes) -> bool:
    """Whether a publish through Figg is acknowledged; raises when the connection ends instead."""
    where = server.addresses["figg"]
    reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context, server_hostname="localhost")
    try:
        before = server.access.audit.refused
        writer.write(publish_frame(topic, 0, b"x"))
        answer = asyncio.ensure_future(reader.readexactly(8))
        async with asyncio.timeout(20):
            while not answer.done() and server.access.audit.refused == before:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        if not answer.done():
            answer.cancel()
            return False
        return struct.unpack(">HHI", answer.result())[0] == 6
    finally:
        writer.transport.abort()


def test_a_certificate_says_who_somebody_is_over_tcp(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def test() -> None:
        async with running(tmp_path / "data", files.settings("figg")) as server:
            assert await publish(server, files.client(files.shop), b"orders")
            assert not await publish(server, files.client(files.shop), b"other")
            for nobody in (None, files.forged):
                with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                    await publish(server, files.client(nobody), b"orders")
            assert server.counters["figg"].records_published == 1
            assert not await publish(server, files.client(files.unknown), b"orders"), "its name is in no line"

    asyncio.run(test())


def test_a_certificate_may_be_left_out_where_others_are_let_in_too(tmp_path: Path) -> None:
    files = Files(tmp_path)
    add_identity(files.access, {"name": "rest", "anyone": True, "publish": ["public"], "subscribe": []})

    async def test() -> None:
        settings = files.settings("figg", clients="certificate,anyone")
        async with running(tmp_path / "data", settings) as server:
            assert await publish(server, files.client(None), b"public")
            assert not await publish(server, files.client(None), b"orders")
            assert await publish(server, files.client(files.shop), b"orders")
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await publish(server, files.client(files.forged), b"public")

    asyncio.run(test())


def test_an_authority_alone_lets_in_whoever_has_its_certificate(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def test() -> None:
        settings = {"figg": files.settings("figg")["figg"]}
        async with running(tmp_path / "data", settings) as server:
            assert await publish(server, files.client(files.unknown), b"anything")
            assert server.access.door("figg").ways == ("certificate",)

    asyncio.run(test())


async def write(server: Server, files: tuple[str, str] | None, topic: bytes) -> bytes:
    """What a WRITE through Fujin gets."""
    configuration = fujin_peer.client_configuration()
    if files is not None:
        configuration.load_cert_chain(*files)
    where = server.addresses["fujin"]
    async with fujin_peer.connect((where.host, where.port), configuration) as peer:
        stream = peer.writer()
        stream.send(fujin.write(1, topic, b"x") + fujin.DISCONNECT)
        return await stream.rest()


def test_a_certificate_says_who_somebody_is_over_fujin(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def closed_with(server: Server, shown: tuple[str, str] | None) -> int:
        configuration = fujin_peer.client_configuration()
        if shown is not None:
            configuration.load_cert_chain(*shown)
        where = server.addresses["fujin"]
        async with asyncio.timeout(20), fujin_peer.connect((where.host, where.port), configuration) as peer:
            await peer.wait_closed()
            event = peer._quic._close_event
            assert event is not None
            return int(event.error_code)

    async def test() -> None:
        async with running(tmp_path / "data", files.settings("fujin")) as server:
            assert await write(server, files.shop, b"orders") == fujin.done(Answer.WRITE, 1) + fujin.DISCONNECT
            assert b"shop may not publish 'other'" in await write(server, files.shop, b"other")
            assert await closed_with(server, None) == CERTIFICATE_REQUIRED
            assert await closed_with(server, files.forged) == BAD_CERTIFICATE
            assert await closed_with(server, files.server) == BAD_CERTIFICATE, "it is not for clients"
            assert await closed_with(server, files.unknown) < 0x100, "it is sound, and nobody's"
            assert server.counters["fujin"].closed["refused"] == 4
            assert server.counters["fujin"].records_published == 1

    asyncio.run(test())


def test_nobody_who_is_not_let_in_is_read_or_answered(tmp_path: Path) -> None:
    """Over plain TCP: the connection stays for a second, so that its client does not dial in a circle."""
    path = tmp_path / "access"
    add_identity(path, {"name": "far", "networks": ["192.0.2.0/24"]})

    async def test() -> None:
        async with running(tmp_path / "data", {"access": {"file": str(path)}}) as server:
            where = server.addresses["figg"]
            with socket.create_connection((where.host, where.port)) as stranger:
                stranger.sendall(publish_frame(b"t", 0, b"x"))
                loop = asyncio.get_running_loop()
                began = loop.time()
                stranger.settimeout(20)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.to_thread(stranger.recv, 100) == b""
                assert loop.time() - began > 0.5
            assert server.log.catalog.get(b"t") is None
            assert server.counters["figg"].closed["refused"] == 1

    asyncio.run(test())
