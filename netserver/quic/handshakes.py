"""Unfinished handshakes of a server: how many there may be, and who gives way to a new one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from netserver.limits import HALF_OPEN_HOST_MAX, HALF_OPEN_MAX, HALF_OPEN_RETRY
from netserver.quic.datagrams import network_of

if TYPE_CHECKING:
    from netserver.quic.peer import QuicPeer


class Handshakes:
    """Those that are under way, oldest first."""

    def __init__(self) -> None:
        self._networks: dict[QuicPeer, str] = {}
        self._unanswered: dict[QuicPeer, None] = {}
        self._shares: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._networks)

    @property
    def need_tokens(self) -> bool:
        """There are so many that a client has to show first that its address is its own."""
        return len(self._networks) >= HALF_OPEN_RETRY

    def is_full(self, host: str) -> bool:
        """There is no place for a further one of this host."""
        return len(self._networks) >= HALF_OPEN_MAX or self._shares[network_of(host)] >= HALF_OPEN_HOST_MAX

    def gives_way(self, host: str) -> QuicPeer | None:
        """Who makes room: the oldest that has never answered, of the same network where its share is used up."""
        network = network_of(host)
        is_own = self._shares[network] >= HALF_OPEN_HOST_MAX
        return next((peer for peer in self._unanswered if not is_own or self._networks[peer] == network), None)

    def begun(self, peer: QuicPeer, host: str) -> None:
        """One more."""
        network = self._networks[peer] = network_of(host)
        self._unanswered[peer] = None
        self._shares[network] += 1

    def answered(self, peer: QuicPeer) -> None:
        """The client has seen what the server has sent."""
        self._unanswered.pop(peer, None)

    def over(self, peer: QuicPeer) -> bool:
        """It is complete or given up; whether it was under way."""
        network = self._networks.pop(peer, None)
        if network is None:
            return False
        self._unanswered.pop(peer, None)
        self._shares[network] -= 1
        if not self._shares[network]:
            del self._shares[network]
        return True
