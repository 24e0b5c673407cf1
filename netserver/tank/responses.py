"""Answers of TANK: payload bytes to values and back.

Layouts (see ``requests.py`` for the notation), after the frame header:

====================  =============================================================================================
Produce 1             request id u32, then for each topic of the request 0xFF (unknown) or 0xFE (read-only) alone,
                      else a code u8 for each partition; code 0xFC is followed by an address. Neighbouring entries of
                      one unknown or read-only topic share a single byte
Consume 2             header length u32 (bytes of the header that follow), request id u32, topics u8, each:
                      name str8, partitions u8, then 0xFFFF alone (unknown topic) or each partition: id u16, code u8,
                        0     base u64, high-water mark u64, chunk length u32
                        0xFE  high-water mark u64, chunk length u32 (the first bundle brings its own numbers)
                        1     0 u64, high-water mark u64, 0 u32, first available u64
                        0xFC  address; 0xFB, 0xFD, 0xFF  nothing;
                      then all chunks in the same order, each a sequence of: length varint, bundle
Ping 3                nothing
DiscoverPartitions 6  request id u32, topic str8, n u16, each: first u64, last u64, and when both are 2^64-1 a reason
                      u8 (0xFC is followed by an address)
CreateTopic 7         request id u32, topic str8, code u8
ReloadConf 8          request id u32, topic str8, partition u16, code u8
Status 10             request id u32, flags u8, cluster aware u8, topics u32, partitions u32, [cluster aware: flags u8,
                      name str8, nodes u32], open partitions u32, time spent opening u32 (ms), start u32 (unix time),
                      version u32
DiscoverTopics 11     request id u32, topics u32, cluster aware u8, each: name str8, enabled u8, partitions u16,
                      [cluster aware: replicas u8]
DiscoverTopology 12   request id u32, nodes u16 (0xFFFF alone: stand-alone), name str8, each: id u16, flags u8,
                      [flag 1: address], partitions u16
====================  =============================================================================================

An address is 4 octets in dotted order and a port u16. All decoders raise FormatError and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .errors import FormatError
from .messages import (
    SEQ_END,
    UNKNOWN_TOPIC_MARK,
    ConsumeCode,
    ConsumedPartition,
    ConsumedTopic,
    ConsumeResponse,
    CreateTopicResponse,
    DiscoverPartitionsResponse,
    DiscoverTopicsResponse,
    DiscoverTopologyResponse,
    FaultCode,
    Leader,
    MessageId,
    Node,
    PartitionRange,
    Ping,
    ProduceCode,
    ProduceResponse,
    ReloadConfResponse,
    Response,
    StatusResponse,
    TopicEntry,
)
from .wire import U16, U32, U64, Reader, str8

NO_CLUSTER: Final = 0xFFFF
"""In the place of the node count of DiscoverTopology: a stand-alone node."""

ENDPOINT_FLAG: Final = 1
"""Flag of a node in DiscoverTopology: its address follows."""

PING_FRAME: Final = bytes((MessageId.PING, 0, 0, 0, 0))

_WHOLE_TOPIC_CODES: Final = (ProduceCode.UNKNOWN_TOPIC, ProduceCode.READ_ONLY)
_RANGE = struct.Struct("<QQ")
_DENSE = struct.Struct("<HBQQI")  # id, code, base, high-water mark, chunk length
_SPARSE = struct.Struct("<HBQI")  # id, code, high-water mark, chunk length
_CODE = struct.Struct("<HB")  # id, code
_STATUS = struct.Struct("<IBBII")
_STATUS_END = struct.Struct("<IIII")
_ADDRESS = struct.Struct("<BBBBH")


def _leader(reader: Reader) -> Leader:
    *octets, port = reader.fields(_ADDRESS)
    return Leader(".".join(map(str, octets)), port)


def _address(leader: Leader) -> bytes:
    return _ADDRESS.pack(*map(int, leader.host.split(".")), leader.port)


def produce_results(
    codes: bytes, request: Sequence[tuple[bytes, int]]
) -> Iterator[tuple[int, int, int, Leader | None]]:
    """What the codes of a Produce answer say of each partition, in the order of the request.

    Args:
        codes: ``ProduceResponse.codes``.
        request: name and number of partitions of each topic entry of the request (one without partitions must not
            be there if its topic may be unknown: its answer cannot be told from that of the next entry).

    Yields:
        (index of the topic entry, index of the partition in it, code, leader with OTHER_LEADER).

    Raises:
        FormatError: fewer codes than the request has partitions.
    """
    reader = Reader(memoryview(codes))
    refused = b"", 0  # topic and code of the entry before, if one byte stood for all of it
    for topic_index, (name, partition_count) in enumerate(request):
        if not partition_count:
            continue
        if not refused[1] or refused[0] != name:
            refused = b"", 0
            if reader.left and reader.data[reader.position] in _WHOLE_TOPIC_CODES:
                refused = name, reader.u8()
        for index in range(partition_count):
            code = refused[1] or reader.u8()
            yield topic_index, index, code, _leader(reader) if code == ProduceCode.OTHER_LEADER else None


def _decode_produce(reader: Reader) -> ProduceResponse:
    return ProduceResponse(reader.u32(), bytes(reader.take(reader.left)))


def _decode_consumed_partition(header: Reader, chunks: Reader) -> ConsumedPartition:
    partition_id, code = header.fields(_CODE)
    if code in (ConsumeCode.SYSTEM_ERROR, ConsumeCode.NO_LEADER, ConsumeCode.UNKNOWN_PARTITION):
        return ConsumedPartition(partition_id, code)
    if code == ConsumeCode.OTHER_LEADER:
        return ConsumedPartition(partition_id, code, leader=_leader(header))
    base_seq = None if code == ConsumeCode.SPARSE_FIRST else header.u64()
    high_water_mark = header.u64()
    chunk = chunks.take(header.u32())
    if code == ConsumeCode.OUT_OF_RANGE:
        return ConsumedPartition(partition_id, code, high_water_mark, first_available=header.u64())
    if code not in (ConsumeCode.OK, ConsumeCode.SPARSE_FIRST):
        raise FormatError(f"code {code} of partition {partition_id} in a Consume answer")
    return ConsumedPartition(partition_id, code, high_water_mark, base_seq, chunk)


def _decode_consume(reader: Reader) -> ConsumeResponse:
    size_bytes = reader.u32()
    header = Reader(reader.take(size_bytes))
    request_id = header.u32()
    topics = []
    for _ in range(header.u8()):
        name = header.str8()
        partition_count = header.u8()
        if header.left >= 2 and U16.unpack_from(header.data, header.position)[0] == UNKNOWN_TOPIC_MARK:
            header.take(2)
            topics.append(ConsumedTopic(name, (), True, partition_count))
            continue
        partitions = tuple(_decode_consumed_partition(header, reader) for _ in range(partition_count))
        topics.append(ConsumedTopic(name, partitions))
    return ConsumeResponse(request_id, tuple(topics))


def _decode_range(reader: Reader) -> PartitionRange:
    first_seq, last_seq = reader.fields(_RANGE)
    if first_seq != SEQ_END or last_seq != SEQ_END:
        return PartitionRange(first_seq, last_seq)
    fault = reader.u8()
    return PartitionRange(0, 0, fault, _leader(reader) if fault == FaultCode.OTHER_LEADER else None)


def _decode_discover_partitions(reader: Reader) -> DiscoverPartitionsResponse:
    request_id = reader.u32()
    topic = reader.str8()
    return DiscoverPartitionsResponse(request_id, topic, tuple(_decode_range(reader) for _ in range(reader.u16())))


def _decode_create_topic(reader: Reader) -> CreateTopicResponse:
    return CreateTopicResponse(reader.u32(), reader.str8(), reader.u8())


def _decode_reload_conf(reader: Reader) -> ReloadConfResponse:
    return ReloadConfResponse(reader.u32(), reader.str8(), reader.u16(), reader.u8())


def _decode_status(reader: Reader) -> StatusResponse:
    request_id, flags, cluster_aware, topics, partitions = reader.fields(_STATUS)
    cluster = (reader.u8(), reader.str8(), reader.u32()) if cluster_aware else None
    open_partitions, opening_ms, started_unix_s, version = reader.fields(_STATUS_END)
    return StatusResponse(
        request_id, topics, partitions, open_partitions, opening_ms, started_unix_s, version, flags, cluster
    )


def _decode_discover_topics(reader: Reader) -> DiscoverTopicsResponse:
    request_id = reader.u32()
    count = reader.u32()
    cluster_aware = bool(reader.u8())
    if count > reader.left:
        raise FormatError(f"{count} topics announced in {reader.left} bytes")
    topics = []
    for _ in range(count):
        name = reader.str8()
        enabled = bool(reader.u8())
        topics.append(TopicEntry(name, reader.u16(), enabled, reader.u8() if cluster_aware else None))
    return DiscoverTopicsResponse(request_id, tuple(topics), cluster_aware)


def _decode_node(reader: Reader) -> Node:
    node_id, flags = reader.fields(_CODE)
    endpoint = _leader(reader) if flags & ENDPOINT_FLAG else None
    return Node(node_id, flags, reader.u16(), endpoint)


def _decode_discover_topology(reader: Reader) -> DiscoverTopologyResponse:
    request_id = reader.u32()
    count = reader.u16()
    if count == NO_CLUSTER:
        return DiscoverTopologyResponse(request_id)
    name = reader.str8()
    return DiscoverTopologyResponse(request_id, name, tuple(_decode_node(reader) for _ in range(count)))


_DECODERS: Final[dict[int, Callable[[Reader], Response]]] = {
    MessageId.PRODUCE: _decode_produce,
    MessageId.CONSUME: _decode_consume,
    MessageId.PING: lambda _reader: Ping(),
    MessageId.DISCOVER_PARTITIONS: _decode_discover_partitions,
    MessageId.CREATE_TOPIC: _decode_create_topic,
    MessageId.RELOAD_CONF: _decode_reload_conf,
    MessageId.STATUS: _decode_status,
    MessageId.DISCOVER_TOPICS: _decode_discover_topics,
    MessageId.DISCOVER_TOPOLOGY: _decode_discover_topology,
}


def decode_response(message_id: int, payload: memoryview) -> Response:
    """One answer; chunks are views of ``payload``.

    Raises:
        FormatError: unknown message id, or a field is cut off or malformed.
    """
    decoder = _DECODERS.get(message_id)
    if decoder is None:
        raise FormatError(f"message id {message_id} is not an answer")
    return decoder(Reader(payload))


def consumed_entry(partition: ConsumedPartition, chunk_bytes: int) -> bytes:
    """The entry of one partition in the header of a Consume answer; ``chunk_bytes`` of its chunk come later."""
    code = partition.code
    partition_id, high_water_mark = partition.partition_id, partition.high_water_mark
    if code == ConsumeCode.OK:
        return _DENSE.pack(partition_id, code, partition.base_seq or 0, high_water_mark, chunk_bytes)
    if code == ConsumeCode.SPARSE_FIRST:
        return _SPARSE.pack(partition_id, code, high_water_mark, chunk_bytes)
    if code == ConsumeCode.OUT_OF_RANGE:
        return _DENSE.pack(partition_id, code, 0, high_water_mark, 0) + U64.pack(partition.first_available)
    entry = _CODE.pack(partition_id, code)
    return entry if partition.leader is None else entry + _address(partition.leader)


def consume_frame_head(request_id: int, entries: Sequence[bytes], topic_count: int, chunks_bytes: int) -> bytearray:
    """A Consume answer up to its first chunk.

    Args:
        entries: heads of topics (name, count, or the mark of an unknown one) and entries of partitions, in order.
        chunks_bytes: length of all chunks, which the caller appends or writes after it.
    """
    header_bytes = 5 + sum(map(len, entries))
    frame = bytearray((MessageId.CONSUME,))
    frame += U32.pack(4 + header_bytes + chunks_bytes)
    frame += U32.pack(header_bytes)
    frame += U32.pack(request_id)
    frame.append(topic_count)
    for entry in entries:
        frame += entry
    return frame


def topic_head(name: bytes, partition_count: int) -> bytes:
    """Start of a known topic's entries in the header of a Consume answer."""
    return str8(name) + bytes((partition_count,))


