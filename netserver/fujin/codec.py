"""The native Fujin protocol (2025-05-18) without I/O: bytes of a stream in, commands out, and back.

All integers big-endian; ``str`` = u32 length and bytes; ``error`` = ``00``, or ``01`` and a str. Client to server::

    01 str(writer id)                   CONNECT WRITER      first command of a stream, no answer
    02 type auto str(name)              CONNECT READER      first command of a stream; type 1 push, 2 pull; auto 0, 1
    03 cid str(topic) str(message)      WRITE               with the option: u16 count, count x str before the message
    04 cid | 05 cid | 06 cid            BEGIN, COMMIT, ROLLBACK
    07 cid u32(n)                       FETCH
    08 | 09 cid u32(n) n x str(id)      ACK, NACK
    0a                                  DISCONNECT
    0b                                  PONG, on a stream that the server opened

Server to client::

    01 error                            CONNECT READER
    02 | 03 | 04 | 05 cid error         WRITE, BEGIN, COMMIT, ROLLBACK
    06 [str(id)] str(message)           MSG                 with the id unless the reader commits by itself
    07 cid 00 u32(n) n x ([str(id)] str(message))           FETCH
    08 | 09 cid 00 u32(n) n x (str(id) error)               ACK, NACK
    07 | 08 | 09 cid 01 str(error)
    0a | 0b | 0c                        DISCONNECT, PING, STOP

The published specification differs in places (type of the writer id, results of ACK); this is what the servers and
clients of that version send. :class:`Decoder` reads the client's side of a stream, :class:`AnswerDecoder` the
server's. A mistake is a :class:`FujinError`, which carries the answer to send before the stream ends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from netserver.fujin.limits import (
    ACK_BYTES_MAX,
    ACK_ID_BYTES_MAX,
    ACK_IDS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    MESSAGE_ID_BYTES,
    NAME_BYTES_MAX,
    WRITER_ID_BYTES_MAX,
)

Buffer = bytes | bytearray | memoryview

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">BI")
_HEAD_LENGTH = struct.Struct(">BII")
_ID = struct.Struct(">IQ")

PUSH: Final = 1
PULL: Final = 2


class Op(IntEnum):
    """First byte of a command."""

    CONNECT_WRITER = 1
    CONNECT_READER = 2
    WRITE = 3
    BEGIN = 4
    COMMIT = 5
    ROLLBACK = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10


class Answer(IntEnum):
    """First byte of what a server sends."""

    CONNECT_READER = 1
    WRITE = 2
    BEGIN = 3
    COMMIT = 4
    ROLLBACK = 5
    MSG = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10
    PING = 11
    STOP = 12


PING: Final = b"\x0b"
PONG: Final = b"\x0b"
DISCONNECT: Final = b"\x0a"
STOP: Final = b"\x0c"


class FujinError(ValueError):
    """The stream cannot be followed any further.

    Attributes:
        kind: a short fixed word for metrics.
        answer: what to send before the stream ends.
        is_bare: nothing more than that is sent; else DISCONNECT too.
    """

    def __init__(self, text: str, kind: str = "malformed", answer: bytes = b"", *, is_bare: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.answer = answer
        self.is_bare = is_bare


class ConnectWriter(NamedTuple):
    """CONNECT WRITER."""

    writer_id: bytes


class ConnectReader(NamedTuple):
    """CONNECT READER; ``kind`` is PUSH or PULL."""

    kind: int
    auto: bool
    name: bytes


class Write(NamedTuple):
    """WRITE; ``headers`` is empty unless the option is on."""

    cid: int
    topic: bytes
    message: bytes
    headers: tuple[bytes, ...] = ()


class Tx(NamedTuple):
    """BEGIN, COMMIT or ROLLBACK."""

    op: Op
    cid: int


class Fetch(NamedTuple):
    """FETCH of up to ``limit`` messages."""

    cid: int
    limit: int


class Ack(NamedTuple):
    """ACK or NACK of ``size`` ids; ``ids`` is their strings as they came."""

    op: Op
    cid: int
    size: int
    ids: bytes


class Disconnect(NamedTuple):
    """DISCONNECT."""


Command = ConnectWriter | ConnectReader | Write | Tx | Fetch | Ack | Disconnect


class Options(NamedTuple):
    """What a :class:`Decoder` has to know of the listener.

    Attributes:
        message_bytes_max: largest message.
        headers: WRITE has a field of headers.
    """

    message_bytes_max: int
    headers: bool = False


# --- writing


def string(value: Buffer) -> bytes:
    """A str."""
    return _U32.pack(len(value)) + value


def error_field(text: str | None) -> bytes:
    """An error, or none."""
    return b"\x00" if text is None else b"\x01" + string(text.encode())


def connect_writer(writer_id: bytes = b"") -> bytes:
    """CONNECT WRITER."""
    return b"\x01" + string(writer_id)


def connect_reader(kind: int, auto: bool, name: bytes) -> bytes:
    """CONNECT READER."""
    return bytes((Op.CONNECT_READER, kind, auto)) + string(name)


def write(cid: int, topic: bytes, message: Buffer, headers: tuple[bytes, ...] | None = None) -> bytes:
    """WRITE; ``headers`` is None for servers without that option."""
    between = b"" if headers is None else _U16.pack(len(headers)) + b"".join(map(string, headers))
    return b"".join((_HEAD_LENGTH.pack(Op.WRITE, cid, len(topic)), topic, between, _U32.pack(len(message)), message))


def tx(op: Op, cid: int) -> bytes:
    """BEGIN, COMMIT or ROLLBACK."""
    return _HEAD.pack(op, cid)


def fetch(cid: int, count: int) -> bytes:
    """FETCH."""
    return _HEAD_LENGTH.pack(Op.FETCH, cid, count)


def ack(op: Op, cid: int, ids: Sequence[bytes]) -> bytes:
    """ACK or NACK."""
    return _HEAD_LENGTH.pack(op, cid, len(ids)) + b"".join(map(string, ids))


def connected(error: str | None = None) -> bytes:
    """The answer to CONNECT READER."""
    return b"\x01" + error_field(error)


def done(kind: Answer, cid: int, error: str | None = None) -> bytes:
    """The answer to WRITE, BEGIN, COMMIT or ROLLBACK; with an error also to FETCH, ACK and NACK."""
    return _HEAD.pack(kind, cid) + error_field(error)


def message(message_id: bytes | None, value: Buffer) -> bytes:
    """MSG; ``message_id`` is None where the reader commits by itself."""
    head = b"\x06" if message_id is None else b"\x06" + string(message_id)
    return head + string(value)


def fetched(cid: int, count: int, messages: Buffer = b"") -> bytes:
    """The answer to FETCH; ``messages`` is count x ([str(id)] str(message))."""
    return b"".join((_HEAD.pack(Answer.FETCH, cid), b"\x00", _U32.pack(count), messages))


def acked(kind: Answer, cid: int, count: int, results: Buffer = b"") -> bytes:
    """The answer to ACK or NACK; ``results`` is count x (str(id) error)."""
    return b"".join((_HEAD.pack(kind, cid), b"\x00", _U32.pack(count), results))


def result(message_id: Buffer, error: str | None = None) -> bytes:
    """The result of one id of an ACK or NACK."""
    return string(message_id) + error_field(error)


def message_id(partition: int, seq: int) -> bytes:
    """Our id of a record: u32 partition, u64 sequence number."""
    return _ID.pack(partition, seq)


def parse_message_id(raw: Buffer) -> tuple[int, int] | None:
    """(partition, sequence number) of an id of ours; None: it is none."""
    if len(raw) != MESSAGE_ID_BYTES:
        return None
    partition, seq = _ID.unpack(raw)
    return partition, seq


def strings(raw: Buffer, count: int) -> list[bytes]:
    """The ``count`` strs that ``raw`` consists of (they were checked before)."""
    found = []
    position = 0
    for _ in range(count):
        end = position + 4 + _U32.unpack_from(raw, position)[0]
        found.append(bytes(raw[position + 4 : end]))
        position = end
    return found


# --- reading


class Reader:
    """What both decoders have in common: a buffer, a place in it, and how far a long list was walked already.

    Attributes:
        buffer: what was fed and is not consumed yet; the next command or answer begins at ``position``.
        needed: how long that one is, as far as it is known: a receiver must be able to take at least so much.
        ended: nothing more is read: it was the last one, or there was a mistake.
    """

    def __init__(self) -> None:
        self.ended = False
        self.buffer = bytearray()
        self.position = 0
        self.needed = 1
        self._walked = 0  # of a list of strs: after those that are whole, from `position`
        self._left = 0  # of that list: strs not walked yet

    def feed(self, data: Buffer) -> None:
        """Add bytes; after the end they are dropped."""
        if self.ended:
            return
        if self.position:
            del self.buffer[: self.position]
            self.position = 0
        self.buffer += data

    @property
    def pending(self) -> int:
        """Bytes that are not consumed yet."""
        return len(self.buffer) - self.position

    def consumed(self, position: int) -> None:
        """A hot loop, or `next`, has taken everything before ``position``."""
        self.position = position
        self.needed = 1
        self._walked = 0

    def _end(self) -> None:
        self.ended = True
        self.buffer.clear()
        self.consumed(0)

    def _number(self, at: int) -> int:
        """The u32 ``at`` bytes after the position; -1: it is not there yet."""
        start = self.position + at
        if len(self.buffer) - start < 4:
            self._need(at + 4)
            return -1
        value: int = _U32.unpack_from(self.buffer, start)[0]
        return value

    def _need(self, size: int) -> None:
        if size > self.needed:
            self.needed = size

    def _has(self, size: int) -> bool:
        """So many bytes are there."""
        if len(self.buffer) - self.position >= size:
            return True
        self._need(size)
        return False

    def _part(self, start: int, end: int) -> bytes:
        return bytes(memoryview(self.buffer)[self.position + start : self.position + end])


class Decoder(Reader):
    """Commands of one stream that a client has opened.

    ::

        decoder.feed(data)
        while (command := decoder.next()) is not None: ...

    A WRITE is only taken from a writer's stream and so on; after DISCONNECT everything is dropped.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self.role: Op | None = None  # CONNECT_WRITER or CONNECT_READER, once it has come

    def next(self) -> Command | None:
        """The next command; None: it is not whole yet.

        Raises:
            FujinError: it is none, or not allowed; nothing more can be read.
        """
        if self.ended or not self.pending:
            return None
        try:
            op = self.buffer[self.position]
            if self.role is None:
                return self._connect(op)
            if op == Op.DISCONNECT:
                self._end()
                return Disconnect()
            if self.role == Op.CONNECT_WRITER:
                return self._writer_command(op)
            return self._reader_command(op)
        except FujinError:
            self._end()
            raise

    def _connect(self, op: int) -> Command | None:
        if op == Op.CONNECT_WRITER:
            return self._connect_writer()
        if op == Op.CONNECT_READER:
            return self._connect_reader()
        raise FujinError(f"command {op:#04x} before CONNECT", "sequence", is_bare=True)

    def _connect_writer(self) -> Command | None:
        length = self._number(1)
        if length > WRITER_ID_BYTES_MAX:
            raise FujinError(f"writer id of {length} bytes", "frame_size")
        if length < 0 or not self._has(5 + length):
            return None
        self.role = Op.CONNECT_WRITER
        command = ConnectWriter(self._part(5, 5 + length))
        self.consumed(self.position + 5 + length)
        return command

    def _connect_reader(self) -> Command | None:
        head = self._part(0, 3)
        if len(head) > 1 and head[1] not in (PUSH, PULL):
            raise _reader_refused("invalid reader type")
        if len(head) > 2 and head[2] > 1:
            raise _reader_refused("connect reader is auto commit arg invalid")
        length = self._number(3)
        if length == 0:
            raise _reader_refused("reader name size arg not provided")
        if length > NAME_BYTES_MAX:
            raise _reader_refused("reader name too long", "frame_size")
        if length < 0 or not self._has(7 + length):
            return None
        self.role = Op.CONNECT_READER
        command = ConnectReader(head[1], head[2] == 1, self._part(7, 7 + length))
        self.consumed(self.position + 7 + length)
        return command

    def _writer_command(self, op: int) -> Command | None:
        if op == Op.WRITE:
            return self._write()
        if Op.BEGIN <= op <= Op.ROLLBACK:
            cid = self._number(1)
            if cid < 0:
                return None
            self.consumed(self.position + 5)
            return Tx(Op(op), cid)
        raise FujinError(f"command {op:#04x} on a writer's stream", "sequence")

    def _write(self) -> Command | None:
        cid = self._number(1)
        topic_bytes = self._number(5)
        if topic_bytes == 0:
            raise FujinError("empty topic", answer=done(Answer.WRITE, cid, "writer topic len arg not provided"))
        if topic_bytes > NAME_BYTES_MAX:
            raise FujinError(
                f"topic of {topic_bytes} bytes", "frame_size", done(Answer.WRITE, cid, "topic name too long")
            )
        if topic_bytes < 0:
            return None
        start = 9 + topic_bytes
        headers: tuple[bytes, ...] = ()
        if self._options.headers:
            behind = self._header_strings(start, cid)
            if behind == 0:
                return None
            count = _U16.unpack_from(self.buffer, self.position + start)[0]
            headers = tuple(strings(self._part(start + 2, behind), count))
            start = behind
        length = self._number(start)
        if length == 0:
            raise FujinError("empty message", answer=done(Answer.WRITE, cid, "write size arg not provided"))
        if length > self._options.message_bytes_max:
            text = f"message too large: {length} bytes, up to {self._options.message_bytes_max} are taken"
            raise FujinError(text, "frame_size", done(Answer.WRITE, cid, text))
        if length < 0 or not self._has(start + 4 + length):
            return None
        command = Write(cid, self._part(9, 9 + topic_bytes), self._part(start + 4, start + 4 + length), headers)
        self.consumed(self.position + start + 4 + length)
        return command

    def _header_strings(self, start: int, cid: int) -> int:
        """Walk the headers that begin ``start`` bytes after the position; where they end, 0: not there yet."""
        if not self._has(start + 2):
            return 0
        if not self._walked:
            count = _U16.unpack_from(self.buffer, self.position + start)[0]
            if count > HEADERS_MAX:
                raise FujinError(f"{count} headers", "frame_size", done(Answer.WRITE, cid, "too many headers"))
            self._walked, self._left = start + 2, count
        if not self._walk(start + 2 + HEADERS_BYTES_MAX, HEADERS_BYTES_MAX, Answer.WRITE, cid, "headers too large"):
            return 0
        return self._walked

    def _walk(self, bound: int, each_max: int, answer: Answer, cid: int, text: str) -> bool:
        """Walk on over the strs of a list; True: after the last one."""
        while self._left:
            length = self._number(self._walked)
            if length < 0:
                return False
            if length > each_max or self._walked + 4 + length > bound:
                raise FujinError(text, "frame_size", done(answer, cid, text))
            if not self._has(self._walked + 4 + length):
                return False
            self._walked += 4 + length
            self._left -= 1
        return True

    def _reader_command(self, op: int) -> Command | None:
        if op == Op.FETCH:
            cid, count = self._number(1), self._number(5)
            if count < 0:
                return None
            self.consumed(self.position + 9)
            return Fetch(cid, count)
        if op in (Op.ACK, Op.NACK):
            return self._ack(Op(op))
        raise FujinError(f"command {op:#04x} on a reader's stream", "sequence")

    def _ack(self, op: Op) -> Command | None:
        cid, count = self._number(1), self._number(5)
        if count < 0:
            return None
        answer = Answer(op)
        if count > ACK_IDS_MAX:
            text = f"too many message ids: {count}, up to {ACK_IDS_MAX} are taken"
            raise FujinError(text, "frame_size", done(answer, cid, text))
        if not self._walked:
            self._walked, self._left = 9, count
        if not self._walk(9 + ACK_BYTES_MAX, ACK_ID_BYTES_MAX, answer, cid, "message ids too large"):
            return None
        behind = self._walked
        command = Ack(op, cid, count, self._part(9, behind))
        self.consumed(self.position + behind)
        return command


def _reader_refused(text: str, kind: str = "malformed") -> FujinError:
    return FujinError(text, kind, connected(text), is_bare=True)
