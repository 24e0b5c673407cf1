"""The records that a reader asks for, among those that are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from netserver.http.reading import Item, Remark
from netserver.http.rows import line_of

if TYPE_CHECKING:
    from netserver.http.query import Read
    from netserver.http.reading import Reader


def until_s(asked: Read) -> float | None:
    """When a request's time is over, by the event loop's clock; None: never."""
    return None if asked.timeout_s is None else asyncio.get_running_loop().time() + asked.timeout_s


async def wanted(reader: Reader, asked: Read) -> AsyncIterator[Item | None]:
    """The items that pass the filter, up to the bounds of the request; None: nothing more for now."""
    everything, wants = asked.wanted.everything, asked.wanted.wants
    left, bytes_left, is_first = asked.limit, asked.size_bytes_max, True
    async for piece in reader.pieces(until_s(asked)):
        for item in piece:
            if isinstance(item, Remark):
                yield item
            elif everything or wants(item[1]):
                if bytes_left is not None:
                    bytes_left -= len(item[1].value)
                    if bytes_left < 0 and not is_first:
                        return
                is_first = False
                yield item
                if left is not None:
                    left -= 1
                    if not left:
                        return
        if not piece:
            yield None


def line_of_item(item: Item) -> bytes:
    """A record, or a remark about records that are not there, as a line of JSON."""
    if not isinstance(item, Remark):
        return line_of(*item)
    fields = {
        "partition": item.partition,
        "first_offset": item.first_offset,
        "last_offset": item.last_offset,
        "remark": item.text,
    }
    return json.dumps(fields).encode() + b"\n"
