"""Protocol version 2: what differs from version 1 (``codec``). HELLO chooses the version of a connection.

Messages are pushed instead of polled, and three payloads have optional fields::

    PUBLISH    u8 flags | u32 time to live in ms, if bit 7 | u16 length, key, if bit 6 | u16 length, topic | body
    SUBSCRIBE  u16 length, topic | u8 flags | u16 length, group, if bit 7 | u64 offset, if bit 6
    DELIVER    u8 QoS | u64 tag | u16 length, topic | body          type 0x0A, server to client; correlation id = tag

Bits 0 and 1 of the flags are the QoS. A tag is 0 with QoS 0. The topic of a SUBSCRIBE may be a pattern of tokens
between dots: ``*`` stands for one token, ``>`` at the end for one or more. NACK 503 says of a publish that it may be
stored when it is tried again later, 500 that somebody has to repair something first.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from netserver.blipmq.codec import Buffer, CodecError, FrameType, PayloadError, frame, is_utf8
from netserver.blipmq.limits import TOPIC_BYTES_MAX

VERSION = 2
DELIVER = 0x0A
BUSY = 503

DELIVER_HEAD_BYTES = 20
"""Of a DELIVER's length word: type, correlation id, QoS, tag, topic length."""

_QOS = 0x03
_BIT_6 = 0x40
_BIT_7 = 0x80
_KNOWN = _QOS | _BIT_6 | _BIT_7
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_DELIVER_HEAD = struct.Struct(">BQH")


class Publish(NamedTuple):
    """Payload of a PUBLISH; ``ttl_ms`` None: none of its own, ``key`` empty: none."""

    qos: int
    topic: bytes
    body: bytes
    ttl_ms: int | None
    key: bytes


class Subscribe(NamedTuple):
    """Payload of a SUBSCRIBE; ``group`` empty: none, ``offset`` None: from now on, 0: from the earliest message."""

    topic: bytes
    qos: int
    group: bytes
    offset: int | None


class Deliver(NamedTuple):
    """Payload of a DELIVER."""

    qos: int
    tag: int
    topic: bytes
    body: bytes


class _Cut:
    """Takes fields off the front of a payload."""

    def __init__(self, payload: Buffer, frame_name: str) -> None:
        self._payload = payload
        self._at = 0
        self._text = f"invalid {frame_name} payload"

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._payload):
            raise PayloadError(self._text)
        found = bytes(self._payload[self._at : end])
        self._at = end
        return found

    def number(self, how: struct.Struct) -> int:
        value: int = how.unpack(self.take(how.size))[0]
        return value

    def text(self) -> bytes:
        return self.take(self.number(_U16))

    def rest(self) -> bytes:
        return bytes(self._payload[self._at :])

    def topic(self) -> bytes:
        found = self.text()
        if not is_utf8(found):
            raise PayloadError(self._text)
        return found


def parse_publish(payload: Buffer) -> Publish:
    """A PUBLISH.

    Raises:
        PayloadError: with the NACK to send
    """
    cut = _Cut(payload, "PUBLISH")
    flags = cut.take(1)[0]
    ttl_ms = cut.number(_U32) if flags & _BIT_7 else None
    key = cut.text() if flags & _BIT_6 else b""
    topic = cut.topic()
    if not topic:
        raise PayloadError("empty topic")
    if flags & _QOS > 1 or flags & ~_KNOWN:
        raise PayloadError("invalid QoS value")
    if flags & _BIT_6 and not key:
        raise PayloadError("empty partition key")
    return Publish(flags & _QOS, topic, cut.rest(), ttl_ms, key)


def parse_subscribe(payload: Buffer) -> Subscribe:
    """A SUBSCRIBE; bytes after its fields are ignored.

    Raises:
        PayloadError: with the NACK to send
    """
    cut = _Cut(payload, "SUBSCRIBE")
    topic = cut.topic()
    flags = cut.take(1)[0]
    group = cut.text() if flags & _BIT_7 else b""
    offset = cut.number(_U64) if flags & _BIT_6 else None
    if not topic:
        raise PayloadError("empty topic")
    if flags & _QOS > 1 or flags & ~_KNOWN:
        raise PayloadError("invalid QoS value")
    if flags & _BIT_7 and not group:
        raise PayloadError("empty consumer group name")
    return Subscribe(topic, flags & _QOS, group, offset)


def parse_deliver(payload: Buffer) -> Deliver:
    """A DELIVER.

    Raises:
        PayloadError: not one
    """
    if len(payload) < _DELIVER_HEAD.size:
        raise PayloadError("invalid DELIVER payload")
    qos, tag, topic_bytes = _DELIVER_HEAD.unpack_from(payload)
    body = _DELIVER_HEAD.size + topic_bytes
    if body > len(payload) or qos > 1:
        raise PayloadError("invalid DELIVER payload")
    return Deliver(qos, tag, bytes(payload[_DELIVER_HEAD.size : body]), bytes(payload[body:]))


def publish(cid: int, qos: int, topic: bytes, body: bytes, ttl_ms: int | None = None, key: bytes = b"") -> bytes:
    """PUBLISH."""
    flags = qos | (_BIT_7 if ttl_ms is not None else 0) | (_BIT_6 if key else 0)
    head = bytes((flags,))
    if ttl_ms is not None:
        head += _U32.pack(ttl_ms)
    if key:
        head += _counted(key)
    return frame(FrameType.PUBLISH, cid, head + _counted(topic) + body)


def subscribe(cid: int, topic: bytes, qos: int, group: bytes = b"", offset: int | None = None) -> bytes:
    """SUBSCRIBE."""
    flags = qos | (_BIT_7 if group else 0) | (_BIT_6 if offset is not None else 0)
    payload = _counted(topic) + bytes((flags,))
    if group:
        payload += _counted(group)
    if offset is not None:
        payload += _U64.pack(offset)
    return frame(FrameType.SUBSCRIBE, cid, payload)


def deliver(tag: int, qos: int, topic: bytes, body: bytes) -> bytes:
    """DELIVER; its correlation id repeats the tag."""
    return frame(DELIVER, tag, _DELIVER_HEAD.pack(qos, tag, len(topic)) + topic + body)


def _counted(text: bytes) -> bytes:
    """A field with its length in front.

    Raises:
        CodecError: its length is not a u16
    """
    if len(text) > TOPIC_BYTES_MAX:
        raise CodecError(f"a topic, key or group has at most {TOPIC_BYTES_MAX} bytes")
    return _U16.pack(len(text)) + text
