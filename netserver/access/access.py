"""Who comes in at a listener, who they are while they are there, and what happens when that changes.

Each listener takes some of four ways to be known, in this order: the certificate of a client (``certificate``), the
address (``network``), a key where the protocol has room for one (``key``), and nothing at all (``anyone``). See
``docs/access.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.callbacks import call_each
from engine.errors import EngineError, LimitReached
from netserver.access.audit import Audit
from netserver.access.guard import Guard
from netserver.access.identities import Identities, address_of
from netserver.access.quotas import Meter
from netserver.access.rights import ANYBODY, EVERYTHING, UNLIMITED, Identity, Right
from netserver.config.clients import ANYONE, CERTIFICATE, KEY, NETWORK
from netserver.limits import AUDIT_NAME_CHARS_MAX

if TYPE_CHECKING:
    from netserver.config.sections import ServerConfig


class Forbidden(EngineError):
    """Whoever asks has not the right."""


OnChange = Callable[[Identity | None, Identity | None], object]


class Visitor:
    """Somebody at a listener.

    Attributes:
        peer: ``host:port``.
        identity: who they are; None: they have not said it yet.
        meter: what their identity uses; None: it has no quotas.
        why_nobody: what they are told, if anything can be told, when they are nobody.
    """

    __slots__ = (
        "_certificate",
        "_door",
        "_on_change",
        "_subscriptions",
        "_with_key",
        "identity",
        "meter",
        "peer",
        "why_nobody",
    )

    def __init__(self, door: Door, peer: str, certificate: Sequence[str], on_change: OnChange) -> None:
        self.peer = peer
        self._door = door
        self._certificate = tuple(certificate)
        self._on_change = on_change
        self._with_key = False
        self._subscriptions = 0
        self.identity: Identity | None = None
        self.meter: Meter | None = None
        self.why_nobody = ""
        self._become(door.arrive(peer, self._certificate))

    @property
    def name(self) -> str:
        """Who they are, for people."""
        return self.identity.name if self.identity is not None else "nobody"

    @property
    def maker(self) -> str:
        """Whose share of the room for topics they use; empty: their host's."""
        identity = self.identity
        if identity is None or not (self._with_key or identity.certificates):
            return ""
        return f"{self._door.listener} key {identity.name}"

    @property
    def is_turned_away(self) -> bool:
        """They are nobody, and there is no way left to say who they are: so nothing can be answered."""
        return self.identity is None and not self.may_log_in

    @property
    def may_log_in(self) -> bool:
        """Whether a key counts here."""
        return KEY in self._door.ways

    def may(self, right: Right, topic: bytes) -> bool:
        """Whether they may do this now."""
        return self.identity is not None and self.identity.may(right, topic)

    @property
    def sees_everything(self) -> bool:
        """No topic is hidden from them."""
        identity = self.identity
        return identity is not None and any("*" in globs for right in Right for globs in identity.globs(right))

    def may_see(self, topic: bytes) -> bool:
        """Whether they may know that there is this topic."""
        return self.identity is not None and self.identity.may_see(topic)

    def may_make(self, topic: bytes) -> bool:
        """Whether a use of a topic that is not there may make it."""
        return self.may(Right.CREATE, topic)

    def check(self, request: str, right: Right, topic: bytes, *, is_there: bool = True) -> bool:
        """Whether a request may be carried out; if not, the audit has it. ``is_there`` False: it makes the topic."""
        if is_there and self.may(right, topic):
            return True
        try:
            self.demand(request, right, topic, is_there=is_there)
        except (Forbidden, LimitReached):
            return False
        return True

    def demand(self, request: str, right: Right, topic: bytes, *, is_there: bool = True) -> None:
        """As `check`.

        Raises:
            Forbidden: they have not the right. LimitReached: their quota of topics is used up.
        """
        wanted = right
        if self.may(right, topic):
            if is_there:
                return
            if self.may(Right.CREATE, topic):
                self.make_topic(request, topic)
                return
            wanted = Right.CREATE
        self.refused(request, topic)
        shown = topic.decode("utf-8", "backslashreplace")[:AUDIT_NAME_CHARS_MAX]
        raise Forbidden(f"{self.name} may not {wanted} {shown!r}")

    # --- quotas

    def make_topic(self, request: str, topic: bytes, partitions: int = 1) -> None:
        """They are about to make a topic. Raises LimitReached."""
        self._had(request, topic, lambda meter: meter.make_topic(topic, partitions))

    def make_session(self, request: str, uuid: str, is_there: Callable[[str], bool]) -> None:
        """They are about to make a session. Raises LimitReached."""
        self._had(request, uuid, lambda meter: meter.make_session(uuid, is_there))

    def subscribe(self, request: str, topic: bytes) -> None:
        """They have one subscription more, until `unsubscribe` or their end. Raises LimitReached."""
        self._had(request, topic, Meter.subscribe)
        self._subscriptions += 1

    def subscribe_durably(self, request: str, topic: bytes, is_there: Callable[[int], bool]) -> None:
        """They are about to make a subscription that outlives them: `made_durable` names it. Raises LimitReached."""
        self._had(request, topic, lambda meter: meter.subscribe_durably(is_there))

    def made_durable(self, subscription_id: int) -> None:
        """They have made it."""
        if self.meter is not None:
            self.meter.durable.add(subscription_id)

    def unsubscribe(self) -> None:
        """They have one less."""
        self._subscriptions -= 1
        if self.meter is not None:
            self.meter.unsubscribe()

    def _had(self, request: str, on: bytes | str, take: Callable[[Meter], object]) -> None:
        if self.meter is not None:
            try:
                take(self.meter)
            except LimitReached:
                self.refused(request, on)
                raise

    def _become(self, identity: Identity | None) -> None:
        """They are known as this from now on, unless it has too many connections: then they are nobody."""
        self.identity = identity
        meter, old = self._door.access.meter_of(identity), self.meter
        if meter is old:
            return
        self.meter = meter
        if old is not None:
            old.disconnect()
            old.unsubscribe(self._subscriptions)
        if meter is None:
            return
        meter.subscriptions += self._subscriptions
        if not meter.connect():
            self._leave_meter()
            self.identity = None
            self.why_nobody = f"too many connections of {meter.name}"

    def _leave_meter(self) -> None:
        if self.meter is not None:
            self.meter.disconnect()
            self.meter.unsubscribe(self._subscriptions)
            self.meter = None

    def refused(self, request: str, topic: bytes | str = "") -> None:
        """They were refused something."""
        self._door.access.audit.refuse(self.name, self.peer, self._door.listener, request, topic)

    def changed(self, request: str, on: bytes | str, result: str = "done") -> None:
        """They have changed something."""
        self._door.access.audit.change(self.name, self.peer, self._door.listener, request, on, result)

    def log_in(self, key: str, name: str | None = None) -> float:
        """They show a key: ``identity`` says afterwards who they are, if anybody.

        Args:
            name: whose key they say that it is. If it is not, they are nobody, whoever they were until now.

        Returns:
            seconds that a refusal has to wait; 0 without one.
        """
        door = self._door
        found = door.access.identities.check(key, door.listener) if self.may_log_in else None
        if found is not None and name in (None, found.name):
            self._with_key = True
            self._become(found)
        elif name is not None:
            self._become(None)
        if self.identity is not None:
            return 0.0
        if self.why_nobody:
            self._with_key = False
            door.access.audit.refuse("nobody", self.peer, door.listener, "AUTH", self.why_nobody)
            return 0.0
        door.access.audit.refuse("nobody", self.peer, door.listener, "AUTH")
        return door.access.guard.failed(host_of(self.peer), key)

    def look_again(self) -> None:
        """The rights have changed."""
        door, old = self._door, self.identity
        if self._with_key:
            if old is None:
                return
            found = door.access.identities.current(old) if KEY in door.ways else None
            new = found if found is not None and found.counts_at(door.listener) else None
        else:
            new = door.arrive(self.peer, self._certificate)
        if new is not old and new != old:
            self._become(new)
            new = self.identity
            if new is None:
                door.access.audit.change(
                    old.name if old else "nobody", self.peer, door.listener, "REVOKE", "", "closed"
                )
            self._on_change(old, new)

    def leave(self) -> None:
        """They are gone."""
        self._on_change = _gone  # which breaks the circle with its connection: see `netserver.shell.collection`
        self._leave_meter()
        self._door.access.visitors.pop(self, None)