def unknown_topic_entry(name: bytes, requested: int) -> bytes:
    """All that a Consume answer says of an unknown topic."""
    return topic_head(name, requested) + U16.pack(UNKNOWN_TOPIC_MARK)


def _encode_consume(response: ConsumeResponse) -> bytes:
    entries = []
    chunks: list[bytes | memoryview] = []
    for topic in response.topics:
        if topic.unknown:
            entries.append(unknown_topic_entry(topic.name, topic.requested))
            continue
        entries.append(topic_head(topic.name, len(topic.partitions)))
        entries += (consumed_entry(partition, len(partition.chunk)) for partition in topic.partitions)
        chunks += (partition.chunk for partition in topic.partitions)
    head = consume_frame_head(response.request_id, entries, len(response.topics), sum(map(len, chunks)))
    return bytes(head) + b"".join(chunks)


def discovered_frame(request_id: int, topic: bytes, count: int, ranges: bytes | bytearray) -> bytes:
    """A DiscoverPartitions answer of ``count`` ranges that are encoded already."""
    head = U32.pack(request_id) + str8(topic) + U16.pack(count)
    return b"".join((bytes((MessageId.DISCOVER_PARTITIONS,)), U32.pack(len(head) + len(ranges)), head, ranges))


def encode_range(partition: PartitionRange) -> bytes:
    """First and last number of a partition, or why they are not known."""
    if not partition.fault:
        return _RANGE.pack(partition.first_seq, partition.last_seq)
    fault = _RANGE.pack(SEQ_END, SEQ_END) + bytes((partition.fault,))
    return fault if partition.leader is None else fault + _address(partition.leader)


