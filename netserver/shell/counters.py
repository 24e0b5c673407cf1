"""Counters that the hot paths add to: plain integers and lists; ``netserver.admin.metrics`` reads them at a scrape."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from engine.histogram import Histogram

SIZE_BUCKETS_BYTES: Final = tuple(float(64 * 4**n) for n in range(10))
COUNT_BUCKETS: Final = tuple(float(4**n) for n in range(7))


class Counters:
    """What one protocol has done since the start; sessions add to it once per batch.

    ``ack_seconds`` is keyed by durability; the dictionaries by a short fixed reason.
    """

    __slots__ = (
        "ack_seconds",
        "auth_failures",
        "backpressure_s",
        "closed",
        "connections",
        "connections_total",
        "delivered_bytes",
        "delivery_delay",
        "name",
        "protocol_errors",
        "published_bytes",
        "records_delivered",
        "records_published",
        "session_errors",
        "skipped",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.connections_total = 0
        self.records_published = 0
        self.published_bytes = 0
        self.records_delivered = 0
        self.delivered_bytes = 0
        self.backpressure_s = 0.0
        self.auth_failures = 0
        self.session_errors = 0
        self.skipped: defaultdict[str, int] = defaultdict(int)
        self.protocol_errors: defaultdict[str, int] = defaultdict(int)
        self.closed: defaultdict[str, int] = defaultdict(int)
        self.ack_seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.delivery_delay = Histogram()
