"""The queue between a client's connection and the application: batches in, records or batches out.

The reader of the connection puts whole batches into a :class:`Prefetch`; the application takes them one record at a
time or as they are. Nothing is ever dropped here: a full prefetch says so, and its client stops the flow.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from netserver.errors import Closed, QuintlogError, Timeout

__all__ = ["Batch", "Prefetch", "SubscriptionBase"]

R = TypeVar("R")
"""record type"""
B = TypeVar("B", bound="Batch[Any]")
"""batch type"""


class Batch(ABC, Generic[R]):
    """Records that arrived together, oldest first; never empty.

    ``next_offset`` is what to ask for to go on after this batch; ``size_bytes`` what it counts in the prefetch.
    """

    __slots__ = ()

    next_offset: int
    size_bytes: int

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def records(self) -> list[R]:
        """The records as objects."""

    @abstractmethod
    def part(self, start: int, end: int) -> Self:
        """The records ``start`` to ``end`` (exclusive) as a batch of their own."""

    def __iter__(self) -> Iterator[R]:
        return iter(self.records())


class Prefetch(Generic[B]):
    """Bounded queue of batches between the reader of a connection and the application.

    Args:
        records_max, bytes_max: at or above either of them it is full
        on_room: called when a queue that was full has fallen to half of both
    """

    def __init__(self, records_max: int, bytes_max: int, on_room: Callable[[], None]) -> None:
        self.records = 0
        self.size_bytes = 0
        self.full = False
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._batches: deque[B] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._error: QuintlogError | None = None

    def put(self, batch: B) -> None:
        """Add a batch. The caller looks at ``full`` afterwards and stops the flow."""
        self._batches.append(batch)
        self.records += len(batch)
        self.size_bytes += batch.size_bytes
        if self.records >= self._records_max or self.size_bytes >= self._bytes_max:
            self.full = True
        self._wake_one()

    async def take(self) -> B | None:
        """The next batch; None when the queue was closed without an error and is empty.

        Raises:
            QuintlogError: the error that the queue was closed with, once it is empty
        """
        while not self._batches:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker in self._takers:
                    self._takers.remove(taker)
                else:
                    self._wake_one()  # woken for a batch that somebody else must take now
                raise
        batch = self._batches.popleft()
        self.records -= len(batch)
        self.size_bytes -= batch.size_bytes
        self._check_room()
        return batch

    def clear(self) -> None:
        """Forget what is queued (after a seek)."""
        self._batches.clear()
        self.records = 0
        self.size_bytes = 0
        self._check_room()

    def close(self, error: QuintlogError | None) -> None:
        """Nothing more comes; what is queued can still be taken."""
        if not self._closed:
            self._closed = True
            self._error = error
            while self._takers:
                self._wake_one()

    def _check_room(self) -> None:
        if self.full and self.records * 2 <= self._records_max and self.size_bytes * 2 <= self._bytes_max:
            self.full = False
            self._on_room()

    def _wake_one(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return


class SubscriptionBase(ABC, Generic[R, B]):
    """A subscription: ``await`` it, use it in ``async with``, or just iterate over it with ``async for``.

    A loop that was left goes on where it stopped when it is entered again; several tasks may share one subscription,
    each record then goes to one of them. The class of a protocol fills in the methods that begin with ``_do_``.
    """

    def __init__(self, prefetch_records: int, prefetch_bytes: int, position: int | None = None) -> None:
        self._queue: Prefetch[B] = Prefetch(prefetch_records, prefetch_bytes, self._do_room)
        self._position = position  # after the last record handed out
        self._current: B | None = None
        self._records: list[R] | None = None  # of the current batch, once one was asked for
        self._index = 0  # next record of the current batch
        self._opening: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._closed = False

    # --- for the protocol's class

    @abstractmethod
    async def _do_open(self) -> None:
        """Tell the server; return when it has confirmed."""

    @abstractmethod
    async def _do_close(self) -> None:
        """Tell the server that it is over, as far as it can still be told."""

    @abstractmethod
    async def _do_seek(self, start: Any) -> None:
        """Begin at another position; call `_restart` when nothing of the old one can come any more."""

    @abstractmethod
    def _do_room(self) -> None:
        """The prefetch was full and has room again."""

    @abstractmethod
    def _position_of(self, record: R) -> int:
        """What to ask for to go on after ``record``."""

    # --- opening and closing

    def __await__(self) -> Generator[object, None, Self]:
        return self._entered().__await__()

    async def __aenter__(self) -> Self:
        return await self._entered()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _entered(self) -> Self:
        try:
            await self._opened()
        except asyncio.CancelledError:
            await self.close()
            raise
        return self

    async def _opened(self) -> None:
        """Wait until it is open; who stops waiting does not stop the opening."""
        if self._opening is None:
            if self._closed:
                return  # what had come before the end can still be read
            self._opening = asyncio.get_running_loop().create_task(self._do_open())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and (task is None or not task.cancelling()):
                raise Closed("the subscription was closed") from None
            raise
        except QuintlogError:
            if self._opening is opening:
                self._opening = None
            raise

    async def close(self) -> None:
        """End the subscription. Loops over it end once they have taken what had already come."""
        if not self._closed:
            self._closed = True
            if self._opening is not None and not self._opening.done():
                self._opening.cancel()
            await self._do_close()
            self._queue.close(None)

    def _end(self, error: QuintlogError | None) -> None:
        """The client is closed or has given up."""
        self._closed = True
        self._queue.close(error)

    # --- reading

    @property
    def position(self) -> int | None:
        """Where reading goes on: what to pass as ``start`` to continue after the last record handed out."""
        if self._current is not None and self._index:
            if self._records is None:
                self._records = self._current.records()
            return self._position_of(self._records[self._index - 1])
        return self._position

    async def _load(self) -> bool:
        """Make sure that the current batch has a record left. False: the subscription has ended."""
        async with self._loading:
            if self._current is not None and self._index < len(self._current):
                return True
            if self._current is not None:
                self._position = self._current.next_offset
            self._current = self._records = None
            self._index = 0
            self._current = await self._queue.take()
            return self._current is not None

    async def __aiter__(self) -> AsyncGenerator[R, None]:
        await self._opened()
        while await self._load():
            while self._current is not None and self._index < len(self._current):
                if self._records is None:
                    self._records = self._current.records()
                index = self._index
                self._index = index + 1
                yield self._records[index]

    async def batches(self, max_records: int | None = None) -> AsyncIterator[B]:
        """Batches as they came, cut to at most ``max_records`` each."""
        await self._opened()
        while await self._load():
            batch = self._current
            if batch is None:
                continue
            start, end = self._index, len(batch)
            if max_records is not None and end - start > max_records:
                end = start + max_records
            self._index = end
            yield batch if (start, end) == (0, len(batch)) else batch.part(start, end)

    async def next(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 (a deadline is part of the interface)
        """The next record.

        Raises:
            Timeout: none came within ``timeout`` seconds
            Closed: the subscription has ended
        """
        try:
            async with asyncio.timeout(timeout):
                await self._opened()
                loaded = await self._load()
        except TimeoutError as error:
            raise Timeout(f"no record within {timeout} s") from error
        if not loaded or self._current is None:
            raise Closed("the subscription has ended")
        if self._records is None:
            self._records = self._current.records()
        self._index += 1
        return self._records[self._index - 1]

    async def seek(self, start: Any) -> None:
        """Go on reading elsewhere; what was prefetched is forgotten.

        Args:
            start: as in ``subscribe()``
        """
        await self._opened()
        await self._do_seek(start)

    def _restart(self, position: int | None) -> None:
        """Forget what was prefetched (for ``_do_seek``)."""
        self._current = self._records = None
        self._index = 0
        self._position = position
        self._queue.clear()
