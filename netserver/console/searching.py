"""Records of one page: read, filtered and cut, for a second at most; what is left is told by where to go on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from netserver.console.limits import (
    CONSOLE_CUT_BYTES,
    CONSOLE_MERGED_RECORDS,
    CONSOLE_SEARCH_BYTES,
    CONSOLE_SEARCH_S,
)
from netserver.http.reading import Reader, Remark

if TYPE_CHECKING:
    from engine.formats.record import Record
    from engine.partitions.partition import Partition
    from engine.slices import Slices
    from netserver.http.query import Filter
    from netserver.http.sender import Sender
    from netserver.shell.counters import Counters

Start = tuple["Partition", int, int | None, int]
"""Of a partition of a `Reader`."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record of a list.

    Attributes:
        value: its beginning; ``size_bytes`` is that of the whole; null: see ``is_null``.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes
    size_bytes: int
    headers: int
    is_null: bool = False

    @property
    def is_cut(self) -> bool:
        """There is more of the value than is here."""
        return self.size_bytes > len(self.value)


def row_of(partition: int, record: Record) -> Row:
    """A record as a list shows it."""
    value, key, headers = record.value, (record.any_key or b"")[:CONSOLE_CUT_BYTES], len(record.headers) // 2
    shown = value[:CONSOLE_CUT_BYTES]
    return Row(partition, record.seq, record.timestamp_ms, key, shown, len(value), headers, record.is_null)


@dataclass(slots=True)
class Found:
    """What a page of records holds.

    Attributes:
        scanned: records that were looked at; ``total``: that lie in the range asked for, at most.
        remarks: about numbers that no record has any more.
        next_seq: of a single partition: where to go on; 0: several, or nothing is left.
        is_stopped: time or bytes were used up before the page was full.
    """

    total: int
    rows: list[Row] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    scanned: int = 0
    size_bytes: int = 0
    next_seq: int = 0
    is_stopped: bool = False


class Search:
    """One look through a topic.

    Args:
        starts: of each partition.
        limit: rows at most.
        newest: the last rows of the range are wanted, not the first ones.
        sender: keeps the reader to a rate.
        may: whether the reader has the right to go on.
        slices: in which a turn of the event loop reads of many partitions.
    """

    def __init__(
        self,
        starts: Sequence[Start],
        wanted: Filter,
        limit: int,
        *,
        newest: bool,
        sender: Sender,
        may: Callable[[], bool],
        slices: Slices,
    ) -> None:
        self._starts = [_near_end(start, len(starts)) for start in starts] if newest else list(starts)
        self._wanted = wanted
        self._limit = limit
        self._newest = newest
        self._sender = sender
        self._may = may
        self._slices = slices

    async def run(self, counters: Counters) -> Found:
        """Raises EngineError: a partition cannot be read."""
        found = Found(sum(_count(*start) for start in self._starts))
        rows: deque[Row] = deque(maxlen=self._limit if self._newest else None)
        reader = Reader(self._starts, self._sender, self._may, self._slices, counters)
        try:
            async for piece in reader.pieces(asyncio.get_running_loop().time() + CONSOLE_SEARCH_S):
                if self._take(piece, found, rows):
                    break
            else:
                found.is_stopped = self._is_left(found)
        finally:
            reader.close()
        found.rows = list(rows)
        return found

    def _take(self, piece: Sequence[tuple[int, Record] | Remark], found: Found, rows: deque[Row]) -> bool:
        """True: that is enough."""
        for item in piece:
            if isinstance(item, Remark):
                found.remarks.append(item)
                found.next_seq = item.last_offset + 1
                continue
            partition, record = item
            found.scanned += 1
            found.size_bytes += len(record.value)
            found.next_seq = record.seq + 1
            if self._wants(record):
                rows.append(row_of(partition, record))
                if not self._newest and len(rows) >= self._limit:
                    return True
            if found.size_bytes > CONSOLE_SEARCH_BYTES:
                found.is_stopped = self._is_left(found)
                return True
        return False

    def _wants(self, record: Record) -> bool:
        return self._wanted.everything or self._wanted.wants(record)

    def _is_left(self, found: Found) -> bool:
        _, first, end, _ = self._starts[0]
        if len(self._starts) > 1:
            return found.scanned < found.total
        return end is not None and max(found.next_seq, first) < end


def _near_end(start: Start, partitions: int) -> Start:
    """The same, but not too many records of each of many partitions."""
    partition, first, end, since_ms = start
    end_seq = partition.committed_seq + 1 if end is None else end
    least = partition.gaps.newest(partition.log_start, end_seq - 1, max(CONSOLE_MERGED_RECORDS // partitions, 1))
    return partition, max(first, least), end, since_ms


def _count(partition: Partition, first: int, end: int | None, _since_ms: int) -> int:
    return partition.gaps.count(first, (partition.committed_seq + 1 if end is None else end) - 1).most
