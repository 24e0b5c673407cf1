"""Stateless streams: decimal integers, each twice the one before it, as text.

``decimal`` keeps numbers in base 10^19, so that doubling, reading and printing take linear time: 1.6 microseconds at
1,000 digits, 180 at 100,000, where ``int`` takes 100 milliseconds to print (and refuses 4,300 digits unless told).
"""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from netserver.reliably.codec import stateless_line
from netserver.reliably.limits import TURN_BYTES
from netserver.reliably.values import random_start

if TYPE_CHECKING:
    from netserver.reliably.listener_state import ListenerState
    from netserver.shell.connection import Connection

_EXACT: Final = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


class StatelessStream:
    """The values after ``state`` (decimal digits, optional minus), or a new stream beginning with ``start()``."""

    __slots__ = ("_next",)

    def __init__(self, state: str | None, start: Callable[[], int] = random_start) -> None:
        if state is None:
            self._next = decimal.Decimal(start())
        else:
            value = _EXACT.create_decimal(state)
            self._next = _EXACT.add(value, value) if value else decimal.Decimal(0)  # no "-0"

    def lines(self, size_bytes: int, count: int) -> bytes:
        """The next lines: at most ``count``, at least one, and no more once there are ``size_bytes`` bytes."""
        parts = []
        value = self._next
        while True:
            line = stateless_line(str(value))
            parts.append(line)
            value = _EXACT.add(value, value)
            size_bytes -= len(line)
            count -= 1
            if size_bytes <= 0 or count <= 0:
                break
        self._next = value
        return b"".join(parts)


class StatelessSender:
    """Writes a stateless stream to a connection: as fast as the client reads, but not above the configured rate.

    There is no end and nothing new in it, so the rate keeps one such client from taking a processor core.
    """

    def __init__(self, connection: Connection, shared: ListenerState, state: str | None) -> None:
        self.stopped = False
        self._connection = connection
        self._shared = shared
        self._stream = StatelessStream(state, shared.random_start)
        self._due = shared.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def advance(self) -> None:
        """Write the next portion, if it is time and the connection takes it."""
        if self.stopped or self._timer is not None or not self._connection.writable:
            return
        shared = self._shared
        lines = self._stream.lines(TURN_BYTES, 1 if shared.interval_s else TURN_BYTES)
        self._connection.write(lines)
        counters = self._connection.counters
        count = lines.count(b"\n")
        counters.records_delivered += count
        self._connection.delivered(count)
        counters.delivered_bytes += len(lines)
        now = shared.loop.time()
        pause_s = shared.interval_s or len(lines) / shared.stateless_bytes_per_s
        self._due = max(self._due, now - 1.0) + pause_s
        self._timer = shared.loop.call_later(max(self._due - now, 0), self._connection.guarded(self._next))

    def _next(self) -> None:
        self._timer = None
        self.advance()

    def stop(self) -> None:
        """Nothing more is written."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
