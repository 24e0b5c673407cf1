"""A client's connection up to the point where it is logged in: HELLO, AUTH, and the reading of frames."""

from __future__ import annotations

import asyncio
from pathlib import Path
from struct import Struct
from typing import Any, Final

from netserver.blipmq import codec
from netserver.blipmq.codec import FrameType, FramingError, Nack, PayloadError
from netserver.blipmq.codec_v2 import DELIVER
from netserver.blipmq.codec_v2 import VERSION as VERSION_2
from netserver.blipmq.limits import FRAME_LENGTH_MAX, HEADER_BYTES, LENGTH_BYTES
from netserver.client.base import ClientBase, Link, LinkLike
from netserver.errors import ProtocolError, Refused
from netserver.shell.quick_ack import QuickAck

CID_BASE: Final = 1 << 63
"""Ours begin here, so that none looks like a delivery tag."""
HELLO_CID: Final = (1 << 64) - 1
AUTH_CID: Final = (1 << 64) - 2

_HEADER = Struct(">IBQ")


class PromptLink(Link):
    """A connection that acknowledges at once what it receives.

    The original leaves Nagle's algorithm on and writes each frame by itself: its second small answer in a row waits
    for our kernel's delayed acknowledgement, 40 ms a round.
    """

    _quick_ack: QuickAck | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._quick_ack = QuickAck(transport)

    def buffer_updated(self, size_bytes: int) -> None:
        if self._quick_ack is not None:
            self._quick_ack()
        super().buffer_updated(size_bytes)


def read_key(key: str | Path) -> str:
    """A key as it is, or the content of a file without the white space around it."""
    return key.read_text("utf-8").strip() if isinstance(key, Path) else key


class LoginClient(ClientBase):
    """Logs in on each new connection; the subclass gets the frames in ``_frame``."""

    def __init__(
        self, host: str, port: int, *, api_key: str | Path, version: int = codec.VERSION, **options: Any
    ) -> None:
        super().__init__(host, port, frame_bytes_max=FRAME_LENGTH_MAX + LENGTH_BYTES, **options)
        self.version = version
        self._api_key = api_key
        self._login: asyncio.Future[None] | None = None

    def _frame(self, kind: int, cid: int, payload: memoryview) -> None:
        raise NotImplementedError

    async def _dial(self) -> LinkLike:
        self._login = asyncio.get_running_loop().create_future()
        return await super()._dial()

    def _new_link(self) -> Link:
        return PromptLink(self._received, self._pump, self.frame_bytes_max)

    async def _handshake(self, link: LinkLike) -> None:
        assert self._login is not None, "_dial() comes first"
        link.write(codec.hello(HELLO_CID, self.version) + codec.auth(AUTH_CID, read_key(self._api_key)))
        await self._login

    def _received(self, data: memoryview, length: int) -> int:
        position = 0
        try:
            while length - position >= LENGTH_BYTES:
                size = int.from_bytes(data[position : position + LENGTH_BYTES], "big")
                codec.check_length(size)
                end = position + LENGTH_BYTES + size
                if end > length:
                    break
                _, kind, cid = _HEADER.unpack_from(data, position)
                if kind != DELIVER or self.version != VERSION_2:
                    codec.check_type(kind)
                payload = data[position + HEADER_BYTES : end]
                if self._login is not None and not self._login.done():
                    self._login_frame(self._login, kind, cid, payload)
                else:
                    self._frame(kind, cid, payload)
                position = end
        except (FramingError, PayloadError) as error:
            raise ProtocolError(f"from {self.host}:{self.port}: {error}") from error
        return position

    @staticmethod
    def _login_frame(login: asyncio.Future[None], kind: int, cid: int, payload: memoryview) -> None:
        if kind == FrameType.NACK:
            login.set_exception(refusal(codec.parse_nack(payload)))
        elif kind == FrameType.ACK and cid == AUTH_CID:
            login.set_result(None)
        elif kind != FrameType.ACK or cid != HELLO_CID:
            raise ProtocolError(f"frame of type {kind} during the login")


def refusal(nack: Nack) -> Refused:
    """The error of a NACK; 500 may succeed later."""
    return Refused(nack.code, nack.text, retryable=nack.code >= codec.SERVER_ERROR)
