"""Twin of ``frames.py`` for where nothing is compiled: the same names and results by ``struct`` and slices."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from engine.formats.batch import BatchWriter
from engine.formats.bundle import BundleInfo, check_bundle, decode_bundle
from engine.formats.record import BatchError, BundleError, Record

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = False

_CHECK_HEAD = 26
_ANSWER = struct.Struct("<BII")
_RUN_BYTES = 2 << 20  # what is larger is checked on a thread
_RUN_RECORDS = 1 << 17  # of a bundle, of those of a frame, and in one call
_PARTS_BYTES_MAX = 1 << 20
_PART_ROOM = 92
_FRAME = struct.Struct("<BIHIB")  # message id, size, client version, request id, length of the client id
_BATCH = struct.Struct("<6xBxIIQQI52x")  # padding, bundles, extension, first and last number, count
_BATCH_HEADER = 88
_U16 = struct.Struct("<H")
_U64 = struct.Struct("<Q")


def _varint(src: Buffer, position: int, end: int) -> tuple[int, int] | None:
    value = 0
    for shift in range(0, 35, 7):
        if position >= end:
            return None
        byte = src[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return None


class ProduceCursor:
    def __init__(self) -> None:
        self.name_start = 0
        self.name_end = 0
        self.parts = 0
        self.partition_id = 0
        self.request_id = 0
        self.bundle_start = 0
        self.bundle_end = 0
        self.frame_end = 0

    def open(self, src: Buffer, position: int, end: int) -> bool:
        if position < 0 or end > len(src) or end - position < _CHECK_HEAD or src[position] != 1:
            return False
        _, size, _, self.request_id, client_id_bytes = _FRAME.unpack_from(src, position)
        stop = self.frame_end = position + 5 + size
        at = position + 12 + client_id_bytes
        if stop > end or stop - at < 7 or src[at + 5] != 1:
            return False
        self.name_start = at + 7
        at = self.name_end = at + 7 + src[at + 6]
        if at >= stop or not src[at]:
            return False
        self.parts = src[at]
        self.bundle_end = at + 1
        return self.advance(src)

    def advance(self, src: Buffer) -> bool:
        stop = self.frame_end
        at = self.bundle_end
        if stop > len(src) or stop - at < 3:
            return False
        self.partition_id = _U16.unpack_from(src, at)[0]
        length = _varint(src, at + 2, stop)
        if length is None or sum(length) > stop:
            return False
        self.bundle_start = length[1]
        self.bundle_end = sum(length)
        return True


def produce_run(
    src: Buffer, position: int, end: int, name: bytes, partition_id: int, writer: BatchWriter
) -> tuple[int, bool, int, int, int, bytearray]:
    cursor = ProduceCursor()
    answers = bytearray()
    bundles = records = size_bytes = 0
    full = False
    while records < _RUN_RECORDS and cursor.open(src, position, end):
        if cursor.partition_id != partition_id or src[cursor.name_start : cursor.name_end] != name:
            break
        found = _check_parts(src, cursor)
        if found is None:
            break
        if len(found) > 1 and writer.size - writer.position < parts_room(cursor):
            full = True
            break
        for start, stop, info in found:
            first_seq = writer.next_seq
            last_seq = first_seq + info.count - 1
            if not writer.put_bundle(src, start, stop, info.count, first_seq, last_seq, info.max_timestamp_ms, False):
                full = True
                break
            records += info.count
            size_bytes += stop - start
        if full:
            break
        answers += _ANSWER.pack(1, 4 + len(found), cursor.request_id) + bytes(len(found))
        bundles += len(found)
        position = cursor.frame_end
    return position, full, bundles, records, size_bytes, answers


def _check_parts(src: Buffer, cursor: ProduceCursor) -> list[tuple[int, int, BundleInfo]] | None:
    partition_id = cursor.partition_id
    if cursor.parts > 1 and cursor.frame_end - cursor.bundle_start > _PARTS_BYTES_MAX:
        return None
    found = []
    left = _RUN_RECORDS
    while True:
        start, stop = cursor.bundle_start, cursor.bundle_end
        if start == stop or stop - start > _RUN_BYTES or src[start] & 0x40 or cursor.partition_id != partition_id:
            return None
        try:
            info = check_bundle(src, start, stop, _RUN_BYTES, left)
        except BundleError:
            return None
        left -= info.count
        found.append((start, stop, info))
        if len(found) == cursor.parts:
            return found
        if not cursor.advance(src):
            return None


def parts_room(cursor: ProduceCursor) -> int:
    return cursor.frame_end - cursor.name_end + _PART_ROOM * cursor.parts


class _Head(NamedTuple):
    first_seq: int
    last_seq: int
    records: int
    sparse: bool


def _number(src: Buffer, position: int, end: int) -> tuple[int, int]:
    found = _varint(src, position, end)
    if found is None:
        raise BatchError("cut in a number")
    return found


def _bundle(src: Buffer, start: int, end: int, next_seq: int) -> tuple[_Head, int]:
    """Head of the bundle whose length varint is at ``start``, and the position after the bundle."""
    size, start = _number(src, start, end)
    if size > end - start or not size:
        raise BatchError("cut in a bundle")
    end = start + size
    flags = src[start]
    start += 1
    count = flags >> 2 & 15
    if not count:
        count, start = _number(src, start, end)
    if not flags & 0x40:
        return _Head(next_seq, next_seq + count - 1, count, False), end
    if end - start < 8:
        raise BatchError("cut in the head of a bundle")
    first_seq = last_seq = _U64.unpack_from(src, start)[0]
    if count > 1:
        last_seq += _number(src, start + 8, end)[0] + 1
    return _Head(first_seq, last_seq, count, True), end


def _bundles(src: Buffer, start: int, end: int, next_seq: int, from_seq: int) -> Iterator[tuple[int, int, _Head]]:
    """(start, end, head) of the bundles of one batch from the one that holds ``from_seq`` on."""
    while start < end:
        head, behind = _bundle(src, start, end, next_seq)
        if head.last_seq >= from_seq:
            yield start, behind, head
            from_seq = 0
        next_seq = head.last_seq + 1
        start = behind


class ChunkCut:
    def __init__(self) -> None:
        self.size_bytes = 0
        self.records = 0
        self.batches = 0
        self.first_seq = 0
        self.last_seq = 0
        self.sparse = False
        self.start = 0
        self.end = 0
        self.stopped = False
        self._ranges: list[tuple[int, int]] = []

    def cut(self, src: Buffer, from_seq: int, expected_seq: int, size_bytes_max: int) -> bool:
        self.size_bytes = self.records = self.batches = 0
        self.stopped = False
        self._ranges = []
        position = 0
        while position < len(src) and not self.stopped:
            if len(src) - position < _BATCH_HEADER:
                raise BatchError("cut in a batch header")
            padding, bundles_bytes, extension_bytes, first_seq, last_seq, count = _BATCH.unpack_from(src, position)
            start = position + _BATCH_HEADER + padding
            end = start + bundles_bytes
            position = end + extension_bytes
            if position > len(src) or not bundles_bytes:
                raise BatchError("cut in a batch")
            if last_seq < from_seq:
                continue
            first = _bundle(src, start, end, first_seq)[0]
            bundles: Iterable[tuple[int, int, _Head]] = (
                (start, end, first._replace(last_seq=last_seq, records=count)),
            )
            if first_seq < from_seq or self.size_bytes + bundles_bytes > size_bytes_max:
                bundles = _bundles(src, start, end, first_seq, from_seq)
            expected_seq = self._take(bundles, expected_seq, size_bytes_max)
            from_seq = 0 if self.size_bytes else from_seq
        return self.size_bytes > 0

    def _take(self, bundles: Iterable[tuple[int, int, _Head]], expected_seq: int, size_bytes_max: int) -> int:
        """Take bundles of one batch; the number that must follow."""
        first_byte = -1
        for start, end, head in bundles:
            if expected_seq and not head.sparse and head.first_seq != expected_seq:
                self.stopped = True
                break
            if not self.size_bytes:
                self.first_seq, self.sparse, self.start = head.first_seq, head.sparse, start
            if first_byte < 0:
                first_byte = start
                self.batches += 1
            self.size_bytes += end - start
            self.records += head.records
            self.last_seq = head.last_seq
            self.end = end
            expected_seq = head.last_seq + 1
            if self.size_bytes >= size_bytes_max:
                self.stopped = True
                break
        if first_byte >= 0:
            self._ranges.append((first_byte, self.end))
        return expected_seq

    def copy_to(self, src: Buffer, out: bytearray, position: int) -> int:
        if position < 0 or len(out) - position < self.size_bytes:
            raise ValueError("no room for the run")
        for start, end in self._ranges:
            out[position : position + end - start] = memoryview(src)[start:end]
            position += end - start
        return position

    def ranges(self, src: Buffer) -> list[tuple[int, int]]:
        return list(self._ranges)


def unpack_chunk(
    chunk: bytes, next_seq: int, from_seq: int
) -> tuple[list[bytes], list[bytes], list[int], list[int], int, int]:
    records: list[Record] = []
    position = 0
    while position < len(chunk):
        found = _varint(chunk, position, len(chunk))
        if found is None:
            if len(chunk) - position > 4:
                raise BundleError("overlong length of a bundle")
            break
        size, start = found
        if size > len(chunk) - start:
            break
        records += decode_bundle(chunk, start, start + size, next_seq)
        next_seq = records[-1].seq + 1
        position = start + size
    wanted = [record for record in records if record.seq >= from_seq]
    return (
        [record.value for record in wanted],
        [record.key for record in wanted],
        [record.timestamp_ms for record in wanted],
        [record.seq for record in wanted],
        next_seq,
        position,
    )
