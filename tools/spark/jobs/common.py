"""What the jobs share: their options, the records that they work on, their report and their exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from engine.positions import EARLIEST, LATEST, parse
from engine.reader import DirectoryReader
from tools.logtool.lib.errors import BUG, NOT_FOUND, UNREACHABLE, Failure, explain
from tools.spark.source.options import parse as parse_options
from tools.spark.source.options import topic_pattern
from tools.spark.source.plan import Key, Planner


def parser(description: str | None, *, ranges: bool = True) -> ArgumentParser:
    """The options of all jobs: the log, its topics, where the report goes, and (`ranges`) which records are meant."""
    found = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    directory = os.environ.get("QUINTLOG_DATA_DIR")
    found.add_argument(
        "--data-dir", metavar="DIR", default=directory, required=not directory, help="the log [QUINTLOG_DATA_DIR]"
    )
    found.add_argument("--topic", metavar="GLOB", action="append", help="topics, all by default; may be repeated")
    found.add_argument("--report", metavar="FILE", help="where the JSON report goes; standard output by default")
    found.set_defaults(start=EARLIEST, end=LATEST)
    if ranges:
        form = "earliest, latest, 123, +10, -10, @2026-11-27T10:00Z, @-1h"
        found.add_argument("--from", dest="start", metavar="POS", type=parse, help=f"where to begin: {form}")
        found.add_argument("--to", dest="end", metavar="POS", type=parse, help="where to end (not included)")
    return found


def no_topic(args: Namespace) -> Failure:
    """What is raised when ``--topic`` means none that is there."""
    asked = " or ".join(args.topic or ["*"])
    return Failure(NOT_FOUND, "unknown_topic", f"no topic {asked} with records in {args.data_dir}")


def require_log(args: Namespace) -> None:
    """What can be known before Spark is started, which takes seconds. Raises Failure, EngineError: no such log."""
    DirectoryReader(Path(args.data_dir))
    if args.topic:
        Extent.of(args)


def session(job: str) -> SparkSession:
    """The session that spark-submit prepared, or one of this process; dates and hours are those of UTC."""
    builder = SparkSession.builder.appName(f"quintlog {job}").config("spark.sql.session.timeZone", "UTC")
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def wanted(topic: str, globs: Sequence[str] | None) -> bool:
    """Whether ``--topic`` means this topic."""
    return re.fullmatch(topic_pattern(globs or ()), topic) is not None


@dataclass(frozen=True, slots=True)
class Extent:
    """The records that a job works on: of each partition the numbers [first, end), looked up once when it begins.

    However often the job reads, it reads the same records.
    """

    data_dir: str
    spans: Mapping[Key, tuple[int, int]]

    @classmethod
    def of(cls, args: Namespace) -> Extent:
        """What ``--topic``, ``--from`` and ``--to`` mean now. Raises Failure when no topic matches."""
        planner = Planner(parse_options({"path": args.data_dir, "subscribePattern": topic_pattern(args.topic or ())}))
        planner.refresh()
        if not planner.partitions:
            raise no_topic(args)
        spans = {}
        for key, reader in planner.partitions.items():
            end = min(args.end.resolve(reader), reader.committed_seq + 1)
            spans[key] = (min(args.start.resolve(reader), end), end)
        return cls(args.data_dir, spans)

    def steps(self, records: int) -> Iterator[tuple[int, Extent]]:
        """The same in numbered pieces, one after the other, each at most `records` numbers of each partition.

        A step has the same number and means the same records however often a job starts over, whatever retention
        removes meanwhile; numbers of steps without a record are left out. Raises EngineError, OSError.
        """
        planner = Planner(parse_options({"path": self.data_dir}))
        planner.refresh()
        number = 0
        while True:
            waiting = {key: (first + number * records, end) for key, (first, end) in self.spans.items()}
            waiting = {key: span for key, span in waiting.items() if span[0] < span[1]}
            if not waiting:
                return
            nexts = [self._next(planner, key, *span) - span[0] for key, span in waiting.items()]
            number += min(nexts) // records
            spans = {}
            for key, (first, end) in self.spans.items():
                start = min(first + number * records, end)
                spans[key] = (start, min(start + records, end))
            if any(first < end for first, end in spans.values()):
                yield number, Extent(self.data_dir, spans)
            number += 1

    @staticmethod
    def _next(planner: Planner, key: Key, first_seq: int, end_seq: int) -> int:
        part = planner.partitions.get(key)
        return part.next_of(first_seq, end_seq) if part is not None else first_seq

    def frame(self, spark: SparkSession, columns: str | None = None, **options: Any) -> DataFrame:
        """The records as a DataFrame of these columns (``"offset bigint, value binary"``), all by default."""
        assign: dict[str, list[int]] = {}
        bounds: tuple[dict[str, dict[int, int]], ...] = ({}, {})
        for (topic, partition), span in self.spans.items():
            assign.setdefault(topic, []).append(partition)
            for numbers, number in zip(bounds, span, strict=True):
                numbers.setdefault(topic, {})[partition] = number
        starts, ends = map(json.dumps, bounds)
        reader = spark.read.format("quintlog").options(**options)
        reader = reader.options(assign=json.dumps(assign), startingOffsets=starts, endingOffsets=ends)
        return (reader.schema(columns) if columns else reader).load(self.data_dir)


def write_report(args: Namespace, job: str, **fields: Any) -> None:
    """The job's result: one JSON document, to ``--report`` or to standard output. Remarks go to standard error."""
    text = json.dumps({"schema": 1, "job": job, **fields}, indent=2, default=str) + "\n"
    if args.report is not None:
        Path(args.report).write_text(text)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def run(main: Callable[[Sequence[str] | None], int]) -> NoReturn:
    """Ends the process as `main` says: with its exit code, or with a message and the exit code of what went wrong."""
    try:
        code = main(None)
    except PySparkException as error:
        sys.stderr.write(f"{error}\n")
        code = UNREACHABLE
    except Exception as error:  # noqa: BLE001 - whatever it is, scripts get an exit code that is no finding's
        failure = explain(error)
        if failure is None:
            traceback.print_exc()
            code = BUG
        else:
            sys.stderr.write(f"{failure}\n")
            code = failure.exit_code
    sys.exit(code)
