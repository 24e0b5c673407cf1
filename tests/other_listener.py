"""A listener that is not TCP, for tests of the server: a UDP echo with the interface that such protocols have."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from netserver.config.sections import ServerConfig
from netserver.config.settings import Address
from netserver.shell.connection import Services
from netserver.shell.inherited import Unanswered


class UdpEcho(asyncio.DatagramProtocol):
    def __init__(self, services: Services) -> None:
        self.services = services
        self.address = Address("127.0.0.1", 0)
        self.calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self.services.counters.records_published += 1
        self.transport.sendto(data, addr)

    def stop_accepting(self) -> None:
        self.calls.append("stop_accepting")

    unanswered: list[Unanswered] = []  # noqa: RUF012

    async def warn(self, deadline: float) -> None:
        raise AssertionError("nobody follows")

    async def finish(self, deadline: float) -> None:
        self.calls.append("finish")

    async def drain(self, deadline: float) -> None:
        self.calls.append("drain")
        if deadline - asyncio.get_running_loop().time() > 100:
            raise AssertionError("no bound")
        raise RuntimeError("a defect while draining")

    def close(self) -> None:
        self.calls.append("close")
        self.transport.close()


started: list[UdpEcho] = []


async def start(services: Services, config: ServerConfig) -> UdpEcho:
    """Bind the address of the configuration."""
    listen = config.fujin.listen
    assert listen is not None
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: UdpEcho(services), local_addr=(listen.host, listen.port)
    )
    protocol.address = Address(*transport.get_extra_info("sockname"))
    started.append(protocol)
    return protocol
