"""The Figg protocol: bytes in, messages out, and back; no I/O. Server and client share it.

A frame is a header of 8 bytes and a payload; all numbers are big-endian, ``bytes`` is u32 length + bytes::

    header      type:u16  version:u16 (1 is written, any is taken)  payload size:u32
    1 ATTACH    flags:u16 (0x8000: offset counts; else "latest")  topic:bytes  offset:u64    client -> server
    2 ATTACHED  topic:bytes  offset:u64                                                      server -> client
    3 DETACH    topic:bytes                                                                  client -> server
    4 DETACHED  topic:bytes                                                                  server -> client
    5 PUBLISH   topic:bytes  seq_num:u64  data:bytes                                         client -> server
    6 ACK       seq_num:u64 (and every lower one)                                            server -> client
    7 DATA      topic:bytes  offset:u64 (of the next message)  data:bytes                    server -> client
    8 PING      timestamp:u64                                                                client -> server
    9 PONG      timestamp:u64 (as in the PING)                                               server -> client

Both sides skip types that are unknown or that only they themselves send, and ignore bytes after the last field; a
payload too short for its fields is an error. (Specification: "Protocol" and "Messages"; PING and PONG came later.)
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, Literal, TypeAlias

from netserver.figg.limits import FRAME_BYTES_MAX, HEADER_BYTES, TOPIC_BYTES_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

ATTACH: Final = 1
ATTACHED: Final = 2
DETACH: Final = 3
DETACHED: Final = 4
PUBLISH: Final = 5
ACK: Final = 6
DATA: Final = 7
PING: Final = 8
PONG: Final = 9
TO_SERVER: Final = frozenset({ATTACH, DETACH, PUBLISH, PING})
TO_CLIENT: Final = frozenset({ATTACHED, DETACHED, ACK, DATA, PONG})

FROM_OFFSET: Final = 0x8000
"""ATTACH flag "bit 1", which is the most significant one: the offset field counts."""
VERSION: Final = 1

_HEADER: Final = Struct(">HHI")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_NUMBER_FRAME: Final = Struct(">HHIQ")


class FiggError(ValueError):
    """Bytes are not the protocol's. ``kind`` is a short fixed word for metrics."""

    def __init__(self, text: str, kind: str = "malformed") -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Attach:
    """Subscribe; ``offset`` None: from the latest message on."""

    topic: bytes
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """The subscription begins after ``offset``."""

    topic: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Detach:
    """End the subscription."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Detached:
    """The subscription has ended: no DATA of it follows."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Publish:
    """Store ``data``; the acknowledgement names ``seq_num``."""

    topic: bytes
    seq_num: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything up to ``seq_num`` is stored."""

    seq_num: int


@dataclass(frozen=True, slots=True)
class Data:
    """A message of a subscribed topic; attaching at ``offset`` reads on after it."""

    topic: bytes
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Yes."""

    timestamp: int


Message: TypeAlias = Attach | Attached | Detach | Detached | Publish | Ack | Data | Ping | Pong


# --- reading


def open_frame(data: Buffer, position: int, end: int, frame_bytes_max: int) -> tuple[int, int, int] | None:
    """(type, start, end) of the payload of the frame at ``position``; None when it is not whole yet.

    Raises:
        FiggError: it announces a payload of more than ``frame_bytes_max`` bytes.
    """
    if end - position < HEADER_BYTES:
        return None
    kind, _, size = _HEADER.unpack_from(data, position)
    if size > frame_bytes_max:
        raise FiggError(f"frame of {size} bytes, the limit is {frame_bytes_max}", "frame_size")
    start = position + HEADER_BYTES
    return (kind, start, start + size) if end - start >= size else None


def _field_end(data: Buffer, start: int, end: int, name: str) -> int:
    """Where the ``bytes`` field at ``start`` ends."""
    if end - start < 4:
        raise FiggError(f"payload ends before the length of {name}")
    size: int = _U32.unpack_from(data, start)[0]
    if size > end - start - 4:
        raise FiggError(f"{name} of {size} bytes goes beyond its payload")
    return start + 4 + size


def _number(data: Buffer, start: int, end: int, name: str) -> int:
    if end - start < 8:
        raise FiggError(f"payload ends before {name}")
    value: int = _U64.unpack_from(data, start)[0]
    return value


def _topic(data: Buffer, start: int, end: int) -> tuple[bytes, int]:
    """(topic, position after it)."""
    behind = _field_end(data, start, end, "topic")
    if behind - start - 4 > TOPIC_BYTES_MAX:
        raise FiggError(f"topic of {behind - start - 4} bytes, the limit is {TOPIC_BYTES_MAX}", "topic_size")
    return bytes(data[start + 4 : behind]), behind


def read_attach(data: Buffer, start: int, end: int) -> tuple[bytes, int | None]:
    """(topic, offset; None: latest) of the ATTACH payload ``data[start:end]``. Raises FiggError."""
    if end - start < 2:
        raise FiggError("payload ends before flags")
    flags = _U16.unpack_from(data, start)[0]
    topic, behind = _topic(data, start + 2, end)
    offset = _number(data, behind, end, "offset")
    return topic, offset if flags & FROM_OFFSET else None


