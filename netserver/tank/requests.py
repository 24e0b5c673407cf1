"""Requests of TANK: payload bytes to values and back.

Layouts (little-endian; ``str8`` = u8 length and bytes; ``varint`` = LEB128 of a u32), after the frame header:

====================  =============================================================================================
Produce 1             client version u16, request id u32, client id str8, required acks u8, ack timeout u32 (ms),
                      topics u8, each: name str8, partitions u8, each: id u16, bundle length varint,
                      [ProduceWithSeqnum 5 only: base sequence number u64, not counted in the length], bundle
Consume 2             client version u16, request id u32, client id str8, max wait u64 (ms), min bytes u32,
                      [flags u8 when the client version is 3 or more], topics u8, each: name str8, partitions u8,
                      each: id u16, sequence number u64, fetch size u32
Ping 3                anything
DiscoverPartitions 6  request id u32, topic str8, partition ids u16 until the end
CreateTopic 7         request id u32, topic str8, partitions u16, length of the configuration varint, configuration
ReloadConf 8          request id u32, topic str8, partition u16
Status 10             request id u32
DiscoverTopics 11     request id u32, flags u8
DiscoverTopology 12   request id u32, flags u8
====================  =============================================================================================

Bytes after the last field are ignored, as the original does. RegReplica 4 is obsolete and ConsumePeer 9 belongs to
clusters: a stand-alone node refuses both like an unknown id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from .errors import FormatError
from .limits import PARTITIONS_MAX
from .messages import (
    ConsumePartition,
    ConsumeRequest,
    ConsumeTopic,
    CreateTopicRequest,
    DiscoverPartitionsRequest,
    DiscoverTopicsRequest,
    DiscoverTopologyRequest,
    MessageId,
    Ping,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    ReloadConfRequest,
    Request,
    StatusRequest,
)
from .wire import U16, U32, U64, Reader, str8, varint

FLAGS_CLIENT_VERSION: Final = 3
"""First client version whose Consume carries a flags byte."""

_PREFIX = struct.Struct("<HI")  # client version, request id
_ACKS = struct.Struct("<BI")  # required acks, ack timeout
_WAIT = struct.Struct("<QI")  # max wait, min bytes
_FETCH = struct.Struct("<HQI")  # partition id, sequence number, fetch size


def _decode_produce(reader: Reader, with_seq: bool) -> ProduceRequest:
    client_version, request_id = reader.fields(_PREFIX)
    client_id = reader.str8()
    required_acks, ack_timeout_ms = reader.fields(_ACKS)
    topics = []
    for _ in range(reader.u8()):
        name = reader.str8()
        partitions = []
        for _ in range(reader.u8()):
            partition_id = reader.u16()
            size_bytes = reader.varint()
            base_seq = reader.u64() if with_seq else 0
            partitions.append(ProducePartition(partition_id, reader.take(size_bytes), base_seq))
        topics.append(ProduceTopic(name, tuple(partitions)))
    return ProduceRequest(request_id, tuple(topics), with_seq, client_version, client_id, required_acks, ack_timeout_ms)


def _decode_plain_produce(reader: Reader) -> ProduceRequest:
    return _decode_produce(reader, False)


def _decode_produce_with_seq(reader: Reader) -> ProduceRequest:
    return _decode_produce(reader, True)


def _decode_consume(reader: Reader) -> ConsumeRequest:
    client_version, request_id = reader.fields(_PREFIX)
    client_id = reader.str8()
    max_wait_ms, min_bytes = reader.fields(_WAIT)
    flags = reader.u8() if client_version >= FLAGS_CLIENT_VERSION else 0
    topics = []
    for _ in range(reader.u8()):
        name = reader.str8()
        partitions = tuple(ConsumePartition(*reader.fields(_FETCH)) for _ in range(reader.u8()))
        topics.append(ConsumeTopic(name, partitions))
    return ConsumeRequest(request_id, tuple(topics), max_wait_ms, min_bytes, client_version, client_id, flags)


def _decode_discover_partitions(reader: Reader) -> DiscoverPartitionsRequest:
    request_id = reader.u32()
    topic = reader.str8()
    count, rest = divmod(reader.left, 2)
    if rest:
        raise FormatError("half a partition id at the end of DiscoverPartitions")
    if count > PARTITIONS_MAX:
        raise FormatError(f"{count} partition ids, a topic has at most {PARTITIONS_MAX} partitions")
    return DiscoverPartitionsRequest(request_id, topic, reader.fields(struct.Struct(f"<{count}H")))


def _decode_create_topic(reader: Reader) -> CreateTopicRequest:
    request_id = reader.u32()
    topic = reader.str8()
    partition_count = reader.u16()
    return CreateTopicRequest(request_id, topic, partition_count, bytes(reader.take(reader.varint())))


def _decode_reload_conf(reader: Reader) -> ReloadConfRequest:
    return ReloadConfRequest(reader.u32(), reader.str8(), reader.u16())


def _decode_status(reader: Reader) -> StatusRequest:
    return StatusRequest(reader.u32())


def _decode_discover_topics(reader: Reader) -> DiscoverTopicsRequest:
    return DiscoverTopicsRequest(reader.u32(), reader.u8())


def _decode_discover_topology(reader: Reader) -> DiscoverTopologyRequest:
    return DiscoverTopologyRequest(reader.u32(), reader.u8())


_DECODERS: Final[dict[int, Callable[[Reader], Request]]] = {
    MessageId.PRODUCE: _decode_plain_produce,
    MessageId.CONSUME: _decode_consume,
    MessageId.PING: lambda _reader: Ping(),
    MessageId.PRODUCE_WITH_SEQ: _decode_produce_with_seq,
    MessageId.DISCOVER_PARTITIONS: _decode_discover_partitions,
    MessageId.CREATE_TOPIC: _decode_create_topic,
    MessageId.RELOAD_CONF: _decode_reload_conf,
    MessageId.STATUS: _decode_status,
    MessageId.DISCOVER_TOPICS: _decode_discover_topics,
    MessageId.DISCOVER_TOPOLOGY: _decode_discover_topology,
}

REQUEST_IDS: Final = frozenset(_DECODERS)
"""Message ids that a stand-alone node answers."""


def decode_request(message_id: int, payload: memoryview) -> Request:
    """One request; bundles are views of ``payload``.

    Raises:
        FormatError: unknown message id, or a field is cut off or malformed.
    """
    decoder = _DECODERS.get(message_id)
    if decoder is None:
        raise FormatError(f"message id {message_id} is not a request to a stand-alone node")
    return decoder(Reader(payload))


def _count(items: tuple[object, ...]) -> bytes:
    if len(items) > 255:
        raise FormatError(f"{len(items)} entries, a request holds at most 255 topics and 255 partitions of each")
    return bytes((len(items),))


def _encode_produce(request: ProduceRequest) -> bytes:
    parts: list[bytes | memoryview] = [
        _PREFIX.pack(request.client_version, request.request_id),
        str8(request.client_id),
        _ACKS.pack(request.required_acks, request.ack_timeout_ms),
        _count(request.topics),
    ]
    for topic in request.topics:
        parts += (str8(topic.name), _count(topic.partitions))
        for partition in topic.partitions:
            parts += (U16.pack(partition.partition_id), varint(len(partition.bundle)))
            if request.with_seq:
                parts.append(U64.pack(partition.base_seq))
            parts.append(partition.bundle)
    return b"".join(parts)


def _encode_consume(request: ConsumeRequest) -> bytes:
    parts = [
        _PREFIX.pack(request.client_version, request.request_id),
        str8(request.client_id),
        _WAIT.pack(request.max_wait_ms, request.min_bytes),
    ]
    if request.client_version >= FLAGS_CLIENT_VERSION:
        parts.append(bytes((request.flags,)))
    parts.append(_count(request.topics))
    for topic in request.topics:
        parts += (str8(topic.name), _count(topic.partitions))
        parts += (_FETCH.pack(*partition) for partition in topic.partitions)
    return b"".join(parts)


def _encode_payload(request: Request) -> tuple[int, bytes]:
    match request:
        case ProduceRequest():
            return MessageId.PRODUCE_WITH_SEQ if request.with_seq else MessageId.PRODUCE, _encode_produce(request)
        case ConsumeRequest():
            return MessageId.CONSUME, _encode_consume(request)
        case DiscoverPartitionsRequest(request_id, topic, ids):
            return MessageId.DISCOVER_PARTITIONS, (U32.pack(request_id) + str8(topic) + b"".join(map(U16.pack, ids)))
        case CreateTopicRequest(request_id, topic, partition_count, config):
            return MessageId.CREATE_TOPIC, b"".join(
                (U32.pack(request_id), str8(topic), U16.pack(partition_count), varint(len(config)), config)
            )
        case ReloadConfRequest(request_id, topic, partition_id):
            return MessageId.RELOAD_CONF, U32.pack(request_id) + str8(topic) + U16.pack(partition_id)
        case StatusRequest(request_id):
            return MessageId.STATUS, U32.pack(request_id)
        case DiscoverTopicsRequest(request_id, flags):
            return MessageId.DISCOVER_TOPICS, U32.pack(request_id) + bytes((flags,))
        case DiscoverTopologyRequest(request_id, flags):
            return MessageId.DISCOVER_TOPOLOGY, U32.pack(request_id) + bytes((flags,))
        case Ping():  # pragma: no branch (the last one)
            return MessageId.PING, b""


def encode_request(request: Request) -> bytes:
    """The whole frame of a request.

    Raises:
        FormatError: a name longer than 255 bytes, or more than 255 topics or partitions of one.
    """
    message_id, payload = _encode_payload(request)
    return bytes((message_id,)) + U32.pack(len(payload)) + payload
