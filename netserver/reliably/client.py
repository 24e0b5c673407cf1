"""The client of the JSON streaming protocol (asyncio, any event loop).

::

    async with reliably.connect("127.0.0.1:4001", params={"count": 1000}) as numbers:
        async for message in numbers:
            print(message.id, message.data["value"])

    async with reliably.connect("127.0.0.1:4001", session=Path("orders.session"),
                                params={"topic": "orders", "offset": 0}) as orders:
        async for message in orders:
            await apply(message.data)            # taking the next one says that this one is done

A lost connection is made again, at once if it had brought anything, and the stream goes on where it was: messages come
in order, and none twice as long as this object lives. With a session file they go on there after a restart of the
program too; what was done since the file was last written comes again. (Specification: "Establishing a connection",
"Streaming modes", "Session state".)
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import uuid as uuids
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from netserver.client.base import PROVEN_S, Backoff, ClientBase, LinkLike, parse_address
from netserver.client.tls import ClientTls, client_tls
from netserver.errors import Closed, ProtocolError, QuintlogError, Refused, Timeout, WrongServer
from netserver.reliably import codec
from netserver.reliably.codec import ErrorMessage, Message
from netserver.reliably.limits import (
    MESSAGE_BYTES_MAX,
    PREFETCH_BYTES,
    PREFETCH_MESSAGES,
    SILENT_CLOSES_MAX,
)
from netserver.reliably.probe import answers
from netserver.reliably.session_file import SessionFile, Stored
from netserver.reliably.values import update_crc

DEFAULT_PORT: Final = 4001
BEGINNINGS: Final = b"{ \t\r\n"
"""What a line of JSON with an object may begin with."""


class ChecksumMismatch(ProtocolError):
    """The stream's checksum is not that of the values that came."""


class Position(NamedTuple):
    """Where a session stands: what to give to `connect` to go on from there.

    ``id`` is the last message that is done, ``crc`` the checksum up to it (None: not known, or no stream of numbers).
    """

    session: str
    id: int
    crc: int | None


def patient_backoff(first_s: float = 5.0, max_s: float = 60.0) -> Backoff:
    """Dial at once after a break; after a failure wait ``first_s``, twice as long after each further one."""

    def wait_s(failures: int) -> float:
        exponent = min(max(failures - 1, 0), 32)
        return min(first_s * 2.0**exponent, max_s) * random.uniform(1.0, 1.2) if failures else 0.0

    return wait_s


