"""Listening sockets: accepting without spinning, within the limit of connections and of descriptors.

A listener that may not accept takes its socket out of the event loop: clients then wait in the kernel's backlog. It
never accepts a connection only to close it, since clients without a pause after that would dial in a circle.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from netserver.config.settings import Address
from netserver.errors import ListenError
from netserver.limits import (
    ACCEPT_BATCH,
    ACCEPT_RETRY_S,
    BACKLOG,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES,
    TLS_HANDSHAKE_S,
)
from netserver.shell.alerts import ACCEPTED
from netserver.shell.inherited import INHERITED

log = logging.getLogger(__name__)

OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
NO_TLS: Final = frozenset({"HTTP_REQUEST", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"})
"""What OpenSSL says of a first message that is of another protocol."""
Lost = Callable[[], None]
MakeProtocol = Callable[[Lost], asyncio.BaseProtocol]
"""Makes the protocol of one connection; the function it is given must be called once when the connection is gone."""


class ConnectionGate:
    """Counts open connections; listeners accept only while it is open.

    Args:
        advice: what the operator is told when it closes.
    """

    def __init__(
        self, connections_max: int, advice: str = "raise [server] connections_max or the descriptor limit"
    ) -> None:
        self.connections_max = connections_max
        self.connections = 0
        self.full_total = 0
        self._advice = advice
        self._listeners: list[TcpListener] = []

    @property
    def is_open(self) -> bool:
        """Another connection is allowed."""
        return self.connections < self.connections_max

    def is_crowded(self) -> bool:
        """More than half of the connections that are allowed are open."""
        return 2 * self.connections > self.connections_max

    def join(self, listener: TcpListener) -> None:
        """Tell ``listener`` when connections end."""
        self._listeners.append(listener)

    def leave(self, listener: TcpListener) -> None:
        """Tell it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def enter(self, *, tells: bool = True) -> Lost:
        """Count a connection; the result takes it out again, once.

        Args:
            tells: the operator is told when it is the last one that is allowed.
        """
        self.connections += 1
        if tells and not self.is_open:
            self.full_total += 1
            log.warning(
                "%d connections are open, which is the limit; further ones wait until one closes (%s)",
                self.connections,
                self._advice,
            )
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self.connections -= 1
                self.changed()

        return leave

    def changed(self) -> None:
        """A connection ended or the limit moved."""
        if self.is_open:
            for listener in self._listeners:
                listener.accept_again()


