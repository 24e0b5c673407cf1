"""The source's columns in Arrow: types exactly as Spark wants them, arrays made from whole buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tools.spark.limits import RECORD_BATCH_ROWS

if TYPE_CHECKING:
    from tools.spark.source.columns import Columns
    from tools.spark.source.plan import Task

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def arrow_schema(fields: Iterable[tuple[str, bool]]) -> pa.Schema:
    """The schema of these columns: (name, whether null is allowed)."""
    return pa.schema([pa.field(name, TYPES[name], nullable) for name, nullable in fields])


def record_batches(columns: Columns, task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns as record batches of about as many rows, at most RECORD_BATCH_ROWS; none when there are no rows."""
    if not columns.rows:
        return
    batch = pa.RecordBatch.from_arrays([_array(columns, task, name) for name in schema.names], schema=schema)
    count = -(-columns.rows // RECORD_BATCH_ROWS)
    size = -(-columns.rows // count)
    for start in range(0, columns.rows, size):
        yield batch.slice(start, size)


def _array(columns: Columns, task: Task, name: str) -> pa.Array:
    rows = columns.rows
    if name == "offset":
        return pa.Array.from_buffers(TYPES[name], rows, [None, pa.py_buffer(columns.seqs)])
    if name == "timestamp":
        return pa.Array.from_buffers(TYPES[name], rows, [None, pa.py_buffer(columns.timestamps_us)])
    if name == "value":
        buffers = [None, pa.py_buffer(columns.value_ends), pa.py_buffer(columns.values)]
        return pa.Array.from_buffers(TYPES[name], rows, buffers)
    if name == "key":
        # A record has no key or one of at least a byte: an empty one is null.
        ends = np.frombuffer(columns.key_ends, np.int32, rows + 1)
        valid = np.packbits(ends[1:] > ends[:-1], bitorder="little").tobytes()
        buffers = [pa.py_buffer(valid), pa.py_buffer(columns.key_ends), pa.py_buffer(columns.keys)]
        return pa.Array.from_buffers(TYPES[name], rows, buffers)
    if name == "headers":
        return _headers(columns.headers)
    constant = {"topic": task.topic, "partition": task.partition, "timestampType": 0}[name]
    return pa.repeat(pa.scalar(constant, TYPES[name]), rows)


def _headers(rows: list[tuple[bytes, ...]]) -> pa.Array:
    listed = [
        [
            {"key": name.decode("utf-8", "replace"), "value": value}
            for name, value in zip(row[::2], row[1::2], strict=False)
        ]
        if row
        else None
        for row in rows
    ]
    return pa.array(listed, TYPES["headers"])
