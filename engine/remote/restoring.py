"""The way back: a data directory of what a bucket holds, as of one head or one page of its catalog.

::

    state        the copy that the head names, and the changes of the pieces after it
    segments     sealed ones as they are; the others put together from the pieces, byte for byte
    partitions   opened by the log's own recovery, which has to find exactly the end that the catalog says
    watermarks   of what was found
    VERSION      last: before it the directory is no log

No record is added to a segment that was the active one: the primary that made it may live, and write to its own file.
It is sealed where it ends, and the partition gets a *new* segment, whose numbers begin above all that were given out,
as far as the bucket can know (`engine.remote.writes.successor_tails`). The server makes ``index`` again.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbits

from engine.config import MIB
from engine.directory_layout import FORMAT_VERSION, STATE, TOPIC_FILE, TOPICS, VERSION_FILE
from engine.errors import Corrupt, DiskFull
from engine.files.descriptors import Handles
from engine.files.system import Files, SystemFiles, write_new_file
from engine.formats.segment import HEADER_BYTES, SegmentHeader, parse_header, segment_name
from engine.remote.catalog import Catalog, PartitionKey, Tail
from engine.remote.cutting import Assembly
from engine.remote.limits import RESTORED_FILES_OPEN_MAX, UNKNOWN_AHEAD
from engine.remote.objects import Objects, Wanted
from engine.remote.piece import Section, unpack_piece
from engine.remote.snapshot import Snapshot
from engine.remote.stored_state import state_changes
from engine.remote.writes import successor_tails
from engine.segments.active import create_segment
from engine.segments.discovery import PartitionLocation
from engine.segments.recovery import Recovered, recover_partition
from engine.segments.recovery_hints import RecoveryHints
from engine.segments.watermarks import FILE_NAME as WATERMARKS
from engine.segments.watermarks import Owner, Watermark, Watermarks
from engine.state.store import StateReader, fill_stored
from engine.state.topic_entries import Stored, describe
from engine.state.topic_entries import Topic as StoredTopic
from engine.state.writer_ledger import STAGED, read_entries


@dataclass(slots=True)
class Restored:
    """What a directory has been made of."""

    topics: int = 0
    partitions: int = 0
    segments: int = 0
    size_bytes: int = 0
    """Of the segments."""
    notes: list[str] = field(default_factory=list)
    """What is only to be mentioned."""
    lost: list[str] = field(default_factory=list)
    """Damage that the log had already when it was stored, and what is not kept in a bucket."""


class Restoring:
    """Makes one directory, which is there and empty."""

    def __init__(self, objects: Objects, snapshot: Snapshot, target: Path, files: Files | None = None) -> None:
        self._objects = objects
        self._snapshot = snapshot
        self._catalog = snapshot.catalog
        self._target = target
        self._files = files or SystemFiles()
        self._handles = Handles(self._files, RESTORED_FILES_OPEN_MAX)
        self._topics = {topic.id: topic for topic in snapshot.catalog.topics}
        self._paths: dict[int, Path] = {}
        """Of segments that are put together from pieces, by their ids."""
        self._numbers: dict[PartitionKey, int] = {}
        self._restored = Restored()

    def run(self) -> Restored:
        """All of it.

        Raises:
            Corrupt: an object is damaged or missing, or they contradict each other.
            NoSuchVersion: see `state_changes`. DiskFull: there is no room.
            Unclear, Denied: the bucket does not answer. OSError: as the system gave it.
        """
        free_bytes, needed_bytes = self._files.free_bytes(self._target), self._snapshot.log_bytes_min
        if free_bytes < needed_bytes:
            text = f"{self._target} has room for {free_bytes / MIB:,.1f} MiB"
            raise DiskFull(f"{text}; at least {needed_bytes / MIB:,.1f} MiB are needed")
        with ExitStack() as stack:
            stack.callback(self._handles.close)
            self._make_state()
            self._files.make_dir(self._target / TOPICS)
            self._take_sealed()
            self._take_pieces()
            marks = Watermarks(self._files, self._target / WATERMARKS, self._snapshot.head.directory_id)
            stack.callback(marks.close)
            self._make_partitions(marks)
            marks.sync()
        self._files.sync_dir(self._target / TOPICS)
        content = json.dumps({"format": FORMAT_VERSION, "id": self._snapshot.head.directory_id}).encode() + b"\n"
        write_new_file(self._files, self._target / VERSION_FILE, content)
        return self._restored

    # --- the state

    def _make_state(self) -> None:
        """The state may be older than the records: a primary that has just begun stores its copy of it a little later.
        What it does not know of topics and partitions is in their files, from where the log takes it in."""
        groups = state_changes(self._objects, self._snapshot)
        fill_stored(self._target / STATE, ([(change.key, change.value) for change in group] for group in groups))
        state = StateReader.open(self._target / STATE)
        try:
            stored = Stored(state)
            self._restored.lost += [
                f"{STAGED}: batch {entry.batch} of {entry.writer!r} is partly in the log, and its files are not stored"
                for entry in read_entries(state)
                if entry.needed
            ]
        finally:
            state.close()
        for problem in stored.damaged:
            raise problem
        names = {topic.id: topic.name for topic in stored.topics}
        for topic in self._topics.values():
            if names.setdefault(topic.id, topic.name) != topic.name:
                raise Corrupt(STATE, None, f"topic {topic.id} has another name than in the catalog")
        for known in stored.topics:
            self._numbers |= {PartitionKey(known.id, index): number for index, number in known.numbers.items()}
        self._restored.topics = len(names)
        if unknown := len(names) - len(stored.topics):
            text = f"the state is older than the records, and does not know {unknown} of the topics"
            self._restored.notes.append(f"{text}: positions of readers may be older, too")

    # --- segments

    def _take_sealed(self) -> None:
        rows = {segment.path: segment for segment in self._catalog.segments}
        for wanted, blocks in self._objects.each(map(Wanted.of, rows.values())):
            row, position = rows[wanted.name], 0
            path = self._new_file(row.key, row.first)
            with self._handles.use(path) as fd:
                for block in blocks:
                    if not position:
                        self._check_header(wanted.name, block, row.key, row.segment_id, row.first)
                    self._files.write(fd, [block], position)
                    position += len(block)
                self._files.sync_data(fd)
            self._restored.segments += 1
            self._restored.size_bytes += position

    def _take_pieces(self) -> None:
        assembly = Assembly(self._catalog)
        refs = self._catalog.pieces
        for ref, (wanted, blocks) in zip(refs, self._objects.each(map(Wanted.of, refs)), strict=True):
            piece = unpack_piece(b"".join(blocks), wanted.name, self._snapshot.head.lineage)
            for index in assembly.add(ref.name, piece.sections):
                self._take_section(wanted.name, piece.sections[index], piece.data[index])
        assembly.end()

    def _take_section(self, name: str, section: Section, content: bytes | memoryview) -> None:
        if not section.begin:
            key = PartitionKey(section.topic, section.partition)
            header = self._check_header(name, content, key, section.segment_id)
            self._paths[section.segment_id] = self._new_file(key, header.first_seq)
            self._restored.segments += 1
        with self._handles.use(self._paths[section.segment_id]) as fd:
            self._files.write(fd, [content], section.begin)
        self._restored.size_bytes += len(content)

    def _check_header(
        self, name: str, content: bytes | memoryview, key: PartitionKey, segment_id: int, first: int | None = None
    ) -> SegmentHeader:
        """The header of the segment that begins with `content`. Raises Corrupt."""
        header = parse_header(bytes(content[:HEADER_BYTES]), Path(name))
        found = (header.topic_id, header.partition, header.segment_id)
        if found != (*key, segment_id) or first not in (None, header.first_seq):
            raise Corrupt(name, 0, f"the header of a segment of partition {key} says that it is another one")
        self._numbers.setdefault(key, header.number)
        return header

    def _new_file(self, key: PartitionKey, first: int) -> Path:
        directory = self._directory(key)
        path = directory / segment_name(first)
        try:
            fd = self._files.create(path)
        except FileExistsError:
            raise Corrupt("head", None, f"two segments of partition {key} begin with number {first}") from None
        self._handles.add(path, fd)
        return path

    def _directory(self, key: PartitionKey) -> Path:
        """Made with that of the topic, which has to be in the catalog."""
        topic = self._topics.get(key.topic)
        if topic is None:
            raise Corrupt("head", None, f"the catalog has partition {key} and not its topic")
        location = PartitionLocation(self._target, *key, 0)
        if self._files.make_dir(location.topic_directory):
            described = describe(StoredTopic(topic.id, topic.name, topic.partitions, topic.config, topic.created_ms))
            content = json.dumps(described).encode() + b"\n"
            write_new_file(self._files, location.topic_directory / TOPIC_FILE, content)
        self._files.make_dir(location.directory)
        return location.directory

    # --- partitions

    def _make_partitions(self, marks: Watermarks) -> None:
        catalog = self._catalog
        if without := {segment.key for segment in catalog.segments} - catalog.tail.keys():
            raise Corrupt("head", None, f"partition {min(without)} has sealed segments and no tail")
        newest = Catalog(tail={**catalog.tail, **self._snapshot.newest.tail})
        ahead = self._snapshot.head.ahead or UNKNOWN_AHEAD
        new = successor_tails(newest, ahead, self._is_remote, lambda: randbits(64))
        for key, tail in sorted(catalog.tail.items()):
            if key not in self._numbers:
                raise Corrupt(STATE, None, f"it has no number of partition {key}")
            location = PartitionLocation(self._target, *key, self._numbers[key])
            self._directory(key)
            marks.write(Owner(location.number, *key), self._make_partition(location, key, tail, new.tail[key]))
            self._files.sync_dir(location.topic_directory)
            self._restored.partitions += 1

    def _is_remote(self, key: PartitionKey) -> bool:
        """Whether all that was acknowledged is stored here, so that numbers go on without a gap."""
        topic = self._topics.get(key.topic)
        return topic is not None and topic.config.get("durability") == "remote"

    def _make_partition(self, location: PartitionLocation, key: PartitionKey, tail: Tail, new: Tail) -> Watermark:
        """Seals what there is of it, and begins the segment that the next records go to."""
        files, handles, created_ms = self._files, self._handles, self._topics[key.topic].created_ms
        log_start = self._catalog.starts.get(key, 1)
        follows = log_start
        if files.list_dir(location.directory):
            recovered = self._recover(location, tail, log_start)
            active, log_start = recovered.active, recovered.log_start
            follows = recovered.committed_seq + 1
            created_ms = max(created_ms, active.last_append_ms)
            if active.position > HEADER_BYTES:
                active.seal(files, handles)
            else:
                handles.forget(active.path)
                files.remove(active.path)
        first = max(new.first, follows)
        header = SegmentHeader(*key, location.number, first, new.segment, created_ms, follows)
        create_segment(files, handles, location.directory, header)
        return Watermark(log_start, first, follows - 1, HEADER_BYTES, HEADER_BYTES, new.segment)

    def _recover(self, location: PartitionLocation, tail: Tail, log_start: int) -> Recovered:
        """What the log itself makes of the files. Raises Corrupt: it is not what the catalog says."""
        mark = Watermark(log_start, tail.first, tail.committed, tail.position, HEADER_BYTES, tail.segment)
        hints = RecoveryHints(mark, is_committed=lambda _: True)  # nothing else is cut
        recovered = recover_partition(self._files, self._handles, location, hints, 0)
        report = recovered.report
        self._restored.lost += [lost.text for lost in (*report.lost, *report.isolated)]
        has_records = tail.committed >= tail.first
        if report.cut or (has_records and recovered.committed_seq != tail.committed):
            where = PartitionKey(location.topic_id, location.partition)
            found = "; ".join(cut.text for cut in report.cut) or f"its last number is {recovered.committed_seq}"
            raise Corrupt("head", None, f"partition {where} should end with number {tail.committed}: {found}")
        return recovered
