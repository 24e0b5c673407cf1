"""The stored form of cursors: an entry for each, and a journal for the many that move at once.

Layout of values and keys: engine/state/store.py::

    u/ >Q id      [owner, name, topic id, partition, qos, base, created ms, used ms, version, deliveries]
    v/ >Q number  [[id, owner, ...], ...]    the same of several cursors
    y/ >Q id      true                       that one is paused

Why a journal: LMDB writes the whole page of each entry that changes. A thousand cursors spread over a large store would
cost 4 MB each 100 ms; one value with their entries costs 60 KB. Every so often the entries themselves are written and
the journal's values removed. An entry counts only if no other one of its cursor has a higher version, so it does not
matter in which order they are read, or what of it a crash left over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from engine.errors import Corrupt
from engine.state.store import Delete, Put, StateReader, StateStore

CURSOR = b"u/"
JOURNAL = b"v/"
PAUSED = b"y/"
JOURNAL_VALUES = 256
"""Values, about one each 100 ms, before the entries are written instead."""
JOURNAL_BYTES = 16 << 20
"""The same in bytes: what a start has to read."""
BYTES_PER_NUMBER = 3
"""In msgpack, about."""
_KEY = struct.Struct(">Q")


class Entry(NamedTuple):
    """A cursor as it is stored."""

    id: int
    owner: str
    name: bytes
    topic_id: int
    partition: int
    qos: int
    base: int
    created_ms: int
    used_ms: int
    version: int
    deliveries: list[int]


def entry_key(cursor_id: int) -> bytes:
    """Where the entry of a cursor is."""
    return CURSOR + _KEY.pack(cursor_id)


def put_entry(entry: Entry) -> Put:
    """Writes an entry to its place."""
    return Put(entry_key(entry.id), entry[1:])


def put_paused(cursor_id: int) -> Put:
    """A cursor delivers nothing until that is deleted."""
    return Put(PAUSED + _KEY.pack(cursor_id), True)


def delete_paused(cursor_id: int) -> Delete:
    """Undoes ``put_paused``."""
    return Delete(PAUSED + _KEY.pack(cursor_id))


def read_paused(state: StateReader | StateStore, report: Callable[[Exception], None]) -> set[int]:
    """The ids of paused cursors; they may be of some that are gone."""
    return {_KEY.unpack(key[len(PAUSED) :])[0] for key, _ in state.scan(PAUSED, report)}


def delete_entry(cursor_id: int) -> Delete:
    """Removes a cursor. What the journal has of it counts for nothing without its entry."""
    return Delete(entry_key(cursor_id))


def id_of(key: bytes) -> int:
    """The cursor of an entry's key."""
    cursor_id: int = _KEY.unpack(key[len(CURSOR) :])[0]
    return cursor_id


def parse_entry(cursor_id: int, value: Any) -> Entry:
    """The entry of a stored value.

    Raises:
        Corrupt: it is none
    """
    try:
        return Entry(cursor_id, *value)
    except TypeError:
        raise Corrupt("state", None, f"the entry of cursor {cursor_id} is not one of ours") from None


class CursorJournal:
    """The journal's values, oldest first."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._sizes: dict[bytes, int] = {}  # key -> numbers in its value, oldest first
        self._next = 1

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def is_full(self) -> bool:
        """It is time to write the entries themselves."""
        return len(self._sizes) >= JOURNAL_VALUES or sum(self._sizes.values()) * BYTES_PER_NUMBER >= JOURNAL_BYTES

    def read(self, report: Callable[[Exception], None]) -> dict[int, Entry]:
        """The newest entry of each cursor in the journal, as found at the start."""
        found: dict[int, Entry] = {}
        for key, value in self._state.scan(JOURNAL, report):
            self._sizes[key] = 0
            self._next = int(_KEY.unpack(key[len(JOURNAL) :])[0]) + 1
            for row in value if isinstance(value, list) else ():
                try:
                    entry = parse_entry(row[0], row[1:])
                except (Corrupt, TypeError, IndexError) as problem:
                    report(problem)
                    continue
                if entry.id not in found or found[entry.id].version < entry.version:
                    found[entry.id] = entry
        return found

    def put(self, entries: Iterable[Entry], numbers: int) -> Put:
        """Writes entries (of so many numbers together) after what is there."""
        key = JOURNAL + _KEY.pack(self._next)
        self._next += 1
        self._sizes[key] = numbers
        return Put(key, [list(entry) for entry in entries])

    def keys(self) -> list[bytes]:
        """What to remove once the entries of all cursors with news there are written."""
        return list(self._sizes)

    def keys_found(self) -> list[bytes]:
        """Those of them that were there at the start."""
        return [key for key, numbers in self._sizes.items() if not numbers]

    def removed(self, keys: Iterable[bytes]) -> None:
        """These values are no longer there."""
        for key in keys:
            self._sizes.pop(key, None)
