"""A subscription of the Figg client: where it stands, and what the application reads from."""

from __future__ import annotations

import asyncio
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from netserver.client.stream import Batch, SubscriptionBase
from netserver.errors import Closed, QuintlogError
from netserver.figg.limits import RECORD_OVERHEAD_BYTES, UNANSWERED_CONNECTIONS, UNANSWERED_S

if TYPE_CHECKING:
    from netserver.figg.client import Client


class Start(Enum):
    """Where a subscription begins, besides an offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


EARLIEST: Final = Start.EARLIEST
LATEST: Final = Start.LATEST


class Record(NamedTuple):
    """One record; a subscription that starts at ``offset`` reads on after it."""

    offset: int
    value: bytes


_new_record = partial(tuple.__new__, Record)  # half the time of Record(offset, value)


class RecordBatch(Batch[Record]):
    """Records that were received together: ``offsets`` and ``values`` belong to each other by position."""

    __slots__ = ("next_offset", "offsets", "size_bytes", "values")

    def __init__(self, offsets: list[int], values: list[bytes]) -> None:
        self.offsets = offsets
        self.values = values
        self.next_offset = offsets[-1]
        self.size_bytes = sum(map(len, values)) + RECORD_OVERHEAD_BYTES * len(values)

    def __len__(self) -> int:
        return len(self.values)

    def records(self) -> list[Record]:
        return list(map(_new_record, zip(self.offsets, self.values, strict=True)))

    def part(self, start: int, end: int) -> Self:
        return type(self)(self.offsets[start:end], self.values[start:end])


class Subscription(SubscriptionBase[Record, RecordBatch]):
    """A topic of a Figg client: ``await`` it, use it in ``async with``, or iterate over it.

    Attributes:
        topic: its name.
        tracked: offset of the last record received (else of ATTACHED): where it goes on after a lost connection. None:
            begins with the latest, and the server has not said yet where that is.
        is_attached: the server has once confirmed it.
        is_first: the ATTACH sent last is the topic's first on this connection, so that DATA cannot be of another one.
        is_shed: detached for a while because the prefetch is full.
    """

    def __init__(
        self, client: Client, topic: bytes, start: Start | int, prefetch_records: int, prefetch_bytes: int
    ) -> None:
        self.tracked = _offset(start)
        super().__init__(prefetch_records, prefetch_bytes, self.tracked)
        self.topic = topic
        self.is_attached = False
        self.is_first = False
        self.is_shed = False
        self._client = client
        self._answer: asyncio.Future[None] | None = None
        self._received_since_asking = False
        self._asked_at = 0.0
        self._unanswered = 0  # connections in a row that were closed after the server had not answered for a while
        self._may_repeat = False  # an old server may have several subscriptions of the topic on this connection

    @property
    def is_full(self) -> bool:
        """As much is prefetched as was wished for."""
        return self._queue.full

    # --- what the client tells

    def asking(self, *, is_first: bool) -> None:
        """ATTACH is being sent."""
        self.is_first = is_first and self.tracked is not None
        self._may_repeat = not is_first
        self._received_since_asking = False
        self._asked_at = asyncio.get_running_loop().time()

    def unanswered(self, now: float) -> bool:
        """The connection ended before ATTACHED came; True: so often that it never will."""
        if now - self._asked_at >= UNANSWERED_S:
            self._unanswered += 1
        return self._unanswered >= UNANSWERED_CONNECTIONS

    def attached(self, offset: int) -> bool:
        """The answer to the last ATTACH; True: it goes on elsewhere than it stood, or asked for."""
        moved = False
        if not self._received_since_asking and offset != self.tracked:
            moved = self.is_attached or bool(self.tracked)  # 0 is wherever the log begins
            self.tracked = offset
            if not self.is_attached:
                self._position = offset
        self.is_attached = True
        self._unanswered = 0
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        return moved

    def made_anew(self, offset: int) -> bool:
        """An ATTACHED that nobody asked for: the topic was deleted and made again. True: it goes on elsewhere."""
        moved = not self.is_shed and offset != self.tracked
        if moved:
            self.tracked = offset
        return moved

    def take(self, offsets: list[int], values: list[bytes]) -> bool:
        """DATA has come. What an old server repeats is left out.

        True: the numbers have fallen though nothing can be repeated: it is another topic of the same name.
        """
        self._received_since_asking = True
        tracked = self.tracked
        fallen = tracked is not None and offsets[0] <= tracked and not self._may_repeat
        if self._may_repeat:
            highest = -1 if tracked is None else tracked
            fresh = []
            for offset, value in zip(offsets, values, strict=True):
                if offset > highest:
                    highest = offset
                    fresh.append((offset, value))
            if not fresh:
                return False
            offsets, values = [offset for offset, _ in fresh], [value for _, value in fresh]
        self.tracked = offsets[-1]
        self._queue.put(RecordBatch(offsets, values))
        return fallen

    def end(self, error: QuintlogError) -> None:
        """The client is over."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self._end(None if isinstance(error, Closed) else error)

    # --- opening, seeking, closing

    async def _do_open(self) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        self._client._enter(self)
        await self._answer

    async def _do_close(self) -> None:
        self._client._leave(self)

    async def _do_seek(self, start: Start | int) -> None:
        offset = _offset(start)
        self._restart(offset)
        self.tracked = offset
        self.is_attached = False
        self.is_shed = False
        self._answer = asyncio.get_running_loop().create_future()
        self._client._send_attach(self)
        await self._answer

    def _do_room(self) -> None:
        self._client._has_room(self)

    def _position_of(self, record: Record) -> int:
        return record.offset


def _offset(start: Start | int) -> int | None:
    """The offset to attach with; None: latest."""
    if isinstance(start, Start):
        return 0 if start is EARLIEST else None
    if not 0 <= start < 1 << 64:
        raise ValueError(f"an offset is a number of 0 to 2^64 - 1, not {start}")
    return start
