"""The writing of cursors that have moved: together, lazily, and without rewriting a page of LMDB for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from engine.callbacks import call_each
from engine.cursors.cursor import Cursor
from engine.cursors.stored_cursors import BYTES_PER_NUMBER, CursorJournal, Entry, put_entry
from engine.errors import EngineError
from engine.limits import CURSOR_ROUND_NUMBERS_MAX
from engine.state.store import Delete, OnDone, Op, StateStore

log = logging.getLogger("quintlog.cursors")

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
        self._newer: dict[Cursor, int] = {}
        """Version that the journal has of cursors whose own entry is older; they stay in memory until it is written."""
        self._waiters: list[OnDone] = []
        self._rewriting: list[Cursor] = []  # whose entries are still to be written before these values may go:
        self._rewriting_keys: list[bytes] = []
        self._is_rewriting = False
        self._next_rewrite_ms = 0
        self._closed = False

    def needs(self, cursor: Cursor) -> bool:
        """It has to stay in memory: reading its entry would give an old one."""
        return cursor in self._flushing or cursor in self._newer

    def forget(self, cursor: Cursor) -> None:
        """It was deleted."""
        self._dirty.pop(cursor, None)
        self._newer.pop(cursor, None)
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
        written: list[Cursor] = []
        numbers = 0
        cursors, self._dirty = list(self._dirty), {}
        is_cut = False
        for index, cursor in enumerate(cursors):
            if numbers >= CURSOR_ROUND_NUMBERS_MAX:
                self._dirty = dict.fromkeys(cursors[index:])
                is_cut = True
                break
            cursor.version += 1
            cursor.is_dirty = False
            entry = self._entry(cursor)
            if entry is None:
                continue
            written.append(cursor)
            numbers += numbers_in(entry)
            entries.append(entry)
        waiters: list[OnDone] = []
        if not self._dirty:
            waiters, self._waiters = self._waiters, waiters
        if not entries:
            _tell(waiters, None)
            return
        if len(entries) > DIRECT_ENTRIES:
            ops: list[Op] = [self.journal.put(entries, numbers)]
            self._newer.update(zip(written, (entry.version for entry in entries), strict=True))
        else:
            ops = [put_entry(entry) for entry in entries]

        def done(error: EngineError | None) -> None:
            self._flushing = set()
            for cursor in written:
                if error is not None:
                    cursor.touch()
                else:
                    self.overlay.pop(cursor.id, None)
            _tell(waiters, error)
            if self._waiters or (is_cut and error is None):
                self._write()  # else what has moved meanwhile waits for the clock

        self._state.submit(ops, done)
        self._flushing = set(written)

    @staticmethod
    def _entry(cursor: Cursor) -> Entry | None:
        """What is to be written of a cursor; None: a defect, which costs no other cursor its entry."""
        try:
            return cursor.entry()
        except Exception:
            log.critical("internal error: the entry of %s cannot be written", cursor.title, exc_info=True)
            return None

    def take_in_journal(self) -> None:
        """After a start: write what only the journal has to the entries, and remove what it had then."""
        keys = self.journal.keys_found()
        if keys:
            self._is_rewriting = True
            self._take_in(list(self.overlay.values()), keys)

    def _take_in(self, found: list[Entry], keys: list[bytes]) -> None:
        """The first of these entries, as many as go into a submission; the others when they are durable; with the last
        ones the journal's values go."""
        count = fitting(found)
        part, left = found[:count], found[count:]

        def done(error: EngineError | None) -> None:
            if error is None:
                for entry in part:
                    self.overlay.pop(entry.id, None)
                if left and not self._closed:
                    self._take_in(left, keys)
                    return
                if not left:
                    self.journal.removed(keys)
            self._is_rewriting = False

        due = [entry for entry in part if self.overlay.get(entry.id) is entry]  # neither deleted nor written meanwhile
        ops: list[Op] = [put_entry(self._newest(entry)) for entry in due]
        self._state.submit(ops if left else [*ops, *map(Delete, keys)], done)

    def _newest(self, entry: Entry) -> Entry:
        cursor = self._find(entry.id)
        return cursor.entry() if cursor is not None else entry

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
            self._rewriting = list(self._newer)
            self._rewriting_keys = journal.keys()
            self._next_rewrite_ms = now_ms + REWRITE_MS
        entries = [cursor.entry() for cursor in self._rewriting[:REWRITE_SLICE]]
        count = fitting(entries)
        slice_, self._rewriting = self._rewriting[:count], self._rewriting[count:]
        entries = [entry for entry, cursor in zip(entries, slice_, strict=False) if cursor in self._newer]
        keys = self._rewriting_keys if not self._rewriting else []

        def done(error: EngineError | None) -> None:
            self._is_rewriting = False
            if error is not None:
                self._rewriting_keys = []  # the journal stays; another time
                return
            for entry in entries:
                cursor = self._find(entry.id)
                if cursor is not None and self._newer.get(cursor, 0) <= entry.version:
                    self._newer.pop(cursor, None)
            if keys:
                journal.removed(keys)
                self._rewriting_keys = []

        self._is_rewriting = True
        self._state.submit([*map(put_entry, entries), *map(Delete, keys)], done)


def _tell(waiters: Sequence[OnDone], error: EngineError | None) -> None:
    call_each("the writing of subscriptions", [partial(waiter, error) for waiter in waiters])


def numbers_in(entry: Entry) -> int:
    """About how much a stored entry takes, in numbers."""
    return 16 + len(entry.deliveries) + len(entry.name) // BYTES_PER_NUMBER


def fitting(entries: Sequence[Entry]) -> int:
    """How many of the first entries go into one submission; at least one, if there is any."""
    numbers = 0
    for count, entry in enumerate(entries):
        numbers += numbers_in(entry)
        if numbers > CURSOR_ROUND_NUMBERS_MAX and count:
            return count
    return len(entries)
