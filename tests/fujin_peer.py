"""A Fujin client for tests, over aioquic's own client: raw bytes on streams, nothing known of the server's code but its
codec."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aioquic.asyncio.client import connect as quic_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

from netserver.fujin import codec
from netserver.fujin.codec import PULL, PUSH, Answer, Op
from netserver.fujin.codec_answers import AnswerDecoder, Event, Message

PATIENCE_S = 10.0


class Stream:
    """One stream.

    Attributes:
        came: what was received and not taken yet.
        ended: the server has sent FIN; ``was_reset``: RESET_STREAM; ``stopped``: STOP_SENDING.
    """

    def __init__(self, peer: Peer, stream_id: int) -> None:
        self.peer = peer
        self.id = stream_id
        self.loop = asyncio.get_running_loop()
        self.came = bytearray()
        self.ended = False
        self.was_reset = False
        self.stopped = False
        self.news = asyncio.Event()
        self.decoder: AnswerDecoder | None = None

    def send(self, data: bytes, *, fin: bool = False) -> None:
        self.peer._quic.send_stream_data(self.id, data, fin)
        self.peer.transmit()

    def reset(self) -> None:
        self.peer._quic.reset_stream(self.id, 0)
        self.peer.transmit()

    def stop(self) -> None:
        self.peer._quic.stop_stream(self.id, 0)
        self.peer.transmit()

    async def _wait(self, patience_s: float = PATIENCE_S) -> None:
        self.news.clear()
        await asyncio.wait_for(self.news.wait(), patience_s)

    async def take(self, size: int) -> bytes:
        """The next bytes; fewer when the stream ends before."""
        while len(self.came) < size and not self.ended and not self.was_reset:
            await self._wait()
        taken = bytes(self.came[:size])
        del self.came[:size]
        return taken

    async def rest(self) -> bytes:
        """Everything up to FIN."""
        while not self.ended:
            assert not self.was_reset, "the server has reset a stream"
            await self._wait()
        taken = bytes(self.came)
        self.came.clear()
        return taken

    async def silence(self, for_s: float) -> None:
        """Nothing comes (what has come before does not count)."""
        before = len(self.came), self.ended
        with contextlib.suppress(TimeoutError):
            await self._wait(for_s)
        assert (len(self.came), self.ended) == before

    async def event(self, *, auto: bool = False) -> Event:
        """The next answer, decoded."""
        if self.decoder is None:
            self.decoder = AnswerDecoder(auto=auto)
        while True:
            self.decoder.feed(bytes(self.came))
            self.came.clear()
            found = self.decoder.next()
            if found is not None:
                return found
            assert not self.ended, "the stream has ended"
            await self._wait()

    async def messages(self, count: int, *, auto: bool = False) -> list[Message]:
        """So many pushed messages."""
        found: list[Message] = []
        while len(found) < count:
            message = await self.event(auto=auto)
            assert isinstance(message, Message), message
            found.append(message)
        return found


class Peer(QuicConnectionProtocol):
    """One connection.

    Attributes:
        pings: streams that the server has opened; answered at once unless ``answers_pings`` is off.
        closed_with: (code, reason) once the connection is closed.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.streams: dict[int, Stream] = {}
        self.pings: list[Stream] = []
        self.answers_pings = True
        self.closed_with: tuple[int, str] | None = None
        self.closed = asyncio.Event()
        self.pinged = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.socket = transport

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.ConnectionTerminated):
            self.closed_with = event.error_code, event.reason_phrase
            self.closed.set()
            for stream in self.streams.values():
                stream.was_reset = True
                stream.news.set()
        if not isinstance(event, events.StreamDataReceived | events.StreamReset | events.StopSendingReceived):
            return
        if event.stream_id not in self.streams:
            self.streams[event.stream_id] = Stream(self, event.stream_id)
            self.pings.append(self.streams[event.stream_id])
            self.pinged.set()
        stream = self.streams[event.stream_id]
        if isinstance(event, events.StreamDataReceived):
            assert not stream.ended or not event.data, "bytes behind FIN"
            stream.came += event.data
            stream.ended = stream.ended or event.end_stream
        elif isinstance(event, events.StreamReset):
            stream.was_reset = True
        else:
            stream.stopped = True
        stream.news.set()
        if stream in self.pings and stream.ended and self.answers_pings:
            stream.send(codec.PONG, fin=True)

    async def ping_stream(self, number: int) -> Stream:
        """The stream of the PING with this number, from 0."""
        while len(self.pings) <= number:
            self.pinged.clear()
            await asyncio.wait_for(self.pinged.wait(), PATIENCE_S)
        return self.pings[number]

    def open(self, data: bytes = b"", *, fin: bool = False) -> Stream:
        """A new stream with its first bytes."""
        stream_id = self._quic.get_next_available_stream_id()
        stream = self.streams[stream_id] = Stream(self, stream_id)
        stream.send(data, fin=fin)
        return stream

    def writer(self, writer_id: bytes = b"") -> Stream:
        """A writer's stream."""
        return self.open(codec.connect_writer(writer_id))

    async def reader(self, name: bytes, kind: int = PUSH, *, auto: bool = False) -> Stream:
        """A reader's stream, connected."""
        stream = self.open(codec.connect_reader(kind, auto, name))
        assert await stream.take(2) == codec.connected()
        stream.decoder = AnswerDecoder(auto=auto)
        return stream

    async def puller(self, name: bytes, *, auto: bool = False) -> Stream:
        """The same, to fetch from."""
        return await self.reader(name, PULL, auto=auto)

    async def publish(self, topic: bytes, *messages: bytes) -> None:
        """Write and wait for the answers."""
        stream = self.writer()
        stream.send(
            b"".join(codec.write(cid, topic, message) for cid, message in enumerate(messages)) + codec.DISCONNECT
        )
        ok = b"".join(codec.done(Answer.WRITE, cid) for cid in range(len(messages)))
        assert await stream.rest() == ok + codec.DISCONNECT


async def acknowledge(stream: Stream, *ids: bytes, cid: int = 7, op: Op = Op.ACK) -> Event:
    """ACK or NACK, and its answer."""
    stream.send(codec.ack(op, cid, ids))
    return await stream.event()


def client_configuration(certificate: Path | None = None, alpn: str = "fujin") -> QuicConfiguration:
    """Of a client that trusts this certificate only; None: any."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[alpn], server_name="localhost")
    if certificate is None:
        configuration.verify_mode = ssl.CERT_NONE
    else:
        configuration.load_verify_locations(cafile=str(certificate))
    return configuration


@contextlib.asynccontextmanager
async def connect(
    address: tuple[str, int], configuration: QuicConfiguration | None = None, *, answers_pings: bool = True
) -> AsyncIterator[Peer]:
    """A connection; closed at the end, and its socket too where a cancelled task does not wait for that."""
    host, port = address
    made: list[Peer] = []

    def make(*arguments: Any, **more: Any) -> Peer:
        made.append(Peer(*arguments, **more))
        return made[0]

    try:
        async with quic_connect(
            host, port, configuration=configuration or client_configuration(), create_protocol=make
        ) as peer:
            assert isinstance(peer, Peer)
            peer.answers_pings = answers_pings
            yield peer
    finally:
        for one in made:
            one.socket.close()
