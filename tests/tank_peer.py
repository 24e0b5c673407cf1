"""A raw TANK connection, short ways to make requests, and a server for them: for the tests of TANK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from engine.formats.bundle_encode import encode_bundle
from netserver.app import Server
from netserver.tank import codec, messages, wire
from netserver.testing import running
from tests.echo import run

WAIT_S = 20.0
T = TypeVar("T")


def bundle(*values: bytes, codec: int = 0, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """A bundle without own numbers."""
    return encode_bundle(values, None, [timestamp_ms] * len(values), codec=codec)


def sparse(*seqs: int) -> bytes:
    """A bundle that brings these numbers; the values are their digits."""
    return encode_bundle([b"%d" % seq for seq in seqs], None, [5] * len(seqs), sparse_seqs=seqs)


def produce(
    request_id: int, topic: bytes, *bundles: bytes, partition_id: int = 0, base_seq: int | None = None
) -> messages.ProduceRequest:
    """A request with these bundles for one partition."""
    parts = tuple(messages.ProducePartition(partition_id, data, base_seq or 0) for data in bundles)
    return messages.ProduceRequest(request_id, (messages.ProduceTopic(topic, parts),), base_seq is not None)


def consume(
    request_id: int,
    topic: bytes,
    *entries: tuple[int, int] | tuple[int, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 0,
) -> messages.ConsumeRequest:
    """A request for (partition, sequence number[, fetch size]) of one topic."""
    parts = tuple(messages.ConsumePartition(*entry[:2], entry[2] if len(entry) > 2 else 1 << 20) for entry in entries)
    return messages.ConsumeRequest(request_id, (messages.ConsumeTopic(topic, parts),), max_wait_ms, min_bytes)


def bundles_of(chunk: bytes | memoryview) -> Iterator[bytes]:
    """The bundles of a chunk."""
    reader = wire.Reader(memoryview(chunk))
    while reader.left:
        yield bytes(reader.take(reader.varint()))


class Peer:
    """One connection; ``receive`` gives whole frames, ``answer`` decoded ones."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: Sequence[object]) -> Self:
        """Connect and take the Ping."""
        peer = cls(*await asyncio.open_connection(*address))  # type: ignore[arg-type]
        ping = await peer.receive()
        assert ping == b"\x03\0\0\0\0", ping
        return peer

    def send(self, *requests: messages.Request | bytes) -> None:
        """Write requests (or raw bytes) at once."""
        self.writer.write(b"".join(r if isinstance(r, bytes) else codec.encode_request(r) for r in requests))

    async def receive(self) -> bytes:
        """The next frame, b"" when the server has closed."""
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.read(1)
            if not head:
                return b""
            head += await self.reader.readexactly(4)
            return head + await self.reader.readexactly(wire.U32.unpack_from(head, 1)[0])

    async def answer(self, kind: type[T]) -> T:
        """The next answer, which must be of this type."""
        frame = await self.receive()
        assert frame, "the server closed the connection"
        response = codec.decode_response(frame[0], memoryview(frame)[5:])
        assert isinstance(response, kind), response
        return response

    async def create(self, topic: bytes, partitions: int = 1, config: bytes = b"") -> int:
        """CreateTopic; the code."""
        self.send(messages.CreateTopicRequest(1, topic, partitions, config))
        return (await self.answer(messages.CreateTopicResponse)).code

    async def produce(self, topic: bytes, *bundles: bytes, partition_id: int = 0, base_seq: int | None = None) -> bytes:
        """Produce; the codes."""
        self.send(produce(2, topic, *bundles, partition_id=partition_id, base_seq=base_seq))
        return (await self.answer(messages.ProduceResponse)).codes

    async def consume(self, *arguments: object, **more: int) -> tuple[messages.ConsumedPartition, ...]:
        """Consume of one topic (arguments as of the function); its partitions."""
        self.send(consume(3, *arguments, **more))  # type: ignore[arg-type]
        return (await self.answer(messages.ConsumeResponse)).topics[0].partitions

    async def ranges(self, topic: bytes, *ids: int) -> tuple[messages.PartitionRange, ...]:
        """DiscoverPartitions."""
        self.send(messages.DiscoverPartitionsRequest(4, topic, ids))
        return (await self.answer(messages.DiscoverPartitionsResponse)).partitions

    async def closed_by_server(self) -> None:
        """Wait for the server to close; nothing else may come."""
        assert await self.receive() == b""
        await self.close()

    async def close(self) -> None:
        """Close this end."""
        self.writer.close()
        await self.writer.wait_closed()


def values(partition: messages.ConsumedPartition) -> list[bytes]:
    """The bundles of a chunk."""
    return list(bundles_of(partition.chunk))


Test = Callable[["Place"], Awaitable[None]]


class Place:
    """A running server and peers of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peers: list[Peer] = []

    async def peer(self) -> Peer:
        """A new connection."""
        address = self.server.addresses["tank"]
        peer = await Peer.open((address.host, address.port))
        self.peers.append(peer)
        return peer

    def partition(self, name: bytes, index: int = 0) -> Any:
        """The engine's object."""
        topic = self.server.log.catalog.get(name)
        assert topic is not None
        return self.server.log.partition(topic, index)


def with_server(test: Test, loop: str = "asyncio", data_dir: Path | None = None, **sections: dict[str, object]) -> None:
    """Run ``test`` with a server in the same event loop; keyword arguments are sections of its configuration."""

    async def main() -> None:
        async with running(data_dir, sections) as server:
            place = Place(server)
            try:
                await test(place)
            finally:
                for peer in place.peers:
                    peer.writer.transport.abort()

    run(loop, main())
