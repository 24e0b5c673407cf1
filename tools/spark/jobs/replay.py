"""Appends a range of records to another topic, or to another server, each record once.

Key, value, headers, timestamp, partition and order stay; numbers are those of the new place. Topics are made if they
are not there. A run that was killed is run again with the same --progress FILE: it goes on where it stopped, with the
range of the first run, and when all is done it does nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import functions as f

from tools.logtool.lib.errors import DONE, USAGE, Failure
from tools.spark.jobs.common import parser, run, session, write_report
from tools.spark.jobs.sending import BATCH_RECORDS, Progress, Server, add_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = parser(__doc__)
    add_options(options)
    options.add_argument("--into", metavar="TOPIC", help="the new topic; the same names by default, for --server")
    options.add_argument("--rate", metavar="N", type=int, default=0, help="records a second at most")
    options.add_argument("--batch-records", metavar="N", type=int, default=BATCH_RECORDS, help="records for a batch")
    args = options.parse_args(arguments)
    if not args.into and not args.server:
        raise Failure(USAGE, "usage", "records would be copied onto themselves: name --into TOPIC or --server URL")
    progress, server = Progress.of(args, "replay", "topic", "into", "server", "batch_records"), Server.of(args)
    partitions: dict[str, int] = defaultdict(int)
    for topic, index in progress.extent.spans:
        target = args.into or topic
        partitions[target] = max(partitions[target], index + 1)
    for target, count in partitions.items():
        server.need_topic(target, count)
    name = f.lit(args.into) if args.into else f.col("topic")
    sent = progress.send_steps(
        session("replay"), server, args.batch_records, lambda rows: rows.withColumn("topic", name), args.rate
    )
    write_report(args, "replay", writer=progress.writer, records=sent)
    return DONE


if __name__ == "__main__":
    run(main)
