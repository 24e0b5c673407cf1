"""Everybody that the server knows: keys of the configuration, and the lines of the access file.

``allowed_api_keys`` in the configuration holds keys in clear, as BlipMQ's original does; they may do everything, at
that listener. All others are lines of one file (`netserver.access.key_file`).

A key is looked up by its salted digest, once for each salt in use. How long that takes says nothing about any key: who
does not know the salt cannot choose a digest, and the digests themselves are compared in constant time.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from engine.callbacks import call_each
from netserver.access.exposed import warn_of_readers
from netserver.access.key_file import SALT_BYTES, digest_of, read_key_file
from netserver.access.rights import ANYBODY, EVERYTHING, Identity, matches_glob
from netserver.limits import ADDRESSES_REMEMBERED

PROCESS_SALT: Final = secrets.token_bytes(SALT_BYTES)
"""For keys in clear, which are not stored: the same over a reload."""


class Identities:
    """See the module.

    Args:
        allowed: keys in clear.
        path: the access file, or None.
        listeners: where they count that do not say so themselves; empty: everywhere.

    Attributes:
        generation: rises with every `replace`; who holds an ``Identity`` then asks :meth:`current` again.

    Raises:
        ConfigError: the file cannot be read, or a line of it is wrong.
    """

    def __init__(self, allowed: Sequence[str] = (), path: Path | None = None, listeners: tuple[str, ...] = ()) -> None:
        self.generation = 0
        self._path = path
        self._allowed = tuple(allowed)
        self._of_file = listeners
        self._callbacks: dict[Callable[[], None], None] = {}
        self._by_salt: dict[bytes, dict[bytes, Identity]] = {}
        self._by_proof: dict[bytes, Identity] = {}
        self._certified: list[Identity] = []
        self._networks: list[tuple[IPv4Network | IPv6Network, Identity]] = []
        self._anyone: list[Identity] = []
        self.names: dict[str, Identity] = {}
        if path is not None:
            warn_of_readers("the access file", path)
        for stored in read_key_file(path) if path is not None else []:
            identity = replace(stored.identity, listeners=stored.identity.listeners or listeners)
            self.names[identity.name] = identity
            if stored.digest:
                self._add_key(identity, stored.salt, stored.digest)
            if stored.previous is not None:
                self._add_key(replace(identity, proof=b"".join(stored.previous)), *stored.previous)
            if identity.certificates:
                self._certified.append(replace(identity, proof=b""))
            self._networks += [(ip_network(one), replace(identity, proof=b"")) for one in identity.networks]
            if identity.is_anyone:
                self._anyone.append(replace(identity, proof=b""))
        # Keys in clear are compared as digests too: equal lengths, equal times.
        for number, key in enumerate(allowed, 1):
            digest = digest_of(key.encode(), PROCESS_SALT)
            identity = Identity(
                f"allowed_api_keys[{number}]", manage=EVERYTHING, listeners=("blipmq",), proof=PROCESS_SALT + digest
            )
            self._add_key(identity, PROCESS_SALT, digest)

    def _add_key(self, identity: Identity, salt: bytes, digest: bytes) -> None:
        self._by_salt.setdefault(salt, {})[digest] = identity
        self._by_proof[salt + digest] = identity

    @property
    def has_clear_keys(self) -> bool:
        """Whether the configuration itself has keys (``allowed_api_keys``)."""
        return bool(self._allowed)

    @property
    def is_open(self) -> bool:
        """Nothing is configured: anybody is let in, from loopback only. (An empty file admits nobody.)"""
        return not self._by_proof and self._path is None

    @property
    def path(self) -> Path | None:
        """The access file."""
        return self._path

    def check(self, key: str, listener: str = "") -> Identity | None:
        """The holder of a key that counts at a listener (empty: at any), or None."""
        raw = key.encode("utf-8", "surrogatepass")
        found: Identity | None = None
        for salt, digests in self._by_salt.items():
            digest = digest_of(raw, salt)
            identity = digests.get(digest)
            if identity is not None and hmac.compare_digest(identity.proof, salt + digest):
                found = identity
        return found if found is None or not listener or found.counts_at(listener) else None

    def by_certificate(self, names: Iterable[str], listener: str) -> Identity | None:
        """Who shows a certificate of these names; the first line that fits."""
        held = tuple(names)
        for identity in self._certified:
            if identity.counts_at(listener) and any(
                matches_glob(glob, name) for glob in identity.certificates for name in held
            ):
                return identity
        return None

    def by_network(self, host: str, listener: str) -> Identity | None:
        """Who has this address; the first line that fits."""
        address = address_of(host) if self._networks else None
        if address is not None:
            for network, identity in self._networks:
                if address in network and identity.counts_at(listener):
                    return identity
        return None

    def anyone(self, listener: str) -> Identity | None:
        """Who is nobody else."""
        return next((identity for identity in self._anyone if identity.counts_at(listener)), None)

    def current(self, identity: Identity) -> Identity | None:
        """The same holder of a key after a reload, with present rights; None: the key was revoked."""
        if identity is ANYBODY:
            return ANYBODY if self.is_open else None
        return self._by_proof.get(identity.proof)

    def replace(self, prepared: Identities) -> None:
        """Take over those of another object; whoever listens then looks at what they have."""
        callbacks, generation = self._callbacks, self.generation
        self.__dict__.update(prepared.__dict__)
        self._callbacks, self.generation = callbacks, generation + 1
        call_each("a change of the rights", tuple(callbacks))

    def read_again(self) -> Identities:
        """What the file says now, to be given to `replace`. Raises ConfigError."""
        return Identities(self._allowed, self._path, self._of_file)

    def listen(self, callback: Callable[[], None]) -> None:
        """``callback`` is called after each `replace`."""
        self._callbacks[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo :meth:`listen`."""
        self._callbacks.pop(callback, None)


@lru_cache(ADDRESSES_REMEMBERED)
def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address of a peer's host, an IPv4 one also where it came through an IPv6 socket; None: it is none."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
