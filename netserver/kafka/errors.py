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
    INVALID_TOPIC = 17
    INVALID_ACKS = 21
    TOPIC_FORBIDDEN = 29
    UNSUPPORTED_VERSION = 35
    TOPIC_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION = 38
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY = 44
    STORAGE = 56
    FETCH_SESSION_UNKNOWN = 70
    INVALID_RECORD = 87
