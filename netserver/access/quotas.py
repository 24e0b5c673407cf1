"""What an identity uses, over all its connections, and how much it may use.

Rates are met by waiting: whatever was read or sent is counted, and the connection goes on when the rate allows. A
burst of `QUOTA_BURST_S` is free. Numbers of things are met by refusing one more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from engine.errors import LimitReached
from netserver.access.rights import Quotas
from netserver.limits import QUOTA_BURST_S, QUOTA_WAIT_MAX_S, QUOTA_WAITING_MAX


class QuotaReached(LimitReached):
    """One more is not to be had.

    Attributes:
        retry_after_s: when it may be, in whole seconds.
    """

    def __init__(self, text: str, wait_s: float = 1.0) -> None:
        super().__init__(text)
        self.retry_after_s = max(math.ceil(wait_s), 1)


class Pace:
    """One direction of an identity's records: bytes and records a second.

    Attributes:
        size_bytes, records: that went through.
        waited_s: that connections were told to wait.
    """

    __slots__ = ("_bytes_at", "_clock_s", "_records_at", "records", "size_bytes", "waited_s")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._bytes_at = self._records_at = -QUOTA_BURST_S  # up to when the rate is used up
        self.size_bytes = 0
        self.records = 0
        self.waited_s = 0.0

    def took(self, size_bytes: int, records: int, bytes_per_s: int, records_per_s: int) -> float:
        """So much went through: the seconds until more may; 0: at once."""
        self.size_bytes += size_bytes
        self.records += records
        now = self._clock_s()
        wait_s = 0.0
        if bytes_per_s:
            self._bytes_at = max(self._bytes_at, now - QUOTA_BURST_S) + size_bytes / bytes_per_s
            wait_s = self._bytes_at - now
        if records_per_s and records:
            self._records_at = max(self._records_at, now - QUOTA_BURST_S) + records / records_per_s
            wait_s = max(wait_s, self._records_at - now)
        if wait_s <= 0:
            return 0.0
        self.waited_s += wait_s
        return wait_s

    def debt_s(self, bytes_per_s: int, records_per_s: int, size_bytes: int = 0) -> float:
        """The seconds until the rate allows more, once ``size_bytes`` will have gone through; 0: now."""
        now = self._clock_s()
        bytes_at = self._bytes_at if bytes_per_s else 0.0
        if bytes_per_s and size_bytes:
            bytes_at = max(bytes_at, now - QUOTA_BURST_S) + size_bytes / bytes_per_s
        return max(bytes_at - now, (self._records_at if records_per_s else 0.0) - now, 0.0)


class Meter:
    """One identity.

    Args:
        exists: whether there is a topic of a name.

    Attributes:
        quotas: those in force.
        connections, subscriptions: at present.
        durable: subscriptions made since the server started that outlive their connections, those gone, too, until one
            looks.
        topics: those made since the server started that are there still, and their partitions.
        refused: things that were not had for the quota, by its name; "rate": requests that could not wait.
        waiting: requests that wait for the rate.
    """

    __slots__ = ("connections", "durable", "exists", "incoming", "name", "outgoing", "quotas", "refused", "sessions",
                 "subscriptions", "topics", "waiting")  # fmt: skip

    def __init__(
        self,
        name: str,
        quotas: Quotas,
        exists: Callable[[bytes], bool] = lambda _topic: True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.quotas = quotas
        self.exists = exists
        self.incoming = Pace(clock_s)
        self.outgoing = Pace(clock_s)
        self.connections = 0
        self.subscriptions = 0
        self.durable: set[int] = set()
        self.topics: dict[bytes, int] = {}
        self.sessions: set[str] = set()
        self.refused: dict[str, int] = {}
        self.waiting = 0

    def received(self, size_bytes: int, records: int) -> float:
        """It has published so much: the seconds until it is read again."""
        return self.incoming.took(size_bytes, records, self.quotas.bytes_in_per_s, self.quotas.records_in_per_s)

    def sent(self, size_bytes: int, records: int) -> float:
        """It was sent so much: the seconds until it is sent more."""
        return self.outgoing.took(size_bytes, records, self.quotas.bytes_out_per_s, self.quotas.records_out_per_s)

    def debt_s(self, *, incoming: bool, size_bytes: int = 0) -> float:
        """The seconds until it may publish, or be sent, more than these bytes."""
        quotas = self.quotas
        if incoming:
            return self.incoming.debt_s(quotas.bytes_in_per_s, quotas.records_in_per_s, size_bytes)
        return self.outgoing.debt_s(quotas.bytes_out_per_s, quotas.records_out_per_s, size_bytes)

    def wait(self, *, incoming: bool) -> float:
        """A request begins to wait for the rate, until `waited`: how long. Raises QuotaReached: that is too long."""
        wait_s = self.debt_s(incoming=incoming)
        if wait_s > QUOTA_WAIT_MAX_S or self.waiting >= QUOTA_WAITING_MAX:
            self._count("rate")
            raise QuotaReached(f"{self.name} is at its rate", wait_s)
        self.waiting += 1
        return wait_s

    def waited(self) -> None:
        """It waits no longer."""
        self.waiting -= 1

    def connect(self) -> bool:
        """One connection more; False: that is one too many (it counts all the same, until it leaves)."""
        self.connections += 1
        allowed = self.quotas.connections
        if allowed and self.connections > allowed:
            self._count("connections")
            return False
        return True

    def disconnect(self) -> None:
        """One connection less."""
        self.connections -= 1

    def subscribe(self) -> None:
        """One subscription more. Raises LimitReached: that is one too many."""
        self._check("subscriptions", self.subscriptions + len(self.durable) + 1)
        self.subscriptions += 1

    def subscribe_durably(self, is_there: Callable[[int], bool]) -> None:
        """One that outlives its connection is about to be made. Raises LimitReached: that is one too many."""
        if self.quotas.subscriptions and self.subscriptions + len(self.durable) >= self.quotas.subscriptions:
            self.durable = {known for known in self.durable if is_there(known)}
        self._check("subscriptions", self.subscriptions + len(self.durable) + 1)

    def unsubscribe(self, count: int = 1) -> None:
        """So many less."""
        self.subscriptions -= count

    def make_topic(self, topic: bytes, partitions: int = 1) -> None:
        """A topic is about to be made. Raises LimitReached: that is one too many, or has too many partitions."""
        if not (self.quotas.topics or self.quotas.partitions):
            return
        self.topics = {name: count for name, count in self.topics.items() if name != topic and self.exists(name)}
        self._check("topics", len(self.topics) + 1)
        self._check("partitions", sum(self.topics.values()) + partitions)
        self.topics[topic] = partitions

    def make_session(self, uuid: str, is_there: Callable[[str], bool]) -> None:
        """A session is about to be made. Raises LimitReached: that is one too many."""
        if not self.quotas.sessions or uuid in self.sessions:
            return
        if len(self.sessions) >= self.quotas.sessions:
            self.sessions = {known for known in self.sessions if is_there(known)}
        self._check("sessions", len(self.sessions) + 1)
        self.sessions.add(uuid)

    def _check(self, quota: str, wanted: int) -> None:
        allowed = getattr(self.quotas, quota)
        if allowed and wanted > allowed:
            self._count(quota)
            raise QuotaReached(f"{self.name} may have {allowed} {quota}, and has them")

    def _count(self, quota: str) -> None:
        self.refused[quota] = self.refused.get(quota, 0) + 1


class Seat:
    """A connection whose requests may come from different identities: it counts with the one of the latest."""

    __slots__ = ("_meter", "_subscriptions")

    def __init__(self) -> None:
        self._meter: Meter | None = None
        self._subscriptions = 0

    def is_of(self, meter: Meter | None) -> bool:
        """Whose it is now."""
        return meter is self._meter

    def take(self, meter: Meter | None) -> None:
        """It is this one's from now on. Raises QuotaReached: that has too many."""
        if meter is self._meter:
            return
        self.leave()
        if meter is None:
            return
        self._meter = meter
        if not meter.connect():
            self.leave()
            raise QuotaReached(f"too many connections of {meter.name}")

    def subscribe(self) -> None:
        """It has one subscription more. Raises QuotaReached."""
        if self._meter is not None:
            self._meter.subscribe()
            self._subscriptions += 1

    def unsubscribe(self) -> None:
        """One less, unless it has left."""
        if self._meter is not None and self._subscriptions:
            self._meter.unsubscribe()
            self._subscriptions -= 1

    def leave(self) -> None:
        """It is nobody's."""
        if self._meter is not None:
            self._meter.disconnect()
            self._meter.unsubscribe(self._subscriptions)
            self._meter = None
            self._subscriptions = 0
