"""Reading through Spark beside Parquet files of the same rows, in one run; and the decoder alone.

    python -m bench.spark [--records 2000000] [--rounds 3]

CPU seconds are those of the JVM and of all Python workers. Each query and its counterpart run in turn; figures are
medians of the rounds, after one that does not count. The log has records of 100 bytes in batches as one busy publisher
makes them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from engine.files.system import SystemFiles
from engine.reader import DirectoryReader, walk_segment
from engine.segments.damage import Found
from tools.spark.jobs.archive import BATCH_BYTES, archive
from tools.spark.limits import RECORD_BATCH_ROWS
from tools.spark.source.decoder import COMPILED, Decoder
from tools.spark.source.options import parse
from tools.spark.source.plan import Planner

VALUE_BYTES = 100
BATCH_RECORDS = 500
SUMS = "count(*)", "sum(offset)", "sum(length(value))"


def fill(data_dir: Path, records: int) -> None:
    """A directory of one topic."""
    from tests.stored_log import NOW_MS, StoredPartition, make_directory

    partition = StoredPartition(data_dir, make_directory(data_dir))
    for first in range(0, records, BATCH_RECORDS):
        if first % 1_000_000 == 0:
            partition.begin_segment()
        values = [b"%099d\n" % number for number in range(first, min(records, first + BATCH_RECORDS))]
        partition.write(values, now_ms=NOW_MS + first // 1000)
    partition.mark()


@dataclass
class Tree:
    """This process, its JVM and their workers."""

    pid: int

    def cpu_seconds(self) -> float:
        """Of the living ones, and of those that they waited for."""
        ticks, parents = {}, {}
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit():
                try:
                    fields = (directory / "stat").read_text().rpartition(") ")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                parents[int(directory.name)] = int(fields[1])
                ticks[int(directory.name)] = sum(map(int, fields[11:15]))
        ours = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
            ours |= more
        return sum(ticks.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def session(place: Path) -> Any:
    """Spark with as many threads as there are processors."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder: Any = SparkSession.builder.master("local[*]").appName("quintlog bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


