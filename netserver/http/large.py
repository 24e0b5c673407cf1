"""Large values on their way out, in pieces of a millisecond or two each.

One of 15 MiB as a line of JSON takes a tenth of a second, and everybody would wait for it."""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeGuard

import msgspec

from engine.formats.batch import RecordCursor
from netserver.http.json_lines import line_of
from netserver.http.limits import HTTP_VALUE_PIECE_BYTES, HTTP_VALUE_WHOLE_BYTES
from netserver.http.splitting import LENGTH

if TYPE_CHECKING:
    from engine.formats.record import Record

_NO_VALUE: Final = b'"value":""'


def is_large(item: object) -> TypeGuard[tuple[int, Record]]:
    """Whether an item is a record that is to be written in pieces."""
    return isinstance(item, tuple) and len(item[1].value) > HTTP_VALUE_WHOLE_BYTES


def begins_large(batches: bytes | bytearray | memoryview, from_seq: int) -> bool:
    """The same of the first record of batches from a number on. Raises BatchError, BundleError."""
    if len(batches) <= HTTP_VALUE_WHOLE_BYTES:
        return False
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    return cursor.next() and cursor.value_end - cursor.value_start > HTTP_VALUE_WHOLE_BYTES


async def pieces_of(item: tuple[int, Record], *, raw: bool = False) -> AsyncIterator[bytes]:
    """A record as a line of JSON, or as its value after its length; others have their turns in between."""
    for piece in _raw_pieces(item[1].value) if raw else _line_pieces(*item):
        if piece:
            yield piece
        await asyncio.sleep(0)


async def whole(item: tuple[int, Record]) -> bytes:
    """A record as a line of JSON, made in pieces."""
    return b"".join([piece async for piece in pieces_of(item)])


def _raw_pieces(value: bytes) -> Iterator[bytes]:
    yield LENGTH.pack(len(value))
    yield from slices_of(value)


def _line_pieces(partition: int, record: Record) -> Iterator[bytes]:
    """What `line_of` makes of it; empty ones are only pauses."""
    is_text = True
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in slices_of(record.value):
            decoder.decode(piece)
            yield b""
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        is_text = False
    head, _, tail = line_of(partition, replace(record, value=b"")).partition(_NO_VALUE)
    if is_text:
        decoder = codecs.getincrementaldecoder("utf-8")()
        yield head + _NO_VALUE[:-1]
        yield from (msgspec.json.encode(decoder.decode(piece))[1:-1] for piece in slices_of(record.value))
    else:
        yield head + b'"value_base64":"'
        yield from map(base64.b64encode, slices_of(record.value))
    yield b'"' + tail


def slices_of(value: bytes) -> Iterator[bytes]:
    """A value in pieces, of a size that base64 makes no padding of."""
    view = memoryview(value)
    for at in range(0, len(value), HTTP_VALUE_PIECE_BYTES):
        yield bytes(view[at : at + HTTP_VALUE_PIECE_BYTES])
