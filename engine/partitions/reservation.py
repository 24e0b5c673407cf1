"""Numbers that readers may see before they are on disk: a bound in `state` says up to where they are reserved.

With durability "always" a number is seen when its record is on disk, and no crash gives it to another one. With the
others it is seen before. Numbers below the bound may have been seen, so that after a crash the partition goes on at
the bound.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineError
from engine.limits import SEQ_RESERVATION
from engine.state.store import Put, StateStore
from engine.state.topics import reserved_key


class Reservation:
    """The bound of one partition. Owner's thread only."""

    __slots__ = ("_is_asked", "_key", "_state", "bound")

    def __init__(self, state: StateStore, topic_id: int, index: int, bound: int = 0) -> None:
        self._state = state
        self._key = reserved_key(topic_id, index)
        self._is_asked = False
        self.bound = bound
        """Numbers up to here are reserved, durably."""

    def extend(self, last_seq: int, done: Callable[[EngineError | None], None]) -> None:
        """Asks for a higher bound when few numbers after `last_seq` are left; `done` when it is durable or refused."""
        if self._is_asked or self.bound - last_seq >= SEQ_RESERVATION // 2:
            return
        self._is_asked = True
        bound = last_seq + SEQ_RESERVATION

        def answered(error: EngineError | None) -> None:
            self._is_asked = False
            if error is None:
                self.bound = bound
            done(error)

        self._state.submit([Put(self._key, bound)], answered)

    def set(self, bound: int) -> None:
        """Writes another bound, for the next process."""
        self._state.submit([Put(self._key, bound)])
