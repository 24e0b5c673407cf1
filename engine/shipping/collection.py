"""Removal of objects that nothing needs any more: after a grace time, for who has read an older head, and while no pin
says that somebody still does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from engine.remote.catalog import ObjectRef
from engine.remote.head import Head
from engine.remote.names import CATALOG, HEAD, PIECES, PINS, STATE, Versioned
from engine.remote.store import Denied, Described, Unclear
from engine.remote.writes import orphans
from engine.reports import report
from engine.shipping.asking import Asking
from engine.shipping.limits import COLLECT_MS, ORPHANS_MS


class Collection:
    """What is to go, and when. One thread only."""

    def __init__(self, asking: Asking, grace_ms: int) -> None:
        self._asking = asking
        self._grace_s = grace_ms / 1000
        self._doomed: deque[tuple[float, str]] = deque()
        now = time.monotonic()
        self._next_s = now + min(COLLECT_MS / 1000, self._grace_s)
        self._next_orphans_s = now
        self.removed = 0

    def add(self, names: Iterable[Versioned | str]) -> None:
        """These objects are named by no head from now on."""
        due_s = time.monotonic() + self._grace_s
        self._doomed.extend((due_s, str(name)) for name in names)

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
            if self._asking.list_below(PINS):
                return
            if now >= self._next_orphans_s:
                self._next_orphans_s = now + ORPHANS_MS / 1000
                self._add_orphans(head, frozenset(str(ref.name) for ref in named))
            while self._doomed and self._doomed[0][0] <= now:
                self._asking.delete(self._doomed[0][1])
                self._doomed.popleft()
                self.removed += 1
        except (Unclear, Denied) as error:  # next time
            report(f"cannot remove what is no longer needed in object storage: {error}; it is tried again")

    def _add_orphans(self, head: Head, named: frozenset[str]) -> None:
        """What earlier starts have made, and no head names. The store's own clock says how old it is."""
        latest: Described = self._asking.describe(HEAD)
        older_than_ms = latest.modified_ms - int(self._grace_s * 1000)
        now = time.monotonic()
        for folder in (PIECES, CATALOG, STATE):
            listed = self._asking.list_below(folder)
            self._doomed.extendleft((now, name) for name in orphans(listed, named, head.epoch, older_than_ms))
