# cython: annotation_typing=False
"""Many batches at once into column buffers (twin: decoder_pure).

One `Decoder` takes batches in many calls and hands out all their rows at once, so that small batches make large
record batches. It reads what `engine.formats.batch.RecordCursor` reads: dense, SPARSE and snappy bundles. Hashes were
checked before.
"""

from __future__ import annotations

from typing import TypeAlias

from engine.formats.batch import RecordCursor
from engine.formats.record import BatchError, BundleError
from tools.spark.limits import COLUMN_BYTES_MAX, RECORD_BATCH_BYTES, TIMESTAMP_MS_MAX
from tools.spark.source import decoder_pure
from tools.spark.source.columns import Columns, ColumnsFull

__all__ = ["COMPILED", "Decoder"]

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")
FIRST_ROWS = 16 * 1024
FIRST_BYTES = 64 * 1024


class Decoder:
    """Collects the columns that were asked for; `rows`, `key_size` and `value_size` (bytes) tell how much it has."""

    def __init__(self, keys: bool, values: bool, numbers: bool, times: bool, headers: bool) -> None:
        self.keys = keys
        self.values = values
        self.numbers = numbers
        self.times = times
        self.headers = headers
        self.first_rows = FIRST_ROWS
        self.first_bytes = FIRST_BYTES
        self.begin()

    def begin(self) -> None:
        """Begins with empty buffers."""
        self.rows = 0
        self.key_size = 0
        self.value_size = 0
        self.rows_max = 0
        self.seqs = bytearray()
        self.timestamps = bytearray()
        self.key_ends = bytearray()
        self.value_ends = bytearray()
        self.key_bytes = bytearray()
        self.value_bytes = bytearray()
        self.key_view = self.key_bytes
        self.value_view = self.value_bytes
        self.header_rows: list[tuple[bytes, ...]] = []
        self.grow_rows()

    def add(self, batches: Buffer, start: int, end: int, from_seq: int, end_seq: int) -> int:
        """Adds the records from_seq..end_seq - 1 of the whole, verified batches ``batches[start:end]``; how many.

        After an error it holds what it held before.

        Raises:
            BatchError, BundleError: a batch does not hold what it says.
            ColumnsFull: more bytes than one record batch can hold: take what there is and add less at once.
        """
        rows = self.rows
        key_size = self.key_size
        value_size = self.value_size
        cursor = RecordCursor(batches, start, end, from_seq)
        try:
            while cursor.next():
                if cursor.seq >= end_seq:
                    break
                self.put(cursor)
                if self.headers:
                    self.header_rows.append(cursor.headers())
        except (BatchError, BundleError, ColumnsFull):
            self.rows = rows
            self.key_size = key_size
            self.value_size = value_size
            del self.header_rows[rows:]
            raise
        return self.rows - rows

    def put(self, cursor: RecordCursor) -> None:
        """Adds the cursor's record."""
        if self.rows == self.rows_max:
            self.grow_rows()
        if self.numbers:
            self.seqs_view[self.rows] = cursor.seq
        if self.times:
            self.timestamps_view[self.rows] = (
                cursor.timestamp if cursor.timestamp < TIMESTAMP_BOUND else TIMESTAMP_BOUND
            ) * 1000
        if self.keys:
            size = cursor.key_end - cursor.key_start
            if size:
                if len(self.key_view) - self.key_size < size:
                    self.grow_keys(size)
                copy(self.key_view, self.key_size, cursor.data, cursor.key_start, size)
                self.key_size += size
            self.key_ends_view[self.rows + 1] = self.key_size
        if self.values:
            size = cursor.value_end - cursor.value_start
            if len(self.value_view) - self.value_size < size:
                self.grow_values(size)
            copy(self.value_view, self.value_size, cursor.data, cursor.value_start, size)
            self.value_size += size
            self.value_ends_view[self.rows + 1] = self.value_size
        self.rows += 1

    def grow_rows(self) -> None:
        """Room for twice as many rows."""
        rows_max = max(2 * self.rows_max, self.first_rows)
        if self.numbers:
            self.seqs = grown(self.seqs, 8 * rows_max)
            self.seqs_view = memoryview(self.seqs).cast("q")
        if self.times:
            self.timestamps = grown(self.timestamps, 8 * rows_max)
            self.timestamps_view = memoryview(self.timestamps).cast("q")
        if self.keys:
            self.key_ends = grown(self.key_ends, 4 * rows_max + 4)
            self.key_ends_view = memoryview(self.key_ends).cast("i")
        if self.values:
            self.value_ends = grown(self.value_ends, 4 * rows_max + 4)
            self.value_ends_view = memoryview(self.value_ends).cast("i")
        self.rows_max = rows_max

    def grow_keys(self, size: int) -> None:
        """Room for at least so many bytes of keys more. Raises ColumnsFull."""
        self.key_bytes = grown(self.key_bytes, room(self.key_size, size, FIRST_BYTES))
        self.key_view = self.key_bytes

    def grow_values(self, size: int) -> None:
        """Room for at least so many bytes of values more. Raises ColumnsFull."""
        self.value_bytes = grown(self.value_bytes, room(self.value_size, size, self.first_bytes))
        self.value_view = self.value_bytes

    def take(self) -> Columns:
        """All rows that were added since the last time; the buffers are longer than the rows need.

        The next ones begin with as much room as these took, so that they are not copied while they grow.
        """
        columns = Columns(
            self.rows,
            self.seqs,
            self.timestamps,
            self.key_ends,
            self.key_bytes,
            self.value_ends,
            self.value_bytes,
            self.header_rows,
        )
        self.first_rows = max(FIRST_ROWS, self.rows)
        self.first_bytes = min(max(FIRST_BYTES, self.value_size + self.value_size // 8), RECORD_BATCH_BYTES)
        self.begin()
        return columns


TIMESTAMP_BOUND = TIMESTAMP_MS_MAX


def room(used_bytes: int, more_bytes: int, first_bytes: int) -> int:
    """The size of a buffer that holds so much and has room for more: twice as much if that is possible."""
    if used_bytes + more_bytes > COLUMN_BYTES_MAX:
        raise ColumnsFull(f"more than {COLUMN_BYTES_MAX} bytes of one column in one record batch")
    return min(max(2 * used_bytes, used_bytes + more_bytes, first_bytes), COLUMN_BYTES_MAX)


def grown(buffer: bytearray, size_bytes: int) -> bytearray:
    """A larger buffer with the same beginning."""
    larger = bytearray(size_bytes)
    larger[: len(buffer)] = buffer
    return larger


def copy(out: bytearray, position: int, src: Buffer, start: int, size: int) -> None:
    """Copies ``src[start : start + size]`` to ``out[position:]``; a loop that the C compiler makes a block copy of."""
    for index in range(size):
        out[position + index] = src[start + index]


if not COMPILED:
    globals().update({"Decoder": decoder_pure.Decoder})
