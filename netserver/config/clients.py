"""The section ``[access]``, and what a listener's ``clients`` mean: the ways to be known that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from netserver.config.settings import ListenerSection, text_setting

CERTIFICATE: Final = "certificate"
NETWORK: Final = "network"
KEY: Final = "key"
ANYONE: Final = "anyone"
WAYS: Final = (CERTIFICATE, NETWORK, KEY, ANYONE)
ADMIN_WAYS: Final = (CERTIFICATE, KEY)
KEY_LISTENERS: Final = frozenset({"blipmq", "kafka", "admin"})
"""Those whose protocol has room for a key."""


class AdminLike(Protocol):
    """The section of admin HTTP, as this module sees it."""

    @property
    def tls_client_ca(self) -> str:
        """File of authorities."""

    @property
    def clients(self) -> tuple[str, ...]:
        """Ways that are taken; empty: all that can be."""


@dataclass(frozen=True)
class AccessSection:
    """Who may do what, for all listeners."""

    file: str = text_setting(
        "", "File of identities and their rights, kept by `logtool keys`; empty: see clients of each listener."
    )
    audit: str = text_setting(
        "", "File that gets a JSON line for each change and each refused attempt; empty: they go to the log."
    )


def ways_of(name: str, section: ListenerSection, is_governed: bool) -> tuple[str, ...]:
    """How clients of a listener may be known, in the order in which it is tried."""
    if section.clients:
        return tuple(way for way in WAYS if way in section.clients)
    if not is_governed:
        return (CERTIFICATE,) if section.tls_client_ca else (ANYONE,)
    return tuple(
        way for way in WAYS if (way != CERTIFICATE or section.tls_client_ca) and (way != KEY or name in KEY_LISTENERS)
    )


def admin_ways(section: AdminLike, is_governed: bool) -> tuple[str, ...]:
    """The same for admin HTTP. An address says nothing there: a web page comes from its reader's machine, too."""
    wanted = section.clients or ADMIN_WAYS
    has_certificates = bool(section.tls_client_ca) and is_governed
    return tuple(way for way in ADMIN_WAYS if way in wanted and (way != CERTIFICATE or has_certificates))


def admits_anybody(section: ListenerSection, is_governed: bool) -> bool:
    """Whether somebody of whom nothing is known may do everything."""
    if section.clients:
        return ANYONE in section.clients
    return not (is_governed or section.tls_client_ca)


def needs_certificate(section: ListenerSection | AdminLike) -> bool:
    """Whether a client of a listener (or of admin HTTP) without a certificate ends in the handshake already."""
    return bool(section.tls_client_ca) and set(section.clients) <= {CERTIFICATE}


def admin_client_problems(section: AdminLike) -> Iterator[str]:
    """What is wrong with those of admin HTTP."""
    for way in section.clients:
        if way not in ADMIN_WAYS:
            yield f"[admin] clients: {way!r} is no way for HTTP; there are {', '.join(ADMIN_WAYS)}"
    if CERTIFICATE in section.clients and not section.tls_client_ca:
        yield "[admin] clients = certificate needs tls_client_ca: whose certificates count"


def client_problems(name: str, section: ListenerSection, is_governed: bool) -> Iterator[str]:
    """Why those of a listener's ``clients`` cannot be known in that way."""
    for way in section.clients:
        if way not in WAYS:
            yield f"[{name}] clients: no way {way!r}; there are {', '.join(WAYS)}"
    if CERTIFICATE in section.clients and not section.tls_client_ca:
        yield f"[{name}] clients = certificate needs tls_client_ca: whose certificates count"
    if KEY in section.clients and name not in KEY_LISTENERS:
        yield f"[{name}] clients = key: the protocol has no room for a key; use certificate or network"
    if {KEY, NETWORK} & set(section.clients) and not is_governed:
        yield f"[{name}] clients = {', '.join(section.clients)} needs [access] file: who they are"
