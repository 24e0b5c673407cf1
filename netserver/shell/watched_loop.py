"""The server's event loop: uvloop's, in which every callback marks itself in ``turns``.

What transports call directly (a connection's ``buffer_updated``) has to mark itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple

import uvloop

from engine.slices import TurnCounter
from netserver.shell.turns import Turns

Args = TypeVarTuple("Args")


class WatchedLoop(uvloop.Loop):
    """See the module. ``call_at`` is uvloop's way to ``call_later``."""

    def __init__(self) -> None:
        super().__init__()
        context = Context()  # copying the current one costs half of a call
        self.call_soon_unmarked = partial(super().call_soon, context=context)
        """`call_soon` for what is called in nearly every turn: it counts for what was marked before it."""
        self.turn_of = TurnCounter(self.call_soon_unmarked)
        self.turns = Turns(self.turn_of)

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        """As in asyncio."""
        return super().call_soon(self.turns.run, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        """As in asyncio."""
        return super().call_soon_threadsafe(self.turns.run, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio."""
        return super().call_later(delay, self.turns.run, callback, *args, context=context)

    def add_reader(self, fd: Any, callback: Callable[[*Args], object], *args: *Args) -> None:
        """As in asyncio."""
        super().add_reader(fd, self.turns.run, callback, *args)

    def add_writer(self, fd: Any, callback: Callable[[*Args], object], *args: *Args) -> None:
        """As in asyncio."""
        super().add_writer(fd, self.turns.run, callback, *args)
