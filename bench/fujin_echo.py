"""A bare aioquic server, tuned, that answers as a Fujin server would and keeps nothing: what QUIC costs in Python.

    python -m bench.fujin_echo CERTIFICATE KEY FILE

Prints its port. It looks at no byte beyond what tells how much to answer: on a writer's stream 6 bytes for each so many
bytes, on a reader's stream prepared messages, all of them or a batch for each FETCH. The first 13 bytes of a stream say
which: one byte of kind (w, s, p, f), u32 size of a frame, u32 messages of a batch, u32 batches. Kind s is w, but what
came is appended to FILE and synced before it is answered, by a thread, all that waits at a time: what the disk costs.

Tuned: uvloop, one ``transmit`` a turn of the loop for all datagrams of the turn, full Ethernet frames, a clock finer
than the loop's, no pacing (aioquic's lets 16 packets go for each tick of the loop's timers).
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

HEAD = struct.Struct(">BIII")
AHEAD_BYTES = 256 * 1024
WRITTEN = b"\x02\x00\x00\x00\x00\x00"
DISK: list[Disk] = []


class Stream:
    """What is known of a stream."""

    def __init__(self, head: bytes) -> None:
        self.kind, self.size, self.count, self.batches = HEAD.unpack(head)
        self.rest = 0
        self.block = bytes(self.size) * self.count


class Disk:
    """Appends to a file and syncs it, for all who wait together."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.waiting: list[tuple[bytes, Callable[[], None]]] = []
        self.task: asyncio.Task[None] | None = None

    def add(self, data: bytes, then: Callable[[], None]) -> None:
        """Call ``then`` when ``data`` is on disk."""
        self.waiting.append((data, then))
        if self.task is None:
            self.task = asyncio.create_task(self.work())

    async def work(self) -> None:
        """Rounds, until nobody waits."""
        while self.waiting:
            taken, self.waiting = self.waiting, []
            await asyncio.to_thread(self.store, b"".join(data for data, _ in taken))
            for _, then in taken:
                then()
        self.task = None

    def store(self, data: bytes) -> None:
        """One round."""
        os.write(self.file, data)
        os.fdatasync(self.file)


class Tuned(QuicConnectionProtocol):
    """aioquic's protocol, see the module; for the load client too."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        super().connection_made(transport)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        self._quic.receive_datagram(data, addr, time.monotonic())  # type: ignore[arg-type]
        self._process_events()
        self._transmit_soon()

    def transmit(self) -> None:
        self._transmit_task = None
        self._quic._loss._pacer.packet_time = None
        for data, address in self._quic.datagrams_to_send(time.monotonic()):
            self.transport.sendto(data, address)
        at = self._quic.get_timer()
        if self._timer is not None and self._timer_at != at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and at is not None:
            self._timer = self._loop.call_at(at, self._handle_timer)
        self._timer_at = at


class Echo(Tuned):
    """One connection."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.streams: dict[int, Stream] = {}

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if not isinstance(event, events.StreamDataReceived):
            return
        data = event.data
        stream = self.streams.get(event.stream_id)
        if stream is None:
            stream = self.streams[event.stream_id] = Stream(data[: HEAD.size])
            data = data[HEAD.size :]
        if stream.kind == ord("p"):
            self.push(event.stream_id, stream)
            return
        stream.rest += len(data)
        frames, stream.rest = divmod(stream.rest, 9 if stream.kind == ord("f") else stream.size)
        if frames and stream.kind == ord("s"):
            DISK[0].add(data, lambda: self.send(event.stream_id, WRITTEN * frames))
        elif frames:
            self._quic.send_stream_data(
                event.stream_id, (stream.block if stream.kind == ord("f") else WRITTEN) * frames
            )

    def send(self, stream_id: int, data: bytes) -> None:
        """Later than in the turn in which something came."""
        self._quic.send_stream_data(stream_id, data)
        self._transmit_soon()

    def push(self, stream_id: int, stream: Stream) -> None:
        """Send all batches, a bounded number of bytes ahead."""
        sender = self._quic._streams[stream_id].sender
        while stream.batches and sender._buffer_stop - sender._buffer_start < AHEAD_BYTES:
            stream.batches -= 1
            self._quic.send_stream_data(stream_id, stream.block)
        self._transmit_soon()
        if stream.batches:
            self._loop.call_soon(self.push, stream_id, stream)


async def main() -> None:
    """Serve for ever."""
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=["fujin"], max_datagram_size=1452, max_data=1 << 24, max_stream_data=1 << 24
    )
    configuration.load_cert_chain(sys.argv[1], sys.argv[2])
    DISK.append(Disk(sys.argv[3]))
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: QuicServer(configuration=configuration, create_protocol=Echo), local_addr=("127.0.0.1", 0)
    )
    print(transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
