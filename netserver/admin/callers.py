"""Who sends a request to admin HTTP, whether they may, and how much; what they change, or are refused, is in the audit.

Somebody is known by ``Authorization: Bearer``, or without that by the certificate of the connection. A browser shows a
certificate for any page that asks it to, so one counts for no request of another site's page (``Origin``).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from netserver.access.quotas import QuotaReached
from netserver.access.rights import EVERYTHING, Identity, Right, Role
from netserver.access.table import Route
from netserver.admin.api import bytes_field, int_field
from netserver.config.clients import KEY
from netserver.shell.tls import certificate_names

if TYPE_CHECKING:
    from aiohttp import web

    from engine.state.topic_catalog import Catalog
    from netserver.access.access import Access
    from netserver.access.quotas import Meter, Seat

LISTENER: Final = "admin"
OPERATOR: Final = Identity("operator", manage=EVERYTHING, role=Role.OPERATOR)
"""Whoever has the token of the data directory."""


class Known(NamedTuple):
    """Somebody who was let in, and what by."""

    identity: Identity
    peer: str
    certificate: tuple[str, ...]

    def current(self, access: Access) -> Identity | None:
        """Who they are by present rights; None: nobody any more."""
        if self.identity is OPERATOR:
            return OPERATOR
        door = access.door(LISTENER)
        if self.certificate:
            return door.arrive(self.peer, self.certificate)
        current = access.identities.current(self.identity) if KEY in door.ways else None
        return current if current is not None and current.counts_at(LISTENER) else None


class Caller:
    """One request's sender.

    Args:
        pause: lets the request wait. Raises ConnectionError: the peer is gone.
        key: what they show; None: the request has it in a header, or the connection a certificate.
        known: they were known before.
        base: what stands before the parts of a route's path.

    Attributes:
        identity: who they are; None: nobody.
        meter: what their identity uses; None: it has no quotas.
        refused_after_s: so long a refusal of nobody waits.
        why_not: the text of a refusal.
    """

    def __init__(
        self,
        access: Access,
        token: str,
        request: web.BaseRequest,
        pause: Callable[[float], Coroutine[Any, Any, None]],
        *,
        key: str | None = None,
        known: Known | None = None,
        base: str = "/v1/",
    ) -> None:
        self.pause = pause
        self.why_not = ""
        self.refused_after_s = 0.0
        self._access = access
        self._door = access.door(LISTENER)
        self._generation = access.identities.generation
        self._request = request
        self._route: Route | None = None
        self._on: bytes | str = ""
        self._group = b""
        transport = request.transport
        where = transport.get_extra_info("peername") if transport is not None else None
        self._peer = f"{where[0]}:{where[1]}" if isinstance(where, tuple) else "?"
        self._certificate: tuple[str, ...] = ()
        self._base = base
        given = request.headers.get("Authorization", "").removeprefix("Bearer ") if key is None else key
        self.identity: Identity | None = None
        if known is not None:
            self.identity, _, self._certificate = known
        elif hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
            self.identity = OPERATOR
        elif given:
            self.identity = access.identities.check(given, LISTENER) if KEY in self._door.ways else None
            if self.identity is None:
                self.refused_after_s = access.guard.failed(str(request.remote or ""), given)
        elif transport is not None and not is_of_another_site(request):
            self._certificate = certificate_names(transport.get_extra_info("peercert"))
            self.identity = self._door.arrive(self._peer, self._certificate)
        self.meter: Meter | None = access.meter_of(self.identity)
        if self.identity is None:
            access.audit.refuse("nobody", self._peer, LISTENER, self._what)

    # --- rights

    @property
    def _what(self) -> str:
        """What the audit says that they asked for: made when it says something."""
        if self._route is None:
            return f"{self._request.method} {self._request.path[:100]}"
        return f"{self._route.method} {self._base}{'/'.join(self._route.path)}"

    @property
    def is_operator(self) -> bool:
        """Whether they may operate the server."""
        return self.identity is not None and self.identity.has_role(Role.OPERATOR)

    def may_begin(self, route: Route, parts: Sequence[bytes]) -> bool:
        """Whether the body is worth reading: some right of theirs may be enough."""
        self._route = route
        self._on = b"/".join(parts[1:])
        self._group = parts[1] if route.path[:2] == ("groups", "NAME") else b""
        identity = self.identity
        assert identity is not None
        if identity.has_role(route.role) or route.right is not None:
            return True
        return self._refuse(f"{identity.name} has not the role {route.role}")

    def may(self, route: Route, topic: bytes | None, body: Mapping[str, Any], catalog: Catalog) -> bool:
        """Whether the request may be carried out; `topic` is what its path says that it is about.

        Raises:
            QuotaReached: it would make a topic too many.
        """
        identity = self.identity
        assert identity is not None
        self._is_change = route.changes and body.get("dry_run") is not True
        if route.path == ("groups",):
            self._group = bytes_field(dict(body), "name") or b""
        if route.named_in is not None:
            topic = bytes_field(dict(body), route.named_in)
        if topic is not None:
            self._on = topic
        elif isinstance(body.get("name"), str):
            self._on = str(body["name"])
        makes = topic is not None and route.right in (Right.PUBLISH, Right.CREATE) and catalog.get(topic) is None
        if not identity.has_role(route.role):
            assert route.right is not None, "see may_begin"
            if (
                topic is None
                or not identity.may(route.right, topic)
                or (makes and not identity.may(Right.CREATE, topic))
            ):
                return self._refuse(
                    f"{identity.name} has neither the role {route.role} nor the right to {route.right} there"
                )
        meter = self.meter
        if makes and topic is not None and meter is not None:
            partitions = int_field(body, "partitions", 1) if route.right is Right.CREATE else 1
            self._had(partial(meter.make_topic, topic, partitions))
        return True

    def still_may(self, route: Route, topic: bytes | None) -> bool:
        """Whether a request that was begun may go on: rights change while it lasts."""
        identities, identity = self._access.identities, self.identity
        if identity is None or identity is OPERATOR or self._generation == identities.generation:
            return identity is not None
        self._generation = identities.generation
        self.identity = current = self._current(identity)
        if current is None:
            self._access.audit.refuse(identity.name, self._peer, LISTENER, self._what, self._on, group=self._group)
            return False
        may = topic is not None and route.right is not None and current.may(route.right, topic)
        if not may and not current.has_role(route.role):
            self.identity = None
            self._access.audit.refuse(current.name, self._peer, LISTENER, self._what, self._on, group=self._group)
        return self.identity is not None

    @property
    def known(self) -> Known | None:
        """As what they are to be known later; None: nobody."""
        return None if self.identity is None else Known(self.identity, self._peer, self._certificate)

    def _current(self, identity: Identity) -> Identity | None:
        return Known(identity, self._peer, self._certificate).current(self._access)

    @contextmanager
    def watched(self, route: Route, topic: bytes | None, end: Callable[[], None]) -> Iterator[None]:
        """Meanwhile ``end`` is called as soon as they may not go on."""

        def changed() -> None:
            if self.identity is not None and not self.still_may(route, topic):
                end()

        self._access.identities.listen(changed)
        try:
            yield
        finally:
            self._access.identities.forget(changed)

    # --- quotas

    def sit(self, seat: Seat) -> None:
        """The connection is theirs. Raises QuotaReached: they have too many."""
        if not seat.is_of(self.meter):
            self._had(partial(seat.take, self.meter))

    async def wait_for_rate(self) -> None:
        """Until their identity may publish, or be sent, more. Raises QuotaReached: that takes too long."""
        meter, incoming = self.meter, self._request.method != "GET"
        if meter is None or not meter.debt_s(incoming=incoming):
            return
        wait_s = meter.wait(incoming=incoming)
        try:
            await self.pause(wait_s)
        finally:
            meter.waited()

    def received(self, size_bytes: int, records: int) -> float:
        """They have sent so much: the seconds until more of it is taken."""
        return self.meter.received(size_bytes, records) if self.meter is not None else 0.0

    def sent(self, size_bytes: int, records: int) -> float:
        """They were sent so much: the seconds until they are sent more."""
        return self.meter.sent(size_bytes, records) if self.meter is not None else 0.0

    @contextmanager
    def subscribed(self, seat: Seat) -> Iterator[None]:
        """Meanwhile they have one subscription more. Raises QuotaReached."""
        self._had(seat.subscribe)
        try:
            yield
        finally:
            seat.unsubscribe()

    def _had(self, take: Callable[[], object]) -> None:
        try:
            take()
        except QuotaReached:
            self._refuse("")
            raise

    # --- the audit

    def done(self) -> None:
        """The request was carried out."""
        if self._is_change and self.identity is not None:
            self._access.audit.change(self.identity.name, self._peer, LISTENER, self._what, self._on, group=self._group)

    def failed(self, error: Exception) -> None:
        """It was not."""
        if self._is_change and self.identity is not None:
            name = type(error).__name__
            self._access.audit.change(self.identity.name, self._peer, LISTENER, self._what, self._on, name, self._group)

    _is_change = False

    def _refuse(self, why: str) -> bool:
        assert self.identity is not None
        self.why_not = why
        self._access.audit.refuse(self.identity.name, self._peer, LISTENER, self._what, self._on, group=self._group)
        return False


def is_of_another_site(request: web.BaseRequest) -> bool:
    """Whether a page of another site had a browser send this."""
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower()
