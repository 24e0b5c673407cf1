"""One QUIC connection without I/O: aioquic's, with bounds that its public interface does not offer.

This module and `netserver.quic.receive` are the only ones that touch what aioquic does not document, all of which
`netserver.quic.inside` names. What is different:

- *receive windows*: aioquic doubles them as data arrives, whether or not anybody has taken it. Here a window moves
  only when its owner says so, so it is a promise of memory;
- *streams at once*: aioquic offers 128;
- *pacing*: aioquic lets 16 packets go and then asks for a timer of a few microseconds, which event loops do not have;
- *what comes out of order*: aioquic keeps the whole window of each stream, and looks at every gap for every frame;
- *acknowledgements*: aioquic sends them after 1 ms, mostly in a packet of their own; here they wait for the answers
  that go out after a commit round, unless many packets have come;
- *certificates of clients*: aioquic's servers ask for none; here they do when the configuration has a ``cafile``;
- *what was sent, what was acknowledged*: needed to keep its send buffers short, and to know that a peer has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from aioquic.quic import events
from cryptography import x509

from netserver.limits import (
    QUIC_ACK_PACKETS,
    QUIC_ACK_S,
    QUIC_BULK_ACK_S,
    QUIC_CRYPTO_BYTES_MAX,
    QUIC_GAP_STREAMS_MAX,
    QUIC_GAPS_BYTES_MAX,
    QUIC_GAPS_MAX,
    QUIC_PACING_S,
    QUIC_SENT_MAX,
)
from netserver.quic.datagrams import RESET_BYTES_LEAST, TOKEN_BYTES
from netserver.quic.inside import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Buffer,
    QuicConfiguration,
    QuicConnectionError,
    QuicConnectionState,
    QuicErrorCode,
    QuicFrameType,
    QuicPacketBuilder,
    QuicPacketPacer,
    QuicPacketSpace,
    QuicReceiveContext,
    tls,
)
from netserver.quic.inside import QuicStream as Stream
from netserver.quic.receive import STREAM_HAS_LENGTH, STREAM_HAS_OFFSET, QuickReceiving

__all__ = ["BoundedQuic", "OutOfOrder", "PacketDropped", "QuicConfiguration"]

GONE = -1


class PacketDropped(Exception):
    """The packet counts as lost: it is not acknowledged, so its sender repeats what was in it."""


class OutOfOrder:
    """What all connections of a server keep of data that has come before what precedes it.

    Attributes:
        size_bytes: with the gaps.
    """

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class BoundedQuic(QuickReceiving):
    """A connection whose windows move by ``open_window`` and ``open_stream_window`` only.

    Args:
        configuration: ``max_data`` and ``max_stream_data`` are the first windows.
        streams_max: bidirectional streams that the peer may have open at once; unidirectional ones are refused.
        out_of_order: shared with the other connections of a server; without it this one is not bounded by it.
        reset_token: of a connection id, see ``netserver.quic.datagrams``.

    Attributes:
        new_ids: connection ids that are told to the peer with the next datagrams.
        windows_opened: streams on which the peer has allowed more data since the set was last cleared.
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        streams_max: int,
        out_of_order: OutOfOrder | None = None,
        reset_token: Callable[[bytes], bytes] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(configuration=configuration, **arguments)
        self._reset_token = reset_token
        self.new_ids: list[bytes] = []
        self._give_reset_tokens()
        self._loss._pacer = _Pacer(max_datagram_size=self._max_datagram_size)
        self._ack_delay = QUIC_ACK_S
        self._ack_hurries = False
        self._acked_packet = -1
        self.windows_opened: set[int] = set()
        self._out_of_order = out_of_order
        self._gaps: dict[int, int] = {}  # stream -> bytes that it keeps out of order
        self._dropping = False
        self._sent_max = QUIC_SENT_MAX
        self._handed_bytes = 0
        self._local_max_streams_bidi.value = self._local_max_streams_bidi.sent = streams_max
        self._local_max_streams_uni.value = self._local_max_streams_uni.sent = 0

    @property
    def peer_certificate(self) -> x509.Certificate | None:
        """What the other side has shown, once the handshake is complete; of a client's only the key is checked."""
        return self.tls._peer_certificate

    @property
    def peer_chain(self) -> list[x509.Certificate]:
        """What it has shown beside it."""
        return self.tls._peer_certificate_chain

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if not self._is_client and self.configuration.cafile:  # no sessions are resumed, which would go without one
            self.tls._request_client_certificate = True

    def is_reset(self, data: bytes) -> bool:
        """Whether a datagram says that the server does not know the connection any more."""
        return data[-TOKEN_BYTES:] == self._peer_cid.stateless_reset_token and len(data) >= RESET_BYTES_LEAST

    def _give_reset_tokens(self) -> None:
        if self._reset_token is not None:
            for one in self._host_cids:
                one.stateless_reset_token = self._reset_token(one.cid)

    def _replenish_connection_ids(self) -> None:
        known = len(self._host_cids)
        super()._replenish_connection_ids()
        self._give_reset_tokens()
        self.new_ids += [one.cid for one in self._host_cids[known:]]

    # --- receiving

    @property
    def window_end(self) -> int:
        """Bytes that the peer may send on all streams together, counted from the beginning."""
        return self._local_max_data.value

    def open_window(self, end: int) -> None:
        """Let the peer send up to ``end`` (see ``window_end``); a window never closes again."""
        if end > self._local_max_data.value:
            self._local_max_data.value = end

    def open_stream_window(self, stream_id: int, end: int) -> None:
        """Let the peer send up to ``end`` on a stream."""
        stream = self._streams.get(stream_id)
        if stream is not None and end > stream.max_stream_data_local:
            stream.max_stream_data_local = end

    def announced_bytes(self, stream_id: int) -> int:
        """The highest end of data on this stream that has been seen, be everything before it there or not."""
        stream = self._streams.get(stream_id)
        return stream.receiver.highest_offset if stream is not None else 0

    def is_receiving(self, stream_id: int) -> bool:
        """The peer has not ended its side of this stream yet."""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.receiver.is_finished

    @property
    def farewell(self) -> events.ConnectionTerminated | None:
        """What the peer has closed the connection with. The event of it comes later: aioquic first waits for packets
        that may be under way."""
        return self._close_event if self._state is QuicConnectionState.DRAINING else None

    def let_go(self) -> None:
        """The connection is gone: it keeps nothing any more.

        What it consists of refers to it by callbacks; without them it goes away at once, with its 300 objects, and not
        when the interpreter looks for circles.
        """
        if self._out_of_order is not None:
            self._out_of_order.size_bytes -= sum(self._gaps.values())
        self._gaps.clear()
        self._QuicConnection__frame_handlers: dict[int, Any] = {}
        self._loss._send_probe = _nothing
        for space in self._spaces.values():
            space.sent_packets.clear()  # each would call back when it is acknowledged
        for pair in (*self._cryptos.values(), *self._cryptos_initial.values()):
            for context in (pair.recv, pair.send):
                context._setup_cb = context._teardown_cb = _nothing
        if hasattr(self, "tls"):  # it is made with the first packet
            self.tls.alpn_cb = None
            self.tls.update_traffic_key_cb = _nothing

    def has_stream(self, stream_id: int) -> bool:
        """Anything can still happen on this stream."""
        return stream_id in self._streams

    # --- sending

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were given to ``send`` and have not left yet."""
        return self._handed_bytes - self._remote_max_data_used

    def room(self, stream_id: int) -> int:
        """Bytes that the peer's window allows on this stream beyond those given to ``send``; GONE: nobody reads it."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.sender.is_finished or stream.sender._reset_error_code is not None:
            return GONE
        return stream.max_stream_data_remote - stream.sender._buffer_stop

    def send(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """As ``send_stream_data``, for a stream with room; also opens a stream of our own."""
        self.send_stream_data(stream_id, data, end_stream)
        self._handed_bytes += len(data)

    def forget_unsent(self, stream_id: int) -> None:
        """The peer has refused the rest of this stream: what was given to ``send`` and not sent never leaves."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._handed_bytes -= stream.sender._buffer_stop - stream.sender.highest_offset

    def is_acknowledged(self, stream_id: int, end: int) -> bool:
        """The peer has everything that was sent on this stream before ``end``."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.sender._buffer_start >= end

    @property
    def is_all_acknowledged(self) -> bool:
        """The peer has everything that was sent, to the last FIN."""
        return all(stream.sender.is_finished or stream.sender._buffer_fin is None for stream in self._streams.values())

    # --- aioquic's hooks

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        """As aioquic's; acknowledgements in it as the module says."""
        space = self._spaces.get(tls.Epoch.ONE_RTT)
        if space is None:
            return super().datagrams_to_send(now)
        if space.ack_at is not None and space.ack_at > now:
            if self.unsent_bytes > 0:  # goes along with data
                space.ack_at = now
            else:
                self._hurry_acknowledgement(space)
        found = super().datagrams_to_send(now)
        self.is_quiet = True
        if space.ack_at is None:
            self._ack_hurries = False
            self._acked_packet = space.largest_received_packet
        if len(space.sent_packets) > self._sent_max:
            self._forget_acknowledgements(space)
        return found

    def sends_nothing_before(self) -> float | None:
        """When there is something to send at the earliest, if nothing more comes; None: maybe now."""
        space = self._spaces.get(tls.Epoch.ONE_RTT) if self.is_quiet else None
        if space is None or space.ack_at is None:
            return None
        self._hurry_acknowledgement(space)
        return space.ack_at

    def _hurry_acknowledgement(self, space: QuicPacketSpace) -> None:
        """Of many packets it is not put off for that long."""
        if not self._ack_hurries and space.largest_received_packet - self._acked_packet >= QUIC_ACK_PACKETS:
            self._ack_hurries = True
            assert space.ack_at is not None
            space.ack_at -= QUIC_ACK_S - QUIC_BULK_ACK_S

    def _forget_acknowledgements(self, space: QuicPacketSpace) -> None:
        """Packets that carried nothing else need no acknowledgement; a peer that never sends one would pile them up."""
        kept = {number: packet for number, packet in space.sent_packets.items() if packet.in_flight}
        space.sent_packets = kept
        self._sent_max = max(2 * len(kept), QUIC_SENT_MAX)

    # Of a packet that is dropped what can be taken is taken: what the sender repeats is told from news anyway.

    def _payload_received(
        self, context: QuicReceiveContext, plain: bytes, crypto_frame_required: bool = False
    ) -> tuple[bool, bool]:
        self._dropping = False
        found = super()._payload_received(context, plain, crypto_frame_required)
        if self._dropping:
            raise PacketDropped
        return found

    def _handle_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        start = buf.tell()
        stream_id = buf.pull_uint_var()
        offset = buf.pull_uint_var() if frame_type & STREAM_HAS_OFFSET else 0
        stream = self._streams.get(stream_id)
        if offset > (stream.receiver._buffer_start if stream is not None else 0):
            if not self._may_gap(stream_id, stream):
                size = buf.pull_uint_var() if frame_type & STREAM_HAS_LENGTH else buf.capacity - buf.tell()
                buf.pull_bytes(size)
                self._dropping = True
                return
            buf.seek(start)
            super()._handle_stream_frame(context, frame_type, buf)
            self._count_gap(stream_id)
            return
        buf.seek(start)
        super()._handle_stream_frame(context, frame_type, buf)
        if stream_id in self._gaps:
            self._count_gap(stream_id)

    def _may_gap(self, stream_id: int, stream: Stream | None) -> bool:
        """Data that does not follow what is there may be kept."""
        gaps = self._gaps
        if stream_id not in gaps and len(gaps) >= QUIC_GAP_STREAMS_MAX:
            self._count_gaps()
            if len(gaps) >= QUIC_GAP_STREAMS_MAX:
                return False
        if stream is not None and len(stream.receiver._ranges) >= QUIC_GAPS_MAX:
            return False
        everybodys = self._out_of_order
        if everybodys is not None and everybodys.size_bytes >= QUIC_GAPS_BYTES_MAX:
            self._count_gaps()
            return everybodys.size_bytes < QUIC_GAPS_BYTES_MAX
        return True

    def _count_gaps(self) -> None:
        for stream_id in tuple(self._gaps):
            self._count_gap(stream_id)

    def _count_gap(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        size_bytes = len(stream.receiver._buffer) if stream is not None and not stream.receiver.is_finished else 0
        if stream is not None and not size_bytes:
            stream.receiver._buffer.clear()  # of a stream that was reset
        before = self._gaps.pop(stream_id, 0)
        if size_bytes:
            self._gaps[stream_id] = size_bytes
        if self._out_of_order is not None:
            self._out_of_order.size_bytes += size_bytes - before

    def _handle_reset_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        start = buf.tell()
        stream_id = buf.pull_uint_var()
        buf.seek(start)
        super()._handle_reset_stream_frame(context, frame_type, buf)
        if stream_id in self._gaps:
            self._count_gap(stream_id)

    def _handle_crypto_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        if not self._is_client:
            start = buf.tell()
            offset, size = buf.pull_uint_var(), buf.pull_uint_var()
            if offset + size > QUIC_CRYPTO_BYTES_MAX:
                raise QuicConnectionError(
                    error_code=QuicErrorCode.CRYPTO_BUFFER_EXCEEDED,
                    frame_type=frame_type,
                    reason_phrase="too much in the handshake",
                )
            receiver = self._crypto_streams[context.epoch].receiver
            if offset > receiver._buffer_start and len(receiver._ranges) >= QUIC_GAPS_MAX:
                buf.pull_bytes(size)
                self._dropping = True
                return
            buf.seek(start)
        super()._handle_crypto_frame(context, frame_type, buf)

    def _handle_ack_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        start = buf.tell()
        if buf.pull_uint_var() >= self._packet_number:
            raise QuicConnectionError(
                error_code=QuicErrorCode.PROTOCOL_VIOLATION,
                frame_type=frame_type,
                reason_phrase="acknowledgement of a packet that was never sent",
            )
        buf.seek(start)
        super()._handle_ack_frame(context, frame_type, buf)

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        buf = Buffer(data=data)
        seen: set[int] = set()
        with contextlib.suppress(ValueError):  # cut off: which is told next
            while not buf.eof():
                parameter = buf.pull_uint_var()
                if parameter in seen:
                    raise QuicConnectionError(
                        error_code=QuicErrorCode.TRANSPORT_PARAMETER_ERROR,
                        frame_type=QuicFrameType.CRYPTO,
                        reason_phrase="a transport parameter comes twice",
                    )
                seen.add(parameter)
                buf.pull_bytes(buf.pull_uint_var())
        super()._parse_transport_parameters(data, from_session_ticket)

    def _handle_max_stream_data_frame(self, context: QuicReceiveContext, frame_type: int, buf: Any) -> None:
        start = buf.tell()
        self.windows_opened.add(buf.pull_uint_var())
        buf.seek(start)
        super()._handle_max_stream_data_frame(context, frame_type, buf)

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: Stream) -> None:
        end = stream.max_stream_data_local
        if stream.max_stream_data_local_sent == end or stream.receiver.is_finished:
            return
        buf = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        assert stream.stream_id is not None
        buf.push_uint_var(stream.stream_id)
        buf.push_uint_var(end)
        stream.max_stream_data_local_sent = end

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        for limit in (self._local_max_data, self._local_max_streams_bidi):
            if limit.value == limit.sent:
                continue
            if limit is self._local_max_streams_bidi and limit.sent - limit.used >= limit.value - limit.sent:
                continue  # the peer has more streams left than this would add: not worth a frame yet
            buf = builder.start_frame(
                limit.frame_type,
                capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
                handler=self._on_connection_limit_delivery,
                handler_args=(limit,),
            )
            buf.push_uint_var(limit.value)
            limit.sent = limit.value


class _Pacer(QuicPacketPacer):
    """Lets go at once what the rate allows until the event loop's timer can come back."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        super().update_rate(congestion_window, smoothed_rtt)
        self.bucket_max = max(self.bucket_max, QUIC_PACING_S)


def _nothing(*_: object) -> None:
    """Is called back for a connection that is gone."""
