"""All that is used of aioquic beyond its documented interface, and what each thing is.

aioquic's documented interface is its configuration, its events, and `QuicConnection` with some ten methods. The
bounds and the speed that a server needs are not to be had with that (see `netserver.quic.bounded`,
`netserver.quic.receive`), so both are subclasses that reach further in. Only these two do, and only to what is named
here; the other modules import the rest from here. All of it is the same from version 1.7.0 to the last 1.7; the next
minor version may change any of it, so it is refused until somebody has compared
(tests/unit/netserver/quic/test_inside.py says what to look at).

What is missing is told when this is imported, not at the first packet that meets it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final, NamedTuple

from netserver.errors import ServerError

VERSIONS: Final = (1, 7), (1, 8)
"""From this one on, and below that one; pyproject.toml says the same."""


class UnsupportedAioquic(ServerError, ImportError):
    """The aioquic that is installed is not one whose inside is known."""


def _unsupported(reason: object) -> UnsupportedAioquic:
    (first, second), (_, end) = VERSIONS
    return UnsupportedAioquic(
        f"aioquic {first}.{second} is needed, and {reason}: pip install 'aioquic>={first}.{second},<{first}.{end}'"
    )


try:
    import aioquic
    from aioquic import tls
    from aioquic._buffer import Buffer, BufferReadError
    from aioquic._crypto import CryptoError, HeaderProtection
    from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
    from aioquic.quic.connection import (
        CONNECTION_LIMIT_FRAME_CAPACITY,
        MAX_STREAM_DATA_FRAME_CAPACITY,
        QuicConnection,
        QuicConnectionError,
        QuicConnectionId,
        QuicConnectionState,
        QuicNetworkPath,
        QuicReceiveContext,
    )
    from aioquic.quic.crypto import CryptoContext
    from aioquic.quic.packet import (
        QuicErrorCode,
        QuicFrameType,
        QuicHeader,
        QuicPacketType,
        decode_packet_number,
        encode_quic_retry,
        encode_quic_version_negotiation,
        pull_quic_header,
    )
    from aioquic.quic.packet_builder import QuicPacketBuilder
    from aioquic.quic.recovery import MAX_ACK_RANGES, QuicPacketPacer, QuicPacketSpace
    from aioquic.quic.retry import QuicRetryTokenHandler
    from aioquic.quic.stream import QuicStream, QuicStreamReceiver, QuicStreamSender
except ImportError as error:
    if error.name == "aioquic" and isinstance(error, ModuleNotFoundError):
        raise
    raise _unsupported(f"{aioquic.__version__} is installed ({error.msg})") from None

__all__ = [
    "CONNECTION_LIMIT_FRAME_CAPACITY",
    "MAX_ACK_RANGES",
    "MAX_STREAM_DATA_FRAME_CAPACITY",
    "SMALLEST_MAX_DATAGRAM_SIZE",
    "Buffer",
    "BufferReadError",
    "CryptoContext",
    "CryptoError",
    "QuicConfiguration",
    "QuicConnection",
    "QuicConnectionError",
    "QuicConnectionState",
    "QuicErrorCode",
    "QuicFrameType",
    "QuicHeader",
    "QuicPacketBuilder",
    "QuicPacketPacer",
    "QuicPacketSpace",
    "QuicPacketType",
    "QuicReceiveContext",
    "QuicRetryTokenHandler",
    "QuicStream",
    "decode_packet_number",
    "encode_quic_retry",
    "encode_quic_version_negotiation",
    "pull_quic_header",
    "tls",
]

OVERRIDDEN: Final = {
    "_handle_ack_frame": ("self", "context", "frame_type", "buf"),
    "_handle_crypto_frame": ("self", "context", "frame_type", "buf"),
    "_handle_max_stream_data_frame": ("self", "context", "frame_type", "buf"),
    "_handle_reset_stream_frame": ("self", "context", "frame_type", "buf"),
    "_handle_stream_frame": ("self", "context", "frame_type", "buf"),
    "_initialize": ("self", "peer_cid"),
    "_parse_transport_parameters": ("self", "data", "from_session_ticket"),
    "_payload_received": ("self", "context", "plain", "crypto_frame_required"),
    "_replenish_connection_ids": ("self",),
    "_write_connection_limits": ("self", "builder", "space"),
    "_write_stream_limits": ("self", "builder", "space", "stream"),
}
"""Methods of `QuicConnection` that it calls itself, with the parameters that ours have: the handlers of frames, each
after the type of the frame was read and before the rest; what makes the TLS context, and the parameters of the
handshake; a decrypted payload; more connection ids for the peer; frames that open windows, written while a packet is
built."""


class Used(NamedTuple):
    """Attributes of one kind of object."""

    example: Callable[[], object]
    names: dict[str, str]
    """Each with what it is."""


INSIDE: Final = {
    "QuicConnection": Used(
        lambda: _connection(),
        {
            "_QuicConnection__frame_handlers": "type of frame -> method",
            "_ack_delay": "seconds from the first packet that wants to be acknowledged to the acknowledgement",
            "_ack_eliciting_sent_since_receipt": "whether such a packet has left since one has come (idle timeout)",
            "_close_at": "when the connection ends if nothing comes",
            "_close_event": "why the connection ends",
            "_close_pending": "a CLOSE frame is to be sent",
            "_crypto_streams": "epoch -> stream of the handshake's bytes",
            "_cryptos": "epoch -> keys of both directions, each a `CryptoContext`",
            "_cryptos_initial": "version -> the same of the first packets",
            "_events": "what `next_event` hands out",
            "_handshake_confirmed": "the handshake is over for both sides",
            "_host_cids": "ids by which the peer addresses this connection",
            "_idle_timeout": "seconds, as both sides agreed",
            "_is_client": "this side has begun the connection",
            "_local_max_data": "`Limit` of bytes that the peer may send in all",
            "_local_max_streams_bidi": "`Limit` of streams that the peer may open",
            "_local_max_streams_uni": "the same of those in one direction",
            "_logger": "with the connection's id in front",
            "_loss": "loss detection and congestion control",
            "_max_datagram_size": "bytes",
            "_network_paths": "addresses of the peer, the one in use first",
            "_on_connection_limit_delivery": "handler: what a frame about a `Limit` said has (not) arrived",
            "_on_max_stream_data_delivery": "the same of a stream's window",
            "_packet_number": "of the next packet that is sent",
            "_peer_cid": "id by which this side addresses the peer, with its token for stateless resets",
            "_quic_logger": "None: nobody wants a trace",
            "_remote_max_data_used": "bytes that were sent on all streams",
            "_spaces": "epoch -> packet numbers, acknowledgements",
            "_spin_bit": "for measurement on the way (RFC 9000, 17.4)",
            "_spin_highest_pn": "number of the packet that it was taken from",
            "_state": "`QuicConnectionState`",
            "_streams": "id -> stream, until both its sides have ended",
        },
    ),
    "Limit": Used(
        lambda: _connection()._local_max_data,
        {
            "frame_type": "of the frame that tells it",
            "sent": "what the peer was told",
            "used": "how much of it is used up",
            "value": "what it is",
        },
    ),
    "QuicPacketRecovery": Used(
        lambda: _connection()._loss, {"_pacer": "how fast packets may leave", "_send_probe": "called when one is due"}
    ),
    "QuicPacketPacer": Used(
        lambda: QuicPacketPacer(max_datagram_size=1200),
        {"bucket_max": "seconds of sending that may be made up for at once", "update_rate": "sets it"},
    ),
    "QuicConnectionId": Used(
        lambda: QuicConnectionId(cid=b"", sequence_number=0),
        {"cid": "the id", "stateless_reset_token": "that the peer is told with it"},
    ),
    "QuicNetworkPath": Used(
        lambda: QuicNetworkPath(("127.0.0.1", 1)),
        {"addr": "of the peer", "is_validated": "something has come from there that only the peer can know"},
    ),
    "QuicPacketSpace": Used(
        lambda: QuicPacketSpace(),
        {
            "ack_at": "when the acknowledgement is due, or None",
            "ack_queue": "numbers to be acknowledged",
            "expected_packet_number": "one above the highest that has come",
            "largest_received_packet": "the highest that is in `ack_queue`",
            "largest_received_time": "when it came",
            "received_packets": "numbers that have come: what is in it is not taken again",
            "sent_packets": "number -> packet that is not acknowledged; `in_flight`: it carries more than that itself",
        },
    ),
    "CryptoContext": Used(
        lambda: CryptoContext(),
        {
            "_setup_cb": "called when it gets keys",
            "_teardown_cb": "called when it loses them",
            "aead": "decrypts and encrypts payloads",
            "hp": "masks packet numbers",
            "is_valid": "there are keys",
            "key_phase": "of the keys in use (RFC 9001, 6)",
        },
    ),
    "HeaderProtection": Used(lambda: HeaderProtection, {"_mask": "the mask that belongs to a sample of a packet"}),
    "tls.Context": Used(
        lambda: tls.Context(is_client=True),
        {
            "_peer_certificate": "what the other side has shown; of a server's it is verified whose it is",
            "_peer_certificate_chain": "what it has shown beside it",
            "_request_client_certificate": "a server asks for one, and checks that the client has its key",
            "alpn_cb": "called with the protocol that was agreed on",
            "update_traffic_key_cb": "called with new keys",
        },
    ),
    "QuicStream": Used(
        lambda: QuicStream(0),
        {
            "max_stream_data_local": "end of what the peer may send",
            "max_stream_data_local_sent": "what of it the peer was told",
            "max_stream_data_remote": "end of what may be sent",
            "receiver": "its one half",
            "sender": "its other half",
            "stream_id": "number",
        },
    ),
    "QuicStreamSender": Used(
        lambda: QuicStreamSender(0, True),
        {
            "_buffer_fin": "where the stream ends, or None",
            "_buffer_start": "everything before it was acknowledged",
            "_buffer_stop": "end of what was given to `write`",
            "_reset_error_code": "the stream was given up with it, or None",
            "highest_offset": "end of what was sent",
            "is_finished": "the peer has everything, or knows that it was given up",
        },
    ),
    "QuicStreamReceiver": Used(
        lambda: QuicStreamReceiver(0, True),
        {
            "_buffer": "what has come from `_buffer_start` on, gaps included",
            "_buffer_start": "everything before it was handed out",
            "_final_size": "where the stream ends, or None",
            "_ranges": "which parts of `_buffer` have come",
            "highest_offset": "highest end of data that was seen",
            "is_finished": "everything was handed out, or the peer has given it up",
        },
    ),
}


def _connection() -> QuicConnection:
    return QuicConnection(configuration=QuicConfiguration(is_client=True))


def check(version: str = aioquic.__version__) -> None:
    """Compares what is installed with what is written here. Raises UnsupportedAioquic."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not VERSIONS[0] <= numbers < VERSIONS[1]:
        raise _unsupported(f"{version} is installed")
    for owner, used in INSIDE.items():
        example = used.example()
        missing = [name for name in used.names if not hasattr(example, name)]
        if missing:
            raise _unsupported(f"{owner} of {version} has no {', '.join(missing)}")
    for name, ours in OVERRIDDEN.items():
        theirs = getattr(QuicConnection, name, None)
        if theirs is None or tuple(inspect.signature(theirs).parameters) != ours:
            raise _unsupported(f"QuicConnection.{name} of {version} has not the parameters {', '.join(ours[1:])}")


check()
