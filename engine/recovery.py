"""Opening a partition: what its files hold, what of it is committed, and how the end of the log is made sound.

Runs on a worker thread, for one partition at a time; nothing else touches the partition's files meanwhile.

1. Every file of the directory that is named like a segment is opened. Headers tell what belongs here; a file whose
   header cannot be read, or that belongs elsewhere, is renamed aside (never removed) and reported.
2. All segments but the last are sealed: their footer gives number range and end. A footer that is missing or damaged
   is rebuilt in memory from a walk of the file; damage inside is found again, batch by batch, by readers.
3. The last segment is walked from its beginning. *Committed floor* = the highest of: the watermark's durable position
   (when it names this segment), any valid batch's durable mark. Below the floor damage is isolated: the walk goes on
   behind it. Above the floor the first invalid batch ends the log.
4. What follows the end is kept in ``set-aside/`` (file name, position and time in its name) and cut off; with no
   watermark of this segment the report calls it "possibly acknowledged".
5. What is kept above the floor is written again, same bytes, and synced: after a failed sync the page cache may hold
   data that never reached the disk, and no reader may see what a power cut could take.
6. Numbers go on behind the highest of: last batch, watermark's committed seq.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.active import ActiveSegment, create_segment, new_header
from engine.batch_header import read_header
from engine.errors import Corrupt, DataDirectoryError
from engine.files import Files
from engine.handles import Handles
from engine.limits import SCAN_BYTES
from engine.scan import Damage, Found, walk
from engine.segment import (
    HEADER_BYTES,
    Footer,
    SegmentHeader,
    parse_header,
    parse_segment_name,
    read_footer,
)
from engine.watermarks import Watermark

SET_ASIDE = "set-aside"


@dataclass(slots=True)
class SealedSegment:
    """A segment that is only read any more."""

    path: Path
    segment_id: int
    first_seq: int
    """First number it may hold (its file name)."""
    last_seq: int
    end: int
    """Position behind its last batch."""
    size_bytes: int
    records: int
    max_timestamp_ms: int
    last_append_ms: int
    footer: Footer | None = None
    """Read when the index does not know a position."""


@dataclass(slots=True)
class Report:
    """What recovery found wrong and what it did about it, for the log and for `logtool`."""

    notes: list[str] = field(default_factory=list)
    damages: list[tuple[Path, Damage]] = field(default_factory=list)
    set_aside_bytes: int = 0


@dataclass(slots=True)
class Recovered:
    """A partition ready for use."""

    sealed: list[SealedSegment]
    active: ActiveSegment
    log_start: int
    next_seq: int
    report: Report


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition's files are and who it is."""

    data_dir: Path
    topic_id: int
    partition: int
    number: int

    @property
    def topic_directory(self) -> Path:
        """Directory of the topic."""
        return self.data_dir / "topics" / str(self.topic_id)

    @property
    def directory(self) -> Path:
        """Directory of the segments."""
        return self.topic_directory / str(self.partition)


def make_partition(files: Files, handles: Handles, place: Place, now_ms: int, first_seq: int = 1) -> ActiveSegment:
    """Directory and first segment of a partition without files, durable. Raises OSError."""
    files.make_dir(place.directory)
    files.sync_dir(place.topic_directory)
    header = new_header(place.topic_id, place.partition, place.number, first_seq, now_ms)
    return create_segment(files, handles, place.directory, header)


def recover_partition(
    files: Files,
    handles: Handles,
    place: Place,
    mark: Watermark | None,
    now_ms: int,
    is_committed: Callable[[int], bool],
) -> Recovered:
    """Opens the partition's files as described at the top of this module.

    Raises:
        OSError: a file cannot be read or written.
        DataDirectoryError: segments are missing although the watermark names them.
        UnsupportedFormat: a segment was written by a newer version.
    """
    report = Report()
    found = _segment_files(files, handles, place, report)
    if not found:
        return _recover_empty(files, handles, place, mark, now_ms, report)
    sealed: list[SealedSegment] = []
    for position, (path, header) in enumerate(found):
        following = found[position + 1][1].first_seq if position + 1 < len(found) else None
        segment = _open_sealed(files, handles, path, header, following, report)
        if segment is not None:
            sealed.append(segment)
    last_path, last_header = found[-1]
    if sealed and sealed[-1].path == last_path:  # crash between sealing and making the next one
        next_seq = max(sealed[-1].last_seq, mark.committed_seq if mark else 0) + 1
        header = new_header(place.topic_id, place.partition, place.number, next_seq, now_ms)
        active = create_segment(files, handles, place.directory, header, max_timestamp_ms=sealed[-1].max_timestamp_ms)
        return _recovered(sealed, active, mark, report)
    active = _recover_active(files, handles, place, last_path, last_header, mark, is_committed, report)
    if sealed:
        active.max_timestamp_ms = max(active.max_timestamp_ms, sealed[-1].max_timestamp_ms)
    return _recovered(sealed, active, mark, report)


