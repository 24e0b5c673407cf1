"""What the five clients have in common: one connection that is kept up, a window, events, a clean end.

A client of a protocol is a subclass of :class:`ClientBase` that fills in

- ``_received(data, length)``: parse the receive buffer, return how many bytes were consumed;
- ``_handshake(link)`` (optional, a coroutine): what must happen before the connection counts as up;
- ``_restore(link)`` (optional): write what a new connection must be told first (subscriptions);
- ``_lost(reason)`` (optional): the connection is gone;
- ``_trim()`` (where entries of the window can be answered in part): take from them what was answered;
- ``_ended(error)`` (optional): the client is closed or has given up: end the subscriptions;
- ``_farewell(link)`` (optional, a coroutine): say good-bye before the connection is closed;
- ``_dial()`` (only where it is not TCP): make a :class:`LinkLike`;
- ``protocol``, its name for people. Where the handshake needs no answer it says ``proof_in_handshake = False``, calls
  ``self._expect_answer()`` when it has asked for something and ``self.proof.give()`` when it was answered.

Publishing: ``await self.window.room(n, size)``, make an :class:`~netserver.client.window.Entry`, ``self._add(entry)``.
One function, ``_pump``, writes what is in the window, oldest first, as the connection takes it; after a reconnect it
begins again at the oldest. Subscriptions are in :mod:`netserver.client.stream`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from netserver.client.link import Link, LinkLike, system_text
from netserver.client.probe import Proof
from netserver.client.recognition import recognise
from netserver.client.tls import ClientTls, explained
from netserver.client.window import Entry, Window
from netserver.errors import Closed, ConnectionFailed, QuintlogError, Timeout, TlsFailed, Unknown

__all__ = ["Backoff", "ClientBase", "ClientEvent", "Link", "LinkLike", "exponential_backoff", "parse_address"]

WRITE_BYTES = 256 * 1024
"""How much of the window goes into one write."""
PROVEN_S = 1.0
"""A connection that ends sooner counts as a failure: a server that accepts and closes is not redialled in a circle."""
EVENTS_KEPT = 1024
"""Events kept for a listener that does not read them; the oldest go first."""
Backoff = Callable[[int], float]
"""Seconds to wait before dialling again after n failures in a row (0: the connection has just been lost)."""


def exponential_backoff(
    first_s: float = 1.0, max_s: float = 30.0, jitter: float = 0.2, immediate: bool = True
) -> Backoff:
    """Wait ``first_s`` after the first failure, twice as long after each further one, at most ``max_s``.

    Args:
        jitter: each wait is multiplied by a random factor of 1 - jitter to 1 + jitter
        immediate: dial at once when the connection has just been lost
    """

    def wait_s(failures: int) -> float:
        if failures == 0 and immediate:
            return 0.0
        exponent = min(max(failures - 1, 0), 32)  # clamped: weeks of failures must not overflow
        # random spreads the clients of a server that comes back; it guards no secret
        return min(first_s * 2.0**exponent, max_s) * random.uniform(1 - jitter, 1 + jitter)

    return wait_s


def parse_address(address: str, default_port: int) -> tuple[str, int]:
    """``HOST``, ``HOST:PORT``, ``[V6]`` or ``[V6]:PORT`` as (host, port).

    Raises:
        ValueError: the port is not a number of 1 to 65535
    """
    host, port = address, ""
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"not an address: {address!r}")
        port = rest[1:]
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    digits = not port or (port.isascii() and port.isdigit() and len(port) <= 5)
    number = int(port or default_port) if digits else 0
    if not host or not 1 <= number <= 65535:
        raise ValueError(f"not an address: {address!r}")
    return host, number


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Something that happened to the connection.

    ``connected`` and ``disconnected`` alternate, beginning with ``connected``. ``failed`` is a dial that failed
    (``failures`` in a row so far), ``gave_up`` and ``closed`` are the last one. Protocols add names of their own.
    """

    name: Literal["connected", "disconnected", "failed", "gave_up", "closed"] | str
    reason: QuintlogError | None = None
    failures: int = 0
    detail: object = None


