"""Reading a partition: from the tail in memory, from the page cache without waiting, else by a reader thread.

`read` runs on the owner's thread. What it takes from files is verified before it is handed out; damage is passed
over, named in the read batch, and reported once. Positions come from, in this order: where the last sequential
reader ended, the active segment's own index, the LMDB index, the sealed segment's footer.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.callbacks import call_each
from engine.context import EngineContext
from engine.errors import EngineError, OutOfRange
from engine.formats.batch import locate
from engine.formats.batch_header import read_header
from engine.formats.segment import HEADER_BYTES, IndexEntry
from engine.limits import FETCHED_MAX, POSITION_HINTS_MAX, READ_BYTES_MIN
from engine.partitions.context import PartitionContext
from engine.reports import report, report_exception
from engine.segments.active import SealedSegment
from engine.segments.batches import ReadBatch, WriteBatch
from engine.segments.damage import Damage, Found, careful_read, find

if TYPE_CHECKING:
    from engine.partitions.partition import Partition


TAIL_READS_TIMED = 16


@dataclass(frozen=True, slots=True)
class Request:
    """What one segment's file is asked for; holds all that a reader thread needs."""

    path: Path
    segment_id: int
    position: int
    limit: int
    expected_seq: int
    """No record of this segment before `position` has this number or a higher one."""
    last_seq: int
    """Last number that the file holds below `limit`."""
    seq: int
    block_bytes: int


class ReadState:
    """What is remembered of reads of one partition's files. Owner's thread only."""

    __slots__ = ("_hints", "_told", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, list[Callable[[], None]]] = {}
        """Who is called when a reader thread has read the batch of a number."""
        self._hints: dict[int, tuple[int, int]] = {}
        """Sequence number -> (segment id, position of the batch that follows the one before it)."""
        self._told: set[tuple[int, int]] = set()

    def position(self, seq: int, segment_id: int) -> int | None:
        """Where the batch begins that an earlier read would have given next."""
        hint = self._hints.get(seq)
        return hint[1] if hint is not None and hint[0] == segment_id else None

    def note_position(self, seq: int, segment_id: int, position: int) -> None:
        """A read has ended before `seq`."""
        if len(self._hints) >= POSITION_HINTS_MAX:
            self._hints.clear()
        self._hints[seq] = (segment_id, position)

    def is_told(self, segment_id: int, position: int) -> bool:
        """Whether this was asked before of damage at that place."""
        known = len(self._told)
        self._told.add((segment_id, position))
        return len(self._told) == known

    def forget(self, callback: Callable[[], None]) -> None:
        """Somebody no longer waits."""
        for callbacks in self.waiting.values():
            if callback in callbacks:
                callbacks.remove(callback)


def read(
    context: EngineContext,
    parts: PartitionContext,
    partition: Partition,
    seq: int,
    max_bytes: int,
    on_ready: Callable[[], None] | None,
) -> ReadBatch | None:
    """See `Partition.read`; `seq` is committed."""
    if seq < partition.log_start:
        raise OutOfRange(
            f"{partition.title}: record {seq} is no longer kept; the first one is {partition.log_start}",
            partition.log_start,
            partition.committed_seq,
        )
    write_batch = partition.tail.find(seq)
    if write_batch is not None:
        return _from_memory(context, write_batch, seq)
    answer = parts.fetched.get((partition, seq))
    if answer is not None:
        if isinstance(answer, EngineError):
            del parts.fetched[partition, seq]
            raise answer
        return answer
    request = _request(context, partition, seq, max_bytes)
    started = time.perf_counter()
    read_batch = _try(context, partition, request)
    if read_batch is not None:
        context.figures.read_seconds["cache"].observe(time.perf_counter() - started)
    elif on_ready is not None:
        _fetch(context, parts, partition, request, on_ready)
    return read_batch


def _from_memory(context: EngineContext, write_batch: WriteBatch, seq: int) -> ReadBatch:
    """One in `TAIL_READS_TIMED` is timed and counts for all of them: looking at the clock costs as much as the read."""
    figures = context.figures
    figures.tail_reads += 1
    if figures.tail_reads % TAIL_READS_TIMED:
        return _read_batch_of(write_batch, seq)
    started = time.perf_counter()
    read_batch = _read_batch_of(write_batch, seq)
    figures.read_seconds["memory"].observe(time.perf_counter() - started, TAIL_READS_TIMED)
    return read_batch


