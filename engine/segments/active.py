"""The active segment of a partition: appended to by one thread at a time, rolled, sealed, cut back after a failure."""

from __future__ import annotations

import errno
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.errors import Corrupt
from engine.files.descriptors import Handles
from engine.files.system import Files, free_path
from engine.formats.batch import seal
from engine.formats.segment import (
    HEADER_BYTES,
    INDEX_INTERVAL_BYTES,
    Footer,
    IndexEntry,
    SegmentHeader,
    read_footer,
    segment_name,
)
from engine.reports import report
from engine.segments.batches import WriteBatch
from engine.segments.missing_numbers import Gaps
from engine.segments.producers import StoredProducers


@dataclass(slots=True)
class SealedSegment:
    """A segment that is only read any more."""

    path: Path
    segment_id: int
    first_seq: int
    """First number it may hold (its file name)."""
    last_seq: int
    end: int
    """Position after its last batch."""
    size_bytes: int
    records: int
    max_timestamp_ms: int
    last_append_ms: int
    created_ms: int
    appended_steady_ms: int = 0
    """Last append by the clock that nobody sets (`engine.state.clock`): retention by age goes by it."""
    left_out_from: int = 0
    """No record ever had a number from here to its first one; 0: not known. Told by recovery."""
    footer: Footer | None = None
    """Read when the index does not know a position."""

    def read_footer(self, files: Files, handles: Handles) -> Footer | None:
        """Reads the footer; None when it is damaged or unreadable (then the segment is read from its beginning)."""
        try:
            with handles.use(self.path) as fd:
                found = read_footer(files, fd, files.size(fd), self.path)
        except (Corrupt, OSError) as problem:
            report(f"{self.path}: {problem}")
            return None
        return replace(found[0], producers=b"") if found is not None else None


