"""The surroundings of a connection: the session that a protocol puts into it, and what connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from netserver.access.access import Access, Door
from netserver.limits import FRAME_PROGRESS_BYTES, FRAME_STALL_S, FRAME_STALL_SHORT_S, READ_BUFFER_BYTES
from netserver.shell.counters import Counters
from netserver.shell.input_pressure import PublishPressure, ReceiveBudget
from netserver.shell.turns import Turns

if TYPE_CHECKING:
    from engine.log import Log
    from engine.sessions.store import Sessions
    from netserver.config.sections import ServerConfig
    from netserver.shell.connection import Connection


class Session(Protocol):
    """A protocol's half of a connection; made by ``factory(connection)``."""

    frame_bytes_max: int

    def received(self, data: memoryview, length: int) -> int:
        """Parse ``data[0:length]``; return the bytes consumed.

        The view is valid during the call only. After ``connection.hold()`` return early: the rest comes again on
        ``release``. A frame whose announced length is above the limit raises at once.

        Raises:
            ProtocolError: the bytes are not the protocol's; everything before them must already be appended and its
                answers registered. Afterwards ``eof()`` is called and nothing more is parsed.
        """

    def eof(self) -> None:
        """No more input. Call ``connection.close()`` when nothing is outstanding (now, or at the last answer)."""

    def resume_output(self) -> None:
        """``connection.writable`` is true again."""

    def closed(self) -> None:
        """The connection is gone: withdraw waiters and subscriptions."""

    def idle(self) -> bool:
        """Nothing is outstanding."""

    def drain(self) -> None:
        """The server stops: finish what is outstanding, then ``connection.close()``. Nothing more is read."""


class NoSession:
    """Stands in when the factory failed, and when the transport is gone."""

    frame_bytes_max = 0

    def received(self, data: memoryview, length: int) -> int:
        return length

    def eof(self) -> None:
        return

    def resume_output(self) -> None:
        return

    def closed(self) -> None:
        return

    def idle(self) -> bool:
        return True

    def drain(self) -> None:
        return


GONE: Final = NoSession()
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
        self.door = door or Access(config).door(counters.name)
        self.reloaders: list[Callable[[ServerConfig], Callable[[], None]]] = []
