"""The Fujin codec: captured bytes, there and back, limits of every length, portions of any size."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from netserver.fujin import codec
from netserver.fujin.codec import (
    PULL,
    PUSH,
    Ack,
    Answer,
    Command,
    ConnectReader,
    ConnectWriter,
    Decoder,
    Disconnect,
    Fetch,
    FujinError,
    Op,
    Options,
    Tx,
    Write,
)
from netserver.fujin.codec_answers import (
    Acked,
    AnswerDecoder,
    Connected,
    Disconnected,
    Done,
    Event,
    Fetched,
    Message,
    Stop,
)
from netserver.fujin.limits import (
    ACK_BYTES_MAX,
    ACK_ID_BYTES_MAX,
    ACK_IDS_MAX,
    ERROR_BYTES_MAX,
    FETCHED_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    NAME_BYTES_MAX,
    WRITER_ID_BYTES_MAX,
)

pytestmark = pytest.mark.checked

ROWS = [json.loads(line) for line in (Path(__file__).parents[3] / "data" / "fujin.jsonl").read_text().splitlines()[1:]]
LIMIT = 1000
PLAIN = Options(LIMIT)
HEADERS = Options(LIMIT, headers=True)
WRITER = codec.connect_writer()
READER = codec.connect_reader(PUSH, False, b"t")
IDS = [codec.message_id(0, 1), b"", b"other", codec.message_id(7, 2**62)]


def strs(items: Iterable[bytes]) -> bytes:
    return b"".join(map(codec.string, items))


STREAMS: list[tuple[Options, bytes, list[Command]]] = [
    (PLAIN, codec.connect_writer(b"w1"), [ConnectWriter(b"w1")]),
    (PLAIN, codec.connect_writer(b"x" * WRITER_ID_BYTES_MAX), [ConnectWriter(b"x" * WRITER_ID_BYTES_MAX)]),
    (
        PLAIN,
        WRITER + codec.write(0, b"t", b"m") + codec.write(2**32 - 1, b"n" * NAME_BYTES_MAX, b"m" * LIMIT),
        [ConnectWriter(b""), Write(0, b"t", b"m"), Write(2**32 - 1, b"n" * NAME_BYTES_MAX, b"m" * LIMIT)],
    ),
    (
        HEADERS,
        WRITER
        + codec.write(1, b"t", b"m", ())
        + codec.write(2, b"t", b"n", (b"", b"k", b"v" * 999))
        + codec.write(3, b"t", b"o", (b"",) * HEADERS_MAX),
        [
            ConnectWriter(b""),
            Write(1, b"t", b"m"),
            Write(2, b"t", b"n", (b"", b"k", b"v" * 999)),
            Write(3, b"t", b"o", (b"",) * HEADERS_MAX),
        ],
    ),
    (
        PLAIN,
        WRITER + b"".join(codec.tx(op, 7) for op in (Op.BEGIN, Op.COMMIT, Op.ROLLBACK)) + b"\x0a" + b"dropped",
        [ConnectWriter(b""), Tx(Op.BEGIN, 7), Tx(Op.COMMIT, 7), Tx(Op.ROLLBACK, 7), Disconnect()],
    ),
    (
        PLAIN,
        codec.connect_reader(PULL, True, b"k") + codec.fetch(5, 0) + codec.fetch(6, 2**32 - 1),
        [ConnectReader(PULL, True, b"k"), Fetch(5, 0), Fetch(6, 2**32 - 1)],
    ),
    (
        PLAIN,
        READER + codec.ack(Op.ACK, 1, IDS) + codec.ack(Op.NACK, 2, []) + codec.ack(Op.NACK, 3, [IDS[0]]) + b"\x0a",
        [
            ConnectReader(PUSH, False, b"t"),
            Ack(Op.ACK, 1, 4, strs(IDS)),
            Ack(Op.NACK, 2, 0, b""),
            Ack(Op.NACK, 3, 1, strs(IDS[:1])),
            Disconnect(),
        ],
    ),
]

ANSWERS: list[tuple[bool, bytes, list[Event]]] = [
    (False, codec.connected() + codec.connected("no"), [Connected(None), Connected("no")]),
    (
        False,
        codec.done(Answer.WRITE, 1) + codec.done(Answer.COMMIT, 2**32 - 1, "brøken") + codec.done(Answer.BEGIN, 0),
        [Done(Answer.WRITE, 1, None), Done(Answer.COMMIT, 2**32 - 1, "brøken"), Done(Answer.BEGIN, 0, None)],
    ),
    (True, codec.message(None, b"a") + codec.message(None, b""), [Message(b"", b"a"), Message(b"", b"")]),
    (False, codec.message(b"id", b"a") + codec.message(b"", b"b"), [Message(b"id", b"a"), Message(b"", b"b")]),
    (
        True,
        codec.fetched(1, 2, strs([b"a", b"b"])) + codec.fetched(2, 0) + codec.done(Answer.FETCH, 3, "no messages"),
        [Fetched(1, [Message(b"", b"a"), Message(b"", b"b")]), Fetched(2, []), Fetched(3, [], "no messages")],
    ),
    (
        False,
        codec.fetched(1, 2, strs([b"i", b"a", b"", b"b"])) + codec.fetched(4, 0),
        [Fetched(1, [Message(b"i", b"a"), Message(b"", b"b")]), Fetched(4, [])],
    ),
    (
        False,
        codec.acked(Answer.ACK, 1, 2, codec.result(b"i") + codec.result(b"", "gone"))
        + codec.acked(Answer.NACK, 2, 0)
        + codec.done(Answer.NACK, 3, "not supported"),
        [
            Acked(Answer.ACK, 1, [(b"i", None), (b"", "gone")]),
            Acked(Answer.NACK, 2, []),
            Acked(Answer.NACK, 3, [], "not supported"),
        ],
    ),
    (False, b"\x0c\x0a dropped", [Stop(), Disconnected()]),
]


def read(decoder: Decoder | AnswerDecoder, pieces: Iterable[bytes]) -> list[Any]:
    """What comes out, with the error that ended it, if any, as the last one."""
    found: list[Any] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (event := decoder.next()) is not None:
                found.append(event)
    except FujinError as error:
        found.append((str(error), error.kind, error.answer, error.is_bare))
    return found


@pytest.mark.parametrize(("options", "data", "commands"), STREAMS)
def test_commands_come_out_however_they_are_cut(options: Options, data: bytes, commands: list[Command]) -> None:
    assert read(Decoder(options), [data]) == commands
    assert read(Decoder(options), (data[at : at + 1] for at in range(len(data)))) == commands
    for at in range(0, len(data), 1 + len(data) // 500):
        assert read(Decoder(options), [data[:at], data[at:]]) == commands


@pytest.mark.parametrize(("auto", "data", "events"), ANSWERS)
def test_answers_come_out_however_they_are_cut(auto: bool, data: bytes, events: list[Event]) -> None:
    assert read(AnswerDecoder(auto=auto), [data]) == events
    assert read(AnswerDecoder(auto=auto), (data[at : at + 1] for at in range(len(data)))) == events
    for at in range(len(data)):
        assert read(AnswerDecoder(auto=auto), [data[:at], data[at:]]) == events


def test_strings_are_taken_apart() -> None:
    assert codec.strings(strs(IDS), 4) == IDS
    assert codec.strings(b"", 0) == []


def test_message_ids() -> None:
    assert codec.message_id(1, 2**40) == bytes.fromhex("000000010000010000000000")
    assert codec.parse_message_id(codec.message_id(2**32 - 1, 2**64 - 1)) == (2**32 - 1, 2**64 - 1)
    assert codec.parse_message_id(b"x" * 11) is None
    assert codec.parse_message_id(b"") is None


WRONG = {"raw_tx_unknown_op", "raw_fetch_errors", "raw_push_nats_manual"}
"""An unknown opcode that was skipped; two streams in one; a broker's message ids that say 2 and have no byte."""


