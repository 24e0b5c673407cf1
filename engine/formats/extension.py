"""The extension of a batch: what its records have that their messages have no place for (``engine.formats.batch``).

A msgpack map; an entry that no record needs is left out::

    "h"   list, for each record nil or the list of its headers: name, value, name, value ...
    "v"   list of the records (0 is the first of the batch) whose value is null: their messages have an empty one
    "k"   map from record to key, where that is empty, or longer than a message holds: their messages have none
    "n"   map from record to the list of its headers (0 is the first) whose value is null: "h" has an empty one
    "p"   [producer id, epoch, sequence number of the first record]: one producer made all records, and numbers them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgpack

from engine.formats.record import BatchError, Marks

Buffer: TypeAlias = bytes | bytearray | memoryview

SEQUENCE_MASK = (1 << 31) - 1
"""A producer's numbers of records go up to this, and then on from 0."""


_PRODUCER_BEGIN = b"\xa1p\x93"
_PRODUCER_BYTES = 20  # that entry at most: its name, a list of three, and numbers of 64, 16 and 32 bits


class Producer(NamedTuple):
    """Who made the records of a batch, by its own count."""

    id: int
    epoch: int
    first_sequence: int


def encode_extension(
    headers: list[tuple[bytes, ...]], marks: Mapping[int, Marks], producer: Producer | None, count: int
) -> bytes:
    """The extension of a batch of ``count`` records, the first of which have these headers (``()``: none).

    Args:
        marks: by place of the record in the batch.
    """
    fields: dict[str, Any] = {}
    if headers:
        rows = [list(flat) if flat else None for flat in headers]
        fields["h"] = rows + [None] * (count - len(rows))
    if marks:
        nulls = [row for row, mark in marks.items() if mark.is_null]
        keys = {row: mark.key for row, mark in marks.items() if mark.key is not None}
        null_headers = {row: list(mark.null_headers) for row, mark in marks.items() if mark.null_headers}
        fields |= {name: found for name, found in (("v", nulls), ("k", keys), ("n", null_headers)) if found}
    if producer is not None:
        fields["p"] = producer
    return bytes(msgpack.packb(fields))


def _fields(extension: Buffer) -> dict[Any, Any]:
    if not len(extension):
        return {}
    try:
        fields = msgpack.unpackb(extension, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list as a key
        raise BatchError(f"extension is not msgpack: {error}") from None
    if not isinstance(fields, dict):
        raise BatchError("extension is not a map")
    return fields


def decode_headers(extension: Buffer, count: int) -> list[tuple[bytes, ...]]:
    """Headers of each of the ``count`` records of a batch with this extension; empty list: no record has any.

    Raises:
        BatchError: not such a map, or not one entry a record.
    """
    rows = _fields(extension).get("h")
    if rows is None:
        return []
    if not isinstance(rows, list) or len(rows) != count:
        raise BatchError(f"extension has not one entry for each of {count} records")
    found: list[tuple[bytes, ...]] = []
    for row in rows:
        if row is None:
            found.append(())
        elif isinstance(row, list) and all(isinstance(item, bytes) for item in row):
            found.append(tuple(row))
        else:
            raise BatchError("headers of a record are not a list of byte strings")
    return found


def decode_marks(extension: Buffer, count: int) -> dict[int, Marks]:
    """Marks of records of a batch of ``count`` records with this extension, by place in the batch.

    Raises:
        BatchError: not such a map.
    """
    fields = _fields(extension)
    nulls, keys, headers = fields.get("v", []), fields.get("k", {}), fields.get("n", {})
    if not isinstance(nulls, list) or not isinstance(keys, dict) or not isinstance(headers, dict):
        raise BatchError("marks of records are not a list and two maps")
    rows = [*nulls, *keys, *headers]
    if not all(isinstance(row, int) and 0 <= row < count for row in rows):
        raise BatchError(f"a mark is of none of {count} records")
    if not all(isinstance(key, bytes) for key in keys.values()):
        raise BatchError("key of a record is not a byte string")
    if not all(isinstance(places, list) and all(isinstance(at, int) for at in places) for places in headers.values()):
        raise BatchError("null headers of a record are not a list of places")
    is_null = set(nulls)
    return {row: Marks(row in is_null, keys.get(row), tuple(headers.get(row, ()))) for row in dict.fromkeys(rows)}


def decode_producer(extension: Buffer) -> Producer | None:
    """The producer of a batch with this extension; None: it does not say.

    Raises:
        BatchError: not such a map.
    """
    if bytes(extension[-_PRODUCER_BYTES:]).find(_PRODUCER_BEGIN) < 0:  # it is written last: headers are not unpacked
        return None
    entry = _fields(extension).get("p")
    if entry is None:
        return None
    if not isinstance(entry, list) or len(entry) != 3 or not all(isinstance(item, int) for item in entry):
        raise BatchError("producer is not a list of three numbers")
    return Producer(*entry)
