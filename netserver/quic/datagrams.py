"""Datagrams whose connection is not known: what every version of QUIC promises of them, and what answers them.

Source: RFC 8999 (what holds in all versions), RFC 9000 sections 6 (version negotiation) and 10.3 (stateless reset).
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from typing import Final, NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

LONG_HEADER: Final = 0x80
TOKEN_BYTES: Final = 16
RESET_BYTES_LEAST: Final = 21
"""Shortest stateless reset: one that is shorter cannot be taken for a packet."""
RESET_BYTES_USUAL: Final = 43
"""As long as a short packet of data, so that nobody on the way can tell."""


class LongHeader(NamedTuple):
    """The beginning of a packet with a long header, in any version."""

    version: int
    destination_id: bytes
    source_id: bytes


def parse_long_header(data: bytes) -> LongHeader | None:
    """Of a datagram that begins with one; None: it is too short.

    Bytes: flags u8 (the highest bit is set, the others are the version's), version u32, then both ids, each with its
    length (u8) before it.
    """
    destination_at = 6
    if len(data) < destination_at:
        return None
    source_at = destination_at + data[destination_at - 1] + 1
    if len(data) < source_at or len(data) < source_at + data[source_at - 1]:
        return None
    source_id = data[source_at : source_at + data[source_at - 1]]
    return LongHeader(int.from_bytes(data[1:5]), data[destination_at : source_at - 1], source_id)


class ResetTokens:
    """Stateless reset: a server that has lost its connections says so, so that clients need not wait for a timeout.

    The token of a connection id follows from the server's private key, which outlives it.
    """

    def __init__(self, private_key: PrivateKeyTypes) -> None:
        encoded = private_key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._key = hmac.digest(b"quintlog: stateless reset of QUIC connections", encoded, "sha256")

    def token(self, connection_id: bytes) -> bytes:
        """What proves that a reset comes from who has given out the id."""
        return hmac.digest(self._key, connection_id, "sha256")[:TOKEN_BYTES]

    def reset(self, connection_id: bytes, size: int) -> bytes:
        """The answer to a datagram of ``size`` bytes, always shorter, so that two servers never go on for ever; empty:
        it is too short to be answered."""
        size = min(size - 1, RESET_BYTES_USUAL)
        if size < RESET_BYTES_LEAST:
            return b""
        noise = bytearray(os.urandom(size - TOKEN_BYTES))
        noise[0] = noise[0] & 0x3F | 0x40  # a short header
        return bytes(noise) + self.token(connection_id)


def network_of(host: str) -> str:
    """What an address counts as where each host has a share: an IPv6 host has a whole /64 to itself."""
    if ":" not in host:
        return host
    return str(ipaddress.IPv6Network((int(ipaddress.IPv6Address(host.partition("%")[0])), 64), strict=False))
