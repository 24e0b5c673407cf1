"""Keeps connections to the rates of their identity: by not reading, and by not writing for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from netserver.access.access import Visitor

QUOTA: Final = "its identity is at its rate"


class Paced(Protocol):
    """A connection, or a stream of one."""

    loop: asyncio.AbstractEventLoop
    closed: bool

    @property
    def visitor(self) -> Visitor:
        """Whose it is."""

    def hold(self, reason: str) -> None:
        """Stop reading."""

    def release(self, reason: str) -> None:
        """Read on."""

    def stop_output(self) -> None:
        """The session writes nothing more by itself."""

    def resume_output(self) -> None:
        """It may again, as far as this is the reason."""


class Brake:
    """Stops something until a time; times that come meanwhile add to it.

    Attributes:
        is_on: it is stopped.
    """

    __slots__ = ("_go", "_loop", "_stop", "_timer", "_until", "is_on")

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], Any], go: Callable[[], Any]) -> None:
        self.is_on = False
        self._loop = loop
        self._stop = stop
        self._go = go
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def left_s(self) -> float:
        """How long it is stopped still."""
        return max(self._until - self._loop.time(), 0.0) if self.is_on else 0.0

    def wait(self, seconds: float) -> None:
        """Stop for so long from now on at least."""
        self._until = max(self._until, self._loop.time() + seconds)
        if not self.is_on:
            self.is_on = True
            self._stop()
            self._timer = self._loop.call_at(self._until, self._look)

    def end(self) -> None:
        """Nothing goes on any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._until > self._loop.time():
            self._timer = self._loop.call_at(self._until, self._look)
        else:
            self.is_on = False
            self._go()


class Brakes:
    """Those of a connection whose identity has quotas."""

    __slots__ = ("_paced", "input", "output")

    def __init__(self, paced: Paced) -> None:
        self._paced = paced
        self.input = Brake(paced.loop, lambda: paced.hold(QUOTA), lambda: paced.release(QUOTA))
        self.output = Brake(paced.loop, paced.stop_output, paced.resume_output)

    def begin(self) -> None:
        """It waits from the start as long as its identity has to: coming again is no way to a rate."""
        meter = self._paced.visitor.meter
        if meter is None:
            return
        if wait_s := meter.debt_s(incoming=True):
            self.input.wait(wait_s)
        if wait_s := meter.debt_s(incoming=False):
            self.output.wait(wait_s)

    def end(self) -> None:
        """The connection is gone."""
        self.input.end()
        self.output.end()

    def received(self, size_bytes: int, records: int) -> None:
        """So much was published."""
        meter = self._paced.visitor.meter
        if meter is not None and (wait_s := meter.received(size_bytes, records)):
            self.input.wait(wait_s)

    def sent(self, size_bytes: int, records: int) -> None:
        """So much was sent."""
        meter = self._paced.visitor.meter
        if meter is not None and (wait_s := meter.sent(size_bytes, records)):
            self.output.wait(wait_s)


class Pacing:
    """The part of a TCP connection that keeps to the rates of its identity.

    Attributes:
        brakes: made when they are needed first.
        visitor: who the peer is, and what it may do.
        writable: see ``netserver.shell.connection``.
    """

    loop: asyncio.AbstractEventLoop
    closed: bool
    visitor: Visitor
    writable: bool
    brakes: Brakes | None = None

    def hold(self, reason: str) -> None:
        """See ``Paced``."""
        raise NotImplementedError

    def release(self, reason: str) -> None:
        """See ``Paced``."""
        raise NotImplementedError

    def resume_output(self) -> None:
        """See ``Paced``."""
        raise NotImplementedError

    def delivered(self, records: int) -> None:
        """So many records are in what was written, or will be soon."""
        if self.visitor.meter is not None:
            self.paced().sent(0, records)

    def known(self) -> None:
        """It is known whose it is, from now on."""
        if self.visitor.meter is not None:
            self.paced().begin()

    def let_go(self) -> None:
        """It is gone."""
        if self.brakes is not None:
            self.brakes.end()
            self.brakes = None

    def stop_output(self) -> None:
        """See ``Paced``."""
        self.writable = False

    def paced(self) -> Brakes:
        """Those of this connection."""
        if self.brakes is None:
            self.brakes = Brakes(self)
        return self.brakes
