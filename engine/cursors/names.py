"""The names of cursors: which one has a name in a partition, and which ones share it over topics and protocols."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class CursorKey(NamedTuple):
    """What a name is unique in."""

    owner: str
    name: bytes
    topic_id: int
    partition: int


class CursorNames:
    """Cursors by their names; those without one are not here.

    Attributes:
        counts: how many each owner has.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._ids: dict[CursorKey, int] = {}
        self._key_of: dict[int, CursorKey] = {}
        self._keys: dict[bytes, dict[CursorKey, None]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._ids

    def get(self, key: CursorKey) -> int | None:
        """The cursor of a name in a partition."""
        return self._ids.get(key)

    def of(self, name: bytes) -> dict[CursorKey, int]:
        """All cursors of a name."""
        return {key: self._ids[key] for key in self._keys.get(name, ())}

    def add(self, key: CursorKey, cursor_id: int) -> None:
        """A cursor has a name."""
        self._ids[key] = cursor_id
        self._key_of[cursor_id] = key
        self._keys.setdefault(key.name, {})[key] = None
        self.counts[key.owner] += 1

    def remove(self, cursor_id: int) -> None:
        """A cursor is gone; one that never had a name is fine."""
        key = self._key_of.pop(cursor_id, None)
        if key is None:
            return
        del self._ids[key]
        self.counts[key.owner] -= 1
        keys = self._keys[key.name]
        del keys[key]
        if not keys:
            del self._keys[key.name]
