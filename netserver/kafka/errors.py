"""What is wrong with a request: its bytes, or what it asks for."""

from __future__ import annotations

from enum import IntEnum


class FormatError(Exception):
    """Bytes that are no valid request. There is no error frame: the connection is closed."""


class Code(IntEnum):
    """Error codes of the protocol, those that this server sends (records have some more)."""

    NONE = 0
    OUT_OF_RANGE = 1
    CORRUPT = 2
    UNKNOWN_TOPIC = 3
    """Or partition."""
    TOO_LARGE = 10
    METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC = 17
    LIST_TOO_LARGE = 18
    INVALID_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_PROTOCOL = 23
    INVALID_GROUP = 24
    UNKNOWN_MEMBER = 25
    SESSION_TIMEOUT = 26
    REBALANCE = 27
    TOO_MANY_OFFSETS = 28
    TOPIC_FORBIDDEN = 29
    GROUP_FORBIDDEN = 30
    UNSUPPORTED_MECHANISM = 33
    SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION = 38
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY = 44
    OUT_OF_SEQUENCE = 45
    OLD_EPOCH = 47
    INVALID_TXN_STATE = 48
    UNKNOWN_PRODUCER = 49
    """Another one has this transactional id, or nobody."""
    INVALID_TXN_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_FORBIDDEN = 53
    NOT_ATTEMPTED = 55
    STORAGE = 56
    WRONG_KEY = 58
    GROUP_NOT_EMPTY = 68
    GROUP_NOT_FOUND = 69
    FETCH_SESSION_UNKNOWN = 70
    MEMBER_ID_REQUIRED = 79
    GROUP_FULL = 81
    FENCED_INSTANCE = 82
    INVALID_RECORD = 87
    UNSTABLE_OFFSET = 88
    PRODUCER_FENCED = 90
