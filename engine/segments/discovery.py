"""Which files of a partition's directory are its segments: headers read, damaged ones rebuilt, strangers set aside.

A header of 72 bytes must not cost a segment. Who the file belongs to and its first number are known from directory and
name; what only the header holds is the segment's random id, and that is repeated in a sealed segment's trailer, in the
partition's watermark and in the index. Each of these ids (and the one in the damaged header itself) is tried: a batch
that verifies with it proves it, as every hash in the file is seeded with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import Corrupt
from engine.files.descriptors import Handles
from engine.files.system import Files, NotAFile, free_path
from engine.formats.batch_header import read_header
from engine.formats.segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    SegmentHeader,
    damaged_segment_id,
    parse_header,
    parse_segment_name,
    trailer_segment_id,
)
from engine.segments.damage import Found, careful_read, walk

DAMAGED_SUFFIX = ".damaged"
LEFT_ALONE = "is no file, left alone"
"""What is said of a directory or a pipe that is called like a segment."""


@dataclass(frozen=True, slots=True)
class PartitionLocation:
    """Where a partition's files are and who it is."""

    data_dir: Path
    topic_id: int
    partition: int
    number: int
    topic_directory: Path = field(init=False, compare=False)
    """Directory of the topic."""
    directory: Path = field(init=False, compare=False)
    """Directory of the segments."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic_directory", self.data_dir / "topics" / str(self.topic_id))
        object.__setattr__(self, "directory", self.topic_directory / str(self.partition))


def segment_files(
    files: Files,
    handles: Handles,
    location: PartitionLocation,
    segment_ids: Callable[[int], Iterable[int]],
    note: Callable[[str], None],
) -> list[tuple[Path, SegmentHeader]]:
    """The partition's segments by first number.

    Args:
        segment_ids: segment ids that other places know for the segment with this first number.
        note: told of everything that is not as it should be.

    Raises:
        OSError: a file cannot be opened, read or renamed.
        UnsupportedFormat: a segment was written by a newer version.
    """
    found = []
    for name in files.list_dir(location.directory):
        first_seq = parse_segment_name(name)
        if first_seq is None:
            continue
        path = location.directory / name
        try:
            header = _header(files, handles, location, path, first_seq, segment_ids, note)
        except (IsADirectoryError, NotAFile):
            note(f"{path} {LEFT_ALONE}")
            continue
        except Corrupt as problem:
            with handles.use(path) as fd:
                holds_something = files.size(fd) > HEADER_BYTES
            handles.forget(path)
            aside = free_path(files, path.with_name(name + DAMAGED_SUFFIX))
            files.rename(path, aside)
            files.sync_dir(location.directory)
            if holds_something:
                note(f"{problem}; no segment of this partition, renamed to {aside.name}")
            continue
        found.append((path, header))
    return found


def _header(
    files: Files,
    handles: Handles,
    location: PartitionLocation,
    path: Path,
    first_seq: int,
    segment_ids: Callable[[int], Iterable[int]],
    note: Callable[[str], None],
) -> SegmentHeader:
    """The header of a file, rebuilt if need be. Raises Corrupt: it is not of this partition, or beyond repair."""
    with handles.use(path) as fd:
        data = careful_read(files, fd, note, path)(0, HEADER_BYTES)
        try:
            header = parse_header(data, path)
        except Corrupt as problem:
            rebuilt = _rebuilt(files, fd, location, data, first_seq, segment_ids(first_seq))
            if rebuilt is None:
                raise
            files.write(fd, [rebuilt.pack()], 0)
            files.sync_data(fd)
            note(f"{problem}; header rebuilt, its damaged bytes were {data.hex()}")
            return rebuilt
    if (header.topic_id, header.partition) != (location.topic_id, location.partition):
        raise Corrupt(path, 0, f"belongs to topic {header.topic_id} partition {header.partition}")
    if header.first_seq != first_seq:
        raise Corrupt(path, 0, f"its header says first number {header.first_seq}")
    return header


def _rebuilt(
    files: Files, fd: int, location: PartitionLocation, damaged: bytes, first_seq: int, segment_ids: Iterable[int]
) -> SegmentHeader | None:
    """A header under which a batch of the file verifies, None when none of the known ids does that."""
    size_bytes = files.size(fd)
    read = careful_read(files, fd)
    ids = (
        *segment_ids,
        *trailer_segment_id(read(max(0, size_bytes - TRAILER_BYTES), TRAILER_BYTES)),
        *damaged_segment_id(damaged, location.topic_id, location.partition, first_seq),
    )
    for segment_id in dict.fromkeys(ids):
        for item in walk(read, HEADER_BYTES, size_bytes, segment_id, first_seq):
            if isinstance(item, Found):
                batch = read_header(item.data, item.start, segment_id, item.position + item.start)
                created_ms = batch.append_time_ms if batch is not None else 0
                return SegmentHeader(
                    location.topic_id, location.partition, location.number, first_seq, segment_id, created_ms
                )
    return None
