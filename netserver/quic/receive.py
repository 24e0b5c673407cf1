"""The usual packet of a busy connection, taken in a few steps.

aioquic looks at each datagram as if it could be anything: a long header, another path, another connection id, other
keys. Nearly all of them are the next packet on the path in use, with the next bytes of one stream, and the work for
each is what bounds a connection's speed. Here that one is recognized, and everything else is left to aioquic, before
anything has been changed. What comes out is the same (tests/unit/netserver/quic/test_quic_receive.py compares).

Source: RFC 9000 sections 17.3 (short header), 19.8 (STREAM), 13.2 (acknowledging); RFC 9001 section 5.4 (header
protection).
"""

from __future__ import annotations

from typing import Any, Final

from aioquic.quic import events

from netserver.quic.inside import (
    MAX_ACK_RANGES,
    Buffer,
    BufferReadError,
    CryptoContext,
    CryptoError,
    QuicConnection,
    QuicConnectionError,
    QuicConnectionState,
    QuicPacketSpace,
    QuicReceiveContext,
    decode_packet_number,
    tls,
)

FORM_BITS: Final = 0xC0
SHORT_HEADER: Final = 0x40
PROTECTED_BITS: Final = 0x1F
RESERVED_BITS: Final = 0x18
KEY_PHASE_SHIFT: Final = 2
SAMPLE_AT: Final = 4  # after the beginning of the packet number
SAMPLE_BYTES: Final = 16
STREAM: Final = 0x08
STREAM_HAS_OFFSET, STREAM_HAS_LENGTH, STREAM_IS_LAST = 4, 2, 1
"""Bits in the type of a STREAM frame."""
STREAM_USUAL: Final = ~(STREAM_HAS_OFFSET | STREAM_HAS_LENGTH)


class QuickReceiving(QuicConnection):
    """A connection that takes usual packets the short way.

    Attributes:
        is_quiet: since it was last set nothing has come but the next bytes of streams, so there is nothing to send but
            an acknowledgement.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.is_quiet = False
        self._usual: tuple[QuicPacketSpace, CryptoContext] | None = None
        self._heard_at = -1.0

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        """As aioquic's."""
        usual = self._usual
        path = self._network_paths[0] if usual is not None else None
        if (
            usual is None
            or path is None
            or self._state is not QuicConnectionState.CONNECTED
            or data[0] & FORM_BITS != SHORT_HEADER
            or not data.startswith(self.host_cid, 1)
            or path.addr != addr
            or not path.is_validated
            or not self._take(usual[0], usual[1], data, now)
        ):
            self.is_quiet = False
            super().receive_datagram(data, addr, now)
            if usual is None and data[0] & FORM_BITS == SHORT_HEADER:
                self._look_whether_usual()

    def handle_timer(self, now: float) -> None:
        """As aioquic's."""
        self.is_quiet = False
        super().handle_timer(now)

    def _look_whether_usual(self) -> None:
        """Whether from now on packets are what this module takes for granted."""
        if self._handshake_confirmed and self._network_paths[0].is_validated and self._quic_logger is None:
            crypto = self._cryptos[tls.Epoch.ONE_RTT].recv
            if crypto.is_valid() and not self._cryptos[tls.Epoch.ZERO_RTT].recv.is_valid():
                self._usual = self._spaces[tls.Epoch.ONE_RTT], crypto

    def _take(self, space: QuicPacketSpace, crypto: CryptoContext, data: bytes, now: float) -> bool:
        """Take a packet with a short header, our id, the usual path; False: it is not usual, nothing has happened."""
        start = 1 + len(self.host_cid)
        hp, aead = crypto.hp, crypto.aead
        sample = data[start + SAMPLE_AT : start + SAMPLE_AT + SAMPLE_BYTES]
        if hp is None or aead is None or len(sample) < SAMPLE_BYTES:
            return False
        mask = hp._mask(sample)
        first = data[0] ^ (mask[0] & PROTECTED_BITS)
        if first & RESERVED_BITS or first >> KEY_PHASE_SHIFT & 1 != crypto.key_phase:
            return False
        size = (first & 3) + 1
        end = start + size
        shown = int.from_bytes(data[start:end], "big") ^ int.from_bytes(mask[1 : 1 + size], "big")
        number = decode_packet_number(shown, size * 8, space.expected_packet_number)
        try:
            header = b"%c%b%b" % (first, data[1:start], shown.to_bytes(size, "big"))
            plain = aead.decrypt(data[end:], header, number)
        except CryptoError:
            return True  # forged: as if it had never come
        if number in space.received_packets:
            return True
        if number >= space.expected_packet_number:
            space.expected_packet_number = number + 1
        if number > self._spin_highest_pn:
            self._spin_bit = bool(first & 0x20) is not self._is_client
            self._spin_highest_pn = number
        is_eliciting = self._next_of_stream(plain) or self._any_frames(plain, now)
        if self._close_pending or self._state is not QuicConnectionState.CONNECTED:
            return True
        self._note(space, number, is_eliciting, now)
        return True

    def _next_of_stream(self, plain: bytes) -> bool:
        """Take the payload if it is the next bytes of a stream and nothing else."""
        buf = Buffer(data=plain)
        try:
            kind = buf.pull_uint_var()
            if kind & STREAM_USUAL != STREAM:
                return False
            stream_id = buf.pull_uint_var()
            offset = buf.pull_uint_var() if kind & STREAM_HAS_OFFSET else 0
            size = buf.pull_uint_var() if kind & STREAM_HAS_LENGTH else -1
        except BufferReadError:
            return False
        stream = self._streams.get(stream_id)
        at = buf.tell()
        if stream is None or size not in (-1, len(plain) - at):
            return False
        receiver = stream.receiver
        data = plain[at:]
        size = len(data)
        if (
            offset != receiver.highest_offset
            or offset != receiver._buffer_start
            or receiver._final_size is not None
            or not size
            or offset + size > stream.max_stream_data_local
            or self._local_max_data.used + size > self._local_max_data.value
        ):
            return False
        receiver._buffer_start = receiver.highest_offset = offset + size
        self._local_max_data.used += size
        self._events.append(events.StreamDataReceived(data=data, end_stream=False, stream_id=stream_id))
        return True

    def _any_frames(self, plain: bytes, now: float) -> bool:
        """Have aioquic take the payload; whether it is to be acknowledged."""
        self.is_quiet = False
        context = QuicReceiveContext(
            epoch=tls.Epoch.ONE_RTT,
            host_cid=self.host_cid,
            network_path=self._network_paths[0],
            quic_logger_frames=None,
            time=now,
            version=None,
        )
        try:
            return self._payload_received(context, plain)[0]
        except QuicConnectionError as error:
            self._logger.warning(error)
            self.close(error.error_code, error.frame_type, error.reason_phrase)
            return False

    def _note(self, space: QuicPacketSpace, number: int, is_eliciting: bool, now: float) -> None:
        """The packet was taken: it will be acknowledged, and the connection is alive."""
        if now != self._heard_at:
            self._heard_at = now
            self._close_at = now + self._idle_timeout()
        self._ack_eliciting_sent_since_receipt = False
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        queue = space.ack_queue
        queue.add(number)
        space.received_packets.add(number)
        if len(queue) > MAX_ACK_RANGES:
            queue.shift()
        if is_eliciting and space.ack_at is None:
            space.ack_at = now + self._ack_delay