class ClientBase:
    """Connection, window, events and end of a client; see the module's text for what a subclass fills in.

    Args:
        host, port: where the server is
        window: most records that are sent and not acknowledged; further publishes wait
        window_bytes: the same in bytes of frames
        frame_bytes_max: largest frame taken from the server
        dial_timeout_s: for connecting with its handshake
        backoff: see :data:`Backoff`
        give_up_after_s: seconds without a connection after which the client fails; None: never
        flush_timeout_s: how long leaving ``async with`` waits for outstanding acknowledgements
        tls: how TLS is spoken, None for plain TCP
    """

    protocol: ClassVar[str] = "its protocol"
    is_tcp: ClassVar[bool] = True
    proof_in_handshake: ClassVar[bool] = True

    def __init__(
        self,
        host: str,
        port: int,
        *,
        window: int,
        window_bytes: int,
        frame_bytes_max: int,
        dial_timeout_s: float = 5.0,
        backoff: Backoff | None = None,
        give_up_after_s: float | None = None,
        flush_timeout_s: float = 10.0,
        tls: ClientTls | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.window = Window(window, window_bytes)
        self.frame_bytes_max = frame_bytes_max
        self.dial_timeout_s = dial_timeout_s
        self.give_up_after_s = give_up_after_s
        self.flush_timeout_s = flush_timeout_s
        self.where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.proof = Proof(self.protocol, self.where, dial_timeout_s)
        self._backoff = backoff or exponential_backoff()
        self._tls = tls
        self._link: LinkLike | None = None
        self._connected = False
        self._opening = asyncio.Lock()
        self._supervisor: asyncio.Task[None] | None = None
        self._closing = False
        self._end: QuintlogError | None = None
        self._pumping = False
        self._listeners: list[tuple[deque[ClientEvent], asyncio.Event]] = []

    # --- for the protocol's class

    def _received(self, data: memoryview, length: int) -> int:
        raise NotImplementedError

    async def _handshake(self, link: LinkLike) -> None:
        """Until this returns the connection does not count as up. Raise Refused to end the client for good."""

    def _restore(self, link: LinkLike) -> None:
        """Write what goes before the window on a new connection."""

    def _lost(self, reason: QuintlogError) -> None:
        """The connection is gone."""

    async def _refusal(self) -> QuintlogError | None:
        """Whether the ends of the connections so far mean no: the error to end with. For protocols without errors."""
        return None

    def _proved(self, connected_s: float) -> bool:
        """Whether the connection just lost was a good one, so that the next dial need not wait."""
        return connected_s >= PROVEN_S

    def _trim(self) -> None:
        """Take from entries of the window what was answered of them, before the rest is sent again or told of."""

    def _ended(self, error: QuintlogError) -> None:
        """The client is over (``error`` is :class:`Closed` after close())."""

    async def _farewell(self, link: LinkLike) -> None:
        """Last words before close()."""

    async def _dial(self) -> LinkLike:
        """Make the connection.

        Raises:
            OSError: it cannot be reached
        """
        context = self._tls.context() if self._tls is not None else None
        name = (self._tls.server_name or self.host) if self._tls is not None else None
        _, link = await asyncio.get_running_loop().create_connection(
            self._new_link, self.host, self.port, ssl=context, server_hostname=name
        )
        return link

    def _new_link(self) -> Link:
        return Link(self._received, self._pump, self.frame_bytes_max)

    # --- opening

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def __aenter__(self) -> Self:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:  # whoever is cancelled or interrupted does not want to wait
            await self.close(None if isinstance(error, Exception) else 0)
        except QuintlogError as problem:
            error.add_note(f"while closing the client: {problem}")

    async def _opened(self) -> Self:
        """Dial for the first time; a failure is raised at once, only a connection that was up is made again."""
        async with self._opening:
            if self._end is not None:
                raise self._end
            if self._supervisor is None:
                try:
                    link = await self._establish()
                except ConnectionFailed as error:
                    await self._recognised(error)
                    raise
                self._supervisor = asyncio.get_running_loop().create_task(self._supervise(link))
        return self

    async def _establish(self) -> LinkLike:
        """Connect, shake hands, restore.

        Raises:
            QuintlogError: it did not work (the connection, if any, is closed)
        """
        link: LinkLike | None = None
        try:
            async with asyncio.timeout(self.dial_timeout_s):
                self._link = link = await self._dial()
                await self._greeted(link)
        except TimeoutError as error:
            self._drop(link)
            text = f"no connection within {self.dial_timeout_s:g} s"
            if link is not None and not self.proof.given:
                raise self.proof.missing(f"nothing came for {self.dial_timeout_s:g} s") from error
            raise ConnectionFailed(f"{self.where}: {text}") from error
        except OSError as error:
            self._drop(link)
            raise self._tls_problem(error) or ConnectionFailed(f"{self.where}: {system_text(error)}") from error
        except BaseException:
            self._drop(link)
            raise
        if self.proof_in_handshake:
            self.proof.give()
        self._connected = True
        self._restore(link)
        self.window.rewind()
        self._tell(ClientEvent("connected"))
        self._pump()
        return link

    async def _greeted(self, link: LinkLike) -> None:
        """Shake hands. Raises QuintlogError: refused, or the connection broke meanwhile."""
        greeting = asyncio.ensure_future(self._handshake(link))
        try:
            both: set[asyncio.Future[Any]] = {greeting, link.lost}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not greeting.done():
                greeting.cancel()
        if greeting.done() and not greeting.cancelled():
            greeting.result()
        if link.lost.done():
            reason = link.lost.result()
            reason = self._tls_problem(reason.__cause__) or reason
            wrong = self.proof.judge(reason)
            if wrong is not None:
                raise wrong from reason
            if not self.proof.given and isinstance(reason, ConnectionFailed):
                text = f"{self.where}: {reason}, before it answered as {self.protocol}"
                raise ConnectionFailed(f"{text}; is it the port of another protocol?") from reason
            raise reason

    def _expect_answer(self) -> None:
        """Something was asked: unless a server of the protocol has been seen here, it is given a limited time."""
        link = self._link
        if link is not None and not self.proof.given:
            self.proof.expect(link.abort)

    def _tls_problem(self, error: BaseException | None) -> TlsFailed | None:
        """What an error of TLS means; None: it is another one, or says nothing certain."""
        problem = explained(error, self._tls is not None and self._tls.has_certificate)
        return TlsFailed(f"{self.where}: {problem}", problem.kind) if problem is not None else None

    def _may_be_mended(self, error: QuintlogError) -> bool:
        """A server that was there with a good certificate will have one again: nobody wants to restart all clients."""
        return isinstance(error, TlsFailed) and self.proof.given

    async def _better(self, error: ConnectionFailed) -> ConnectionFailed:
        """The same error, or one that says what is really there."""
        try:
            await self._recognised(error)
        except ConnectionFailed as better:
            return better
        return error

    async def _recognised(self, error: ConnectionFailed) -> None:
        """Look what is really there, if nothing has ever answered as it should. Raises it: it is known."""
        if self.is_tcp and not self.proof.given and not isinstance(error, TlsFailed):
            better = self.proof.recognised(await recognise(self.host, self.port, self._tls), self._tls)
            if better is not None:
                raise better from error

    def _drop(self, link: LinkLike | None) -> None:
        self._link = None
        if link is not None:
            link.abort(Closed("not needed any more"))

    # --- keeping it up

    async def _supervise(self, link: LinkLike) -> None:
        try:
            self._finish(await self._keep_up(link), "gave_up")
        finally:
            if not self._closing:  # only a fault of ours gets here without an end: nobody may wait for ever
                self._finish(ConnectionFailed("the client stopped because of an internal error"), "gave_up")

    async def _keep_up(self, link: LinkLike) -> QuintlogError:
        """Make a lost connection again, until it is hopeless: returns why."""
        loop = asyncio.get_running_loop()
        failures, settled = 0, False
        while True:
            connected_at = loop.time()
            reason = await asyncio.shield(link.lost)
            reason = self._tls_problem(reason.__cause__) or reason
            lost_at = loop.time()
            self._connected = False
            self._link = None
            self._lost(reason)
            self._tell(ClientEvent("disconnected", reason))
            wrong = self.proof.judge(reason)
            if wrong is not None:
                return await self._better(wrong)
            refused = await self._refusal()
            if refused is not None:
                return refused
            if isinstance(reason, TlsFailed) and not settled and lost_at - connected_at < PROVEN_S:
                return reason  # with QUIC a server tells after the handshake that it does not take the client
            settled = True
            failures = 0 if self._proved(lost_at - connected_at) else failures + 1
            again = await self._redial(lost_at, failures, reason)
            if isinstance(again, QuintlogError):
                return again
            link, failures = again

    async def _redial(
        self, lost_at: float, failures: int, reason: QuintlogError
    ) -> tuple[LinkLike, int] | QuintlogError:
        """Dial until it works: (connection, failures in a row), or the error to give up with.

        Args:
            reason: why the connection was lost.
        """
        loop = asyncio.get_running_loop()
        problem: QuintlogError | None = None
        while True:
            wait_s = max(self._backoff(failures), 0.0)
            if self.give_up_after_s is not None:
                left_s = lost_at + self.give_up_after_s - loop.time()
                if left_s <= 0:
                    if problem is None and not self.proof.given:
                        return await self._better(
                            self.proof.missing(f"{reason}, before it answered; it may not let this client in")
                        )
                    # Whatever it is now: what was sent before may be stored.
                    return ConnectionFailed(str(problem) if problem is not None else f"{self.where}: {reason}")
                wait_s = min(wait_s, left_s)
            await asyncio.sleep(wait_s)
            try:
                return await self._establish(), failures
            except QuintlogError as error:
                if not error.retryable and not isinstance(error, Closed) and not self._may_be_mended(error):
                    return error
                problem = error
            failures += 1
            self._tell(ClientEvent("failed", problem, failures))

    # --- writing

    def _add(self, entry: Entry) -> None:
        """Put an entry into the window and see to it that it is written.

        The first of a turn of the loop is written at once (latency), what follows in the same turn goes out together.
        """
        self.window.add(entry)
        if self._connected and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_rest)
            self._pump()

    def _pump_rest(self) -> None:
        self._pumping = False
        self._pump()

    def _pump(self) -> None:
        """Write from the window as long as the connection takes it. The only place that does."""
        link = self._link
        if link is None or not self._connected:
            return
        window = self.window
        while window.unsent and link.writable:
            frames = window.take_unsent(WRITE_BYTES)
            if frames:
                link.write(frames[0] if len(frames) == 1 else b"".join(frames))

    # --- events

    @property
    def connected(self) -> bool:
        """Whether there is a working connection at the moment."""
        return self._connected

    async def events(self) -> AsyncIterator[ClientEvent]:
        """What happens to the connection, beginning with its present state, until the client is over."""
        queue: deque[ClientEvent] = deque(maxlen=EVENTS_KEPT)
        wake = asyncio.Event()
        if self._connected:
            queue.append(ClientEvent("connected"))
        listener = (queue, wake)
        self._listeners.append(listener)
        try:
            while queue or self._end is None:
                while queue:
                    yield queue.popleft()
                if self._end is None:
                    wake.clear()
                    await wake.wait()
        finally:
            self._listeners.remove(listener)

    def _tell(self, event: ClientEvent) -> None:
        for queue, wake in self._listeners:
            queue.append(event)
            wake.set()

    # --- the end

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end
        if self._closing:
            raise Closed("the client is being closed")
        if self._supervisor is None:
            raise Closed("the client is not connected yet: await it or use it in 'async with'")

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (a deadline is part of the interface)
        """Wait until everything published so far is acknowledged.

        Raises:
            Timeout: not within ``timeout`` seconds (it may still come)
            Unknown: the client was closed or gave up first
        """
        try:
            async with asyncio.timeout(timeout):
                await self.window.flushed()
        except TimeoutError as error:
            raise Timeout(f"{self.window.records} records not acknowledged within {timeout} s") from error

    async def close(self, flush_timeout_s: float | None = None) -> None:
        """Wait for outstanding acknowledgements, then end the client. A second call does nothing.

        Args:
            flush_timeout_s: how long to wait; None: as given to connect()

        Raises:
            Unknown: records that were not acknowledged in time
        """
        if self._closing or self._end is not None:
            return
        self._closing = True
        limit_s = self.flush_timeout_s if flush_timeout_s is None else flush_timeout_s
        try:
            if self._supervisor is not None and len(self.window) and limit_s > 0:
                await self.flush(limit_s)
            if self._link is not None and self._connected:
                await self._farewell(self._link)
        except Timeout:
            pass  # told below, with the records
        finally:
            self._trim()
            left = self.window.outstanding()
            await self._stop()
        if left:
            raise Unknown(f"{len(left)} records not acknowledged within {limit_s} s before closing", left)

    async def _stop(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait({supervisor})
        link, self._link = self._link, None
        self._connected = False
        if link is not None:
            link.close()
            done, _ = await asyncio.wait({link.lost}, timeout=1.0)
            if not done:
                link.abort(Closed("the client was closed"))
        self._finish(Closed("the client was closed"), "closed")

    def _finish(self, error: QuintlogError, name: str) -> None:
        if self._end is None:
            self._end = error
            self.proof.stop()
            self._trim()
            self.window.fail(error)
            self._ended(error)
            self._tell(ClientEvent(name, error))
