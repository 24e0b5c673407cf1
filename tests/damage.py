"""Directories to be damaged, and what recovery and readers make of them."""

from __future__ import annotations

from pathlib import Path

from engine.files.descriptors import Handles
from engine.files.system import SystemFiles
from engine.formats.record import Record
from engine.reader import DirectoryReader, Loss
from engine.segments.discovery import PartitionLocation
from engine.segments.recovery import Recovered, recover_partition
from engine.segments.recovery_hints import RecoveryHints
from engine.segments.watermarks import Owner, Watermark, Watermarks
from tests.engine_log import SMALL, EngineLog

FILES = SystemFiles()


class UnsyncedFiles(SystemFiles):
    """For thousands of recoveries in which no power is cut."""

    def sync_data(self, fd: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


def make(path: Path, *, rounds: int = 12, per_round: int = 10, size: int = 2000) -> Path:
    """Segments of a few rounds each, closed in good order; topic "t", 1, partition 0, number 1."""
    with EngineLog(path, topic=SMALL) as engine:
        for number in range(rounds):
            engine.append([b"%d.%d " % (number, k) + b"." * size for k in range(per_round)])
    return path


def mark_of(path: Path, number: int = 1) -> Watermark | None:
    """The last watermark of partition 0 of topic 1."""
    directory_id = DirectoryReader(path).directory_id
    marks = Watermarks(FILES, path / "watermarks", directory_id, read_only=True)
    try:
        return marks.read(Owner(number, 1, 0))
    finally:
        marks.close()


def recover(path: Path, mark: Watermark | None) -> Recovered:
    """Recovery alone, without a log around it."""
    files = UnsyncedFiles()
    handles = Handles(files, 64)
    try:
        return recover_partition(files, handles, PartitionLocation(path, 1, 0, 1), RecoveryHints(mark), 0)
    finally:
        handles.close()


def flip(path: Path, bit: int) -> None:
    """Turns one bit of a file, counted from its start."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def flip_in(path: Path, value: bytes) -> None:
    """Turns a bit of the only place of a file where this value is."""
    data = path.read_bytes()
    assert data.count(value) == 1
    flip(path, data.index(value) * 8)


def read_beside(path: Path, topic: bytes = b"t") -> tuple[list[int], list[tuple[int, int]]]:
    """What a reader of the files sees: numbers, and what it is told is lost."""
    reader = DirectoryReader(path)
    partition = reader.partition(reader.topic(topic))
    items = list(partition.records(partition.log_start, partition.committed_seq + 1))
    reader.close()
    lost = [(item.damage.first_seq, item.damage.last_seq) for item in items if isinstance(item, Loss)]
    return [item.seq for item in items if isinstance(item, Record)], lost
