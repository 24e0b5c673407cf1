"""A running server with the echo protocol, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from netserver.app import Server
from netserver.testing import running
from tests.echo import ALONE, Echo, EchoSession, run, until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
