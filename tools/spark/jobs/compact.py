"""Writes the last record of each key of a topic into a new topic: what a reader needs who only wants the latest state.

Keys are compared within a partition, as their order is only known there, and stay in their partition, in the order of
their last records. An empty value deletes its key: such records are left out, unless --keep-deleted is given. Records
without a key are left out. A run that was killed is run again with the same --progress FILE.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tools.logtool.lib.errors import DONE, USAGE, Failure
from tools.spark.jobs.common import parser, run, session, write_report
from tools.spark.jobs.sending import Progress, Server, add_options, send


def last_of_keys(records: DataFrame, *, keep_deleted: bool) -> DataFrame:
    """The record with the highest number of each key, in the order of these numbers."""
    last = (
        records.where("key is not null")
        .groupBy("topic", "partition", "key")
        .agg(f.max_by(f.struct("offset", "value", "headers", "timestamp"), "offset").alias("last"))
        .select("topic", "partition", "key", "last.*")
    )
    if not keep_deleted:
        last = last.where("octet_length(value) > 0")
    return last.orderBy("partition", "offset")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = parser(__doc__)
    add_options(options)
    options.add_argument("--into", metavar="TOPIC", required=True, help="the new topic")
    options.add_argument("--keep-deleted", action="store_true", help="keep records with an empty value")
    args = options.parse_args(arguments)
    progress, server = Progress.of(args, "compact", "topic", "into", "keep_deleted"), Server.of(args)
    topics = {topic for topic, _ in progress.extent.spans}
    if len(topics) > 1 or args.into in topics:
        raise Failure(USAGE, "usage", f"--topic has to name one topic, and not the new one; found {sorted(topics)}")
    server.need_topic(args.into, len(progress.extent.spans))
    sent = 0
    if server.done(progress.writer) < 0:
        records = progress.extent.frame(session("compact"), includeHeaders="true")
        last = last_of_keys(records, keep_deleted=args.keep_deleted)
        sent = send(last.withColumn("topic", f.lit(args.into)), server, progress.writer, 0)
    write_report(args, "compact", writer=progress.writer, records=sent)
    return DONE


if __name__ == "__main__":
    run(main)
