"""One QUIC connection without I/O: aioquic's, with bounds that its public interface does not offer.

This is the only module that touches what aioquic does not document (version 1.7; its tests look at every name used):

- *receive windows*: aioquic doubles them as data arrives, whether or not anybody has taken it. Here a window moves
  only when its owner says so, so it is a promise of memory;
- *streams at once*: aioquic offers 128;
- *pacing*: aioquic lets 16 packets go and then asks for a timer of a few microseconds, which event loops do not have;
- *acknowledgements*: aioquic sends them after 1 ms, mostly in a packet of their own; here they wait for the answers
  that go out after a commit round, unless many packets have come;
- *what was sent, what was acknowledged*: needed to keep its send buffers short, and to know that a peer has read.
"""

from __future__ import annotations

from typing import Any

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    QuicConnection,
    QuicReceiveContext,
)
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketPacer, QuicPacketSpace
from aioquic.quic.stream import QuicStream as Stream
from cryptography import x509

from netserver.limits import QUIC_ACK_PACKETS, QUIC_ACK_S, QUIC_BULK_ACK_S, QUIC_PACING_S

__all__ = ["BoundedQuic", "QuicConfiguration"]

GONE = -1


class BoundedQuic(QuicConnection):
    """A connection whose windows move by ``open_window`` and ``open_stream_window`` only.

    Args:
        configuration: ``max_data`` and ``max_stream_data`` are the first windows.
        streams_max: bidirectional streams that the peer may have open at once; unidirectional ones are refused.

    Attributes:
        windows_opened: streams on which the peer has allowed more data since the set was last cleared.
    """

    def __init__(self, configuration: QuicConfiguration, streams_max: int, **arguments: Any) -> None:
        super().__init__(configuration=configuration, **arguments)
        self._loss._pacer = _Pacer(max_datagram_size=self._max_datagram_size)
        self._ack_delay = QUIC_ACK_S
        self._ack_hurries = False
        self._acked_packet = -1
        self.windows_opened: set[int] = set()
        self._handed_bytes = 0
        self._local_max_streams_bidi.value = self._local_max_streams_bidi.sent = streams_max
        self._local_max_streams_uni.value = self._local_max_streams_uni.sent = 0

    @property
    def peer_certificate(self) -> x509.Certificate | None:
        """What the server has shown, once the handshake is complete."""
        return self.tls._peer_certificate

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
        at = space.ack_at
        if at is not None and at > now:
            if self.unsent_bytes > 0:  # goes along with data
                space.ack_at = now
            elif not self._ack_hurries and space.largest_received_packet - self._acked_packet >= QUIC_ACK_PACKETS:
                self._ack_hurries = True
                space.ack_at = at - (QUIC_ACK_S - QUIC_BULK_ACK_S)
        found = super().datagrams_to_send(now)
        if space.ack_at is None:
            self._ack_hurries = False
            self._acked_packet = space.largest_received_packet
        return found

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
