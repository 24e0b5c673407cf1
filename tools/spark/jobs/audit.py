"""Checks every byte of a log on many cores, and reports what is wrong as JSON.

Each task reads one segment file: hashes of every batch, every record, the order of numbers and times, the footer and
its index against the batches. The driver compares the segments with one another and with the watermarks. Numbers that
no record has (gaps) are findings unless --allow-gaps is given: a publish that failed leaves one, and so may TANK
clients that number their records themselves. With --doubles, records with the same topic, key and value are findings
too: a publisher that repeats after a broken connection stores some twice.

Exit code 0: sound; 1: findings.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from engine.files.system import SystemFiles
from engine.reader import DirectoryReader, PartitionReader, read_segment
from tools.checks import PartitionReport, SegmentReport, check_partition, check_segment
from tools.logtool.lib.errors import DONE, FINDING
from tools.spark.jobs.common import Extent, no_topic, parser, run, session, wanted, write_report
from tools.spark.source.plan import text_of

SAMPLE_OFFSETS = 10
"""Offsets that are named of records that are the same."""
LISTED = 1000
"""Gaps, and sets of records that are the same, that are named: there may be as many as there are records."""


def check_place(place: tuple[int, str, int]) -> tuple[int, SegmentReport | None]:
    """On an executor: the report of one file up to its readable end; None when retention has removed it."""
    number, path, end = place
    try:
        return number, check_segment(read_segment(SystemFiles(), Path(path), end))
    except FileNotFoundError:
        return number, None


def audit(spark: SparkSession, partitions: Sequence[PartitionReader]) -> list[PartitionReport]:
    """Checks the files of these partitions, each file in a task of its own."""
    places = [
        (number, str(segment.path), segment.end)
        for number, partition in enumerate(partitions)
        for segment in partition.segments
    ]
    segments: dict[int, list[SegmentReport]] = defaultdict(list)
    if places:
        for number, segment in spark.sparkContext.parallelize(places, len(places)).map(check_place).collect():
            if segment is not None:
                segments[number].append(segment)
    return [check_partition(partition, segments[number]) for number, partition in enumerate(partitions)]


def doubles(spark: SparkSession, extent: Extent) -> list[dict[str, Any]]:
    """Records of a topic that have the same key and value."""
    same = (
        extent.frame(spark, "topic string, partition int, offset bigint, key binary, value binary", onCorruption="skip")
        .groupBy("topic", "key", f.sha2("value", 256).alias("digest"))
        .agg(f.count("*").alias("times"), f.sort_array(f.collect_list(f.struct("partition", "offset"))).alias("places"))
        .where("times > 1")
        .select("topic", "times", f.slice("places", 1, SAMPLE_OFFSETS).alias("places"))
        .orderBy("topic", "places")
        .limit(LISTED)
    )
    return [
        {
            "kind": "double",
            "topic": row.topic,
            "reason": f"{row.times} records have the same key and value",
            "places": [[place.partition, place.offset] for place in row.places],
        }
        for row in same.collect()
    ]


def gaps(reports: Iterable[PartitionReport]) -> Iterator[dict[str, Any]]:
    """Numbers that no record has."""
    for report in reports:
        for first, last in report.gaps:
            yield {
                "kind": "gap",
                "topic": text_of(report.topic),
                "partition": report.partition,
                "first": first,
                "last": last,
                "reason": f"no record has the numbers {first} to {last}",
            }


def summary(report: PartitionReport) -> dict[str, Any]:
    """A partition's line in the report."""
    names = ("partition", "segments", "batches", "records", "first", "last", "bytes")
    missing = sum(last - first + 1 for first, last in report.gaps)
    return {"topic": text_of(report.topic)} | {name: getattr(report, name) for name in names} | {"missing": missing}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = parser(__doc__, ranges=False)
    options.add_argument("--allow-gaps", action="store_true", help="numbers without a record are not a finding")
    options.add_argument("--doubles", action="store_true", help="records with the same key and value are findings")
    args = options.parse_args(arguments)
    directory = DirectoryReader(Path(args.data_dir))
    partitions = [
        directory.partition(topic, index)
        for topic in directory.topics()
        if wanted(text_of(topic.name), args.topic)
        for index in range(topic.partition_count)
    ]
    if args.topic and not partitions:
        raise no_topic(args)
    spark = session("audit")
    reports = audit(spark, partitions)
    findings: list[dict[str, Any]] = [
        {"kind": "file", "file": error.path, "reason": error.reason} for error in directory.damaged
    ]
    findings += [
        {"topic": text_of(report.topic), "partition": report.partition, **finding}
        for report in reports
        for finding in report.findings
    ]
    if not args.allow_gaps:
        findings += islice(gaps(reports), LISTED)
    if args.doubles:
        findings += doubles(spark, Extent.of(args))
    partition_lines = [summary(report) for report in reports]
    write_report(args, "audit", data_dir=args.data_dir, partitions=partition_lines, findings=findings)
    for finding in findings:
        sys.stderr.write(f"{finding.get('file', finding.get('topic'))}: {finding['kind']}: {finding['reason']}\n")
    return FINDING if findings else DONE


if __name__ == "__main__":
    run(main)
