"""Opening a partition: what its files hold, what of it is committed, and how the end of the log is made sound.

Runs on a worker thread, for one partition at a time; nothing else touches the partition's files meanwhile.

1. Files named like a segment are looked at (`engine.segments.discovery`): damaged headers are rebuilt, strangers are
   renamed aside. The directory is synced: a process that was killed may have made a file that only the kernel knows
   yet.
2. An empty segment after one without a footer was made by a roll that failed half-way: it is removed, and the one
   before it is the active one again, unless the watermark says otherwise.
3. If the segment that the watermark names is missing, its place is held by a file with a hole as long as the committed
   part was: so the loss has a place in the log, and every reader is told of it.
   So it is with a segment between two others: the later one says which number it follows.
4. All segments but the last are sealed: their footer gives number range and end. A footer that is missing or damaged
   is rebuilt from a walk of the file, and what stood after the batches is set aside; damage inside is found again,
   batch by batch, by readers. Where it took the last batches, it stays where it is, and there is no footer.
5. The last segment is walked from its beginning. *Committed floor* = the highest of: the watermark's durable position
   (when it names this segment), any valid batch's durable mark, the index's last entry (with durability "always").
   Below the floor damage is isolated: the walk goes on after it; damaged bytes that reach the floor stay where they
   are, and the log goes on after the floor. Above the floor the first invalid batch, or the first one of a
   transaction that was not committed, ends the log.
6. What follows the end is kept in ``set-aside/`` (file name, position and time in its name) and cut off; with no
   watermark of this segment the report calls it "possibly acknowledged".
7. What is kept above the floor is written again, same bytes, and synced: after a failed sync the page cache may hold
   data that never reached the disk, and no reader may see what a power cut could take.
8. Numbers go on after the highest that is known from batches, file names, the watermark and the index, and, when the
   watermark does not know the segment, from headers in what was cut off: a number that was acknowledged and read is
   not given again.
"""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.errors import Corrupt, DataDirectoryError
from engine.files.descriptors import Handles
from engine.files.system import Files
from engine.formats.batch_header import read_header
from engine.formats.extension import decode_producer
from engine.formats.segment import HEADER_BYTES, Footer, SegmentHeader, read_footer
from engine.limits import SCAN_BYTES
from engine.segments.active import (
    ActiveSegment,
    SealedSegment,
    begin_segment,
    create_segment,
    new_header,
    sync_segment,
)
from engine.segments.damage import Damage, Found, careful_read, highest_seq, walk
from engine.segments.discovery import PartitionLocation, segment_files
from engine.segments.missing_numbers import NO_GAPS, Gaps
from engine.segments.producers import unpacked
from engine.segments.recovery_hints import RecoveryHints

SET_ASIDE = "set-aside"
FOOTER_UNREADABLE = "the disk cannot read the footer"
NEVER_ACKNOWLEDGED = "never acknowledged"
"""What is said of the rest of a write that a crash has interrupted."""

HOLE_BYTES = 4096
"""Size of what holds the place of a sealed segment: more than header and footer of an empty one."""

Segments = list[tuple[Path, SegmentHeader]]