class Door:
    """One listener.

    Attributes:
        ways: see the module.
        is_governed: identities are configured for it: who is none of them has no rights.
    """

    def __init__(self, access: Access, listener: str) -> None:
        self.access = access
        self.listener = listener
        self.ways: tuple[str, ...] = ()
        self.is_governed = False
        self._admits_anybody = False
        self._insecure = False

    def take_over(self, config: ServerConfig) -> None:
        """Follow a configuration from now on."""
        self.ways = config.ways_of(self.listener)
        self.is_governed = config.is_governed(self.listener)
        self._admits_anybody = config.admits_anybody(self.listener)
        self._insecure = config.server.insecure

    def who_may(self) -> str:
        """Who comes in here, in words."""
        if self._admits_anybody and self.access.identities.anyone(self.listener) is None:
            where = "from anywhere (insecure)" if self._insecure else "on this machine"
            return f"anybody {where} may do everything"
        ways = ", ".join(self.ways)
        if not self.is_governed:
            return f"whoever has a certificate of the authority may do everything (by {ways})"
        count = sum(self._can_come(one) for one in self.access.identities.names.values())
        whose = []
        if self.listener == "blipmq" and self.access.identities.has_clear_keys:
            whose.append("whoever has a key of allowed_api_keys may do everything")
        if count:
            whose.append(
                "1 identity, what its line says" if count == 1 else f"{count} identities, each what its line says"
            )
        return f"{'; '.join(whose) or 'nobody: no identity of the file can be known here'} (by {ways})"

    def _can_come(self, one: Identity) -> bool:
        """Whether there is a way for an identity to be known here."""
        known_by = {CERTIFICATE: one.certificates, NETWORK: one.networks, KEY: one.proof, ANYONE: one.is_anyone}
        return one.counts_at(self.listener) and any(known_by[way] for way in self.ways)

    def arrive(self, peer: str, certificate: Sequence[str]) -> Identity | None:
        """Who has come, as far as is known without a key."""
        identities, ways = self.access.identities, self.ways
        if certificate and CERTIFICATE in ways:
            if not self.is_governed:  # the authority alone says who may come
                return Identity(certificate[0], manage=EVERYTHING, certificates=(certificate[0],))
            if (found := identities.by_certificate(certificate, self.listener)) is not None:
                return found
        if NETWORK in ways and (found := identities.by_network(host_of(peer), self.listener)) is not None:
            return found
        if ANYONE not in ways:
            return None
        anyone = identities.anyone(self.listener)
        if anyone is not None:
            return anyone
        return ANYBODY if self._admits_anybody and (self._insecure or is_loopback(peer)) else None

    def visit(self, peer: str, certificate: Sequence[str], on_change: OnChange) -> Visitor:
        """Somebody has come; ``on_change`` is called with who they were and who they are when that changes later."""
        visitor = Visitor(self, peer, certificate, on_change)
        self.access.visitors[visitor] = None
        return visitor


