"""The record, as every protocol and tool sees it, and the errors of its two encodings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a partition.

    Attributes:
        seq: sequence number, 1.. within its partition.
        timestamp_ms: milliseconds since 1970 (UTC).
        key: 1..255 bytes; ``b""`` means that it has none.
        value: any bytes, also none at all.
        headers: flat list name, value, name, value ...; ``()`` means that it has none.
        qos0: published without asking for an acknowledgement (BlipMQ's QoS 0).
    """

    seq: int
    timestamp_ms: int
    key: bytes
    value: bytes
    headers: tuple[bytes, ...] = ()
    qos0: bool = False


class BundleError(ValueError):
    """Bytes are not a bundle; the message says why."""


class BatchError(ValueError):
    """Bytes are not a batch; the message says why."""
