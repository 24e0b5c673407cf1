"""Kafka codec: captured frames of real clients and brokers, malformed input, and frames that are cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netserver.kafka.apis import APIS, NO_OPERATIONS, Key, request_form, response_form
from netserver.kafka.codec import (
    Head,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    frame_bounds,
)
from netserver.kafka.errors import FormatError
from netserver.kafka.limits import ELEMENTS_MAX, PLAIN_REQUEST_BYTES_MAX, REQUEST_BYTES_MAX, SENT_FROM_PLACE_BYTES
from netserver.kafka.schema import Array, Encoded, Field, Output, Reader, Structure, Type, Values, put_varint

ROWS = [json.loads(line) for line in (Path(__file__).parents[3] / "data" / "kafka.jsonl").read_text().splitlines()][1:]
MALFORMED = "raw_bad_frames"


def head_of(frame: bytes) -> Head:
    found = frame_bounds(memoryview(frame), 0, len(frame))
    assert found is not None
    assert found[1] == len(frame)
    return found[0]


def exchanges() -> list[tuple[str, Head, bytes, bytes]]:
    """(place, head, request, its answer or nothing) of what is spoken here."""
    found: list[tuple[str, Head, bytes, bytes]] = []
    asked: dict[tuple[str, int, bytes], int] = {}  # where an answer belongs to
    for row in ROWS:
        frame = bytes.fromhex(row["hex"])
        if row["case"] == MALFORMED or not frame:
            continue
        if row["dir"] == "s2c":
            at = asked.pop((row["case"], row.get("conn", 1), frame[4:8]), None)
            if at is not None:
                found[at] = (*found[at][:3], frame)
            continue
        try:
            head = head_of(frame)
        except FormatError:  # higher versions, and requests that are not spoken
            continue
        if head.is_spoken:
            asked[row["case"], row.get("conn", 1), frame[8:12]] = len(found)
            found.append((f"{row['case']}/{row['step']}", head, frame, b""))
    return found


def test_requests_and_answers_of_real_clients_and_brokers_round_trip() -> None:
    requests, answers = set(), set()
    for place, head, frame, answer in exchanges():
        request = decode_request(memoryview(frame), head)
        assert encode_request(head, request.client_id, request.body) == frame, place
        requests.add((head.key, head.version))
        if answer:
            body = decode_response(memoryview(answer), head)
            if head.key != Key.API_VERSIONS:  # whose answers have tagged fields, which are not kept
                assert encode_response(head, body) == answer, place
            answers.add((head.key, head.version))
    assert {key for key, _ in requests} == set(Key) - {Key.INCREMENTAL_ALTER_CONFIGS}
    assert {key for key, _ in answers} == {key for key, _ in requests}
    assert len(requests) >= 30


def test_what_is_no_frame_is_refused_before_it_is_read() -> None:
    for row in ROWS:
        frame = bytes.fromhex(row["hex"])
        if row["case"] == MALFORMED and row["dir"] == "c2s":
            with pytest.raises(FormatError):
                decode_request(memoryview(frame), head_of(frame))
    head = Head(Key.METADATA, 1, 1)
    too_large = (PLAIN_REQUEST_BYTES_MAX + 1).to_bytes(4, "big") + bytes(encode_request(head, "x", {"topics": None}))[
        4:
    ]
    with pytest.raises(FormatError, match="METADATA of"):
        frame_bounds(memoryview(too_large), 0, len(too_large))
    for size in (-1, 7, REQUEST_BYTES_MAX + 1):
        with pytest.raises(FormatError, match="a request of"):
            head_of(size.to_bytes(4, "big", signed=True) + bytes(8))


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS handshake, .* tls_certificate .* SASL_PLAINTEXT"),
        (b"GET / HTTP/1.1\r\n", "HTTP, which is spoken at the address of .admin."),
        (b"POST /v1/topics HTTP/1.1\r\n", "HTTP"),
    ],
)
def test_what_else_comes_is_told_by_its_name(sent: bytes, told: str) -> None:
    with pytest.raises(FormatError, match=told):
        frame_bounds(memoryview(sent), 0, len(sent))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_versions_that_are_not_spoken_are_refused(api: Any) -> None:
    for version in (api.first - 1, api.last + 1):
        frame = b"".join(
            (b"\0\0\0\x0a", int(api.key).to_bytes(2, "big"), version.to_bytes(2, "big", signed=True), bytes(6))
        )
        if api.key == Key.API_VERSIONS:
            assert not head_of(frame).is_spoken
        else:
            with pytest.raises(FormatError, match="spoken are"):
                head_of(frame)


def test_the_answer_to_a_version_that_is_not_spoken_is_one_that_everybody_reads() -> None:
    asked = Head(Key.API_VERSIONS, 5, 7, is_spoken=False)
    answer = encode_response(asked, {"error": 35, "apis": [{"key": 18, "first": 0, "last": 3}]})
    assert answer.hex() == "00000010" + "00000007" + "0023" + "00000001" + "0012" + "0000" + "0003"
    assert decode_response(memoryview(answer), asked)["error"] == 35


def test_frames_that_are_cut_anywhere() -> None:
    seen = set()
    for place, head, frame, answer in exchanges():
        if (head.key, head.version) in seen:
            continue
        seen.add((head.key, head.version))
        for length in range(min(len(frame), 300)):
            found = frame_bounds(memoryview(frame), 0, length)
            assert found is None if length < 12 else found == (head, len(frame)), place
            if length >= 12:
                with pytest.raises(FormatError):
                    decode_request(memoryview(frame)[:length], head)
        for length in range(8, min(len(answer), 300)):
            with pytest.raises(FormatError):
                decode_response(memoryview(answer)[:length], head)


def test_bytes_behind_an_answer_are_told() -> None:
    head = Head(Key.DELETE_TOPICS, 1, 1)
    answer = encode_response(head, {"topics": []})
    with pytest.raises(FormatError, match="1 bytes behind"):
        decode_response(memoryview(answer + b"\0"), head)


@given(st.binary(max_size=200), st.sampled_from(list(APIS.values())), st.data())
def test_any_bytes_are_a_message_or_refused(data: bytes, api: Any, draw: st.DataObject) -> None:
    version = draw.draw(st.integers(api.first, api.last))
    for form in (request_form(api.key, version), response_form(api.key, version)):
        try:
            values = form.read(Reader(memoryview(data)))
        except FormatError:
            continue
        out = bytearray()
        form.write(out, values)
        assert form.read(Reader(memoryview(out))) == values


def test_lengths_are_bounded_before_memory_is_taken() -> None:
    reader = Reader(memoryview(bytes(4 * ELEMENTS_MAX + 100)))
    many = Structure([Field("many", Array(Type.INT8))], 0, flexible=False)
    for count in (ELEMENTS_MAX + 1, (1 << 31) - 1):
        data = memoryview(count.to_bytes(4, "big") + bytes(2 * ELEMENTS_MAX))
        with pytest.raises(FormatError, match="elements"):
            many.read(Reader(data))
    with pytest.raises(FormatError, match="elements"):
        many.read(Reader(memoryview(b"\0\0\0\x05\0\0\0\0")))
    assert many.read(Reader(memoryview(b"\0\0\0\x05\0\0\0\0\x01"))) == {"many": [0, 0, 0, 0, 1]}
    nested = Structure([Field("all", Array((Field("many", Array(Type.INT8)),)))], 0, flexible=False)
    half = (ELEMENTS_MAX // 2).to_bytes(4, "big") + bytes(ELEMENTS_MAX // 2)
    with pytest.raises(FormatError, match="elements"):  # all arrays count together
        nested.read(Reader(memoryview(b"\0\0\0\x02" + half + half)))
    assert reader.elements_left == ELEMENTS_MAX


def flexible(*fields: Field) -> Structure:
    return Structure(fields, 0, flexible=True)


@pytest.mark.parametrize(
    ("structure", "data", "text"),
    [
        (Structure([Field("a", Type.STRING)], 0, flexible=False), "ffff", "null where a string"),
        (Structure([Field("a", Type.STRING)], 0, flexible=False), "0001ff", "not UTF-8"),
        (Structure([Field("a", Type.STRING)], 0, flexible=False), "fffe", "a length of -2"),
        (Structure([Field("a", Type.BYTES)], 0, flexible=False), "ffffffff", "null where bytes"),
        (Structure([Field("a", Array(Type.INT8))], 0, flexible=False), "ffffffff", "null where an array"),
        (Structure([Field("a", Type.INT32), Field("b", Type.INT16)], 0, flexible=False), "00", "before a or b"),
        (flexible(Field("a", Type.STRING)), "8180808080", "more than 5 bytes"),
        (flexible(Field("a", Type.STRING)), "818002" + "61" * 32_768 + "00", "a string of 32768 bytes"),
        (flexible(), "010005", "5 bytes are announced"),
    ],
)
def test_malformed_values_are_refused(structure: Structure, data: str, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        structure.read(Reader(memoryview(bytes.fromhex(data))))


def test_tagged_fields_are_passed_over() -> None:
    values = flexible(Field("a", Type.INT8)).read(Reader(memoryview(bytes.fromhex("07020002aabb800100"))))
    assert values == {"a": 7}


def test_fields_that_are_not_in_a_version_have_their_defaults() -> None:
    fields = (Field("old", Type.INT8, until=1), Field("new", Type.INT16, 2, -5), Field("text", Type.NULLABLE_STRING))
    assert Structure(fields, 1, flexible=False).read(Reader(memoryview(b"\x01\xff\xff"))) == {
        "old": 1,
        "new": -5,
        "text": None,
    }
    out = bytearray()
    Structure(fields, 2, flexible=False).write(out, {"old": 9})
    assert out.hex() == "fffb" + "ffff"


def test_nothing_is_announced_for_operations_and_ids() -> None:
    head = Head(Key.METADATA, 10, 1)
    answer = encode_response(head, {"brokers": [], "controller": 1, "topics": [
        {"error": 0, "name": "t", "partitions": []}
    ]})  # fmt: skip
    body = decode_response(memoryview(answer), head)
    assert body["topics"][0]["operations"] == body["operations"] == NO_OPERATIONS
    assert body["topics"][0]["id"] == bytes(16)


def test_varints() -> None:
    for value in (0, 1, 127, 128, 300, (1 << 35) - 1):
        out = bytearray()
        put_varint(out, value)
        assert Reader(memoryview(out)).varint() == value


def test_records_are_views_of_the_request_and_sent_from_any_pieces() -> None:
    head = Head(Key.PRODUCE, 7, 3)
    body = {"acks": 1, "timeout_ms": 5, "topics": [
        {"name": "t", "partitions": [{"index": 0, "records": [b"ab", b"cd"]}, {"index": 1}]}
    ]}  # fmt: skip
    frame = encode_request(head, None, body)
    (topic,) = decode_request(memoryview(frame), head).body["topics"]
    records = topic["partitions"][0]["records"]
    assert isinstance(records, memoryview)
    assert bytes(records) == b"abcd"
    assert records.obj is frame
    assert not topic["partitions"][1]["records"]


@pytest.mark.parametrize("version", [4, 11, 12])
def test_large_records_are_sent_from_where_they_are(version: int) -> None:
    """Each answer to Fetch was copied five times on its way to the socket."""
    large, small = memoryview(bytes(range(256)) * (SENT_FROM_PLACE_BYTES // 256)), b"small"
    form = response_form(Key.FETCH, version)

    def partitions(topic: int) -> list[Values]:
        some = [[small], [small, large], [large, large, small], []]
        return [{"index": topic + index, "aborted": None, "records": records} for index, records in enumerate(some)]

    def topics(out: Callable[[], bytearray], first: int) -> Encoded:
        inner, data = form.inner["topics"], out()
        for topic in range(first, first + 2):
            parts = out()
            for partition in partitions(topic):
                inner.inner["partitions"].write(parts, partition)
            inner.write(data, {"name": f"t{topic}", "partitions": Encoded(4, parts)})
        return Encoded(2, data)

    head, copied = Head(Key.FETCH, version, 7), topics(bytearray, 3)
    referred = topics(Output, 3)
    answer = encode_response(head, {"topics": referred})
    pieces = list(answer.pieces())
    expected = bytes(encode_response(head, {"topics": copied}))
    assert b"".join(pieces) == expected
    assert answer.size_bytes == len(expected)
    assert referred.size_bytes == copied.size_bytes
    assert sum(piece is large for piece in pieces) == 6
    assert all(pieces), "no empty ones"
