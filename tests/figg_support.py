"""A raw Figg connection (with our codec), servers for it, and a proxy that cuts connections: for the tests of Figg."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from engine.partitions.partition import Partition
from netserver.app import Server
from netserver.figg import codec
from netserver.testing import running
from tests.echo import run

WAIT_S = 20.0
OTHERS = ("reliably", "tank", "blipmq", "fujin", "kafka")
ONLY_FIGG: dict[str, dict[str, Any]] = {name: {"listen": "off"} for name in OTHERS}
M = TypeVar("M", bound=codec.Message)


class Peer:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = codec.Decoder("client", 1 << 28)
        self.ready: list[codec.Message] = []

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        return cls(*await asyncio.open_connection(host, port, limit=1 << 22))

    def send(self, *messages: codec.Message | bytes) -> None:
        """Write messages (or raw bytes) in one go."""
        self.writer.write(b"".join(m if isinstance(m, bytes) else codec.encode(m) for m in messages))

    def publish(self, topic: bytes, first: int, *values: bytes) -> None:
        self.send(*(codec.Publish(topic, first + n, value) for n, value in enumerate(values)))

    async def next(self) -> codec.Message | None:
        """The next message; None: the server has closed."""
        async with asyncio.timeout(WAIT_S):
            while not self.ready:
                try:
                    data = await self.reader.read(1 << 18)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self.ready = self.decoder.feed(data)
        return self.ready.pop(0)

    async def expect(self, kind: type[M]) -> M:
        """The next message, which must be of this type."""
        message = await self.next()
        assert isinstance(message, kind), message
        return message

    async def acked(self, number: int) -> None:
        """Read until everything up to ``number`` is acknowledged."""
        while (message := await self.next()) is not None:
            if isinstance(message, codec.Ack) and message.seq_num >= number:
                return
        raise AssertionError(f"closed before the ACK of {number}")

    async def read_attached(self) -> codec.Attached:
        """The next message, ATTACHED."""
        return await self.expect(codec.Attached)

    async def read(self, topic: bytes, count: int) -> list[tuple[int, bytes]]:
        """(offset, data) of the next ``count`` DATA of a topic; ACKs are passed over."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            message = await self.next()
            if isinstance(message, codec.Data):
                assert message.topic == topic
                found.append((message.offset, message.data))
            else:
                assert isinstance(message, codec.Ack), message
        return found

    async def history(self, topic: bytes, count: int, offset: int = 0) -> list[tuple[int, bytes]]:
        """ATTACH at ``offset`` and read."""
        self.send(codec.Attach(topic, offset))
        await self.expect(codec.Attached)
        return await self.read(topic, count)

    async def silent(self) -> None:
        """Nothing else comes before the answer to a ping."""
        self.send(codec.Ping(4711))
        assert await self.next() == codec.Pong(4711)

    async def closed_by_server(self) -> list[codec.Message]:
        """What still comes before the server closes."""
        rest = []
        while (message := await self.next()) is not None:
            rest.append(message)
        return rest

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        """End the connection, and wait for that."""
        self.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Place:
    """A running server in this loop, and peers of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peers: list[Peer] = []

    @property
    def address(self) -> tuple[str, int]:
        address = self.server.addresses["figg"]
        return address.host, address.port

    async def peer(self) -> Peer:
        """A new connection."""
        peer = await Peer.open(*self.address)
        self.peers.append(peer)
        return peer

    def partition(self, topic: bytes) -> Partition:
        """The engine's object."""
        found = self.server.log.catalog.get(topic)
        assert found is not None
        return self.server.log.partition(found)


Test = Callable[[Place], Awaitable[None]]


def with_server(
    test: Test, settings: Mapping[str, Mapping[str, Any]] | None = None, data_dir: Path | None = None
) -> None:
    """Run ``test`` with a server in the same event loop."""

    async def main() -> None:
        async with running(data_dir, {**ONLY_FIGG, **(settings or {})}) as server:
            place = Place(server)
            try:
                await test(place)
            finally:
                for peer in place.peers:
                    await peer.close()

    run("asyncio", main())


class Proxy:
    """Passes bytes on to an address until it is told otherwise.

    Attributes:
        address: where it listens.
        accepted: connections so far.
        dropping: what comes is swallowed, in both directions.
        to_server: everything that clients sent, by connection.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.accepted = 0
        self.dropping = False
        self.refusing = False
        self.to_server: list[bytearray] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def cut(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        seen = bytearray()
        self.to_server.append(seen)
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, up_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._pass(reader, up_writer, seen), self._pass(up_reader, writer, None))
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray | None) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if seen is not None:
                    seen += data
                if not self.dropping:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def proxied(place: Place) -> AsyncIterator[Proxy]:
    """A proxy in front of a server."""
    proxy = Proxy(place.address)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


class OldServer:
    """A server that answers as a script says: ``answer(message)`` gives what to write, or None.

    Attributes:
        received: messages of all connections, in order, without a PING that comes first;
            ``connections`` tells where each one began.
    """

    def __init__(self, answer: Callable[[codec.Message], bytes | None]) -> None:
        self.answer = answer
        self.received: list[codec.Message] = []
        self.connections: list[int] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(len(self.received))
        self.writers.append(writer)
        decoder = codec.Decoder("server")
        first = True
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    is_probe = first and isinstance(message, codec.Ping)  # "is this Figg?"
                    first = False
                    if is_probe:
                        continue
                    self.received.append(message)
                    answer = self.answer(message)
                    if answer:
                        writer.write(answer)
        writer.transport.abort()


def together(*coroutines: Coroutine[Any, Any, Any]) -> asyncio.Future[list[Any]]:
    """All of them at once."""
    return asyncio.gather(*coroutines)
