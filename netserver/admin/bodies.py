"""JSON bodies of admin requests: read at once when they are small, else on a thread, and bounded by what they hold.

The compiled decoder works in one piece, and nothing else runs meanwhile, on whichever thread it is: 28 MiB of small
objects take it 0.6 s. So a large body is read by the decoder that is written in Python, which others interrupt, and
which counts values: what a body makes has to be taken apart again by the event loop.
"""

from __future__ import annotations

import asyncio
import json
import threading
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeAlias

from aiohttp import web

from netserver.http.bodies import Hold
from netserver.http.errors import BadRequest
from netserver.limits import ADMIN_BODY_BYTES, ADMIN_JSON_AT_ONCE_BYTES, ADMIN_JSON_VALUES_MAX

Body: TypeAlias = bytes | bytearray


class TooManyValues(Exception):
    """A JSON body of more values than `ADMIN_JSON_VALUES_MAX`."""


class NotJson(BadRequest):
    """A body that is no JSON."""


async def invite(request: web.BaseRequest) -> None:
    """Tell a client to send its body that asks first (``Expect``, as curl does): it would wait a second, or more."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        writer = request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0  # nothing of the answer is sent yet


async def read_body(request: web.BaseRequest, hold: Hold) -> Body:
    """All of a body, as it was gathered: to copy 32 MiB takes 25 ms. Raises Busy, HTTPRequestEntityTooLarge."""
    if request.content_length is not None and request.content_length <= ADMIN_JSON_AT_ONCE_BYTES:
        return await request.read()
    content = bytearray()
    async for piece in request.content.iter_any():
        content += piece
        hold(len(content))
        if len(content) > ADMIN_BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(ADMIN_BODY_BYTES, len(content))
    return content


async def read_document(body: Body) -> dict[str, Any]:
    """A body's JSON object; {} of an empty one.

    Raises:
        NotJson: of a publish, the type of the body may say better what it is. BadRequest: no object. TooManyValues.
    """
    try:
        if len(body) <= ADMIN_JSON_AT_ONCE_BYTES:
            document = json.loads(body) if body else {}
        else:
            document = await asyncio.to_thread(_counted, body)
    except (ValueError, RecursionError) as error:
        raise NotJson(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    return document


class _Left(threading.local):
    """Values that the body in this thread may still have."""

    values = 0


_left = _Left()


def _counted(body: Body) -> object:
    """`json.loads`, which lets others run. Raises ValueError, RecursionError, TooManyValues."""
    _left.values = ADMIN_JSON_VALUES_MAX
    return _decoder.decode(body.decode(json.detect_encoding(body), "surrogatepass"))


def _value(text: str, at: int) -> Any:
    _left.values -= 1
    if _left.values < 0:
        raise TooManyValues(
            f"a JSON body above {ADMIN_JSON_AT_ONCE_BYTES} bytes may have {ADMIN_JSON_VALUES_MAX} values; send several"
        )
    return _decoder.scan_once(text, at)


def _counting_decoder() -> Any:
    """There is one: its functions refer to each other in circles."""
    decoder: Any = json.JSONDecoder()  # its parts are no part of its annotations
    decoder.parse_array = lambda place, _: JSONArray(place, _value)
    decoder.parse_object = lambda place, strict, _, *hooks: JSONObject(place, strict, _value, *hooks)
    decoder.scan_once = py_make_scanner(decoder)
    return decoder


_decoder = _counting_decoder()
