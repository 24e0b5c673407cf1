"""A raw Kafka connection, and batches of records made and read by hand: for the tests of Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import crcmod.predefined

from netserver.app import Server
from netserver.kafka.apis import APIS, Key
from netserver.kafka.codec import Head, decode_response, encode_request
from netserver.kafka.schema import Values
from netserver.testing import running
from tests.echo import run

WAIT_S = 20.0
TIMESTAMP_MS = 1_795_890_000_000
crc32c: Callable[[bytes], int] = crcmod.predefined.mkCrcFun("crc-32c")
_BATCH = struct.Struct(">qiibI")
_INSIDE = struct.Struct(">hiqqqhii")


class Record(NamedTuple):
    """As a client has it; ``offset`` means nothing for one to be sent."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = TIMESTAMP_MS
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = 0


def varint(value: int) -> bytes:
    """A zigzag varint."""
    number = value << 1 ^ value >> 63
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch(
    *records: Record | bytes, producer: tuple[int, int, int] = (-1, -1, -1), attributes: int = 0, base: int = 0
) -> bytes:
    """A batch of records, uncompressed; ``producer`` is its id, epoch and first sequence."""
    found = [record if isinstance(record, Record) else Record(record) for record in records]
    first_ms = found[0].timestamp_ms if found else TIMESTAMP_MS
    body = bytearray()
    for delta, record in enumerate(found):
        headers = b"".join(_field(name.encode()) + _field(value) for name, value in record.headers)
        inside = b"".join((
            b"\0", varint(record.timestamp_ms - first_ms), varint(delta), _field(record.key), _field(record.value),
            varint(len(record.headers)), headers,
        ))  # fmt: skip
        body += varint(len(inside)) + inside
    last_ms = max((record.timestamp_ms for record in found), default=first_ms)
    covered = _INSIDE.pack(attributes, len(found) - 1, first_ms, last_ms, *producer, len(found)) + body
    return _BATCH.pack(base, len(covered) + 9, -1, 2, crc32c(covered)) + covered


class _Walk:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)
            shift += 7

    def field(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length : self.at]


def records_of(data: bytes) -> Iterator[Record]:
    """The records of uncompressed batches; asserts that these are valid."""
    at = 0
    while at < len(data):
        base, size, _, magic, crc = _BATCH.unpack_from(data, at)
        covered = data[at + _BATCH.size : at + 12 + size]
        at += 12 + size
        assert magic == 2
        assert crc == crc32c(covered)
        attributes, last, first_ms, last_ms, _, _, _, count = _INSIDE.unpack_from(covered)
        assert not attributes & 7, "uncompressed"
        walk = _Walk(covered)
        walk.at = _INSIDE.size
        offset = timestamp_ms = -1
        for _ in range(count):
            walk.varint()
            walk.at += 1
            timestamp_ms = first_ms + walk.varint()
            offset = base + walk.varint()
            assert timestamp_ms <= last_ms
            key, value = walk.field(), walk.field()
            headers = tuple(((walk.field() or b"").decode(), walk.field()) for _ in range(walk.varint()))
            yield Record(value, key, timestamp_ms, headers, offset)
        assert walk.at == len(covered)
        assert offset <= base + last


OPEN: list[Peer] = []
"""Connections that ``with_server`` closes at the end."""