class Session(ClientBase):
    """A stream that outlives its connections. Made by :func:`connect`; ``await`` it or use ``async with``."""

    protocol = "a JSON stream (reliably)"
    proof_in_handshake = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        stored: Stored | None,
        file: SessionFile | None,
        state: str | None,
        ack_every: int,
        prefetch_messages: int,
        prefetch_bytes: int,
        message_bytes_max: int,
        dial_timeout_s: float,
        backoff: Backoff,
        give_up_after_s: float | None,
        tls: ClientTls | None,
    ) -> None:
        super().__init__(
            host,
            port,
            window=1,
            window_bytes=1,
            frame_bytes_max=message_bytes_max,
            dial_timeout_s=dial_timeout_s,
            backoff=backoff,
            give_up_after_s=give_up_after_s,
            tls=tls,
        )
        self._stored = stored  # None: stateless
        self._file = file
        self._state = state  # stateless: last value received
        self._handed_state = state
        self._ack_every = ack_every
        self._prefetch_messages = prefetch_messages
        self._prefetch_bytes = prefetch_bytes
        self._received_id = stored.id if stored is not None else 0
        self._acked = self._received_id
        self._crc = stored.crc if stored is not None else None  # up to the message handed out
        self._handed: Message | None = None
        self._queue: deque[tuple[Message, int]] = deque()
        self._queue_bytes = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._searched = 0
        self._brought = False  # this connection has brought a message
        self._silent_closes = 0
        self._complete = False  # the last message has come
        self._last_link: LinkLike | None = None
        self._doubt: asyncio.Task[None] | None = None

    # --- for the application

    @property
    def position(self) -> Position:
        """Up to where the application is done: every message before the one it was handed last.

        Raises:
            ValueError: a stateless stream has no session (see ``state``).
        """
        if self._stored is None:
            raise ValueError("a stateless stream has no session; its position is .state")
        return Position(self._stored.uuid, self._stored.id, self._stored.crc)

    @property
    def state(self) -> str | None:
        """The last value handed out of a stateless stream: what to give to `connect` to go on after it.

        Raises:
            ValueError: it is a session (see ``position``).
        """
        if self._stored is not None:
            raise ValueError("a session's position is .position")
        return self._handed_state

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        message = await self._take()
        if message is None:
            raise StopAsyncIteration
        return message

    async def next(self, timeout: float | None = None) -> Message:  # noqa: ASYNC109 (a deadline is part of the interface)
        """The next message.

        Raises:
            Timeout: none came within ``timeout`` seconds
            Closed: the stream has ended
        """
        try:
            async with asyncio.timeout(timeout):
                message = await self._take()
        except TimeoutError as error:
            raise Timeout(f"no message within {timeout} s") from error
        if message is None:
            raise Closed("the stream has ended")
        return message

    async def ack(self) -> None:
        """Say that the message handed out last is done: it is acknowledged, and the session file is written."""
        self._done()
        await self._acknowledge()

    async def close(self, flush_timeout_s: float | None = None) -> None:
        """End the client; with a session file, after writing it. A second call does nothing."""
        if self._file is not None and not self._closing and self._stored is not None:
            await self._file.write(self._stored)
        await super().close(flush_timeout_s)
        link, self._last_link = self._last_link, None
        if link is not None and not link.lost.done():
            done, _ = await asyncio.wait({link.lost}, timeout=1.0)
            if not done:
                link.abort(Closed("the client was closed"))

    # --- handing out

    async def _take(self) -> Message | None:
        """The next message; None: there is none, because the last one has been handed out or the client was closed."""
        self._done()
        stored = self._stored
        if stored is not None and self._ack_every and stored.id - self._acked >= self._ack_every:
            await self._acknowledge()
        while not self._queue:
            if stored is not None and stored.done:
                if self._file is not None:
                    await self._file.write(stored)
                return None
            if self._end is not None:
                if self._closing:
                    return None
                raise self._end
            if self._supervisor is None:
                await self._opened()
                continue
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message, size_bytes = self._queue.popleft()
        self._queue_bytes -= size_bytes
        if self._paused and len(self._queue) * 2 <= self._prefetch_messages:
            self._paused = False
            if self._link is not None:
                self._link.resume_reading()
        if stored is None:
            self._handed_state = message.data
        elif stored.is_numbers:
            self._check(message.data)
        self._handed = message
        return message

    def _done(self) -> None:
        """The message handed out last is done."""
        message, stored = self._handed, self._stored
        if message is None or stored is None or message.id is None or message.id <= stored.id:
            return
        stored.id = message.id
        stored.crc = self._crc
        stored.done = self._complete and message.id == self._received_id

    def _check(self, data: Any) -> None:
        value = data.get("value") if isinstance(data, dict) else None
        if not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise self._conclude(ProtocolError(f"not a number of the stream: {data!r}"))
        if self._crc is not None:
            self._crc = update_crc(value.to_bytes(4, "big"), self._crc)
            if "crc" in data and data["crc"] != self._crc:
                raise self._conclude(
                    ChecksumMismatch(f"checksum {data['crc']} of the server, {self._crc} of its values")
                )

    async def _acknowledge(self) -> None:
        """Keep the position, then let the server forget what is before it."""
        stored = self._stored
        if stored is None or stored.id <= self._acked:
            return
        message_id = stored.id
        if self._file is not None:
            await self._file.write(stored)
        self._acked = message_id
        if self._link is not None and self._connected and not stored.done:
            self._link.write(codec.ack_request(stored.uuid, message_id))

    # --- ClientBase

    def _restore(self, link: LinkLike) -> None:
        self._searched = 0
        self._brought = False
        self._paused = False
        link.write(self._request())
        if self._stored is None or self._stored.is_numbers:
            self._expect_answer()
        else:
            self.proof.expect(self._doubted)

    def _doubted(self, wrong: WrongServer) -> None:
        """A topic's stream has brought nothing so far: is that because the topic has nothing?"""

        async def ask() -> None:
            if await answers(self.host, self.port, self._tls, self.dial_timeout_s):
                self.proof.give()
            elif self._link is not None and not self.proof.given:
                self._link.abort(wrong)

        self._doubt = asyncio.get_running_loop().create_task(ask())

    def _request(self) -> bytes:
        """What a new connection begins with."""
        stored = self._stored
        if stored is None:
            return codec.stateless_request(self._state)
        # Not what was received but what is done: the server takes it for an acknowledgement.
        done = stored.id or (self._handed.id if self._handed is not None and self._handed.id else 0)
        if done:
            self._acked = max(self._acked, done)
            return codec.resume_request(stored.uuid, done)
        # Nothing has been used of what came, if anything: start over (a state of 0 makes the original skip messages).
        self._queue.clear()
        self._queue_bytes = 0
        self._received_id = 0
        self._crc = 0 if stored.is_numbers else None
        assert stored.params is not None
        return codec.start_request(stored.uuid, stored.params)

    def _received(self, data: memoryview, length: int) -> int:
        if not self.proof.given and not self._searched and data[0] not in BEGINNINGS:
            raise ProtocolError(f"its first byte is {data[0]:#04x}, where a message begins with {{")
        fresh = bytes(data[self._searched : length])
        at = fresh.rfind(b"\n")
        if at < 0:
            self._searched = length
            return 0
        end = self._searched + at + 1
        lines = (bytes(data[: self._searched]) + fresh[:at]).split(b"\n")
        self._searched = length - end
        for line in lines:
            if self._end is not None or self._complete:
                break
            self._line(line)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return end

    def _line(self, line: bytes) -> None:
        try:
            message = codec.parse_answer(line)
        except codec.AnswerError as error:
            problem = ProtocolError(str(error))
            self._conclude(self.proof.judge(problem) or problem)
            return
        self.proof.give()
        if isinstance(message, ErrorMessage):
            self._conclude(Refused("error", message.text))
            return
        self._brought = True
        self._silent_closes = 0
        if self._stored is None:
            if not isinstance(message.data, str):
                self._conclude(ProtocolError(f"not a value of a stateless stream: {message.data!r}"))
                return
            self._state = message.data
        elif not self._is_next(message, self._stored):
            return
        self._queue.append((message, len(line)))
        self._queue_bytes += len(line)
        full = len(self._queue) >= self._prefetch_messages or self._queue_bytes >= self._prefetch_bytes
        if full and self._link is not None:
            self._paused = True
            self._link.pause_reading()
        if self._complete:
            self._leave(Closed("the stream has ended"), "closed")

    def _is_next(self, message: Message, stored: Stored) -> bool:
        """Whether it is the message that is due; one that came before is passed over, a gap ends the client."""
        message_id = message.id
        if message_id is None or message_id > self._received_id + 1:
            self._conclude(ProtocolError(f"message {message_id} after {self._received_id}"))
            return False
        if message_id <= self._received_id:
            return False
        self._received_id = message_id
        if stored.is_numbers:
            self._complete = isinstance(message.data, dict) and "crc" in message.data
        else:
            self._complete = message_id == stored.count
        return True

    def _lost(self, reason: QuintlogError) -> None:
        if not self._brought and self._end is None:
            self._silent_closes = self._silent_closes + 1 if reason.__cause__ is None else 0
            if self._silent_closes >= SILENT_CLOSES_MAX:
                self._conclude(Refused("closed", f"{self.where} closes each connection without an answer"))

    def _proved(self, connected_s: float) -> bool:
        return self._brought or connected_s >= PROVEN_S

    def _ended(self, error: QuintlogError) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _opened(self) -> Session:
        if self._end is None and self._stored is not None and self._stored.done:
            self._end = Closed("the stream has ended")
        if self._end is None:
            await super()._opened()
        return self

    def _conclude(self, error: QuintlogError) -> QuintlogError:
        """The stream cannot go on; returns ``error``."""
        self._leave(error, "gave_up")
        return error

    def _leave(self, error: QuintlogError, name: str) -> None:
        """No more connections, because of ``error``; what came before it can still be taken."""
        self._finish(error, name)
        self._connected = False
        link, self._link = self._link, None
        if link is not None:
            self._last_link = link
            link.close()
        if self._supervisor is not None:
            self._supervisor.cancel()


