"""Removal of objects that nothing needs any more: after a grace time, for who has read an older head, and while no pin
says that somebody still does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from engine.errors import TooLarge
from engine.remote.catalog import ObjectRef
from engine.remote.head import Head
from engine.remote.limits import NUMBER_MAX
from engine.remote.names import CATALOG, HEAD, PIECES, PINS, STATE, Versioned
from engine.remote.pins import held_pins, removable
from engine.remote.store import Denied, Unclear
from engine.remote.writes import orphans
from engine.reports import report
from engine.shipping.asking import Asking
from engine.shipping.limits import COLLECT_MS, ORPHANS_MS


class Collection:
    """What is to go, and when. One thread only."""

    def __init__(self, asking: Asking, grace_ms: int) -> None:
        self._asking = asking
        self._grace_s = grace_ms / 1000
        self._doomed: deque[tuple[float, str, int]] = deque()
        """When it may go, its name, and the version of the first head that does not name it."""
        now = time.monotonic()
        self._next_s = now + min(COLLECT_MS / 1000, self._grace_s)
        self._next_orphans_s = now
        self.removed = 0

    def add(self, names: Iterable[Versioned | str], version: int) -> None:
        """These objects are named by no head from this version on."""
        due_s = time.monotonic() + self._grace_s
        self._doomed.extend((due_s, str(name), version) for name in names)

    def collect(self, head: Head, named: Iterable[ObjectRef]) -> None:
        """Removes what is due, if it is time for that. Raises Stopped.

        Args:
            named: all objects that the head and its pages name, but for sealed segments.
        """
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + min(COLLECT_MS / 1000, self._grace_s)
        try:
            now_ms = self._asking.describe(HEAD).modified_ms  # of the store's clock; earlier: more pins count
            if now >= self._next_orphans_s:
                self._next_orphans_s = now + ORPHANS_MS / 1000
                self._add_orphans(head, frozenset(str(ref.name) for ref in named), now_ms)
            due = [item for item in self._doomed if item[0] <= now]
            held = self._asking.run(held_pins(self._asking.list_below(PINS), now_ms)) if due else []
            free = removable([(name, version) for _, name, version in due], held)
            for name in free:
                self._asking.delete(name)
                self.removed += 1
            gone = set(free)
            self._doomed = deque(item for item in self._doomed if item[1] not in gone)
        except (Unclear, Denied, TooLarge) as error:  # next time
            report(f"cannot remove what is no longer needed in object storage: {error}; it is tried again")

    def _add_orphans(self, head: Head, named: frozenset[str], now_ms: int) -> None:
        """What earlier starts have made, and no head names. A pin of any head holds it: nobody knows which named it."""
        older_than_ms = now_ms - int(self._grace_s * 1000)
        now = time.monotonic()
        known = {name for _, name, _ in self._doomed}
        for folder in (PIECES, CATALOG, STATE):
            listed = self._asking.list_below(folder)
            found = orphans(listed, named, head.epoch, older_than_ms)
            self._doomed.extend((now, name, NUMBER_MAX) for name in found if name not in known)
