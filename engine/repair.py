"""Repair of a data directory that no server has open: what would be given up, and what is done about it.

The plan is made by doing everything on files whose changes stay in memory (`engine.files.overlay`); applying it is the
same on the real ones. Nothing is deleted: what cannot be used is moved aside, what is cut off goes to ``set-aside/``.

1. ``VERSION``: rebuilt; the directory's id is in the header of ``watermarks``.
2. ``watermarks``: a damaged header is rebuilt, its slots are kept.
3. ``state``, ``index``: an LMDB file that is damaged is moved aside. Topics are then taken in again from their
   directories by the next start, the index is rebuilt while the log is in use.
4. ``topic.json`` of each topic: rebuilt from the state; a topic that nobody knows the name of is called
   ``recovered-ID``, so that its records can be read.
5. Each partition is opened as the server would open it (`engine.segments.recovery`). One whose files are gone, and
   which the server therefore does not open, begins after the numbers that were committed.
6. Sealed segments are read through, to name the records that damage took there.
"""

from __future__ import annotations

import base64
import json
import secrets
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from engine.directory_layout import FORMAT_VERSION, STATE, TOPIC_FILE, TOPICS, VERSION_FILE
from engine.errors import Corrupt, DataDirectoryError, EngineError, UnsupportedFormat
from engine.files.descriptors import Handles
from engine.files.lock import LOCK_FILE
from engine.files.overlay import OverlayFiles
from engine.files.system import Files, NotAFile, SystemFiles, free_path, read_whole_file, write_new_file
from engine.formats.segment import FOOTER_DAMAGED, HEADER_BYTES, TRAILER_DAMAGED, parse_header, parse_segment_name
from engine.limits import SMALL_FILE_BYTES_MAX
from engine.reader import read_version
from engine.segments.active import SealedSegment
from engine.segments.damage import Damage, careful_read, walk
from engine.segments.discovery import LEFT_ALONE, PartitionLocation
from engine.segments.recovery import (
    FOOTER_UNREADABLE,
    NEVER_ACKNOWLEDGED,
    NoSegments,
    Recovered,
    Report,
    make_partition,
    recover_partition,
)
from engine.segments.recovery_hints import RecoveryHints
from engine.segments.watermarks import FILE_NAME, Owner, Watermark, Watermarks
from engine.state.environment import DATA_FILE, faults, move_aside
from engine.state.index import Index
from engine.state.markers import is_committed, read_markers
from engine.state.store import Put, StateReader, change_stored
from engine.state.topic_entries import Stored, Topic, describe, from_description, reserved_key
from engine.state.writer_ledger import STAGED, read_entries, unusable

