"""Wrong keys: whoever sends some waits for the answer, longer with each, and so does whoever sends the same one again.
Whoever is refused for a quota over HTTP, and comes again at once, waits likewise: an answer costs more than to wait.

Those of one address count together, of IPv6 those of a network of 64 bits.

All who wait are answered by turns, so many a second: however many connections somebody has, what their tries cost is
bounded. Who waits for nothing, because it is their first tries, is in nobody's turn.

A right key is never kept waiting. A wrong one costs a hash for each salt; while its answer is awaited its connection is
not read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from netserver.access.identities import address_of
from netserver.limits import (
    QUOTA_REFUSED_DELAY_MAX_S,
    WRONG_KEY_DELAY_MAX_S,
    WRONG_KEY_DELAY_S,
    WRONG_KEY_HALF_LIFE_S,
    WRONG_KEYS_ANSWERED_PER_S,
    WRONG_KEYS_FREE,
    WRONG_KEYS_REMEMBERED_MAX,
    WRONG_KEYS_TURN_MAX_S,
    WRONG_KEYS_TURN_S,
)

IPV6_NETWORK_BYTES: Final = 8
"""Of an address: each customer has a network of so many bytes, and 2^64 addresses in it."""


class Guard:
    """How long each has to wait.

    Args:
        clock_s: a clock that nobody sets.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._failures: dict[bytes | int | str, tuple[float, float]] = {}  # how many, when; the longest unchanged first
        self._next_s = 0.0  # when the next one of those who wait may be answered

    def failed(self, host: str, key: str) -> float:
        """A host has sent a wrong key: the seconds that it waits for the answer."""
        wait_s = max(self._count(_place(host)), self._count(hash(key)))  # a hash with a secret of this process
        return max(wait_s, self._turn()) if wait_s else 0.0

    def refused(self, name: str) -> float:
        """An identity was refused something for its quota: the seconds that it waits for the answer."""
        return min(self._count(name), QUOTA_REFUSED_DELAY_MAX_S)

    def _turn(self) -> float:
        """The seconds until it is the turn of one more: of some together, as to wake up costs more than to answer."""
        now = self._clock_s()
        self._next_s = min(max(self._next_s, now) + 1 / WRONG_KEYS_ANSWERED_PER_S, now + WRONG_KEYS_TURN_MAX_S)
        return math.ceil(self._next_s / WRONG_KEYS_TURN_S) * WRONG_KEYS_TURN_S - now

    def _count(self, who: bytes | int | str) -> float:
        now = self._clock_s()
        count, at = self._failures.pop(who, (0.0, now))
        count = count * 0.5 ** ((now - at) / WRONG_KEY_HALF_LIFE_S) + 1
        self._failures[who] = count, now
        if len(self._failures) > WRONG_KEYS_REMEMBERED_MAX:
            del self._failures[next(iter(self._failures))]
        beyond = count - WRONG_KEYS_FREE
        return 0.0 if beyond < 0 else min(WRONG_KEY_DELAY_S * 2.0 ** min(beyond, 32), WRONG_KEY_DELAY_MAX_S)


@lru_cache(WRONG_KEYS_REMEMBERED_MAX // 8)
def _place(host: str) -> bytes:
    address = address_of(host)
    if isinstance(address, IPv6Address):
        return address.packed[:IPV6_NETWORK_BYTES]
    return address.packed if address is not None else host.encode("utf-8", "replace")
