"""A consistent copy of a data directory while a server writes to it, with a hash of every file.

Order is what makes it consistent. First the watermarks are read: what they call committed was acknowledged, or is about
to be. Then one moment of `state` is copied, which says of every transaction up to there whether it was committed. Then
the segments follow, each as long as it has become by then. So the copy is a log after a crash: everything that was
acknowledged before the copy began is in it, a transaction is in all of its partitions or in none, and what was
appended meanwhile may be in it. `index` is left out: a server makes it anew.

A copy is a data directory with one file more, ``backup.json``, written last::

    {"schema": 1, "made": RFC 3339, "files": [{"path": "topics/1/0/....log", "size_bytes": N, "sha256": HEX}, ...]}
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from engine.errors import EngineError
from engine.files.system import DIRECTORY_MODE, FILE_MODE, SystemFiles
from engine.formats.segment import HEADER_BYTES, parse_segment_name
from engine.reader import DirectoryReader, StoredTopic, read_segment, walk_segment
from engine.segments.scan import Found
from engine.segments.watermarks import Owner, Watermark, Watermarks
from engine.state.environment import ReadOnlyEnvironment
from tools.logtool.errors import FINDING, UNREACHABLE, Failure
from tools.logtool.limits import COPY_BYTES, MANIFEST_BYTES_MAX
from tools.logtool.stored import topics_of_state

MANIFEST = "backup.json"
LEFT_OUT = {"LOCK", "server.json", "admin.token", "watermarks", "index", "state", "topics", "set-aside", MANIFEST}
"""At the top of a directory: made anew, of the running server, or copied in their own way."""

OnBytes = Callable[[int], None]


@dataclass(slots=True)
class Copied:
    """What a copy holds.

    Attributes:
        files: path in the copy -> (size in bytes, SHA-256).
        records: committed when the copy began, as far as they are still kept.
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
    with source.open("rb") as reader:
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


