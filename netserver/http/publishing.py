"""A publish over HTTP: records are appended as they come, and the answer says which numbers they have on disk.

What is not yet on disk counts with the publishes of all protocols (``netserver.shell.input_pressure``): above its share
a request is not read on. A request that fails in its midst says how many of its records are stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.errors import EngineError
from engine.limits import RECORD_OVERHEAD_BYTES
from engine.segments.batches import COMMITTED, PENDING, outcome
from netserver.access.access import Forbidden
from netserver.http.json_lines import Rows
from netserver.http.limits import HTTP_RECORDS_FRAMED, HTTP_VALUE_WHOLE_BYTES
from netserver.http.sender import Sender
from netserver.shell.input_pressure import PublishPressure

if TYPE_CHECKING:
    from engine.formats.batch import BatchWriter
    from engine.partitions.partition import Partition
    from engine.segments.batches import WriteBatch


class Pack(Protocol):
    """`netserver.http.frames.pack_lengths` or `pack_lines`."""

    def __call__(
        self,
        src: bytes | bytearray,
        position: int,
        end: int,
        writer: BatchWriter,
        value_bytes_max: int,
        records_max: int,
        /,
    ) -> tuple[int, int, int, bool]: ...


@dataclass(slots=True)
class Stored:
    """What of a request is on disk in one partition.

    Attributes:
        records: how many; when others publish at the same time, not all numbers from the first to the last are ours.
    """

    first_offset: int
    last_offset: int
    records: int


async def make_room(partition: Partition, rows: Rows) -> None:
    """Before records are appended: fresh memory for 15 MiB takes 10 ms, so a large one gets it in a turn of its own.

    Raises:
        EngineError: nothing can be stored.
    """
    if rows.size_bytes > HTTP_VALUE_WHOLE_BYTES:
        await asyncio.sleep(0)
        partition.writer(max(map(len, rows.values)))
        await asyncio.sleep(0)


class Publishing:
    """The records of one request (a ``Waiter`` of the engine, a ``Publisher`` of the shell).

    Args:
        sender: keeps it to a rate.
        may: whether its sender has the right to go on; asked before each piece.

    Attributes:
        stored: by partition.
        records: how many are on disk.
        size_bytes: their values and keys.
        error: why the first one that failed did.
    """

    def __init__(self, pressure: PublishPressure, sender: Sender, may: Callable[[], bool]) -> None:
        self.charged = 0
        self.stored: dict[int, Stored] = {}
        self.records = 0
        self.size_bytes = 0
        self.error: EngineError | None = None
        self._pressure = pressure
        self._sender = sender
        self._may = may
        self._wait_s = 0.0
        self._holds: set[str] = set()
        self._appended: deque[tuple[list[WriteBatch], int, int, int, int]] = deque()
        self._told: asyncio.Future[None] | None = None  # what the request waits for: a change of the two above
        pressure.join(self)

    # --- of the shell

    def hold(self, reason: str) -> None:
        """Append no more."""
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        """Go on, unless something else is in the way."""
        self._holds.discard(reason)
        self._tell()

    # --- of the request

    async def append(self, partition: Partition, rows: Rows, *, qos0: bool = False) -> None:
        """Append records when there is room for them.

        Raises:
            EngineError: they are refused, or records before them were not stored.
        """
        await self._turn()
        await make_room(partition, rows)
        write_batches = partition.append_many(
            rows.values,
            keys=rows.keys,
            timestamps_ms=rows.timestamps_ms,
            headers=rows.headers,
            qos0=qos0,
            waiter=self,
        )
        self._note(write_batches, partition, len(rows.values), rows.size_bytes)

    async def put(self, partition: Partition, value: bytes) -> None:
        """Append a value that is not large, as most requests do. Raises EngineError as `append` does."""
        await self._turn()
        size_bytes = len(value)
        while not partition.writer(size_bytes).put(value, 0, size_bytes):
            pass  # the next writer has room for it
        self._note([partition.appended(self, size_bytes + RECORD_OVERHEAD_BYTES)], partition, 1, size_bytes)

    async def pack(
        self, partition: Partition, pack: Pack, src: bytes | bytearray, position: int, end: int, value_bytes_max: int
    ) -> int:
        """Append what a hot loop takes of ``src`` from ``position`` on when there is room; the position after it.

        Raises:
            EngineError: it is refused, or records before it were not stored.
        """
        await self._turn()
        writer = partition.writer()
        position, count, size_bytes, _ = pack(src, position, end, writer, value_bytes_max, HTTP_RECORDS_FRAMED)
        if count:
            write_batch = partition.appended(self, size_bytes + count * RECORD_OVERHEAD_BYTES)
            self._note([write_batch], partition, count, size_bytes)
        return position

    async def _turn(self) -> None:
        """Wait until more may be appended. Raises EngineError: nothing more will be."""
        if self._wait_s:
            await self._sender.pause(self._wait_s)
            self._wait_s = 0.0
        while self._holds:
            await self._until_told()
        if self.error is not None:
            raise self.error
        if not self._may():
            raise Forbidden("the right to go on was taken away")

    def _note(self, write_batches: list[WriteBatch], partition: Partition, count: int, size_bytes: int) -> None:
        self._appended.append((write_batches, partition.index, partition.last_seq, count, size_bytes))
        self._pressure.charge(self, size_bytes)
        self._wait_s = self._sender.received(size_bytes, count)

    async def finish(self) -> None:
        """Wait until all of it is on disk or has failed. Raises EngineError: some of it has."""
        self.round_done()
        while self._appended:
            await self._until_told()
        if self.error is not None:
            raise self.error

    def round_done(self) -> None:
        """Called by the engine after each round that held some of it."""
        while self._appended:
            write_batches, index, last_seq, count, size_bytes = self._appended[0]
            state, error = outcome(write_batches)
            if state == PENDING:
                break
            self._appended.popleft()
            if state == COMMITTED:
                self._count(index, last_seq, count, size_bytes)
            elif self.error is None:
                self.error = error or EngineError("not stored")
            self._pressure.discharge(self, size_bytes)
        self._tell()

    async def _until_told(self) -> None:
        self._told = asyncio.get_running_loop().create_future()
        await self._told

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    def _count(self, index: int, last_seq: int, count: int, size_bytes: int) -> None:
        self.records += count
        self.size_bytes += size_bytes
        known = self.stored.get(index)
        if known is None:
            self.stored[index] = Stored(last_seq - count + 1, last_seq, count)
        else:
            known.last_offset = last_seq
            known.records += count

    def close(self) -> None:
        """The request is over; what was appended goes on to the disk."""
        self._pressure.leave(self)

    def document(self) -> bytes:
        """What is stored, for the answer: JSON, written here as most requests are about one record."""
        partitions = ", ".join(
            [
                f'{{"partition": {index}, "first_offset": {one.first_offset}, "last_offset": {one.last_offset}, '
                f'"records": {one.records}}}'
                for index, one in sorted(self.stored.items())
            ]
        )
        return f'{{"schema": 1, "records": {self.records}, "partitions": [{partitions}]}}'.encode()