def test_captured_streams_are_read_and_written_byte_for_byte() -> None:
    """Both sides of every captured stream, except what the real peers get wrong themselves."""
    read_bytes = written_bytes = 0
    for case in dict.fromkeys(row["case"] for row in ROWS):
        for stream in dict.fromkeys(row["stream"] for row in ROWS if row["case"] == case):
            if case.startswith("bad_") or case in WRONG or not stream[1:].isdigit() or stream[0] == "s":
                continue
            rows = [row for row in ROWS if row["case"] == case and row["stream"] == stream]
            sent = b"".join(bytes.fromhex(row["hex"]) for row in rows if row["dir"] == "c2s")
            came = b"".join(bytes.fromhex(row["hex"]) for row in rows if row["dir"] == "s2c")
            commands = read(Decoder(PLAIN), [sent])
            assert b"".join(map(encoded, commands)) == sent
            auto = isinstance(commands[0], ConnectReader) and commands[0].auto
            answers = read(AnswerDecoder(auto=auto), [came])
            written = b"".join(answer_bytes(answer, auto) for answer in answers)
            assert came.startswith(written)
            assert written == came or (case == "raw_reader_pull" and isinstance(answers[-1], Disconnected))
            read_bytes += len(sent) + len(came)
            written_bytes += len(commands) + len(answers)
    assert read_bytes > 2500
    assert written_bytes > 250


