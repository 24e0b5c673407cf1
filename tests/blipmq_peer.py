"""A plain BlipMQ client for tests: a blocking socket, frames as bytes, answers one by one."""

from __future__ import annotations

import asyncio
import itertools
import socket
from types import TracebackType
from typing import Any, Self

from netserver.blipmq import codec, codec_v2
from netserver.blipmq.codec import Decoder, Frame, FrameType
from netserver.blipmq.codec_v2 import Deliver

KEY = "dev-key-1"
TIMEOUT_S = 20.0


class Peer:
    """One connection."""

    def __init__(self, address: tuple[str, int], *, login: bool = True, key: str = KEY, version: int = 1) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder()
        self._cids = itertools.count(1 << 63)
        if login:
            self.send(codec.hello(1, version) + codec.auth(2, key))
            assert self.frames(2) == [Frame(FrameType.ACK, 1, bytes(8)), Frame(FrameType.ACK, 2, bytes(8))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> Frame:
        """The next frame. Raises EOFError at the end of the stream."""
        while (frame := self._decoder.next_frame()) is None:
            data = self.socket.recv(1 << 18)
            if not data:
                raise EOFError("inside a frame" if self._decoder.pending_bytes else "")
            self._decoder.receive(data)
        return frame

    def frames(self, count: int) -> list[Frame]:
        return [self.frame() for _ in range(count)]

    def until_pong(self, cid: int | None = None) -> list[Frame]:
        """Send a PING and take everything up to its PONG."""
        if cid is None:
            cid = next(self._cids)
            self.send(codec.ping(cid))
        got = []
        while (frame := self.frame()) != Frame(FrameType.PONG, cid, b""):
            got.append(frame)
        return got

    def at_eof(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            frame = self.frame()
        except EOFError as end:
            return not str(end)
        except ConnectionResetError:
            return True
        raise AssertionError(f"a frame instead of the end: {frame}")

    # --- whole requests

    def subscribe(self, topic: bytes, qos: int = 1) -> int:
        cid = next(self._cids)
        self.send(codec.subscribe(cid, topic, qos))
        frame = self.frame()
        assert (frame.type, frame.cid) == (FrameType.ACK, cid), frame
        return codec.parse_ack(frame.payload)

    def publish(self, topic: bytes, *bodies: bytes, qos: int = 1) -> None:
        """Publish and wait until it is stored."""
        self.send(b"".join(codec.publish(next(self._cids), qos, topic, body) for body in bodies))
        assert self.until_pong() == []

    def poll(self, subscription_id: int, count: int = 1) -> list[tuple[int, bytes]]:
        """(cid, body) of what ``count`` POLLs give."""
        self.send(b"".join(codec.poll(next(self._cids), subscription_id) for _ in range(count)))
        return [(frame.cid, codec.parse_publish(frame.payload).body) for frame in self.until_pong()]

    def ack(self, subscription_id: int, *tags: int) -> list[codec.Nack]:
        """Acknowledge; the refusals."""
        self.send(b"".join(codec.ack(tag, subscription_id) for tag in tags))
        return [codec.parse_nack(frame.payload) for frame in self.until_pong()]


class AsyncPeer:
    """The same in an event loop, for servers that run in it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = Decoder()
        self._cids = itertools.count(1 << 63)

    @classmethod
    async def open(cls, address: tuple[str, int], *, login: bool = True, key: str = KEY) -> Self:
        peer = cls(*await asyncio.open_connection(*address))
        if login:
            peer.send(codec.hello(1) + codec.auth(2, key))
            assert await peer.frames(2) == [Frame(FrameType.ACK, 1, bytes(8)), Frame(FrameType.ACK, 2, bytes(8))]
        return peer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> Frame:
        """The next frame. Raises EOFError at the end of the stream."""
        async with asyncio.timeout(TIMEOUT_S):
            while (frame := self._decoder.next_frame()) is None:
                data = await self.reader.read(1 << 18)
                if not data:
                    raise EOFError("inside a frame" if self._decoder.pending_bytes else "")
                self._decoder.receive(data)
        return frame

    async def frames(self, count: int) -> list[Frame]:
        return [await self.frame() for _ in range(count)]

    async def at_eof(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            frame = await self.frame()
        except EOFError as end:
            return not str(end)
        except ConnectionResetError:
            return True
        raise AssertionError(f"a frame instead of the end: {frame}")

    async def nack(self) -> tuple[int, int, str]:
        """The next frame, a NACK: cid, code, text."""
        frame = await self.frame()
        assert frame.type == FrameType.NACK, frame
        return (frame.cid, *codec.parse_nack(frame.payload))

    async def until_pong(self, cid: int | None = None) -> list[Frame]:
        """Send a PING and take everything up to its PONG."""
        if cid is None:
            cid = next(self._cids)
            self.send(codec.ping(cid))
        got = []
        while (frame := await self.frame()) != Frame(FrameType.PONG, cid, b""):
            got.append(frame)
        return got

    async def subscribe(self, topic: bytes, qos: int = 1) -> int:
        cid = next(self._cids)
        self.send(codec.subscribe(cid, topic, qos))
        frame = await self.frame()
        assert (frame.type, frame.cid) == (FrameType.ACK, cid), frame
        return codec.parse_ack(frame.payload)

    async def publish(self, topic: bytes, *bodies: bytes, qos: int = 1) -> None:
        """Publish and wait until it is stored."""
        self.send(b"".join(codec.publish(next(self._cids), qos, topic, body) for body in bodies))
        assert await self.until_pong() == []

    async def poll(self, subscription_id: int, count: int = 1) -> list[tuple[int, bytes]]:
        """(cid, body) of what ``count`` POLLs give."""
        self.send(b"".join(codec.poll(next(self._cids), subscription_id) for _ in range(count)))
        return [(frame.cid, codec.parse_publish(frame.payload).body) for frame in await self.until_pong()]

    async def ack(self, subscription_id: int, *tags: int) -> list[codec.Nack]:
        """Acknowledge; the refusals."""
        self.send(b"".join(codec.ack(tag, subscription_id) for tag in tags))
        return [codec.parse_nack(frame.payload) for frame in await self.until_pong()]


class Peer2(AsyncPeer):
    """A peer that speaks version 2."""

    @classmethod
    async def open(cls, address: tuple[str, int], *, login: bool = True, key: str = "k") -> Peer2:
        peer = cls(*await asyncio.open_connection(*address))
        peer.send(codec.hello(1, 2) + codec.auth(2, key))
        assert await peer.frames(2) == [Frame(FrameType.ACK, 1, bytes(8)), Frame(FrameType.ACK, 2, bytes(8))]
        return peer

    async def frame(self) -> Frame:
        """As the base, DELIVER included."""
        async with asyncio.timeout(20):
            while True:
                data = self._raw
                if len(data) >= 13:
                    end = 4 + int.from_bytes(data[:4], "big")
                    if len(data) >= end:
                        self._raw = data[end:]
                        return Frame(data[4], int.from_bytes(data[5:13], "big"), data[13:end])
                more = await self.reader.read(1 << 18)
                if not more:
                    raise EOFError("inside a frame" if data else "")
                self._raw += more

    _raw = b""

    async def join(self, topic: bytes, qos: int = 1, **more: Any) -> int:
        self.send(codec_v2.subscribe(77, topic, qos, **more))
        frame = await self.frame()
        assert (frame.type, frame.cid) == (FrameType.ACK, 77), frame
        return codec.parse_ack(frame.payload)

    async def delivered(self, count: int) -> list[Deliver]:
        found = []
        for _ in range(count):
            frame = await self.frame()
            assert frame.type == codec_v2.DELIVER, frame
            deliver = codec_v2.parse_deliver(frame.payload)
            assert frame.cid == deliver.tag
            found.append(deliver)
        return found

    async def bodies(self, count: int) -> list[bytes]:
        return [deliver.body for deliver in await self.delivered(count)]