@dataclass(slots=True)
class ActiveSegment:
    """The end of a partition's log.

    Positions are bytes from the beginning of the file. Everything below `position` is whole batches (or damage that
    recovery left in its place); everything below `durable_position` is on disk.
    """

    directory: Path
    header: SegmentHeader
    position: int = HEADER_BYTES
    durable_position: int = HEADER_BYTES
    last_seq: int = 0
    records: int = 0
    batches: int = 0
    max_timestamp_ms: int = 0
    last_append_ms: int = 0
    appended_steady_ms: int = 0
    index: list[IndexEntry] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)
    """Numbers that the batches found by recovery leave out."""
    producers: StoredProducers = field(default_factory=StoredProducers)
    """Those that number their records, also of the segments before."""
    may_have_torn_tail: bool = False
    """A write has begun that may have left something behind `position`: nothing is written there before it is cut."""
    path: Path = field(init=False)
    """The segment's file."""
    sync_failed: bool = False
    """A sync of the file failed: the kernel may have dropped what was to be synced and call it clean, so that a later
    sync proves nothing. Nothing more is written here until a restart."""
    sync_lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Held during each sync of the file: of two at a time the kernel tells only one that it failed, and the other one
    would call durable what is gone. Whoever comes second finds `sync_failed` instead."""

    def __post_init__(self) -> None:
        self.path = self.directory / segment_name(self.header.first_seq)

    def note(self, first_seq: int, position: int, max_timestamp_ms: int) -> IndexEntry | None:
        """Adds an index entry for the batch at `position` when the last one is far enough before it."""
        if self.index and position - self.index[-1].position < INDEX_INTERVAL_BYTES:
            return None
        entry = IndexEntry(first_seq, position, max(self.max_timestamp_ms, max_timestamp_ms))
        self.index.append(entry)
        return entry

    def seal_at_tail(self, write_batches: Sequence[WriteBatch]) -> int:
        """Seals `write_batches` for their place after the last batch; the position after them."""
        position = self.position
        for write_batch in write_batches:
            seal(
                write_batch.buffer,
                0,
                write_batch.end,
                self.header.segment_id,
                position,
                self.durable_position,
                write_batch.transaction_id,
            )
            write_batch.segment_id = self.header.segment_id
            write_batch.file_position = position
            position += write_batch.end
        return position

    def mark_written(self, write_batches: Sequence[WriteBatch], end: int) -> None:
        """Counts `write_batches`, which were written up to `end`, as part of the segment."""
        self.may_have_torn_tail = False
        for write_batch in write_batches:
            self.note(write_batch.first_seq, write_batch.file_position, write_batch.max_timestamp_ms)
            self.last_seq = write_batch.last_seq
            self.records += write_batch.records
            self.batches += write_batch.batches
            self.max_timestamp_ms = max(self.max_timestamp_ms, write_batch.max_timestamp_ms)
            self.last_append_ms = write_batch.append_time_ms
            for producer, count, first_seq in write_batch.produced:
                self.producers.note(producer, count, first_seq, write_batch.append_time_ms)
        self.position = end

    def sync_if_idle(self, files: Files, handles: Handles) -> bool:
        """Makes all that counts durable, unless another thread syncs the file right now; False: it does, and tells if
        that fails.

        Raises:
            OSError: nothing may be taken as durable any more.
        """
        if not self.sync_lock.acquire(blocking=False):
            return False
        try:
            self._sync_all(files, handles)
        finally:
            self.sync_lock.release()
        return True

    def _sync_all(self, files: Files, handles: Handles) -> None:
        position = self.position
        with handles.use(self.path) as fd:
            self._sync(files, fd)
        self.durable_position = max(position, self.durable_position)

    def _sync(self, files: Files, fd: int) -> None:
        """Only with `sync_lock`."""
        if self.sync_failed:
            raise OSError(errno.EIO, "an earlier sync failed")
        try:
            files.sync_data(fd)
        except OSError:
            self.sync_failed = True
            raise

    def cut(self, files: Files, handles: Handles) -> None:
        """Cuts off what a failed round has left behind `position`, if anything. Raises OSError."""
        if not self.may_have_torn_tail:
            return  # it did not come to writing: the file may not even have been opened
        with self.sync_lock, handles.use(self.path) as fd:
            files.truncate(fd, self.position)
            self._sync(files, fd)
        self.may_have_torn_tail = False

    def footer(self) -> Footer:
        """What the segment will say of itself once sealed."""
        return Footer(
            first_seq=self.index[0].first_seq if self.index else self.header.first_seq,
            last_seq=self.last_seq if self.position > HEADER_BYTES else self.header.first_seq - 1,
            records=self.records,
            batches=self.batches,
            end=self.position,
            max_timestamp_ms=self.max_timestamp_ms,
            last_append_ms=self.last_append_ms,
            index=tuple(self.index),
            producers=self.producers.packed(self.last_append_ms),
        )

    def seal(self, files: Files, handles: Handles) -> SealedSegment:
        """Writes footer and trailer and makes the file durable. Raises OSError."""
        footer = self.footer()
        packed = footer.pack(self.header.segment_id)
        with self.sync_lock, handles.use(self.path) as fd:
            self.may_have_torn_tail = True
            files.write(fd, [packed], self.position)
            self._sync(files, fd)
        return SealedSegment(
            path=self.path,
            segment_id=self.header.segment_id,
            first_seq=self.header.first_seq,
            last_seq=footer.last_seq,
            end=footer.end,
            size_bytes=footer.end + len(packed),
            records=footer.records,
            max_timestamp_ms=footer.max_timestamp_ms,
            last_append_ms=footer.last_append_ms,
            created_ms=self.header.created_ms,
            appended_steady_ms=self.appended_steady_ms,
        )


def create_segment(
    files: Files, handles: Handles, directory: Path, header: SegmentHeader, *, max_timestamp_ms: int = 0
) -> ActiveSegment:
    """Makes an empty segment file, durable with its directory entry.

    Raises:
        OSError: as the system gave it. The file is removed again, but a power cut may bring it back: recovery knows it
            by being empty after a segment that was not sealed.
    """
    segment = begin_segment(files, handles, directory, header, max_timestamp_ms=max_timestamp_ms)
    with removed_upon_failure(files, handles, segment):
        sync_segment(files, handles, segment)
    return segment


def begin_segment(
    files: Files, handles: Handles, directory: Path, header: SegmentHeader, *, max_timestamp_ms: int = 0
) -> ActiveSegment:
    """Makes an empty segment file that may not be on disk yet. Raises OSError: it is removed again."""
    segment = ActiveSegment(directory, header, last_seq=header.first_seq - 1, max_timestamp_ms=max_timestamp_ms)
    try:
        fd = files.create(segment.path)
    except FileExistsError:  # left by an attempt that failed twice
        files.rename(segment.path, free_path(files, segment.path.with_name(segment.path.name + ".unused")))
        fd = files.create(segment.path)
    handles.add(segment.path, fd)
    with removed_upon_failure(files, handles, segment), handles.use(segment.path) as fd:
        files.write(fd, [header.pack()], 0)
    return segment


def sync_segment(files: Files, handles: Handles, segment: ActiveSegment, *, header: bool = True) -> None:
    """Makes a segment that was begun durable with its directory entry; without `header` the entry alone, as whoever
    writes the first batch syncs the file. Raises OSError.
    """
    if header:
        with handles.use(segment.path) as fd:
            files.sync_data(fd)
    files.sync_dir(segment.directory)


@contextmanager
def removed_upon_failure(files: Files, handles: Handles, segment: ActiveSegment) -> Iterator[None]:
    """Removes the file of a segment that cannot be used."""
    try:
        yield
    except OSError:
        handles.forget(segment.path)
        with suppress(OSError):  # the first failure is the one to tell
            files.remove(segment.path)
        raise


def new_header(
    topic_id: int, partition: int, number: int, first_seq: int, created_ms: int, follows: int = 0
) -> SegmentHeader:
    """A header with a new random segment id."""
    return SegmentHeader(topic_id, partition, number, first_seq, secrets.randbits(64), created_ms, follows)