def encoded(command: Command) -> bytes:
    if isinstance(command, ConnectWriter):
        return codec.connect_writer(command.writer_id)
    if isinstance(command, ConnectReader):
        return codec.connect_reader(command.kind, command.auto, command.name)
    if isinstance(command, Write):
        return codec.write(command.cid, command.topic, command.message)
    if isinstance(command, Tx):
        return codec.tx(command.op, command.cid)
    if isinstance(command, Fetch):
        return codec.fetch(command.cid, command.limit)
    if isinstance(command, Ack):
        return codec.ack(command.op, command.cid, codec.strings(command.ids, command.size))
    return codec.DISCONNECT


def answer_bytes(answer: Event, auto: bool) -> bytes:
    if isinstance(answer, Connected):
        return codec.connected(answer.error)
    if isinstance(answer, Done):
        return codec.done(answer.kind, answer.cid, answer.error)
    if isinstance(answer, Message):
        return codec.message(None if auto else answer.message_id, answer.value)
    if isinstance(answer, Fetched) and answer.error is None:
        fields = [answer.message_id * (not auto) for answer in answer.messages]
        parts = [b"" if auto else codec.string(field) for field in fields]
        values = [codec.string(one.value) for one in answer.messages]
        return codec.fetched(answer.cid, len(values), b"".join(a + b for a, b in zip(parts, values, strict=True)))
    if isinstance(answer, Acked) and answer.error is None:
        results = b"".join(codec.result(one, error) for one, error in answer.results)
        return codec.acked(answer.kind, answer.cid, len(answer.results), results)
    if isinstance(answer, Fetched | Acked):
        kind = Answer.FETCH if isinstance(answer, Fetched) else answer.kind
        return codec.done(kind, answer.cid, answer.error)
    return codec.DISCONNECT if isinstance(answer, Disconnected) else codec.STOP


REFUSED: list[tuple[Options, bytes, bytes, bool]] = [
    # (options, stream, answer, nothing more than the answer is sent)
    (PLAIN, b"\x63", b"", True),
    (PLAIN, b"\x03", b"", True),
    (PLAIN, b"\x0a", b"", True),
    (PLAIN, b"\x0b", b"", True),
    (PLAIN, b"\x00", b"", True),
    (PLAIN, b"\x01" + (WRITER_ID_BYTES_MAX + 1).to_bytes(4), b"", False),
    (PLAIN, b"\x01\xff\xff\xff\xff", b"", False),
    (PLAIN, b"\x02\x00", codec.connected("invalid reader type"), True),
    (PLAIN, b"\x02\x03", codec.connected("invalid reader type"), True),
    (PLAIN, b"\x02\x01\x02", codec.connected("connect reader is auto commit arg invalid"), True),
    (PLAIN, b"\x02\x01\x01\x00\x00\x00\x00", codec.connected("reader name size arg not provided"), True),
    (PLAIN, b"\x02\x01\x01" + (NAME_BYTES_MAX + 1).to_bytes(4), codec.connected("reader name too long"), True),
    (PLAIN, WRITER + b"\x63", b"", False),
    (PLAIN, WRITER + b"\x01", b"", False),
    (PLAIN, WRITER + b"\x07", b"", False),
    (PLAIN, WRITER + b"\x08", b"", False),
    (PLAIN, WRITER + b"\x0b", b"", False),
    (PLAIN, READER + b"\x01", b"", False),
    (PLAIN, READER + b"\x03", b"", False),
    (PLAIN, READER + b"\x04", b"", False),
    (PLAIN, READER + b"\x63", b"", False),
    (
        PLAIN,
        WRITER + bytes.fromhex("03 00000007 00000000"),
        codec.done(Answer.WRITE, 7, "writer topic len arg not provided"),
        False,
    ),
    (
        PLAIN,
        WRITER + bytes.fromhex("03 00000007") + (NAME_BYTES_MAX + 1).to_bytes(4),
        codec.done(Answer.WRITE, 7, "topic name too long"),
        False,
    ),
    (
        PLAIN,
        WRITER + bytes.fromhex("03 00000007 00000001 74 00000000"),
        codec.done(Answer.WRITE, 7, "write size arg not provided"),
        False,
    ),
    (
        PLAIN,
        WRITER + bytes.fromhex("03 00000007 00000001 74") + (LIMIT + 1).to_bytes(4),
        codec.done(Answer.WRITE, 7, "message too large: 1001 bytes, up to 1000 are taken"),
        False,
    ),
    (
        HEADERS,
        WRITER + bytes.fromhex("03 00000007 00000001 74") + (HEADERS_MAX + 1).to_bytes(2),
        codec.done(Answer.WRITE, 7, "too many headers"),
        False,
    ),
    (
        HEADERS,
        WRITER + bytes.fromhex("03 00000007 00000001 74 0001") + (HEADERS_BYTES_MAX + 1).to_bytes(4),
        codec.done(Answer.WRITE, 7, "headers too large"),
        False,
    ),
    (
        HEADERS,
        WRITER + codec.write(7, b"t", b"m", (b"x" * HEADERS_BYTES_MAX,)),
        codec.done(Answer.WRITE, 7, "headers too large"),
        False,
    ),
    (
        PLAIN,
        READER + bytes.fromhex("08 00000007") + (ACK_IDS_MAX + 1).to_bytes(4),
        codec.done(Answer.ACK, 7, "too many message ids: 16385, up to 16384 are taken"),
        False,
    ),
    (
        PLAIN,
        READER + bytes.fromhex("09 00000007 00000001") + (ACK_ID_BYTES_MAX + 1).to_bytes(4),
        codec.done(Answer.NACK, 7, "message ids too large"),
        False,
    ),
]


