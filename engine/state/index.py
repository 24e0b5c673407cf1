"""The sparse index of positions, by sequence number and by time: an LMDB environment that can always be rebuilt.

Two databases (keys big-endian, so that they sort; values little-endian)::

    seq     partition number u32 | first seq u64           ->  segment id u64 | segment's first seq u64 | position u64
    time    partition number u32 | running maximum u64 ms  ->  first seq u64 | segment id u64

and, beside them in the unnamed database, ``format``. About one entry every 64 KiB of a segment; the time of an entry
is the highest timestamp of its partition up to the end of the batch that it names, so that times rise with numbers.

An entry is a hint, never the truth: it counts only if the segment's random id matches and the batch at its position
verifies. So an entry that is missing or stale costs a longer scan and nothing else, and every failure is met by giving
entries up: a damaged, cut, foreign or old environment is moved aside and an empty one begun (`rebuilt`), entries that
cannot be committed are dropped, those that cannot be read are not there, and the environment is not synced further
than its integrity needs (metasync off: a power cut may lose the last commit).

Threads. `add`, `remove`, `truncate` and `drop` may be called from any thread and only touch memory: the current batch,
under a lock that is held for a few microseconds. The index's own thread commits it about once a second: while that
runs it is the committing batch, still looked at by readers. A batch says for each partition which entries to add and,
before that, which range of numbers to keep of the older ones (those of the committing batch and on disk); ranges of
several calls simply intersect. `floor` looks into current batch, committing batch and LMDB, in this order.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import lmdb

from engine.config import EngineConfig
from engine.errors import EngineError, LogLocked, NotStored
from engine.files.system import Files
from engine.limits import INDEX_DELETES_MAX, INDEX_INTERVAL_BYTES, INDEX_PENDING_MAX, INDEX_PENDING_WAKE
from engine.state.environment import Databases, Environment, move_aside

log = logging.getLogger(__name__)

SEQ = b"seq"
TIME = b"time"
FORMAT_KEY = b"format"
FORMAT = b"quintlog index 1"
HIGHEST = (1 << 64) - 1

_KEY = struct.Struct(">IQ")
_SEQ_VALUE = struct.Struct("<QQQ")
_TIME_VALUE = struct.Struct("<QQ")


class SeqEntry(NamedTuple):
    """Where the batch that begins with `first_seq` is."""

    first_seq: int
    segment_id: int
    segment_first_seq: int
    position: int


class TimeEntry(NamedTuple):
    """No record before `first_seq` is younger than `timestamp_ms`."""

    timestamp_ms: int
    first_seq: int
    segment_id: int


@dataclass(slots=True)
class _Changes:
    """What a batch does to one partition: keep the older entries of `low` to `high`, then add.

    For times only `high` counts: what an entry below `low` says stays true, and the last of them must stay, as it is
    the only one that tells the running maximum.
    """

    low: int = 0
    high: int = HIGHEST
    seqs: list[SeqEntry] = field(default_factory=list)
    times: list[TimeEntry] = field(default_factory=list)

    def keep(self, low: int, high: int) -> int:
        """Narrows the range, also of what is to be added; the number of entries that fell out."""
        self.low = max(self.low, low)
        self.high = min(self.high, high)
        before = len(self.seqs)
        self.seqs = [entry for entry in self.seqs if low <= entry.first_seq <= high]
        self.times = [entry for entry in self.times if entry.first_seq <= high]
        return before - len(self.seqs)


class Index:
    """The index of one data directory."""

    def __init__(self, path: Path, files: Files, config: EngineConfig) -> None:
        """Opens the environment in directory `path`, or begins an empty one.

        Raises:
            LogLocked: it is open already.
            DataDirectoryError, DiskFull, OSError: no environment can be made there.
        """
        self.rebuilt = False
        self.dropped = 0
        self._files = files
        self._config = config
        self._environment = self._open(path)
        self._lock = threading.Lock()
        self._current: dict[int, _Changes] = {}
        self._committing: dict[int, _Changes] = {}
        self._pending = 0
        # Per partition: segment id and position of the last entry (for spacing), and the running maximum of times.
        self._last: dict[int, tuple[int, int]] = {}
        self._newest_ms: dict[int, int] = {}
        self._wake = threading.Event()
        self._flushed = threading.Condition()
        self._flushes_wanted = 0
        self._flushes_done = 0
        self._stopping = False
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="quintlog-index", daemon=True)
        self._thread.start()

    # --- opening ---

    def _open(self, path: Path) -> Environment:
        is_new = not self._files.list_dir(path)
        try:
            environment = self._environment_at(path)
            reason = "" if environment.trusted else "was not closed, and is too large to be verified"
            reason = reason or self._foreign(environment, is_new)
            if reason:
                environment.close()
        except LogLocked:
            raise
        except EngineError as error:
            reason = f"cannot be used: {error}"
        if not reason:
            return environment
        aside = move_aside(path, self._files)
        log.warning("the index %s %s; it was moved to %s and is rebuilt while the log is in use", path, reason, aside)
        self.rebuilt = True
        environment = self._environment_at(path)
        self._foreign(environment, True)
        return environment

    def _environment_at(self, path: Path) -> Environment:
        return Environment(
            path,
            self._config.index_map_bytes,
            self._files,
            create=True,
            databases=(SEQ, TIME),
            metasync=False,
        )

    @staticmethod
    def _foreign(environment: Environment, is_new: bool) -> str:
        """Why this is not an index of ours; a new one is made ours."""
        with environment.read() as (transaction, _):
            found = transaction.get(FORMAT_KEY)
        if found == FORMAT:
            return ""
        if not is_new:
            return f"has another format ({found!r})"

        def work(transaction: lmdb.Transaction[bytes], _: Databases) -> None:
            transaction.put(FORMAT_KEY, FORMAT)

        environment.write(work)
        return ""

    # --- changing, any thread ---

    def add(
        self, number: int, first_seq: int, segment_id: int, segment_first_seq: int, position: int, newest_ms: int
    ) -> None:
        """Notes where a batch is. Numbers rise; an entry too near to the one before it is left out.

        Args:
            number: partition number.
            newest_ms: highest timestamp in the partition up to the end of this batch (a lower one than before counts
                as that).
        """
        with self._lock:
            if self._pending >= INDEX_PENDING_MAX:
                self.dropped += 1
                return
            last_segment, last_position = self._last.get(number, (0, 0))
            if segment_id == last_segment and last_position <= position < last_position + INDEX_INTERVAL_BYTES:
                return
            self._last[number] = (segment_id, position)
            changes = self._changes(number)
            changes.seqs.append(SeqEntry(first_seq, segment_id, segment_first_seq, position))
            before_ms = self._newest_ms.get(number)
            if before_ms is None:
                before_ms = self._last_time(number)
            if newest_ms > before_ms:
                changes.times.append(TimeEntry(newest_ms, first_seq, segment_id))
            self._newest_ms[number] = max(before_ms, newest_ms)
            self._pending += 1
            if self._pending == INDEX_PENDING_WAKE:
                self._wake.set()

    def remove(self, number: int, below_seq: int) -> None:
        """Forgets entries below `below_seq` (retention, trimming)."""
        self._keep(number, below_seq, HIGHEST)

    def truncate(self, number: int, above_seq: int) -> None:
        """Forgets entries above `above_seq` (the end of the log, found by recovery)."""
        self._keep(number, 0, above_seq)

    def drop(self, number: int) -> None:
        """Forgets a partition; its number may be given to another one."""
        self._keep(number, 0, -1)

    def _keep(self, number: int, low: int, high: int) -> None:
        with self._lock:
            self._pending -= self._changes(number).keep(low, high)
            if high < HIGHEST:
                self._last.pop(number, None)
                self._newest_ms.pop(number, None)

    def _changes(self, number: int) -> _Changes:
        changes = self._current.get(number)
        if changes is None:
            changes = self._current[number] = _Changes()
        return changes

    # --- looking, any thread ---

    def floor(self, number: int, seq: int) -> SeqEntry | None:
        """The last entry whose first number is not above `seq`."""
        low, high = 0, seq
        with self._lock:
            for batch in (self._current, self._committing):
                changes = batch.get(number)
                if changes is None:
                    continue
                at = bisect_right(changes.seqs, high, key=_first_seq) - 1
                if at >= 0 and changes.seqs[at].first_seq >= low:
                    return changes.seqs[at]
                low, high = max(low, changes.low), min(high, changes.high)
        if low > high:
            return None
        found = self._stored_before(SEQ, _KEY.pack(number, high), True)
        if found is None or len(found[1]) != _SEQ_VALUE.size:
            return None
        entry = SeqEntry(_KEY.unpack(found[0])[1], *_SEQ_VALUE.unpack(found[1]))
        return entry if entry.first_seq >= low and entry.segment_id else None

    def floor_time(self, number: int, timestamp_ms: int) -> TimeEntry | None:
        """The last entry older than a time: every record of that time or younger is at or after its `first_seq`."""
        with self._lock:
            entry, high = self._noted_time(number, timestamp_ms)
        return entry or self._stored_time(number, timestamp_ms, high)

    def _noted_time(self, number: int, timestamp_ms: int) -> tuple[TimeEntry | None, int]:
        """The last entry in memory older than a time, else the highest number that stored ones may have."""
        high = HIGHEST
        for batch in (self._current, self._committing):
            changes = batch.get(number)
            if changes is None:
                continue
            older = bisect_left(changes.times, timestamp_ms, key=_timestamp_ms)
            at = min(older, bisect_right(changes.times, high, key=_first_seq)) - 1
            if at >= 0:
                return changes.times[at], high
            high = min(high, changes.high)
        return None, high

    def _stored_time(self, number: int, timestamp_ms: int, high: int) -> TimeEntry | None:
        while high >= 0:
            found = self._stored_before(TIME, _KEY.pack(number, timestamp_ms), False)
            if found is None or len(found[1]) != _TIME_VALUE.size:
                return None
            entry = TimeEntry(_KEY.unpack(found[0])[1], *_TIME_VALUE.unpack(found[1]))
            if not entry.segment_id:
                return None
            if entry.first_seq <= high:
                return entry
            timestamp_ms = entry.timestamp_ms  # cut off, but not yet removed: look further back
        return None

    def _last_time(self, number: int) -> int:
        """The running maximum of times of a partition as far as known, -1 if it is not; under the lock."""
        entry, high = self._noted_time(number, HIGHEST)
        entry = entry or self._stored_time(number, HIGHEST, high)
        return entry.timestamp_ms if entry is not None else -1

    def _stored_before(self, database: bytes, key: bytes, inclusive: bool) -> tuple[bytes, bytes] | None:
        """The last stored entry of the key's partition that is before the key (or at it)."""
        try:
            with self._environment.read() as (transaction, databases):
                cursor = transaction.cursor(databases[database])
                found = cursor.set_range(key)
                if not (found and inclusive and cursor.key() == key):
                    found = cursor.prev() if found else cursor.last()
                if not found or cursor.key()[:4] != key[:4] or len(cursor.key()) != _KEY.size:
                    return None
                self._told.discard("read")
                return cursor.item()
        except (EngineError, lmdb.Error) as error:
            self._tell("read", f"the index cannot be read, and is done without: {error}")
            return None

    def _tell(self, what: str, text: str) -> None:
        """A failure, once until it works again: it costs time and nothing else."""
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", text)

    # --- committing ---

    def flush(self) -> None:
        """Commits everything noted so far; blocking."""
        if self._stopping:
            return
        with self._flushed:
            self._flushes_wanted += 1
            wanted = self._flushes_wanted
            self._wake.set()
            self._flushed.wait_for(lambda: self._flushes_done >= wanted)

    def close(self) -> None:
        """Commits everything noted so far and closes the environment; blocking."""
        if not self._stopping:
            self._stopping = True
            self._wake.set()
            self._thread.join()
            self._environment.close()

    def info(self) -> dict[str, int]:
        """Figures for metrics: used_bytes, map_bytes, readers, pending and dropped entries."""
        return {**self._environment.info(), "pending": self._pending, "dropped": self.dropped}

    def _run(self) -> None:
        next_check = 0.0
        while not self._stopping:
            self._wake.wait(self._config.index_commit_interval_ms / 1000)
            self._wake.clear()
            with self._flushed:
                wanted = self._flushes_wanted
            self._commit()
            with self._flushed:
                self._flushes_done = wanted
                self._flushed.notify_all()
            if time.monotonic() >= next_check:
                self._environment.reader_check()
                next_check = time.monotonic() + self._config.reader_check_interval_ms / 1000
        self._commit()

    def _commit(self) -> None:
        with self._lock:
            if not self._current:
                return
            batch = self._committing = self._current
            self._current = {}
            self._pending = 0
        try:
            while not self._remove_some(batch):
                continue
            self._environment.write(lambda transaction, databases: _write_entries(transaction, databases, batch))
        except NotStored as error:
            lost = sum(len(changes.seqs) for changes in batch.values())
            self.dropped += lost
            self._tell("write", f"{lost} entries of the index were given up, and more until it works again: {error}")
        else:
            self._told.discard("write")
        with self._lock:
            self._committing = {}

    def _remove_some(self, batch: dict[int, _Changes]) -> bool:
        """Removes up to a number of entries in one transaction; whether none is left to remove."""
        narrowed = {number: changes for number, changes in batch.items() if (changes.low, changes.high) != (0, HIGHEST)}
        if not narrowed:
            return True
        left = 0

        def work(transaction: lmdb.Transaction[bytes], databases: Databases) -> None:
            nonlocal left
            left = INDEX_DELETES_MAX
            for number, changes in narrowed.items():
                left = _delete_outside(transaction.cursor(databases[SEQ]), number, changes, left, False)
                left = _delete_outside(transaction.cursor(databases[TIME]), number, changes, left, True)

        self._environment.write(work)
        return left > 0


