"""TANK codec: captured frames of the real server and clients, layouts, malformed input, and cuts anywhere."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netserver.tank import codec, messages, responses, wire
from netserver.tank.errors import FormatError
from netserver.tank.limits import FRAME_PAYLOAD_BYTES_MAX
from netserver.tank.messages import MessageId, ProduceCode

pytestmark = pytest.mark.checked

VECTORS = Path(__file__).parents[3] / "data" / "tank.jsonl"
# cases whose client frames the codec must refuse: message ids of clusters, and what is malformed
REFUSED = {
    "raw_consume_peer_standalone",
    "raw_unknown_message_id_0",
    "raw_unknown_message_id_4",
    "raw_unknown_message_id_13",
    "raw_unknown_message_id_255",
    "raw_too_long_a_frame",
    "raw_produce_too_short",
    "raw_produce_bundle_longer_than_payload",
    "raw_status_too_short",
    "raw_not_the_protocol",
}


def frames(direction: str) -> list[tuple[str, bytes]]:
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    return [
        (f"{row['case']}/{row['step']}", bytes.fromhex(row["hex"]))
        for row in rows
        if row.get("dir") == direction and row["hex"]
    ]


def test_requests_of_real_clients_round_trip() -> None:
    seen = set()
    for name, frame in frames("c2s"):
        if name.split("/")[0] in REFUSED:
            continue
        decoder = codec.request_decoder()
        (request,) = decoder.feed(frame)
        assert decoder.buffered_bytes == 0, name
        if isinstance(request, messages.Ping):
            continue  # a client's Ping may have a payload, which means nothing
        assert codec.encode_request(request) == frame, name
        seen.add(type(request))
    assert len(seen) == 8


def test_malformed_requests_of_the_captures_are_refused() -> None:
    refused = set()
    for name, frame in frames("c2s"):
        case = name.split("/")[0]
        if case in REFUSED:
            with pytest.raises(FormatError):
                list(codec.request_decoder().feed(frame))
            refused.add(case)
    assert refused == REFUSED


def test_answers_of_the_real_server_round_trip() -> None:
    seen = set()
    for name, frame in frames("s2c"):
        if frame[0] == MessageId.CONSUME_PEER:
            continue
        (response,) = codec.response_decoder().feed(frame)
        assert codec.encode_response(response) == frame, name
        seen.add(type(response))
    assert len(seen) == 9


def test_fields_of_a_real_consume_answer() -> None:
    frame = dict(frames("s2c"))["raw_multi_topic_consume/3"]
    (answer,) = codec.response_decoder().feed(frame)
    assert isinstance(answer, messages.ConsumeResponse)
    orders, unknown, sparse = answer.topics
    assert [partition.code for partition in orders.partitions] == [0xFF, 0]
    assert (orders.partitions[1].base_seq, orders.partitions[1].high_water_mark) == (4, 20)
    assert len(orders.partitions[1].chunk) == 94
    assert (unknown.name, unknown.unknown, unknown.requested) == (b"nosuch", True, 2)
    assert sparse.partitions[0].base_seq is None
    assert sparse.partitions[0].high_water_mark == 301


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16384, "808001"), (0xFFFF_FFFF, "ffffffff0f")],
)
def test_varint(value: int, encoded: str) -> None:
    assert wire.varint(value).hex() == encoded
    assert wire.Reader(memoryview(bytes.fromhex(encoded))).varint() == value


@pytest.mark.parametrize("encoded", ["", "80", "ffffffff", "ffffffff10", "ffffffffff01", "808080808000"])
def test_no_varint(encoded: str) -> None:
    with pytest.raises(FormatError):
        wire.Reader(memoryview(bytes.fromhex(encoded))).varint()


def test_size_limit_is_checked_on_the_header_alone() -> None:
    just = bytes((MessageId.STATUS,)) + wire.U32.pack(FRAME_PAYLOAD_BYTES_MAX)
    over = bytes((MessageId.STATUS,)) + wire.U32.pack(FRAME_PAYLOAD_BYTES_MAX + 1)
    assert list(codec.request_decoder().feed(just)) == []
    assert list(codec.request_decoder().feed(over[:4])) == []
    with pytest.raises(FormatError):
        list(codec.request_decoder().feed(over))


def test_what_follows_the_last_field_is_ignored() -> None:
    request = messages.ProduceRequest(7, (messages.ProduceTopic(b"t", (messages.ProducePartition(0, b"x"),)),))
    frame = codec.encode_request(request) + b"more"
    longer = frame[:1] + wire.U32.pack(len(frame) - 5) + frame[5:]
    assert list(codec.request_decoder().feed(longer)) == [request]


def test_version_3_consume_needs_its_flags() -> None:
    topics = (messages.ConsumeTopic(b"t", (messages.ConsumePartition(0, 0, 1000),)),)
    frame = codec.encode_request(messages.ConsumeRequest(1, topics, client_version=2))
    as_version_3 = bytearray(frame)
    as_version_3[5] = 3
    with pytest.raises(FormatError):
        list(codec.request_decoder().feed(bytes(as_version_3)))
    with_flags = messages.ConsumeRequest(1, topics, client_version=3, flags=1)
    assert list(codec.request_decoder().feed(codec.encode_request(with_flags))) == [with_flags]


@pytest.mark.parametrize("count", [256, 300])
def test_too_many_entries_cannot_be_encoded(count: int) -> None:
    partitions = tuple(messages.ConsumePartition(n, 0, 1) for n in range(count))
    with pytest.raises(FormatError):
        codec.encode_request(messages.ConsumeRequest(1, (messages.ConsumeTopic(b"t", partitions),)))
    with pytest.raises(FormatError):
        codec.encode_request(messages.ReloadConfRequest(1, b"n" * count, 0))


def test_codes_of_a_produce_answer() -> None:
    request = [(b"a", 2), (b"gone", 3), (b"gone", 1), (b"b", 1), (b"gone", 1), (b"led", 2)]
    codes = bytes((0, 1, 0xFF, 10, 0xFF, 0xFC, 127, 0, 0, 1, 0x39, 0x05, 0))
    results = list(responses.produce_results(codes, request))
    assert [(topic, index, code) for topic, index, code, _ in results] == [
        (0, 0, 0), (0, 1, 1), (1, 0, 0xFF), (1, 1, 0xFF), (1, 2, 0xFF), (2, 0, 0xFF), (3, 0, 10), (4, 0, 0xFF),
        (5, 0, 0xFC), (5, 1, 0),
    ]  # fmt: skip
    assert results[8][3] == messages.Leader("127.0.0.1", 1337)
    with pytest.raises(FormatError):
        list(responses.produce_results(codes[:-1], request))


def test_codes_of_entries_without_partitions() -> None:
    assert list(responses.produce_results(b"\x02", [(b"a", 0), (b"b", 1)])) == [(1, 0, ProduceCode.IO_ERROR, None)]


CLUSTER_ANSWERS: list[messages.Response] = [
    messages.StatusResponse(1, 2, 3, 4, 5, 6, 400, cluster=(1, b"prod", 3)),
    messages.DiscoverTopicsResponse(1, (messages.TopicEntry(b"a", 3, False, 2),), True),
    messages.DiscoverTopologyResponse(
        9, b"prod", (messages.Node(1, 3, 7, messages.Leader("10.0.0.1", 11011)), messages.Node(2, 4, 0))
    ),
    messages.DiscoverPartitionsResponse(
        1,
        b"t",
        (
            messages.PartitionRange(1, 9),
            messages.PartitionRange(0, 0, 0xFD),
            messages.PartitionRange(0, 0, 0xFC, messages.Leader("1.2.3.4", 5)),
        ),
    ),
    messages.ConsumeResponse(
        3,
        (
            messages.ConsumedTopic(
                b"t",
                (
                    messages.ConsumedPartition(0, 0xFB),
                    messages.ConsumedPartition(1, 0xFC, leader=messages.Leader("9.8.7.6", 1)),
                    messages.ConsumedPartition(2, 0xFD),
                ),
            ),
        ),
    ),
]


@pytest.mark.parametrize("answer", CLUSTER_ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_of_clusters(answer: messages.Response) -> None:
    assert list(codec.response_decoder().feed(codec.encode_response(answer))) == [answer]


def test_a_count_that_the_payload_cannot_hold_is_refused_at_once() -> None:
    payload = wire.U32.pack(1) + wire.U32.pack(0xFFFF_FFFF) + b"\0"
    frame = bytes((MessageId.DISCOVER_TOPICS,)) + wire.U32.pack(len(payload)) + payload
    with pytest.raises(FormatError):
        list(codec.response_decoder().feed(frame))


# --- properties

U16 = st.integers(0, 0xFFFF)
U32 = st.integers(0, 0xFFFF_FFFF)
U64 = st.integers(0, (1 << 64) - 1)
U8 = st.integers(0, 255)
NAME = st.binary(max_size=12)
TINY = {"max_size": 3}

produce_partition = st.builds(messages.ProducePartition, U16, st.binary(max_size=300), U64)
produce_topic = st.builds(messages.ProduceTopic, NAME, st.lists(produce_partition, **TINY).map(tuple))
consume_partition = st.builds(messages.ConsumePartition, U16, U64, U32)
consume_topic = st.builds(messages.ConsumeTopic, NAME, st.lists(consume_partition, **TINY).map(tuple))


def canonical(request: messages.Request) -> messages.Request:
    """Without the fields that its form on the wire leaves out."""
    if isinstance(request, messages.ProduceRequest) and not request.with_seq:
        topics = (
            topic._replace(partitions=tuple(partition._replace(base_seq=0) for partition in topic.partitions))
            for topic in request.topics
        )
        return request._replace(topics=tuple(topics))
    if isinstance(request, messages.ConsumeRequest) and request.client_version < 3:
        return request._replace(flags=0)
    return request


requests = st.one_of(
    st.builds(
        messages.ProduceRequest, U32, st.lists(produce_topic, **TINY).map(tuple), st.booleans(), U16, NAME, U8, U32
    ),
    st.builds(
        messages.ConsumeRequest, U32, st.lists(consume_topic, **TINY).map(tuple), U64, U32, st.integers(0, 5), NAME, U8
    ),
    st.builds(messages.DiscoverPartitionsRequest, U32, NAME, st.lists(U16, **TINY).map(tuple)),
    st.builds(messages.CreateTopicRequest, U32, NAME, U16, st.binary(max_size=300)),
    st.builds(messages.ReloadConfRequest, U32, NAME, U16),
    st.builds(messages.StatusRequest, U32),
    st.builds(messages.DiscoverTopicsRequest, U32, U8),
    st.builds(messages.DiscoverTopologyRequest, U32, U8),
    st.just(messages.Ping()),
).map(canonical)


def same(left: object, right: object) -> bool:
    """Equal, and of the same message type (named tuples compare by their fields alone)."""
    return type(left) is type(right) and left == right


@given(st.lists(requests, max_size=4), st.lists(st.integers(0, 2000), max_size=6))
def test_requests_round_trip_however_they_are_cut(sent: list[messages.Request], cuts: list[int]) -> None:
    stream = b"".join(map(codec.encode_request, sent))
    decoder = codec.request_decoder()
    positions = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(positions)]
    found = [message for piece in pieces for message in decoder.feed(piece)]
    assert len(found) == len(sent)
    assert all(map(same, found, sent))


def events(make: object, pieces: list[bytes]) -> tuple[list[object], bool]:
    decoder = make()  # type: ignore[operator]
    found: list[object] = []
    try:
        for piece in pieces:
            for message in decoder.feed(piece):
                found.append(message)
    except FormatError:
        return found, True
    return found, False


@given(st.binary(max_size=300), st.integers(0, 300), st.sampled_from([codec.request_decoder, codec.response_decoder]))
def test_any_bytes_decode_or_are_refused_alike_however_they_are_cut(data: bytes, cut: int, make: object) -> None:
    whole = events(make, [data])
    assert events(make, [data[i : i + 1] for i in range(len(data))]) == whole
    assert events(make, [data[:cut], data[cut:]]) == whole


@given(st.sampled_from(sorted(MessageId)), st.binary(max_size=200))
def test_any_payload_decodes_or_is_refused(message_id: int, payload: bytes) -> None:
    for decode, encode in ((codec.decode_request, codec.encode_request), (codec.decode_response, None)):
        try:
            message = decode(message_id, memoryview(payload))
        except FormatError:
            continue
        if encode is not None and not isinstance(message, messages.Ping):
            again = encode(message)[5:]
            assert payload[: len(again)] == again or message_id in (1, 5, 7)  # varints may be longer than needed
