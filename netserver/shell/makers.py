"""Identifies who makes topics, so that each maker has a share of the room for them (``engine.state.shares``)."""

from __future__ import annotations

import ipaddress


def maker_of(protocol: str, peer: str) -> str:
    """The hosts that cannot be told apart from ``host:port`` (IPv6: a /64), as users of a protocol."""
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    if ":" in host:
        host = str(ipaddress.ip_network(f"{host}/64", strict=False))
    return f"{protocol} {host}"
