"""A consistent copy of a data directory while a server writes to it, with a hash of every file.

Order is what makes it consistent:

1. The watermarks: what they call committed was acknowledged, or is about to be.
2. Staged files of sinks, then one moment of ``state``. If that names a staged file that was not there, the file is
   copied, or, when it is gone because its batch was finished meanwhile, the state is taken again.
3. The segments, each as long as it has become by then, and the end of each partition
   (`tools.logtool.lib.copied_partition`): a transaction is in all of its partitions or in none.
4. Topics that were deleted meanwhile are deleted in the copy, too.

So the copy is a log that was stopped in good order: everything that was acknowledged before the copy began is in it,
what was appended meanwhile may be in it. ``index`` is left out: a server makes it again.

A copy is a data directory with one file more, ``backup.json``, written last::

    {"schema": 1, "made": RFC 3339, "files": [{"path": "topics/1/0/....log", "size_bytes": N, "sha256": HEX}, ...]}
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

from engine.directory_layout import LMDB_DATA_FILE, LMDB_LOCK_FILE, STATE, TOPIC_FILE, TOPICS
from engine.errors import Corrupt, named
from engine.files.lock import is_in_use
from engine.files.system import DIRECTORY_MODE, FILE_MODE, SystemFiles, make_directory, write_new_file
from engine.formats.segment import parse_segment_name
from engine.reader import DirectoryReader, PartitionReader, StoredTopic
from engine.segments.watermarks import Owner, Watermarks
from engine.state.markers import is_committed, read_markers
from engine.state.store import StateReader, change_stored, copy_stored
from engine.state.topic_entries import Stored, Topic, put_tombstone
from engine.state.writer_ledger import STAGED, Entry, read_entries, unusable
from tools.logtool.lib.copied_partition import NOTHING, PartitionCopy, Settled
from tools.logtool.lib.errors import CONFLICT, FINDING, UNREACHABLE, Failure
from tools.logtool.lib.limits import COPY_BYTES, MANIFEST_BYTES_MAX, STATE_COPIES

MANIFEST = "backup.json"
LEFT_OUT = {"LOCK", "server.json", "admin.token", "watermarks", "index", "state", "topics", "set-aside", MANIFEST}
"""At the top of a directory: made again, of the running server, or copied in their own way."""

OnBytes = Callable[[int], None]


@dataclass(slots=True)
class Copied:
    """What a copy holds.

    Attributes:
        files: path in the copy -> (size in bytes, SHA-256).
        records: committed when the copy began, as far as they are still kept and can be read.
        damaged: batches that do not agree with their checksum; they are copied as they are.
    """

    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    topics: int = 0
    partitions: int = 0
    records: int = 0
    damaged: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(size_bytes for size_bytes, _ in self.files.values())


def copy_file(source: Path, target: Path, on_bytes: OnBytes) -> tuple[int, str]:
    """Copies a file as long as it is when it is opened, durably; (size, SHA-256). Raises OSError."""
    digest = hashlib.sha256()
    with _opened(source) as reader:
        status = os.fstat(reader.fileno())
        private = stat.S_IMODE(status.st_mode) & FILE_MODE
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, private), "wb") as writer:
            left = status.st_size
            while left and (data := reader.read(min(left, COPY_BYTES))):
                digest.update(data)
                writer.write(data)
                on_bytes(len(data))
                left -= len(data)
            writer.flush()
            os.fsync(writer.fileno())
            return writer.tell(), digest.hexdigest()


def _opened(path: Path) -> BufferedReader:
    """A file to read; a pipe, which would never end, is refused. Raises OSError."""
    return os.fdopen(SystemFiles().open(path), "rb")


def hash_of(path: Path) -> tuple[int, str]:
    """(size, SHA-256) of a file. Raises OSError."""
    with _opened(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


class Backup:
    """One copy of a data directory.

    Args:
        source: the data directory.
        target: an empty directory.
        on_bytes: is told how much was copied.
    """

    def __init__(self, source: Path, target: Path, on_bytes: OnBytes) -> None:
        self._reader = DirectoryReader(source)
        self._source = source
        self._target = target
        self._on_bytes = on_bytes
        self._is_live = is_in_use(source)
        self._committed: dict[int, int] = {}
        self._before: dict[tuple[int, int], Settled] = {}
        self.copied = Copied()

    def run(self) -> Copied:
        """Copies everything. Raises EngineError, OSError, Failure."""
        self._copy_small_files()
        if self._reader.watermarks is not None:
            self._copy("watermarks")
        marks = Watermarks(SystemFiles(), self._target / "watermarks", self._reader.directory_id)
        try:
            self._note_settled(marks)
            stored = self._copy_state()
            self._make_directory("topics")
            topics = self._topics(stored)
            for topic in topics:
                self._copy_topic(topic, marks)
            self._take_out_deleted(topics)
            marks.sync()
        finally:
            marks.close()
        for path in ("watermarks", f"{STATE}/{LMDB_DATA_FILE}"):
            self._note(path, hash_of(self._target / path))
        self.copied.topics = len(topics)
        self.copied.damaged += map(str, self._reader.damaged)
        self._write_manifest()
        return self.copied

    # --- files

    def _note(self, path: str, size_and_hash: tuple[int, str]) -> None:
        self.copied.files[path] = size_and_hash

    def _copy(self, name: str) -> None:
        """Raises FileNotFoundError: it is gone."""
        self._note(name, copy_file(self._source / name, self._target / name, self._on_bytes))

    def _forget(self, name: str) -> None:
        (self._target / name).unlink()
        del self.copied.files[name]

    def _make_directory(self, name: str) -> None:
        (self._target / name).mkdir(DIRECTORY_MODE)

    def _copy_small_files(self) -> None:
        """VERSION, certificates, and whatever else lies at the top."""
        for path in sorted(self._source.iterdir()):
            if path.name not in LEFT_OUT and not path.name.endswith(".new") and path.is_file():
                self._copy(path.name)

    # --- the state, and what it speaks of

    def _note_settled(self, marks: Watermarks) -> None:
        """What is there of each partition before the state is copied."""
        for topic in self._read_state(self._source)[0].topics:
            for index, number in topic.numbers.items():
                mark = marks.read(Owner(number, topic.id, index))
                if mark is not None:
                    self._before[topic.id, index] = Settled(mark.active_first_seq, mark.committed_position)
                    continue
                directory = self._source / TOPICS / str(topic.id) / str(index)
                names = [name for name in SystemFiles().list_dir(directory) if parse_segment_name(name) is not None]
                if names:  # nobody has opened it since the watermarks were lost: all of it is old
                    size_bytes = (directory / names[-1]).stat().st_size
                    self._before[topic.id, index] = Settled(parse_segment_name(names[-1]) or 1, size_bytes)

    @staticmethod
    def _read_state(data_dir: Path) -> tuple[Stored, list[Entry], dict[int, int], list[Corrupt]]:
        """Topics, batches of sinks, markers of transactions, and markers that are damaged."""
        damaged: list[Corrupt] = []
        state = StateReader.open(data_dir / STATE)
        try:
            return Stored(state), list(read_entries(state)), read_markers(state, damaged), damaged
        finally:
            state.close()

    def _copy_state(self) -> Stored:
        """State and staged files that belong together."""
        here, there = self._source / STAGED, self._target / STAGED
        if here.is_dir():
            there.mkdir(0o700)
        gone: set[str] = set()
        for name in SystemFiles().list_dir(here):
            self._try_to_copy(f"{STAGED}/{name}", gone)
        for _ in range(STATE_COPIES):
            self._take_state()
            stored, entries, self._committed, damaged = self._read_state(self._target)
            (self._target / STATE / LMDB_LOCK_FILE).unlink(missing_ok=True)
            needed = {f"{STAGED}/{name}" for entry in entries for name in entry.needed}
            before = len(gone)
            for path in sorted(needed - gone - self.copied.files.keys()):
                self._try_to_copy(path, gone)
            if len(gone) == before:  # what was gone before the state named it is lost, here as there
                break
        else:
            text = f"{self._source}: batches of sinks are finished faster than they can be copied; try again"
            raise Failure(CONFLICT, "busy", text)
        for path in [path for path in self.copied.files if path.startswith(f"{STAGED}/") and path not in needed]:
            if not (self._source / path).exists():  # its batch is complete, or it was dropped
                self._forget(path)
        if there.is_dir():
            _sync(there)
        self.copied.damaged += [*map(str, stored.damaged), *map(str, damaged)]
        self.copied.damaged += [
            f"{here / name}: batch {entry.batch} of {entry.writer!r} is partly in the log and needs it: {reason}"
            for entry in entries
            for name, reason in unusable(SystemFiles(), there, entry)
        ]
        return stored

    def _try_to_copy(self, path: str, gone: set[str]) -> None:
        try:
            self._copy(path)
        except FileNotFoundError:
            gone.add(path)

    def _take_state(self) -> None:
        target = self._target / STATE
        if target.is_dir():
            shutil.rmtree(target)
        self._make_directory(STATE)
        copy_stored(self._source / STATE, target)
        (target / LMDB_DATA_FILE).chmod(FILE_MODE)
        _sync(target / LMDB_DATA_FILE)
        _sync(target)

    # --- topics

    def _topics(self, stored: Stored) -> list[Topic]:
        """Those of the copied state, and those whose entry it lost and whose directory describes them."""
        topics = {topic.id: topic for topic in stored.topics}
        for described in self._reader.topics():
            if described.id < stored.next_id and described.id not in stored.tombstones:
                topic = Topic(described.id, described.name, described.partition_count, described.config, 0)
                topics.setdefault(described.id, topic)
        return [topics[topic_id] for topic_id in sorted(topics)]

    def _copy_topic(self, topic: Topic, marks: Watermarks) -> None:
        place = f"{TOPICS}/{topic.id}"
        if not (self._source / place).is_dir():  # it has no records, or is being deleted
            return
        self._make_directory(place)
        with suppress(FileNotFoundError):
            self._copy(f"{place}/{TOPIC_FILE}")
        for index in range(topic.partition_count):
            if (self._source / place / str(index)).is_dir():
                self._make_directory(f"{place}/{index}")
                with suppress(FileNotFoundError):  # the topic is being deleted
                    self._copy_partition(topic, index, marks)
                _sync(self._target / place / str(index))
        _sync(self._target / place)

    def _copy_partition(self, topic: Topic, index: int, marks: Watermarks) -> None:
        place = f"{TOPICS}/{topic.id}/{index}"
        copy = PartitionCopy(
            self._source / place,
            self._target / place,
            self._before.get((topic.id, index), NOTHING),
            self._is_live,
            lambda transaction_id: is_committed(self._committed, transaction_id),
            lambda name: self._copy(f"{place}/{name}"),
            lambda name: self._forget(f"{place}/{name}"),
        )
        copy.run()
        self.copied.damaged += copy.damaged
        if not copy.kept:
            return
        self.copied.partitions += 1
        last = f"{place}/{copy.kept[-1]}"
        if copy.is_cut:
            _sync(self._target / last)
            self._note(last, hash_of(self._target / last))
        number = topic.numbers.get(index) or copy.number
        owner = Owner(number, topic.id, index)
        before = marks.read(owner) if number else None
        if before is None and (topic.id, index) in self._before:
            return  # nobody knows what of it was committed: the copy does not know better
        mark = copy.mark(before)
        if mark is not None:
            marks.write(owner, mark)
            self.copied.records += self._records(topic, index, marks, copy.lost)

    def _records(self, topic: Topic, index: int, marks: Watermarks, lost: list[tuple[int, int]]) -> int:
        """How many there are in the copy of a partition, without those that damage took."""
        stored = StoredTopic(topic.id, topic.name, topic.partition_count, 0, {})
        directory = self._target / TOPICS / str(topic.id) / str(index)
        copy = PartitionReader(stored, index, directory, SystemFiles(), marks)
        copy.refresh()
        gaps, start, end = copy.gaps(), copy.log_start, copy.committed_seq
        damaged = sum(gaps.count(max(first, start), min(last, end)).most for first, last in lost)
        return gaps.count(start, end).most - damaged

    def _take_out_deleted(self, topics: list[Topic]) -> None:
        """A topic that was deleted while it was copied is not whole."""
        there = {topic.id for topic in self._read_state(self._source)[0].topics}
        deleted = [topic for topic in topics if topic.numbers and topic.id not in there]
        for topic in deleted:
            topics.remove(topic)
            shutil.rmtree(self._target / TOPICS / str(topic.id), ignore_errors=True)
            for path in [path for path in self.copied.files if path.startswith(f"{TOPICS}/{topic.id}/")]:
                del self.copied.files[path]
        if deleted:
            ops = [op for topic in deleted for op in put_tombstone(topic, 0)]
            change_stored(self._target / STATE, ops)
            (self._target / STATE / LMDB_LOCK_FILE).unlink(missing_ok=True)

    def _write_manifest(self) -> None:
        made = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        files = [
            {"path": path, "size_bytes": size_bytes, "sha256": digest}
            for path, (size_bytes, digest) in sorted(self.copied.files.items())
        ]
        _sync(self._target / TOPICS)
        document = {"schema": 1, "made": made, "files": files}
        write_new_file(SystemFiles(), self._target / MANIFEST, json.dumps(document, indent=1).encode() + b"\n")


def manifest_of(backup: Path) -> list[tuple[str, int, str]]:
    """(path, size, SHA-256) of each file of a backup. Raises Failure: it is none, or not a whole one."""
    path = backup / MANIFEST
    try:
        with _opened(path) as file:
            fields = json.loads(file.read(MANIFEST_BYTES_MAX))
        found = [(str(one["path"]), int(one["size_bytes"]), str(one["sha256"])) for one in fields["files"]]
    except FileNotFoundError:
        text = f"{backup} is not a finished backup: it has no {MANIFEST}"
        raise Failure(UNREACHABLE, "no_backup", text) from None
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(FINDING, "corrupt", f"{path} is damaged: {named(error)}") from error
    for name, _, _ in found:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Failure(FINDING, "corrupt", f"{path} names {name}, which is not in the backup")
    return found


def restored(backup: Path, target: Path, on_bytes: OnBytes) -> Iterator[str]:
    """Copies each file of a backup into an empty directory and compares its hash; the path of each that is there.

    Raises:
        Failure: a file is missing or is not what was backed up.
        OSError: it cannot be written.
    """
    folders = {target}
    for name, size_bytes, digest in manifest_of(backup):
        path = target / name
        make_directory(path.parent)
        folders.add(path.parent)
        try:
            found = copy_file(backup / name, path, on_bytes)
        except FileNotFoundError as error:
            raise Failure(FINDING, "corrupt", f"{backup / name} is missing from the backup") from error
        if found != (size_bytes, digest):
            text = f"{backup / name} is damaged: its {found[0]} bytes are not the {size_bytes} that were backed up"
            raise Failure(FINDING, "corrupt", text)
        yield name
    for folder in sorted(folders):
        _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