class Peer:
    """One connection. ``ask`` sends a request of the highest version (or ``version``) and gives its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation = 0
        self._heads: list[Head] = []

    @classmethod
    async def open(cls, address: Any) -> Self:
        """Connect."""
        host, port = (address.host, address.port) if hasattr(address, "host") else address
        peer = cls(*await asyncio.open_connection(host, port))
        OPEN.append(peer)
        return peer

    def send(self, key: Key, body: Values, version: int | None = None) -> Head:
        """Send a request."""
        self._correlation += 1
        head = Head(key, APIS[key].last if version is None else version, self._correlation)
        if key != Key.PRODUCE or body["acks"]:
            self._heads.append(head)
        self.writer.write(encode_request(head, "test", body))
        return head

    async def frame(self) -> bytes:
        """The next frame, with its length; empty at the end."""
        try:
            async with asyncio.timeout(WAIT_S):
                size = await self.reader.readexactly(4)
                return size + await self.reader.readexactly(int.from_bytes(size, "big"))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b""

    async def answer(self) -> Values:
        """The answer to the oldest request that has none."""
        frame, head = await self.frame(), self._heads.pop(0)
        assert frame, f"the connection was closed instead of an answer to {head}"
        assert int.from_bytes(frame[4:8], "big") == head.correlation
        return decode_response(memoryview(frame), head)

    async def ask(self, key: Key, body: Values, version: int | None = None) -> Values:
        """See the class."""
        assert not self._heads
        self.send(key, body, version)
        return await self.answer()

    async def is_closed(self) -> bool:
        """Whether the server closes the connection without another byte."""
        async with asyncio.timeout(WAIT_S):
            try:
                return not await self.reader.read(1)
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    # --- short ways

    async def make(self, topic: str, partitions: int = 1, **more: Any) -> int:
        """Make a topic; the error."""
        found = await self.ask(Key.CREATE_TOPICS, new_topic(topic, partitions, **more))
        error: int = found["topics"][0]["error"]
        return error

    async def produce(self, topic: str, *records: Record | bytes, index: int = 0, acks: int = -1) -> Values:
        """Produce a batch; the result of its partition."""
        found = await self.ask(Key.PRODUCE, produce(topic, batch(*records), index=index, acks=acks))
        return result_of(found)

    async def fetch(self, topic: str, offset: int, index: int = 0, **options: int) -> Values:
        """Fetch from one partition; its result."""
        return result_of(await self.ask(Key.FETCH, fetch(topic, (index, offset), **options)))

    async def records(self, topic: str, offset: int = 1, index: int = 0, **options: int) -> list[Record]:
        """Records from an offset on."""
        found = await self.fetch(topic, offset, index, **options)
        assert found["error"] == 0, found
        return [record for record in records_of(bytes(found["records"])) if record.offset >= offset]

    async def offset(self, topic: str, timestamp_ms: int, index: int = 0, version: int | None = None) -> Values:
        """ListOffsets of one partition; its result."""
        partitions = [{"index": index, "timestamp_ms": timestamp_ms}]
        return result_of(await self.ask(Key.LIST_OFFSETS, by_topic(topic, partitions), version))


def result_of(answer: Values) -> Values:
    """That of the first partition."""
    result: Values = answer["topics"][0]["partitions"][0]
    return result


def by_topic(topic: str, partitions: list[Values], **more: Any) -> Values:
    """A body of a request that names partitions by topic."""
    return {"topics": [{"name": topic, "partitions": partitions}], **more}


def new_topic(
    topic: str, partitions: int = 1, replicas: int = 1, validate_only: bool = False, **configs: str
) -> Values:
    """The body of a CreateTopics; configurations are written with ``_`` for ``.``."""
    named = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    wanted = {"name": topic, "partitions": partitions, "replicas": replicas, "assignments": (), "configs": named}
    return {"topics": [wanted], "timeout_ms": 1000, "validate_only": validate_only}


def produce(topic: str, records: bytes, *, index: int = 0, acks: int = -1) -> Values:
    """The body of a Produce to one partition."""
    return by_topic(topic, [{"index": index, "records": records}], acks=acks, timeout_ms=1000)


def fetch(topic: str, *entries: tuple[int, int] | tuple[int, int, int], **options: int) -> Values:
    """The body of a Fetch of (partition, offset[, bytes])."""
    partitions = [
        {"index": entry[0], "offset": entry[1], "max_bytes": entry[2] if len(entry) > 2 else 1 << 20}
        for entry in entries
    ]
    usual = {"wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, "isolation": 0}
    return by_topic(topic, partitions, **(usual | options))


def metadata(*topics: str, auto_create: bool = True) -> Values:
    """The body of a Metadata about these topics."""
    return {"topics": [{"name": name} for name in topics], "auto_create": auto_create}


def with_server(
    scenario: Callable[[Server], Awaitable[None]],
    path: Path | None = None,
    settings: dict[str, dict[str, Any]] | None = None,
    loop: str = "uvloop",
) -> None:
    """Run a scenario against a server in this process."""

    async def test() -> None:
        async with running(path, settings) as server:
            try:
                await scenario(server)
            finally:
                while OPEN:
                    await OPEN.pop().close()

    run(loop, test())


def all_errors(answer: Values) -> Iterable[int]:
    """Those of all partitions of an answer."""
    return [partition["error"] for topic in answer["topics"] for partition in topic["partitions"]]
