"""Bodies of publishes on their way into the log, taken as they come: lines of JSON, values after their lengths, others.

The hot loops take what is of the usual form; what they leave is decoded one by one (``json_lines``, ``splitting``).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from netserver.admin.slices import sliced, turn
from netserver.client.partitioning import partition_of
from netserver.http.dispatch import pack_lengths, pack_lines
from netserver.http.errors import BadRequest
from netserver.http.json_lines import Row, Rows, gather, read_lines
from netserver.http.limits import (
    HTTP_BODIES_BYTES_MAX,
    HTTP_BUSY_RETRY_S,
    HTTP_LINE_BYTES_MAX,
    HTTP_PIECE_BYTES,
    HTTP_READ_BYTES,
    HTTP_RECORDS_PIECE,
)
from netserver.http.splitting import LENGTH, Splitter, Value, check_size

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.slices import Slices
    from netserver.http.publishing import Publishing

Chunks = AsyncIterator[bytes]
Hold = Callable[[int], None]
LINES: Final = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines", "application/json-lines")


class Busy(Exception):
    """Others have as much in work as there may be."""

    retry_after_s = HTTP_BUSY_RETRY_S


class Room:
    """Memory for what has come of bodies and cannot be appended yet, of all requests together."""

    def __init__(self) -> None:
        self._held_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """One request's; what it is given is told how many bytes that are now. It raises Busy: they are too many."""
        held_bytes = 0

        def hold(size_bytes: int) -> None:
            nonlocal held_bytes
            self._held_bytes += size_bytes - held_bytes
            held_bytes = size_bytes
            if self._held_bytes > HTTP_BODIES_BYTES_MAX and size_bytes > HTTP_READ_BYTES:
                raise Busy(f"bodies of {self._held_bytes} bytes are in memory, as many as may be; try again later")

        try:
            yield hold
        finally:
            self._held_bytes -= held_bytes


async def append_values(
    chunks: Chunks, splitter: Splitter, partition: Partition, key: bytes, publishing: Publishing, hold: Hold
) -> None:
    """A body that is split into values. Raises BadRequest, Busy, EngineError."""
    async for data in chunks:
        for at in range(0, len(data), HTTP_PIECE_BYTES):
            values = splitter.take(data[at : at + HTTP_PIECE_BYTES])
            hold(splitter.rest_bytes)
            await _append(values, partition, key, publishing)
    await _append(splitter.end(), partition, key, publishing)


async def append_lengths(
    chunks: Chunks, partition: Partition, slices: Slices, publishing: Publishing, hold: Hold
) -> None:
    """Values, each after its length. Raises BadRequest, Busy, EngineError."""
    most = partition.config.record_bytes_max
    rest = bytearray()
    async for data in chunks:
        rest += data
        hold(len(rest))
        at = 0
        while True:
            after = await publishing.pack(partition, pack_lengths, rest, at, len(rest), most)
            if after == at:
                end = at + 4 + _length(rest, at, most)
                if len(rest) < end:  # the rest of it has not come
                    break
                await _append([_copied(rest, at + 4, end)], partition, b"", publishing)
                after = end
            at = after
            await turn(slices)
        del rest[:at]
        hold(len(rest))
    if rest:
        raise BadRequest(f"the body ends within a record: {len(rest)} bytes are left")


def _copied(rest: bytearray, start: int, end: int) -> bytes:
    with memoryview(rest) as view:
        return bytes(view[start:end])


def _length(rest: bytearray, at: int, most: int) -> int:
    """Of the record there, as far as it has come. Raises BadRequest."""
    size_bytes = int(LENGTH.unpack_from(rest, at)[0]) if len(rest) - at >= 4 else 0
    check_size(size_bytes, most)
    return size_bytes


class Lines:
    """Lines of JSON; each may name its partition, or have a key that says where it belongs.

    Args:
        usual: where the others go.
        named: the partition that the request names, whatever keys there are.
        opened: gives a partition, ready for use.
        now_ms: the time of records that have none of their own.
        slices: in which a turn of the event loop appends to many partitions.
    """

    def __init__(
        self,
        usual: Partition,
        *,
        named: bool,
        opened: Callable[[int], Awaitable[Partition]],
        now_ms: Callable[[], int],
        slices: Slices,
        publishing: Publishing,
    ) -> None:
        self._usual = usual
        self._count = 1 if named else usual.topic.partition_count
        self._opened = opened
        self._now_ms = now_ms
        self._slices = slices
        self._publishing = publishing
        self._rest = bytearray()
        self._number = 1

    async def append(self, chunks: Chunks, hold: Hold) -> None:
        """A whole body. Raises BadRequest, which names the line; Busy, EngineError."""
        async for data in chunks:
            before = len(self._rest)
            self._rest += data
            newline = data.rfind(b"\n")
            if newline >= 0:
                await self._take(before + newline + 1)
            if len(self._rest) > HTTP_LINE_BYTES_MAX:
                raise BadRequest(f"line {self._number} has more than {HTTP_LINE_BYTES_MAX} bytes")
            hold(len(self._rest))
        if self._rest:
            self._rest += b"\n"
            await self._take(len(self._rest))

    async def _take(self, end: int) -> None:
        rest, usual, at = self._rest, self._usual, 0
        most = usual.config.record_bytes_max
        while at < end:
            after = await self._publishing.pack(usual, pack_lines, rest, at, end, most)
            if after > at:
                self._number += rest.count(b"\n", at, after)
            else:
                after = await self._take_others(at, end)
            at = after
            await turn(self._slices)
        del rest[:end]

    async def _take_others(self, at: int, end: int) -> int:
        """A piece of lines of whatever form; the position after it."""
        after = self._rest.find(b"\n", min(at + HTTP_PIECE_BYTES, end - 1)) + 1
        lines = bytes(self._rest[at:after]).split(b"\n", HTTP_RECORDS_PIECE)
        left = lines.pop()
        found: defaultdict[int, list[Row]] = defaultdict(list)
        for row in read_lines(lines, self._number, self._now_ms()):
            found[self._partition_of(row)].append(row)
        self._number += len(lines)
        async for index, part in sliced(self._slices, found.items()):
            await self._publishing.append(await self._opened(index), gather(part))
        return after - len(left)

    def _partition_of(self, row: Row) -> int:
        if row.partition >= 0:
            return row.partition
        if row.key and self._count > 1:
            return partition_of(row.key, self._count)
        return self._usual.index


async def _append(values: Sequence[Value], partition: Partition, key: bytes, publishing: Publishing) -> None:
    """Each piece in a turn of its own: to split them was the work of one, too."""
    for at in range(0, len(values), HTTP_RECORDS_PIECE):
        await asyncio.sleep(0)
        piece = values[at : at + HTTP_RECORDS_PIECE]
        await publishing.append(partition, Rows(piece, [key] * len(piece) if key else None))
