"""Shows what is in dead-letter topics, by origin, subscription and time, and sends it back to where it came from.

A dead letter is a record that a subscription gave up (setting dead_letter_suffix); its first headers say of which
topic, number and subscription it was, and how often it was delivered. With --redrive the chosen ones are appended to
their topics again without these headers, each once: a run that was killed is run again with the same --progress FILE.
Times are those of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tools.logtool.lib.errors import DONE
from tools.spark.jobs.common import Extent, parser, run, session, write_report
from tools.spark.jobs.sending import BATCH_RECORDS, Progress, Server, add_options
from tools.spark.jobs.stats import moments
from tools.spark.source.options import topic_pattern

HEADERS = ("dead-letter-topic", "dead-letter-seq", "dead-letter-subscription", "dead-letter-deliveries")
SAMPLES = 3
"""Values that are shown of each group."""


def header(at: int) -> Column:
    """The text of one of the headers that a dead letter begins with."""
    return f.col("headers")[at]["value"].cast("string")


def dead_letters(records: DataFrame, origins: Sequence[str] | None, subscription: int | None) -> DataFrame:
    """The dead letters among the records, with what their headers say as columns."""
    found = records.where(f.col("headers")[0]["key"] == HEADERS[0]).select(
        "*",
        header(0).alias("origin"),
        header(1).cast("bigint").alias("seq"),
        header(2).cast("bigint").alias("subscription"),
        header(3).cast("int").alias("deliveries"),
    )
    if origins:
        found = found.where(f.col("origin").rlike(f"^(?:{topic_pattern(origins)})"))
    return found if subscription is None else found.where(f.col("subscription") == subscription)


def groups(letters: DataFrame) -> list[dict[str, Any]]:
    """How many there are of each kind, since when, and some of their values."""
    found = letters.groupBy("topic", "origin", "subscription", "deliveries").agg(
        f.count("*").alias("records"),
        f.min("timestamp").alias("first"),
        f.max("timestamp").alias("last"),
        f.slice(f.sort_array(f.collect_list(f.struct("offset", "value"))), 1, SAMPLES).alias("samples"),
    )
    return [
        moments(row)
        | {"samples": [[sample.offset, bytes(sample.value).decode("utf-8", "replace")] for sample in row.samples]}
        for row in found.orderBy("topic", "origin", "subscription", "deliveries").collect()
    ]


def hours(letters: DataFrame) -> list[dict[str, Any]]:
    """How many there are of each hour and origin."""
    found = letters.groupBy("origin", f.date_trunc("hour", "timestamp").alias("hour")).agg(
        f.count("*").alias("records")
    )
    return [moments(row) for row in found.orderBy("origin", "hour").collect()]


def as_before(letters: DataFrame) -> DataFrame:
    """The records as they were, on their way to partition 0 of their topics: the one that subscriptions read."""
    own = f.slice("headers", len(HEADERS) + 1, f.greatest(f.size("headers") - len(HEADERS), f.lit(0)))
    return letters.withColumn("headers", own).withColumn("topic", f.col("origin")).withColumn("partition", f.lit(0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = parser(__doc__)
    add_options(options)
    options.add_argument("--origin", metavar="GLOB", action="append", help="only of these topics; may be repeated")
    options.add_argument("--subscription", metavar="ID", type=int, help="only of this subscription")
    options.add_argument("--redrive", action="store_true", help="append them to their topics again")
    options.add_argument("--batch-records", metavar="N", type=int, default=BATCH_RECORDS, help="records for a batch")
    args = options.parse_args(arguments)
    if args.redrive:
        progress = Progress.of(args, "dlq", "topic", "origin", "subscription", "server", "batch_records")
        server = Server.of(args)
        sent = progress.send_steps(
            session("dlq"),
            server,
            args.batch_records,
            lambda rows: as_before(dead_letters(rows, args.origin, args.subscription)),
        )
        write_report(args, "dlq", writer=progress.writer, records=sent)
        return DONE
    extent = Extent.of(args)
    records = extent.frame(session("dlq"), includeHeaders="true")
    letters = dead_letters(records, args.origin, args.subscription)
    write_report(args, "dlq", groups=groups(letters), hours=hours(letters))
    return DONE


if __name__ == "__main__":
    run(main)
