"""The error of the TANK codec."""

from __future__ import annotations


class FormatError(ValueError):
    """Bytes that no TANK peer sends: a field that is cut off, an unknown message id, a length beyond its limit."""
