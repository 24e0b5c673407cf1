"""Rows of Arrow record batches as they are staged (`netserver.admin.staged_commits`): msgpack, an array a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from tools.spark.limits import SINK_ROW_BYTES_MAX
from tools.spark.sink.client import SinkError
from tools.spark.source.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "offset": ("bigint",),
    "timestampType": ("int",),
}
"""Names and types of what is taken. The last two are not written: records get numbers of their own."""
ROW_OVERHEAD_BYTES = 32


def check_columns(columns: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Whether rows of these columns (name, Spark's type) can be written. Raises OptionError."""
    for name, kind in columns:
        if kind not in COLUMNS.get(name, ()):
            wanted = ", ".join(f"{known} {' or '.join(kinds)}" for known, kinds in COLUMNS.items())
            raise OptionError(f"cannot write a column {name} {kind}; known columns: {wanted}")
    names = [name for name, _ in columns]
    if "value" not in names:
        raise OptionError("the column value is missing")
    if topic is None and "topic" not in names:
        raise OptionError("no topic: name one for all rows with the option topic, or add a column topic")


def files_of(batches: Iterator[pa.RecordBatch], topic: str | None, stage_bytes: int) -> Iterator[tuple[bytearray, int]]:
    """Staged files of about `stage_bytes`, and how many rows each holds.

    Raises:
        SinkError: a row cannot be written.
    """
    packer = msgpack.Packer()
    content, rows, seen = bytearray(), 0, 0
    for batch in batches:
        for row in _rows(batch, topic, seen):
            content += packer.pack(row)
            rows += 1
            if len(content) >= stage_bytes:
                yield content, rows
                content, rows = bytearray(), 0
        seen += batch.num_rows
    if rows:
        yield content, rows


def _rows(batch: pa.RecordBatch, topic: str | None, before: int) -> Iterator[list[Any]]:
    names = batch.schema.names
    count = batch.num_rows

    def column(name: str, convert: Callable[[pa.Array], list[Any]]) -> list[Any]:
        return convert(batch.column(names.index(name))) if name in names else [None] * count

    values, keys = column("value", _bytes), column("key", _bytes)
    topics = [topic.encode()] * count if topic is not None else column("topic", _bytes)
    partitions = column("partition", lambda array: list(array.to_pylist()))
    headers, times = column("headers", _headers), column("timestamp", _milliseconds)
    for index in range(count):
        key, value, name = keys[index], values[index], topics[index]
        if value is None or name is None:
            missing = "value" if value is None else "topic"
            raise SinkError(f"row {before + index} of this task has no {missing} (null)")
        size = len(value) + len(key or b"") + sum(map(len, headers[index] or ())) + ROW_OVERHEAD_BYTES
        if size > SINK_ROW_BYTES_MAX:
            raise SinkError(f"row {before + index} of this task has {size} bytes; up to {SINK_ROW_BYTES_MAX} fit")
        yield [name, partitions[index], key, value, headers[index], times[index]]


def _bytes(array: pa.Array) -> list[bytes | None]:
    import pyarrow as pa

    return list(array.cast(pa.binary()).to_pylist())


def _headers(array: pa.Array) -> list[list[bytes] | None]:
    """Name and value in turn; a null value is an empty one."""
    found: list[list[bytes] | None] = []
    for row in array.to_pylist():
        flat: list[bytes] = []
        for header in row or ():
            if header is None or header["key"] is None:
                raise SinkError("a header has no name (null)")
            flat += (header["key"].encode(), header["value"] or b"")
        found.append(flat or None)
    return found


def _milliseconds(array: pa.Array) -> list[int | None]:
    import pyarrow as pa

    microseconds = array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64()).to_pylist()
    return [None if value is None else value // 1000 for value in microseconds]
