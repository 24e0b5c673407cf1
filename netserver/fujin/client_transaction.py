"""Transactions of the Fujin client: a writer's stream of its own, from BEGIN to COMMIT or ROLLBACK."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from netserver.errors import Closed, ProtocolError, QuintlogError, Refused, Unknown
from netserver.fujin import codec
from netserver.fujin.codec import Answer, Op
from netserver.fujin.codec_answers import AnswerDecoder, Done, Event
from netserver.fujin.link import ClientStream, Link


class Connected(Protocol):
    """The client, as a transaction needs it; see `netserver.fujin.client.Client`."""

    write_headers: bool

    @property
    def link(self) -> Link:
        """The working connection."""

    def checked(self, topic: str | bytes, value: bytes | None = None) -> bytes:
        """The topic's bytes, if topic and value are such as a server takes."""


class Transaction:
    """Records of any topics that become visible together, or not at all.

    Leaving ``async with`` commits; an exception rolls back. A lost connection rolls back too, and whatever is called
    then says so; only if it is lost while COMMIT is not answered nobody knows (``Unknown``).
    """

    def __init__(self, client: Connected, writer_id: bytes) -> None:
        self._client = client
        self._writer_id = writer_id
        self._stream: ClientStream | None = None
        self._next = 0
        self._waiting: deque[tuple[Answer, int, asyncio.Future[None]]] = deque()
        self._records: list[tuple[bytes, bytes]] = []
        self._problem: QuintlogError | None = None
        self._committing = False
        self._is_over = False

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except QuintlogError as problem:
            error.add_note(f"while rolling back: {problem}")

    async def begin(self) -> None:
        """Open the stream and begin (``async with`` does it).

        Raises:
            ConnectionFailed: there is no connection at the moment
            Refused: the server does not begin one
        """
        if self._stream is not None:
            raise ValueError("a transaction is begun once")
        self._stream = self._client.link.open(codec.connect_writer(self._writer_id), self, AnswerDecoder())
        await self._send(codec.tx(Op.BEGIN, self._next), Answer.BEGIN)

    async def publish(self, topic: str | bytes, value: bytes) -> None:
        """Add a record; returns when the server has taken it (it is stored by the commit).

        Raises:
            Refused: it was not taken; the transaction goes on without it
            QuintlogError: the transaction is over
        """
        await self.send(topic, value)

    def send(self, topic: str | bytes, value: bytes) -> asyncio.Future[None]:
        """Add a record; the future is done when the server has taken it. ``commit`` fails if one was not taken."""
        name = self._client.checked(topic, value)
        self._records.append((name, value))
        headers = () if self._client.write_headers else None
        return self._send(codec.write(self._next, name, value, headers), Answer.WRITE)

    async def commit(self) -> None:
        """Make all records durable and visible.

        Raises:
            Refused: none of them is stored (also when the server has not taken one that ``send`` added)
            Unknown: the connection was lost before the answer
        """
        while self._waiting and self._problem is None:
            await asyncio.wait([future for _, _, future in self._waiting])
        problem = self._problem
        if problem is not None:
            await self.rollback()
            raise problem
        self._committing = True
        answer = self._send(codec.tx(Op.COMMIT, self._next), Answer.COMMIT)
        try:
            await answer
        finally:
            self._end()

    async def rollback(self) -> None:
        """Drop all records.

        Raises:
            QuintlogError: the connection was lost (the server drops them by itself)
        """
        try:
            if not self._is_over:
                await self._send(codec.tx(Op.ROLLBACK, self._next), Answer.ROLLBACK)
        finally:
            self._end()

    # --- inside

    def _send(self, frame: bytes, kind: Answer) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._stream is None or self._is_over:
            future.set_exception(self._problem or Closed("the transaction is not open"))
            return future
        self._waiting.append((kind, self._next, future))
        self._next = (self._next + 1) & 0xFFFFFFFF
        self._stream.write(frame)
        return future

    def _end(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.disconnect()

    # --- netserver.fujin.link.Receiver

    def stream_answers(self, decoder: AnswerDecoder) -> None:
        """All answers are looked at one by one."""

    def stream_event(self, event: Event) -> None:
        """The answer to the oldest command that has none yet."""
        if not isinstance(event, Done) or not self._waiting or self._waiting[0][:2] != (event.kind, event.cid):
            raise ProtocolError(f"{event} is not the answer that is awaited")
        kind, _, future = self._waiting.popleft()
        error = Refused(kind.name.lower(), event.error) if event.error is not None else None
        if error is not None and kind == Answer.WRITE and self._problem is None:
            self._problem = error
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()

    def stream_ended(self, error: QuintlogError) -> None:
        """The stream is over."""
        self._is_over = True
        problem: QuintlogError = type(error)(f"transaction rolled back: {error}")
        if self._committing:
            problem = Unknown(f"the transaction may be committed or not: {error}", self._records)
        self._problem = self._problem or problem
        while self._waiting:
            future = self._waiting.popleft()[2]
            if not future.done():
                future.set_exception(problem)
                future.exception()
