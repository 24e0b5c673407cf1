"""What the connections of one listener share: the sessions, and the turns in which their messages are made.

Streams that want to make messages stand in a queue. One turn of the event loop makes a bounded number for the first of
them, more for each the fewer there are, and none while the store has enough to do: nobody is held up for long, and a
commit carries messages of many sessions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from engine.errors import EngineError, NotStored
from engine.sessions.store import Sessions
from engine.sessions.types import SessionConfig
from netserver.reliably.applications import ApplicationCodec, Message, State
from netserver.reliably.limits import (
    BLOCK_SHARE_MIN,
    END_WAIT_S,
    PAUSES_TOLD_S,
    ROOM_S,
    SWEEP_S,
    TURN_MESSAGES_MAX,
    UNSTORED_BYTES_MAX,
)
from netserver.reliably.values import random_seed, random_start

if TYPE_CHECKING:
    from netserver.config.sections import ServerConfig
    from netserver.reliably.stream import SessionStream
    from netserver.shell.connection import Services

log = logging.getLogger(__name__)


def _session_config(config: ServerConfig) -> SessionConfig:
    settings = config.reliably
    return SessionConfig(
        expiry_s=settings.session_expiry_ms / 1000,
        sessions_max=settings.sessions_max,
        session_bytes_max=settings.session_bytes_max,
        total_bytes_max=settings.total_bytes_max,
    )


class Maker(Protocol):
    """A stream that wants to make messages; `queued` is its mark."""

    queued: bool

    def make(self, limit: int) -> int:
        """Make up to ``limit`` messages; returns how many."""


class ListenerState:
    """See the module.

    Args:
        services: of the listener.
        random_seed: gives the start of a stream of numbers.
        random_start: gives the first value of a stateless stream.
        end_wait_s: how long a client may take to close after its last message.

    Attributes:
        sessions: all sessions of the log.
        streams: the running stream of a session.
    """

    def __init__(
        self,
        services: Services,
        random_seed: Callable[[], int] = random_seed,
        random_start: Callable[[], int] = random_start,
        end_wait_s: float = END_WAIT_S,
    ) -> None:
        self.log = services.log
        self.loop = services.loop
        self.random_seed = random_seed
        self.random_start = random_start
        self.end_wait_s = end_wait_s
        self.sessions: Sessions[State, Message] = Sessions(
            services.log.state,
            ApplicationCodec(),
            _session_config(services.config),  # from the start: those that are there count down from now
        )
        self._take_over(services.config)
        services.reloaders.append(lambda config: lambda: self._take_over(config))
        self.streams: dict[str, SessionStream] = {}
        services.sessions = self.sessions
        self._queue: deque[Maker] = deque()
        self._turning = False
        self._looking = False
        self._silent_until = 0.0
        self.loop.call_later(SWEEP_S, self._sweep)

    def _take_over(self, config: ServerConfig) -> None:
        settings = config.reliably
        self.interval_s = settings.interval_ms / 1000
        self.window = settings.window_messages
        self.stateless_bytes_per_s = settings.stateless_bytes_per_s
        self.sessions.config = _session_config(config)

    def want(self, maker: Maker) -> None:
        """``maker`` gets a turn; those who came before go first."""
        if not maker.queued:
            maker.queued = True
            self._queue.append(maker)
            self._turn_soon()

    def stored(self) -> None:
        """The store has answered: there may be room for more."""
        if self._queue:
            self._turn_soon()

    def paused(self, problem: EngineError) -> None:
        """A stream pauses because of ``problem``: tell the operator, but not for every stream and every try."""
        now = self.loop.time()
        if now >= self._silent_until:
            self._silent_until = now + PAUSES_TOLD_S
            log.warning("streams pause: %s", problem)

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        budget = TURN_MESSAGES_MAX
        queue = self._queue
        state = self.log.state
        while queue and budget > 0 and state.pending_bytes < UNSTORED_BYTES_MAX:
            share = max(BLOCK_SHARE_MIN, budget // len(queue))
            maker = queue.popleft()
            maker.queued = False
            budget -= max(maker.make(share), 1)
        if queue and budget <= 0:
            self._turn_soon()
        elif queue and not self._looking:  # others may have filled the store, and nobody tells when it has room again
            self._looking = True
            self.loop.call_later(ROOM_S, self._look)

    def _look(self) -> None:
        self._looking = False
        self.stored()

    def _sweep(self) -> None:
        delay_s = SWEEP_S
        try:
            if self.sessions.sweep():
                delay_s = 0.0
        except NotStored:
            delay_s = -1.0  # the store is closed: the server has stopped
        finally:  # whatever happens, it goes on
            if delay_s >= 0:
                self.loop.call_later(delay_s, self._sweep)
