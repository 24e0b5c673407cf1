"""A raw connection of the JSON streaming protocol, and a server in this process for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

from netserver.app import Server
from netserver.reliably.listener_state import ListenerState
from netserver.reliably.session import ReliablySession
from netserver.shell.services import Services, SessionFactory
from netserver.testing import running
from tests.echo import ALONE

WAIT_S = 45.0
END_WAIT_S = 0.1


def values_of(lines: list[bytes]) -> list[int]:
    """The numbers of messages whose ids have no gap."""
    messages = [json.loads(line) for line in lines]
    ids = [message["id"] for message in messages]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    return [message["data"]["value"] for message in messages]


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *requests: dict[str, Any] | bytes) -> None:
        """Write requests, or bytes as they are, at once."""
        parts = (
            request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n" for request in requests
        )
        self.writer.write(b"".join(parts))

    async def line(self) -> bytes:
        """The next line; b"" at the end."""
        async with asyncio.timeout(WAIT_S):
            line = await self.reader.readline()
        assert not line or line.endswith(b"\n"), f"cut off: {line!r}"
        return line

    async def lines(self, count: int) -> list[bytes]:
        """The next lines."""
        return [await self.line() for _ in range(count)]

    async def message(self) -> dict[str, Any]:
        """The next message."""
        line = await self.line()
        assert line, "the server has ended the connection"
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    async def rest(self) -> list[bytes]:
        """All lines up to the server's FIN, which has to come between two lines."""
        async with asyncio.timeout(WAIT_S):
            data = await self.reader.read()
        assert not data or data.endswith(b"\n"), f"cut off: {data[-80:]!r}"
        return data.splitlines()

    async def error(self) -> str:
        """The error with which the server ends; messages in front of it are passed over."""
        lines = await self.rest()
        assert lines, "no error"
        (text,) = json.loads(lines[-1]).values()
        assert lines[-1].startswith(b'{"error":')
        return str(text)

    async def nothing(self, seconds: float = 0.1) -> None:
        """Nothing comes for a while."""
        try:
            data = await asyncio.wait_for(self.reader.read(100), seconds)
        except TimeoutError:
            return
        raise AssertionError(f"something came: {data!r}")

    async def close(self) -> None:
        """Close this end."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Place:
    """A running server, what its connections share, and peers of it."""

    def __init__(self, server: Server, shared: ListenerState) -> None:
        self.server = server
        self.shared = shared
        self.sessions = shared.sessions
        self.peers: list[Peer] = []

    @property
    def address(self) -> str:
        """For clients."""
        return str(self.server.addresses["json"])

    async def peer(self, *requests: dict[str, Any] | bytes, limit: int = 1 << 24) -> Peer:
        """A new connection that begins with these requests."""
        address = self.server.addresses["json"]
        peer = Peer(*await asyncio.open_connection(address.host, address.port, limit=limit))
        self.peers.append(peer)
        peer.send(*requests)
        return peer

    def publish(self, topic: str, *values: bytes, key: bytes = b"") -> None:
        """Append records to a topic, which is made when it is not there."""
        partition = self.server.log.partition(self.server.log.catalog.get_or_create(topic.encode()))
        partition.append(list(values), keys=[key] * len(values))

    async def committed(self) -> None:
        """Wait until everything published is readable."""
        done = asyncio.Event()
        self.server.log.drain(done.set)
        await done.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of the server."""
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.005)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self.peers:
            await peer.close()


@contextlib.asynccontextmanager
async def place(
    settings: Mapping[str, Any] | None = None, data_dir: Path | None = None, **options: Any
) -> AsyncIterator[Place]:
    """A server with this protocol alone.

    Args:
        settings: of its section.
        options: of ``ListenerState``.
    """
    made = []

    def make(services: Services) -> SessionFactory:
        shared = ListenerState(services, **{"end_wait_s": END_WAIT_S, **options})
        made.append(shared)
        return lambda connection: ReliablySession(shared, connection)

    everything = {**ALONE, "reliably": {**ALONE["reliably"], **(settings or {})}}
    async with (
        running(data_dir, everything, protocols={"json": make}) as server,
        Place(server, made[0]) as opened,
    ):
        yield opened


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine."""
    asyncio.run(asyncio.wait_for(test, 100), debug=False)
