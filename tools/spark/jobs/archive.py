"""Copies records to Parquet files by topic and date, each record once, however often it runs or is killed.

A run takes what was committed since the run before. It is a stream that ends when it has caught up: Spark notes in
PLACE/_checkpoint which numbers belong to which batch before it reads them, and a batch writes directories of its own,
topic=T/date=D/batch=N, replacing what an attempt that was killed may have left there. So one run at a time; any reader
of Parquet sees each record once between runs. Dates are those of the records' timestamps in UTC.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from tools.logtool.lib.errors import DONE
from tools.spark.jobs.common import parser, require_log, run, session, write_report
from tools.spark.source.options import topic_pattern

BATCH_BYTES = 1 << 30
"""Bytes of segment files that become one batch of Parquet files."""


def write_batch(rows: DataFrame, number: int, out: str) -> int:
    """Writes a batch in place of itself; how many records it has."""
    counted = Observation()
    (
        rows.withColumn("batch", f.lit(number))
        .observe(counted, f.count("*").alias("records"))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("topic", "date", "batch")
        .parquet(out)
    )
    records: int = counted.get["records"]
    return records


def archive(spark: SparkSession, args: Namespace) -> dict[int, int]:
    """Archives all that is committed now and was not yet archived; batches and how many records each has."""
    written: dict[int, int] = {}

    def write(rows: DataFrame, number: int) -> None:
        written[number] = write_batch(rows, number, args.out)

    records = (
        spark.readStream.format("quintlog")
        .option("subscribePattern", topic_pattern(args.topic or ()))
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxBytesPerTrigger", args.batch_bytes)
        .load(args.data_dir)
    )
    query = (
        records.drop("timestampType")
        .withColumn("date", f.to_date("timestamp"))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{args.out}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = parser(__doc__, ranges=False)
    options.add_argument("--out", metavar="PLACE", required=True, help="directory or URI of the Parquet files")
    options.add_argument("--batch-bytes", metavar="N", type=int, default=BATCH_BYTES, help="bytes for a batch; 1 GiB")
    args = options.parse_args(arguments)
    require_log(args)
    written = archive(session("archive"), args)
    batches = [{"batch": number, "records": records} for number, records in sorted(written.items()) if records]
    write_report(args, "archive", out=args.out, records=sum(written.values()), batches=batches)
    return DONE


if __name__ == "__main__":
    run(main)