def hash_of(path: Path) -> tuple[int, str]:
    """(size, SHA-256) of a file. Raises OSError."""
    with path.open("rb") as file:
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
        self.copied = Copied()

    def run(self) -> Copied:
        """Copies everything. Raises EngineError, OSError, Failure."""
        before = {
            (topic.id, index): self._reader.partition(topic, index).mark
            for topic in self._reader.topics()
            for index in range(topic.partition_count)
        }
        self._copy_state()
        self._copy_small_files()
        marks = Watermarks(SystemFiles(), self._target / "watermarks", self._reader.directory_id)
        try:
            for topic in self._topics():
                self._copy_topic(topic, before, marks)
            marks.sync()
        finally:
            marks.close()
        self._note("watermarks", hash_of(self._target / "watermarks"))
        self._write_manifest()
        return self.copied

    def _note(self, path: str, size_and_hash: tuple[int, str]) -> None:
        self.copied.files[path] = size_and_hash

    def _copy_state(self) -> None:
        target = self._target / "state"
        target.mkdir(DIRECTORY_MODE)
        state = ReadOnlyEnvironment(self._source / "state")
        try:
            state.copy(target)
        finally:
            state.close()
        (target / "data.mdb").chmod(FILE_MODE)
        _sync(target / "data.mdb")
        _sync(target)
        self._note("state/data.mdb", hash_of(target / "data.mdb"))

    def _copy_small_files(self) -> None:
        """VERSION, certificates, staged files, and whatever else lies at the top."""
        for path in sorted(self._source.iterdir()):
            if path.name in LEFT_OUT or path.name.endswith(".new"):
                continue
            if path.is_file():
                self._copy(path, path.name)
            elif path.is_dir() and path.name == "staged":
                (self._target / path.name).mkdir(0o700)
                for staged in sorted(path.iterdir()):
                    with suppress(FileNotFoundError):  # appended and removed meanwhile
                        self._copy(staged, f"{path.name}/{staged.name}")

    def _copy(self, path: Path, name: str) -> None:
        self._note(name, copy_file(path, self._target / name, self._on_bytes))

    def _topics(self) -> list[StoredTopic]:
        """Those of the copied state, opened alone: nobody writes to it."""

        def damaged(problem: EngineError) -> None:
            self.copied.damaged.append(str(problem))

        topics = topics_of_state(self._target / "state", damaged)
        (self._target / "state" / "lock.mdb").unlink(missing_ok=True)
        self.copied.topics = len(topics)
        (self._target / "topics").mkdir(DIRECTORY_MODE)
        return topics

    def _copy_topic(
        self, topic: StoredTopic, before: dict[tuple[int, int], Watermark | None], marks: Watermarks
    ) -> None:
        directory = self._source / "topics" / str(topic.id)
        place = f"topics/{topic.id}"
        (self._target / place).mkdir(DIRECTORY_MODE)
        with suppress(FileNotFoundError):  # a topic without records has none
            self._copy(directory / "topic.json", f"{place}/topic.json")
        for index in range(topic.partition_count):
            if (directory / str(index)).is_dir():
                (self._target / place / str(index)).mkdir(DIRECTORY_MODE)
                self._copy_partition(topic, index, before.get((topic.id, index)), marks)
                _sync(self._target / place / str(index))
        _sync(self._target / place)

    def _copy_partition(self, topic: StoredTopic, index: int, mark: Watermark | None, marks: Watermarks) -> None:
        place = Path("topics", str(topic.id), str(index))
        names = sorted(name for name in os.listdir(self._source / place) if parse_segment_name(name) is not None)
        for name in names:
            with suppress(FileNotFoundError):  # retention was quicker
                size_and_hash = copy_file(self._source / place / name, self._target / place / name, self._on_bytes)
                self._note(str(place / name), size_and_hash)
                self._make_whole(place / name, mark)
        there = [name for name in names if str(place / name) in self.copied.files]
        self.copied.partitions += bool(there)
        if there:
            first = read_segment(SystemFiles(), self._target / place / there[0]).header
            marks.write(Owner(first.number, topic.id, index), self._mark(place, there, mark))

    def _make_whole(self, name: Path, mark: Watermark | None) -> None:
        """Checks every batch of a copied segment; cuts off the beginning of one that was being written."""
        path = self._target / name
        try:
            segment = read_segment(SystemFiles(), path)
        except EngineError as error:
            self.copied.damaged.append(str(error))
            return
        end, damage = HEADER_BYTES, []
        for item in walk_segment(SystemFiles(), replace(segment, footer=None)):
            if isinstance(item, Found):
                end = item.next_position
            else:
                damage.append(item)
        is_active = mark is not None and mark.active_first_seq == segment.header.first_seq
        committed = mark.committed_position if mark is not None and is_active else HEADER_BYTES
        if not segment.sealed and damage and damage[-1].end >= segment.end and damage[-1].position >= committed:
            damage.pop()
            os.truncate(path, end)
            _sync(path)
            self._note(str(name), hash_of(path))
        self.copied.damaged += [
            f"{self._source / name}: bytes {one.position} to {one.end}: {one.reason}" for one in damage
        ]

    def _mark(self, place: Path, names: list[str], mark: Watermark | None) -> Watermark:
        """What was committed when the copy began, in the segments that there still were when they were copied."""
        firsts = [parse_segment_name(name) or 1 for name in names]
        if mark is not None and mark.active_first_seq in firsts:
            log_start = max(mark.log_start, firsts[0])
            self.copied.records += max(mark.committed_seq + 1 - log_start, 0)
            return mark._replace(log_start=log_start)
        header = read_segment(SystemFiles(), self._target / place / names[0]).header
        return Watermark(
            log_start=firsts[0], active_first_seq=firsts[0], committed_seq=firsts[0] - 1,
            committed_position=HEADER_BYTES, durable_position=HEADER_BYTES, segment_id=header.segment_id,
        )  # fmt: skip

    def _write_manifest(self) -> None:
        made = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        files = [
            {"path": path, "size_bytes": size_bytes, "sha256": digest}
            for path, (size_bytes, digest) in sorted(self.copied.files.items())
        ]
        _sync(self._target / "topics")
        path = self._target / MANIFEST
        path.write_text(json.dumps({"schema": 1, "made": made, "files": files}, indent=1) + "\n")
        _sync(path)
        _sync(self._target)


def manifest_of(backup: Path) -> list[tuple[str, int, str]]:
    """(path, size, SHA-256) of each file of a backup. Raises Failure: it is none, or not a whole one."""
    path = backup / MANIFEST
    try:
        with path.open("rb") as file:
            fields = json.loads(file.read(MANIFEST_BYTES_MAX))
        found = [(str(one["path"]), int(one["size_bytes"]), str(one["sha256"])) for one in fields["files"]]
    except FileNotFoundError:
        text = f"{backup} is no backup, or one that was not finished: it has no {MANIFEST}"
        raise Failure(UNREACHABLE, "no_backup", text) from None
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(FINDING, "corrupt", f"{path} is damaged: {error!r}") from error
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
        path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
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