def _read_batch_of(write_batch: WriteBatch, seq: int) -> ReadBatch:
    view = memoryview(write_batch.buffer)
    if seq <= write_batch.first_seq:
        return ReadBatch(view[: write_batch.end], write_batch.first_seq, write_batch.last_seq)
    start = locate(view, 0, write_batch.end, seq)
    header = read_header(view, start, write_batch.segment_id, write_batch.file_position + start)
    assert header is not None
    return ReadBatch(view[start : write_batch.end], header.first_seq, write_batch.last_seq)


def _request(context: EngineContext, partition: Partition, seq: int, max_bytes: int) -> Request:
    """Where to look for `seq`: the segment that may hold it, from the nearest known position on."""
    sealed = partition.sealed
    active = partition.active_segment
    at = max(0, bisect_right(sealed, seq, key=lambda segment: segment.first_seq) - 1)  # a gap before the first one, too
    # A gap at the end of a segment, or a segment that a failed roll left without records: what follows is behind it.
    while at < len(sealed) and sealed[at].last_seq < max(seq, sealed[at].first_seq):
        at += 1
    block_bytes = max(max_bytes, READ_BYTES_MIN)
    if at < len(sealed):
        segment = sealed[at]
        position, expected_seq = _position(context, partition, segment, seq)
        return Request(
            segment.path, segment.segment_id, position, segment.end, expected_seq, segment.last_seq, seq, block_bytes
        )
    entries = active.index
    known = partition.read_state.position(seq, active.header.segment_id)
    if known is not None:
        position, expected_seq = known, seq
    else:
        entry = _floor(entries, seq)
        position, expected_seq = (entry.position, entry.first_seq) if entry else (HEADER_BYTES, active.header.first_seq)
    return Request(
        active.path,
        active.header.segment_id,
        position,
        partition.committed_end,
        expected_seq,
        partition.committed_seq,
        seq,
        block_bytes,
    )


def _floor(entries: list[IndexEntry] | tuple[IndexEntry, ...], seq: int) -> IndexEntry | None:
    at = bisect_right(entries, seq, key=lambda entry: entry.first_seq) - 1
    return entries[at] if at >= 0 else None


def _position(context: EngineContext, partition: Partition, segment: SealedSegment, seq: int) -> tuple[int, int]:
    """(position of a batch at or before `seq`, its first number) in a sealed segment."""
    position = partition.read_state.position(seq, segment.segment_id)
    if position is not None:
        return position, seq
    if segment.footer is None:
        entry = context.index.floor(partition.topic.numbers[partition.index], seq)
        if entry is not None and entry.segment_id == segment.segment_id and entry.first_seq >= segment.first_seq:
            return entry.position, entry.first_seq
        segment.footer = segment.read_footer(context.files, context.handles)
    found = _floor(segment.footer.index, seq) if segment.footer else None
    return (found.position, found.first_seq) if found else (HEADER_BYTES, segment.first_seq)


def _try(context: EngineContext, partition: Partition, request: Request) -> ReadBatch | None:
    """The read batch if the page cache holds it whole and undamaged."""

    def read_cached(position: int, size_bytes: int) -> bytearray | None:
        buffer = bytearray(size_bytes)
        got = context.files.read_nowait(fd, buffer, position)
        return buffer if got == size_bytes else None

    try:
        with context.handles.use(request.path) as fd:
            result = find(
                read_cached,
                request.position,
                request.limit,
                request.segment_id,
                request.expected_seq,
                request.seq,
                request.block_bytes,
            )
    except OSError:
        return None  # the reader thread meets it again, and reports it
    if result is None or result[0] is None or result[1]:
        return None
    return _read_batch(partition, request, result[0], [])


def _read_batch(partition: Partition, request: Request, found: Found, damages: list[Damage]) -> ReadBatch:
    partition.read_state.note_position(found.last_seq + 1, request.segment_id, found.next_position)
    lost = tuple((max(damage.first_seq, request.seq), damage.last_seq) for damage in damages)
    view = memoryview(found.data)[found.start : found.end]
    return ReadBatch(view, found.first_seq, found.last_seq, tuple(pair for pair in lost if pair[0] <= pair[1]))


