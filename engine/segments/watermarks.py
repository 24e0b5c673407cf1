"""The `watermarks` file: what of each partition is committed, for other processes and for recovery.

Layout (little-endian): a file header of 128 bytes, then for each partition number n (from 1) two slots of 64 bytes at
n x 128, written in turn, so that a torn write leaves the other one whole::

    header  magic 8s "QLWATERM" | format version u32 | reserved u32 | directory id u64 | xxh3-64 of the 24 bytes before
    slot    counter u64 | log start u64 | active segment's first seq u64 | committed seq u64 | committed position u64
            | durable position u64 | active segment's id u64
            | xxh3-64 of the 56 bytes before, seeded with the xxh3-64 of
              directory id u64 | topic id u64 | partition u32 | n u32

The slot with the higher counter and a right hash counts. The seed binds a slot to its partition: numbers are given
again after a deletion, and when the state was lost, and nobody may take the mark of a former owner for their own.
Slots are written after each commit round, before the
acknowledgement; the file is synced by the maintenance thread about once a second and at a clean stop, never in the
way of an acknowledgement: the file may therefore be older than the segments, and recovery takes it as a lower bound.

After a failed sync the kernel calls clean what it did not write, so that a later sync proves nothing of slots from
before: only one that was written again since then is made durable by it (`covers`).
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import NamedTuple

import xxhash

from engine.errors import Corrupt, UnsupportedFormat
from engine.files.system import Files, free_path
from engine.limits import SCAN_BYTES

FILE_NAME = "watermarks"
FORMAT_VERSION = 1
PAIR_BYTES = 128
SLOT_BYTES = 64

_HEADER = struct.Struct("<8sIIQ")
_SLOT = struct.Struct("<QQQQQQQ")
_HASH = struct.Struct("<Q")
_OWNER = struct.Struct("<QQII")
_MAGIC = b"QLWATERM"


class Owner(NamedTuple):
    """The partition that a slot belongs to."""

    number: int
    """Its number in the catalog: where its slots are."""
    topic_id: int
    partition: int


class Watermark(NamedTuple):
    """What is known of one partition."""

    log_start: int
    """First sequence number that may be read."""
    active_first_seq: int
    """First sequence number of the active segment (names its file)."""
    committed_seq: int
    committed_position: int
    """End of the last committed batch in the active segment."""
    durable_position: int
    """Position in the active segment known to be on disk."""
    segment_id: int


def _pack_slot(seed: int, counter: int, mark: Watermark) -> bytes:
    body = _SLOT.pack(counter, *mark)
    return body + _HASH.pack(xxhash.xxh3_64_intdigest(body, seed))


def _parse_slot(data: bytes, seed: int) -> tuple[int, Watermark] | None:
    if len(data) < SLOT_BYTES:
        return None
    body = data[: _SLOT.size]
    if _HASH.unpack_from(data, _SLOT.size)[0] != xxhash.xxh3_64_intdigest(body, seed):
        return None
    counter, *mark = _SLOT.unpack(body)
    return counter, Watermark(*mark)


class Watermarks:
    """The open file. `write` may be called from any thread, for one partition from one thread at a time."""

    def __init__(self, files: Files, path: Path, directory_id: int, *, read_only: bool = False) -> None:
        """Opens the file, and makes it when it is missing or of another directory (not `read_only`).

        Raises:
            OSError: as the system gave it; Corrupt: the header is damaged (`read_only`); UnsupportedFormat: newer.
        """
        self._files = files
        self._directory_id = directory_id
        self._counters: dict[int, int] = {}
        self.missing = False
        """The file was not there, or its header was not usable, and another was made."""
        self.dirty = False
        self._sync_lock = threading.Lock()
        self._failed_syncs = 0
        self._written_after: dict[int, int] = {}
        self._prepared_after: dict[int, int] = {}  # the same of a slot that is being written
        """Partition number -> how many syncs had failed when its slot was last written; 0 where there is none."""
        try:
            self.fd = files.open(path, write=not read_only)
        except FileNotFoundError:
            if read_only:
                raise
            self._create(path)
            return
        try:
            self._check_header(path)
        except (Corrupt, UnsupportedFormat, OSError) as problem:
            files.close(self.fd)
            if read_only or not isinstance(problem, Corrupt):
                raise
            aside = free_path(files, path.with_name(f"{FILE_NAME}.damaged"))
            files.rename(path, aside)
            self._create(path)
            self._take_slots(aside)

    def _create(self, path: Path) -> None:
        self.missing = True
        self.fd = self._files.create(path)
        body = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, self._directory_id)
        header = body + _HASH.pack(xxhash.xxh3_64_intdigest(body))
        self._files.write(self.fd, [header.ljust(PAIR_BYTES, b"\0")], 0)
        self._files.sync_data(self.fd)
        self._files.sync_dir(path.parent)

    def _take_slots(self, aside: Path) -> None:
        """Copies the slots of a file whose header is damaged: each slot proves by itself that it is ours."""
        fd = self._files.open(aside)
        try:
            for position in range(PAIR_BYTES, self._files.size(fd), SCAN_BYTES):
                self._files.write(self.fd, [self._files.read(fd, SCAN_BYTES, position)], position)
        finally:
            self._files.close(fd)
        self._files.sync_data(self.fd)

    def _check_header(self, path: Path) -> None:
        data = self._files.read(self.fd, _HEADER.size + _HASH.size, 0)
        if len(data) < _HEADER.size + _HASH.size or not data.startswith(_MAGIC):
            raise Corrupt(path, 0, "watermarks file has no valid header")
        magic_version_id = _HEADER.unpack_from(data)
        if _HASH.unpack_from(data, _HEADER.size)[0] != xxhash.xxh3_64_intdigest(data[: _HEADER.size]):
            raise Corrupt(path, 0, "watermarks header is damaged (checksum)")
        if magic_version_id[1] != FORMAT_VERSION:
            raise UnsupportedFormat(f"{path}: format {magic_version_id[1]}; this version reads {FORMAT_VERSION}")
        if magic_version_id[3] != self._directory_id:
            raise Corrupt(path, 0, "watermarks file belongs to another data directory")

    def read(self, owner: Owner) -> Watermark | None:
        """The newest valid slot of a partition, None when there is none. Raises OSError."""
        newest = self._newest(owner)
        return newest[1] if newest is not None else None

    def _newest(self, owner: Owner) -> tuple[int, Watermark] | None:
        seed = self._seed(owner)
        data = self._files.read(self.fd, PAIR_BYTES, owner.number * PAIR_BYTES)
        slots = [_parse_slot(data[start : start + SLOT_BYTES], seed) for start in (0, SLOT_BYTES)]
        return max((slot for slot in slots if slot is not None), key=lambda slot: slot[0], default=None)

    def _seed(self, owner: Owner) -> int:
        packed = _OWNER.pack(self._directory_id, owner.topic_id, owner.partition, owner.number)
        return int(xxhash.xxh3_64_intdigest(packed))

    def write(self, owner: Owner, mark: Watermark) -> None:
        """Replaces the older slot of a partition. Raises OSError."""
        slot, position = self.prepare(owner, mark)
        self._files.write(self.fd, [slot], position)
        self.written(owner)

    def prepare(self, owner: Owner, mark: Watermark) -> tuple[bytes, int]:
        """The slot to write, and where; `written` is called when that was done. Raises OSError."""
        counter = self._counters.get(owner.number)
        if counter is None:
            newest = self._newest(owner)
            counter = self._counters[owner.number] = newest[0] if newest is not None else 0
        counter += 1
        slot = _pack_slot(self._seed(owner), counter, mark)
        if self._failed_syncs:
            self._prepared_after[owner.number] = self._failed_syncs
        return slot, owner.number * PAIR_BYTES + (counter & 1) * SLOT_BYTES

    def written(self, owner: Owner) -> None:
        """What `prepare` gave last for this partition is in the file."""
        self._counters[owner.number] += 1
        after = self._prepared_after.pop(owner.number, 0)
        if after:
            self._written_after[owner.number] = after
        self.dirty = True

    def clear(self, number: int) -> None:
        """Empties both slots of a partition number that is free again. Raises OSError."""
        self._files.write(self.fd, [bytes(PAIR_BYTES)], number * PAIR_BYTES)
        self._counters.pop(number, None)
        self._written_after.pop(number, None)
        self.dirty = True

    def covers(self, number: int) -> bool:
        """Whether a sync that succeeds now, or did last, has made the last slot of this partition durable."""
        return self._written_after.get(number, 0) == self._failed_syncs

    def sync(self) -> None:
        """Makes all slots durable. Raises OSError."""
        with self._sync_lock:  # of two syncs at a time the kernel would tell only one that they failed
            self.dirty = False  # before the sync: what is written meanwhile asks for another one
            try:
                self._files.sync_data(self.fd)
            except OSError:
                self._failed_syncs += 1
                self.dirty = True
                raise

    def close(self) -> None:
        """Closes the file (without syncing it)."""
        self._files.close(self.fd)
