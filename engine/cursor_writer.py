"""The writing of cursors that have moved: together, lazily, and without rewriting a page of LMDB for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.cursor_entries import CursorJournal, Entry, entry_of, put_entry
from engine.errors import EngineError
from engine.limits import CURSOR_ROUND_NUMBERS_MAX
from engine.state import Delete, OnDone, Op, StateStore

if TYPE_CHECKING:
    from engine.cursor import Cursor

DIRECT_ENTRIES = 8
"""Up to so many moved cursors are written to their places, more to the journal: a page of LMDB each is 4 KiB."""
REWRITE_MS = 30_000
"""The journal is worked in at least this often."""
REWRITE_SLICE = 1000
"""Entries written in one turn for that: about 4 ms."""


class CursorWriter:
    """What of the cursors is not yet written, or only in the journal.

    Args:
        find: the cursor of an id if it is in memory.

    Attributes:
        overlay: entries that only the journal had at the start, until they are written.
    """

    def __init__(self, state: StateStore, find: Callable[[int], Cursor | None]) -> None:
        self.journal = CursorJournal(state)
        self.overlay: dict[int, Entry] = {}
        self._state = state
        self._find = find
        self._dirty: dict[Cursor, None] = {}
        self._flushing: set[Cursor] = set()
        self._waiters: list[OnDone] = []
        self._rewriting: list[Cursor] = []  # whose entries are still to be written before these values may go:
        self._rewriting_keys: list[bytes] = []
        self._is_rewriting = False
        self._next_rewrite_ms = 0
        self._closed = False

    def needs(self, cursor: Cursor) -> bool:
        """It has to stay in memory: reading its entry would give an old one."""
        return cursor in self._flushing or cursor in self.journal.newer

    def forget(self, cursor: Cursor) -> None:
        """It was deleted."""
        self._dirty.pop(cursor, None)
        self.journal.newer.pop(cursor, None)
        self.overlay.pop(cursor.id, None)

    def tick(self, now_ms: int) -> None:
        """Write what has moved, and the journal's news to the entries when it is time."""
        if self._dirty:
            self.flush()
        self._rewrite(now_ms)

    def close(self) -> None:
        """Submit what is left; nothing is written afterwards."""
        while self._dirty and not self._closed:
            self._write()
        self._closed = True

    def moved(self, cursor: Cursor) -> None:
        """The cursor has something to write."""
        self._dirty[cursor] = None

    def flush(self, on_done: OnDone | None = None) -> None:
        """Write what has moved; ``on_done`` gets None once all that moved before this call is durable."""
        if on_done is not None:
            self._waiters.append(on_done)
        if not self._flushing:
            self._write()

    def _write(self) -> None:
        """One submission; what does not fit into it goes into the next one."""
        if self._closed:
            return
        entries: list[Entry] = []
        numbers = 0
        cursors, self._dirty = list(self._dirty), {}
        is_cut = False
        for index, cursor in enumerate(cursors):
            if numbers >= CURSOR_ROUND_NUMBERS_MAX:
                self._dirty = dict.fromkeys(cursors[index:])
                del cursors[index:]
                is_cut = True
                break
            cursor.version += 1
            entry = entry_of(cursor)
            numbers += 16 + len(entry.deliveries)
            entries.append(entry)
            cursor.is_dirty = False
        waiters: list[OnDone] = []
        if not self._dirty:
            waiters, self._waiters = self._waiters, waiters
        if not entries:
            for waiter in waiters:
                waiter(None)
            return
        if len(entries) > DIRECT_ENTRIES:
            ops: list[Op] = [self.journal.put(entries, numbers)]
            self.journal.newer.update(zip(cursors, (entry.version for entry in entries), strict=True))
        else:
            ops = [put_entry(entry) for entry in entries]

        def done(error: EngineError | None) -> None:
            self._flushing = set()
            if error is not None:
                for cursor in cursors:
                    cursor.touch()
            for waiter in waiters:
                waiter(error)
            if self._waiters or (is_cut and error is None):
                self._write()  # else what has moved meanwhile waits for the clock

        self._flushing = set(cursors)
        self._state.submit(ops, done)

    def take_in_journal(self) -> None:
        """After a start: write what only the journal has to the entries, and remove the journal."""
        keys = self.journal.keys()
        if not keys:
            return

        def done(error: EngineError | None) -> None:
            self._is_rewriting = False
            if error is None:
                self.overlay = {}
                self.journal.removed(keys)

        self._is_rewriting = True
        self._state.submit([*map(put_entry, self.overlay.values()), *map(Delete, keys)], done)

    def _rewrite(self, now_ms: int) -> None:
        """Write the entries of some cursors that have news in the journal; with the last ones, remove it."""
        journal = self.journal
        if self._is_rewriting:
            return
        if self.overlay:
            self.take_in_journal()  # was refused at the start
            return
        if not self._rewriting_keys:
            if not len(journal):
                self._next_rewrite_ms = now_ms + REWRITE_MS
            if not len(journal) or not (journal.is_full or now_ms >= self._next_rewrite_ms):
                return
            self._rewriting = list(journal.newer)
            self._rewriting_keys = journal.keys()
            self._next_rewrite_ms = now_ms + REWRITE_MS
        slice_, self._rewriting = self._rewriting[:REWRITE_SLICE], self._rewriting[REWRITE_SLICE:]
        entries = [entry_of(cursor) for cursor in slice_ if cursor in journal.newer]
        keys = self._rewriting_keys if not self._rewriting else []

        def done(error: EngineError | None) -> None:
            self._is_rewriting = False
            if error is not None:
                self._rewriting_keys = []  # the journal stays; another time
                return
            for entry in entries:
                cursor = self._find(entry.id)
                if cursor is not None and journal.newer.get(cursor, 0) <= entry.version:
                    journal.newer.pop(cursor, None)
            if keys:
                journal.removed(keys)
                self._rewriting_keys = []

        self._is_rewriting = True
        self._state.submit([*map(put_entry, entries), *map(Delete, keys)], done)
