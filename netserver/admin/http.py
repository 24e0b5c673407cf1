"""HTTP server of the admin listener: aiohttp's, with a limit on connections and a log that peers cannot fill.

Anybody who reaches the port may open connections and send bytes that are not HTTP. So:

- a connection that has not sent the head of a request within `ADMIN_KEEPALIVE_S` is closed;
- from `ADMIN_CONNECTIONS_FULL` on, a new connection takes the place of the one that has had no request in work for
  longest, so that a health check always finds a place;
- a connection whose requests may last takes none of these places (`HttpServer.count_as_client`);
- of other requests of those who are let in so few are in work at once that a new connection has room;
- bytes that are not a request are one line in the log, not a traceback;
- bodies are not unpacked: 200 KiB can become 200 MiB.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from netserver.access.quotas import Seat
from netserver.admin.places import Places
from netserver.config.settings import Address
from netserver.http.bodies import Busy
from netserver.limits import (
    ADMIN_ACCEPT_BATCH,
    ADMIN_BODY_BYTES,
    ADMIN_CONNECTIONS_FULL,
    ADMIN_CONNECTIONS_MAX,
    ADMIN_KEEPALIVE_S,
    ADMIN_REQUESTS_MAX,
    ADMIN_REQUESTS_OPERATORS,
    ADMIN_SHUTDOWN_S,
)
from netserver.shell.listener import ConnectionGate, Lost, TcpListener

Tls = Callable[[], ssl.SSLContext | None]
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServer(web.Server):
    """See the module. Made in the event loop that it runs in.

    Args:
        places: for connections whose requests may last.
    """

    def __init__(self, handle: Handle, places: Places) -> None:
        super().__init__(self._serve, request_factory=self._request)
        self._options: dict[str, Any] = {
            "access_log": None,
            "auto_decompress": False,
            "keepalive_timeout": ADMIN_KEEPALIVE_S,
            "logger": _peers_log(),
        }
        self._running_loop = asyncio.get_running_loop()
        self._handle = handle
        self._idle: dict[RequestHandler, None] = {}  # those without a request in work, the longest idle first
        self._leave: dict[RequestHandler, Lost] = {}
        self._clients: set[RequestHandler] = set()  # those that do not count here
        self._gate = ConnectionGate(ADMIN_CONNECTIONS_MAX, f"idle ones are closed after {ADMIN_KEEPALIVE_S:.0f} s")
        self._places = places
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}
        self._paused: dict[RequestHandler, asyncio.Future[None]] = {}
        self._seats: dict[RequestHandler, Seat] = {}
        self._listener: TcpListener | None = None
        self._in_work: set[RequestHandler] = set()  # those with a request of somebody who is let in

    def listen(self, address: Address, tls: Tls) -> Address:
        """Accept connections; the address that it really has.

        Args:
            tls: gives the context in force.

        Raises:
            ListenError: says what to do.
        """
        self._listener = TcpListener("admin", address, self._make, self._gate, tls, accept_batch=ADMIN_ACCEPT_BATCH)
        return self._listener.start()

    @property
    def sockets(self) -> list[socket.socket]:
        """Those that listen."""
        return self._listener.sockets if self._listener is not None else []

    async def close(self, within_s: float = ADMIN_SHUTDOWN_S) -> None:
        """Stop listening and end what is open; whoever has a request in work has half of the time for its answer."""
        if self._listener is not None:
            self._listener.stop_accepting()
            self._listener.cancel_setups()
        self.pre_shutdown()  # nobody waits for those without one: a scraper's connection is always there
        await self.shutdown(within_s / 2)  # aiohttp waits twice: for the answer, and for the end of what gives none

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._leave)

    async def pause(self, request: web.BaseRequest, seconds: float, *, gives_way: bool = False) -> None:
        """Let a request wait.

        Args:
            gives_way: its connection may be given up meanwhile, as if it had no request in work.

        Raises:
            ConnectionError: its peer is gone.
        """
        handler = request.protocol
        if handler not in self._leave:
            raise ConnectionResetError
        over = self._running_loop.create_future()
        timer = self._running_loop.call_later(seconds, _set, over)
        self._paused[handler] = over
        try:
            with self.giving_way(request) if gives_way else nullcontext():
                await over
        finally:
            timer.cancel()
            self._paused.pop(handler, None)
        if handler not in self._leave:
            raise ConnectionResetError

    @contextmanager
    def giving_way(self, request: web.BaseRequest) -> Iterator[None]:
        """Meanwhile the connection of a request may be given up, as if it had none in work."""
        handler = request.protocol
        if handler in self._leave and handler not in self._clients:
            self._idle[handler] = None
        try:
            yield
        finally:
            self._idle.pop(handler, None)

    def in_work(self, request: web.BaseRequest, *, is_operator: bool) -> InWork:
        """Within the result a request of somebody who is let in is in work, unless it counts as a client's.

        Raises:
            Busy: too many are.
        """
        if request.protocol not in self._clients:
            if len(self._in_work) >= ADMIN_REQUESTS_MAX + (ADMIN_REQUESTS_OPERATORS if is_operator else 0):
                raise Busy(f"{len(self._in_work)} requests are in work, as many as may be at once; try again later")
            self._in_work.add(request.protocol)
        return InWork(self._in_work, request.protocol)

    def seat(self, request: web.BaseRequest) -> Seat:
        """Whose connection a request's is. Raises ConnectionError: it is gone."""
        handler = request.protocol
        if handler not in self._leave:
            raise ConnectionResetError
        seat = self._seats.get(handler)
        if seat is None:
            seat = self._seats[handler] = Seat()
        return seat

    def count_as_client(self, request: web.BaseRequest) -> None:
        """The connection of a request counts with those of clients from now on (`netserver.admin.places`).

        Raises:
            NoPlace, QuotaReached: there is no place for it.
            ConnectionError: it is gone.
        """
        handler = request.protocol
        if handler not in self._leave:
            raise ConnectionResetError
        if handler not in self._clients:
            give_back = self._places.take(request.remote or "")
            self._leave[handler]()
            self._leave[handler] = give_back
            self._clients.add(handler)
            self._in_work.discard(handler)

    # --- connections

    def _make(self, leave: Lost) -> RequestHandler:
        handler = _Handler(self, loop=self._running_loop, **self._options)
        self._leave[handler] = leave
        return handler

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Called by the handler of a new connection."""
        super().connection_made(handler, transport)
        if len(self._leave) - len(self._clients) >= ADMIN_CONNECTIONS_FULL and self._idle:
            self._give_way(next(iter(self._idle)))
        self._idle[handler] = None
        self._silent[handler] = self._running_loop.call_later(ADMIN_KEEPALIVE_S, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Called by the handler when its connection is gone."""
        self._heard(handler)
        self._idle.pop(handler, None)
        if (seat := self._seats.pop(handler, None)) is not None:
            seat.leave()
        if (over := self._paused.get(handler)) is not None:
            _set(over)
        super().connection_lost(handler, exc)
        self._clients.discard(handler)
        self._leave.pop(handler)()

    def _request(
        self, message: Any, payload: Any, protocol: RequestHandler, writer: Any, task: asyncio.Task[None]
    ) -> web.BaseRequest:
        self._heard(protocol)
        self._idle.pop(protocol, None)
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._running_loop, client_max_size=ADMIN_BODY_BYTES
        )

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._handle(request)
        finally:  # its answer may wait for a peer that does not read
            if request.protocol in self._leave and request.protocol not in self._clients:
                self._idle[request.protocol] = None

    def _give_way(self, handler: RequestHandler) -> None:
        del self._idle[handler]
        if handler.transport is not None:
            handler.transport.abort()

    def _heard(self, handler: RequestHandler) -> None:
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()


class InWork:
    """A request that is in work until the end of a ``with``: a class, as each request has one."""

    __slots__ = ("_all", "_handler")

    def __init__(self, everybody: set[RequestHandler], handler: RequestHandler) -> None:
        self._all = everybody
        self._handler = handler

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self._all.discard(self._handler)


def _set(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class _Handler(RequestHandler):
    """A connection, which goes away at once when it is over (see `netserver.shell.collection`)."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        try:
            return super().handle_error(request, status, exc, message)
        finally:
            if exc is not None:
                exc.__traceback__ = None  # the frames of which hold the error


class _NoRequest(logging.Filter):
    """Makes one line of what aiohttp says of bytes that are not a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Everything is written."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args = "admin: no HTTP request: %s", (error.message.strip().partition("\n")[0][:200],)
            record.exc_info = None
        return True


def _peers_log() -> logging.Logger:
    found = logging.getLogger(f"{__name__}.peers")
    if not found.filters:
        found.addFilter(_NoRequest())
    return found
