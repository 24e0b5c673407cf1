"""Durable subscriptions as tools see and change them: the same in a running server and on its files.

Owner's thread only, as all that uses ``engine.cursors.table``; ``on_done`` callbacks come on it too.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, cast

from engine.cursors.cursor import Cursor
from engine.cursors.deliveries import GIVEN_UP, NEVER_MS, QUEUED, DeliveryPolicy, Plan, load
from engine.cursors.reader import BatchError, BundleError, Reader
from engine.cursors.stored_cursors import CURSOR, CursorJournal, Entry, id_of, parse_entry
from engine.cursors.table import CursorTable
from engine.errors import Corrupt, EngineError
from engine.formats.record import Record
from engine.limits import REDRIVE_BYTES, REDRIVE_RECORDS
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, PENDING, WriteBatch, outcome
from engine.segments.missing_numbers import NO_GAPS, Gaps
from engine.state.store import OnDone, StateReader, StateStore

CONSUMER_OWNER = "http"
"""Owner of the cursors that move when positions are committed, not by acknowledgements of deliveries."""
REDRIVE_OWNER = "redrive"
"""Owner of the cursors that remember how far dead letters were redriven; they are no subscriptions."""
DEAD_LETTER_SUBSCRIPTION = b"dead-letter-subscription"
DEAD_LETTER_HEADERS = (
    b"dead-letter-topic", b"dead-letter-seq", DEAD_LETTER_SUBSCRIPTION, b"dead-letter-deliveries",
)  # fmt: skip


class UnknownSubscription(EngineError):
    """There is no subscription of this id."""

    def __init__(self, subscription_id: int | str) -> None:
        super().__init__(f"no subscription {subscription_id}")


# --- looking


def stored_entries(state: StateReader, report: Callable[[Exception], None]) -> list[Entry]:
    """All subscriptions of a state that is only read, oldest first; what is damaged is reported and left out."""
    newest = CursorJournal(cast(StateStore, state)).read(report)
    found: list[Entry] = []
    for key, value in state.scan(CURSOR, report):
        try:
            entry = parse_entry(id_of(key), value)
        except Corrupt as problem:
            report(problem)
            continue
        newer = newest.get(entry.id, entry)
        found.append(newer if newer.version > entry.version else entry)
    return [entry for entry in found if entry.owner != REDRIVE_OWNER]


def entry_item(
    entry: Entry,
    topic: bytes | None,
    committed_seq: int | None,
    gaps: Gaps = NO_GAPS,
    *,
    log_start: int = 1,
    lag_seconds: float | None = None,
    paused: bool = False,
) -> dict[str, Any]:
    """A subscription::

        {"id", "protocol", "group": its name or null, "topic": null when it was deleted, "partition", "qos",
         "next_offset": of the next record that was never delivered, "acknowledged_offset": up to where all are,
         "unacknowledged", "lag": records that wait, unacknowledged ones included, or null,
         "lag_seconds": age of the oldest of them, or null, "lag_trend": records a second that it grows by, or null,
         "paused", "created_ms", "used_ms"}

    ``topic`` and ``group`` have ``_base64`` after their names where they are not UTF-8.

    Args:
        committed_seq: the last number that readers may see; None: nobody has looked.
        gaps: of the partition. Where they give bounds, the lag is the upper one.
        log_start: its first number; what was removed before it does not wait.

    Raises:
        Corrupt: its numbers are not those of a subscription
    """
    deliveries = _deliveries(entry)
    first = max(deliveries.next_seq, log_start)
    waiting = None if committed_seq is None else gaps.count(first, committed_seq).most
    return {
        "id": entry.id,
        "protocol": entry.owner,
        **_text("group", entry.name or None),
        **_text("topic", topic),
        "partition": entry.partition,
        "qos": entry.qos,
        "next_offset": deliveries.next_seq,
        "acknowledged_offset": deliveries.floor,
        "unacknowledged": deliveries.unacknowledged,
        "lag": None if waiting is None else waiting + deliveries.unacknowledged,
        "lag_seconds": lag_seconds,
        "lag_trend": None,
        "paused": paused,
        "created_ms": entry.created_ms,
        "used_ms": entry.used_ms,
    }


def oldest_seq(entry: Entry) -> int:
    """The first number that a stored subscription is not done with. Raises Corrupt."""
    return int(_deliveries(entry).floor) + 1


def pending_items(entry: Entry) -> list[dict[str, Any]]:
    """What a stored subscription has delivered and nobody acknowledged; after a start all of it is queued."""
    return [_run_item(run.first, run.last, run.attempts, "queued", entry.base) for run in _deliveries(entry).runs()]


def pending_now(cursor: Cursor, now_ms: int) -> list[dict[str, Any]]:
    """The same of a subscription in use::

    {"first_offset", "last_offset", "first_tag", "records", "deliveries", "state", "due_ms": until it comes again}

    ``state`` is "in flight", "queued" or "given up"; ``due_ms`` is null but for what is in flight with a timer.
    """
    states = {QUEUED: "queued", GIVEN_UP: "given up"}
    items = []
    for run in cursor.deliveries.runs():
        item = _run_item(run.first, run.last, run.attempts, states.get(run.due_ms, "in flight"), cursor.base)
        if QUEUED < run.due_ms < NEVER_MS:
            item["due_ms"] = max(run.due_ms - now_ms, 0)
        items.append(item)
    return items


def _run_item(first: int, last: int, attempts: int, state: str, base: int) -> dict[str, Any]:
    return {
        "first_offset": first,
        "last_offset": last,
        "first_tag": first - base,
        "records": last - first + 1,
        "deliveries": attempts,
        "state": state,
        "due_ms": None,
    }


def _deliveries(entry: Entry) -> Any:
    try:
        return load(entry.deliveries, DeliveryPolicy())
    except (ValueError, TypeError) as problem:
        raise Corrupt("state", None, f"subscription {entry.id}: {problem}") from None


def _text(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


# --- changing


def reset_item(entry: Entry, next_seq: int, gaps: Gaps) -> dict[str, Any]:
    """What a reset of a subscription to a number means::

        {"id", "partition", "from_offset": the next one until now, "next_offset": the next one then,
         "again": records that were delivered and come again, "passed": records that never come}

    Raises:
        Corrupt: its numbers are not those of a subscription
    """
    deliveries = _deliveries(entry)
    before = deliveries.next_seq
    unacknowledged = sum(max(run.last - max(run.first, next_seq) + 1, 0) for run in deliveries.runs())
    return {
        "id": entry.id,
        "partition": entry.partition,
        "from_offset": before,
        "next_offset": next_seq,
        "again": gaps.count(next_seq, before - 1).most,
        "passed": gaps.count(before, next_seq - 1).most + deliveries.unacknowledged - unacknowledged,
    }


def find(store: CursorTable, subscription_id: int) -> Cursor:
    """A subscription by its id. Raises UnknownSubscription."""
    cursor = store.get(subscription_id)
    if cursor is None or cursor.owner == REDRIVE_OWNER:
        raise UnknownSubscription(subscription_id)
    return cursor


def reset(store: CursorTable, cursor: Cursor, next_seq: int, on_done: OnDone) -> None:
    """Forget what was delivered and acknowledged, and go on at ``next_seq``."""
    cursor.reset(next_seq - 1)
    store.flush(on_done)


class Redrive:
    """Dead letters of a subscription, appended to a topic once more, without what made them dead letters.

    How far it has come is kept by a cursor of its own in the dead-letter topic, so that the next redrive goes on
    there. A crash in between may append some again.

    Args:
        source, target: the partitions to read and to append to, open.
        limit: so many at most.
        on_done: called with how many were appended and stored, and the error that ended it early or None.

    It is the ``Waiter`` of the write batches that it appends; call :meth:`work` to begin.
    """

    def __init__(
        self,
        store: CursorTable,
        subscription_id: int,
        source: Partition,
        target: Partition,
        limit: int,
        on_done: Callable[[int, EngineError | None], None],
    ) -> None:
        name = b"%d" % subscription_id
        self._store = store
        self._name = name
        self._source = source
        self._target = target
        self._left = limit
        self._on_done = on_done
        self._count = 0
        self._reader = Reader(store.read_batches)
        self._cursor = store.group(REDRIVE_OWNER, name, source) or store.create(
            REDRIVE_OWNER, source, after_seq=source.log_start - 1, name=name
        )
        self._cursor.pins += 1
        self._write_batches: list[WriteBatch] = []
        self._appended = 0  # records in the write batches, ...
        self._last = 0  # ... and the last number in the source that it stands for
        self._ended = False

    def work(self) -> None:
        """One step: look at the next records, a read batch of them at most, and append what is wanted of them."""
        if self._write_batches or self._ended:
            return
        try:
            seq = max(self._cursor.deliveries.next_seq, self._source.log_start)
            if not self._left or seq > self._source.committed_seq:
                self._end(None)
            elif self._reader.open(self._source, seq, self.work):
                self._take(seq)
        except (BatchError, BundleError) as problem:
            self._end(Corrupt(self._source.title, None, f"{problem}; nothing behind it was redriven"))
        except EngineError as problem:
            self._end(problem)

    def _take(self, seq: int) -> None:
        """Append the dead letters among the next records."""
        reader, size_bytes = self._reader, 0
        found: list[Record] = []
        last = seq - 1
        while reader.current and len(found) < min(self._left, REDRIVE_RECORDS) and size_bytes < REDRIVE_BYTES:
            assert reader.records is not None
            record = reader.records.record()
            last = record.seq
            if self._is_wanted(record):
                found.append(record)
                size_bytes += len(record.value)
            reader.advance()
        if not reader.current:
            last = max(last, reader.last_seq)
        reader.moved(last + 1, reader.current)
        if not found:
            self._passed(seq, last)
            self._store.context.call_soon_threadsafe(self.work)
            return
        self._last = last
        self._appended = len(found)
        self._write_batches = self._target.append_many(
            [record.value for record in found],
            keys=[record.key for record in found],
            timestamps_ms=[record.timestamp_ms for record in found],
            headers=[_without_marks(record.headers) for record in found],
            waiter=self,
        )

    def _is_wanted(self, record: Record) -> bool:
        headers = record.headers
        return (DEAD_LETTER_SUBSCRIPTION, self._name) in zip(headers[::2], headers[1::2], strict=False)

    def _passed(self, first: int, last: int) -> None:
        self._cursor.finished(Plan(first, last, False), last)

    def round_done(self) -> None:
        """A commit round has stored what was appended, or failed to."""
        if not self._write_batches or self._ended:
            return
        state, error = outcome(self._write_batches)
        if state == PENDING:
            return
        self._write_batches = []
        if state != COMMITTED:
            self._end(error or EngineError("not stored"))
            return
        self._count += self._appended
        self._left -= self._appended
        self._passed(self._cursor.deliveries.next_seq, self._last)
        self._store.context.call_soon_threadsafe(self.work)

    def _end(self, error: EngineError | None) -> None:
        self._ended = True
        self._reader.close()
        self._cursor.pins -= 1
        self._store.flush(lambda failed: self._on_done(self._count, error or failed))


def _without_marks(headers: tuple[bytes, ...]) -> tuple[bytes, ...]:
    pairs = zip(headers[::2], headers[1::2], strict=False)
    return tuple(part for pair in pairs if pair[0] not in DEAD_LETTER_HEADERS for part in pair)