def _first_seq(entry: SeqEntry | TimeEntry) -> int:
    return entry.first_seq


def _timestamp_ms(entry: TimeEntry) -> int:
    return entry.timestamp_ms


def _write_entries(transaction: lmdb.Transaction[bytes], databases: Databases, batch: dict[int, _Changes]) -> None:
    for number, changes in batch.items():
        for entry in changes.seqs:
            key = _KEY.pack(number, entry.first_seq)
            transaction.put(key, _SEQ_VALUE.pack(*entry[1:]), db=databases[SEQ])
        for time_entry in changes.times:
            key = _KEY.pack(number, time_entry.timestamp_ms)
            transaction.put(key, _TIME_VALUE.pack(*time_entry[1:]), db=databases[TIME])


def _delete_outside(cursor: lmdb.Cursor[bytes], number: int, changes: _Changes, left: int, by_time: bool) -> int:
    """Deletes entries of a partition outside the range to keep, from both ends; how many more may be deleted.

    Of the times below the range the last one stays (see _Changes).
    """
    value_bytes = _TIME_VALUE.size if by_time else _SEQ_VALUE.size
    prefix = number.to_bytes(4, "big")

    def is_below() -> bool:
        return cursor.key()[:4] == prefix and seq() < changes.low

    def is_above() -> bool:
        return cursor.key()[:4] == prefix and (seq() > changes.high or seq() < 0)

    def seq() -> int:
        key, value = cursor.item()
        if len(key) != _KEY.size or len(value) != value_bytes:
            return -1  # an entry of another form is never kept
        return int(_TIME_VALUE.unpack(value)[0] if by_time else _KEY.unpack(key)[1])

    found = _seek_last(cursor, number)
    while left > 0 and found and is_above():
        left -= 1
        cursor.delete()
        found = _seek_last(cursor, number)
    found = cursor.set_range(prefix)
    while left > 0 and found and is_below():
        if by_time:
            found = cursor.next() and is_below() and cursor.prev()
            if not found:
                break
        left -= 1
        found = cursor.delete() and bool(cursor.key())
    return left


def _seek_last(cursor: lmdb.Cursor[bytes], number: int) -> bool:
    """Moves to the last entry of a partition, or of the one before it."""
    behind_all = number.to_bytes(4, "big") + b"\xff" * 9
    return cursor.prev() if cursor.set_range(behind_all) else cursor.last()
