"""Records over a WebSocket: text frames of lines, as many records as the peer has given credit for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from aiohttp import WSCloseCode, WSMsgType, web

from engine.errors import EngineError
from netserver.http.choosing import Line, line_of_item
from netserver.http.errors import BadRequest
from netserver.http.large import is_large, whole
from netserver.http.limits import (
    HTTP_CREDIT_MAX,
    HTTP_HEARTBEAT_S,
    HTTP_RECORDS_PIECE,
    HTTP_SOCKET_MESSAGE_BYTES,
    HTTP_WRITE_BYTES,
)
from netserver.http.reading import Buffer, Item

Send: TypeAlias = "Callable[[web.WebSocketResponse, Credit], Awaitable[None]]"


class Credit:
    """How many records a peer takes."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._is_open = True
        self._more = asyncio.Event()

    def add(self, count: int) -> None:
        """It takes so many more."""
        self.left = min(self.left + count, HTTP_CREDIT_MAX)
        self._more.set()

    def close(self) -> None:
        """It is gone."""
        self._is_open = False
        self._more.set()

    async def wait(self) -> bool:
        """Until there is some; False: the peer is gone."""
        while self.left <= 0 and self._is_open:
            self._more.clear()
            await self._more.wait()
        return self._is_open


async def open_socket(request: web.BaseRequest) -> web.WebSocketResponse:
    """The WebSocket that a request asks for. Raises BadRequest: it asks in another way than RFC 6455 says."""
    socket = web.WebSocketResponse(heartbeat=HTTP_HEARTBEAT_S, max_msg_size=HTTP_SOCKET_MESSAGE_BYTES, compress=False)
    try:
        await socket.prepare(request)
    except web.HTTPBadRequest as error:
        raise BadRequest(f"no WebSocket: {error.text}") from None
    return socket


async def serve_socket(request: web.BaseRequest, credit: int, send: Send) -> web.StreamResponse:
    """Send records until they end or the peer goes; ``{"credit": N}`` from it lets so many more come.

    When reading fails the last message is ``{"error": ...}``.
    """
    socket = await open_socket(request)
    left = Credit(credit)
    listening = asyncio.create_task(_listen(socket, left))
    try:
        with suppress(ConnectionError):  # the peer is gone
            try:
                await send(socket, left)
            except EngineError as error:
                await socket.send_json({"error": str(error)})
                await socket.close(code=WSCloseCode.INTERNAL_ERROR)
            await socket.close()
    finally:
        listening.cancel()
    return socket


async def send_frames(
    frames: Callable[[Credit], AsyncIterator[Buffer | list[Item]]], socket: web.WebSocketResponse, credit: Credit
) -> None:
    """What a hot loop writes, and what it cannot."""
    if not await credit.wait():
        return
    async for framed in frames(credit):
        if not isinstance(framed, list):
            await socket.send_frame(bytes(framed), WSMsgType.TEXT)
        else:
            await _send_lines(socket, framed)
        if not await credit.wait():
            return


async def _send_lines(socket: web.WebSocketResponse, items: list[Item]) -> None:
    lines = bytearray()
    for number, item in enumerate(items, 1):
        lines += await whole(item) if is_large(item) else line_of_item(item)
        if number == len(items) or len(lines) >= HTTP_WRITE_BYTES:
            await socket.send_frame(bytes(lines), WSMsgType.TEXT)
            lines.clear()


async def send_items(items: AsyncIterator[Line | None], socket: web.WebSocketResponse, credit: Credit) -> None:
    """Items one by one."""
    lines = bytearray()
    count = 0
    if not await credit.wait():
        return
    async for item in items:
        if item is not None:
            lines += await whole(item) if is_large(item) else line_of_item(item)
            count += 1
            credit.left -= 1
        is_full = count >= HTTP_RECORDS_PIECE or len(lines) >= HTTP_WRITE_BYTES
        if lines and (item is None or credit.left <= 0 or is_full):
            await socket.send_frame(bytes(lines), WSMsgType.TEXT)
            lines.clear()
            count = 0
        if not await credit.wait():
            return
    if lines:
        await socket.send_frame(bytes(lines), WSMsgType.TEXT)


async def _listen(socket: web.WebSocketResponse, credit: Credit) -> None:
    try:
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            try:
                count = json.loads(message.data)["credit"]
            except (ValueError, TypeError, KeyError, RecursionError):
                break
            if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= HTTP_CREDIT_MAX:
                break
            credit.add(count)
    finally:
        credit.close()
