"""Which batches of which writers are in the log, so that appending a batch a second time changes nothing.

A *writer* is a name (the query of a stream processor, a job), its batches have rising numbers. The last batch of each
writer is remembered in `state`, put there in the same round as the marker of the transaction that holds the batch
(`Transaction.also`): both are on disk, or neither is. A batch that is larger than a transaction is appended in *parts*,
and until its last part is there the entry tells which files it is made of and how far it has come; whoever repeats the
batch goes on there, with those files, whatever the repeated batch would bring.

Key ``w/`` + hash of the name. Value::

    [name, batch, [file names], file, row, parts, records, time ms, [[topic id, partition], ...]]

No file names: the batch is complete, or, with ``file`` 0, it was given up: what is in the log of it stays, and nothing
more of it comes. ``file`` and ``row`` point after the last row that is in the log.
The partitions are those of the last transaction: after a crash its records can be read when these have been opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from engine.errors import LimitReached
from engine.files.system import Files
from engine.limits import LEDGER_KEEP_MS, LEDGER_WRITERS_MAX, SCAN_BYTES, WALK_KEYS
from engine.state.store import Delete, Put, StateReader, StateStore, hashed_key

if TYPE_CHECKING:
    from engine.state.clock import DoubtedClock

PREFIX = b"w/"
STAGED = "staged"
"""Folder of the data directory that has the files of batches."""


class Entry(NamedTuple):
    """The last batch of a writer."""

    writer: str
    batch: int
    files: tuple[str, ...]
    """What it is made of; none: it is complete."""
    file: int
    row: int
    parts: int
    records: int
    time_ms: int
    partitions: tuple[tuple[int, int], ...]
    """Topic ids and partitions of the last transaction."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing more of the batch will come."""
        return not self.files

    @property
    def is_given_up(self) -> bool:
        """Whether nothing more will come although not all of it is in the log."""
        return not self.files and not self.file

    def given_up(self, time_ms: int) -> Entry:
        """The entry of a batch whose rest will not come any more."""
        return self._replace(files=(), file=0, row=0, time_ms=time_ms)

    def item(self) -> dict[str, Any]:
        """A batch as tools show it::

        {"writer", "batch", "complete", "abandoned", "parts", "records": those in the log, "time_ms": of the last part}
        """
        return {
            "writer": self.writer,
            "batch": self.batch,
            "complete": self.is_complete and not self.is_given_up,
            "abandoned": self.is_given_up,
            "parts": self.parts,
            "records": self.records,
            "time_ms": self.time_ms,
        }

    @property
    def needed(self) -> tuple[str, ...]:
        """Files that the rest of the batch has to come from."""
        return self.files[self.file :]


def read_entries(state: StateStore | StateReader) -> Iterator[Entry]:
    """All that can be read."""
    for _, value in state.scan(PREFIX, lambda _: None):
        yield _entry(value)


def content_hash(name: str) -> str:
    """The xxh3-64 of a staged file's content, which its name ends with."""
    return name.rpartition("-")[2]


def unusable(files: Files, directory: Path, entry: Entry) -> list[tuple[str, str]]:
    """Names of staged files in `directory` that a batch still needs and cannot have, each with the reason."""
    reasons = ((name, _fault(files, directory / name)) for name in entry.needed)
    return [(name, reason) for name, reason in reasons if reason]


def _fault(files: Files, path: Path) -> str:
    """Why a staged file cannot be used; empty: it can be."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return "it is missing"
    except OSError as problem:
        return f"it cannot be opened: {problem.strerror or problem}"
    hashed, position = xxhash.xxh3_64(), 0
    try:
        while data := files.read(fd, SCAN_BYTES, position):
            hashed.update(data)
            position += len(data)
    except OSError as problem:
        return f"it cannot be read: {problem.strerror or problem}"
    finally:
        files.close(fd)
    return "" if hashed.hexdigest() == content_hash(path.name) else "its checksum does not match"


class Ledger:
    """The entries of all writers. Owner's thread only."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    def get(self, writer: str) -> Entry | None:
        """The last batch of a writer. Raises Corrupt: it cannot be read, so nothing of this writer may be appended."""
        value = self._state.get(hashed_key(PREFIX, writer.encode()))
        entry = _entry(value) if value is not None else None
        return entry if entry is not None and entry.writer == writer else None

    def entries(self) -> Iterator[Entry]:
        """All that can be read; there may be `LEDGER_WRITERS_MAX`: go through them in slices."""
        return (_entry(value) for _, value in self._state.walk(PREFIX))

    def put(self, entry: Entry) -> Put:
        """The change that remembers `entry`, for `Transaction.also`."""
        return Put(hashed_key(PREFIX, entry.writer.encode()), list(entry))

    def forget_old(self, clock: DoubtedClock) -> Iterator[int]:
        """Removes what nobody will repeat any more: complete, and older than `LEDGER_KEEP_MS`. A step for each writer,
        for slices, during which nothing else may change them; gives how many are left so far.

        Raises:
            LimitReached: there are `LEDGER_WRITERS_MAX` writers.
        """
        old: list[Delete] = []
        left = 0
        for entry in self.entries():
            if entry.is_complete and clock.age_ms(entry.time_ms) > LEDGER_KEEP_MS:
                old.append(Delete(hashed_key(PREFIX, entry.writer.encode())))
            else:
                left += 1
            if len(old) == WALK_KEYS:
                self._state.submit(old)
                old = []
            yield left
        if old:
            self._state.submit(old)
        if left >= LEDGER_WRITERS_MAX:
            raise LimitReached(f"the batches of {LEDGER_WRITERS_MAX} writers are remembered already, the most allowed")


def _entry(value: Sequence[Any]) -> Entry:
    writer, batch, files, file, row, parts, records, time_ms, partitions = value
    places = tuple((topic, index) for topic, index in partitions)
    return Entry(writer, batch, tuple(files), file, row, parts, records, time_ms, places)