@pytest.mark.parametrize(("options", "data", "answer", "is_bare"), REFUSED)
def test_mistakes_are_seen_as_soon_as_they_can_be(options: Options, data: bytes, answer: bytes, is_bare: bool) -> None:
    decoder = Decoder(options)
    whole = read(decoder, [data])
    assert whole[-1][2:] == (answer, is_bare)
    assert decoder.ended
    assert decoder.pending == 0
    assert read(decoder, [WRITER]) == [], "what follows is dropped"
    pieces = read(Decoder(options), (data[at : at + 1] for at in range(len(data))))
    assert pieces == whole
    if len(data) < 100:
        assert read(Decoder(options), [data[:-1]]) == whole[:-1], "the last byte is what is wrong"


def test_ids_of_an_ack_are_bounded_together() -> None:
    decoder = Decoder(PLAIN)
    ids = [b"x" * ACK_ID_BYTES_MAX] * (ACK_BYTES_MAX // ACK_ID_BYTES_MAX)
    found = read(decoder, [READER + codec.ack(Op.ACK, 1, ids)])
    assert found[-1][2] == codec.done(Answer.ACK, 1, "message ids too large")


def test_what_is_needed_grows_only_by_what_is_allowed() -> None:
    """A receiver may promise ``needed`` bytes of memory: it never exceeds the limits."""
    decoder = Decoder(PLAIN)
    decoder.feed(WRITER)
    assert decoder.next() == ConnectWriter(b"")
    assert decoder.next() is None
    frame = codec.write(1, b"topic", b"m" * LIMIT)
    for at in range(len(frame) - 1):
        decoder.feed(frame[at : at + 1])
        assert decoder.next() is None
        assert at + 1 < decoder.needed <= len(frame)
    assert decoder.needed == len(frame)
    decoder.feed(frame[-1:])
    assert decoder.next() == Write(1, b"topic", b"m" * LIMIT)
    assert decoder.needed == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x0d",
        b"\x00",
        b"\x01\x02",
        b"\x02\x00\x00\x00\x01\x02",
        b"\x02\x00\x00\x00\x01\x01" + (ERROR_BYTES_MAX + 1).to_bytes(4),
        b"\x06" + (ERROR_BYTES_MAX + 1).to_bytes(4),
        b"\x06\x00\x00\x00\x00" + (LIMIT + 1).to_bytes(4),
        b"\x07\x00\x00\x00\x01\x00" + (FETCHED_MAX + 1).to_bytes(4),
        b"\x08\x00\x00\x00\x01\x00" + (FETCHED_MAX + 1).to_bytes(4),
        b"\x08\x00\x00\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x05",
    ],
)
def test_the_client_refuses_what_is_no_answer(data: bytes) -> None:
    decoder = AnswerDecoder(message_bytes_max=LIMIT)
    assert isinstance(read(decoder, [data])[-1], tuple)
    assert len(read(AnswerDecoder(message_bytes_max=LIMIT), [data])) == 1
    assert read(decoder, [b"\x0c"]) == []
    assert read(AnswerDecoder(message_bytes_max=LIMIT), [data[:-1]]) == []