def _encode_status(response: StatusResponse) -> bytes:
    cluster = b""
    if response.cluster is not None:
        flags, name, nodes = response.cluster
        cluster = bytes((flags,)) + str8(name) + U32.pack(nodes)
    head = _STATUS.pack(response.request_id, response.flags, bool(cluster), response.topics, response.partitions)
    tail = _STATUS_END.pack(response.open_partitions, response.opening_ms, response.started_unix_s, response.version)
    return head + cluster + tail


def _encode_discover_topics(response: DiscoverTopicsResponse) -> bytes:
    head = U32.pack(response.request_id) + U32.pack(len(response.topics)) + bytes((response.cluster_aware,))
    return head + b"".join(encode_topic(entry, cluster_aware=response.cluster_aware) for entry in response.topics)


def encode_topic(entry: TopicEntry, *, cluster_aware: bool = False) -> bytes:
    """A topic in the answer to DiscoverTopics."""
    encoded = str8(entry.name) + bytes((entry.enabled,)) + U16.pack(entry.partition_count)
    return encoded + bytes((entry.replicas or 0,)) if cluster_aware else encoded


def topics_frame(request_id: int, count: int, entries: bytes) -> bytes:
    """A DiscoverTopics answer of ``count`` topics that are encoded already."""
    head = U32.pack(request_id) + U32.pack(count) + b"\0"
    return b"".join((bytes((MessageId.DISCOVER_TOPICS,)), U32.pack(len(head) + len(entries)), head, entries))


