"""What a request did wrong."""

from __future__ import annotations


class BadRequest(Exception):
    """The request is not understood; the text says why."""
