"""A QUIC client that sends what no honest one does: any frames, in packets that the server can decrypt.

It is aioquic's client over a blocking socket up to the end of the handshake; after that packets are made by hand and
acknowledgements are sent only where a test wants them.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Any, Self

from aioquic import tls
from aioquic.buffer import UINT_VAR_MAX_SIZE, Buffer
from aioquic.quic import events
from aioquic.quic.connection import QuicConnection

from tests.fujin_peer import client_configuration

PATIENCE_S = 10.0
PAYLOAD_BYTES = 1200
TAG_BYTES = 16


def number(value: int) -> bytes:
    """A variable-length integer of QUIC."""
    buffer = Buffer(capacity=UINT_VAR_MAX_SIZE)
    buffer.push_uint_var(value)
    return buffer.data


def stream_frame(stream_id: int, offset: int, data: bytes, *, fin: bool = False) -> bytes:
    return bytes([0x0E | fin]) + number(stream_id) + number(offset) + number(len(data)) + data


def crypto_frame(offset: int, data: bytes) -> bytes:
    return b"\x06" + number(offset) + number(len(data)) + data


def reset_frame(stream_id: int, final_size: int) -> bytes:
    return b"\x04" + number(stream_id) + number(0) + number(final_size)


def stop_frame(stream_id: int) -> bytes:
    return b"\x05" + number(stream_id) + number(0)


class Attacker:
    """One connection.

    Attributes:
        quic: aioquic's client; ``quic._packet_number`` is the next one.
        closed: the server has closed the connection.
    """

    def __init__(self, address: tuple[str, int], configuration: Any = None) -> None:
        self.address = address
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.settimeout(0.02)
        self.quic = QuicConnection(configuration=configuration or client_configuration())
        self.closed: events.ConnectionTerminated | None = None
        self.is_connected = False
        self.received: dict[int, bytes] = {}
        self.quic.connect(address, now=time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.udp.close()

    def handshake(self) -> Self:
        """Complete it, like an honest client, until the server has confirmed it."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self.is_connected and self.quic._handshake_confirmed):
            assert time.monotonic() < deadline, "no handshake"
            self.talk()
        self.talk()
        return self

    def talk(self) -> None:
        """Send what aioquic wants to send (acknowledgements among it), take what has come."""
        for data, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            self.udp.sendto(data, self.address)
        self.listen()

    def listen(self, times: int = 1) -> bool:
        """Take what has come, without an answer; whether there was anything."""
        something = False
        for _ in range(times):
            try:
                while True:
                    self.quic.receive_datagram(self.udp.recv(65536), self.address, now=time.monotonic())
                    something = True
                    self.udp.setblocking(False)
            except (TimeoutError, BlockingIOError, ConnectionError):
                self.udp.settimeout(0.02)
            while (event := self.quic.next_event()) is not None:
                if isinstance(event, events.HandshakeCompleted):
                    self.is_connected = True
                elif isinstance(event, events.StreamDataReceived):
                    self.received[event.stream_id] = self.received.get(event.stream_id, b"") + event.data
        self.closed = self.quic._close_event
        return something

    def send(self, frames: bytes, source: socket.socket | None = None) -> None:
        """A packet with these frames."""
        (source or self.udp).sendto(self.packet(frames), self.address)

    def packet(self, frames: bytes) -> bytes:
        """A datagram of one packet of the established connection."""
        quic = self.quic
        packet_number, quic._packet_number = quic._packet_number, quic._packet_number + 1
        crypto = quic._cryptos[tls.Epoch.ONE_RTT]
        head = bytes([0x41 | crypto.key_phase << 2]) + quic._peer_cid.cid + (packet_number & 0xFFFF).to_bytes(2)
        return crypto.encrypt_packet(head, frames.ljust(4, b"\0"), packet_number)

    def initial(self, frames: bytes) -> bytes:
        """A datagram of one Initial packet, before the handshake has begun."""
        quic = self.quic
        assert quic._version is not None
        packet_number, quic._packet_number = quic._packet_number, quic._packet_number + 1
        head = bytes([0xC1]) + quic._version.to_bytes(4)
        for connection_id in (quic._peer_cid.cid, quic.host_cid):
            head += bytes([len(connection_id)]) + connection_id
        room = PAYLOAD_BYTES - len(head) - 1 - 2 - 2 - TAG_BYTES
        frames = frames.ljust(room, b"\0")
        head += b"\0" + (0x4000 | 2 + len(frames) + TAG_BYTES).to_bytes(2) + (packet_number & 0xFFFF).to_bytes(2)
        return quic._cryptos_initial[quic._version].encrypt_packet(head, frames, packet_number)


def packed(frames: list[bytes], room: int = PAYLOAD_BYTES - 60) -> list[bytes]:
    """Frames in as few payloads as they fit into."""
    found = [b""]
    for frame in frames:
        if len(found[-1]) + len(frame) > room:
            found.append(b"")
        found[-1] += frame
    return found
