"""What tables of requests are written with; see ``netserver.kafka.apis``."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from .schema import Array, Field, Type

BOOL, INT8, INT16, INT32, INT64, UUID = Type.BOOL, Type.INT8, Type.INT16, Type.INT32, Type.INT64, Type.UUID
STRING, TEXT, BYTES, RECORDS = Type.STRING, Type.NULLABLE_STRING, Type.BYTES, Type.RECORDS
INT32S: Final = Array(INT32)
NO_ID: Final = bytes(16)
"""No topic has an id of its own on the wire."""
NO_OPERATIONS: Final = -(1 << 31)
"""Stands for operations that were not asked for."""


class Key(IntEnum):
    """Numbers of requests."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44


class Api(NamedTuple):
    """A request and its answer.

    Attributes:
        first, last: versions that are spoken.
        flexible: first version that is flexible (``netserver.kafka.schema``).
    """

    key: Key
    first: int
    last: int
    flexible: int
    request: tuple[Field, ...]
    response: tuple[Field, ...]


def throttle(since: int = 0) -> Field:
    """How long a client is asked to pause; it is not read as long either (``netserver.kafka.quotas``)."""
    return Field("throttle_ms", INT32, since, 0)


def by_topic(*fields: Field) -> Array:
    """Partitions by topic; each has its number."""
    partitions = Field("partitions", Array((Field("index", INT32), *fields)))
    return Array((Field("name", STRING), partitions))
