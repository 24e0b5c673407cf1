"""The Figg codec: captured bytes, limits of every length field, portions of any size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netserver.figg import codec
from netserver.figg.codec import Ack, Attach, Attached, Data, Decoder, Detach, Detached, FiggError, Ping, Pong, Publish
from netserver.figg.limits import FRAME_BYTES_MAX, TOPIC_BYTES_MAX

pytestmark = pytest.mark.checked

ROWS = [json.loads(line) for line in (Path(__file__).parents[3] / "data" / "figg.jsonl").read_text().splitlines()[1:]]
MESSAGES: list[codec.Message] = [
    Attach(b"topic", 7),
    Attach(b"topic"),
    Attach(b"", 2**64 - 1),
    Attached(b"t", 0),
    Detach(b"t\x00\xff"),
    Detached("tøpic".encode()),
    Publish(b"t", 2**64 - 1, b""),
    Publish(b"", 0, bytes(range(256))),
    Ack(5),
    Data(b"t", 3, b"value"),
    Ping(1795820332845500886),
    Pong(2**64 - 1),
]


def side_of(message: codec.Message) -> str:
    return "server" if isinstance(message, Attach | Detach | Publish | Ping) else "client"


def frame(kind: int, payload: bytes, version: int = 1) -> bytes:
    return kind.to_bytes(2) + version.to_bytes(2) + len(payload).to_bytes(4) + payload


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_there_and_back(message: codec.Message) -> None:
    decoder = Decoder("server" if side_of(message) == "server" else "client")
    assert decoder.feed(codec.encode(message)) == [message]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_message_of_our_own_side_is_skipped(message: codec.Message) -> None:
    decoder = Decoder("client" if side_of(message) == "server" else "server")
    assert decoder.feed(codec.encode(message)) == []


def test_captured_frames_are_read_and_written_byte_for_byte() -> None:
    rewritten = 0
    for row in ROWS:
        data = bytes.fromhex(row["hex"])
        if not data or "malformed" in row["note"]:
            continue
        decoder = Decoder("server" if row["dir"] == "c2s" else "client")
        messages = decoder.feed(data)
        odd = ("raw_version", "raw_trailing", "raw_flags", "raw_unknown", "raw_server_types")
        if not row["case"].startswith(odd):
            assert b"".join(map(codec.encode, messages)) == data, row
            rewritten += len(messages)
    assert rewritten > 250


@pytest.mark.parametrize("row", [row for row in ROWS if "malformed" in row["note"]], ids=lambda row: row["case"])
def test_captured_malformed_frames_are_refused(row: dict[str, str]) -> None:
    with pytest.raises(FiggError):
        Decoder("server").feed(bytes.fromhex(row["hex"]))


def test_version_is_not_looked_at_and_trailing_bytes_are_ignored() -> None:
    decoder = Decoder("server")
    assert decoder.feed(frame(codec.PING, bytes(8) + b"xy", version=0xFFFF)) == [Ping(0)]
    payload = codec.publish(b"t", 1, b"x")[8:] + b"\xcc"
    assert decoder.feed(frame(codec.PUBLISH, payload)) == [Publish(b"t", 1, b"x")]


@pytest.mark.parametrize(("flags", "offset"), [(0, None), (1, None), (0x7FFF, None), (0x8000, 9), (0xFFFF, 9)])
def test_only_the_highest_flag_bit_counts(flags: int, offset: int | None) -> None:
    payload = flags.to_bytes(2) + b"\x00\x00\x00\x01t" + (9).to_bytes(8)
    assert Decoder("server").feed(frame(codec.ATTACH, payload)) == [Attach(b"t", offset)]


@pytest.mark.parametrize("kind", [0, 10, 77, 0xFFFF, codec.ACK, codec.DATA])
def test_unknown_types_are_skipped_whatever_they_hold(kind: int) -> None:
    decoder = Decoder("server")
    assert decoder.feed(frame(kind, b"\xff") + codec.ping(3)) == [Ping(3)]


# --- limits: every length field at 0, 1, its limit, one more, and the largest there is


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES_MAX])
def test_payload_size_up_to_the_limit_is_waited_for(size: int) -> None:
    decoder = Decoder("server")
    assert decoder.feed((77).to_bytes(2) + b"\x00\x01" + size.to_bytes(4)) == []
    assert decoder.feed(bytes(size) + codec.ping(1)) == [Ping(1)]


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, 2**32 - 1])
@pytest.mark.parametrize("kind", [codec.PUBLISH, 77])
def test_payload_size_above_the_limit_is_refused_from_the_header_alone(size: int, kind: int) -> None:
    with pytest.raises(FiggError) as caught:
        Decoder("server").feed(kind.to_bytes(2) + b"\x00\x01" + size.to_bytes(4))
    assert caught.value.kind == "frame_size"


@pytest.mark.parametrize("size", [0, 1, TOPIC_BYTES_MAX])
def test_topic_size_up_to_the_limit(size: int) -> None:
    topic = b"t" * size
    for message in (Publish(topic, 1, b"v"), Attach(topic, 0), Detach(topic)):
        assert Decoder("server").feed(codec.encode(message)) == [message]


@pytest.mark.parametrize("size", [TOPIC_BYTES_MAX + 1, 2**32 - 1])
@pytest.mark.parametrize("kind", [codec.PUBLISH, codec.ATTACH, codec.DETACH])
def test_topic_size_above_the_limit(size: int, kind: int) -> None:
    flags = b"\x80\x00" if kind == codec.ATTACH else b""
    with pytest.raises(FiggError):
        Decoder("server").feed(frame(kind, flags + size.to_bytes(4) + bytes(TOPIC_BYTES_MAX + 64)))


@pytest.mark.parametrize("size", [0, 1, 5])
def test_data_size_within_the_payload(size: int) -> None:
    payload = b"\x00\x00\x00\x01t" + bytes(8) + size.to_bytes(4) + b"hello"
    assert Decoder("server").feed(frame(codec.PUBLISH, payload)) == [Publish(b"t", 0, b"hello"[:size])]


@pytest.mark.parametrize("size", [6, 2**32 - 1])
def test_data_size_beyond_the_payload(size: int) -> None:
    payload = b"\x00\x00\x00\x01t" + bytes(8) + size.to_bytes(4) + b"hello"
    with pytest.raises(FiggError):
        Decoder("server").feed(frame(codec.PUBLISH, payload) + bytes(100))


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_payload_cut_anywhere_is_an_error(message: codec.Message) -> None:
    whole = codec.encode(message)
    kind, payload = int.from_bytes(whole[:2]), whole[8:]
    side = side_of(message)
    for size in range(len(payload)):
        with pytest.raises(FiggError):
            Decoder("server" if side == "server" else "client").feed(frame(kind, payload[:size]))


# --- portions


@pytest.mark.parametrize("side", ["server", "client"])
def test_split_anywhere_gives_the_same_messages(side: str) -> None:
    stream = b"".join(codec.encode(message) for message in MESSAGES)
    expected = [message for message in MESSAGES if side_of(message) == side]
    decoder = Decoder("server" if side == "server" else "client")
    assert [message for byte in stream for message in decoder.feed(bytes([byte]))] == expected
    for cut in range(len(stream) + 1):
        decoder = Decoder("server" if side == "server" else "client")
        assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == expected


def test_messages_before_a_bad_frame_are_told() -> None:
    decoder = Decoder("server")
    with pytest.raises(FiggError):
        decoder.feed(codec.ping(1) + codec.publish(b"t", 1, b"x") + frame(codec.PING, b"") + codec.ping(2))
    assert decoder.ready == [Ping(1), Publish(b"t", 1, b"x")]