def _fetch(
    context: EngineContext,
    parts: PartitionContext,
    partition: Partition,
    request: Request,
    on_ready: Callable[[], None],
) -> None:
    """Has a reader thread do it; all who want the same number are called when it is there."""
    waiting = partition.read_state.waiting
    callbacks = waiting.get(request.seq)
    if callbacks is not None:
        if on_ready not in callbacks:
            callbacks.append(on_ready)
        return
    waiting[request.seq] = [on_ready]
    started = time.perf_counter()

    def work() -> None:
        result = _blocking(context, request)
        seconds = time.perf_counter() - started
        context.call_soon_threadsafe(lambda: None if context.is_closed else done(result, seconds))

    def done(result: tuple[Found | None, list[Damage]] | EngineError, seconds: float) -> None:
        context.figures.read_seconds["disk"].observe(seconds)
        _fetched(context, parts, partition, request, result)

    parts.readers.submit(work)


def _blocking(context: EngineContext, request: Request) -> tuple[Found | None, list[Damage]] | EngineError:
    try:
        with context.handles.use(request.path) as fd:
            result = find(
                careful_read(context.files, fd, report, request.path),
                request.position,
                request.limit,
                request.segment_id,
                request.expected_seq,
                request.seq,
                request.block_bytes,
            )
    except OSError as problem:
        return EngineError(f"cannot read {request.path}: {problem.strerror or problem}")
    except Exception as problem:  # noqa: BLE001 - whoever waits for the answer would wait for ever
        report_exception(f"reading of {request.path}", problem)
        return EngineError(f"cannot read {request.path}: {problem!r}")
    assert result is not None, "a blocking read always answers"
    return result


def _fetched(
    context: EngineContext,
    parts: PartitionContext,
    partition: Partition,
    request: Request,
    result: tuple[Found | None, list[Damage]] | EngineError,
) -> None:
    """Puts the answer where `read` finds it (the last few are kept), and calls everybody who waited."""
    answer: ReadBatch | EngineError
    if isinstance(result, EngineError):
        answer = result
        report(str(result))
    else:
        found, damages = result
        for damage in damages:
            report_damage(context, partition, request.path, request.segment_id, damage)
        answer = (
            _read_batch(partition, request, found, damages) if found is not None else _rest_is_lost(partition, request)
        )
    callbacks = partition.read_state.waiting.pop(request.seq)
    parts.fetched[partition, request.seq] = answer
    while len(parts.fetched) > FETCHED_MAX:
        parts.fetched.popitem(last=False)
    call_each("a read", callbacks)


def _rest_is_lost(partition: Partition, request: Request) -> ReadBatch:
    """An empty read batch: all that the segment held from the wanted number on is damaged. Numbers before its first one
    were left out, and are not lost."""
    first_seq = max(request.seq, request.expected_seq)
    last_seq = max(request.last_seq, first_seq)
    return ReadBatch(memoryview(b""), first_seq, last_seq, ((first_seq, last_seq),))


def report_damage(context: EngineContext, partition: Partition, path: Path, segment_id: int, damage: Damage) -> None:
    """Logs and counts damage the first time it is met."""
    if partition.read_state.is_told(segment_id, damage.position):
        return
    context.figures.damaged_batches += 1
    context.figures.damaged_records += partition.gaps.count(damage.first_seq, damage.last_seq).most
    numbers = (
        f"records {damage.first_seq} to {damage.last_seq}"
        if damage.last_seq >= damage.first_seq
        else "no known records"
    )
    report(
        f"{partition.title}: damaged {damage.reason} in {path}, bytes {damage.position} to {damage.end} ({numbers}); "
        "readers go on behind it"
    )


def seq_at_time(context: EngineContext, partition: Partition, timestamp_ms: int) -> int:
    """See `Partition.seq_at_time`."""
    entry = context.index.floor_time(partition.topic.numbers.get(partition.index, 0), timestamp_ms)
    return max(entry.first_seq if entry is not None else 1, partition.log_start)
