"""Reading a data directory from outside: while a server runs or without one; no lock, no LMDB, nothing written.

What is committed is what the `watermarks` file says (see `engine.segments.watermarks`): it is read first and the
directory listed afterwards, so that a segment that is rolled in between is met either as the active one or as a sealed
one. Segments before the one that the watermark names are sealed and read to the end of their batches. Where there is no
watermark (the file was lost), everything up to the first byte that is no batch counts.

A topic without a record has no files and is not seen here; only the server's state knows it.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from engine.directory_layout import FORMAT_VERSION, TOPIC_FILE, TOPICS, VERSION_FILE
from engine.errors import Corrupt, DataDirectoryError, UnknownPartition, UnknownTopic, UnsupportedFormat, named
from engine.files.system import Files, NotAFile, SystemFiles, read_whole_file
from engine.formats.batch import records
from engine.formats.batch_header import BatchHeader, read_header
from engine.formats.record import BatchError, BundleError, Record
from engine.formats.segment import (
    HEADER_BYTES,
    Footer,
    SegmentHeader,
    parse_header,
    parse_segment_name,
    read_footer,
)
from engine.limits import SMALL_FILE_BYTES_MAX
from engine.segments.damage import Damage, Found, walk
from engine.segments.missing_numbers import Gaps
from engine.segments.watermarks import Owner, Watermark, Watermarks


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic as ``topic.json`` describes it."""

    id: int
    name: bytes
    partition_count: int
    created_ms: int
    config: dict[str, str]
    """Its own settings, as text; the others follow the server's defaults."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment file as it is now."""

    path: Path
    header: SegmentHeader
    size_bytes: int
    footer: Footer | None
    """None: not sealed, or `footer_problem`."""
    footer_problem: Corrupt | None
    end: int
    """Position after the last byte that may be read: end of the batches of a sealed one, else what is committed."""

    @property
    def sealed(self) -> bool:
        """Whether a footer (a good or a damaged one) ends it."""
        return self.footer is not None or self.footer_problem is not None


@dataclass(frozen=True, slots=True)
class Loss:
    """Numbers that damage took from a reader; `damage` is where."""

    path: Path
    damage: Damage

    @property
    def text(self) -> str:
        """The loss as a sentence."""
        where = f"{self.path}: bytes {self.damage.position} to {self.damage.end} are damaged ({self.damage.reason})"
        if self.damage.last_seq < self.damage.first_seq:
            return f"{where}; no later batch tells which records they held"
        return f"{where}; lost: records {self.damage.first_seq} to {self.damage.last_seq}"


@contextmanager
def opened(files: Files, path: Path) -> Iterator[int]:
    """A file opened for reading for the time of the ``with`` block."""
    fd = files.open(path)
    try:
        yield fd
    finally:
        files.close(fd)


def read_segment(files: Files, path: Path, end: int | None = None) -> Segment:
    """Header and footer of a segment file.

    Args:
        end: what of an active segment may be read; None = the whole file.

    Raises:
        Corrupt, UnsupportedFormat: from the header.
        OSError: as the system gave it.
    """
    with opened(files, path) as fd:
        header = parse_header(files.read(fd, HEADER_BYTES, 0), path)
        size_bytes = files.size(fd)
        footer = problem = None
        try:
            found = read_footer(files, fd, size_bytes, path)
        except Corrupt as error:
            problem = error
        else:
            if found is not None and found[1] == header.segment_id:
                footer = found[0]
    if footer is not None and end is None:
        end = footer.end
    return Segment(path, header, size_bytes, footer, problem, min(size_bytes, size_bytes if end is None else end))


def walk_segment(files: Files, segment: Segment, from_seq: int = 0) -> Iterator[Found | Damage]:
    """All batches of a segment from the one that holds `from_seq` on, up to `segment.end`, and the damage between."""
    position, expected = HEADER_BYTES, segment.header.first_seq
    if segment.footer is not None and segment.footer.index:
        index = segment.footer.index
        at = max(0, bisect_right(index, from_seq, key=lambda entry: entry.first_seq) - 1)
        position, expected = index[at].position, index[at].first_seq
    with opened(files, segment.path) as fd:
        for item in walk(
            lambda position, size: files.read(fd, size, position),
            position,
            segment.end,
            segment.header.segment_id,
            expected,
        ):
            if item is not None and (isinstance(item, Damage) or item.last_seq >= from_seq):
                yield item


