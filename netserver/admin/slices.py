"""Long answers of admin HTTP, made in the slices of time that all long work shares (``engine.slices``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from engine.slices import Slices

Item = TypeVar("Item")


class Encoded(str):
    """A part of a document that is JSON already. Ten thousand documents kept until the answer is made would have the
    interpreter look through all objects of the process, which takes 150 ms."""

    __slots__ = ()


async def sliced(slices: Slices, items: Iterable[Item]) -> AsyncIterator[Item]:
    """The items, with others having their turns in between."""
    for item in items:
        await turn(slices)
        yield item


async def turn(slices: Slices) -> None:
    """Waits for a turn that has time, if this one has none left."""
    if slices.is_over():
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slices.later(partial(_tell, told))
        await told


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


async def json_bytes(slices: Slices, document: object) -> bytes:
    """``json.dumps`` of a document."""
    return b"".join([piece.encode() async for piece in sliced(slices, _pieces(document))])


def _pieces(value: Any) -> Iterator[str]:
    """Its text, in pieces that each take some microseconds as long as what is long is a list."""
    if isinstance(value, Encoded):
        yield value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield ", " if number else "["
            yield from _pieces(item)
        yield "]" if value else "[]"
    elif isinstance(value, dict) and any(isinstance(item, list) for item in value.values()):
        for number, (key, item) in enumerate(value.items()):
            yield f"{', ' if number else '{'}{json.dumps(key)}: "
            yield from _pieces(item)
        yield "}"
    else:
        yield json.dumps(value)