@dataclass(frozen=True, slots=True)
class Lost:
    """Numbers of committed records that recovery found damaged or missing, and where."""

    path: Path
    position: int
    end: int
    first_seq: int
    last_seq: int
    why: str

    @property
    def text(self) -> str:
        """What the operator is told."""
        return f"{self.path}: ACKNOWLEDGED records {self.first_seq} to {self.last_seq} are lost: {self.why}"


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes after the end of the log that were set aside, and the numbers that headers in them state, if any."""

    path: Path
    position: int
    end: int
    first_seq: int
    last_seq: int
    judgement: str
    """Whether they may have been acknowledged."""
    kept_as: Path

    @property
    def text(self) -> str:
        """What the operator is told."""
        return (
            f"{self.path}: {self.end - self.position} bytes from position {self.position} on are no whole, committed "
            f"batches ({self.judgement}); kept as {self.kept_as}"
        )


class NoSegments(DataDirectoryError):
    """Records were committed, and no file has any.

    Attributes:
        notes: what is there in their place.
    """

    def __init__(self, text: str, notes: list[str]) -> None:
        super().__init__("; ".join([text, *notes]))
        self.notes = notes


@dataclass(slots=True)
class Report:
    """What recovery found wrong and what it did about it, for the log and for `logtool`."""

    notes: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    """Records that are gone with the end of a file, or with a whole one."""
    isolated: list[Lost] = field(default_factory=list)
    """Records of damaged batches between good ones: the operator is told when somebody reads there."""
    cut: list[Cut] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """Everything the operator is told."""
        return [*self.notes, *(lost.text for lost in self.lost), *(cut.text for cut in self.cut)]

    @property
    def set_aside_bytes(self) -> int:
        """Bytes that were cut off."""
        return sum(cut.end - cut.position for cut in self.cut)


@dataclass(slots=True)
class Recovered:
    """A partition ready for use."""

    sealed: list[SealedSegment]
    active: ActiveSegment
    log_start: int
    committed_seq: int
    """Last number that readers may ask for: of the last record, or of the last one known to be lost."""
    next_seq: int
    report: Report

    def gaps(self) -> Gaps:
        """Which numbers name no record."""
        gaps = Gaps()
        follows = 0
        for segment in self.sealed:
            gaps.add(max(follows, segment.left_out_from) or segment.first_seq, segment.first_seq - 1)
            gaps.add(segment.first_seq, segment.last_seq, segment.records)
            follows = segment.last_seq + 1
        header = self.active.header
        gaps.add(max(follows, header.left_out_from) or header.first_seq, header.first_seq - 1)
        gaps.extend(self.active.gaps)
        return gaps if len(gaps) else NO_GAPS


def make_partition(
    files: Files, handles: Handles, location: PartitionLocation, now_ms: int, first_seq: int = 1
) -> ActiveSegment:
    """Directory and first segment of a partition without files, durable. Raises OSError."""
    files.make_dir(location.directory)
    active = begin_partition(files, handles, location, now_ms, first_seq)
    sync_segment(files, handles, active)
    files.sync_dir(location.topic_directory)
    return active


def begin_partition(
    files: Files, handles: Handles, location: PartitionLocation, now_ms: int, first_seq: int = 1
) -> ActiveSegment:
    """The first segment in a partition's directory; durable by `sync_segment` and when the topic's directory is synced.

    Raises OSError.
    """
    header = new_header(location.topic_id, location.partition, location.number, first_seq, now_ms)
    return begin_segment(files, handles, location.directory, header)


def recover_partition(
    files: Files, handles: Handles, location: PartitionLocation, hints: RecoveryHints, now_ms: int
) -> Recovered:
    """Opens the partition's files as described at the top of this module.

    Raises:
        OSError: a file cannot be read or written.
        DataDirectoryError: all segments are missing although the watermark names some.
        UnsupportedFormat: a segment was written by a newer version.
    """
    return _Recovery(files, handles, location, hints, now_ms).run()


@dataclass(slots=True)
class _Recovery:
    """One run; see the module's text for the steps."""

    files: Files
    handles: Handles
    location: PartitionLocation
    hints: RecoveryHints
    now_ms: int
    report: Report = field(default_factory=Report)
    seen_seq: int = 0
    """Highest number met in what is no longer part of the log."""
    begins: int = 1
    """Where the log begins, by its oldest segment."""
    acknowledged_seq: int = 0
    """The highest number that was committed, as far as the hints know."""
    producers: bytes = b""
    """Those that number their records, as the last footer says."""

    def run(self) -> Recovered:
        """All steps."""
        found = segment_files(self.files, self.handles, self.location, self.hints.segment_ids, self.report.notes.append)
        if self.files.list_dir(self.location.directory):
            self.files.sync_dir(self.location.directory)
        self._drop_unused(found)
        self._check_entry(found)
        if not found:
            return self._empty()
        self._hold_place_of_missing(found)
        self.begins = found[0][1].begins
        self.acknowledged_seq = self._acknowledged(found)
        sealed: list[SealedSegment] = []
        for at, (path, header) in enumerate(found):
            self._hold_place_before(header, sealed)
            following = max(found[at + 1][1].begins, header.first_seq) if at + 1 < len(found) else None
            segment = self._open_sealed(path, header, following)
            if segment is not None:
                sealed.append(segment)
        last_path, last_header = found[-1]
        if sealed and sealed[-1].path == last_path:  # crash between sealing and making the next one
            self._make_sure_of(sealed[-1])
            return self._result(sealed, None)
        return self._result(sealed, self._recover_active(last_path, last_header))

    def _result(self, sealed: list[SealedSegment], active: ActiveSegment | None) -> Recovered:
        """Numbers and limits; begins a new segment when the last one is sealed, or says another partition number."""
        last_seq = max((segment.last_seq for segment in sealed), default=0)
        # A segment without records may stand behind numbers that were reserved and given to nobody.
        with_records = (segment.last_seq for segment in sealed if segment.first_seq <= segment.last_seq)
        committed_seq = max(with_records, default=self.begins - 1)
        if active is not None:
            last_seq = max(last_seq, active.last_seq, active.header.first_seq - 1)
            committed_seq = active.last_seq if active.position > HEADER_BYTES else committed_seq
        # The log may begin above all that is stored: the first records ever brought their own number, and failed.
        below_start = self.hints.mark.log_start - 1 if self.hints.mark is not None else 0
        next_seq = max(last_seq, self.hints.highest_seq, self.seen_seq, below_start) + 1
        newest_ms = max((segment.max_timestamp_ms for segment in sealed), default=0)
        last_append_ms = max((segment.last_append_ms for segment in sealed), default=0)
        producers = active.producers if active is not None else unpacked(self.producers)
        if active is not None:
            active.max_timestamp_ms = newest_ms = max(newest_ms, active.max_timestamp_ms)
            if active.header.number != self.location.number:
                active = self._renumber(active, sealed)
        if active is None:
            location = self.location
            header = new_header(
                location.topic_id, location.partition, location.number, next_seq, self.now_ms, follows=committed_seq + 1
            )
            active = create_segment(self.files, self.handles, location.directory, header, max_timestamp_ms=newest_ms)
        active.last_append_ms = max(last_append_ms, active.last_append_ms)
        active.producers = producers
        mark = self.hints.mark
        log_start = max(self.begins, mark.log_start if mark else 1)
        if mark is not None and mark.log_start < self.begins <= mark.committed_seq + 1:
            self._lose(
                self.location.directory, 0, 0, mark.log_start, self.begins - 1, "their segment files are missing"
            )
        gap = self.acknowledged_seq - committed_seq
        if gap > 0 and not self.report.set_aside_bytes and committed_seq + 1 >= log_start:
            self.report.notes.append(
                f"{active.path}: records {committed_seq + 1} to {self.acknowledged_seq} were acknowledged, but are "
                "not in the files: their durability was below always, or files were taken away"
            )
        return Recovered(sealed, active, log_start, committed_seq, next_seq, self.report)

    def _lose(self, path: Path, position: int, end: int, first_seq: int, last_seq: int, why: str) -> None:
        if last_seq < first_seq:
            return
        self.report.lost.append(Lost(path, position, end, first_seq, last_seq, why))

    def _acknowledged(self, found: Segments) -> int:
        """See `acknowledged_seq`. The watermark of a segment without records names the number before it, which may be
        one of those that were left out."""
        seq = self.hints.highest_seq
        for _, header in reversed(found):
            if header.begins <= seq < header.first_seq:
                seq = header.begins - 1
        return seq

    # --- which segments there are

    def _empty(self) -> Recovered:
        mark = self.hints.mark
        log_start = mark.log_start if mark is not None else 1
        if self.hints.highest_seq >= log_start:
            raise NoSegments(
                f"{self.location.directory}: no segment files, but records {log_start} to {self.hints.highest_seq} "
                "were committed; put the files back, or give the records up: logtool repair, or delete the topic",
                self.report.notes,
            )
        next_seq = self.hints.highest_seq + 1
        active = make_partition(self.files, self.handles, self.location, self.now_ms, next_seq)
        return Recovered([], active, next_seq, next_seq - 1, next_seq, self.report)

    def _check_entry(self, found: Segments) -> None:
        """The index may still have entries of a former owner of the number: this one has to name a segment of ours."""
        hints, ids = self.hints, {header.segment_id for _, header in found}
        if hints.mark is not None:
            ids.add(hints.mark.segment_id)
        if hints.entry is not None and hints.entry.segment_id not in ids:
            self.hints = replace(hints, entry=None)

    def _drop_unused(self, found: Segments) -> None:
        """Step 2."""
        while len(found) > 1:
            (path, header), (before_path, before) = found[-1], found[-2]
            if self.hints.mark is not None and self.hints.mark.segment_id == header.segment_id:
                return
            with self.handles.use(path) as fd:
                if self.files.size(fd) > HEADER_BYTES:
                    return
            if self._footer(before_path, before) is not None:
                return
            self.files.remove(path)
            self.handles.forget(path)
            self.files.sync_dir(self.location.directory)
            found.pop()

    def _hold_place_of_missing(self, found: Segments) -> None:
        """Step 3."""
        mark = self.hints.mark
        if mark is None or mark.committed_seq < mark.active_first_seq:
            return  # nothing is known of it, or it was empty
        if any(mark.active_first_seq == header.first_seq for _, header in found):
            return
        path, header = self._make_hole(mark.active_first_seq, mark.committed_position)
        found.append((path, header))
        found.sort(key=lambda segment: segment[1].first_seq)
        held = mark._replace(durable_position=mark.committed_position, segment_id=header.segment_id)
        self.hints = replace(self.hints, mark=held)

    def _hold_place_before(self, header: SegmentHeader, sealed: list[SealedSegment]) -> None:
        """Step 3, for what is missing between the last of the sealed segments and the one with this header."""
        log_start = self.hints.mark.log_start if self.hints.mark is not None else 1
        first_seq = max(sealed[-1].last_seq + 1, log_start) if sealed else header.begins
        if first_seq < header.begins and header.follows:
            path, held = self._make_hole(first_seq, HOLE_BYTES)
            segment = self._open_sealed(path, held, header.begins)
            assert segment is not None, "another one follows"
            sealed.append(segment)

    def _make_hole(self, first_seq: int, size_bytes: int) -> tuple[Path, SegmentHeader]:
        """A segment file without a batch, which readers take for damage that took all of its numbers."""
        location = self.location
        header = new_header(location.topic_id, location.partition, location.number, first_seq, self.now_ms)
        path = create_segment(self.files, self.handles, location.directory, header).path
        with self.handles.use(path) as fd:
            self.files.truncate(fd, size_bytes)
            self.files.sync_data(fd)
        self.report.notes.append(f"{path} is missing; an empty file holds its place")
        return path, header

    # --- sealed segments

    def _footer(self, path: Path, header: SegmentHeader) -> Footer | None:
        """The segment's own footer; None when there is none, or it is damaged (then it says so)."""
        try:
            with self.handles.use(path) as fd:
                footer = read_footer(self.files, fd, self.files.size(fd), path)
        except Corrupt as problem:
            note = str(problem)
            if note not in self.report.notes:
                self.report.notes.append(note)
            return None
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
            self.report.notes.append(f"{path}: {FOOTER_UNREADABLE}")
            return None
        return footer[0] if footer is not None and footer[1] == header.segment_id else None

    def _open_sealed(self, path: Path, header: SegmentHeader, following: int | None) -> SealedSegment | None:
        """The sealed segment at `path`; None when it is the last one and has no footer: the active one."""
        footer = self._footer(path, header)
        if footer is None and following is None:
            return None
        with self.handles.use(path) as fd:
            size_bytes = self.files.size(fd)
            if footer is None:
                assert following is not None
                walked, is_damaged = self._walk(fd, path, header, size_bytes, None)
                footer = walked.footer()
                held = walked.gaps.count(header.first_seq, footer.last_seq).most  # with those that are lost
                footer = replace(footer, records=held)
                footer_bytes = len(footer.pack(header.segment_id))
                if is_damaged and size_bytes - footer.end > footer_bytes and footer.last_seq < following - 1:
                    # Not only the footer is damaged.
                    self._lose(path, footer.end, size_bytes, footer.last_seq + 1, following - 1, "they are damaged")
                    held += following - 1 - footer.last_seq
                    footer = replace(footer, end=size_bytes, last_seq=following - 1, records=held)
                else:
                    size_bytes = self._seal_again(fd, walked, size_bytes)
        self.producers = footer.producers
        last_seq = footer.last_seq if following is None else min(footer.last_seq, following - 1)
        return SealedSegment(
            path=path,
            segment_id=header.segment_id,
            first_seq=header.first_seq,
            last_seq=last_seq,
            end=footer.end,
            size_bytes=size_bytes,
            records=footer.records,
            max_timestamp_ms=footer.max_timestamp_ms,
            last_append_ms=footer.last_append_ms,
            created_ms=header.created_ms,
            left_out_from=header.left_out_from,
        )

    def _seal_again(self, fd: int, segment: ActiveSegment, size_bytes: int) -> int:
        """Writes the footer of a segment that does not end in a good one; its size then."""
        path, end = segment.path, segment.position
        note = f"{path} does not end in its footer, which is rebuilt from the batches"
        try:
            if size_bytes > end:
                note += (
                    f"; {size_bytes - end} bytes behind them are kept as {self._set_aside(fd, path, end, size_bytes)}"
                )
            self.files.truncate(fd, end)
            return segment.seal(self.files, self.handles).size_bytes
        except OSError as problem:  # it can be read without, too
            note += f"; that cannot be stored now: {problem}"
            return self.files.size(fd)
        finally:
            self.report.notes.append(note)

    def _make_sure_of(self, segment: SealedSegment) -> None:
        """Writes the end of a segment again that was sealed by a process that may have died before its sync."""
        floor = min(self.hints.floor(segment.segment_id), segment.end)
        with self.handles.use(segment.path) as fd:
            self._write_again(fd, floor, segment.size_bytes)
            self.files.sync_data(fd)

    # --- the active segment

    def _walk(
        self, fd: int, path: Path, header: SegmentHeader, size_bytes: int, floor: int | None
    ) -> tuple[ActiveSegment, bool]:
        """Counts, index and end of a segment's batches, and whether there is damage at its end.

        With a `floor`, the first damage (or batch of an uncommitted transaction) at or above it ends the walk; without
        one, damage is passed over everywhere.
        """
        segment = ActiveSegment(path.parent, header, last_seq=header.first_seq - 1)
        segment.producers = unpacked(self.producers)
        read = careful_read(self.files, fd, self.report.notes.append, path)
        follows = header.first_seq
        for item in walk(read, HEADER_BYTES, size_bytes, header.segment_id, header.first_seq):
            if isinstance(item, Found):
                if not self._count(segment, item, floor, follows):
                    break
                follows = segment.last_seq + 1
                continue
            assert item is not None, "these reads wait for the disk"
            if item.end == size_bytes or (floor is not None and item.position >= max(floor, segment.durable_position)):
                return segment, True
            self._found_damaged(path, item)
            follows = max(follows, item.last_seq + 1)  # there were records of these numbers
        return segment, False

    def _found_damaged(self, path: Path, damage: Damage) -> None:
        if damage.last_seq >= damage.first_seq:
            where = (damage.position, damage.end, damage.first_seq, damage.last_seq)
            self.report.isolated.append(Lost(path, *where, f"damaged {damage.reason}"))

    def _count(self, segment: ActiveSegment, found: Found, floor: int | None, follows: int) -> bool:
        """Adds verified batches to the counts of `segment`; False at a transaction that was not committed."""
        position = found.start
        while position < found.end:
            at = found.position + position
            header = read_header(found.data, position, segment.header.segment_id, at)
            assert header is not None, "the batches were verified"
            is_torn = header.transaction_id != 0 and not self.hints.is_committed(header.transaction_id)
            if floor is not None and is_torn and at >= max(floor, segment.durable_position):
                return False
            segment.note(header.first_seq, at, header.max_timestamp_ms)
            segment.gaps.add(follows, header.first_seq - 1)
            segment.gaps.add(header.first_seq, header.last_seq, header.count)
            follows = header.last_seq + 1
            segment.records += header.count
            segment.batches += 1
            segment.max_timestamp_ms = max(segment.max_timestamp_ms, header.max_timestamp_ms)
            segment.last_append_ms = max(segment.last_append_ms, header.append_time_ms)
            segment.durable_position = max(segment.durable_position, header.durable_mark)
            segment.last_seq = header.last_seq
            producer = decode_producer(found.data[header.bundles_end : header.end])
            if producer is not None:
                segment.producers.note(producer, header.count, header.first_seq, header.append_time_ms)
            position = header.end
            segment.position = found.position + position
        return True

    def _recover_active(self, path: Path, header: SegmentHeader) -> ActiveSegment:
        files = self.files
        with self.handles.use(path) as fd:
            size_bytes = files.size(fd)
            floor = self.hints.floor(header.segment_id)
            segment, _ = self._walk(fd, path, header, size_bytes, floor)
            floor = max(floor, segment.durable_position)
            valid_end, valid_seq = segment.position, segment.last_seq
            if valid_end < floor:
                segment.position = floor
                segment.last_seq = max(segment.last_seq, self.hints.highest_seq)
                why = f"bytes {valid_end} to {floor} are damaged"
                self._lose(path, valid_end, floor, valid_seq + 1, segment.last_seq, why)
            end = segment.position
            if size_bytes > end:
                highest = highest_seq(careful_read(files, fd), end, size_bytes, header.segment_id)
                if self.hints.mark is None or self.hints.mark.segment_id != header.segment_id:
                    self.seen_seq = highest
                kept_as = self._set_aside(fd, path, end, size_bytes)
                cut = Cut(path, end, size_bytes, segment.last_seq + 1, highest, self._judgement(segment), kept_as)
                self.report.cut.append(cut)
            if size_bytes != end:
                files.truncate(fd, end)
            mark = self.hints.mark
            is_new = mark is None or mark.segment_id != header.segment_id
            if is_new:  # who made it may have been killed before its header was on disk
                files.write(fd, [header.pack()], 0)
            if end > floor:
                self._write_again(fd, floor, end)
            if size_bytes != end or end > floor or is_new:
                files.sync_data(fd)
            segment.durable_position = end
        return segment

    def _renumber(self, active: ActiveSegment, sealed: list[SealedSegment]) -> ActiveSegment | None:
        """The partition has another number than before (its state was lost): readers outside the server look for the
        number in the newest header, so a segment with the new one is begun. None: it has yet to be made."""
        if active.position > HEADER_BYTES:
            sealed.append(active.seal(self.files, self.handles))
            return None
        old = active.header
        header = SegmentHeader(
            old.topic_id,
            old.partition,
            self.location.number,
            old.first_seq,
            old.segment_id,
            old.created_ms,
            old.follows,
        )
        with self.handles.use(active.path) as fd:
            self.files.write(fd, [header.pack()], 0)
            self.files.sync_data(fd)
        active.header = header
        return active

    def _set_aside(self, fd: int, path: Path, start: int, end: int) -> Path:
        """Copies what is cut off the log to a file of its own."""
        files, location = self.files, self.location
        directory = location.data_dir / SET_ASIDE
        files.make_dir(directory)
        files.sync_dir(location.data_dir)
        name = f"{location.topic_id}-{location.partition}-{path.stem}-{start}-{time.time_ns()}"
        read = careful_read(files, fd)
        copy = files.create(directory / name)
        try:
            for position in range(start, end, SCAN_BYTES):
                files.write(copy, [read(position, min(SCAN_BYTES, end - position))], position - start)
            files.sync_data(copy)
        finally:
            files.close(copy)
        files.sync_dir(directory)
        return directory / name

    def _judgement(self, segment: ActiveSegment) -> str:
        """Whether what is cut off may have been acknowledged."""
        mark = self.hints.mark
        if mark is None or mark.segment_id != segment.header.segment_id:
            return "possibly acknowledged: the watermarks file does not know them"
        if mark.committed_seq > segment.last_seq:
            return f"ACKNOWLEDGED: records {segment.last_seq + 1} to {mark.committed_seq} are damaged"
        return NEVER_ACKNOWLEDGED

    def _write_again(self, fd: int, start: int, end: int) -> None:
        """See step 7."""
        for position in range(start, end, SCAN_BYTES):
            self.files.write(fd, [self.files.read(fd, min(SCAN_BYTES, end - position), position)], position)
