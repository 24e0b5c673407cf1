"""A client's UDP socket: dialling, and one QUIC connection on it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes

from netserver.client.link import system_text
from netserver.client.tls import TlsFiles
from netserver.errors import TlsFailed
from netserver.limits import (
    PEER_WINDOW_BYTES,
    QUIC_BATCH_S,
    QUIC_DATAGRAM_BYTES,
    QUIC_UNSENT_DATAGRAMS,
    STREAM_WINDOW_BYTES,
)
from netserver.quic.bounded import BoundedQuic
from netserver.quic.inside import QuicConfiguration
from netserver.quic.peer import QuicPeer
from netserver.quic.stream import Bounds, PeerHandler
from netserver.quic.udp import Datagram, UdpSocket

log = logging.getLogger(__name__)

STREAMS_MAX_OF_SERVER = 100


@dataclass(frozen=True, slots=True)
class Trust:
    """How a client knows its server, and what it shows of itself.

    Attributes:
        files: authorities, and the client's own certificate; QUIC is always encrypted, so ``off`` means ``system``.
        fingerprint: SHA-256 of the server's certificate in hexadecimal (colons are left out); instead of authorities.
        is_verified: False: anybody is taken for the server.
    """

    files: TlsFiles = field(default_factory=TlsFiles)
    fingerprint: str | None = None
    is_verified: bool = True

    def check(self, quic: BoundedQuic) -> None:
        """Check the fingerprint, if one is known.

        Raises:
            TlsFailed: it is another certificate.
        """
        if self.fingerprint is None:
            return
        certificate = quic.peer_certificate
        wanted = self.fingerprint.lower().removeprefix("sha256:").replace(":", "")
        if certificate is None or certificate.fingerprint(hashes.SHA256()).hex() != wanted:
            raise TlsFailed("the server's certificate has another fingerprint", "untrusted")

    def configuration(self, server_name: str, alpn: str, idle_timeout_s: float) -> QuicConfiguration:
        """For a connection to ``server_name``.

        Raises:
            TlsFailed: a file cannot be used.
        """
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=[alpn],
            idle_timeout=idle_timeout_s,
            server_name=server_name,
            max_data=PEER_WINDOW_BYTES,
            max_stream_data=STREAM_WINDOW_BYTES,
            max_datagram_size=QUIC_DATAGRAM_BYTES,
        )
        if not self.is_verified or self.fingerprint is not None:
            configuration.verify_mode = ssl.CERT_NONE
        elif self.files.authorities is not None:
            configuration.load_verify_locations(cafile=self.files.authorities)
        if self.files.is_used:
            self.files.context()  # it says what is wrong with the files; aioquic would not
        if self.files.own is not None:
            configuration.load_cert_chain(*self.files.own)
        return configuration


class QuicDialer:
    """One attempt to connect, and the host of the connection; see ``netserver.quic.stream.Host``."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._loop = bounds.loop
        self._udp: UdpSocket | None = None
        self._peer: QuicPeer | None = None
        self._address: Any = None
        self._flushing = False
        self._is_blocked = False
        self._unsent: deque[Datagram] = deque(maxlen=QUIC_UNSENT_DATAGRAMS)
        self._reason: OSError | None = None

    def start(
        self,
        found: tuple[Any, ...],
        configuration: QuicConfiguration,
        handler: Callable[[QuicPeer], PeerHandler],
    ) -> QuicPeer:
        """Begin the handshake with an address of ``getaddrinfo``.

        Raises:
            OSError: there is no way to it.
        """
        family, kind, proto, _, where = found
        udp = socket.socket(family, kind, proto)
        try:
            udp.setblocking(False)
            udp.connect(where)
            self._udp = UdpSocket(udp)
        except BaseException:
            udp.close()
            raise
        self._address = where
        quic = BoundedQuic(configuration, STREAMS_MAX_OF_SERVER)
        quic.connect(where, now=time.monotonic())
        peer = self._peer = QuicPeer(quic, self, handler, self._bounds)
        peer.address = f"{where[0]}:{where[1]}"
        self._loop.add_reader(udp.fileno(), self._readable)
        peer.flush()
        return peer

    # --- netserver.quic.stream.Host

    def wants_flush(self, peer: QuicPeer) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def send(self, peer: QuicPeer, datagrams: list[Datagram]) -> None:
        udp = self._udp
        if udp is None:
            return
        datagrams = [(data, None) for data, _ in datagrams]  # it is connected
        if self._is_blocked:
            self._unsent.extend(datagrams)
            return
        try:
            sent = udp.send(datagrams)
        except OSError as error:
            self._fail(error)
            return
        if sent < len(datagrams):
            self._unsent.extend(datagrams[sent:])
            self._is_blocked = True
            self._loop.add_writer(udp.socket.fileno(), self._writable)

    def connection_id_issued(self, peer: QuicPeer, connection_id: bytes) -> None:
        return

    def connection_id_retired(self, peer: QuicPeer, connection_id: bytes) -> None:
        return

    def ended(self, peer: QuicPeer) -> None:
        udp, self._udp = self._udp, None
        if udp is not None:
            self._loop.remove_reader(udp.socket.fileno())
            if self._is_blocked:
                self._loop.remove_writer(udp.socket.fileno())
            udp.socket.close()

    # --- inside

    def _flush(self) -> None:
        self._flushing = False
        if self._peer is not None and self._udp is not None and not self._is_blocked:
            self._peer.flush()

    def _readable(self) -> None:
        udp, peer = self._udp, self._peer
        if udp is None or peer is None:
            return
        now = time.monotonic()
        deadline = time.perf_counter() + QUIC_BATCH_S
        while time.perf_counter() < deadline:
            try:
                datagrams, _ = udp.receive()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._fail(error)
                return
            for data in datagrams:
                if peer.quic.is_reset(data):
                    peer.forget("the server does not know the connection any more")
                    return
                peer.datagram(data, self._address, now)
        peer.process()

    def _writable(self) -> None:
        udp, peer = self._udp, self._peer
        if udp is None or peer is None:
            return
        self._loop.remove_writer(udp.socket.fileno())
        self._is_blocked = False
        waiting = list(self._unsent)
        self._unsent.clear()
        self.send(peer, waiting)
        if not self._is_blocked:
            self.wants_flush(peer)

    def _fail(self, error: OSError) -> None:
        """The network says that nobody is there: what a lost connection would only learn after its timeout."""
        if self._peer is not None and not self._peer.closing:
            self._peer.forget(system_text(error))


async def addresses(host: str, port: int) -> list[tuple[Any, ...]]:
    """What ``host`` may mean.

    Raises:
        OSError: it cannot be resolved.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return list(dict.fromkeys(found))
