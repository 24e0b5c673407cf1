"""The session interface of the specification, for coroutines (section "Session API").

::

    sessions = AsyncSessions(Sessions(log.state, codec))
    await sessions.register(uuid, {"count": 5})
    message = await sessions.put(uuid, lambda state: (data, next_state))     # durable when this returns

Any states and messages will do for which there is a ``SessionCodec``. All of it runs in the event loop that owns the
log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.errors import EngineError
from engine.sessions.store import Sessions
from engine.sessions.types import ManyTransformer, Transformer

S = TypeVar("S")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class SessionMessage(Generic[M]):
    """A message with its id."""

    id: int
    data: M


class AsyncSessions(Generic[S, M]):
    """``Sessions`` with coroutines. All but `register` raise ``UnknownSession`` for a uuid that is not known."""

    def __init__(self, sessions: Sessions[S, M]) -> None:
        self._sessions = sessions

    async def register(self, uuid: str, state: S) -> None:
        """Make a session, or make it again; it is durable when this returns.

        Raises:
            LimitReached: there are as many as there may be.
            NotStored: it could not be stored (it is tried again with its first message).
        """
        done = _Answer()
        self._sessions.register(uuid, state, self, done.settle)
        await done.future

    async def disconnect(self, uuid: str) -> None:
        """The client has gone: the session expires unless it is resumed."""
        self._sessions.disconnect(uuid, self)

    async def resume(self, uuid: str, message_id: int) -> None:
        """The client is back and has everything up to ``message_id``. Raises as ``Sessions.resume``."""
        self._sessions.resume(uuid, message_id, self)

    async def put(self, uuid: str, transformer: Transformer[S, M]) -> SessionMessage[M]:
        """Make one message: it is durable, with the state after it, when this returns. Raises as ``put_many``."""

        def once(state: S, _limit: int) -> tuple[Sequence[M], S]:
            message, after = transformer(state)
            return [message], after

        (message,) = await self.put_many(uuid, once, 1)
        return message

    async def put_many(self, uuid: str, transformer: ManyTransformer[S, M], limit: int) -> list[SessionMessage[M]]:
        """Make up to ``limit`` messages in one step.

        Raises:
            SessionFull, LimitReached: too much was not acknowledged.
            NotStored: nothing was made.
        """
        done = _Answer()
        made: list[SessionMessage[M]] = []

        def answer(error: EngineError | None, first_id: int, messages: Sequence[M]) -> None:
            made.extend(SessionMessage(message_id, message) for message_id, message in enumerate(messages, first_id))
            done.settle(error)

        if self._sessions.put_many(uuid, transformer, limit, answer):
            await done.future
        return made

    async def after(self, uuid: str, message_id: int | None) -> SessionMessage[M] | None:
        """The message after ``message_id``; None: there is none yet, `put` makes it (None as id: nothing was sent)."""
        found = await self.after_many(uuid, message_id)
        return found[0] if found else None

    async def after_many(self, uuid: str, message_id: int | None) -> list[SessionMessage[M]]:
        """Messages after ``message_id``, as many as were made together. Raises as ``Sessions.after_many``."""
        position = message_id or 0
        found = self._sessions.after_many(uuid, position)
        return [SessionMessage(number, message) for number, message in enumerate(found, position + 1)]

    async def ack(self, uuid: str, message_id: int) -> None:
        """Everything up to ``message_id`` has arrived. Raises as ``Sessions.ack``."""
        self._sessions.ack(uuid, message_id)

    def session_lost(self, uuid: str) -> None:
        """Nothing to do: whoever calls next is told by an error."""


class _Answer:
    """A future that a callback of the engine settles."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def settle(self) -> Callable[[EngineError | None], None]:
        """The callback."""

        def settle(error: EngineError | None) -> None:
            if self.future.done():  # who waited was cancelled
                return
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)

        return settle