@dataclass
class Measured:
    """Of several rounds: CPU seconds of each, and the shortest wall time."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: float = float("inf")
    answer: Any = None

    def run(self, query: Callable[[], Any], tree: Tree, counts: bool) -> None:
        """One round; the first one does not count."""
        cpu_s, start_s = tree.cpu_seconds(), time.perf_counter()
        answer = query()
        if counts:
            self.cpu_s.append(tree.cpu_seconds() - cpu_s)
            self.wall_s = min(self.wall_s, time.perf_counter() - start_s)
            assert answer == self.answer, "the same rows in every round"
        self.answer = answer


def beside(name: str, rounds: int, query: Callable[[], Any], parquet: Callable[[], Any]) -> None:
    """Both queries in turn; prints the medians of their CPU seconds, and the ratio of each round's pair."""
    tree, ours, theirs = Tree(os.getpid()), Measured(), Measured()
    for number in range(rounds + 1):
        ours.run(query, tree, number > 0)
        theirs.run(parquet, tree, number > 0)
    assert ours.answer == theirs.answer, (name, ours.answer, theirs.answer)
    ratios = sorted(one / max(other, 0.01) for one, other in zip(ours.cpu_s, theirs.cpu_s, strict=True))
    cells = [name, f"{median(ours.cpu_s):.2f}", f"{median(theirs.cpu_s):.2f}", f"{median(ratios):.2f}"]
    cells += [f"{ratios[0]:.2f}-{ratios[-1]:.2f}", f"{ours.wall_s:.2f}", f"{theirs.wall_s:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def planned_bytes(**options: str) -> int:
    """Bytes of files that a query with these options reads."""
    parsed = parse(options)
    planner = Planner(parsed)
    planner.refresh()
    return sum(task.size_bytes for task in planner.plan(planner.spans()))


def in_spark(place: Path, rounds: int) -> None:
    """The table of queries that have a counterpart."""
    spark = session(place)
    log, files = str(place / "log"), str(place / "parquet")
    spark.read.format("quintlog").load(log).write.parquet(files)
    table = str(place / "table")
    archive(spark, Namespace(topic=None, data_dir=log, out=table, batch_bytes=BATCH_BYTES))

    def ours(sums: Sequence[str], columns: str = "", group: str = "") -> Callable[[], Any]:
        def query() -> Any:
            reader = spark.read.format("quintlog")
            return answer((reader.option("columns", columns) if columns else reader).load(log), sums, group)

        return query

    def theirs(path: str, sums: Sequence[str], group: str = "") -> Callable[[], Any]:
        return lambda: answer(spark.read.parquet(path), sums, group)

    def answer(frame: Any, sums: Sequence[str], group: str) -> Any:
        if not group:
            return frame.selectExpr(*sums).first()
        return sorted(frame.groupBy(expr(group).alias("group")).agg(*map(expr, sums)).collect())

    from pyspark.sql.functions import expr

    every = ("sum(hash(key, value, topic, partition, offset, timestamp, timestampType))",)
    print("| query | CPU s | Parquet's | times | lowest-highest | wall s | Parquet's |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    two = theirs(files, SUMS)
    beside("count, two sums; all columns are made", rounds, ours(SUMS), two)
    beside('the same with `columns="offset, value"`', rounds, ours(SUMS, "offset, value"), two)
    beside("a hash of all columns", rounds, ours(every), theirs(files, every))
    group = "offset % 100"
    two_sums = SUMS[1:]
    beside("the sums by group", rounds, ours(two_sums, "offset, value", group), theirs(files, two_sums, group))
    one = ("count(offset)",)
    beside("`count(offset)`, one column", rounds, ours(one, "offset"), theirs(files, one))
    every_row = ("count(*)",)
    beside("`count(*)`, one column", rounds, ours(every_row, "partition"), theirs(files, every_row))
    beside("the table of `logtool spark archive`", rounds, theirs(table, SUMS), two)
    parts(spark, log)
    spark.stop()


def parts(spark: Any, log: str) -> None:
    """What small parts of the log cost, and how many bytes are read for them."""
    from tests.stored_log import NOW_MS

    records = spark.read.format("quintlog").option("columns", "offset").load(log).count()
    middle, part = records // 2, 10_000
    print("\n| part of the log | CPU s | wall s | bytes read |\n|---|---:|---:|---:|")
    for name, options in {
        f"{part:,} records by number": {
            "startingOffsets": f'{{"orders": {{"0": {middle}}}}}',
            "endingOffsets": f'{{"orders": {{"0": {middle + part}}}}}',
        },
        "about as many by time": {
            "startingTimestamp": str(NOW_MS + middle // 1000),
            "endingTimestamp": str(NOW_MS + (middle + part) // 1000),
        },
    }.items():
        measured, tree = Measured(), Tree(os.getpid())
        for number in range(4):
            query = spark.read.format("quintlog").options(**options).load(log).selectExpr(*SUMS)
            measured.run(query.first, tree, number > 0)
        size_bytes = planned_bytes(path=log, **options)
        print(f"| {name} | {median(measured.cpu_s):.2f} | {measured.wall_s:.2f} | {size_bytes:,} |", flush=True)


def without_spark(place: Path, rounds: int) -> None:
    """`quintlog.scan` beside pyarrow's reader of the same rows as Parquet, in one thread."""
    import pyarrow as pa
    from pyarrow import compute
    from pyarrow.parquet import ParquetFile

    import quintlog

    pa.set_cpu_count(1)
    names = ["offset", "value"]

    def sums(batches: Iterable[pa.RecordBatch]) -> tuple[int, ...]:
        found = (
            (one.num_rows, compute.sum(one["offset"]).as_py(), compute.sum(compute.binary_length(one["value"])).as_py())
            for one in batches
        )
        return tuple(map(sum, zip(*found, strict=True)))

    def log() -> tuple[int, ...]:
        return sums(quintlog.scan(place / "log", columns=names))

    def parquet() -> tuple[int, ...]:
        readers = map(ParquetFile, sorted((place / "parquet").glob("*.parquet")))
        return sums(one for file in readers for one in file.iter_batches(1 << 16, columns=names, use_threads=False))

    print("\n| without Spark, in one thread | CPU s | Parquet's | times | lowest-highest | wall s | Parquet's |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    beside("`quintlog.scan`: count, two sums", rounds, log, parquet)


def decoder(place: Path, rounds: int) -> None:
    """The decoder on batches that were read and verified before."""
    directory = DirectoryReader(place / "log")
    reader = directory.partition(directory.topics()[0])
    files = SystemFiles()
    found = [item for one in reader.segments for item in walk_segment(files, one) if isinstance(item, Found)]
    print(f"\n| decoder{'' if COMPILED else ' (plain Python)'} | M rows/s |\n|---|---:|")
    for name, columns in (
        ("value, offset and timestamp", (False, True, True, True, False)),
        ("key, value, offset and timestamp", (True, True, True, True, False)),
        ("offset", (False, False, True, False, False)),
    ):
        fastest = 0.0
        for _ in range(rounds):
            one, rows, start_s = Decoder(*columns), 0, time.process_time()
            for item in found:
                rows += one.add(item.data, item.start, item.end, 0, 1 << 62)
                if one.rows >= RECORD_BATCH_ROWS:
                    one.take()
            fastest = max(fastest, rows / (time.process_time() - start_s))
        print(f"| {name} | {fastest / 1e6:.1f} |")
    directory.close()


def main() -> None:
    """Parses arguments and prints the tables in Markdown."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintlog-bench-") as directory:
        place = Path(directory)
        fill(place / "log", arguments.records)
        in_spark(place, arguments.rounds)
        without_spark(place, arguments.rounds)
        decoder(place, arguments.rounds)


if __name__ == "__main__":
    main()
