"""The BlipMQ wire protocol without I/O: bytes in, frames out, and back.

A frame, all integers big-endian::

    u32 length | u8 type | u64 correlation id | payload          length = 9 + payload size, 9 .. 16 MiB

Payloads::

    HELLO      u16 version
    AUTH       u16 key length | key (UTF-8)
    PUBLISH    u8 QoS | u16 topic length | topic (UTF-8) | body
    SUBSCRIBE  u16 topic length | topic (UTF-8) | u8 QoS         bytes after it are ignored
    ACK        u64 subscription id                               0 answers HELLO and AUTH
    NACK       u16 code | u16 text length | text (UTF-8)
    PING, PONG (nothing)
    POLL       u64 subscription id

A bad length or type breaks the framing (:class:`FramingError`: the connection ends without a NACK); anything wrong
inside a payload is a :class:`PayloadError`, which carries the NACK to send. The texts and the order of the checks are
part of the protocol: clients may compare them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from netserver.blipmq.limits import FRAME_LENGTH_MAX, FRAME_LENGTH_MIN, HEADER_BYTES, LENGTH_BYTES, TOPIC_BYTES_MAX

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">IBQ")
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
_PUBLISH_HEAD = struct.Struct(">BH")
_NACK_HEAD = struct.Struct(">HH")

VERSION = 1

BAD_REQUEST = 400
UNAUTHORIZED = 401
NOT_FOUND = 404
VERSION_MISMATCH = 426
SERVER_ERROR = 500

UNKNOWN_SUBSCRIPTION = "unknown subscription"
"""Text of the NACK to an ACK of tag 0, if there is no such subscription. The original has one text for all cases."""


class FrameType(IntEnum):
    """The type byte of a frame."""

    HELLO = 0x01
    AUTH = 0x02
    PUBLISH = 0x03
    SUBSCRIBE = 0x04
    ACK = 0x05
    NACK = 0x06
    PING = 0x07
    PONG = 0x08
    POLL = 0x09


class CodecError(ValueError):
    """Base of what the codec raises."""


class FramingError(CodecError):
    """The byte stream cannot be followed any further: the connection has to be closed, without a NACK.

    Attributes:
        kind: a short fixed word for metrics.
    """

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class PayloadError(CodecError):
    """A payload is not what its frame type asks for; the connection goes on.

    Attributes:
        code, text: of the NACK that answers it.
    """

    def __init__(self, text: str, code: int = BAD_REQUEST) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Frame(NamedTuple):
    """One frame as it came: type, correlation id and payload (a copy)."""

    type: int
    cid: int
    payload: bytes


class Publish(NamedTuple):
    """Payload of PUBLISH, in both directions."""

    qos: int
    topic: bytes
    body: bytes


class Subscribe(NamedTuple):
    """Payload of SUBSCRIBE."""

    topic: bytes
    qos: int


class Nack(NamedTuple):
    """Payload of NACK."""

    code: int
    text: str


def check_length(length: int, length_max: int = FRAME_LENGTH_MAX) -> None:
    """Check a length word as soon as it is there.

    Raises:
        FramingError: below 9 or above ``length_max``
    """
    if length < FRAME_LENGTH_MIN:
        raise FramingError(f"frame length {length} is below {FRAME_LENGTH_MIN}", "frame_size")
    if length > length_max:
        raise FramingError(f"frame length {length} is above {length_max}", "frame_size")


def check_type(frame_type: int) -> None:
    """Check a type byte.

    Raises:
        FramingError: not one of the protocol's types
    """
    if not FrameType.HELLO <= frame_type <= FrameType.POLL:
        raise FramingError(f"unknown frame type 0x{frame_type:02x}", "frame_type")


class Decoder:
    """Frames from a byte stream that may be cut anywhere.

    Args:
        length_max: largest length word to accept
    """

    def __init__(self, length_max: int = FRAME_LENGTH_MAX) -> None:
        self.length_max = length_max
        self._buffer = bytearray()
        self._position = 0

    def receive(self, data: Buffer) -> None:
        """Add bytes from the peer."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more bytes are there.

        Raises:
            FramingError: bad length or type; the same again at each further call
        """
        start = self._position
        available = len(self._buffer) - start
        if available < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[start : start + LENGTH_BYTES], "big")
        check_length(length, self.length_max)
        if available > LENGTH_BYTES:
            check_type(self._buffer[start + LENGTH_BYTES])
        end = start + LENGTH_BYTES + length
        if available < LENGTH_BYTES + length:
            return None
        _, frame_type, cid = _HEADER.unpack_from(self._buffer, start)
        payload = bytes(self._buffer[start + HEADER_BYTES : end])
        self._position = end
        return Frame(frame_type, cid, payload)

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer) - self._position


# --- building frames


def frame(frame_type: int, cid: int, payload: bytes = b"") -> bytes:
    """Any frame.

    Raises:
        CodecError: larger than a frame can be
    """
    length = FRAME_LENGTH_MIN + len(payload)
    if length > FRAME_LENGTH_MAX:
        raise CodecError(f"a payload of {len(payload)} bytes does not fit into a frame")
    return _HEADER.pack(length, frame_type, cid) + payload


def hello(cid: int, version: int = VERSION) -> bytes:
    """HELLO with the protocol version that the client speaks."""
    return frame(FrameType.HELLO, cid, _U16.pack(version))


def auth(cid: int, key: str) -> bytes:
    """AUTH with an API key of at most 65,535 bytes."""
    raw = key.encode()
    if len(raw) > 0xFFFF:
        raise CodecError("an API key has at most 65535 bytes")
    return frame(FrameType.AUTH, cid, _U16.pack(len(raw)) + raw)


def publish(cid: int, qos: int, topic: bytes, body: bytes) -> bytes:
    """PUBLISH: a message to the server, or a delivery from it."""
    if len(topic) > TOPIC_BYTES_MAX:
        raise CodecError(f"a topic has at most {TOPIC_BYTES_MAX} bytes")
    return frame(FrameType.PUBLISH, cid, _PUBLISH_HEAD.pack(qos, len(topic)) + topic + body)


def subscribe(cid: int, topic: bytes, qos: int) -> bytes:
    """SUBSCRIBE to a topic from now on."""
    if len(topic) > TOPIC_BYTES_MAX:
        raise CodecError(f"a topic has at most {TOPIC_BYTES_MAX} bytes")
    return frame(FrameType.SUBSCRIBE, cid, _U16.pack(len(topic)) + topic + bytes((qos,)))


def ack(cid: int, subscription_id: int = 0) -> bytes:
    """ACK: of a handshake step (id 0), of a SUBSCRIBE (its new id), or of a delivery (cid = its tag)."""
    return _HEADER.pack(FRAME_LENGTH_MIN + 8, FrameType.ACK, cid) + _U64.pack(subscription_id)


def nack(cid: int, code: int, text: str) -> bytes:
    """NACK of the frame with this correlation id; a text over 65,535 bytes is cut."""
    raw = text.encode()[:0xFFFF]
    return frame(FrameType.NACK, cid, _NACK_HEAD.pack(code, len(raw)) + raw)


def ping(cid: int) -> bytes:
    """PING."""
    return _HEADER.pack(FRAME_LENGTH_MIN, FrameType.PING, cid)


def pong(cid: int) -> bytes:
    """PONG with the PING's correlation id."""
    return _HEADER.pack(FRAME_LENGTH_MIN, FrameType.PONG, cid)


