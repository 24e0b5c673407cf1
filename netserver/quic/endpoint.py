"""The server's UDP sockets: datagrams to connections, new connections, turns of bounded length.

A datagram's destination connection id names its connection; ids are ours, 8 bytes. A new connection is begun only for
an Initial packet of full size; while many handshakes are unfinished a client has to repeat a token first (Retry), so
that forged addresses cost nothing but a packet, and above ``HALF_OPEN_MAX`` nothing is begun at all.

The loop's turns: datagrams are taken for ``QUIC_TURN_S``, then everybody else has a turn, and so on; when there are no
more, or taking them has lasted for ``QUIC_BATCH_S``, what they brought is handled together, in a turn of its own; so is
sending. Between two datagrams the end of a commit round is looked for, so that others' answers and the next round wait
for a datagram rather than for a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Any, Final, NamedTuple

from netserver.config.settings import Address
from netserver.errors import ListenError
from netserver.limits import (
    QUIC_BATCH_S,
    QUIC_RESETS_MAX,
    QUIC_TICK_S,
    QUIC_TURN_S,
    QUIC_UNANSWERED_MAX,
    QUIC_UNSENT_DATAGRAMS,
)
from netserver.quic.bounded import BoundedQuic, OutOfOrder, QuicConfiguration
from netserver.quic.datagrams import LONG_HEADER, ResetTokens, parse_long_header
from netserver.quic.handshakes import Handshakes
from netserver.quic.inside import (
    SMALLEST_MAX_DATAGRAM_SIZE,
    Buffer,
    QuicHeader,
    QuicPacketType,
    QuicRetryTokenHandler,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from netserver.quic.peer import QuicPeer
from netserver.quic.stream import Bounds, PeerHandler
from netserver.quic.udp import Datagram, UdpSocket
from netserver.shell.inherited import INHERITED, Unanswered
from netserver.shell.listener import why_not
from netserver.shell.turns import Turns

log = logging.getLogger(__name__)

CONNECTION_ID_BYTES: Final = 8
ABANDONED_TOLD_S: Final = 60.0
"""Handshakes that were given up are told so often."""


class Path(NamedTuple):
    """Where a datagram came from and went to: what is sent back goes through the same socket."""

    channel: _Channel
    address: Any


class QuicEndpoint:
    """Serves QUIC on an address.

    Args:
        name: for messages.
        address: host may stand for several addresses (localhost); all are bound, with one port.
        configuration: of new connections; may be replaced.
        handler: makes a protocol's half of a connection.
        bounds: what the connections' streams answer to.
        streams_max: streams that a client may have open at once.
        connections_max: above it no connection is begun.
        handshake_timeout_s: an unfinished handshake is given up after so long.
        on_tick: called about four times a second, with loop time.
        poll_completion: called between datagrams: something else that must not wait for long.

    Attributes:
        peers: all connections.
        handshakes: counts by result.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        configuration: QuicConfiguration,
        handler: Callable[[QuicPeer], PeerHandler],
        bounds: Bounds,
        *,
        streams_max: int,
        connections_max: int,
        handshake_timeout_s: float,
        on_tick: Callable[[float], None],
        poll_completion: Callable[[], object],
    ) -> None:
        self.name = name
        self.address = address
        self.configuration = configuration
        self.connections_max = connections_max
        self.peers: set[QuicPeer] = set()
        self.handshakes = {"completed": 0, "failed": 0, "refused": 0}
        self.unanswered: list[Unanswered] = []
        """First packets of connections, since no more are begun."""
        self._handler = handler
        self._bounds = bounds
        self._loop = bounds.loop
        self._turns = Turns.of(bounds.loop)
        self._streams_max = streams_max
        self._handshake_timeout_s = handshake_timeout_s
        self._on_tick = on_tick
        self._poll_completion = poll_completion
        self._by_id: dict[bytes, QuicPeer] = {}
        self._ids: dict[QuicPeer, set[bytes]] = {}
        self._channels: list[_Channel] = []
        self._out_of_order = OutOfOrder()
        self._retry = QuicRetryTokenHandler()
        self._accepting = True
        self._touched: dict[QuicPeer, None] = {}
        self._taking_s = 0.0  # for how long datagrams have been taken that are not handled yet
        self._dirty: deque[QuicPeer] = deque()
        self._flushing = False
        self._under_way = Handshakes()
        self._tokens = ResetTokens(configuration.private_key)
        self._resets_left = QUIC_RESETS_MAX
        self._abandoned = 0
        self._abandoned_told_at = -ABANDONED_TOLD_S
        self._ticker: asyncio.TimerHandle | None = None

    # --- life

    def start(self) -> Address:
        """Bind and serve; the address that it really has (a port 0 is filled in).

        Raises:
            ListenError: says what to do.
        """
        try:
            found = socket.getaddrinfo(
                self.address.host, self.address.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise ListenError(f"{self.name}: cannot resolve {self.address.host}: {error.strerror or error}") from None
        port = self.address.port
        try:
            for family, kind, proto, _, where in dict.fromkeys(found):
                place = (where[0], port, *where[2:])
                bound = INHERITED.take(self.name, family, kind, place) or _bound(family, kind, proto, place)
                port = bound.getsockname()[1]
                self._channels.append(_Channel(bound, self))
        except OSError as error:
            self._close_channels()
            raise ListenError(why_not(self.name, self.address, error)) from None
        self.address = Address(self.address.host, port)
        for channel in self._channels:
            channel.start()
            self._loop.call_soon(self._answer, channel, INHERITED.take_unanswered(channel.socket.getsockname()))
        self._ticker = self._loop.call_later(QUIC_TICK_S, self._tick)
        return self.address

    @property
    def sockets(self) -> list[socket.socket]:
        """Those of the addresses."""
        return [channel.socket for channel in self._channels]

    def stop_accepting(self) -> None:
        """Begin no more connections; those that are open need the socket."""
        self._accepting = False

    def close(self) -> None:
        """Give up everything at once."""
        self._accepting = False
        for peer in tuple(self.peers):
            peer.forget()
        self._close_channels()

    def _close_channels(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for channel in self._channels:
            channel.close()
        self._channels.clear()

    def _answer(self, channel: _Channel, datagrams: list[Unanswered]) -> None:
        """Take what came to the server before this one."""
        now = time.monotonic()
        for one in datagrams if self._channels else ():
            channel.path = Path(channel, one.sender)
            self._one(channel, one.data, now)
        self._handle()

    # --- netserver.quic.peer.Host

    def wants_flush(self, peer: QuicPeer) -> None:
        if not peer.is_dirty:
            peer.is_dirty = True
            self._dirty.append(peer)
            if not self._flushing:
                self._flushing = True
                self._loop.call_soon(self._flush)

    def send(self, peer: QuicPeer, datagrams: list[Datagram]) -> None:
        for channel, group in groupby(datagrams, _channel_of):
            channel.send([(data, path.address) for data, path in group])

    def connection_id_issued(self, peer: QuicPeer, connection_id: bytes) -> None:
        self._by_id[connection_id] = peer
        self._ids[peer].add(connection_id)

    def connection_id_retired(self, peer: QuicPeer, connection_id: bytes) -> None:
        self._by_id.pop(connection_id, None)
        self._ids[peer].discard(connection_id)

    def ended(self, peer: QuicPeer) -> None:
        if peer not in self.peers:
            return
        self.peers.discard(peer)
        for connection_id in self._ids.pop(peer):
            self._by_id.pop(connection_id, None)
        if self._under_way.over(peer):
            self.handshakes["failed"] += 1

    def handshake_completed(self, peer: QuicPeer) -> None:
        """To be called by the protocol when a peer is connected."""
        if self._under_way.over(peer):
            self.handshakes["completed"] += 1

    # --- turns

    def read(self, channel: _Channel) -> None:
        """Take datagrams that are there, as far as this turn allows."""
        if not channel.goes_on:
            self._read(channel)

    def _read(self, channel: _Channel) -> None:
        channel.goes_on = False
        if self._taking_s >= QUIC_BATCH_S:
            self._handle()
            self._go_on(channel)
            return
        now = time.monotonic()
        started = at = time.perf_counter()
        while at - started < QUIC_TURN_S:
            if not channel.taken and not self._receive(channel):
                break
            self._one(channel, channel.taken.popleft(), now)
            self._poll_completion()
            at = time.perf_counter()
        else:
            self._taking_s += at - started
            self._go_on(channel)
            return
        self._handle()

    def _go_on(self, channel: _Channel) -> None:
        channel.goes_on = True
        self._loop.call_soon(self._read, channel)

    def _receive(self, channel: _Channel) -> bool:
        """Whether there are datagrams that can be taken now."""
        try:
            datagrams, address = channel.udp.receive()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:  # an ICMP error for something sent before; QUIC's timers deal with it
            log.debug("%s: receive: %s", self.name, error)
            return False  # what is after it keeps the socket readable
        channel.path = Path(channel, address)
        channel.taken.extend(datagrams)
        return True

    def _one(self, channel: _Channel, data: bytes, now: float) -> None:
        if len(data) < 1 + CONNECTION_ID_BYTES:
            return
        is_short = data[0] < LONG_HEADER
        peer = self._by_id.get(data[1:9]) if is_short else self._peer_of_long(channel.path, data)
        if peer is not None:
            peer.datagram(data, channel.path, now)
            self._touched[peer] = None
        elif is_short:
            self._reset(channel.path, data)

    def _reset(self, path: Path, data: bytes) -> None:
        """Tell a client that its connection is not known (any more)."""
        if self._resets_left:
            self._resets_left -= 1
            answer = self._tokens.reset(data[1:9], len(data))
            if answer:
                path.channel.send([(answer, path.address)])

    def _handle(self) -> None:
        """Handle what the datagrams have brought."""
        self._taking_s = 0.0
        touched, self._touched = self._touched, {}
        for peer in touched:
            if peer in self.peers:
                self._turns.mark(peer)
                peer.process()
            self._poll_completion()

    def _flush(self) -> None:
        self._flushing = False
        dirty = self._dirty
        deadline = time.perf_counter() + QUIC_TURN_S
        for _ in range(len(dirty)):
            if any(channel.is_blocked for channel in self._channels):
                return  # goes on when the socket takes datagrams again
            peer = dirty.popleft()
            self._turns.mark(peer)
            peer.flush()
            self._poll_completion()
            if time.perf_counter() > deadline:
                break
        if dirty and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def flush_again(self) -> None:
        """The socket takes datagrams again."""
        if self._dirty and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(QUIC_TICK_S, self._tick)
        now = time.monotonic()
        for peer in tuple(self.peers):
            if not peer.is_connected and now - peer.started_at >= self._handshake_timeout_s:
                self._abandon(peer, "handshake not complete in time")
        if self._abandoned and now - self._abandoned_told_at >= ABANDONED_TOLD_S:
            log.info("%s: %d more handshakes were given up", self.name, self._abandoned)
            self._abandoned, self._abandoned_told_at = 0, now
        self._resets_left = QUIC_RESETS_MAX
        self._on_tick(now)

    def _abandon(self, peer: QuicPeer, why: str) -> None:
        """Give a handshake up; the first one is told, further ones are counted for a while."""
        now = time.monotonic()
        if now - self._abandoned_told_at >= ABANDONED_TOLD_S and not self._abandoned:
            log.info("%s %s: %s; given up", self.name, peer.address, why)
            self._abandoned_told_at = now
        else:
            self._abandoned += 1
        peer.forget(why)

    # --- new connections

    def _peer_of_long(self, path: Path, data: bytes) -> QuicPeer | None:
        """The connection of a datagram with a long header, which may begin one."""
        begins = parse_long_header(data)
        if begins is None:
            return None
        peer = self._by_id.get(begins.destination_id)
        if peer is not None:
            if begins.destination_id == peer.quic.host_cid:  # which it has from us
                self._under_way.answered(peer)
            return peer
        if begins.version == 0 or len(data) < SMALLEST_MAX_DATAGRAM_SIZE:  # 0: it is about versions itself
            return None
        versions = self.configuration.supported_versions
        if begins.version not in versions:
            answer = encode_quic_version_negotiation(begins.destination_id, begins.source_id, versions)
            path.channel.send([(answer, path.address)])
            return None
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=CONNECTION_ID_BYTES)
        except ValueError:
            return None
        if header.packet_type != QuicPacketType.INITIAL or len(header.destination_cid) < CONNECTION_ID_BYTES:
            return None
        if not self._accepting and len(self.unanswered) < QUIC_UNANSWERED_MAX:
            self.unanswered.append(Unanswered(path.channel.socket.getsockname(), path.address, data))
        return self._begin(path, header)

    def _begin(self, path: Path, header: QuicHeader) -> QuicPeer | None:
        """A new connection; None: there is no room for it, or its address has to be shown to be its own first."""
        if not self._accepting or len(self.peers) >= self.connections_max:
            self.handshakes["refused"] += 1
            return None
        address = path.address
        original_id, retry_id = header.destination_cid, None
        if header.token:
            with contextlib.suppress(ValueError):  # a token of somebody else
                original_id = self._retry.validate_token(
                    address=address, destination_cid=header.destination_cid, token=header.token, now=time.monotonic()
                )
                retry_id = header.destination_cid
        if retry_id is None and self._under_way.need_tokens:
            self._send_retry(path, header)
            return None
        if self._under_way.is_full(address[0]):
            oldest = self._under_way.gives_way(address[0])
            if oldest is None:
                self.handshakes["refused"] += 1
                return None
            self._abandon(oldest, "handshake gave way to a newer one")
        quic = BoundedQuic(
            self.configuration,
            self._streams_max,
            self._out_of_order,
            self._tokens.token,
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        peer = QuicPeer(quic, self, self._handler, self._bounds)
        peer.address = str(Address(address[0], address[1]))
        self.peers.add(peer)
        self._ids[peer] = set()
        self._under_way.begun(peer, address[0])
        self.connection_id_issued(peer, header.destination_cid)
        self.connection_id_issued(peer, quic.host_cid)
        return peer

    def _send_retry(self, path: Path, header: QuicHeader) -> None:
        assert header.version is not None
        source_id = os.urandom(CONNECTION_ID_BYTES)
        token = self._retry.create_token(
            address=path.address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source_id,
            now=time.monotonic(),
        )
        answer = encode_quic_retry(
            version=header.version,
            source_cid=source_id,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        path.channel.send([(answer, path.address)])


class _Channel:
    """One UDP socket. While it takes nothing, datagrams wait in a bounded queue, and no more are made.

    Attributes:
        is_blocked: it takes nothing at the moment.
        taken: datagrams read from it that are not given to their connections yet; they came by `path`.
        goes_on: it has a turn soon.
    """

    def __init__(self, bound: socket.socket, endpoint: QuicEndpoint) -> None:
        self.udp = UdpSocket(bound)
        self.is_blocked = False
        self.taken: deque[bytes] = deque()
        self.path = Path(self, ("", 0))
        self.goes_on = False
        self.socket = bound
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Datagram] = deque(maxlen=QUIC_UNSENT_DATAGRAMS)

    def start(self) -> None:
        """Read from now on."""
        self._loop.add_reader(self.socket.fileno(), self._endpoint.read, self)

    def close(self) -> None:
        """Let go of the socket."""
        self.taken.clear()
        self._loop.remove_reader(self.socket.fileno())
        if self.is_blocked:
            self._loop.remove_writer(self.socket.fileno())
        self.socket.close()

    def send(self, datagrams: list[Datagram]) -> None:
        """Send, in order; what the network refuses is lost, which QUIC repairs."""
        if self.is_blocked:
            self._unsent.extend(datagrams)
            return
        try:
            sent = self.udp.send(datagrams)
        except ConnectionError as error:  # of an earlier datagram: that client is gone
            log.debug("%s: send: %s", self._endpoint.name, error)
            return
        if sent < len(datagrams):
            self._unsent.extend(datagrams[sent:])
            self.is_blocked = True
            self._loop.add_writer(self.socket.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self.socket.fileno())
        self.is_blocked = False
        waiting = list(self._unsent)
        self._unsent.clear()
        self.send(waiting)
        if not self.is_blocked:
            self._endpoint.flush_again()


def _channel_of(datagram: Datagram) -> _Channel:
    channel: _Channel = datagram[1].channel
    return channel


def _bound(family: int, kind: int, proto: int, where: tuple[str | int, ...]) -> socket.socket:
    bound = socket.socket(family, kind, proto)
    try:
        bound.setblocking(False)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(where)
    except BaseException:
        bound.close()
        raise
    return bound