def read_topic(data: Buffer, start: int, end: int) -> bytes:
    """Topic of a DETACH or DETACHED payload. Raises FiggError."""
    return _topic(data, start, end)[0]


def read_attached(data: Buffer, start: int, end: int) -> tuple[bytes, int]:
    """(topic, offset) of an ATTACHED payload. Raises FiggError."""
    topic, behind = _topic(data, start, end)
    return topic, _number(data, behind, end, "offset")


def read_record(data: Buffer, start: int, end: int, name: str = "seq_num") -> tuple[bytes, int, int, int]:
    """(topic, seq_num or offset, start and end of the data) of a PUBLISH or DATA payload. Raises FiggError."""
    topic, behind = _topic(data, start, end)
    number = _number(data, behind, end, name)
    data_end = _field_end(data, behind + 8, end, "data")
    return topic, number, behind + 12, data_end


def read_number(data: Buffer, start: int, end: int, name: str = "timestamp") -> int:
    """The one number of an ACK, PING or PONG payload. Raises FiggError."""
    return _number(data, start, end, name)


def read_message(kind: int, data: Buffer, start: int, end: int) -> Message:
    """The message of a known type with the payload ``data[start:end]``.

    Raises:
        FiggError: the payload is too short for its fields.
    """
    if kind in (PUBLISH, DATA):
        topic, number, data_start, data_end = read_record(data, start, end)
        value = bytes(data[data_start:data_end])
        return Publish(topic, number, value) if kind == PUBLISH else Data(topic, number, value)
    if kind == ATTACH:
        return Attach(*read_attach(data, start, end))
    if kind == ATTACHED:
        return Attached(*read_attached(data, start, end))
    if kind in (DETACH, DETACHED):
        topic = read_topic(data, start, end)
        return Detach(topic) if kind == DETACH else Detached(topic)
    number = read_number(data, start, end)
    return Ack(number) if kind == ACK else Ping(number) if kind == PING else Pong(number)


class Decoder:
    """Bytes in any portions in, messages out. After an error it is of no use any more.

    Args:
        side: which side this is: messages that only this side sends are skipped, like unknown ones.
        frame_bytes_max: largest payload.
    """

    def __init__(self, side: Literal["server", "client"], frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._kinds = TO_SERVER if side == "server" else TO_CLIENT
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self.ready: list[Message] = []

    def feed(self, data: Buffer) -> list[Message]:
        """The messages that ``data`` completes.

        Raises:
            FiggError: a frame is malformed or too large; ``ready`` holds the messages of this call before it.
        """
        self.ready = []
        buffer = self._buffer
        buffer += data
        position = 0
        while (frame := open_frame(buffer, position, len(buffer), self._frame_bytes_max)) is not None:
            kind, start, position = frame
            if kind in self._kinds:
                self.ready.append(read_message(kind, buffer, start, position))
        del buffer[:position]
        return self.ready


# --- writing


def _frame(kind: int, *parts: bytes) -> bytes:
    return b"".join((_HEADER.pack(kind, VERSION, sum(map(len, parts))), *parts))


def _field(content: bytes) -> bytes:
    return _U32.pack(len(content)) + content


def attach(topic: bytes, offset: int | None) -> bytes:
    """ATTACH; ``offset`` None: latest."""
    flags = 0 if offset is None else FROM_OFFSET
    return _frame(ATTACH, _U16.pack(flags), _field(topic), _U64.pack(offset or 0))


def attached(topic: bytes, offset: int) -> bytes:
    """ATTACHED."""
    return _frame(ATTACHED, _field(topic), _U64.pack(offset))


def detach(topic: bytes) -> bytes:
    """DETACH."""
    return _frame(DETACH, _field(topic))


def detached(topic: bytes) -> bytes:
    """DETACHED."""
    return _frame(DETACHED, _field(topic))


def publish(topic: bytes, seq_num: int, data: bytes) -> bytes:
    """PUBLISH."""
    return _frame(PUBLISH, _field(topic), _U64.pack(seq_num), _U32.pack(len(data)), data)


def data(topic: bytes, offset: int, value: bytes) -> bytes:
    """DATA."""
    return _frame(DATA, _field(topic), _U64.pack(offset), _U32.pack(len(value)), value)


def ack(seq_num: int) -> bytes:
    """ACK."""
    return _NUMBER_FRAME.pack(ACK, VERSION, 8, seq_num)


def ping(timestamp: int) -> bytes:
    """PING."""
    return _NUMBER_FRAME.pack(PING, VERSION, 8, timestamp)


def pong(timestamp: int) -> bytes:
    """PONG."""
    return _NUMBER_FRAME.pack(PONG, VERSION, 8, timestamp)


def encode(message: Message) -> bytes:
    """The frame of any message."""
    match message:
        case Publish(topic, number, value):
            return publish(topic, number, value)
        case Data(topic, number, value):
            return data(topic, number, value)
        case Attach(topic, offset):
            return attach(topic, offset)
        case Attached(topic, number):
            return attached(topic, number)
        case Detach(topic):
            return detach(topic)
        case Detached(topic):
            return detached(topic)
        case Ack(number):
            return ack(number)
        case Ping(number):
            return ping(number)
        case Pong(number):  # pragma: no branch (the last one)
            return pong(number)
