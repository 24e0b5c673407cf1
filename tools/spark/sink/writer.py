"""The sink: ``df.write.format("quintlog").mode("append")`` and ``df.writeStream.format("quintlog")``, exactly once.

Tasks stage their rows in files that the server keeps; the driver, which knows the task attempts that count, has all of
them appended with one commit. The commit bears the query's id and the batch's number, and the server appends each batch
once, however often it is repeated: after a failure Spark runs the same batch again, and where the commit had
succeeded its repetition changes nothing. What failed tasks and attempts that lost a race have staged is dropped, or
goes with the commit of their batch or a later one, or after a day.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tools.spark.sink.client import Client, SinkError
from tools.spark.sink.options import SinkOptions, parse_sink
from tools.spark.sink.rows import check_columns, files_of
from tools.spark.source.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "SinkError", "StreamWriter", "parse_sink"]

QUERY_ID = "sql.streaming.queryId"
"""Property of a streaming query's tasks; the same over restarts from one checkpoint."""
BATCH_ID = "streaming.sql.batchId"
"""Property of a streaming query's tasks: the number that its commit will have."""


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    writer: str
    names: list[str]
    rows: int


def check_schema(schema: StructType, options: SinkOptions, overwrite: bool) -> None:
    """Whether rows of this schema can be written. Raises OptionError."""
    if overwrite:
        raise OptionError('a log is only appended to: .mode("append"), in streams .outputMode("append")')
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options.topic)


def stage(batches: Iterator[pa.RecordBatch], options: SinkOptions, writer: str, batch: int | None) -> Staged:
    """A task's work: stages its rows. What it has staged is dropped if it fails. Raises SinkError."""
    client = Client(options.place)
    staged = Staged(writer, [], 0)
    try:
        for content, rows in files_of(batches, options.topic, options.stage_bytes):
            staged.names.append(client.stage(content, writer, batch))
            staged.rows += rows
    except BaseException:
        client.close()
        if staged.names:
            client.drop(staged.names)
        raise
    client.close()
    return staged


def commit(messages: Sequence[WriterCommitMessage | None], options: SinkOptions, batch: int) -> None:
    """The driver's work: has everything appended that the tasks have staged. Raises SinkError."""
    found = _staged(messages)
    writers = {message.writer for message in found}
    names = [name for message in found for name in message.names]
    if not names:
        return
    if len(writers) != 1:
        raise SinkError(f"tasks of different queries in one batch: {', '.join(sorted(writers))}")
    client = Client(options.place)
    try:
        client.commit(writers.pop(), batch, names)
    finally:
        client.close()


def abort(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Drops what was staged. A batch that is in the log, wholly or in part, stays, and so does what it still needs."""
    names = [name for message in _staged(messages) for name in message.names]
    if names:
        Client(options.place).drop(names)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, schema: StructType, options: SinkOptions, overwrite: bool) -> None:
        check_schema(schema, options, overwrite)
        self.options = options
        self.writer = options.query_id or f"spark-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """On an executor."""
        return stage(iterator, self.options, self.writer, self.options.batch_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, once all tasks have written."""
        commit(messages, self.options, self.options.batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit has failed for good."""
        abort(messages, self.options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, schema: StructType, options: SinkOptions, overwrite: bool) -> None:
        check_schema(schema, options, overwrite)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """On an executor. The query's id is in the task's properties; the driver knows it only from here."""
        context = TaskContext.get()
        writer = context.getLocalProperty(QUERY_ID) if context is not None else None
        if not writer:
            raise SinkError(f"Spark does not say which query the task belongs to ({QUERY_ID})")
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        return stage(iterator, self.options, writer, int(batch) if batch and batch.isdigit() else None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, once all tasks of the batch have written."""
        commit(messages, self.options, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when the batch has failed."""
        abort(messages, self.options)