class Access:
    """All of a server's access control: one object, in the event loop's thread.

    Attributes:
        identities: everybody who is known.
        visitors: everybody who is there.
        meters: what identities with quotas use, by name.
        exists: whether there is a topic of a name; set once the log is open.

    Raises:
        ConfigError: the access file cannot be used.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.identities = _identities(config)
        self.guard = Guard()
        self.audit = Audit(_audit_path(config))
        self.visitors: dict[Visitor, None] = {}
        self.meters: dict[str, Meter] = {}
        self.exists: Callable[[bytes], bool] = lambda _topic: True
        self._config = config
        self._doors: dict[str, Door] = {}
        self.identities.listen(self._changed)

    def door(self, listener: str) -> Door:
        """A listener's."""
        found = self._doors.get(listener)
        if found is None:
            found = self._doors[listener] = Door(self, listener)
            found.take_over(self._config)
        return found

    def prepare(self, config: ServerConfig) -> Callable[[], None]:
        """Read what a new configuration names; the result takes it over.

        Raises:
            ConfigError: nothing changes.
        """
        prepared = _identities(config)

        def take_over() -> None:
            self._config = config
            self.audit.reopen(_audit_path(config))
            for door in self._doors.values():
                door.take_over(config)
            self.identities.replace(prepared)

        return take_over

    def who_may(self, listeners: Iterable[str]) -> list[str]:
        """Who may do what at which listener, in words, for the start."""
        told: dict[str, list[str]] = {}
        for listener in listeners:
            told.setdefault(self.door(listener).who_may(), []).append(listener)
        return [f"who may: {', '.join(names)}: {text}" for text, names in told.items()]

    def meter_of(self, identity: Identity | None) -> Meter | None:
        """What an identity uses; None: it has no quotas."""
        if identity is None or identity.quotas is UNLIMITED or identity.quotas == UNLIMITED:
            return None
        meter = self.meters.get(identity.name)
        if meter is None:
            meter = self.meters[identity.name] = Meter(identity.name, identity.quotas, lambda name: self.exists(name))
        meter.quotas = identity.quotas
        return meter

    def _changed(self) -> None:
        known = {ANYBODY.name, *self.identities.names}
        self.meters = {name: meter for name, meter in self.meters.items() if name in known or meter.connections}
        call_each("a change of the rights", [visitor.look_again for visitor in self.visitors])


def _identities(config: ServerConfig) -> Identities:
    path = config.access_file
    own = ("blipmq",) if not config.access.file else ()
    return Identities(config.blipmq.allowed_api_keys, Path(path) if path else None, own)


def _audit_path(config: ServerConfig) -> Path | None:
    return Path(config.access.audit) if config.access.audit else None


def _gone(_old: Identity | None, _new: Identity | None) -> None:
    """Nobody is there to be told."""


def host_of(peer: str) -> str:
    """The host of ``host:port``."""
    return peer.rpartition(":")[0].strip("[]")


def is_loopback(peer: str) -> bool:
    """Whether ``host:port`` is this machine."""
    address = address_of(host_of(peer))
    return address is not None and address.is_loopback
