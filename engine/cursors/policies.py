"""How an owner (a protocol) wants its cursors to behave, and what happened to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cursors.deliveries import DeliveryPolicy


@dataclass(frozen=True, slots=True)
class CursorPolicy:
    """The wishes of one owner.

    Attributes:
        deliveries: redelivery and limits.
        dead_letter_suffix: a record that is given up is appended to the topic of this name, the record's topic in
            front; empty: it is dropped.
        expiry_ms: a cursor without use for so long is deleted; 0: never.
    """

    deliveries: DeliveryPolicy = field(default_factory=DeliveryPolicy)
    dead_letter_suffix: bytes = b""
    expiry_ms: int = 0


@dataclass(slots=True)
class CursorTotals:
    """What happened to the cursors of one owner since the start."""

    acknowledged: int = 0
    redelivered: int = 0
    given_back: int = 0
    given_up: int = 0
    dead_letters: int = 0
    dropped: int = 0
    expired: int = 0
    lost: int = 0


class CursorPolicies:
    """Policies and counters by owner."""

    def __init__(self) -> None:
        self._policies: dict[str, CursorPolicy] = {}
        self._totals: dict[str, CursorTotals] = {}

    def set(self, owner: str, policy: CursorPolicy) -> None:
        """The policy of an owner, from now on."""
        self._policies[owner] = policy

    def policy(self, owner: str) -> CursorPolicy:
        """The policy of an owner."""
        return self._policies.setdefault(owner, CursorPolicy())

    def totals(self, owner: str) -> CursorTotals:
        """Counters of an owner."""
        return self._totals.setdefault(owner, CursorTotals())