OPEN_FILES = 64
TOLD = "readers are told, and go on behind them"
LEFT = "nothing: mend this first"
FOOTER_NOTES = FOOTER_DAMAGED, TRAILER_DAMAGED, FOOTER_UNREADABLE
WITHOUT_FOOTER = "the batches are read without it"
"""Where all of them are good it is rebuilt, which is told besides."""
_WATERMARKS_HEAD = struct.Struct("<8sIIQ")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is wrong, and what is done about it."""

    kind: str
    """``version``, ``watermarks``, ``state``, ``index``, ``staged``, ``topic``, ``records``, ``tail`` or ``file``."""
    path: Path
    problem: str
    action: str
    topic: bytes = b""
    partition: int | None = None
    first_seq: int = 0
    last_seq: int = -1
    """Numbers that are given up; none when it is below `first_seq`."""
    changes: bool = True
    """Whether applying changes anything; False: it is only told."""
    is_wrong: bool = True
    """Whether something is lost, damaged or missing; False: what any crash may leave, and the next start tidies up."""


@dataclass(slots=True)
class Repair:
    """One run over a data directory; the caller holds its lock."""

    data_dir: Path
    apply: bool = False
    now_ms: int = 0
    reads: Callable[[Path], bool] = lambda _path: True
    """Whether a sealed segment is read through; those that are not the caller has read."""
    steps: list[Step] = field(default_factory=list)
    _files: Files = field(init=False)
    _stored: Stored | None = None
    _markers: dict[int, int] = field(default_factory=dict)
    _bounds: dict[bytes, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)
    """Of partitions, by number, that end below what they once had."""

    def run(self) -> list[Step]:
        """Everything that is wrong; with `apply` it is mended as the steps say.

        Raises:
            DataDirectoryError: it is no data directory.
            UnsupportedFormat: it, or a part of it, was written by a newer version.
            OSError: as the system gave it.
        """
        overlay = None if self.apply else OverlayFiles()
        self._files = overlay if overlay is not None else SystemFiles()
        handles = Handles(self._files, OPEN_FILES)
        try:
            self._check_version()
            self._check_lmdb("state", "topics are taken in again from their directories; cursors and sessions are gone")
            self._check_lmdb("index", "it is rebuilt while the log is in use")
            self._read_state()
            marks = Watermarks(self._files, self.data_dir / FILE_NAME, self._directory_id())
            try:
                if marks.missing:
                    self._note("watermarks", self.data_dir / FILE_NAME, "missing or damaged", "rebuilt, slots kept")
                for topic in self._topics():
                    for index in self._indexes(topic):
                        self._partition(topic, index, marks, handles)
                if self.apply:
                    marks.sync()
                    self._reserve()
                    self._forget()
            finally:
                marks.close()
        finally:
            handles.close()
            if overlay is not None:
                overlay.close_all()
        return self.steps

    def _note(
        self, kind: str, path: Path, problem: str, action: str, *, changes: bool = True, is_wrong: bool = True
    ) -> None:
        self.steps.append(Step(kind, path, problem, action, changes=changes, is_wrong=is_wrong))

    # --- the directory

    def _check_version(self) -> None:
        path = self.data_dir / VERSION_FILE
        try:
            read_version(self._files, self.data_dir)
        except UnsupportedFormat:
            raise
        except DataDirectoryError as problem:
            if not self._files.exists(self.data_dir / TOPICS):
                raise DataDirectoryError(f"{self.data_dir} is no data directory") from problem
            if self._files.exists(path):
                self._files.rename(path, free_path(self._files, path.with_name(f"{VERSION_FILE}.damaged")))
            content = json.dumps({"format": FORMAT_VERSION, "id": self._id_in_watermarks()}).encode() + b"\n"
            write_new_file(self._files, path, content)
            self._note("version", path, str(problem), "rebuilt")

    def _directory_id(self) -> int:
        return read_version(self._files, self.data_dir)

    def _id_in_watermarks(self) -> int:
        content = read_whole_file(self._files, self.data_dir / FILE_NAME, _WATERMARKS_HEAD.size)
        if content is None or len(content) < _WATERMARKS_HEAD.size:
            return secrets.randbits(63)
        return int(_WATERMARKS_HEAD.unpack(content)[3])

    def _check_lmdb(self, name: str, action: str) -> None:
        path = self.data_dir / name
        if not (path / DATA_FILE).exists() or not (path / DATA_FILE).stat().st_size:
            if self._files.list_dir(self.data_dir / TOPICS):
                # Where no log was ever opened it is a copy of topics alone; the index is a hint in any case.
                is_lost = name == "state" and self._files.exists(self.data_dir / LOCK_FILE)
                self._note(name, path / DATA_FILE, "missing or empty", action, changes=False, is_wrong=is_lost)
            return
        problems = faults(path)
        if problems:
            aside = move_aside(path, self._files)
            problem = f"{len(problems)} faults in its structure, the first: {problems[0]}"
            self._note(name, path / DATA_FILE, problem, f"moved to {aside}; {action}")

    def _read_state(self) -> None:
        """Topics, numbers and markers that the state knows; nothing without a sound one."""
        path = self.data_dir / STATE / DATA_FILE
        if not path.exists() or not path.stat().st_size or DATA_FILE not in self._files.list_dir(path.parent):
            return
        reader = StateReader.open(self.data_dir / STATE)
        try:
            damaged: list[Corrupt] = []
            for _ in reader.scan(b"", damaged.append):
                continue
            self._stored = Stored(reader)
            damaged += [problem for problem in self._stored.damaged if problem.key is None]
            self._markers = read_markers(reader, [])
            batches = [entry for entry in read_entries(reader) if not entry.is_complete]
        finally:
            reader.close()
        for problem in damaged:
            self._note("state", Path(problem.path), problem.reason, "the server does without it", changes=False)
        for entry in batches:
            for name, reason in unusable(self._files, self.data_dir / STAGED, entry):
                problem_text = f"{reason}; batch {entry.batch} of {entry.writer!r} is partly in the log and needs it"
                action = "stage the same rows again and repeat the batch, or give it up: logtool commits abandon"
                self._note("staged", self.data_dir / STAGED / name, problem_text, action, changes=False)

    def _reserve(self) -> None:
        """Numbers of what was cut off are not given again. Where the state is gone the next start sees to that."""
        if self._stored is None or not self._bounds:
            return
        state, due = StateReader.open(self.data_dir / STATE), []
        try:
            for key, bound in self._bounds.items():
                known = 0
                with suppress(Corrupt):
                    known = state.get(key) or 0
                if known < bound:
                    due.append(Put(key, bound))
        finally:
            state.close()
        if due:
            change_stored(self.data_dir / STATE, due)

    def _forget(self) -> None:
        """The index names nothing any more of what was cut off: the next start would miss it."""
        path = self.data_dir / "index"
        if not self._ends or DATA_FILE not in self._files.list_dir(path):
            return
        index = Index(path, self._files, EngineConfig())
        for number, last_seq in self._ends.items():
            index.truncate(number, last_seq)
        index.close()

    # --- topics

    def _topics(self) -> list[Topic]:
        """Topics of the state and of directories; descriptions that cannot be read are rebuilt."""
        root = self.data_dir / TOPICS
        topics = {topic.id: topic for topic in self._stored.topics} if self._stored is not None else {}
        for name in self._files.list_dir(root):
            if not name.isascii() or not name.isdigit() or str(int(name)) != name:
                continue
            topic_id = int(name)
            if self._stored is not None and topic_id in self._stored.tombstones:
                continue
            described = self._described(root / name, topic_id)
            if topic_id in topics:
                if described is None:
                    self._describe(root / name, topics[topic_id], "no usable description")
                continue
            if described is None:
                described = self._unnamed(root / name, topic_id)
                self._describe(root / name, described, "a topic that nobody knows the name of")
            topics[topic_id] = described
        return [topics[topic_id] for topic_id in sorted(topics)]

    def _described(self, directory: Path, topic_id: int) -> Topic | None:
        try:
            content = read_whole_file(self._files, directory / TOPIC_FILE, SMALL_FILE_BYTES_MAX)
            topic = from_description(json.loads(content)) if content is not None else None
        except (ValueError, RecursionError, EngineError):
            return None
        return topic if topic is not None and topic.id == topic_id else None

    def _unnamed(self, directory: Path, topic_id: int) -> Topic:
        indexes = [int(name) for name in self._files.list_dir(directory) if name.isascii() and name.isdigit()]
        description = {
            "id": topic_id,
            "name_base64": base64.b64encode(f"recovered-{topic_id}".encode()).decode(),
            "partitions": max(indexes, default=0) + 1,
            "created_ms": self.now_ms,
            "config": {},
        }
        return from_description(description)

    def _describe(self, directory: Path, topic: Topic, problem: str) -> None:
        path = directory / TOPIC_FILE
        # A kill may come between making the directory and its description; nothing else is there then.
        indexes = [name for name in self._files.list_dir(directory) if name.isdigit()]
        is_wrong = self._files.exists(path) or any(self._files.list_dir(directory / name) for name in indexes)
        if self._files.exists(path):
            self._files.rename(path, free_path(self._files, path.with_name(f"{TOPIC_FILE}.damaged")))
        write_new_file(self._files, path, json.dumps(describe(topic)).encode() + b"\n")
        name = topic.name.decode("utf-8", "backslashreplace")
        self.steps.append(Step("topic", path, problem, f"described as {name!r}", topic.name, is_wrong=is_wrong))

    def _indexes(self, topic: Topic) -> list[int]:
        directory = self.data_dir / TOPICS / str(topic.id)
        names = self._files.list_dir(directory)
        found = {int(name) for name in names if name.isascii() and name.isdigit() and str(int(name)) == name}
        return sorted((found | set(topic.numbers)) & set(range(topic.partition_count)))

    # --- partitions

    def _number(self, topic: Topic, index: int) -> int:
        """The partition's number: of the state, else of its newest header; 0 when nobody knows it."""
        if index in topic.numbers:
            return topic.numbers[index]
        directory = self.data_dir / TOPICS / str(topic.id) / str(index)
        for name in reversed(self._files.list_dir(directory)):
            if parse_segment_name(name) is None:
                continue
            content = self._header(directory / name)
            with suppress(Corrupt):
                return parse_header(content, directory / name).number
        return 0

    def _header(self, path: Path) -> bytes:
        """Of a segment; empty: a pipe or a directory has its name."""
        try:
            return read_whole_file(self._files, path, HEADER_BYTES) or b""
        except NotAFile:
            return b""

    def _partition(self, topic: Topic, index: int, marks: Watermarks, handles: Handles) -> None:
        number = self._number(topic, index)
        location = PartitionLocation(self.data_dir, topic.id, index, number)
        owner = Owner(number, topic.id, index)
        mark = marks.read(owner) if number else None
        hints = RecoveryHints(
            mark=mark, is_committed=lambda transaction_id: is_committed(self._markers, transaction_id)
        )

        told: set[tuple[Path, int]] = set()

        def step(
            kind: str, path: Path, problem: str, action: str, first: int = 0, last: int = -1, *, is_wrong: bool = True
        ) -> None:
            if kind == "records":
                if (path, first) in told:
                    return
                told.add((path, first))
            changes = action not in (TOLD, LEFT, WITHOUT_FOOTER)
            self.steps.append(Step(kind, path, problem, action, topic.name, index, first, last, changes, is_wrong))

        if not self._files.list_dir(location.directory) and mark is None:
            return  # it never had a record
        try:
            recovered = recover_partition(self._files, handles, location, hints, self.now_ms)
        except NoSegments as missing:
            assert mark is not None
            for note in missing.notes:
                step("file", location.directory, note, LEFT)
            recovered = self._begin_behind(topic, handles, location, mark)
            problem = "no segment files, but records were committed"
            step("records", location.directory, problem, "given up", mark.log_start, mark.committed_seq)
        except OSError as problem:
            step("file", location.directory, f"{problem.strerror or problem}", LEFT)
            return
        self._tell(recovered.report, location.directory, step)
        for segment in recovered.sealed:
            if self.reads(segment.path):
                self._read_through(segment, handles, step)
        if recovered.next_seq - 1 > recovered.committed_seq:
            self._bounds[reserved_key(topic.id, index)] = recovered.next_seq
            self._ends[number] = recovered.committed_seq
        if number:
            active = recovered.active
            marks.write(
                owner,
                Watermark(
                    recovered.log_start,
                    active.header.first_seq,
                    recovered.committed_seq,
                    active.position,
                    active.durable_position,
                    active.header.segment_id,
                ),
            )

    def _begin_behind(self, topic: Topic, handles: Handles, location: PartitionLocation, mark: Watermark) -> Recovered:
        if not self._files.exists(location.topic_directory):
            self._files.make_dir(location.topic_directory)
            self._files.sync_dir(location.topic_directory.parent)
            self._describe(location.topic_directory, topic, "its directory is missing")
        first_seq = mark.committed_seq + 1
        active = make_partition(self._files, handles, location, self.now_ms, first_seq)
        return Recovered([], active, first_seq, first_seq - 1, first_seq, Report())

    def _tell(self, report: Report, directory: Path, step: Callable[..., None]) -> None:
        for lost in (*report.lost, *report.isolated):
            step("records", lost.path, lost.why, TOLD, lost.first_seq, lost.last_seq)
        for cut in report.cut:
            problem = f"bytes {cut.position} to {cut.end} are no whole, committed batches ({cut.judgement})"
            action, is_wrong = "cut off and kept in set-aside/", cut.judgement != NEVER_ACKNOWLEDGED
            step("tail", cut.path, problem, action, cut.first_seq, cut.last_seq, is_wrong=is_wrong)
        for note in report.notes:
            action = (
                LEFT if note.endswith(LEFT_ALONE) else "done as it says" if self.apply else "will be done as it says"
            )
            step("file", directory, note, WITHOUT_FOOTER if note.endswith(FOOTER_NOTES) else action)

    def _read_through(self, segment: SealedSegment, handles: Handles, step: Callable[..., None]) -> None:
        with handles.use(segment.path) as fd:
            read = careful_read(self._files, fd)
            for item in walk(read, HEADER_BYTES, segment.end, segment.segment_id, segment.first_seq):
                if isinstance(item, Damage):
                    last_seq = item.last_seq if item.end < segment.end else max(item.last_seq, segment.last_seq)
                    where = f"bytes {item.position} to {item.end} are damaged ({item.reason})"
                    if last_seq >= item.first_seq:
                        step("records", segment.path, where, TOLD, item.first_seq, last_seq)
