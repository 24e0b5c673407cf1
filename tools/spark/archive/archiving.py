"""Copies sealed segments of a data directory to an archive, while the server runs.

In this order, so that a crash at any moment leaves an archive that is whole: the segments that are new, then a manifest
that lists them. What a crashed run had copied is copied again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from engine.directory_layout import VERSION_FILE
from engine.errors import Corrupt, DataDirectoryError, LogLocked
from engine.files.system import SystemFiles
from engine.formats.segment import parse_segment_name
from engine.reader import DirectoryReader, PartitionReader, Segment, StoredTopic, opened, walk_segment
from engine.segments.damage import Damage
from tools.spark.archive.manifest import Archived, Manifest, Place, manifest_name, shown, told
from tools.spark.limits import ARCHIVE_BLOCK_BYTES, MANIFESTS_KEPT

OBJECT_STORES = ("s3", "gcs", "abfs")
"""File systems of pyarrow that have no directories."""


@dataclass(slots=True)
class Report:
    """What a run did."""

    manifest: Manifest
    copied: list[Archived] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Damage in what was copied, and what could not be."""


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """One run at a time. Raises LogLocked."""
    fd = os.open(data_dir / VERSION_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LogLocked(f"another process is archiving {data_dir}") from None
    finally:
        os.close(fd)


def _nobody(_size_bytes: int) -> None:
    """Nobody wants to know how far it is."""


def archive(data_dir: Path, place: Place, copied: Callable[[int], None] = _nobody) -> Report:
    """Copies what is sealed and not archived yet, and writes the next manifest if there was anything.

    `copied` is told the size of each segment that was copied.

    Raises:
        DataDirectoryError: the archive holds another directory's segments, or `data_dir` is none.
        LogLocked: another run is under way.
        Corrupt, UnsupportedFormat: the archive's manifest cannot be used.
        ArchiveAway, OSError: what was archived before is as it was.
    """
    directory = DirectoryReader(data_dir)
    try:
        with _alone(data_dir), told(place.uri):
            manifest = place.manifest()
            if manifest.version and manifest.directory_id != directory.directory_id:
                raise DataDirectoryError(f"{shown(place.uri)} is the archive of another data directory")
            report = Report(manifest)
            topics = directory.topics()
            for topic in topics:
                for index in range(topic.partition_count):
                    _partition(directory.partition(topic, index), place, report, copied)
            if report.copied:
                report.manifest = _publish(place, manifest, directory.directory_id, report, topics)
            return report
    finally:
        directory.close()


def _publish(place: Place, old: Manifest, directory_id: int, report: Report, topics: list[StoredTopic]) -> Manifest:
    """Writes the next manifest and tidies the oldest away."""
    known = {topic.id: topic for topic in [*old.topics, *topics]}
    versions = place.versions()
    version = max([old.version, *versions], default=0) + 1
    manifest = Manifest(version, directory_id, list(known.values()), [*old.segments, *report.copied])
    _write(place, manifest_name(version), manifest.pack())
    for outdated in versions[MANIFESTS_KEPT:]:
        place.system.delete_file(place.path(manifest_name(outdated)))
    return manifest


def _write(place: Place, name: str, content: bytes) -> None:
    with place.system.open_output_stream(place.path(name)) as out:
        out.write(content)


def _partition(reader: PartitionReader, place: Place, report: Report, copied: Callable[[int], None]) -> None:
    where = f"{reader.topic.name.decode('utf-8', 'backslashreplace')}:{reader.index}"
    done = [
        entry for entry in report.manifest.segments if (entry.topic, entry.partition) == (reader.topic.id, reader.index)
    ]
    ids = {entry.segment_id for entry in done}
    ends = max((entry.next for entry in done), default=reader.log_start)
    report.findings += [str(error) for error in reader.unreadable]
    starts = [segment.header.first_seq for segment in reader.segments]
    starts += [parse_segment_name(Path(str(error.path)).name) or 0 for error in reader.unreadable]
    for segment in reader.segments[:-1]:
        if segment.header.segment_id in ids:
            continue
        first = segment.header.first_seq
        next_seq = min(start for start in starts if start > first)
        if segment.header.begins > ends:
            removed = f"records {ends} to {segment.header.begins - 1}"
            report.findings.append(f"{where}: {removed} were removed before they were archived")
        ends = next_seq
        if segment.footer is None:
            report.findings.append(f"{segment.path}: its footer is damaged; `logtool repair` makes it anew")
            continue
        try:
            report.copied.append(_copy(segment, next_seq, place, report))
            copied(segment.size_bytes)
        except FileNotFoundError:
            report.findings.append(f"{where}: records {first} to {next_seq - 1} were removed before they were archived")


def _copy(segment: Segment, next_seq: int, place: Place, report: Report) -> Archived:
    """Copies one segment and checks it. Raises OSError."""
    assert segment.footer is not None
    files, header = SystemFiles(), segment.header
    for item in walk_segment(files, segment):
        if isinstance(item, Damage):
            report.findings.append(f"{segment.path}: {item.reason} at {item.position}; it was copied as it is")
    name = f"segments/{header.topic_id}/{header.partition}/{header.first_seq:020d}-{header.segment_id:016x}.log"
    path, digest = place.path(name), xxhash.xxh3_64()
    if place.system.type_name not in OBJECT_STORES:
        place.system.create_dir(path.rpartition("/")[0], recursive=True)
    with opened(files, segment.path) as fd, place.system.open_output_stream(path) as out:
        for position in range(0, segment.size_bytes, ARCHIVE_BLOCK_BYTES):
            block = files.read(fd, min(ARCHIVE_BLOCK_BYTES, segment.size_bytes - position), position)
            digest.update(block)
            out.write(block)
    (info,) = place.system.get_file_info([path])
    if info.size != segment.size_bytes:
        raise Corrupt(path, None, f"{info.size} bytes arrived of {segment.size_bytes}")
    return Archived(
        header.topic_id,
        header.partition,
        header.first_seq,
        next_seq,
        segment.footer.records,
        segment.size_bytes,
        header.segment_id,
        segment.footer.max_timestamp_ms,
        name,
        digest.hexdigest(),
    )
