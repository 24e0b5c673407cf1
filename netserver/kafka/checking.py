"""Records of a Produce request, as they are on the wire, checked whole before anything is stored.

A batch, big-endian; the checksum is of everything behind it::

     0  base offset i64 (0)          8  bytes behind this i32        12  leader epoch i32       16  magic i8 (2)
    17  CRC32C u32                  21  attributes i16: bits 0-2 codec, 3 append time, 4 transactional, 5 control
    23  last offset delta i32       27  base timestamp i64           35  highest timestamp i64
    43  producer id i64 (-1)        51  its epoch i16                53  its sequence i32       57  count i32
    61  records (``records``), compressed as a whole
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeAlias

from .compression import NONE, unpacked
from .limits import CHECKED_RECORDS, RECORDS_MAX, UNPACKED_BYTES_MAX
from .record_errors import CORRUPT, INVALID_RECORD, TOO_LARGE, RecordsError
from .records import RecordWalk, check_walk, crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
_SIZE_BYTES: Final = 12  # base offset and size: what the size does not count
_MAGIC_END: Final = 17
_CHECKED_FROM: Final = 21
_CODEC: Final = 7
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5


class Records:
    """The records of one batch, all of which are valid.

    Attributes:
        count: at least 1.
        size_bytes: of the records, unpacked.
        objects: of records that have headers, or that messages have no place for.
        work_us: about the time that appending them takes.
        producer_id, producer_epoch, first_sequence: -1: the producer does not number its records.
    """

    __slots__ = (
        "_base_timestamp_ms",
        "_data",
        "_start",
        "count",
        "first_sequence",
        "is_transactional",
        "objects",
        "producer_epoch",
        "producer_id",
        "size_bytes",
        "work_us",
    )

    def __init__(self, data: Buffer, start: int, base_timestamp_ms: int, count: int) -> None:
        self._data = data
        self._start = start
        self._base_timestamp_ms = base_timestamp_ms
        self.count = count
        self.size_bytes = len(data) - start
        self.objects = self.work_us = 0
        self.producer_id = self.producer_epoch = self.first_sequence = -1
        self.is_transactional = False

    def keep(self) -> None:
        """Has bytes of its own, for longer than the request is there."""
        if isinstance(self._data, memoryview):
            self._data, self._start = bytes(self._data[self._start :]), 0

    def walk(self) -> RecordWalk:
        """Walks them from the first one on."""
        return RecordWalk(self._data, self._start, len(self._data), self.count, self._base_timestamp_ms)


def is_packed(records: Buffer) -> bool:
    """Whether a batch says that it is compressed."""
    return len(records) >= HEADER_BYTES and bool(records[_CHECKED_FROM + 1] & _CODEC)


def check_records(records: Buffer, record_bytes_max: int, unpacked_bytes_max: int = UNPACKED_BYTES_MAX) -> Records:
    """Checks the ``records`` of one partition in a Produce request: exactly one batch.

    An uncompressed one is not copied: its bytes are not to change before they are appended.

    Raises:
        RecordsError: CORRUPT (checksum, magic), TOO_LARGE, UNKNOWN_CODEC, or INVALID_RECORD.
    """
    _check_frame(records)
    offset, _, _, _, crc, attributes, last_delta, base_ms, _, producer_id, epoch, sequence, count = _HEADER.unpack_from(
        records
    )
    if crc32c(records, _CHECKED_FROM, len(records)) != crc:
        raise RecordsError(CORRUPT, "wrong checksum")
    if offset:
        raise RecordsError(INVALID_RECORD, f"base offset {offset}, not 0")
    if attributes & _CONTROL:
        raise RecordsError(INVALID_RECORD, "a control batch")
    if count > RECORDS_MAX:
        raise RecordsError(TOO_LARGE, f"{count} records in one batch, more than {RECORDS_MAX}")
    if count < 1 or last_delta != count - 1:
        raise RecordsError(INVALID_RECORD, f"{count} records, and the last offset delta is {last_delta}")
    if producer_id >= 0 and sequence < 0:
        raise RecordsError(INVALID_RECORD, f"sequence {sequence} of producer {producer_id}")
    codec = attributes & _CODEC
    data, start = records, HEADER_BYTES
    if codec != NONE:
        data, start = unpacked(codec, memoryview(records)[HEADER_BYTES:], unpacked_bytes_max), 0
    found = Records(data, start, base_ms, count)
    if producer_id >= 0:
        found.producer_id, found.producer_epoch, found.first_sequence = producer_id, epoch, sequence
    found.is_transactional = bool(attributes & _TRANSACTIONAL)
    walk = found.walk()
    while check_walk(walk, record_bytes_max, CHECKED_RECORDS):
        pass
    found.objects = walk.objects
    found.work_us = 2 * walk.objects + (count >> 3) + (found.size_bytes >> 10)
    return found


def _check_frame(records: Buffer) -> None:
    """Raises RecordsError unless it is one whole batch of the only version that is taken."""
    if len(records) < _MAGIC_END:
        raise RecordsError(INVALID_RECORD, "no batch of records")
    magic = records[_MAGIC_END - 1]
    if magic != 2:
        code = INVALID_RECORD if magic < 2 else CORRUPT
        raise RecordsError(code, f"records of format {magic}; only format 2 is taken")
    if len(records) < HEADER_BYTES or int.from_bytes(records[8:12], "big") != len(records) - _SIZE_BYTES:
        raise RecordsError(INVALID_RECORD, "not one whole batch of records")
