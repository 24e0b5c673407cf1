"""Who somebody is, and what they may do: rights over topics by glob, a role on the admin side, quotas.

A glob is over the whole topic: ``*`` any characters, ``?`` one, ``[...]`` one of some; no glob, no right.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from re import Pattern
from re import compile as compile_pattern
from typing import Final

from netserver.limits import RIGHTS_REMEMBERED_MAX

EVERYTHING: Final = ("*",)


class Right(StrEnum):
    """What may be done with a topic."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CREATE = "create"
    MANAGE = "manage"


class Role(StrEnum):
    """What may be done over admin HTTP; each may do what those before it may."""

    VIEWER = "viewer"
    READER = "reader"
    OPERATOR = "operator"


ROLES: Final = tuple(Role)
_RANKS: Final[dict[str, int]] = {role: rank for rank, role in enumerate(ROLES)}


@dataclass(frozen=True, slots=True)
class Quotas:
    """What an identity may use at a time, all its connections together; 0: as much as anybody.

    Rates are met by reading and sending more slowly, the others by refusing one more.
    """

    bytes_in_per_s: int = 0
    records_in_per_s: int = 0
    bytes_out_per_s: int = 0
    records_out_per_s: int = 0
    connections: int = 0
    topics: int = 0
    partitions: int = 0
    subscriptions: int = 0
    sessions: int = 0


QUOTA_NAMES: Final = tuple(one.name for one in dataclasses.fields(Quotas))
UNLIMITED: Final = Quotas()


@dataclass(frozen=True, slots=True)
class Identity:
    """A holder of rights.

    Attributes:
        name: unique in the key file; of keys from the configuration their place there.
        publish, subscribe, create, manage: globs over topic names; create None: as publish and subscribe.
        role: on the admin side; empty: none.
        listeners: where it counts; empty: everywhere.
        certificates: globs over the names of a client certificate, ``CN=..``, ``DNS:..``, ``URI:..``, ``EMAIL:..``.
        networks: addresses that are it without any credentials.
        is_anyone: it is whoever is nobody else.
        proof: what is kept of the key: another key of the same name is another holder's.
    """

    name: str
    publish: tuple[str, ...] = EVERYTHING
    subscribe: tuple[str, ...] = EVERYTHING
    create: tuple[str, ...] | None = None
    manage: tuple[str, ...] = ()
    role: str = ""
    listeners: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    is_anyone: bool = False
    quotas: Quotas = UNLIMITED
    proof: bytes = field(default=b"", repr=False)
    _known: dict[tuple[Right, bytes], bool] = field(default_factory=dict, repr=False, compare=False)

    def may(self, right: Right, topic: bytes) -> bool:
        """Whether this is allowed; answered from memory for topics that were asked for before."""
        key = (right, topic)
        known = self._known.get(key)
        if known is None:
            known = any(_matches(globs, topic) for globs in self.globs(right))
            if len(self._known) >= RIGHTS_REMEMBERED_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def may_publish(self, topic: bytes) -> bool:
        """Whether publishing to this topic is allowed."""
        return self.may(Right.PUBLISH, topic)

    def may_subscribe(self, topic: bytes) -> bool:
        """Whether reading from this topic is allowed."""
        return self.may(Right.SUBSCRIBE, topic)

    def may_see(self, topic: bytes) -> bool:
        """Whether it may know that there is this topic: it has some right to it."""
        return any(self.may(right, topic) for right in Right)

    def globs(self, right: Right) -> tuple[tuple[str, ...], ...]:
        """The lists of globs that give a right."""
        if right is Right.CREATE and self.create is None:
            return self.publish, self.subscribe
        found = {
            Right.PUBLISH: self.publish,
            Right.SUBSCRIBE: self.subscribe,
            Right.CREATE: self.create or (),
            Right.MANAGE: self.manage,
        }
        return (found[right],)

    def has_role(self, role: Role) -> bool:
        """Whether its role is this one or above it."""
        return bool(self.role) and _RANKS[self.role] >= _RANKS[role]

    def counts_at(self, listener: str) -> bool:
        """Whether it is known at a listener."""
        return not self.listeners or listener in self.listeners

    def loses_by(self, other: Identity) -> bool:
        """Whether ``other``, in its place, may do less."""
        for right in Right:
            mine = {glob for globs in self.globs(right) for glob in globs}
            if mine - {glob for globs in other.globs(right) for glob in globs}:
                return True
        return bool(self.role) and not other.has_role(Role(self.role))


ANYBODY: Final = Identity("anybody", manage=EVERYTHING)
"""Where nobody has to say who they are."""


@lru_cache(1024)
def _pattern(glob: str) -> Pattern[str]:
    return compile_pattern(translate(glob))


def matches_glob(glob: str, text: str) -> bool:
    """Whether a glob stands for the whole text."""
    return glob == "*" or _pattern(glob).match(text) is not None


def _matches(globs: tuple[str, ...], topic: bytes) -> bool:
    text = topic.decode("utf-8", "surrogateescape")
    return any(matches_glob(glob, text) for glob in globs)
