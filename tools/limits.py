"""Limits of what all tools take in."""

from __future__ import annotations

SMALL_FILE_BYTES_MAX = 64 << 10
"""``server.json`` and tokens."""

IDENTITY_BYTES_MAX = 64
"""What a server answers to the question which directory it has: two numbers of 64 bits."""
