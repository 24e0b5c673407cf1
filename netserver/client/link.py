"""One TCP or TLS connection of a client."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from netserver.errors import Closed, ConnectionFailed, ProtocolError, QuintlogError

RECEIVE_BUFFER_BYTES = 256 * 1024
"""First size of the receive buffer: many frames per read; it grows for a larger frame only."""
WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Above this much unsent output the window is not written from."""
KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A dead peer is noticed after about half a minute even without pings."""


def system_text(error: Exception) -> str:
    """What an error of the system means, without numbers and tuples: ``connection refused: nothing listens there``."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved: {error.strerror}"
    if isinstance(error, OSError) and error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    if "[Errno 111]" in str(error):  # asyncio's sum of several addresses
        return "connection refused on every address of the host: nothing listens there"
    return str(error)


class LinkLike(Protocol):
    """A connection as :class:`ClientBase` needs it.

    ``lost`` becomes done, with the reason as its result, when the connection is gone; ``writable`` is False while
    enough output waits to be sent.
    """

    lost: asyncio.Future[QuintlogError]
    writable: bool

    def write(self, data: bytes | bytearray) -> None:
        """Send; ignored when the connection is gone (the window knows what was not answered)."""

    def pause_reading(self) -> None:
        """Take nothing from the server until ``resume_reading``."""

    def resume_reading(self) -> None:
        """Read on."""

    def close(self) -> None:
        """Send what is buffered, then close."""

    def abort(self, reason: QuintlogError) -> None:
        """Close at once; ``reason`` is what ``lost`` tells."""


class Link(asyncio.BufferedProtocol):
    """One TCP or TLS connection of a client.

    Args:
        received: called with (receive buffer, bytes in it), returns how many it consumed; the rest comes again
        on_writable: called when output fell below the low-water mark after ``writable`` was False
        frame_bytes_max: largest frame that the receive buffer grows for
    """

    def __init__(
        self, received: Callable[[memoryview, int], int], on_writable: Callable[[], None], frame_bytes_max: int
    ) -> None:
        self.lost: asyncio.Future[QuintlogError] = asyncio.get_running_loop().create_future()
        self.writable = False
        self._received = received
        self._on_writable = on_writable
        self._frame_bytes_max = frame_bytes_max
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._filled = 0
        self._transport: asyncio.Transport | None = None
        self._reading_paused = False
        self._reason: QuintlogError | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)
        _keep_alive(self._transport.get_extra_info("socket"))
        self.writable = True

    def connection_lost(self, error: Exception | None) -> None:
        self.writable = False
        self._transport = None
        if not self.lost.done():
            text = "the server closed the connection" if error is None else system_text(error)
            reason = self._reason or ConnectionFailed(text)
            if error is not None and reason is not self._reason:
                reason.__cause__ = error
            self.lost.set_result(reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, size_bytes: int) -> None:
        self._filled += size_bytes
        try:
            consumed = self._received(self._buffer, self._filled)
        except QuintlogError as error:
            self.abort(error)
            return
        rest = self._filled - consumed
        if consumed and rest:
            self._buffer[:rest] = self._buffer[consumed : self._filled]
        self._filled = rest
        if rest == len(self._buffer):
            self._grow()

    def _grow(self) -> None:
        size_bytes = min(2 * len(self._buffer), self._frame_bytes_max)
        if size_bytes <= self._filled:
            self.abort(ProtocolError(f"frame larger than {self._frame_bytes_max} bytes"))
            return
        larger = memoryview(bytearray(size_bytes))
        larger[: self._filled] = self._buffer[: self._filled]
        self._buffer = larger

    def eof_received(self) -> bool:
        return False  # close: no protocol of ours lets the server half-close

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = self._transport is not None
        if self.writable:
            self._on_writable()

    # --- for the client

    def write(self, data: bytes | bytearray) -> None:
        """Send; ignored when the connection is gone (the window knows what was not answered)."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        self._reason = self._reason or Closed("the client closed the connection")
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: QuintlogError) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()


def _keep_alive(connection: socket.socket | None) -> None:
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
