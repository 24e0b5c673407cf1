"""Archived segments: sealed segment files as they were, in object storage or any file system that pyarrow knows.

::

    PLACE/manifest-00000000000000000007.json              the newest one that is whole counts
    PLACE/segments/TOPIC ID/PARTITION/FIRST-SEGMENT ID.log    never changed, never removed by us

A manifest lists all segments, so that one request tells what there is; each next one has all of the one before. It
carries its own hash: object storage shows a file only when it is complete, other file systems need not.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import urlsplit

import pyarrow as pa
import xxhash
from pyarrow import fs

from engine.errors import Corrupt, DataDirectoryError, UnsupportedFormat, named
from engine.files.system import Files
from engine.reader import PartitionReader, Segment, StoredTopic, read_segment
from tools.spark.limits import MANIFEST_BYTES_MAX
from tools.spark.source.options import MANIFEST

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Archived:
    """One archived segment: the numbers `first`..`next` - 1 of a partition are in it or nowhere."""

    topic: int
    """Topic id."""
    partition: int
    first: int
    next: int
    """First number of the segment after it."""
    records: int
    size_bytes: int
    segment_id: int
    max_timestamp_ms: int
    path: str
    """Below the place."""
    hash: str
    """xxh3-64 of the whole file, 16 hexadecimal digits."""


@dataclass(slots=True)
class Manifest:
    """All that is archived of one data directory.

    As JSON: these fields with `format` and `hash`, the xxh3-64 of the document without that field, written with sorted
    keys and no blanks.
    """

    version: int = 0
    """0: nothing was archived yet."""
    directory_id: int = 0
    topics: list[StoredTopic] = field(default_factory=list)
    segments: list[Archived] = field(default_factory=list)

    def pack(self) -> bytes:
        """The file's content."""
        topics = [
            {
                "id": topic.id,
                "name": topic.name.hex(),
                "partitions": topic.partition_count,
                "created_ms": topic.created_ms,
                "config": topic.config,
            }
            for topic in self.topics
        ]
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": self.version,
            "directory_id": self.directory_id,
            "topics": topics,
            "segments": [asdict(segment) for segment in self.segments],
        }
        return _canonical(document | {"hash": _hash(document)})

    @classmethod
    def unpack(cls, content: bytes, name: str) -> Manifest:
        """The reverse of `pack`. Raises Corrupt, UnsupportedFormat."""
        try:
            document = json.loads(content)
            if document.pop("hash") != _hash(document):
                raise Corrupt(name, 0, "the manifest is damaged (checksum)")
            if document["format"] != FORMAT:
                raise UnsupportedFormat(f"{name} has format {document['format']}; this version reads format {FORMAT}")
            topics = [
                StoredTopic(row["id"], bytes.fromhex(row["name"]), row["partitions"], row["created_ms"], row["config"])
                for row in document["topics"]
            ]
            segments = [Archived(**row) for row in document["segments"]]
            return cls(document["version"], document["directory_id"], topics, segments)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise Corrupt(name, 0, f"not a manifest: {named(problem)}") from problem


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _hash(document: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(_canonical(document))


class ArchiveAway(DataDirectoryError):
    """Object storage does not answer, or refuses."""


def shown(uri: str) -> str:
    """A URI without the credentials that it may have."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def one_line(error: Exception) -> str:
    """What a library says on several lines, with arrows in colour between its causes."""
    text = re.sub(r"\s*(?:\x1b\[[0-9;]*m|↳)+\s*", " ", str(error))
    return " ".join(text.split())


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Gives errors of object storage, which name neither a place nor a number, the name of the archive.

    Raises:
        ArchiveAway: what pyarrow raised as OSError without an error number.
        OSError: any other one, as it was.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise ArchiveAway(f"{shown(uri)} cannot be reached or used: {one_line(error)}") from error


class Place:
    """Where segments are archived: a directory, or a URI that pyarrow understands (``s3://bucket/prefix?region=...``).

    Raises (its methods):
        ArchiveAway: it does not answer.
        OSError: as the file system gave it.
    """

    def __init__(self, uri: str) -> None:
        """Raises DataDirectoryError when it is not a place that pyarrow understands."""
        self.uri = uri
        try:
            if "://" in uri:
                self.system, self.base = fs.FileSystem.from_uri(uri)
            else:
                self.system, self.base = fs.LocalFileSystem(), str(Path(uri).absolute())
        except (pa.ArrowException, ValueError, OSError) as problem:
            raise DataDirectoryError(f"no archive can be at {shown(uri)}: {problem}") from problem
        self.base = self.base.rstrip("/")
        self.files: Files = cast(Files, ArrowFiles(self.system, uri))

    def path(self, name: str) -> str:
        """The full path of a file of the archive."""
        return f"{self.base}/{name}"

    def versions(self) -> list[int]:
        """Versions of the manifests that are there, the newest one first."""
        selector = fs.FileSelector(self.base, allow_not_found=True)
        with told(self.uri):
            names = [PurePosixPath(info.path).name for info in self.system.get_file_info(selector) if info.is_file]
        numbers = [name.removeprefix(MANIFEST).removesuffix(".json") for name in names if name.startswith(MANIFEST)]
        return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)

    def manifest(self) -> Manifest:
        """The newest whole manifest; one of version 0 when there is none. Raises UnsupportedFormat, Corrupt."""
        damaged: Corrupt | None = None
        for version in self.versions():
            name = manifest_name(version)
            try:
                return Manifest.unpack(self._read(name), self.path(name))
            except FileNotFoundError:  # a newer one is there by now, and this one was tidied away
                continue
            except Corrupt as error:
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        return Manifest()

    def _read(self, name: str) -> bytes:
        with told(self.uri), self.system.open_input_file(self.path(name)) as file:
            if file.size() > MANIFEST_BYTES_MAX:
                raise Corrupt(self.path(name), 0, f"a manifest of {file.size()} bytes (at most {MANIFEST_BYTES_MAX})")
            return bytes(file.read())


def manifest_name(version: int) -> str:
    """The name of a manifest below its place."""
    return f"{MANIFEST}{version:020d}.json"


@lru_cache(maxsize=16)
def place_of(uri: str) -> Place:
    """One connection for each place and process."""
    return Place(uri)


class ArrowFiles:
    """What readers of segments need of `engine.files.system.Files`, on a file system of pyarrow."""

    def __init__(self, system: fs.FileSystem, uri: str) -> None:
        self._system = system
        self._uri = uri
        self._open: dict[int, pa.NativeFile] = {}

    def open(self, path: Path, *, write: bool = False) -> int:
        """Opens a file for reading."""
        assert not write, "archives are only read this way"
        with told(self._uri):
            file = self._system.open_input_file(str(path))
        number = id(file)
        self._open[number] = file
        return number

    def close(self, fd: int) -> None:
        """Closes it."""
        self._open.pop(fd).close()

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        """Reads up to `size_bytes` from `position`; less only at the end of the file."""
        file = self._open[fd]
        with told(self._uri):
            return bytes(file.read_at(min(size_bytes, max(0, file.size() - position)), position))

    def size(self, fd: int) -> int:
        """Bytes of a file."""
        with told(self._uri):
            return int(self._open[fd].size())


@dataclass(slots=True)
class ArchivedPartition:
    """The archived segments of one partition, by number."""

    place: Place
    topic: StoredTopic
    index: int
    entries: list[Archived]
    _segments: dict[str, Segment] = field(default_factory=dict)

    @property
    def log_start(self) -> int:
        """First archived number."""
        return self.entries[0].first

    @property
    def next_seq(self) -> int:
        """The number after the last archived one."""
        return self.entries[-1].next

    @property
    def paths(self) -> set[Path]:
        """Of the segments that were looked at."""
        return {segment.path for segment in self._segments.values()}

    def between(self, first_seq: int, end_seq: int) -> list[Archived]:
        """The segments that hold any of the numbers first_seq..end_seq - 1."""
        low = bisect_right(self.entries, first_seq, key=lambda entry: entry.next)
        return [entry for entry in self.entries[low:] if entry.first < end_seq]

    def segment(self, entry: Archived) -> Segment:
        """Its header and footer: one or two reads. Raises Corrupt, OSError."""
        found = self._segments.get(entry.path)
        if found is None:
            found = read_segment(self.place.files, Path(self.place.path(entry.path)))
            if found.header.segment_id != entry.segment_id or found.size_bytes != entry.size_bytes:
                raise Corrupt(self.place.path(entry.path), 0, "not the file that the archive's manifest describes")
            self._segments[entry.path] = found
        return found

    def seq_at_time(self, timestamp_ms: int) -> int | None:
        """First archived number whose record has that time or a later one; None: all are older."""
        for entry in self.entries:
            if entry.max_timestamp_ms >= timestamp_ms:
                directory = Path(self.place.path(entry.path)).parent
                one = PartitionReader(self.topic, self.index, directory, self.place.files, None, entry.first)
                one.committed_seq = entry.next - 1
                one.segments = [self.segment(entry)]
                return one.seq_at_time(timestamp_ms)
        return None


def archived_partitions(place: Place, manifest: Manifest) -> dict[tuple[int, int], ArchivedPartition]:
    """By topic id and partition."""
    topics = {topic.id: topic for topic in manifest.topics}
    found: dict[tuple[int, int], ArchivedPartition] = {}
    for entry in sorted(manifest.segments, key=lambda entry: (entry.topic, entry.partition, entry.first)):
        key = (entry.topic, entry.partition)
        if key not in found:
            found[key] = ArchivedPartition(place, topics[entry.topic], entry.partition, [])
        found[key].entries.append(entry)
    return found


def find_segment(uri: str, segment_id: int) -> str | None:
    """The full path of an archived segment in its file system. Raises OSError, Corrupt, UnsupportedFormat."""
    place = place_of(uri)
    for entry in place.manifest().segments:
        if entry.segment_id == segment_id:
            return place.path(entry.path)
    return None
