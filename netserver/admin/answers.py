"""The answer of a publish, with its head written here: aiohttp would make a dictionary of it and print that."""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE

JSON: Final = "application/json; charset=utf-8"


def json_answer(request: web.BaseRequest, body: bytes, now_ms: int) -> web.StreamResponse:
    """200 with a document; what is unusual of the connection is aiohttp's."""
    if request.version == HttpVersion11 and request.keep_alive:
        return _Ready(body, now_ms)
    return web.Response(body=body, headers={"Content-Type": JSON})


class _Ready(web.StreamResponse):
    """Head and body in one piece; of its base it has what the loop of requests asks for."""

    def __init__(self, body: bytes, now_ms: int) -> None:
        self._whole = b"%b%d\r\n\r\n%b" % (_head(now_ms // 1000), len(body), body)

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        await request.writer.write_eof(self._whole)
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        assert not data, "all of it is written"


@lru_cache(1)
def _head(second: int) -> bytes:
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
        f"Server: {SERVER_SOFTWARE}\r\nContent-Length: "
    ).encode()
