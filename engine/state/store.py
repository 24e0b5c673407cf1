"""The ``state`` store: everything that is not in segments (topics, cursors, sessions, reserved numbers).

A sorted map of short keys to small values behind a narrow interface, `StateStore`; `LmdbState` keeps it in an LMDB
environment, and a twin in memory that can simulate power cuts has the same interface.

Rounds. `submit()` takes a list of changes that become durable together or not at all. The store's only writer
thread takes everything submitted so far into one LMDB transaction, commits it (synced), and posts the answers in
the order of submission: while one round syncs, the next one gathers, as with the rounds of the log. Publishers never
wait for it. A round is in order with the one before it: if a change is durable, so is every successful one
submitted earlier.

Reads see what is committed, not what is still in a round; views that need their own writes keep them in memory.

Stored value::

    xxh3-64 of the rest, seeded with xxh3-64 of the key   u64, little-endian
    value                                                 msgpack

so a flipped bit is found, and so is a value that a damaged tree shows under another key.

Keys begin with a prefix of their view:

======================  =============================================================================
``c/`` name             counters (u64)
``t/`` >Q topic id      topic                                                     (engine/state/topic_entries.py)
``p/`` >QI id, index    number of a partition                                     (engine/state/topic_entries.py)
``d/`` >Q topic id      tombstone of a deleted topic                              (engine/state/topic_entries.py)
``s/`` ...              sessions                                         (engine/sessions/records.py)
``r/`` >QI id, index    number up to which sequence numbers are reserved          (engine/partitions/partition.py)
``u/`` >Q cursor id     durable subscription                                      (engine/cursors/stored_cursors.py)
``v/`` >Q number        journal of many durable subscriptions                     (engine/cursors/stored_cursors.py)
``w/`` hash of name     last batch of a writer whose batches are appended once    (engine/state/writer_ledger.py)
``y/`` >Q cursor id     durable subscription that is paused                       (engine/cursors/stored_cursors.py)
``k/`` hash, >QI        offset that a group of Kafka's has committed                 (netserver/kafka/committed.py)
``n/`` hash of name     transactional id of a Kafka producer                      (netserver/kafka/transactions.py)
``x/`` >I epoch         markers of transactions                                   (engine/commit/transactions.py)
======================  =============================================================================

Failures (engine/state/environment.py). A full disk refuses the round's submissions (`DiskFull`), and later ones succeed
once there is room. Any other failure of a commit closes the store for writing until a restart (`ReadOnly`); reads go
on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeAlias

import lmdb
import msgpack
import xxhash

from engine.errors import Corrupt, EngineError, NotStored, ReadOnly, TooLarge
from engine.files.system import Files, SystemFiles
from engine.histogram import Histogram
from engine.limits import (
    LMDB_KEY_BYTES_MAX,
    MAP_BYTES_MIN,
    SLICES_S,
    STATE_ROUND_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
    STATE_VERIFY_ALWAYS_BYTES,
    WALK_KEYS,
)
from engine.state.environment import Databases, Environment, ReadOnlyEnvironment

log = logging.getLogger(__name__)

COUNTER = b"c/"
TOPIC = b"t/"
PARTITION = b"p/"
TOMBSTONE = b"d/"
RESERVED = b"r/"

CHECKSUM_BYTES = 8
# What a submission without changes counts: a barrier is outstanding until it is answered, too.
SUBMISSION_BYTES = 64

OnDone: TypeAlias = Callable[[EngineError | None], None]
CallSoon: TypeAlias = Callable[[Callable[[], None]], None]


class Put(NamedTuple):
    """Sets a key. The value is anything that msgpack can hold."""

    key: bytes
    value: Any


class Delete(NamedTuple):
    """Removes a key; one that is not there is fine."""

    key: bytes


class DeleteAll(NamedTuple):
    """Removes all keys that begin with a prefix, however many these are."""

    prefix: bytes


KeyOp: TypeAlias = Put | Delete
Op: TypeAlias = KeyOp | DeleteAll
KeyChange: TypeAlias = tuple[bytes, bytes | None]
"""A key with what is stored under it from now on; None = nothing."""
Packed: TypeAlias = KeyChange | DeleteAll
"""A change as it is applied."""
Tap: TypeAlias = Callable[[Sequence[Packed]], None]
"""Is told every change that has become durable, in order and key by key: there is no `DeleteAll` among them."""


class StateStore(Protocol):
    """What the views (catalog, cursors, sessions) need of a store. Called by the owner thread only."""

    @property
    def error(self) -> ReadOnly | None:
        """Why nothing more is written (until a restart), or None."""

    pending_bytes: int
    """Bytes of submissions that have not been answered yet."""

    def get(self, key: bytes) -> Any | None:
        """The committed value of a key. Raises Corrupt, naming the key."""

    def scan(self, prefix: bytes, on_corrupt: Callable[[Corrupt], None] | None = None) -> Iterator[tuple[bytes, Any]]:
        """Committed keys that begin with `prefix` and their values, in order, of one moment.

        A corrupt value is handed to `on_corrupt` and left out; without it, Corrupt is raised.
        """

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, Any]]:
        """Like `scan`, for going through very many in slices: `WALK_KEYS` at a time are of one moment, and corrupt
        values are left out."""

    def submit(self, ops: Sequence[Op], on_done: OnDone | None = None) -> None:
        """Makes all changes or none; `on_done` is posted with None once they are durable, else with the error.

        Raises:
            ValueError: a key is empty or longer than 511 bytes.
            TooLarge: a value, or all of them together, are larger than one round takes.
        """

    def close(self) -> None:
        """Waits until everything submitted has been answered (posted), then closes."""


def hashed_key(prefix: bytes, name: bytes) -> bytes:
    """A key for a name of any length: the prefix and 128 bits of hash. The value must repeat the name: compare it."""
    return prefix + xxhash.xxh3_128_digest(name)


def pack_value(key: bytes, value: Any) -> bytes:
    """The stored form of a value (layout in the module's docstring)."""
    body: bytes = msgpack.packb(value, use_bin_type=True)
    return xxhash.xxh3_64_intdigest(body, xxhash.xxh3_64_intdigest(key)).to_bytes(CHECKSUM_BYTES, "little") + body


def unpack_value(key: bytes, stored: bytes, path: str) -> Any:
    """The value of its stored form. Raises Corrupt."""
    body = stored[CHECKSUM_BYTES:]
    checksum = xxhash.xxh3_64_intdigest(body, xxhash.xxh3_64_intdigest(key))
    if len(stored) <= CHECKSUM_BYTES or checksum.to_bytes(CHECKSUM_BYTES, "little") != stored[:CHECKSUM_BYTES]:
        raise Corrupt(path, None, f"the checksum of the value of key {key!r} does not match", key)
    return msgpack.unpackb(body, raw=False, strict_map_key=False, use_list=True)


class Submission(NamedTuple):
    """Packed changes on their way to the writer thread."""

    changes: list[Packed]
    size_bytes: int
    on_done: OnDone | None


def pack_submission(ops: Sequence[Op], on_done: OnDone | None) -> Submission:
    """Checks and packs changes. Raises ValueError and TooLarge as StateStore.submit() says."""
    changes: list[Packed] = []
    size_bytes = SUBMISSION_BYTES
    for op in ops:
        if isinstance(op, DeleteAll):
            changes.append(op)
            continue
        if not 0 < len(op.key) <= LMDB_KEY_BYTES_MAX:
            raise ValueError(f"a key of {len(op.key)} bytes; 1 to {LMDB_KEY_BYTES_MAX} are allowed")
        stored = pack_value(op.key, op.value) if isinstance(op, Put) else None
        stored_bytes = len(stored) if stored is not None else 0
        if stored_bytes > STATE_VALUE_BYTES_MAX:
            raise TooLarge(f"the value of key {op.key!r} has {stored_bytes} bytes", STATE_VALUE_BYTES_MAX)
        size_bytes += len(op.key) + stored_bytes
        changes.append((op.key, stored))
    if size_bytes > STATE_ROUND_BYTES_MAX:
        raise TooLarge(f"changes of {size_bytes} bytes in one submission", STATE_ROUND_BYTES_MAX)
    return Submission(changes, size_bytes, on_done)


class StateReader:
    """Reading of a state environment; opened alone it reads beside the process that writes.

    Owner thread only.
    """

    def __init__(self, environment: Environment | ReadOnlyEnvironment) -> None:
        self._reading = environment
        self._path = str(environment.path)

    @classmethod
    def open(cls, path: Path) -> StateReader:
        """Opens the state in directory `path` for reading only.

        Raises:
            Corrupt, UnsupportedFormat, DataDirectoryError: see engine/state/environment.py.
        """
        return StateReader(ReadOnlyEnvironment(path))

    def get(self, key: bytes) -> Any | None:
        """See StateStore."""
        with self._reading.read() as (transaction, _):
            stored = transaction.get(key)
        return None if stored is None else unpack_value(key, stored, self._path)

    def scan(self, prefix: bytes, on_corrupt: Callable[[Corrupt], None] | None = None) -> Iterator[tuple[bytes, Any]]:
        """See StateStore."""
        # Everything is copied out before the first item is handed over, so that no transaction stays open while the
        # caller does something else.
        return self._unpacked(self._stored(prefix, prefix), on_corrupt)

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, Any]]:
        """See StateStore."""
        start = prefix
        while items := self._stored(prefix, start, WALK_KEYS):
            yield from self._unpacked(items, lambda _: None)
            start = items[-1][0] + b"\0"

    def _stored(self, prefix: bytes, start: bytes, keys_max: int | None = None) -> list[tuple[bytes, bytes]]:
        """Committed keys from `start` on that begin with `prefix`, with what is stored; up to `keys_max`."""
        with self._reading.read() as (transaction, _), transaction.cursor() as cursor:
            if not cursor.set_range(start):
                return []
            return list(takewhile(lambda item: item[0].startswith(prefix), islice(cursor, keys_max)))

    def _unpacked(
        self, items: list[tuple[bytes, bytes]], on_corrupt: Callable[[Corrupt], None] | None
    ) -> Iterator[tuple[bytes, Any]]:
        for key, stored in items:
            try:
                value = unpack_value(key, stored, self._path)
            except Corrupt as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)
            else:
                yield key, value

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with what is stored under it, in order; `WALK_KEYS` at a time are of one moment (any thread)."""
        start = b"\0"
        while items := self._stored(b"", start, WALK_KEYS):
            yield from items
            start = items[-1][0] + b"\0"

    def close(self) -> None:
        """Closes the environment."""
        self._reading.close()


def copy_stored(source: Path, target: Path) -> None:
    """Copies a state, as it is at one moment, into a directory that is there and empty; also while a server runs.

    Raises:
        EngineError: it cannot be read, or not be written there.
    """
    environment = ReadOnlyEnvironment(source)
    try:
        environment.copy(target)
    finally:
        environment.close()


def change_stored(path: Path, ops: Sequence[Op]) -> None:
    """Makes changes, all or none, in the state in directory `path`, which nobody has open. Raises EngineError."""
    changes = pack_submission(ops, None).changes

    environment = Environment(path, MAP_BYTES_MIN, SystemFiles(), create=False)
    try:
        environment.write(lambda transaction, _: _change(transaction, changes))
    finally:
        environment.close()


def fill_stored(path: Path, rounds: Iterable[Sequence[tuple[bytes, bytes | None]]]) -> None:
    """Makes a state in directory `path`, whose parent is there, of keys with what is stored under them; each round is
    one transaction. Raises EngineError, and what `rounds` raises."""
    environment = Environment(path, MAP_BYTES_MIN, SystemFiles(), create=True)
    try:
        for changes in rounds:
            environment.write(lambda transaction, _, changes=changes: _change(transaction, changes))  # type: ignore[misc]
    finally:
        environment.close()


def _change(transaction: lmdb.Transaction[bytes], changes: Sequence[Packed]) -> list[KeyChange]:
    """Makes changes; returns them key by key."""
    made: list[KeyChange] = []
    for change in changes:
        if isinstance(change, DeleteAll):
            made += [(key, None) for key in _delete_all(transaction, change.prefix)]
            continue
        key, stored = change
        if stored is None:
            transaction.delete(key)
        else:
            transaction.put(key, stored)
        made.append(change)
    return made


def _delete_all(transaction: lmdb.Transaction[bytes], prefix: bytes) -> list[bytes]:
    """Deletes all keys with a prefix; these."""
    deleted: list[bytes] = []
    with transaction.cursor() as cursor:
        cursor.set_range(prefix)
        while (key := cursor.key()).startswith(prefix) and cursor.delete():  # which moves on to the next one
            deleted.append(key)
    return deleted


class LmdbState(StateReader):
    """The store on disk. Opened and used by the owner thread; belongs to this process (spawn children, never fork)."""

    def __init__(
        self,
        path: Path,
        call_soon_threadsafe: CallSoon,
        files: Files,
        *,
        create: bool,
        map_bytes: int = 64 << 30,
        reader_check_interval_ms: int = 60_000,
    ) -> None:
        """Opens the environment in directory `path`; with `create` False a missing one is an error.

        Raises:
            Corrupt, UnsupportedFormat, LogLocked, DataDirectoryError: see Environment (engine/state/environment.py).
        """
        self._environment = Environment(
            path, map_bytes, files, create=create, verify_always_bytes=STATE_VERIFY_ALWAYS_BYTES
        )
        if not self._environment.trusted:
            log.warning("%s was not closed, and is too large to be verified now: run `logtool verify`", path)
        super().__init__(self._environment)
        self.pending_bytes = 0
        self.tap: Tap | None = None
        """Called on the owner's thread before the answer to a submission; set and unset there."""
        self._unanswered: deque[tuple[Submission, EngineError | None]] = deque()
        """Of all rounds, in the order of submission; owner's thread only."""
        self.rounds = 0
        self.commit_seconds = Histogram()
        """Time that committing a round took, its syncs included."""
        self._call_soon_threadsafe = call_soon_threadsafe
        self._queue: SimpleQueue[Submission | None] = SimpleQueue()
        self._reader_check_s = reader_check_interval_ms / 1000
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="quintlog-state", daemon=True)
        self._thread.start()

    # --- owner thread ---

    def submit(self, ops: Sequence[Op], on_done: OnDone | None = None) -> None:
        """See StateStore. Raises ReadOnly after close()."""
        submission = pack_submission(ops, on_done)
        if self._closed:
            raise ReadOnly(f"{self._path} is closed")
        self.pending_bytes += submission.size_bytes
        self._queue.put(submission)

    def close(self) -> None:
        """See StateStore."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._environment.close()

    @property
    def error(self) -> ReadOnly | None:
        """See StateStore."""
        return self._environment.error

    def info(self) -> dict[str, int]:
        """Figures for metrics: used_bytes, map_bytes, readers."""
        return self._environment.info()

    # --- writer thread ---

    def _run(self) -> None:
        next_check = time.monotonic() + self._reader_check_s
        closing = False
        while not closing:
            if time.monotonic() >= next_check:
                self._environment.reader_check()
                next_check = time.monotonic() + self._reader_check_s
            try:
                first = self._queue.get(timeout=max(0.0, next_check - time.monotonic()))
            except Empty:
                continue
            batch, closing = self._gather(first)
            if batch:
                self._answer(batch, self._commit(batch))

    def _gather(self, first: Submission | None) -> tuple[list[Submission], bool]:
        """Everything submitted so far, up to the size of a round, and whether the store is closing."""
        batch: list[Submission] = []
        size_bytes = 0
        item = first
        while item is not None:
            batch.append(item)
            size_bytes += item.size_bytes
            if size_bytes >= STATE_ROUND_BYTES_MAX:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[Submission]) -> EngineError | None:
        made: list[list[KeyChange]] = []

        def work(transaction: lmdb.Transaction[bytes], _: Databases) -> None:
            made.clear()  # from the start again when the map had to grow
            for submission in batch:
                made.append(_change(transaction, submission.changes))

        started = time.monotonic()
        try:
            self._environment.write(work)
        except NotStored as error:
            return error
        for submission, changes in zip(batch, made, strict=True):
            submission.changes[:] = changes  # for the tap
        self.commit_seconds.observe(time.monotonic() - started)
        self.rounds += 1
        return None

    def _answer(self, batch: list[Submission], error: EngineError | None) -> None:
        self._call_soon_threadsafe(lambda: self._answered(batch, error))

    def _answered(self, batch: list[Submission], error: EngineError | None) -> None:
        """On the owner thread: answers behind those of earlier rounds that have not had their turn yet."""
        is_under_way = bool(self._unanswered)
        self._unanswered.extend((submission, error) for submission in batch)
        if not is_under_way:
            self._call()

    def _call(self) -> None:
        """On the owner thread: answers in order, many of them in several turns of its loop.

        One that raises does not cost the others theirs.
        """
        until = time.perf_counter() + SLICES_S
        try:
            while self._unanswered and time.perf_counter() < until:
                submission, error = self._unanswered.popleft()
                self.pending_bytes -= submission.size_bytes
                if self.tap is not None and error is None:
                    self.tap(submission.changes)
                if submission.on_done is not None:
                    submission.on_done(error)
        finally:
            if self._unanswered:
                self._call_soon_threadsafe(self._call)