class TcpListener:
    """Accepts TCP connections, with or without TLS.

    Args:
        name: for messages.
        address: host may stand for several addresses (localhost); all are bound.
        make: see ``MakeProtocol``.
        gate: limit shared with other listeners.
        tls: context, or a function that gives the current one (certificates are reloaded).
        accept_batch: connections accepted in one turn of the loop.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        make: MakeProtocol,
        gate: ConnectionGate,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        accept_batch: int = ACCEPT_BATCH,
    ) -> None:
        self.name = name
        self.address = address
        self.accept_errors = 0
        self._make = make
        self._gate = gate
        self._tls = tls
        self._accept_batch = accept_batch
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._accepting = False
        self._retry: asyncio.TimerHandle | None = None
        self._starved = False
        self._setups: set[asyncio.Task[None]] = set()

    def start(self) -> Address:
        """Bind and accept; the address that it really has (a port 0 is filled in).

        Raises:
            ListenError: says what to do.
        """
        try:
            found = socket.getaddrinfo(
                self.address.host, self.address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise ListenError(f"{self.name}: cannot resolve {self.address.host}: {error.strerror or error}") from None
        port = self.address.port
        try:
            for family, kind, proto, _, where in dict.fromkeys(found):
                place = (where[0], port, *where[2:])
                self._sockets.append(
                    INHERITED.take(self.name, family, kind, place) or _bound(family, kind, proto, place)
                )
                _tune(self._sockets[-1])
                port = self._sockets[-1].getsockname()[1]
        except OSError as error:
            self.stop_accepting()
            raise ListenError(why_not(self.name, self.address, error)) from None
        self.address = Address(self.address.host, port)
        self._gate.join(self)
        self.accept_again()
        return self.address

    @property
    def sockets(self) -> list[socket.socket]:
        """Those that listen."""
        return list(self._sockets)

    def stop_accepting(self) -> None:
        """Free the address; existing connections go on."""
        self._pause()
        self._gate.leave(self)
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    def accept_again(self) -> None:
        """Something that stood in the way may be gone."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if not self._accepting and self._gate.is_open:
            self._accepting = True
            for listening in self._sockets:
                self._loop.add_reader(listening.fileno(), self._accept, listening)

    def cancel_setups(self) -> None:
        """Give up TLS handshakes that are not finished."""
        for task in tuple(self._setups):
            task.cancel()

    async def end_setups(self) -> None:
        """Returns when none is under way: TLS handshakes are given up, the others take a turn of the loop or two."""
        if self._tls() is not None:
            self.cancel_setups()
        await asyncio.gather(*self._setups, return_exceptions=True)

    def _pause(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._accepting:
            self._accepting = False
            for listening in self._sockets:
                self._loop.remove_reader(listening.fileno())

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._accept_batch):
            if not self._gate.is_open:
                self._pause()
                return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._cannot_accept(error)
                return
            self._starved = False
            self._setups.add(self._loop.create_task(self._set_up(accepted, self._gate.enter())))

    def _cannot_accept(self, error: OSError) -> None:
        """Look again when a connection has ended, or after a while; never spin."""
        self.accept_errors += 1
        if not self._starved:
            self._starved = True
            advice = "; accepting goes on when some are free" if error.errno in OUT_OF_RESOURCES else ""
            log.error("%s: cannot accept connections: %s%s", self.name, error.strerror, advice)
        self._pause()
        self._retry = self._loop.call_later(ACCEPT_RETRY_S, self.accept_again)

    async def _set_up(self, accepted: socket.socket, leave: Lost) -> None:
        tls = self._tls()
        timeout = TLS_HANDSHAKE_S if tls is not None else None
        try:
            accepted.setblocking(False)
            ACCEPTED.set(accepted)
            await self._loop.connect_accepted_socket(
                partial(self._make, leave), accepted, ssl=tls, ssl_handshake_timeout=timeout
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            text = str(error) or type(error).__name__
            if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
                text = f"it does not begin with TLS, which is all that is spoken here ({text})"
            log.info("%s: connection failed before its first byte: %s", self.name, text)
            accepted.close()
            leave()
        except Exception:  # whatever it is, the connection must not count for ever
            log.exception("%s: a connection could not be set up", self.name)
            accepted.close()
            leave()
        finally:
            self._setups.discard(cast(asyncio.Task[None], asyncio.current_task()))


def _bound(family: int, kind: int, proto: int, where: tuple[str | int, ...]) -> socket.socket:
    listening = socket.socket(family, kind, proto)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _tune(connection: socket.socket) -> None:
    """Set what each connection that is accepted here inherits (``tcp(7)``): five calls for all of them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def why_not(name: str, address: Address, error: OSError) -> str:
    """What to tell when an address cannot be bound."""
    advice = {
        errno.EADDRINUSE: f"another process listens there; stop it, or choose another port with --{name} HOST:PORT",
        errno.EACCES: "ports below 1024 need a privilege; choose another one",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }.get(error.errno or 0, "")
    return f"{name}: cannot listen on {address}: {error.strerror}" + (f" ({advice})" if advice else "")


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; the limit that is in force then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # a system limit below the hard one
            log.info("the limit of %d open files cannot be raised", soft)
    return soft


def connections_allowed(wanted: int, descriptors: int, reserved: int) -> int:
    """How many connections ``descriptors`` open files leave room for when ``reserved`` are needed elsewhere."""
    return min(wanted, max(descriptors - reserved, descriptors // 4, 1))
