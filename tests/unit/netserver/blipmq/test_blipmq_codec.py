"""BlipMQ frames: the specification's own examples, every payload rule, and cuts anywhere in the stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from netserver.blipmq import codec, codec_v2, limits
from netserver.blipmq.codec import Decoder, Frame, FrameType, FramingError, PayloadError

pytestmark = pytest.mark.checked

DATA = Path(__file__).resolve().parents[3] / "data" / "blipmq.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text().splitlines()]

# The hex samples of the protocol text.
SAMPLES = {
    "0000000b 01 0000000000000001 0001": codec.hello(1),
    "00000012 02 0000000000000002 0007 6465762d6b6579": codec.auth(2, "dev-key"),
    "00000010 04 0000000000000003 0004 64656d6f 01": codec.subscribe(3, b"demo", 1),
    "00000012 03 0000000000000004 01 0004 64656d6f 6869": codec.publish(4, 1, b"demo", b"hi"),
    "00000011 05 0000000000000003 000000000000002a": codec.ack(3, 42),
}


def decode(data: bytes, step: int = 0) -> tuple[list[Frame], str]:
    """The frames of a stream, fed whole or in pieces of ``step`` bytes, and the kind of the error that ends it."""
    decoder = Decoder()
    frames = []
    try:
        for start in range(0, len(data), step or len(data) or 1):
            decoder.receive(data[start : start + (step or len(data))])
            while (frame := decoder.next_frame()) is not None:
                frames.append(frame)
    except FramingError as error:
        return frames, error.kind
    return frames, ""


@pytest.mark.parametrize("sample", SAMPLES)
def test_samples_of_the_specification(sample: str) -> None:
    raw = bytes.fromhex(sample)
    assert SAMPLES[sample] == raw
    (frame,), error = decode(raw)
    assert error == ""
    assert codec.frame(frame.type, frame.cid, frame.payload) == raw


def test_builders_and_parsers_agree() -> None:
    stream = b"".join(
        (
            codec.hello(1, 7),
            codec.auth(2, "ключ"),
            codec.publish(3, 0, b"t", b""),
            codec.subscribe(4, b"a/b c", 1),
            codec.ack(5, 2**64 - 1),
            codec.nack(6, codec.NOT_FOUND, "gone"),
            codec.ping(7),
            codec.pong(8),
            codec.poll(9, 3),
        )
    )
    frames, error = decode(stream)
    assert error == ""
    assert [frame.cid for frame in frames] == list(range(1, 10))
    assert [frame.type for frame in frames] == [
        FrameType.HELLO,
        FrameType.AUTH,
        FrameType.PUBLISH,
        FrameType.SUBSCRIBE,
        FrameType.ACK,
        FrameType.NACK,
        FrameType.PING,
        FrameType.PONG,
        FrameType.POLL,
    ]
    assert codec.parse_hello(frames[0].payload) == 7
    assert codec.parse_auth(frames[1].payload) == "ключ"
    assert codec.parse_publish(frames[2].payload) == (0, b"t", b"")
    assert codec.parse_subscribe(frames[3].payload) == (b"a/b c", 1)
    assert codec.parse_ack(frames[4].payload) == 2**64 - 1
    assert codec.parse_nack(frames[5].payload) == (404, "gone")
    assert codec.parse_subscription_id(frames[8].payload, "POLL") == 3


def test_captured_streams_cut_anywhere_give_the_same_frames() -> None:
    cases = sorted({row["case"] for row in ROWS if row["case"] != "_about"})
    assert len(cases) == 31
    for case in cases:
        for direction in ("c2s", "s2c"):
            stream = b"".join(
                bytes.fromhex(row["hex"]) for row in ROWS if row["case"] == case and row["dir"] == direction
            )
            whole = decode(stream)
            assert all(decode(stream, step) == whole for step in (1, 2, 3, 5, 13, 17, 64))
            if direction == "s2c":
                assert whole[1] == ""
                assert b"".join(codec.frame(*frame) for frame in whole[0]) == stream


@pytest.mark.parametrize("length", [0, 1, 8, 16 * 1024 * 1024 + 1, 2**32 - 1])
def test_bad_length_is_seen_at_its_fourth_byte(length: int) -> None:
    frames, error = decode(codec.ping(3) + length.to_bytes(4, "big"))
    assert [frame.cid for frame in frames] == [3]
    assert error == "frame_size"


@pytest.mark.parametrize("frame_type", [0x00, 0x0A, 0x0B, 0x7F, 0xFF])
def test_unknown_type(frame_type: int) -> None:
    frames, error = decode(codec.ping(3) + bytes.fromhex("00000009") + bytes((frame_type,)))
    assert [frame.cid for frame in frames] == [3]
    assert error == "frame_type"


def test_the_largest_frame() -> None:
    body = bytes(limits.FRAME_LENGTH_MAX - 9 - 3 - 4)
    raw = codec.publish(1, 1, b"demo", body)
    assert len(raw) == limits.FRAME_LENGTH_MAX + 4
    (frame,), error = decode(raw, 1 << 20)
    assert error == ""
    assert codec.parse_publish(frame.payload) == (1, b"demo", body)
    with pytest.raises(codec.CodecError):
        codec.publish(1, 1, b"demo", body + b"x")


def test_lower_limit_before_login() -> None:
    decoder = Decoder(limits.AUTH_LENGTH_MAX)
    decoder.receive(codec.auth(1, "k" * 0xFFFF))
    assert decoder.next_frame() is not None
    decoder.receive((limits.AUTH_LENGTH_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(FramingError):
        decoder.next_frame()


def test_pending_bytes() -> None:
    decoder = Decoder()
    decoder.receive(codec.ping(1) + b"\0\0")
    assert decoder.next_frame() is not None
    assert decoder.next_frame() is None
    assert decoder.pending_bytes == 2


PAYLOAD_ERRORS = [
    (codec.parse_hello, "", "invalid HELLO payload"),
    (codec.parse_hello, "01", "invalid HELLO payload"),
    (codec.parse_hello, "000100", "invalid HELLO payload"),
    (codec.parse_auth, "", "invalid AUTH payload"),
    (codec.parse_auth, "00", "invalid AUTH payload"),
    (codec.parse_auth, "000561626364", "invalid AUTH payload"),
    (codec.parse_auth, "0002616263", "invalid AUTH payload"),
    (codec.parse_auth, "0002fffe", "invalid AUTH payload"),
    (codec.parse_publish, "", "invalid PUBLISH payload"),
    (codec.parse_publish, "0000", "invalid PUBLISH payload"),
    (codec.parse_publish, "01000564656d6f", "invalid PUBLISH payload"),
    (codec.parse_publish, "010002c32878", "invalid PUBLISH payload"),
    (codec.parse_publish, "010003eda080", "invalid PUBLISH payload"),
    (codec.parse_publish, "090000", "empty topic"),
    (codec.parse_publish, "02000161", "invalid QoS value"),
    (codec.parse_subscribe, "", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "000464656d6f", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "000564656d6f01", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "0002c32801", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "000009", "empty topic"),
    (codec.parse_subscribe, "000464656d6f02", "invalid QoS value"),
    (codec.parse_ack, "00", "invalid ACK payload"),
    (codec.parse_nack, "019000", "invalid NACK payload"),
    (codec.parse_nack, "0190000361", "invalid NACK payload"),
]


@pytest.mark.parametrize(("parse", "payload", "text"), PAYLOAD_ERRORS)
def test_payload_errors(parse, payload: str, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PayloadError) as error:
        parse(bytes.fromhex(payload))
    assert (error.value.code, error.value.text) == (400, text)


@pytest.mark.parametrize(("payload", "text"), [("00" * 7, "invalid POLL payload"), ("00" * 9, "invalid POLL payload")])
def test_subscription_id_errors(payload: str, text: str) -> None:
    with pytest.raises(PayloadError, match=text):
        codec.parse_subscription_id(bytes.fromhex(payload), "POLL")
    with pytest.raises(PayloadError, match="subscription_id must be non-zero"):
        codec.parse_subscription_id(bytes(8), "ACK")


def test_bytes_after_the_qos_of_a_subscribe_are_ignored() -> None:
    assert codec.parse_subscribe(bytes.fromhex("000464656d6f017461696c")) == (b"demo", 1)


def test_too_long_names() -> None:
    with pytest.raises(codec.CodecError):
        codec.auth(1, "k" * 0x10000)
    with pytest.raises(codec.CodecError):
        codec.publish(1, 0, b"t" * 0x10000, b"")
    with pytest.raises(codec.CodecError):
        codec.subscribe(1, b"t" * 0x10000, 0)


def test_a_nack_with_an_endless_reason_still_fits() -> None:
    (frame,), _ = decode(codec.nack(1, 500, "x" * 100_000))
    assert len(codec.parse_nack(frame.payload).text) == 0xFFFF


@pytest.mark.parametrize(
    "make",
    [
        lambda text: codec_v2.subscribe(1, text, 1),
        lambda text: codec_v2.subscribe(1, b"t", 1, group=text),
    ],
)
def test_what_no_length_field_can_state_is_refused(make: Callable[[bytes], bytes]) -> None:
    assert make(b"x" * 65_535)
    with pytest.raises(codec.CodecError, match="at most 65535 bytes"):
        make(b"x" * 65_536)
