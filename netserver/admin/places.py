"""Connections to admin HTTP whose requests may last: they count with those of clients, not with the few of admin HTTP.

A reader that follows, or a body that comes slowly, holds its connection for as long as it likes. There are
`ADMIN_CONNECTIONS_MAX` for health checks and operators; who fills them keeps those out. So a connection that publishes
or reads records, or brings a body of somebody who is no operator, has a place among the clients' connections from then
on: half of these at most for all of them, and a quarter for one host, so that neither can keep out other protocols, or
other readers.
"""

from __future__ import annotations

from typing import Final

from engine.errors import LimitReached
from netserver.access.quotas import QuotaReached
from netserver.shell.listener import ConnectionGate, Lost

ALL_SHARE: Final = 2
HOST_SHARE: Final = 4
"""One part of so many of the clients' connections."""


class NoPlace(LimitReached):
    """All places are taken.

    Attributes:
        retry_after_s: when one may be free.
    """

    retry_after_s = 1


class Places:
    """See the module.

    Args:
        gate: of the clients' connections.

    Attributes:
        taken: how many are, by whom.
    """

    def __init__(self, gate: ConnectionGate) -> None:
        self.taken: dict[str, int] = {}
        self._gate = gate
        self._count = 0

    def take(self, host: str) -> Lost:
        """One for a host; the result gives it back, once.

        Raises:
            NoPlace: nobody gets one now.
            QuotaReached: this host has its share.
        """
        most, of_host = self._gate.connections_max, self.taken.get(host, 0)
        if not self._gate.is_open or self._count >= max(most // ALL_SHARE, 1):
            raise NoPlace(f"{self._count} connections over HTTP are open, no more are to be had now")
        if of_host >= max(most // HOST_SHARE, 1):
            raise QuotaReached(f"{of_host} connections of {host} over HTTP are open, which is its share")
        leave = self._gate.enter(tells=False)
        self._count += 1
        self.taken[host] = of_host + 1

        def give_back() -> None:
            leave()
            self._count -= 1
            self.taken[host] -= 1
            if not self.taken[host]:
                del self.taken[host]

        return give_back
