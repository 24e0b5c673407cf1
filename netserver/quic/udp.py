"""A UDP socket for QUIC: many datagrams per system call, where the kernel can (Linux: UDP_SEGMENT, UDP_GRO).

A call costs as much as building a packet does. Datagrams of one size to one address leave as one large one that the
kernel cuts; what another sender has sent like this, or a network card has put together, arrives in one piece with the
size to cut it at.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
from typing import Any, Final

from netserver.limits import QUIC_SOCKET_BYTES, UDP_PAYLOAD_BYTES, UDP_SEGMENTS

log = logging.getLogger(__name__)

Datagram = tuple[bytes, Any]
"""(payload, socket address)"""

SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SO_RCVBUFFORCE: Final = 33
SO_SNDBUFFORCE: Final = 32
SEGMENT_SIZE: Final = struct.Struct("H")
GRO_SIZE: Final = struct.Struct("i")
CONTROL_BYTES: Final = socket.CMSG_SPACE(GRO_SIZE.size)
NOT_SUPPORTED: Final = frozenset({errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EMSGSIZE})


class UdpSocket:
    """Sends and receives in bulk; the socket is closed by whoever made it.

    Args:
        udp: bound or connected, not blocking.
    """

    def __init__(self, udp: socket.socket) -> None:
        self.socket = udp
        self._buffer = bytearray(UDP_PAYLOAD_BYTES)
        self._view = memoryview(self._buffer)
        self._may_segment = True
        for name, forced in ((socket.SO_RCVBUF, SO_RCVBUFFORCE), (socket.SO_SNDBUF, SO_SNDBUFFORCE)):
            udp.setsockopt(socket.SOL_SOCKET, name, QUIC_SOCKET_BYTES)
            with contextlib.suppress(OSError):  # beyond the system's limit, where the process may
                udp.setsockopt(socket.SOL_SOCKET, forced, QUIC_SOCKET_BYTES)
        with contextlib.suppress(OSError):
            udp.setsockopt(SOL_UDP, UDP_GRO, 1)

    def receive(self) -> tuple[list[bytes], Any]:
        """(datagrams, address they came from).

        Raises:
            BlockingIOError, InterruptedError: there are none.
            OSError: the network has refused something that was sent before.
        """
        size, control, _, address = self.socket.recvmsg_into((self._buffer,), CONTROL_BYTES)
        view = self._view
        for level, kind, data in control:
            if level == SOL_UDP and kind == UDP_GRO and len(data) >= GRO_SIZE.size:
                step = GRO_SIZE.unpack_from(data)[0]
                if 0 < step < size:
                    return [bytes(view[at : min(at + step, size)]) for at in range(0, size, step)], address
        return [bytes(view[:size])], address

    def send(self, datagrams: list[Datagram]) -> int:
        """Send in order; how many have left (the socket takes no more, if that is not all).

        What the network refuses is lost, which QUIC repairs.

        Raises:
            OSError: nobody is there (a connected socket).
        """
        position, count = 0, len(datagrams)
        while position < count:
            data, address = datagrams[position]
            end = position + 1
            if self._may_segment and end < count:
                end = _run(datagrams, position)
            try:
                if end - position > 1:
                    self._send_segments([one for one, _ in datagrams[position:end]], len(data), address)
                else:
                    self._send_one(data, address)
            except (BlockingIOError, InterruptedError):
                return position
            except ConnectionError:
                raise
            except OSError as error:
                if end - position > 1 and error.errno in NOT_SUPPORTED:
                    self._may_segment = False
                    continue
                log.debug("send to %s: %s", address, error)
            position = end
        return count

    def _send_one(self, data: bytes, address: Any) -> None:
        if address is None:
            self.socket.send(data)
        else:
            self.socket.sendto(data, address)

    def _send_segments(self, pieces: list[bytes], size: int, address: Any) -> None:
        control = [(SOL_UDP, UDP_SEGMENT, SEGMENT_SIZE.pack(size))]
        if address is None:
            self.socket.sendmsg(pieces, control)
        else:
            self.socket.sendmsg(pieces, control, 0, address)


def _run(datagrams: list[Datagram], start: int) -> int:
    """End of the datagrams from ``start`` on that can leave together: of one size, the last one may be shorter."""
    first, address = datagrams[start]
    size = len(first)
    room = min(UDP_SEGMENTS, UDP_PAYLOAD_BYTES // size) if size else 1
    end = start + 1
    while end < len(datagrams) and end - start < room:
        data, where = datagrams[end]
        if where != address or len(data) > size or not data:
            break
        end += 1
        if len(data) < size:
            break
    return end
