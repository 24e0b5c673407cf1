"""A session's messages on their way to one connection.

``position`` is the id of the last message written. What is stored beyond it is written first, then new messages are
made, stored and written; a message is never written before it is stored, so it is the same after any break. New ones
are made ahead of the disk (`BLOCKS_UNSTORED_MAX` blocks, which grow from 16 messages) but not of the client: not while
its connection is full, nor beyond the window once it acknowledges.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from engine.errors import Corrupt, EngineError
from engine.sessions.types import SessionFull
from netserver.reliably.applications import Message, State
from netserver.reliably.limits import (
    BLOCK_MESSAGES_MAX,
    BLOCK_MESSAGES_MIN,
    BLOCKS_UNSTORED_MAX,
    RELIEF_S,
    RETRY_S,
    TURN_BYTES,
)
from netserver.reliably.values import Numbers, NumbersState, next_numbers

if TYPE_CHECKING:
    from netserver.reliably.listener_state import ListenerState
    from netserver.shell.connection import Connection

log = logging.getLogger(__name__)
NO_LIMIT: Final = 1 << 62


class Link(Protocol):
    """The connection's session, as a stream needs it."""

    connection: Connection

    def fail(self, message: str, kind: str) -> None:
        """Tell the client why there is no more, and close."""

    def finished(self) -> None:
        """The stream came to its end."""


