"""Addresses of all listeners together: which exclude each other, and how they are moved to other ports."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from netserver.config.settings import Address

UDP_LISTENERS: Final = frozenset({"fujin"})
"""Their ports are no others' business."""
AUTO: Final = "auto"
Ports = int | Literal["auto"]
"""How listeners are moved: by an offset, or each to a free port."""


def address_problems(listeners: Mapping[str, Address | None]) -> Iterator[str]:
    """Listeners of which only one can have its address, each pair."""
    there = {name: address for name, address in listeners.items() if address is not None}
    for (name, address), (other, its) in itertools.combinations(there.items(), 2):
        if (name in UDP_LISTENERS) == (other in UDP_LISTENERS) and _collide(address, its):
            where = str(address) if address == its else f"{address} and {its}, which is the same port"
            yield f"[{name}] and [{other}] both listen on {where}: give one another port"


def _collide(one: Address, other: Address) -> bool:
    if one.port != other.port or one.port == 0:
        return False
    hosts = {"127.0.0.1" if address.host == "localhost" else address.host for address in (one, other)}
    is_one_family = len({":" in host for host in hosts}) == 1
    return len(hosts) == 1 or (is_one_family and not hosts.isdisjoint({"0.0.0.0", "::"}))


def moved(address: Address, ports: Ports) -> Address:
    """Where a listener listens instead.

    Raises:
        ValueError: there is no such port.
    """
    if ports == AUTO:
        return Address(address.host, 0)
    if address.port == 0:
        return address
    if not 1 <= address.port + ports <= 65535:
        raise ValueError(f"{address} moved by {ports} has no port from 1 to 65535")
    return Address(address.host, address.port + ports)