def _recovered(sealed: list[SealedSegment], active: ActiveSegment, mark: Watermark | None, report: Report) -> Recovered:
    first_seq = sealed[0].first_seq if sealed else active.header.first_seq
    log_start = max(first_seq, mark.log_start if mark else 1)
    last_seq = max(active.last_seq, active.header.first_seq - 1, mark.committed_seq if mark else 0)
    return Recovered(sealed, active, log_start, last_seq + 1, report)


def _recover_empty(
    files: Files, handles: Handles, place: Place, mark: Watermark | None, now_ms: int, report: Report
) -> Recovered:
    if mark is not None and mark.committed_seq > mark.log_start - 1:
        raise DataDirectoryError(
            f"{place.directory}: no segment files, but records {mark.log_start} to {mark.committed_seq} were "
            "committed; put the files back, or delete the topic"
        )
    next_seq = mark.committed_seq + 1 if mark else 1
    files.make_dir(place.topic_directory)
    active = make_partition(files, handles, place, now_ms, next_seq)
    return _recovered([], active, mark, report)


def _segment_files(files: Files, handles: Handles, place: Place, report: Report) -> list[tuple[Path, SegmentHeader]]:
    """Segments of the directory by first number; others are set aside."""
    found = []
    for name in files.list_dir(place.directory):
        first_seq = parse_segment_name(name)
        if first_seq is None:
            continue
        path = place.directory / name
        with handles.use(path) as fd:
            data = files.read(fd, HEADER_BYTES, 0)
            size_bytes = files.size(fd)
        try:
            header = parse_header(data, path)
            if (header.topic_id, header.partition) != (place.topic_id, place.partition):
                raise Corrupt(path, 0, f"belongs to topic {header.topic_id} partition {header.partition}")
            if header.first_seq != first_seq:
                raise Corrupt(path, 0, f"its header says first number {header.first_seq}")
        except Corrupt as problem:
            if size_bytes > HEADER_BYTES:
                report.notes.append(f"{problem}; renamed to {name}.damaged")
            handles.forget(path)
            files.rename(path, path.with_name(name + ".damaged"))
            files.sync_dir(place.directory)
            continue
        found.append((path, header))
    return found


def _open_sealed(
    files: Files, handles: Handles, path: Path, header: SegmentHeader, following: int | None, report: Report
) -> SealedSegment | None:
    """The sealed segment at `path`; None when it is the last one and has no footer: the active one."""
    with handles.use(path) as fd:
        size_bytes = files.size(fd)
        try:
            footer = read_footer(files, fd, size_bytes, path)
        except Corrupt as problem:
            report.notes.append(f"{problem}; rebuilt from the batches")
            footer = None
            if following is None:
                return None
        if footer is not None and footer[1] == header.segment_id:
            found = footer[0]
        elif following is None:
            return None
        else:
            segment = _walk_segment(files, fd, path, header, size_bytes, None, report)
            found = segment.footer()
    last_seq = found.last_seq if following is None else max(found.last_seq, min(found.last_seq, following - 1))
    return SealedSegment(
        path=path,
        segment_id=header.segment_id,
        first_seq=header.first_seq,
        last_seq=last_seq,
        end=found.end,
        size_bytes=size_bytes,
        records=found.records,
        max_timestamp_ms=found.max_timestamp_ms,
        last_append_ms=found.last_append_ms,
    )


@dataclass(frozen=True, slots=True)
class _Floor:
    """What is known to be committed of an active segment: everything below `position`."""

    position: int
    is_committed: Callable[[int], bool]

    def is_torn(self, transaction_id: int) -> bool:
        """Whether a batch belongs to a transaction that was never committed."""
        return transaction_id != 0 and not self.is_committed(transaction_id)

    def ends_log(self, position: int, segment: ActiveSegment) -> bool:
        """Whether something wrong at `position` is above all that is known to be on disk."""
        return position >= max(self.position, segment.durable_position)