def headers_of(found: Found, segment_id: int) -> Iterator[BatchHeader]:
    """The headers of verified batches; their positions are those in `found.data`."""
    position = found.start
    while position < found.end:
        header = read_header(found.data, position, segment_id, found.position + position)
        assert header is not None, "the batches were verified"
        yield header
        position = header.end


@dataclass(slots=True)
class PartitionReader:
    """One partition as it was at the last `refresh`."""

    topic: StoredTopic
    index: int
    directory: Path
    files: Files
    watermarks: Watermarks | None
    log_start: int = 1
    """First number that may be read."""
    committed_seq: int = 0
    """Last number that may be read."""
    mark: Watermark | None = None
    segments: list[Segment] = field(default_factory=list)
    """In order, those that hold readable records and the active one."""
    unreadable: list[Corrupt] = field(default_factory=list)
    """Segment files whose header is damaged."""
    _known: dict[Path, Segment] = field(default_factory=dict)

    def refresh(self) -> None:
        """Looks again at what is committed. Raises OSError, UnsupportedFormat."""
        names = self._names()
        self.mark = self._read_mark(self._number(names))
        names = self._names()  # again: everything that the watermark names is there by now
        self.unreadable.clear()
        self.segments = [segment for name in names if (segment := self._segment(name)) is not None]
        first = self.segments[0].header.begins if self.segments else 1
        self.log_start = max(first, self.mark.log_start if self.mark else 1)
        if self.mark is not None:
            self.committed_seq = self.mark.committed_seq
        else:
            self.committed_seq = self._last_seq()
        ends = [segment.header.first_seq for segment in self.segments[1:]]
        gone = sum(end <= self.log_start for end in ends)  # whole segments below the start, about to be removed
        del self.segments[:gone]

    @property
    def changed(self) -> bool:
        """Whether `refresh` would find something new: one small read. True when there is no watermark to ask."""
        if self.watermarks is None or not self.segments:
            return True
        return self._read_mark(self.segments[-1].header.number) != self.mark

    def _read_mark(self, number: int) -> Watermark | None:
        if self.watermarks is None or not number:
            return None
        return self.watermarks.read(Owner(number, self.topic.id, self.index))

    def _names(self) -> list[str]:
        return [name for name in self.files.list_dir(self.directory) if parse_segment_name(name) is not None]

    def _number(self, names: list[str]) -> int:
        for name in reversed(names):
            try:
                with opened(self.files, self.directory / name) as fd:
                    return parse_header(self.files.read(fd, HEADER_BYTES, 0), self.directory / name).number
            except (Corrupt, FileNotFoundError, NotAFile):
                continue
        return 0

    def _segment(self, name: str) -> Segment | None:
        """The segment of that name with its readable end; None when it holds nothing that is committed."""
        mark, path = self.mark, self.directory / name
        first_seq = parse_segment_name(name) or 0
        if mark is not None and first_seq > mark.active_first_seq:
            return None
        known = self._known.get(path)
        if known is not None and known.footer is not None:
            return known
        try:
            end = mark.committed_position if mark is not None and first_seq == mark.active_first_seq else None
            segment = read_segment(self.files, path, end)
            header = segment.header
            if (header.topic_id, header.partition, header.first_seq) != (self.topic.id, self.index, first_seq):
                whose = f"topic {header.topic_id} partition {header.partition} record {header.first_seq}"
                raise Corrupt(str(path), 0, f"is another place's file: its header says {whose}")
        except FileNotFoundError:
            return None  # removed by retention between listing and reading
        except NotAFile as error:
            self.unreadable.append(Corrupt(str(path), None, str(error.strerror)))
            return None
        except Corrupt as error:
            self.unreadable.append(error)
            return None
        if segment.footer is not None and (mark is None or first_seq < mark.active_first_seq):
            self._known[path] = segment
        return segment

    def _last_seq(self) -> int:
        """The last number of the files, for want of a watermark.

        A transaction at the end of them does not count: only its marker, which is not here, could tell whether it is
        committed. One that others follow is, since they were written after it.
        """
        for segment in reversed(self.segments):
            if segment.footer is not None and segment.footer.records:
                return segment.footer.last_seq
            last = before = transaction_id = 0
            for found in walk_segment(self.files, segment):
                if isinstance(found, Found):
                    for header in headers_of(found, segment.header.segment_id):
                        if header.transaction_id == 0:
                            before = header.last_seq
                        elif header.transaction_id != transaction_id:
                            before = last
                        last, transaction_id = header.last_seq, header.transaction_id
            if before:
                return before
        return 0

    def gaps(self) -> Gaps:
        """How many records ranges of its numbers hold. Of segments that are not sealed every batch is read for it."""
        gaps, follows = Gaps(), 0
        for segment in self.segments:
            first_seq, footer = segment.header.first_seq, segment.footer
            gaps.add(max(follows, segment.header.left_out_from) or first_seq, first_seq - 1)
            follows = first_seq
            if footer is not None:
                gaps.add(first_seq, footer.last_seq, footer.records)
                follows = footer.last_seq + 1
                continue
            for item in walk_segment(self.files, segment):
                for header in headers_of(item, segment.header.segment_id) if isinstance(item, Found) else ():
                    gaps.add(follows, header.first_seq - 1)
                    gaps.add(header.first_seq, header.last_seq, header.count)
                    follows = header.last_seq + 1
                follows = max(follows, item.last_seq + 1)
        return gaps

    def batches(self, first_seq: int, end_seq: int) -> Iterator[tuple[Segment, Found | Damage]]:
        """Verified batches that hold any number from `first_seq` up to `end_seq` (exclusive), and damage met there."""
        end_seq = min(end_seq, self.committed_seq + 1)
        for at, segment in enumerate(self.segments):
            following = self.segments[at + 1].header.first_seq if at + 1 < len(self.segments) else None
            if following is not None and following <= first_seq:
                continue
            if segment.header.first_seq >= end_seq:
                return
            for item in walk_segment(self.files, segment, first_seq):
                if item.first_seq >= end_seq:
                    break
                if isinstance(item, Found):
                    yield segment, item
                    continue
                # Nothing follows in the file, so the next one (or the watermark) tells how much was lost.
                last_seq = max(item.last_seq, (following or self.committed_seq + 1) - 1)
                lost = item if item.end < segment.end else replace(item, last_seq=last_seq)
                if lost.last_seq >= first_seq:
                    yield segment, lost

    def records(self, first_seq: int, end_seq: int) -> Iterator[Record | Loss]:
        """Committed records from `first_seq` up to `end_seq` (exclusive), and what damage took between them."""
        for segment, item in self.batches(first_seq, end_seq):
            if isinstance(item, Damage):
                yield Loss(segment.path, item)
                continue
            try:
                for record in records(item.data, item.start, item.end, first_seq):
                    if record.seq >= end_seq:
                        return
                    yield record
            except (BatchError, BundleError) as error:
                damage = Damage(
                    item.position + item.start, item.next_position, item.first_seq, item.last_seq, str(error)
                )
                yield Loss(segment.path, damage)

    def seq_before_end(self, count: int) -> int:
        """The number from which so many records follow up to the end; the first one's when there are fewer."""
        if count <= 0:
            return self.committed_seq + 1
        gaps = self.gaps()
        first = gaps.newest(self.log_start, self.committed_seq, count)
        least, most = gaps.count(first, self.committed_seq)
        if least == most:
            return first
        rows = self.records(first, self.committed_seq + 1)
        newest = deque((row.seq for row in rows if isinstance(row, Record)), maxlen=count)
        return newest[0] if newest else first

    def seq_after_first(self, count: int) -> int:
        """The number after the first so many records; the end's when there are no more."""
        least, most = self.gaps().count(self.log_start, self.committed_seq)
        if least == most:
            return self.seq_before_end(least - count)
        rows = self.records(self.log_start, self.committed_seq + 1)
        seqs = (row.seq for row in rows if isinstance(row, Record))
        return next(islice(seqs, count, None), self.committed_seq + 1)

    def seq_at_time(self, timestamp_ms: int) -> int:
        """First number whose record has that time or a later one; the end's when there is none."""
        for segment in self.segments:
            first = segment.header.first_seq
            if segment.footer is not None:
                if segment.footer.max_timestamp_ms < timestamp_ms:
                    continue
                for before, entry in zip(segment.footer.index, segment.footer.index[1:], strict=False):
                    if entry.max_timestamp_ms < timestamp_ms:
                        first = before.first_seq
            for item in walk_segment(self.files, segment, first):
                if isinstance(item, Found):
                    for header in headers_of(item, segment.header.segment_id):
                        if header.max_timestamp_ms >= timestamp_ms:
                            return max(self.log_start, self._exact(item, header, timestamp_ms))
        return self.committed_seq + 1

    @staticmethod
    def _exact(found: Found, header: BatchHeader, timestamp_ms: int) -> int:
        rows = records(found.data, header.position, header.end)
        return next((record.seq for record in rows if record.timestamp_ms >= timestamp_ms), header.first_seq)


