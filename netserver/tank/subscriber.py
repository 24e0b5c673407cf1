"""A subscription of the TANK client: it asks for its partitions by long polls and hands out what comes.

It remembers the next number of each partition, so that it goes on after what it has after any break. It never asks
for "the end": where that is it finds out once, so that nothing published between two polls can be missed, also from the
original server, whose empty answers move the end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from netserver.client.base import ClientEvent
from netserver.client.stream import SubscriptionBase
from netserver.errors import Closed, ConnectionFailed, OutOfRange, QuintlogError, Refused, Timeout

from .limits import FETCH_BYTES_MAX
from .records import EARLIEST, Fetched, Record, RecordBatch, Start

if TYPE_CHECKING:
    from .client import Client

StartsAt = Start | int | dict[int, "Start | int"]
"""For all partitions, or for each by number."""


class Subscription(SubscriptionBase[Record, RecordBatch]):
    """Partitions of a topic: ``await`` it, use it in ``async with``, or iterate over it.

    Attributes:
        topic: its name.
        partitions: their numbers.
    """

    def __init__(
        self,
        client: Client,
        topic: bytes,
        partitions: tuple[int, ...],
        start: StartsAt,
        *,
        fetch_bytes: int,
        max_wait_ms: int,
        min_bytes: int,
        prefetch_records: int,
        prefetch_bytes: int,
        raise_out_of_range: bool,
    ) -> None:
        super().__init__(prefetch_records, prefetch_bytes)
        self.topic = topic
        self.partitions = partitions
        self._client = client
        self._start = start
        self._fetch_bytes = dict.fromkeys(partitions, fetch_bytes)
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._raise_out_of_range = raise_out_of_range
        self._asked: dict[int, int] = {}  # next number to ask the server for
        self._taken: dict[int, int] = {}  # number after the last batch that the application was given
        self._marks: dict[int, int] = {}  # last known high-water marks
        self._room = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None

    # --- where it stands

    @property
    def positions(self) -> dict[int, int]:
        """Partition -> number of the next record for the application: a valid ``start`` to go on with."""
        found = dict(self._taken)
        batch = self._current
        if batch is not None and self._index < len(batch):
            found[batch.partition] = batch.seqs[self._index]
        return found

    @property
    def position(self) -> int | None:
        """The same number of the only partition; None before it is open.

        Raises:
            ValueError: there are several: see ``positions``.
        """
        if len(self.partitions) != 1:
            raise ValueError("a subscription of several partitions has several positions")
        return self.positions.get(self.partitions[0])

    @property
    def lag(self) -> int:
        """How far the application is behind what the server last told of its partitions, in numbers."""
        positions = self.positions
        return sum(max(mark + 1 - positions[index], 0) for index, mark in self._marks.items() if index in positions)

    # --- what the base asks for

    async def _do_open(self) -> None:
        self._client._check_open()
        self._begin(await self._resolve(self._start))
        self._client._subscriptions.add(self)

    async def _do_close(self) -> None:
        self._client._subscriptions.discard(self)
        polling, self._polling = self._polling, None
        if polling is not None and polling is not asyncio.current_task():
            polling.cancel()
            await asyncio.wait({polling})

    async def _do_seek(self, start: Any) -> None:
        ranges = await self._resolve(start)  # where that fails it goes on where it stands
        if self._closed:
            raise Closed("the subscription has ended")
        if self._polling is not None:
            self._polling.cancel()
        self._restart(None)
        self._begin(ranges)

    def _do_room(self) -> None:
        self._room.set()

    def _position_of(self, record: Record) -> int:
        return record.seq + 1

    async def _load(self) -> bool:
        loaded = await super()._load()
        if loaded and self._current is not None:
            self._taken[self._current.partition] = self._current.next_offset
        return loaded

    def end(self, error: QuintlogError) -> None:
        """The client is over."""
        if self._polling is not None:
            self._polling.cancel()
        self._end(None if isinstance(error, Closed) else error)

    # --- reading

    def _begin(self, places: dict[int, tuple[int, int]]) -> None:
        """Read from these numbers on; see ``_resolve``."""
        for index, (seq, mark) in places.items():
            self._asked[index] = self._taken[index] = seq
            self._marks[index] = mark
        self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def _resolve(self, start: StartsAt) -> dict[int, tuple[int, int]]:
        """Partition -> (number to begin with, last number that is there).

        Raises:
            QuintlogError, ValueError: they cannot be found out, or there is no such partition
        """
        places = {}
        starts = {index: start[index] if isinstance(start, dict) else start for index in self.partitions}
        ranges = await self._client.discover(self.topic)
        for index, where in starts.items():
            if not 0 <= index < len(ranges):
                raise ValueError(f"topic {self.topic!r} has {len(ranges)} partitions, no partition {index}")
            known = ranges[index]
            if known.fault:
                raise Refused(known.fault, f"partition {index} of topic {self.topic!r} cannot be read", retryable=True)
            if not isinstance(where, Start):
                seq = max(where, 1)
            else:
                seq = max(known.first_seq, 1) if where is EARLIEST else known.last_seq + 1
            places[index] = (seq, known.last_seq)
        return places

    async def _poll(self) -> None:
        try:
            while True:
                if self._queue.full:
                    self._room.clear()
                    await self._room.wait()
                entries = [
                    (self.topic, index, self._asked[index], self._fetch_bytes[index]) for index in self.partitions
                ]
                try:
                    answers = await self._client._fetch(entries, self._max_wait_ms, self._min_bytes)
                except (ConnectionFailed, Timeout) as error:
                    await self._client._reconnected(isinstance(error, Timeout))
                    continue
                for fetched in answers:
                    self._take(fetched)
        except QuintlogError as error:
            self._client._subscriptions.discard(self)
            self._end(None if isinstance(error, Closed) else error)

    def _take(self, fetched: Fetched) -> None:
        index = fetched.partition
        asked = self._asked[index]
        self._marks[index] = fetched.high_water_mark
        if fetched.first_available is not None:
            if self._raise_out_of_range:
                raise OutOfRange(f"partition {index}: record {asked} is not there", fetched.first_available)
            self._client._tell(ClientEvent("gap", detail=(self.topic, index, asked, fetched.next_offset)))
            if self._taken[index] == asked:
                self._taken[index] = fetched.next_offset
        elif fetched.is_cut:
            self._fetch_bytes[index] = min(2 * self._fetch_bytes[index], FETCH_BYTES_MAX)
        self._asked[index] = fetched.next_offset
        if fetched.batch is not None:
            self._queue.put(fetched.batch)
