"""How much is in a log: records, bytes and sizes by partition, rates over time, the most frequent keys, and lag.

Times are the records' timestamps. Lag is what subscriptions of BlipMQ and Fujin have not acknowledged, as the server's
state says; it is left out where there is no state beside the segment files. With --plots DIR the same as PNG files.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession, Window
from pyspark.sql import functions as f

from engine.errors import EngineError
from tools.logtool.cli import Settings
from tools.logtool.lib.errors import DONE
from tools.logtool.lib.output import bytes_fields
from tools.spark.jobs.common import Extent, parser, run, session, wanted, write_report

TOP_KEYS = 10
QUANTILES = tuple(step / 20 for step in range(1, 21))
"""Of the sizes; the last one is the largest."""
STEPS_S = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
RATES_PER_TOPIC = 200
"""At most so many points of time, unless --every asks for more."""


def partitions(spark: SparkSession, extent: Extent) -> list[dict[str, Any]]:
    """Of each partition what it holds, and how large its values are."""
    records = extent.frame(spark, "topic string, partition int, timestamp timestamp, value binary")
    size = f.octet_length("value")
    found = records.groupBy("topic", "partition").agg(
        f.count("*").alias("records"),
        f.sum(size).alias("bytes"),
        f.min("timestamp").alias("first"),
        f.max("timestamp").alias("last"),
        f.percentile_approx(size, QUANTILES).alias("sizes"),
    )
    return [moments(row) for row in found.orderBy("topic", "partition").collect()]


def rates(spark: SparkSession, extent: Extent, every_s: int) -> list[dict[str, Any]]:
    """Records and bytes of each topic in each span of time."""
    records = extent.frame(spark, "topic string, timestamp timestamp, value binary")
    found = (
        records.groupBy("topic", f.window("timestamp", f"{every_s} seconds").alias("time"))
        .agg(f.count("*").alias("records"), f.sum(f.octet_length("value")).alias("bytes"))
        .select("topic", f.col("time.start").alias("start"), "records", "bytes")
        .orderBy("topic", "start")
    )
    return [moments(row) for row in found.toLocalIterator()]


def top_keys(spark: SparkSession, extent: Extent, count: int) -> list[dict[str, Any]]:
    """The keys of each topic that most records have."""
    records = extent.frame(spark, "topic string, key binary, value binary")
    rank = f.row_number().over(Window.partitionBy("topic").orderBy(f.desc("records"), "key"))
    found = (
        records.where("key is not null")
        .groupBy("topic", "key")
        .agg(f.count("*").alias("records"), f.sum(f.octet_length("value")).alias("bytes"))
        .withColumn("rank", rank)
        .where(f.col("rank") <= count)
        .orderBy("topic", "rank")
    )
    return [
        {"topic": row.topic, **bytes_fields("key", bytes(row.key)), "records": row.records, "bytes": row.bytes}
        for row in found.collect()
    ]


def lag(args: Namespace) -> list[dict[str, Any]] | None:
    """What subscriptions have not acknowledged, those furthest behind first; None: there is no state to ask."""
    from tools.logtool.lib.stored_subscriptions import StoredSubscriptions

    try:
        stored = StoredSubscriptions(Settings(data_dir=Path(args.data_dir)))
    except EngineError:
        return None
    items = [stored.item(entry) for entry in stored.entries]
    found = [item for item in items if item.get("topic") is not None and wanted(item["topic"], args.topic)]
    return sorted(found, key=lambda item: (-(item["lag"] or 0), item["id"]))


def moments(row: Row) -> dict[str, Any]:
    """A row with its times as text in UTC."""
    return {
        name: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
        for name, value in row.asDict().items()
    }


def step_s(lines: Sequence[dict[str, Any]]) -> int:
    """The span of time for `rates` that gives at most RATES_PER_TOPIC points."""
    times = [datetime.fromisoformat(line[name]).timestamp() for line in lines for name in ("first", "last")]
    longest_s = max(times, default=0) - min(times, default=0)
    return next((step for step in STEPS_S if longest_s / step <= RATES_PER_TOPIC), STEPS_S[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = parser(__doc__)
    options.add_argument("--every", metavar="SECONDS", type=int, help="span of time for rates; chosen if not given")
    options.add_argument("--keys", metavar="N", type=int, default=TOP_KEYS, help=f"most frequent keys; {TOP_KEYS}")
    options.add_argument("--plots", metavar="DIR", help="draw PNG files into this directory")
    args = options.parse_args(arguments)
    extent = Extent.of(args)
    spark = session("stats")
    lines = partitions(spark, extent)
    every_s = args.every or step_s(lines)
    report = {
        "partitions": lines,
        "size_quantiles": QUANTILES,
        "every_s": every_s,
        "rates": rates(spark, extent, every_s),
        "keys": top_keys(spark, extent, args.keys),
        "lag": lag(args),
    }
    if args.plots is not None:
        from tools.spark.jobs.plots import draw

        report["plots"] = [str(path) for path in draw(report, Path(args.plots))]
    write_report(args, "stats", **report)
    return DONE


if __name__ == "__main__":
    run(main)