def read_version(files: Files, data_dir: Path) -> int:
    """Checks that it is a data directory that this version can read; its random id.

    Raises:
        DataDirectoryError, UnsupportedFormat: it is not.
        OSError: it cannot be read.
    """
    path = data_dir / VERSION_FILE
    content = read_whole_file(files, path, SMALL_FILE_BYTES_MAX)
    if content is None:
        why = f"it has no {VERSION_FILE} file" if data_dir.is_dir() else "there is no such directory"
        raise DataDirectoryError(f"{data_dir} is no data directory ({why})")
    try:
        fields = json.loads(content)
        version, directory_id = int(fields["format"]), int(fields["id"])
    except (ValueError, KeyError, TypeError) as problem:
        raise DataDirectoryError(f"{path} is damaged ({named(problem)}); logtool repair makes it anew") from problem
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{data_dir} has format {version}; this version reads format {FORMAT_VERSION}: use the one that wrote it"
        )
    return directory_id


class DirectoryReader:
    """The topics and partitions of a data directory that have files."""

    def __init__(self, data_dir: Path, files: Files | None = None) -> None:
        """Checks that it is a data directory of a version that can be read.

        Raises:
            DataDirectoryError: it is none.
            UnsupportedFormat: of a newer version.
            OSError: it cannot be read.
        """
        self.data_dir = data_dir
        self.files: Files = SystemFiles() if files is None else files
        self.damaged: list[Corrupt] = []
        """Files beside the segments that cannot be used: watermarks, ``topic.json``."""
        self.directory_id = read_version(self.files, data_dir)
        try:
            self.watermarks: Watermarks | None = Watermarks(
                self.files, data_dir / "watermarks", self.directory_id, read_only=True
            )
        except FileNotFoundError:
            self.watermarks = None
        except Corrupt as error:
            self.watermarks = None
            self.damaged.append(error)

    def topics(self) -> list[StoredTopic]:
        """All topics that have files, by name."""
        found: dict[bytes, StoredTopic] = {}
        for name in self.files.list_dir(self.data_dir / TOPICS):
            if name.isascii() and name.isdigit():
                topic = self._topic(self.data_dir / TOPICS / name)
                # A deleted topic's files stay for a while; a new one of that name has a higher id.
                if topic is not None and (topic.name not in found or topic.id > found[topic.name].id):
                    found[topic.name] = topic
        return [found[name] for name in sorted(found)]

    def _topic(self, directory: Path) -> StoredTopic | None:
        path = directory / TOPIC_FILE
        content = read_whole_file(self.files, path, SMALL_FILE_BYTES_MAX)
        if content is None:
            return None
        try:
            fields = json.loads(content)
            name = base64.b64decode(fields["name_base64"], validate=True)
            config = {str(key): str(value) for key, value in fields["config"].items()}
            return StoredTopic(int(fields["id"]), name, int(fields["partitions"]), int(fields["created_ms"]), config)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.damaged.append(Corrupt(str(path), None, f"not the description of a topic: {named(error)}"))
            return None

    def topic(self, name: bytes) -> StoredTopic:
        """The topic of this name. Raises UnknownTopic (also for one that has no record yet)."""
        for topic in self.topics():
            if topic.name == name:
                return topic
        shown = name.decode("utf-8", "backslashreplace")
        raise UnknownTopic(f"no topic {shown!r} with records in {self.data_dir}")

    def partition(self, topic: StoredTopic, index: int = 0) -> PartitionReader:
        """One partition, refreshed; empty when it has no files yet. Raises UnknownPartition."""
        if not 0 <= index < topic.partition_count:
            shown = topic.name.decode("utf-8", "backslashreplace")
            raise UnknownPartition(f"topic {shown!r} has partitions 0 to {topic.partition_count - 1}, not {index}")
        directory = self.data_dir / TOPICS / str(topic.id) / str(index)
        reader = PartitionReader(topic, index, directory, self.files, self.watermarks)
        reader.refresh()
        return reader

    def close(self) -> None:
        """Lets go of the watermarks file."""
        if self.watermarks is not None:
            self.watermarks.close()
