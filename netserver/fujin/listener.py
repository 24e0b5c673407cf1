"""The Fujin listener: connections, PING, STOP, and the end.

PING: the server opens a stream, sends one byte and FIN, and wants the client's FIN in time; a connection on which
something has come lately is not asked. Stop: STOP on every stream, then DISCONNECT and FIN on those that the client
has not ended by itself, and only then the connections are closed: the Go client cannot stand a stream that breaks off.
When another server follows, clients are told STOP while everybody is served as before; who dials again meanwhile is
answered by the next server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netserver.fujin import codec
from netserver.fujin.listener_state import ListenerState
from netserver.fujin.session import FujinStream
from netserver.limits import (
    PEER_WINDOW_BYTES,
    QUIC_CLOSE_S,
    QUIC_DATAGRAM_BYTES,
    STREAM_WINDOW_BYTES,
)
from netserver.quic import certificates
from netserver.quic.bounded import QuicConfiguration
from netserver.quic.client_certificates import (
    BAD_CERTIFICATE,
    CERTIFICATE_REQUIRED,
    NotTrusted,
    authorities,
    names_of,
)
from netserver.quic.endpoint import QuicEndpoint
from netserver.quic.peer import QuicPeer
from netserver.quic.stream import Bounds, QuicStream, StreamSession

if TYPE_CHECKING:
    from OpenSSL.crypto import X509Store

    from netserver.access.rights import Identity
    from netserver.config.sections import ServerConfig
    from netserver.shell.inherited import Unanswered
    from netserver.shell.services import Services

log = logging.getLogger(__name__)

ALPN: Final = "fujin"
NO_ERROR: Final = 0
PING_ERROR: Final = 3
NO_APPLICATION_PROTOCOL: Final = 0x178
NOT_LET_IN: Final = 4
POLL_S: Final = 0.01
CHECK_S: Final = 10.0
"""Half-sent commands that do not get on are looked for so often."""


class FujinListener:
    """See ``netserver.app.Listener``."""

    def __init__(self, services: Services, config: ServerConfig) -> None:
        section = config.fujin
        assert section.listen is not None
        logging.getLogger("quic").setLevel(logging.ERROR)  # aioquic tells of every stream that a client resets
        shell = services.shell
        self.shared = ListenerState(services)
        self._services = services
        self._connections: dict[QuicPeer, FujinConnection] = {}
        self._stopping = False
        self.door = services.door
        self._trusted = _trusted(config)
        self.endpoint = QuicEndpoint(
            "fujin",
            section.listen,
            quic_configuration(config),
            self._made,
            Bounds(services.loop, shell.pressure, shell.budget, services.counters),
            streams_max=section.streams_max,
            connections_max=config.server.connections_max,
            handshake_timeout_s=section.handshake_timeout / 1000,
            on_tick=self._tick,
            poll_completion=services.log.poll_completion,
        )
        self.address = self.endpoint.start()
        shown = certificates.fingerprint(self.endpoint.configuration.certificate)
        log.info("fujin: certificate SHA-256 fingerprint %s", shown)
        services.reloaders.append(self._reload)

    @property
    def expires_at_s(self) -> float | None:
        """See ``Listener``."""
        certificate = self.endpoint.configuration.certificate
        return certificate.not_valid_after_utc.timestamp() if certificate is not None else None

    @property
    def sockets(self) -> list[socket.socket]:
        """See ``Listener``."""
        return self.endpoint.sockets

    def stop_accepting(self) -> None:
        """See ``Listener``."""
        self.endpoint.stop_accepting()

    @property
    def unanswered(self) -> list[Unanswered]:
        """See ``Listener``."""
        return self.endpoint.unanswered

    async def warn(self, deadline: float) -> None:
        """See ``Listener``: all connections end, and the socket stays open for those who dial again."""
        if self._stopping:
            return
        self._stopping = True
        self.endpoint.stop_accepting()
        for connection in tuple(self._connections.values()):
            connection.stop()
        await self._until(lambda: not any(one.streams for one in self._connections.values()), deadline)
        for connection in tuple(self._connections.values()):
            connection.end()
        at = self._services.loop.time() + QUIC_CLOSE_S
        await self._until(lambda: not any(one.is_busy for one in self._connections.values()), at)
        for connection in tuple(self._connections.values()):
            connection.peer.close(NO_ERROR, "")

    async def finish(self, deadline: float) -> None:
        """See ``Listener``."""
        force_at = self._services.loop.time() + self.shared.section.force_terminate_timeout / 1000
        await self.warn(min(force_at, deadline))
        self.endpoint.close()  # what comes now is for who has the socket next

    async def drain(self, deadline: float) -> None:
        """See ``Listener``."""
        await self.finish(deadline)

    async def _until(self, is_true: Callable[[], bool], deadline: float) -> None:
        while not is_true() and self._services.loop.time() < deadline:  # noqa: ASYNC110  (asked of every stream)
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """See ``Listener``."""
        self.endpoint.close()

    # --- inside

    def _made(self, peer: QuicPeer) -> FujinConnection:
        return FujinConnection(self, peer)

    def connected(self, connection: FujinConnection) -> None:
        """A handshake is complete."""
        self._connections[connection.peer] = connection
        self.endpoint.handshake_completed(connection.peer)
        counters = self._services.counters
        counters.connections += 1
        counters.connections_total += 1
        if self._stopping:
            connection.peer.close(NO_ERROR, "the server stops")

    def gone(self, connection: FujinConnection, code: int, reason: str) -> None:
        """A connection is gone."""
        if self._connections.pop(connection.peer, None) is None:
            return
        counters = self._services.counters
        counters.connections -= 1
        kind = "drain" if self._stopping else connection.close_kind or ("peer" if code == NO_ERROR else "error")
        counters.closed[kind] += 1
        if reason:
            log.info("fujin %s: closed: %s", connection.peer.address, reason)

    def names_of(self, peer: QuicPeer) -> tuple[str, ...]:
        """The names of the certificate that a client has shown; none: it has shown none.

        Raises:
            NotTrusted: it is of no authority that counts here.
        """
        certificate = peer.quic.peer_certificate
        if certificate is None or self._trusted is None:
            return ()
        return names_of(certificate, peer.quic.peer_chain, self._trusted)

    def turned_away(self) -> None:
        """Somebody was not let in."""
        self._services.counters.auth_failures += 1

    @property
    def is_stopping(self) -> bool:
        """Streams that are opened now are told to stop."""
        return self._stopping

    def _tick(self, now: float) -> None:
        """About four times a second."""
        self.shared.tick(now)
        for connection in tuple(self._connections.values()):
            if not connection.peer.closing:
                connection.tick(now)

    def _reload(self, config: ServerConfig) -> Callable[[], None]:
        configuration = quic_configuration(config)
        trusted = _trusted(config)

        def take_over() -> None:
            self._trusted = trusted
            self.endpoint.configuration = configuration
            self.shared.take_over(config)

        return take_over


class FujinConnection:
    """One client's connection; see ``netserver.quic.peer.PeerHandler``.

    Attributes:
        close_kind: fixed word for the metric, when it is the server that closes it.
    """

    def __init__(self, listener: FujinListener, peer: QuicPeer) -> None:
        self.peer = peer
        self.close_kind = ""
        self._listener = listener
        self._ping: _Ping | None = None
        self._pinged_at = peer.loop.time()
        self._checked_at = self._pinged_at

    @property
    def streams(self) -> list[FujinStream]:
        """Writers and readers that have not ended."""
        return [stream.session for stream in self.peer.streams.values() if isinstance(stream.session, FujinStream)]

    @property
    def is_busy(self) -> bool:
        """Something is on its way to the client."""
        return bool(self.streams) or not self.peer.quic.is_all_acknowledged

    def connected(self, alpn: str | None) -> None:
        """See ``PeerHandler``."""
        self._listener.connected(self)
        if alpn != ALPN:  # the client has offered none at all
            self.peer.close(NO_APPLICATION_PROTOCOL, "no application protocol")
            return
        try:
            names = self._listener.names_of(self.peer)
        except NotTrusted as problem:
            self.close_kind = "refused"
            self.peer.close(BAD_CERTIFICATE, str(problem))
            return
        visitor = self._listener.door.visit(self.peer.address, names, self._rights_changed)
        self.peer.visitor = visitor
        if visitor.is_turned_away:
            visitor.refused("CONNECT")
            self._listener.turned_away()
            self.close_kind = "refused"
            self.peer.close(NOT_LET_IN if names else CERTIFICATE_REQUIRED, "nobody who is let in here")

    def _rights_changed(self, old: Identity | None, new: Identity | None) -> None:
        """Whoever may do less than before has to come again; see ``netserver.shell.connection``."""
        if not self.peer.closing and (new is None or old is None or old.loses_by(new)):
            self.close_kind = "revoked"
            self.peer.close(NOT_LET_IN, "its rights were withdrawn")

    def opened(self, stream: QuicStream) -> StreamSession:
        """See ``PeerHandler``."""
        return FujinStream(self._listener.shared, stream, is_stopping=self._listener.is_stopping)

    def gone(self, code: int, reason: str) -> None:
        """See ``PeerHandler``."""
        if self.peer.visitor is not None:
            self.peer.visitor.leave()
        self._listener.gone(self, code, reason)

    def stop(self) -> None:
        """Send STOP on every stream."""
        for session in self.streams:
            session.stop()

    def end(self) -> None:
        """End every stream."""
        for session in self.streams:
            session.end()

    def tick(self, now: float) -> None:
        """Ask whether the client is there, and look whether it has answered."""
        section = self._listener.shared.section
        if self._ping is not None:
            if now - self._pinged_at >= section.ping_timeout / 1000:
                self.close_kind = "ping"
                self.peer.close(PING_ERROR, "read: deadline exceeded")
                return
        elif section.ping_interval and now - max(self._pinged_at, self.peer.heard_at) >= section.ping_interval / 1000:
            self._pinged_at = now
            self._ping = _Ping(self.answered)
            self._ping.send(self.peer)
        if now - self._checked_at >= CHECK_S:
            self._checked_at = now
            self.peer.check_progress(now)

    def answered(self) -> None:
        """The client has answered PING."""
        self._ping = None


class _Ping:
    """A stream of the server's own; only the client's FIN counts, what it sends before does not."""

    pending = 0
    needed = 1

    def __init__(self, answered: Callable[[], None]) -> None:
        self._answered = answered

    def send(self, peer: QuicPeer) -> None:
        """Open the stream and send PING."""
        stream = peer.open_stream(lambda _stream: self)
        stream.write(codec.PING)
        stream.end_output()

    def received(self, data: bytes) -> None:
        """See ``StreamSession``."""

    def released(self) -> None:
        """See ``StreamSession``."""

    def eof(self) -> None:
        self._answered()

    def resume_output(self) -> None:
        """See ``StreamSession``."""

    def broken(self, reason: str) -> None:
        """No answer is no answer, however the stream ends."""


def quic_configuration(config: ServerConfig) -> QuicConfiguration:
    """What a new connection gets.

    Raises:
        ConfigError: the certificate cannot be used.
    """
    section = config.fujin
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        idle_timeout=section.idle_timeout / 1000,
        max_data=PEER_WINDOW_BYTES,
        max_stream_data=STREAM_WINDOW_BYTES,
        max_datagram_size=QUIC_DATAGRAM_BYTES,
    )
    if section.tls_certificate:
        files = Path(section.tls_certificate), Path(section.tls_key)
    else:
        files = certificates.own_certificate(Path(config.server.data_dir), "fujin")
    certificates.load(configuration, *files)
    configuration.cafile = config.fujin.tls_client_ca or None
    return configuration


def _trusted(config: ServerConfig) -> X509Store | None:
    authority = config.fujin.tls_client_ca
    return authorities(Path(authority)) if authority else None


async def start(services: Services, config: ServerConfig) -> FujinListener:
    """Listen; see ``netserver.app.OTHER_PROTOCOLS``.

    Raises:
        ServerError: the address or the certificate cannot be used.
    """
    return FujinListener(services, config)
