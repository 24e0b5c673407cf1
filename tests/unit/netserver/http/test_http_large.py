"""Large values over HTTP: the bytes that they would be in one piece, in pieces that are short work."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.formats.record import Record
from netserver.http.json_lines import line_of
from netserver.http.large import pieces_of
from netserver.http.limits import HTTP_VALUE_PIECE_BYTES, HTTP_VALUE_WHOLE_BYTES
from netserver.http.splitting import LENGTH
from netserver.testing import running

SIZE = HTTP_VALUE_WHOLE_BYTES + HTTP_VALUE_PIECE_BYTES // 2
VALUES = {
    "text": b"x" * SIZE,
    "control characters": b"\x01\n" * (SIZE // 2 + 1),
    "characters of four bytes": b"x" + "\U0001f600".encode() * (SIZE // 4 + 1),
    "bytes": os.urandom(SIZE) + b"\xff",
    "half a character at the end": b"x" * SIZE + b"\xe2\x82",
    "looks like our own field": b'"value":""' * (SIZE // 10 + 1),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_pieces_are_the_line(value: bytes) -> None:
    record = Record(7, 8, b'"value":""', value, (b"value", b""))

    async def pieces(raw: bool) -> list[bytes]:
        return [piece async for piece in pieces_of((3, record), raw=raw)]

    found = asyncio.run(pieces(False))
    assert b"".join(found) == line_of(3, record)
    assert max(map(len, found)) <= 6 * HTTP_VALUE_PIECE_BYTES
    found = asyncio.run(pieces(True))
    assert b"".join(found) == LENGTH.pack(len(value)) + value
    assert max(map(len, found)) <= HTTP_VALUE_PIECE_BYTES


def test_every_form_of_answer_has_them(tmp_path: Path) -> None:
    values = [b"small", *VALUES.values(), b"last"]

    async def test() -> None:
        async with running(tmp_path / "data") as one:
            base = "http://{}/v1/topics/big/records".format(one.addresses["admin"])
            token = (tmp_path / "data" / "admin.token").read_text().strip()
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
                for value in values:
                    async with http.post(f"{base}?split=none&partition=0", data=value) as answer:
                        assert answer.status == 200

                async def get(query: str) -> bytes:
                    async with http.get(f"{base}?{query}") as answer:
                        assert answer.status == 200
                        return await answer.read()

                raw = b"".join(LENGTH.pack(len(value)) + value for value in values)
                assert await get("format=raw") == raw
                assert await get("format=raw&bytes=1000000000") == raw
                lines = await get("")
                found = [json.loads(line) for line in lines.splitlines()]
                assert [record["offset"] for record in found] == list(range(1, len(values) + 1))
                assert await get("bytes=1000000000") == lines
                document: Any = json.loads(await get("format=json"))
                assert document["items"] == found
                assert json.loads(await get("format=json&limit=1"))["items"] == found[:1]
                async with http.ws_connect(f"{base}?credit=100&from=1&to={len(values) + 1}", max_msg_size=0) as socket:
                    texts = [message.data async for message in socket]
                assert [json.loads(line) for text in texts for line in text.splitlines()] == found

    asyncio.run(test())