class SessionStream(ABC):
    """What the streams of both applications have in common; see the module.

    Args:
        link: the connection's session; told of the end and of errors.
        uuid: the session.
        position: id after which to go on.

    Attributes:
        sent: messages written to this connection.
    """

    def __init__(self, link: Link, shared: ListenerState, uuid: str, position: int) -> None:
        self.uuid = uuid
        self.position = position
        self.sent = 0
        self.queued = False
        self.stopped = False
        self._link = link
        self._connection = link.connection
        self._shared = shared
        self._sessions = shared.sessions
        self._block = BLOCK_MESSAGES_MIN
        self._unstored = 0
        self._window = NO_LIMIT
        self._window_full = False
        self._due = 0.0  # loop time of the next message, when there is an interval
        self._timer: asyncio.TimerHandle | None = None
        shared.streams[uuid] = self

    # --- what an application fills in

    @abstractmethod
    def is_finished(self, state: State) -> bool:
        """Whether no message can follow after ``state``."""

    @abstractmethod
    def put(self, limit: int) -> int:
        """Make up to ``limit`` messages by `put_many`; 0: not now (then `advance` is called when it may go on)."""

    @abstractmethod
    def lines(self, first_id: int, messages: Sequence[Message]) -> tuple[bytes | bytearray, int]:
        """Lines of the first messages, and of how many; none: not now (then `advance` is called ...)."""

    # --- for the connection's session

    def advance(self) -> None:
        """Write what is stored, then see to it that more is made."""
        if self.stopped:
            return
        left_bytes = TURN_BYTES
        base, durable, last = self._sessions.position(self.uuid)
        while self.position < durable:
            if left_bytes <= 0:
                self._later(0)
                return
            if self._room(base) <= 0:
                return
            try:
                messages = self._sessions.after_many(self.uuid, self.position)
            except Corrupt as problem:
                log.error("%s", problem)
                self._link.fail("The next message is damaged", "damaged")
                return
            written = self._write(messages, base)
            if not written:
                return
            left_bytes -= written
        if last == durable and self.is_finished(self._sessions.state(self.uuid)):
            self._link.finished()
        elif self._room(base) > 0:
            self._shared.want(self)

    def ack(self, message_id: int) -> None:
        """The client has everything up to ``message_id``. Raises as ``Sessions.ack``."""
        base = self._sessions.position(self.uuid)[0]
        self._sessions.ack(self.uuid, message_id)
        # who acknowledges every n messages needs a window of more than n
        window = self._shared.window if self._window == NO_LIMIT else self._window
        self._window = max(window, 2 * (message_id - base))
        if self._window_full:
            self._window_full = False
            self._cancel_timer()
            self.advance()

    def stop(self) -> None:
        """Nothing more is written or made."""
        self.stopped = True
        if self._shared.streams.get(self.uuid) is self:
            del self._shared.streams[self.uuid]
        self._cancel_timer()

    # --- making

    def make(self, limit: int) -> int:
        """See `netserver.reliably.listener_state.Maker`."""
        made: list[int] = []
        self._connection.call(lambda: made.append(self._make(limit)))
        return made[0] if made else 0

    def _make(self, limit: int) -> int:
        if self.stopped or self._connection.closed or self._unstored >= BLOCKS_UNSTORED_MAX:
            return 0
        base, _, last = self._sessions.position(self.uuid)
        limit = min(limit, self._block, self._room(base) - (last - self.position))
        if limit < 1 or self.is_finished(self._sessions.state(self.uuid)):
            return 0
        try:
            made = self.put(limit)
        except SessionFull as problem:
            if self._window == NO_LIMIT:
                self._link.fail(str(problem), "session_full")
            else:
                self._window_full = True  # an acknowledgement makes room
            return 0
        except EngineError as problem:
            self.retry(problem)
            return 0
        if made:
            self._unstored += 1
            self._block = min(2 * self._block, BLOCK_MESSAGES_MAX)
            if self._unstored < BLOCKS_UNSTORED_MAX:
                self._shared.want(self)
        return made

    def done(self, error: EngineError | None, first_id: int, messages: Sequence[Message]) -> None:
        """The answer for one `put_many`."""
        self._unstored -= 1
        self._shared.stored()
        if not self.stopped and not self._connection.closed:
            self._connection.call(self._stored, error, first_id, messages)
        elif (stream := self._shared.streams.get(self.uuid)) is not None:  # who has the session now
            stream.poke()

    def poke(self) -> None:
        """Something was stored that this stream did not make."""
        if not self._connection.closed:
            self._connection.call(self.advance)

    def _stored(self, error: EngineError | None, first_id: int, messages: Sequence[Message]) -> None:
        if error is not None:
            self.retry(error)
            return
        if first_id == self.position + 1:  # as nearly always: no need to read it back
            self._write(messages, self._sessions.position(self.uuid)[0])
        self.advance()

    def retry(self, problem: EngineError) -> None:
        """Go on a little later, because of ``problem``: the client is not to blame, so it is not told."""
        self._shared.paused(problem)
        self._later(RETRY_S)

    # --- writing

    def _write(self, messages: Sequence[Message], base: int) -> int:
        """Write as many of the messages after ``position`` as may go out now; the bytes written."""
        room = self._room(base)
        if room <= 0:
            return 0
        if room < len(messages):
            messages = messages[:room]
        lines, count = self.lines(self.position + 1, messages)
        if not count:
            return 0
        self._connection.write(lines)
        self.position += count
        self.sent += count
        counters = self._connection.counters
        counters.records_delivered += count
        self._connection.delivered(count)
        counters.delivered_bytes += len(lines)
        if self._shared.interval_s:
            self._due = self._shared.loop.time() + self._shared.interval_s
        return len(lines)

    def _room(self, base: int) -> int:
        """How many messages may be written now; at 0 `advance` is called when it is time."""
        if not self._connection.writable:
            return 0
        room = self._window - (self.position - base)
        if room <= 0:
            self._window_full = True
            self._later(RELIEF_S, self._relieve)
            return 0
        if self._shared.interval_s:
            wait_s = self._due - self._shared.loop.time()
            if wait_s > 0:
                self._later(wait_s)
                return 0
            return 1
        return room

    def _relieve(self) -> None:
        self._window *= 2
        self._window_full = False
        self.advance()

    def _later(self, delay_s: float, function: Callable[[], None] | None = None) -> None:
        if self._timer is None:
            run = self._connection.guarded(function or self.advance)

            def fire() -> None:
                self._timer = None
                run()

            self._timer = self._shared.loop.call_later(delay_s, fire)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class NumbersStream(SessionStream):
    """A stream of numbers."""

    def is_finished(self, state: State) -> bool:
        return isinstance(state, NumbersState) and state.count == 0

    def put(self, limit: int) -> int:
        return self._sessions.put_many(self.uuid, _next_numbers, limit, self.done)

    def lines(self, first_id: int, messages: Sequence[Message]) -> tuple[bytes | bytearray, int]:
        assert isinstance(messages, Numbers)
        return messages.lines(first_id), len(messages)


def _next_numbers(state: State, limit: int) -> tuple[Sequence[Message], State]:
    assert isinstance(state, NumbersState)
    return next_numbers(state, limit)
