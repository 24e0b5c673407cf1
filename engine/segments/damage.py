"""Walking the batches of a segment: verified reads, and the way past damage.

Both readers of a running server and the tools use this; `read` is whatever gives bytes of the file. A batch is only
ever taken when header and body verify (`engine.formats.batch.verify`); what lies between two good batches is damage,
and is named by the sequence numbers that it took.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from engine.files.system import Files
from engine.formats.batch import locate, verify
from engine.formats.batch_header import HEADER_BYTES, MAGIC_BYTES, BatchHeader, check_body, read_header
from engine.limits import BATCH_BYTES_MAX, SCAN_BYTES, UNREADABLE_BYTES

Read: TypeAlias = Callable[[int, int], "bytes | bytearray | None"]
"""(position, size in bytes) -> the bytes there, fewer only at the end of the file; None: not without waiting."""


@dataclass(frozen=True, slots=True)
class Found:
    """Verified batches: `data`[`start`:`end`] of the file's bytes from `position` on."""

    data: bytes | bytearray
    start: int
    end: int
    position: int
    """File position of data[0]."""
    first_seq: int
    last_seq: int

    @property
    def next_position(self) -> int:
        """File position after the last of the batches."""
        return self.position + self.end


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes from `position` to `end` that are no valid batch; they held numbers first_seq..last_seq, if any."""

    position: int
    end: int
    first_seq: int
    last_seq: int
    reason: str


def careful_read(
    files: Files, fd: int, note: Callable[[str], None] | None = None, path: Path | None = None
) -> Callable[[int, int], bytes]:
    """Reads of an open file in which sectors that the disk cannot read are zeros: so they are damage like any other.

    Args:
        note: told of the first such read.

    Raises (the function returned):
        OSError: for any other reason.
    """

    def read(position: int, size_bytes: int) -> bytes:
        nonlocal note
        try:
            return files.read(fd, size_bytes, position)
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
        if note is not None:
            note(f"{path}: the disk cannot read all of bytes {position} to {position + size_bytes}")
            note = None
        parts = []
        end = min(position + size_bytes, files.size(fd))
        while position < end:
            step = min(UNREADABLE_BYTES - position % UNREADABLE_BYTES, end - position)
            try:
                part = files.read(fd, step, position)
            except OSError as problem:
                if problem.errno != errno.EIO:
                    raise
                part = bytes(step)
            parts.append(part)
            position += step
        return b"".join(parts)

    return read


def walk(
    read: Read, position: int, limit: int, segment_id: int, expected_seq: int, block_bytes: int = SCAN_BYTES
) -> Iterator[Found | Damage | None]:
    """All batches from `position` (a batch's beginning) up to `limit`, and the damage between them, in file order.

    `expected_seq` is the lowest number that may come; damage is named from there. Damage that reaches `limit` has an
    unknown end of numbers: its last_seq is first_seq - 1. Yields None, and ends, when `read` gives None.
    """
    while position < limit:
        data = read(position, min(block_bytes, limit - position))
        if data is None:
            yield None
            return
        end, first_seq, last_seq = verify(data, 0, len(data), segment_id, position)
        if end:
            yield Found(data, 0, end, position, first_seq, last_seq)
            position += end
            expected_seq = last_seq + 1
            continue
        header = read_header(data, 0, segment_id, position) if len(data) >= HEADER_BYTES else None
        if header is not None and len(data) < header.size <= limit - position:
            block_bytes = max(block_bytes, header.size)  # a batch larger than the block: read it whole
            continue
        damage = _damage(read, position, limit, segment_id, expected_seq, header)
        if damage is None:
            yield None
            return
        yield damage
        position = damage.end
        expected_seq = max(expected_seq, damage.last_seq + 1)


def _damage(
    read: Read, position: int, limit: int, segment_id: int, expected_seq: int, header: BatchHeader | None
) -> Damage | None:
    """What is damaged at `position`, up to the next good batch (or `limit`); None when `read` will not wait."""
    if header is not None and header.size <= limit - position:
        return Damage(position, position + header.size, header.first_seq, header.last_seq, "batch body (checksum)")
    reason = "batch header" if header is None else "batch is cut short"
    start = position + 1
    while start < limit:
        data = read(start, min(SCAN_BYTES, limit - start))
        if data is None:
            return None
        offset = data.find(MAGIC_BYTES)
        while offset >= 0:
            at = start + offset
            found = _header_at(read, at, limit, segment_id)
            if found is not None and found.first_seq >= expected_seq:
                return Damage(position, at, expected_seq, found.first_seq - 1, reason)
            offset = data.find(MAGIC_BYTES, offset + 1)
        if len(data) < len(MAGIC_BYTES):
            break
        start += len(data) - len(MAGIC_BYTES) + 1
    return Damage(position, limit, expected_seq, expected_seq - 1, reason)


def _header_at(read: Read, position: int, limit: int, segment_id: int) -> BatchHeader | None:
    data = read(position, min(HEADER_BYTES, limit - position))
    if data is None or len(data) < HEADER_BYTES:
        return None
    header = read_header(data, 0, segment_id, position)
    if header is None or header.size > min(limit - position, BATCH_BYTES_MAX):
        return None
    body = read(position, header.size)
    return header if body is not None and check_body(body, 0, header, segment_id) else None


def highest_seq(read: Callable[[int, int], bytes], position: int, end: int, segment_id: int) -> int:
    """The highest number that a batch header between the two positions states, whole batch or not; 0 without one."""
    highest = 0
    while position < end:
        data = read(position, min(SCAN_BYTES, end - position))
        offset = data.find(MAGIC_BYTES)
        while offset >= 0:
            head = data[offset : offset + HEADER_BYTES]
            if len(head) < HEADER_BYTES:
                head = read(position + offset, HEADER_BYTES)
            header = read_header(head, 0, segment_id, position + offset)
            if header is not None:
                highest = max(highest, header.last_seq)
            offset = data.find(MAGIC_BYTES, offset + 1)
        if len(data) < len(MAGIC_BYTES):
            break
        position += len(data) - len(MAGIC_BYTES) + 1
    return highest


def find(
    read: Read, position: int, limit: int, segment_id: int, expected_seq: int, seq: int, block_bytes: int
) -> tuple[Found | None, list[Damage]] | None:
    """The batches from the one that holds `seq` (or the next one after it) on, about `block_bytes` of them.

    Args:
        position: beginning of a batch at or before the one that is looked for.
        expected_seq: a number not above the first one of that batch.

    Returns:
        Batches (None when `limit` was reached first) and the damage met from `seq` on; None when `read` gave None.
    """
    damages: list[Damage] = []
    for item in walk(read, position, limit, segment_id, expected_seq, block_bytes):
        if item is None:
            return None
        if isinstance(item, Damage):
            damages.append(item)
        elif item.last_seq >= seq:
            return _from_batch_with(item, seq, segment_id), _from(damages, seq)
    return None, _from(damages, seq)


def _from(damages: list[Damage], seq: int) -> list[Damage]:
    """Damage that took numbers from `seq` on, or none that is known."""
    return [damage for damage in damages if damage.last_seq >= seq or damage.last_seq < damage.first_seq]


def _from_batch_with(found: Found, seq: int, segment_id: int) -> Found:
    """`found` without the batches that end before `seq`."""
    start = locate(found.data, found.start, found.end, seq)
    header = read_header(found.data, start, segment_id, found.position + start)
    first_seq = found.first_seq if header is None else header.first_seq
    return Found(found.data, start, found.end, found.position, first_seq, found.last_seq)
