"""A Figg peer over a plain blocking socket, written from the protocol's table: it shares no code with ours."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

ATTACH, ATTACHED, PUBLISH, ACK, DATA = 1, 2, 5, 6, 7
HEADER = struct.Struct(">HHI")


def frame(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(kind, 1, len(payload)) + payload


def text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def publish_frame(topic: bytes, number: int, value: bytes) -> bytes:
    return frame(PUBLISH, text(topic) + struct.pack(">Q", number) + text(value))


class FiggPeer:
    """One connection. Publishes are numbered 0, 1 ...; `acked` is the last acknowledged one, -1 before the first."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 20.0) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.acked = -1
        self.sent = 0
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def send(self, topic: bytes, values: Sequence[bytes]) -> None:
        """Publishes without waiting. Raises OSError when the connection is gone."""
        frames = b"".join(publish_frame(topic, self.sent + at, value) for at, value in enumerate(values))
        self.sent += len(values)
        self.socket.sendall(frames)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """(type, payload) of each frame that comes, until the connection ends. Raises OSError."""
        while True:
            while len(self._buffer) >= HEADER.size:
                kind, _, size = HEADER.unpack_from(self._buffer)
                if len(self._buffer) < HEADER.size + size:
                    break
                payload = bytes(self._buffer[HEADER.size : HEADER.size + size])
                del self._buffer[: HEADER.size + size]
                yield kind, payload
            data = self.socket.recv(1 << 18)
            if not data:
                return
            self._buffer += data

    def wait_for_ack(self, number: int) -> bool:
        """Reads until that publish is acknowledged; False: the connection ended first. Raises OSError."""
        if self.acked >= number:
            return True
        for kind, payload in self.frames():
            if kind == ACK:
                (acked,) = struct.unpack(">Q", payload)
                assert self.acked < acked < self.sent, "an acknowledgement of nothing that is outstanding"
                self.acked = acked
                if acked >= number:
                    return True
        return False

    def attach(self, topic: bytes, offset: int) -> None:
        """Asks for what follows `offset`, without waiting."""
        self.socket.sendall(frame(ATTACH, struct.pack(">H", 0x8000) + text(topic) + struct.pack(">Q", offset)))

    def read(self, topic: bytes, offset: int, count: int) -> list[tuple[int, bytes]]:
        """The next `count` (offset, value) behind `offset`."""
        self.attach(topic, offset)
        found: list[tuple[int, bytes]] = []
        head = 4 + len(topic)
        attached = False
        for kind, payload in self.frames():
            if kind == ATTACHED:
                attached = True
            elif kind == DATA:
                assert attached, "DATA before ATTACHED"
                assert payload[:head] == text(topic)
                found.append((struct.unpack_from(">Q", payload, head)[0], payload[head + 12 :]))
                if len(found) == count:
                    return found
        raise AssertionError(f"the connection ended after {len(found)} of {count} records")
