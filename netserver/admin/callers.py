"""Who sends a request to the admin API, and whether they may; what they change, or are refused, is in the audit."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from netserver.access.identity import EVERYTHING, Identity, Right, Role
from netserver.access.table import Route, topic_of
from netserver.admin.api import bytes_field

if TYPE_CHECKING:
    from aiohttp import web

    from engine.state.catalog import Catalog
    from netserver.access.access import Access

LISTENER: Final = "admin"
OPERATOR: Final = Identity("operator", manage=EVERYTHING, role=Role.OPERATOR)
"""Whoever has the token of the data directory."""


class Caller:
    """One request's sender.

    Attributes:
        identity: who they are; None: nobody.
        refused_after_s: so long a refusal of nobody waits.
        why_not: the text of a refusal.
    """

    def __init__(self, access: Access, token: str, request: web.BaseRequest) -> None:
        self.why_not = ""
        self.refused_after_s = 0.0
        self._access = access
        self._what = ""
        self._on: bytes | str = ""
        where = request.transport.get_extra_info("peername") if request.transport is not None else None
        self._peer = f"{where[0]}:{where[1]}" if isinstance(where, tuple) else "?"
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.identity: Identity | None = None
        if hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
            self.identity = OPERATOR
        elif given:
            self.identity = access.identities.check(given, LISTENER)
            if self.identity is None:
                self.refused_after_s = access.guard.failed(str(request.remote or ""), given)
        if self.identity is None:
            access.audit.refuse("nobody", self._peer, LISTENER, f"{request.method} {request.path[:100]}")

    def may_begin(self, route: Route, parts: Sequence[bytes]) -> bool:
        """Whether the body is worth reading: some right of theirs may be enough."""
        self._what = f"{route.method} /v1/{'/'.join(route.path)}"
        self._on = b"/".join(parts[1:])
        identity = self.identity
        assert identity is not None
        if identity.has_role(route.role) or route.right is not None:
            return True
        return self._refuse(f"{identity.name} has not the role {route.role}")

    def may(self, route: Route, parts: Sequence[bytes], body: Mapping[str, Any], catalog: Catalog) -> bool:
        """Whether the request may be carried out."""
        identity = self.identity
        assert identity is not None
        self._is_change = route.changes
        topic = topic_of(route, parts)
        if topic is None and route.right is not None:
            topic = bytes_field(dict(body), "name")
        if topic is not None:
            self._on = topic
        elif isinstance(body.get("name"), str):
            self._on = str(body["name"])
        if identity.has_role(route.role):
            return True
        assert route.right is not None, "see may_begin"
        makes = route.right is Right.PUBLISH and topic is not None and catalog.get(topic) is None
        if topic is not None and identity.may(route.right, topic) and (not makes or identity.may(Right.CREATE, topic)):
            return True
        return self._refuse(f"{identity.name} has neither the role {route.role} nor the right to {route.right} there")

    def still_may(self, route: Route, parts: Sequence[bytes]) -> bool:
        """Whether a request that was begun may go on: rights change while it lasts."""
        identity = self.identity
        if identity is None or identity is OPERATOR:
            return identity is not None
        current = self._access.identities.current(identity)
        if current is None or not current.counts_at(LISTENER):
            return self._refuse(f"{identity.name} is not known any more")
        self.identity = current
        topic = topic_of(route, parts)
        may = topic is not None and route.right is not None and current.may(route.right, topic)
        return may or current.has_role(route.role) or self._refuse(f"{current.name} may not go on")

    def done(self) -> None:
        """The request was carried out."""
        if self._is_change and self.identity is not None:
            self._access.audit.change(self.identity.name, self._peer, LISTENER, self._what, self._on)

    def failed(self, error: Exception) -> None:
        """It was not."""
        if self._is_change and self.identity is not None:
            name = type(error).__name__
            self._access.audit.change(self.identity.name, self._peer, LISTENER, self._what, self._on, name)

    _is_change = False

    def _refuse(self, why: str) -> bool:
        assert self.identity is not None
        self.why_not = why
        self._access.audit.refuse(self.identity.name, self._peer, LISTENER, self._what, self._on)
        return False
