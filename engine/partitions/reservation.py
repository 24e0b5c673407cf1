"""Numbers that readers may see before they are on disk: a bound in `state` says up to where they are reserved.

With durability "always" a number is seen when its record is on disk, and no crash gives it to another one. With the
others it is seen before. Numbers below the bound may have been seen, so that after a crash the partition goes on at
the bound.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineError
from engine.state.store import Put, StateStore
from engine.state.topic_entries import reserved_key


class Reservation:
    """The bound of one partition. Owner's thread only."""

    __slots__ = ("_is_asked", "_key", "_state", "bound")

    def __init__(self, state: StateStore, topic_id: int, index: int, bound: int = 0) -> None:
        self._state = state
        self._key = reserved_key(topic_id, index)
        self._is_asked = False
        self.bound = bound
        """Numbers up to here are reserved, durably."""

    def extend(self, bound: int, done: Callable[[EngineError | None], None]) -> None:
        """Asks for a higher bound, unless that is done already; `done` when it is durable or refused."""
        if self._is_asked:
            return
        self._is_asked = True

        def answered(error: EngineError | None) -> None:
            self._is_asked = False
            if error is None:
                self.bound = bound
            done(error)

        self._state.submit([Put(self._key, bound)], answered)

    def set(self, bound: int) -> None:
        """Writes another bound, for the next process."""
        self._state.submit([Put(self._key, bound)])
