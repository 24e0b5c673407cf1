"""Has the kernel confirm at once what has arrived, where it would wait for an answer to send along (TCP_QUICKACK)."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class BorrowedSocket(socket.socket):
    """For the options of a descriptor that stays its transport's: it is never closed from here."""

    __slots__ = ()

    def __del__(self) -> None:
        self.detach()


class QuickAck:
    """For one connection, which must be there when it is called.

    What a transport gives as its socket makes a new one for each option that is set: three times the work.
    """

    __slots__ = ("_socket",)

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        own = transport.get_extra_info("socket") if QUICKACK is not None else None
        self._socket = BorrowedSocket(own.family, own.type, own.proto, own.fileno()) if own is not None else None

    def __call__(self) -> None:
        """Confirm what has arrived so far: the kernel goes back to waiting by itself."""
        if self._socket is not None:
            assert QUICKACK is not None
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
            except OSError:  # the peer is gone
                return
