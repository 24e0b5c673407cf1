# cython: annotation_typing=False
"""The answers that a connection still owes: publishes that are not yet stored, and what must wait behind them.

Compiled where there is a compiler: with many small publishers each record is an answer of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from engine.segments.batches import COMMITTED, FAILED, PENDING
from netserver.limits import RELEASED_MAX
from netserver.shell.counters import Counters

if TYPE_CHECKING:
    import asyncio

    from engine.errors import EngineError
    from engine.segments.batches import WriteBatch
    from engine.slices import Slices

Released = list[tuple[Any, "Exception | None"]]
"""(token, None) of what is stored, (token, error) of what is not, in order."""


class Owner(Protocol):
    """What ``Outstanding`` needs of a connection (or of a stream of one); see ``netserver.shell.connection``."""

    loop: asyncio.AbstractEventLoop
    counters: Counters
    closed: bool
    received_at: float

    def charge(self, size_bytes: int, records: int = 0) -> None:
        """``size_bytes`` of publishes were appended, in so many records."""

    def discharge(self, size_bytes: int) -> None:
        """They were stored or refused."""

    def call(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call a session's function so that its error ends this connection and no other."""


class Promise:
    """What an answer waits for if not for a write batch; ``settle`` it, then call ``Outstanding.look_soon``."""

    __slots__ = ("error", "state")

    def __init__(self) -> None:
        self.state = PENDING
        self.error: EngineError | None = None

    def settle(self, error: EngineError | None) -> None:
        """It is done, or has failed."""
        self.state = COMMITTED if error is None else FAILED
        self.error = error


class Outstanding:
    """Queue of answers of one connection; given to the engine as the waiter of its write batches.

    They leave in the order of arrival: a finished one waits for those before it.

    ``on_released`` gets all answers that a commit round set free, in one call, so that a session can merge them into
    one write (one cumulative ACK); this class merges nothing. Publish bytes are charged to the connection from ``add``
    until their write batch is stored or has failed, also when the connection is gone in between.

    Args:
        connection: whose answers; its counters get records, bytes and the time to the acknowledgement.
        on_released: called in the loop; an error in it ends this connection only.
        slices: of the loop; what a turn has no time for waits there.
    """

    __slots__ = ("_checking", "_connection", "_on_released", "_queue", "_slices", "pending_bytes")

    def __init__(self, connection: Owner, on_released: Callable[[Released], object], slices: Slices) -> None:
        self._connection = connection
        self._on_released = on_released
        self._slices = slices
        self._queue: deque[tuple[WriteBatch | Promise | None, object, int, int, float, Exception | None]] = deque()
        self._checking = False
        self.pending_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def tokens(self) -> list[Any]:
        """Of what is still owed, in the order of arrival."""
        return [entry[1] for entry in self._queue]

    def close(self) -> None:
        """The connection is gone: nobody is told any more, bytes are discharged as ever."""
        self._on_released = _nobody

    def add(self, write_batch: WriteBatch, token: object, size_bytes: int, count: int = 1) -> None:
        """``count`` records of ``size_bytes`` together were appended to ``write_batch``; this object is its waiter."""
        connection = self._connection
        self._queue.append((write_batch, token, size_bytes, count, connection.received_at, None))
        self.pending_bytes += size_bytes
        connection.charge(size_bytes, count)
        if write_batch.state != PENDING:  # finished while it was being appended
            self.look_soon()

    def add_promise(self, promise: Promise, token: object) -> None:
        """An answer that waits for ``promise`` (and for those before it)."""
        self._queue.append((promise, token, 0, 0, 0.0, None))

    def add_done(self, token: object, error: EngineError | Exception | None = None) -> None:
        """An answer that waits for nothing but those before it (a PONG, a refusal); with none before it leaves now."""
        if self._queue:
            self._queue.append((None, token, 0, 0, 0.0, error))
        else:
            self._connection.call(self._on_released, [(token, error)])

    def look_soon(self) -> None:
        """Look in the next turn of the loop for what is done: many promises are answered together."""
        if not self._checking:
            self._checking = True
            self._connection.loop.call_soon(self._look)

    def round_done(self) -> None:
        """A commit round has changed the state of a write batch (called by the engine)."""
        if not self._checking:  # else it is looked for in a moment: one look a turn, however many rounds there are
            self._look()

    def _look(self) -> None:
        self._checking = False
        released: Released = []
        freed_bytes = self._take_finished(released)
        if freed_bytes:
            self.pending_bytes -= freed_bytes
            self._connection.discharge(freed_bytes)
        if released and not self._connection.closed:
            self._connection.call(self._on_released, released)

    def _take_finished(self, released: Released) -> int:
        queue = self._queue
        now = time.monotonic()
        freed_bytes = 0
        while queue:
            if len(released) == RELEASED_MAX:
                self._checking = True
                self._slices.later(self._look)
                break
            write_batch, token, size_bytes, count, since, error = queue[0]
            if write_batch is not None:
                if write_batch.state == PENDING:
                    break
                error = self._finished(write_batch, size_bytes, count, now - since)
            queue.popleft()
            freed_bytes += size_bytes
            released.append((token, error))
        return freed_bytes

    def _finished(
        self, write_batch: WriteBatch | Promise, size_bytes: int, count: int, seconds: float
    ) -> Exception | None:
        """Count a stored write batch's records; the error of a failed one."""
        if isinstance(write_batch, Promise) or write_batch.state != COMMITTED:
            return write_batch.error
        counters = self._connection.counters
        counters.records_published += count
        counters.published_bytes += size_bytes
        counters.ack_seconds[write_batch.partition.config.durability].observe(seconds, count)
        return None


def _nobody(_released: Released) -> None:
    """Hears the answers of a connection that is gone."""