def connect(
    address: str = f"127.0.0.1:{DEFAULT_PORT}",
    *,
    session: uuids.UUID | str | os.PathLike[str] | None = None,
    params: Mapping[str, Any] | None = None,
    after: int = 0,
    crc: int | None = None,
    state: str | None = None,
    ack_every: int = 16,
    prefetch_messages: int = PREFETCH_MESSAGES,
    prefetch_bytes: int = PREFETCH_BYTES,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    dial_timeout_s: float = 5.0,
    backoff: Backoff | None = None,
    give_up_after_s: float | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    ssl_context: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> Session:
    """A stream from the server at ``address`` (``HOST[:PORT]``).

    Without ``session`` and ``params`` it is stateless: messages have no id, their data is the text of a number.

    Args:
        session: name of the session (made up when there is none), or the path of a file that keeps name and position;
            a file that is not there yet is made.
        params: what to stream: ``{"count": 5}``, or ``{"topic": "orders", "offset": 0}`` with an optional ``count``.
        after, crc: go on with the session after this message (a ``Position`` that the caller has kept).
        state: go on with a stateless stream after this value.
        ack_every: acknowledge (and write the session file) after so many messages; 0: only when ``ack()`` is called.
        prefetch_messages, prefetch_bytes: what is read ahead of the application.
        message_bytes_max: longest line taken from the server.
        backoff: pauses between dials; by default none after a break, and 5 to 60 s after a failure.
        give_up_after_s: seconds without a connection after which it is hopeless (the server forgets a session after
            30); None: never.

    Raises:
        ValueError: arguments that do not go together, or a session file of something else.
    """
    host, port = parse_address(address, DEFAULT_PORT)
    stored, file = _stored(session, params, after, crc)
    if state is not None and stored is not None:
        raise ValueError("state is for stateless streams; a session goes on with after=")
    return Session(
        host,
        port,
        stored=stored,
        file=file,
        state=state,
        ack_every=ack_every,
        prefetch_messages=prefetch_messages,
        prefetch_bytes=prefetch_bytes,
        message_bytes_max=message_bytes_max,
        dial_timeout_s=dial_timeout_s,
        backoff=backoff or patient_backoff(),
        give_up_after_s=give_up_after_s,
        tls=client_tls(ca, cert, key, ssl_context, server_name),
    )


def _stored(
    session: uuids.UUID | str | os.PathLike[str] | None, params: Mapping[str, Any] | None, after: int, crc: int | None
) -> tuple[Stored | None, SessionFile | None]:
    """What is known of the session, and where that is kept; (None, None) for a stateless stream."""
    wanted = dict(params) if params is not None else None
    if isinstance(session, os.PathLike):
        if after:
            raise ValueError("the session file knows the position: after= does not go with it")
        file = SessionFile(Path(session))
        stored = file.read()
        if stored is None:
            if wanted is None:
                raise ValueError(f"{session} does not exist: params are needed to begin")
            stored = Stored(str(uuids.uuid4()), wanted, 0, Stored.first_crc(wanted))
        elif wanted is not None and stored.params is not None and stored.params != wanted:
            raise ValueError(f"{session} belongs to a stream with {stored.params}, not {wanted}")
        return stored, file
    if session is None and wanted is None:
        if after:
            raise ValueError("after= needs the session")
        return None, None
    if wanted is None and not after:
        raise ValueError("params are needed to begin a session, after= to go on with one")
    first_crc = crc if after else Stored.first_crc(wanted)
    return Stored(str(session or uuids.uuid4()), wanted, after, first_crc), None
