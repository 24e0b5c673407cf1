"""The record, as every protocol and tool sees it, and the errors of its two encodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Marks(NamedTuple):
    """What of a record its message cannot say."""

    is_null: bool = False
    """The value is null, not empty."""
    key: bytes | None = None
    """A key that is empty or longer than 255 bytes; None: it is what the message says."""
    null_headers: tuple[int, ...] = ()
    """Places, among the record's headers, of those whose value is null, not empty."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a partition.

    Attributes:
        seq: sequence number, 1.. within its partition.
        timestamp_ms: milliseconds since 1970 (UTC).
        key: 1..255 bytes; ``b""`` means that it has none, or one that only ``marks`` tell.
        value: any bytes, also none at all.
        headers: flat list name, value, name, value ...; ``()`` means that it has none.
        qos0: published without asking for an acknowledgement (BlipMQ's QoS 0).
        marks: what else Kafka's clients have said; most protocols have no place for it.
    """

    seq: int
    timestamp_ms: int
    key: bytes
    value: bytes
    headers: tuple[bytes, ...] = ()
    qos0: bool = False
    marks: Marks | None = None

    @property
    def is_null(self) -> bool:
        """The value is null; ``value`` is empty then."""
        return self.marks is not None and self.marks.is_null

    @property
    def any_key(self) -> bytes | None:
        """The key, also an empty or a long one; None: it has none."""
        marked = self.marks.key if self.marks is not None else None
        return (self.key or None) if marked is None else marked

    def header_pairs(self) -> list[tuple[bytes, bytes | None]]:
        """Name and value of each header; None: that is null."""
        nulls = self.marks.null_headers if self.marks is not None else ()
        pairs = enumerate(zip(self.headers[::2], self.headers[1::2], strict=False))
        return [(name, None if at in nulls else value) for at, (name, value) in pairs]


class BundleError(ValueError):
    """Bytes are not a bundle; the message says why."""


class BatchError(ValueError):
    """Bytes are not a batch; the message says why."""
