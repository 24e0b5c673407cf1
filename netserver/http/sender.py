"""Whoever sent a request, as far as records over HTTP are concerned: how fast they may go on."""

from __future__ import annotations

from typing import Protocol


class Sender(Protocol):
    """See the module."""

    def received(self, size_bytes: int, records: int) -> float:
        """They have published so much: the seconds until more of it is taken."""

    def sent(self, size_bytes: int, records: int) -> float:
        """They were sent so much: the seconds until they are sent more."""

    async def pause(self, seconds: float, /) -> None:
        """Wait for so long. Raises ConnectionError: they are gone."""