def _walk_segment(
    files: Files, fd: int, path: Path, header: SegmentHeader, size_bytes: int, floor: _Floor | None, report: Report
) -> ActiveSegment:
    """Counts, index and end of a segment's batches.

    With a `floor`, the first damage (or batch of an uncommitted transaction) at or above it ends the walk; without
    one, damage is passed over everywhere.
    """
    segment = ActiveSegment(path.parent, header, last_seq=header.first_seq - 1)

    def read(position: int, size: int) -> bytes:
        return files.read(fd, size, position)

    for item in walk(read, HEADER_BYTES, size_bytes, header.segment_id, header.first_seq):
        if isinstance(item, Found):
            if not _count(segment, item, floor):
                break
        elif item is not None:
            if floor is not None and floor.ends_log(item.position, segment):
                break
            if item.end < size_bytes:
                report.damages.append((path, item))
    return segment


def _count(segment: ActiveSegment, found: Found, floor: _Floor | None) -> bool:
    """Adds verified batches to the counts of `segment`; False at a transaction that was not committed."""
    position = found.start
    while position < found.end:
        at = found.position + position
        header = read_header(found.data, position, segment.header.segment_id, at)
        assert header is not None, "the batches were verified"
        if floor is not None and floor.is_torn(header.transaction_id) and floor.ends_log(at, segment):
            return False
        segment.note(header.first_seq, at, header.max_timestamp_ms)
        segment.records += header.count
        segment.batches += 1
        segment.max_timestamp_ms = max(segment.max_timestamp_ms, header.max_timestamp_ms)
        segment.last_append_ms = max(segment.last_append_ms, header.append_time_ms)
        segment.durable_position = max(segment.durable_position, header.durable_mark)
        segment.last_seq = header.last_seq
        position = header.end
        segment.position = found.position + position
    return True


def _recover_active(
    files: Files,
    handles: Handles,
    place: Place,
    path: Path,
    header: SegmentHeader,
    mark: Watermark | None,
    is_committed: Callable[[int], bool],
    report: Report,
) -> ActiveSegment:
    known = mark is not None and mark.segment_id == header.segment_id
    floor = mark.durable_position if mark is not None and known else HEADER_BYTES
    with handles.use(path) as fd:
        size_bytes = files.size(fd)
        segment = _walk_segment(files, fd, path, header, size_bytes, _Floor(floor, is_committed), report)
        floor = max(floor, segment.durable_position)
        end = segment.position
        if size_bytes > end:
            _set_aside(files, place, fd, path, end, size_bytes, report, _judgement(mark, segment, known=known))
            files.truncate(fd, end)
        if end > floor:
            _write_again(files, fd, floor, end)
        if size_bytes > end or end > floor:
            files.sync_data(fd)
        segment.durable_position = end
    return segment


def _set_aside(
    files: Files, place: Place, fd: int, path: Path, start: int, end: int, report: Report, judgement: str
) -> None:
    """Copies what is cut off the log to a file of its own."""
    directory = place.data_dir / SET_ASIDE
    files.make_dir(directory)
    name = f"{place.topic_id}-{place.partition}-{path.stem}-{start}-{time.time_ns()}"
    copy = files.create(directory / name)
    try:
        for position in range(start, end, SCAN_BYTES):
            files.write(copy, [files.read(fd, min(SCAN_BYTES, end - position), position)], position - start)
        files.sync_data(copy)
    finally:
        files.close(copy)
    files.sync_dir(directory)
    report.set_aside_bytes += end - start
    report.notes.append(
        f"{path}: {end - start} bytes from position {start} on are no whole batches "
        f"({judgement}); kept as {directory / name}"
    )


def _judgement(mark: Watermark | None, segment: ActiveSegment, *, known: bool) -> str:
    """Whether what is cut off may have been acknowledged."""
    if mark is None or not known:
        return "possibly acknowledged: the watermarks file does not know them"
    if mark.committed_seq > segment.last_seq:
        return f"ACKNOWLEDGED: records {segment.last_seq + 1} to {mark.committed_seq} are damaged"
    return "never acknowledged"


def _write_again(files: Files, fd: int, start: int, end: int) -> None:
    for position in range(start, end, SCAN_BYTES):
        files.write(fd, [files.read(fd, min(SCAN_BYTES, end - position), position)], position)
