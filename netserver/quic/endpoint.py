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
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from aioquic._buffer import Buffer
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from netserver.config.settings import Address
from netserver.errors import ListenError
from netserver.limits import (
    HALF_OPEN_HOST_MAX,
    HALF_OPEN_MAX,
    HALF_OPEN_RETRY,
    QUIC_BATCH_S,
    QUIC_TICK_S,
    QUIC_TURN_S,
    QUIC_UNSENT_DATAGRAMS,
)
from netserver.quic.core import BoundedQuic, OutOfOrder, QuicConfiguration
from netserver.quic.peer import QuicPeer
from netserver.quic.stream import Bounds, PeerHandler
from netserver.quic.udp import Datagram, UdpSocket
from netserver.shell.listener import why_not
from netserver.turns import Turns

log = logging.getLogger(__name__)

CONNECTION_ID_BYTES: Final = 8
LONG_HEADER: Final = 0x80


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
        look_up: called between datagrams: something else that must not wait for long.

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
        look_up: Callable[[], object],
    ) -> None:
        self.name = name
        self.address = address
        self.configuration = configuration
        self.connections_max = connections_max
        self.peers: set[QuicPeer] = set()
        self.handshakes = {"completed": 0, "failed": 0, "refused": 0}
        self._handler = handler
        self._bounds = bounds
        self._loop = bounds.loop
        self._turns = Turns.of(bounds.loop)
        self._streams_max = streams_max
        self._handshake_timeout_s = handshake_timeout_s
        self._on_tick = on_tick
        self._look_up = look_up
        self._by_id: dict[bytes, QuicPeer] = {}
        self._ids: dict[QuicPeer, set[bytes]] = {}
        self._channels: list[_Channel] = []
        self._of: dict[QuicPeer, _Channel] = {}
        self._out_of_order = OutOfOrder()
        self._retry = QuicRetryTokenHandler()
        self._accepting = True
        self._touched: dict[QuicPeer, None] = {}
        self._taking_s = 0.0  # for how long datagrams have been taken that are not handled yet
        self._dirty: deque[QuicPeer] = deque()
        self._flushing = False
        self._handshaking: dict[QuicPeer, str] = {}  # and the hosts that they say they are
        self._handshaking_of: Counter[str] = Counter()
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
                bound = _bound(family, kind, proto, (where[0], port, *where[2:]))
                port = bound.getsockname()[1]
                self._channels.append(_Channel(bound, self))
        except OSError as error:
            self._close_channels()
            raise ListenError(why_not(self.name, self.address, error)) from None
        self.address = Address(self.address.host, port)
        for channel in self._channels:
            channel.start()
        self._ticker = self._loop.call_later(QUIC_TICK_S, self._tick)
        return self.address

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

    def connected_peers(self) -> list[QuicPeer]:
        """Peers with a complete handshake that are not closing."""
        return [peer for peer in self.peers if peer.is_connected and not peer.closing]

    # --- netserver.quic.peer.Host

    def wants_flush(self, peer: QuicPeer) -> None:
        if not peer.is_dirty:
            peer.is_dirty = True
            self._dirty.append(peer)
            if not self._flushing:
                self._flushing = True
                self._loop.call_soon(self._flush)

    def send(self, peer: QuicPeer, datagrams: list[Datagram]) -> None:
        channel = self._of.get(peer)
        if channel is not None:
            channel.send(datagrams)

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
        del self._of[peer]
        if self._handshake_over(peer):
            self.handshakes["failed"] += 1

    def handshake_completed(self, peer: QuicPeer) -> None:
        """To be called by the protocol when a peer is connected."""
        if self._handshake_over(peer):
            self.handshakes["completed"] += 1

    def _handshake_over(self, peer: QuicPeer) -> bool:
        """Whether it was under way."""
        host = self._handshaking.pop(peer, None)
        if host is None:
            return False
        self._handshaking_of[host] -= 1
        if not self._handshaking_of[host]:
            del self._handshaking_of[host]
        return True

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
            self._look_up()
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
            datagrams, channel.address = channel.udp.receive()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:  # an ICMP error for something sent before; QUIC's timers deal with it
            log.debug("%s: receive: %s", self.name, error)
            return False  # what is behind it keeps the socket readable
        channel.taken.extend(datagrams)
        return True

    def _one(self, channel: _Channel, data: bytes, now: float) -> None:
        if len(data) < 1 + CONNECTION_ID_BYTES:
            return
        is_short = data[0] < LONG_HEADER
        peer = self._by_id.get(data[1:9]) if is_short else self._peer_of_long(channel, data, channel.address)
        if peer is None:
            return
        try:
            peer.datagram(data, channel.address, now)
        except Exception:  # it ends this connection
            log.exception("%s %s: error while a datagram was handled; given up", self.name, peer.address)
            self._bounds.counters.session_errors += 1
            peer.forget()
        else:
            self._touched[peer] = None

    def _handle(self) -> None:
        """Handle what the datagrams have brought."""
        self._taking_s = 0.0
        touched, self._touched = self._touched, {}
        for peer in touched:
            self._process(peer)
            self._look_up()

    def _process(self, peer: QuicPeer) -> None:
        if peer not in self.peers:
            return
        self._turns.mark(peer)
        try:
            peer.process()
        except Exception:
            log.exception("%s %s: error in the connection; given up", self.name, peer.address)
            self._bounds.counters.session_errors += 1
            peer.forget()

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
            self._look_up()
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
                log.info("%s %s: handshake not complete in time; given up", self.name, peer.address)
                peer.forget()
        self._on_tick(now)

    # --- new connections

    def _peer_of_long(self, channel: _Channel, data: bytes, address: tuple[str, int]) -> QuicPeer | None:
        """The connection of a datagram with a long header, which may begin one."""
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=CONNECTION_ID_BYTES)
        except ValueError:
            return None
        peer = self._by_id.get(header.destination_cid)
        if peer is not None:
            return peer
        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION or len(data) < SMALLEST_MAX_DATAGRAM_SIZE:
            return None
        if header.version not in self.configuration.supported_versions:
            answer = encode_quic_version_negotiation(
                source_cid=header.destination_cid,
                destination_cid=header.source_cid,
                supported_versions=self.configuration.supported_versions,
            )
            channel.send([(answer, address)])
            return None
        if header.packet_type != QuicPacketType.INITIAL or len(header.destination_cid) < CONNECTION_ID_BYTES:
            return None
        if (
            not self._accepting
            or len(self._handshaking) >= HALF_OPEN_MAX
            or self._handshaking_of[address[0]] >= HALF_OPEN_HOST_MAX
            or len(self.peers) >= self.connections_max
        ):
            self.handshakes["refused"] += 1
            return None
        return self._begin(channel, header, address)

    def _begin(self, channel: _Channel, header: QuicHeader, address: tuple[str, int]) -> QuicPeer | None:
        original_id, retry_id = header.destination_cid, None
        if header.token:
            with contextlib.suppress(ValueError):  # a token of somebody else
                original_id = self._retry.validate_token(
                    address=address, destination_cid=header.destination_cid, token=header.token, now=time.monotonic()
                )
                retry_id = header.destination_cid
        if retry_id is None and len(self._handshaking) >= HALF_OPEN_RETRY:
            self._send_retry(channel, header, address)
            return None
        quic = BoundedQuic(
            self.configuration,
            self._streams_max,
            self._out_of_order,
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        peer = QuicPeer(quic, self, self._handler, self._bounds)
        peer.address = str(Address(address[0], address[1]))
        self.peers.add(peer)
        self._ids[peer] = set()
        self._of[peer] = channel
        self._handshaking[peer] = address[0]
        self._handshaking_of[address[0]] += 1
        self.connection_id_issued(peer, header.destination_cid)
        self.connection_id_issued(peer, quic.host_cid)
        return peer

    def _send_retry(self, channel: _Channel, header: QuicHeader, address: tuple[str, int]) -> None:
        assert header.version is not None
        source_id = os.urandom(CONNECTION_ID_BYTES)
        token = self._retry.create_token(
            address=address,
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
        channel.send([(answer, address)])


class _Channel:
    """One UDP socket. While it takes nothing, datagrams wait in a bounded queue, and no more are made.

    Attributes:
        is_blocked: it takes nothing at the moment.
        taken: datagrams read from it that are not given to their connections yet, from `address`.
        goes_on: it has a turn soon.
    """

    def __init__(self, bound: socket.socket, endpoint: QuicEndpoint) -> None:
        self.udp = UdpSocket(bound)
        self.is_blocked = False
        self.taken: deque[bytes] = deque()
        self.address: tuple[str, int] = ("", 0)
        self.goes_on = False
        self._socket = bound
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Datagram] = deque(maxlen=QUIC_UNSENT_DATAGRAMS)

    def start(self) -> None:
        """Read from now on."""
        self._loop.add_reader(self._socket.fileno(), self._endpoint.read, self)

    def close(self) -> None:
        """Let go of the socket."""
        self.taken.clear()
        self._loop.remove_reader(self._socket.fileno())
        if self.is_blocked:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()

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
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self.is_blocked = False
        waiting = list(self._unsent)
        self._unsent.clear()
        self.send(waiting)
        if not self.is_blocked:
            self._endpoint.flush_again()


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