def _encode_discover_topology(response: DiscoverTopologyResponse) -> bytes:
    if response.cluster is None:
        return U32.pack(response.request_id) + U16.pack(NO_CLUSTER)
    parts = [U32.pack(response.request_id), U16.pack(len(response.nodes)), str8(response.cluster)]
    for node in response.nodes:
        parts.append(_CODE.pack(node.node_id, node.flags))
        if node.endpoint is not None:
            parts.append(_address(node.endpoint))
        parts.append(U16.pack(node.partition_count))
    return b"".join(parts)


def _encode_payload(
    response: ProduceResponse
    | DiscoverPartitionsResponse
    | CreateTopicResponse
    | ReloadConfResponse
    | StatusResponse
    | DiscoverTopicsResponse
    | DiscoverTopologyResponse,
) -> tuple[int, bytes]:
    match response:
        case ProduceResponse(request_id, codes):
            return MessageId.PRODUCE, U32.pack(request_id) + codes
        case DiscoverPartitionsResponse(request_id, topic, partitions):
            head = U32.pack(request_id) + str8(topic) + U16.pack(len(partitions))
            return MessageId.DISCOVER_PARTITIONS, head + b"".join(map(encode_range, partitions))
        case CreateTopicResponse(request_id, topic, code):
            return MessageId.CREATE_TOPIC, U32.pack(request_id) + str8(topic) + bytes((code,))
        case ReloadConfResponse(request_id, topic, partition_id, code):
            head = U32.pack(request_id) + str8(topic)
            return MessageId.RELOAD_CONF, head + _CODE.pack(partition_id, code)
        case StatusResponse():
            return MessageId.STATUS, _encode_status(response)
        case DiscoverTopicsResponse():
            return MessageId.DISCOVER_TOPICS, _encode_discover_topics(response)
        case DiscoverTopologyResponse():  # pragma: no branch (the last one)
            return MessageId.DISCOVER_TOPOLOGY, _encode_discover_topology(response)


def encode_response(response: Response) -> bytes:
    """The whole frame of an answer."""
    if isinstance(response, Ping):
        return PING_FRAME
    if isinstance(response, ConsumeResponse):
        return _encode_consume(response)
    message_id, payload = _encode_payload(response)
    return bytes((message_id,)) + U32.pack(len(payload)) + payload
