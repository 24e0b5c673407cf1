"""The surroundings of a connection: the session that a protocol puts into it, and what connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netserver.access.access import Access, Door
from netserver.limits import FRAME_PROGRESS_BYTES, FRAME_STALL_S, FRAME_STALL_SHORT_S, READ_BUFFER_BYTES
from netserver.shell.counters import Counters
from netserver.shell.input_pressure import PublishPressure, ReceiveBudget
from netserver.shell.session import GONE, Session
from netserver.shell.turns import Turns

__all__ = ["GONE", "Services", "Session", "SessionFactory", "Shell"]

if TYPE_CHECKING:
    from engine.log import Log
    from engine.sessions.store import Sessions
    from netserver.config.sections import ServerConfig
    from netserver.kafka.describe import Consumers
    from netserver.shell.connection import Connection


SessionFactory = Callable[["Connection"], Session]


class Shell:
    """What the connections of one event loop share.

    Attributes:
        is_crowded: whether many of the connections that are allowed are open.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        pending_bytes_max: int,
        pending_share_bytes_max: int,
        receive_bytes_max: int,
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.is_crowded = is_crowded
        self.loop = loop
        self.turns = Turns.of(loop)
        self.buffer = bytearray(READ_BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.pressure = PublishPressure(pending_bytes_max, pending_share_bytes_max)
        self.budget = ReceiveBudget(receive_bytes_max)
        self.connections: set[Connection] = set()
        self.serial = 0

    def sweep(self, now: float, everything: bool) -> None:
        """Close connections whose half-sent frame does not get on.

        Args:
            now: monotonic seconds.
            everything: look at all connections, not only at those that others may be waiting for.
        """
        if self.budget.waiting:
            for member in tuple(self.budget.members):
                member.check_progress(now, FRAME_STALL_SHORT_S, FRAME_PROGRESS_BYTES)
        if everything:
            for connection in tuple(self.connections):
                connection.check_progress(now, FRAME_STALL_S, 1)


class Services:
    """What a session may use of the server; one object per protocol.

    Attributes:
        log: the engine.
        config: the server's whole configuration.
        counters: this protocol's.
        shell: what the connections of this loop share (``pressure`` also takes publishers that are not a connection).
        sessions: those of this protocol, if it has any.
        consumers: its groups that commit offsets, if it has any.
        door: who may come in at this protocol's listener.
        reloaders: a protocol adds a function here that is given a new configuration: it raises ``ServerError``, or
            returns the function that takes it over.
    """

    def __init__(
        self, log: Log, config: ServerConfig, counters: Counters, shell: Shell, door: Door | None = None
    ) -> None:
        self.log = log
        self.config = config
        self.counters = counters
        self.shell = shell
        self.loop = shell.loop
        self.sessions: Sessions[Any, Any] | None = None
        self.consumers: Consumers | None = None
        self.door = door or Access(config).door(counters.name)
        self.reloaders: list[Callable[[ServerConfig], Callable[[], None]]] = []
