"""The messages of TANK as values: what requests ask for and what answers say.

Byte layouts are in the docstrings of ``requests.py`` and ``responses.py``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

SEQ_END: Final = (1 << 64) - 1
"""As a sequence number in Consume: from the end. In DiscoverPartitions: this entry is a fault."""

UNKNOWN_TOPIC_MARK: Final = 0xFFFF
"""In the place of a partition id in a Consume answer: the topic is unknown."""


class MessageId(IntEnum):
    """First byte of a frame."""

    PRODUCE = 1
    CONSUME = 2
    PING = 3
    REG_REPLICA = 4
    PRODUCE_WITH_SEQ = 5
    DISCOVER_PARTITIONS = 6
    CREATE_TOPIC = 7
    RELOAD_CONF = 8
    CONSUME_PEER = 9
    STATUS = 10
    DISCOVER_TOPICS = 11
    DISCOVER_TOPOLOGY = 12


class ProduceCode(IntEnum):
    """One partition's (the last two: one topic's) result of a Produce."""

    WRITTEN = 0
    UNKNOWN_PARTITION = 1
    IO_ERROR = 2
    ACK_TIMEOUT = 3
    TOO_FEW_REPLICAS = 4
    INVALID_SEQ = 10
    OTHER_LEADER = 0xFC
    NO_LEADER = 0xFD
    READ_ONLY = 0xFE
    UNKNOWN_TOPIC = 0xFF


class ConsumeCode(IntEnum):
    """How the entry of a partition in a Consume answer is to be read."""

    OK = 0
    OUT_OF_RANGE = 1
    SYSTEM_ERROR = 0xFB
    OTHER_LEADER = 0xFC
    NO_LEADER = 0xFD
    SPARSE_FIRST = 0xFE
    UNKNOWN_PARTITION = 0xFF


class CreateCode(IntEnum):
    """Result of CreateTopic."""

    CREATED = 0
    EXISTS = 1
    SYSTEM_ERROR = 2
    INVALID_CONFIG = 4
    READ_ONLY = 5
    INVALID_REQUEST = 10


class ReloadCode(IntEnum):
    """Result of ReloadConf."""

    RELOADED = 0
    NO_CONFIG_FILE = 2
    INVALID_CONFIG = 3
    UNKNOWN_PARTITION = 10
    UNKNOWN_TOPIC = 11
    CLUSTER_MODE = 12


class FaultCode(IntEnum):
    """Why DiscoverPartitions has no numbers for a partition."""

    SYSTEM_ERROR = 0xFB
    OTHER_LEADER = 0xFC
    NO_LEADER = 0xFD


class Leader(NamedTuple):
    """Address of the node that another node names as the leader of a partition."""

    host: str
    port: int


class Ping(NamedTuple):
    """Sent once by a server to each connection that it accepts; ignored by servers."""


class ProducePartition(NamedTuple):
    """A bundle for one partition; ``base_seq`` 0 means "the next number"."""

    partition_id: int
    bundle: memoryview | bytes
    base_seq: int = 0


class ProduceTopic(NamedTuple):
    """The bundles for one topic."""

    name: bytes
    partitions: tuple[ProducePartition, ...]


class ProduceRequest(NamedTuple):
    """Produce (1), or with ``with_seq`` ProduceWithSeqnum (5)."""

    request_id: int
    topics: tuple[ProduceTopic, ...]
    with_seq: bool = False
    client_version: int = 2
    client_id: bytes = b""
    required_acks: int = 0
    ack_timeout_ms: int = 0


class ConsumePartition(NamedTuple):
    """``seq`` 0 asks for the first available message, SEQ_END for what comes after the last one."""

    partition_id: int
    seq: int
    fetch_bytes: int


class ConsumeTopic(NamedTuple):
    """What is wanted of one topic."""

    name: bytes
    partitions: tuple[ConsumePartition, ...]


class ConsumeRequest(NamedTuple):
    """Consume (2): records of any number of partitions; ``flags`` is sent from client version 3 on."""

    request_id: int
    topics: tuple[ConsumeTopic, ...]
    max_wait_ms: int = 0
    min_bytes: int = 0
    client_version: int = 2
    client_id: bytes = b""
    flags: int = 0


class DiscoverPartitionsRequest(NamedTuple):
    """Without ids: all partitions of the topic."""

    request_id: int
    topic: bytes
    partition_ids: tuple[int, ...] = ()


class CreateTopicRequest(NamedTuple):
    """CreateTopic (7); ``config`` is lines of ``key = value``."""

    request_id: int
    topic: bytes
    partition_count: int
    config: bytes = b""


class ReloadConfRequest(NamedTuple):
    """ReloadConf (8)."""

    request_id: int
    topic: bytes
    partition_id: int


class StatusRequest(NamedTuple):
    """Status (10)."""

    request_id: int


class DiscoverTopicsRequest(NamedTuple):
    """DiscoverTopics (11)."""

    request_id: int
    flags: int = 0


class DiscoverTopologyRequest(NamedTuple):
    """DiscoverTopology (12)."""

    request_id: int
    flags: int = 0


Request = (
    Ping
    | ProduceRequest
    | ConsumeRequest
    | DiscoverPartitionsRequest
    | CreateTopicRequest
    | ReloadConfRequest
    | StatusRequest
    | DiscoverTopicsRequest
    | DiscoverTopologyRequest
)


class ProduceResponse(NamedTuple):
    """``codes`` as they were sent: their meaning needs the request (``responses.produce_results``)."""

    request_id: int
    codes: bytes


class ConsumedPartition(NamedTuple):
    """``base_seq`` is None with SPARSE_FIRST; ``first_available`` is set with OUT_OF_RANGE only."""

    partition_id: int
    code: int
    high_water_mark: int = 0
    base_seq: int | None = None
    chunk: memoryview | bytes = b""
    first_available: int = 0
    leader: Leader | None = None


class ConsumedTopic(NamedTuple):
    """``requested`` is the partition count of an unknown topic, as the answer repeats it."""

    name: bytes
    partitions: tuple[ConsumedPartition, ...]
    unknown: bool = False
    requested: int = 0


class ConsumeResponse(NamedTuple):
    """Topics and partitions in the order of the request."""

    request_id: int
    topics: tuple[ConsumedTopic, ...]


class PartitionRange(NamedTuple):
    """First and last number of a partition, (0, 0) when it is empty; or a fault."""

    first_seq: int
    last_seq: int
    fault: int = 0
    leader: Leader | None = None


class DiscoverPartitionsResponse(NamedTuple):
    """One range a partition asked for; none at all: the topic is unknown."""

    request_id: int
    topic: bytes
    partitions: tuple[PartitionRange, ...]


class CreateTopicResponse(NamedTuple):
    """``code`` is a CreateCode."""

    request_id: int
    topic: bytes
    code: int


class ReloadConfResponse(NamedTuple):
    """``code`` is a ReloadCode."""

    request_id: int
    topic: bytes
    partition_id: int
    code: int


class StatusResponse(NamedTuple):
    """``cluster`` is (flags, name, nodes) of a node in cluster mode."""

    request_id: int
    topics: int
    partitions: int
    open_partitions: int
    opening_ms: int
    started_unix_s: int
    version: int
    flags: int = 0
    cluster: tuple[int, bytes, int] | None = None


class TopicEntry(NamedTuple):
    """``replicas`` is None unless the node is in cluster mode."""

    name: bytes
    partition_count: int
    enabled: bool = True
    replicas: int | None = None


class DiscoverTopicsResponse(NamedTuple):
    """The topics, in any order."""

    request_id: int
    topics: tuple[TopicEntry, ...]
    cluster_aware: bool = False


class Node(NamedTuple):
    """A node of a cluster."""

    node_id: int
    flags: int
    partition_count: int
    endpoint: Leader | None = None


class DiscoverTopologyResponse(NamedTuple):
    """``cluster`` is None for a stand-alone node."""

    request_id: int
    cluster: bytes | None = None
    nodes: tuple[Node, ...] = ()


Response = (
    Ping
    | ProduceResponse
    | ConsumeResponse
    | DiscoverPartitionsResponse
    | CreateTopicResponse
    | ReloadConfResponse
    | StatusResponse
    | DiscoverTopicsResponse
    | DiscoverTopologyResponse
)