def poll(cid: int, subscription_id: int) -> bytes:
    """POLL: ask for the next message of a subscription."""
    return _HEADER.pack(FRAME_LENGTH_MIN + 8, FrameType.POLL, cid) + _U64.pack(subscription_id)


# --- reading payloads


def is_utf8(raw: Buffer) -> bool:
    """Whether these bytes are well-formed UTF-8."""
    try:
        str(raw, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def parse_hello(payload: Buffer) -> int:
    """The version in a HELLO."""
    if len(payload) != 2:
        raise PayloadError("invalid HELLO payload")
    version: int = _U16.unpack(payload)[0]
    return version


def parse_auth(payload: Buffer) -> str:
    """The key in an AUTH."""
    if len(payload) < 2 or _U16.unpack_from(payload)[0] != len(payload) - 2:
        raise PayloadError("invalid AUTH payload")
    try:
        return str(payload[2:], "utf-8")
    except UnicodeDecodeError:
        raise PayloadError("invalid AUTH payload") from None


def parse_publish(payload: Buffer) -> Publish:
    """A PUBLISH; the checks come in the order in which the original makes them."""
    if len(payload) < 3:
        raise PayloadError("invalid PUBLISH payload")
    qos, topic_length = _PUBLISH_HEAD.unpack_from(payload)
    topic = bytes(payload[3 : 3 + topic_length])
    if len(topic) != topic_length or not is_utf8(topic):
        raise PayloadError("invalid PUBLISH payload")
    if not topic:
        raise PayloadError("empty topic")
    if qos > 1:
        raise PayloadError("invalid QoS value")
    return Publish(qos, topic, bytes(payload[3 + topic_length :]))


def parse_subscribe(payload: Buffer) -> Subscribe:
    """A SUBSCRIBE; the checks come in the order in which the original makes them."""
    if len(payload) < 3:
        raise PayloadError("invalid SUBSCRIBE payload")
    topic_length = _U16.unpack_from(payload)[0]
    if len(payload) < 3 + topic_length:
        raise PayloadError("invalid SUBSCRIBE payload")
    topic = bytes(payload[2 : 2 + topic_length])
    if not is_utf8(topic):
        raise PayloadError("invalid SUBSCRIBE payload")
    if not topic:
        raise PayloadError("empty topic")
    qos = payload[2 + topic_length]
    if qos > 1:
        raise PayloadError("invalid QoS value")
    return Subscribe(topic, qos)


def parse_subscription_id(payload: Buffer, frame_name: str) -> int:
    """The subscription id in a client's POLL or ACK (``frame_name`` is the word in the NACK)."""
    if len(payload) != 8:
        raise PayloadError(f"invalid {frame_name} payload")
    subscription_id: int = _U64.unpack(payload)[0]
    if subscription_id == 0:
        raise PayloadError("subscription_id must be non-zero")
    return subscription_id


def parse_ack(payload: Buffer) -> int:
    """The subscription id in a server's ACK; 0 for a handshake step."""
    if len(payload) != 8:
        raise PayloadError("invalid ACK payload")
    subscription_id: int = _U64.unpack(payload)[0]
    return subscription_id


def parse_nack(payload: Buffer) -> Nack:
    """A server's NACK; text that is not UTF-8 is shown with replacement characters."""
    if len(payload) < 4:
        raise PayloadError("invalid NACK payload")
    code, text_length = _NACK_HEAD.unpack_from(payload)
    if len(payload) != 4 + text_length:
        raise PayloadError("invalid NACK payload")
    return Nack(code, str(payload[4:], "utf-8", "replace"))
