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
        self._keys.setdefault(key.name, {})[key] = None
        self.counts[key.owner] += 1

    def remove(self, key: CursorKey) -> None:
        """It is gone, or never had one."""
        if self._ids.pop(key, None) is None:
            return
        self.counts[key.owner] -= 1
        keys = self._keys[key.name]
        del keys[key]
        if not keys:
            del self._keys[key.name]

    def remove_id(self, cursor_id: int) -> None:
        """The same where its name is not known any more."""
        for key in [key for key, named_id in self._ids.items() if named_id == cursor_id]:
            self.remove(key)

    def remove_topic(self, topic_id: int) -> None:
        """All cursors of a topic are gone."""
        for key in [key for key in self._ids if key.topic_id == topic_id]:
            self.remove(key)
