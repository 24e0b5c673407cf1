"""The records that a reader asks for, among those that are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from netserver.http.json_lines import line_of
from netserver.http.limits import HTTP_JSON_BYTES_MAX, HTTP_PROGRESS_S
from netserver.http.reading import Item, Remark

if TYPE_CHECKING:
    from engine.formats.record import Record
    from netserver.http.query import Read
    from netserver.http.reading import Reader


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search has come, in records."""

    scanned: int
    total: int


Line: TypeAlias = Item | Progress


def until_s(asked: Read) -> float | None:
    """When a request's time is over, by the event loop's clock; None: never."""
    return None if asked.timeout_s is None else asyncio.get_running_loop().time() + asked.timeout_s


async def wanted(reader: Reader, asked: Read) -> AsyncIterator[Line | None]:
    """The items that pass the filter, up to the bounds of the request; None: nothing more for now."""
    everything, wants = asked.wanted.everything, asked.wanted.wants
    left, bytes_left, is_first = asked.limit, asked.size_bytes_max, True
    scanned, total = 0, reader.total() if asked.progress else 0
    clock = asyncio.get_running_loop().time
    due_s = clock() + HTTP_PROGRESS_S
    async for piece in reader.pieces(until_s(asked)):
        scanned += len(piece)
        if asked.progress and clock() >= due_s:
            yield Progress(scanned, max(scanned, total))
            due_s = clock() + HTTP_PROGRESS_S
        for item in piece:
            if not isinstance(item, tuple):
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
            elif asked.wanted.passes_over(item[1]):
                yield _too_large(*item)
        if not piece:
            yield None
    if asked.progress:
        yield Progress(scanned, max(scanned, total))


def _too_large(partition: int, record: Record) -> Remark:
    text = f"a value of {len(record.value)} bytes: where looks into JSON of up to {HTTP_JSON_BYTES_MAX}"
    return Remark(partition, record.seq, record.seq, text)


def line_of_item(item: Line) -> bytes:
    """A record, a remark about records that are not there, or how far a search is, as a line of JSON."""
    if isinstance(item, tuple):
        return line_of(*item)
    if isinstance(item, Progress):
        return json.dumps({"progress": {"scanned": item.scanned, "total": item.total}}).encode() + b"\n"
    fields = {
        "partition": item.partition,
        "first_offset": item.first_offset,
        "last_offset": item.last_offset,
        "remark": item.text,
    }
    return json.dumps(fields).encode() + b"\n"
