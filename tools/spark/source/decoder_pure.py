"""The decoder where nothing is compiled: lists of slices, joined when the rows are taken (documented in decoder)."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TypeAlias

from engine.formats.batch_pure import RecordCursor
from tools.spark.limits import COLUMN_BYTES_MAX, TIMESTAMP_MS_MAX
from tools.spark.source.columns import Columns, ColumnsFull

Buffer: TypeAlias = bytes | bytearray | memoryview


class Decoder:
    def __init__(self, keys: bool, values: bool, numbers: bool, times: bool, headers: bool) -> None:
        self.keys = keys
        self.values = values
        self.numbers = numbers
        self.times = times
        self.headers = headers
        self.begin()

    def begin(self) -> None:
        self.rows = 0
        self.key_size = 0
        self.value_size = 0
        self._seqs = array("q")
        self._timestamps = array("q")
        self._keys: list[Buffer] = []
        self._values: list[Buffer] = []
        self._headers: list[tuple[bytes, ...]] = []

    def add(self, batches: Buffer, start: int, end: int, from_seq: int, end_seq: int) -> int:
        rows = []
        keys: list[Buffer] = []
        values: list[Buffer] = []
        headers = []
        cursor = RecordCursor(batches, start, end, from_seq)
        for row in cursor.rows:
            seq, timestamp, key_start, key_end, value_start, value_end = row
            if seq < from_seq:
                continue
            if seq >= end_seq:
                break
            rows.append((seq, min(timestamp, TIMESTAMP_MS_MAX) * 1000))
            if self.keys:
                keys.append(cursor.data[key_start:key_end])
            if self.values:
                values.append(cursor.data[value_start:value_end])
            if self.headers:
                headers.append(cursor.headers())
        key_size = self.key_size + sum(map(len, keys))
        value_size = self.value_size + sum(map(len, values))
        if max(key_size, value_size) > COLUMN_BYTES_MAX:
            raise ColumnsFull(f"more than {COLUMN_BYTES_MAX} bytes of one column in one record batch")
        self.rows += len(rows)
        self.key_size = key_size
        self.value_size = value_size
        if self.numbers:
            self._seqs.extend([seq for seq, _ in rows])
        if self.times:
            self._timestamps.extend([time_us for _, time_us in rows])
        self._keys += keys
        self._values += values
        self._headers += headers
        return len(rows)

    def take(self) -> Columns:
        columns = Columns(
            self.rows,
            self._seqs.tobytes(),
            self._timestamps.tobytes(),
            ends(self._keys) if self.keys else b"",
            b"".join(self._keys),
            ends(self._values) if self.values else b"",
            b"".join(self._values),
            self._headers,
        )
        self.begin()
        return columns


def ends(parts: list[Buffer]) -> bytes:
    return array("i", accumulate(map(len, parts), initial=0)).tobytes()
