"""Reading through Spark beside Parquet files of the same rows, in one run; and the decoder alone.

    python -m bench.spark [--records 2000000] [--rounds 3]

CPU seconds are those of the JVM and of all Python workers; each row is the best of its rounds, after one round that
does not count. The log has records of 100 bytes in batches as one busy publisher makes them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files.system import SystemFiles
from engine.reader import DirectoryReader, walk_segment
from engine.segments.scan import Found
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


def best(rounds: int, query: Callable[[], Any]) -> tuple[float, float, Any]:
    """(wall seconds, CPU seconds, answer) of the round that took the least CPU time."""
    tree, figures, answer = Tree(os.getpid()), [], query()
    for _ in range(rounds):
        cpu_s, start_s = tree.cpu_seconds(), time.perf_counter()
        again = query()
        figures.append((tree.cpu_seconds() - cpu_s, time.perf_counter() - start_s))
        assert again == answer
    cpu_s, wall_s = min(figures)
    return wall_s, cpu_s, answer


def planned_bytes(**options: str) -> int:
    """Bytes of files that a query with these options reads."""
    parsed = parse(options)
    planner = Planner(parsed)
    planner.refresh()
    wanted = {key: (planner.resolve(key, parsed.start), planner.resolve(key, parsed.end)) for key in planner.partitions}
    return sum(piece.end - piece.position for task in planner.plan(wanted) for piece in task.ranges)


def queries(place: Path, records: int, rounds: int) -> None:
    """The table of queries."""
    from tests.stored_log import NOW_MS

    spark = session(place)
    log, parquet = str(place / "log"), str(place / "parquet")
    spark.read.format("quintlog").load(log).write.parquet(parquet)
    middle, part = records // 2, records // 200
    by_number = {
        "startingOffsets": f'{{"orders": {{"0": {middle}}}}}',
        "endingOffsets": f'{{"orders": {{"0": {middle + part}}}}}',
    }
    by_time = {
        "startingTimestamp": str(NOW_MS + middle // 1000),
        "endingTimestamp": str(NOW_MS + (middle + part) // 1000),
    }

    def ours(schema: str = "", sums: tuple[str, ...] = SUMS, **options: str) -> Callable[[], Any]:
        def query() -> Any:
            reader = spark.read.format("quintlog").options(**options)
            return (reader.schema(schema) if schema else reader).load(log).selectExpr(*sums).first()

        return query

    rows: list[tuple[str, Callable[[], Any], int]] = [
        ("Parquet, the same columns and sums", lambda: spark.read.parquet(parquet).selectExpr(*SUMS).first(), 0),
        ("all columns", ours(), planned_bytes(path=log)),
        ('`.schema("offset bigint, value binary")`', ours("offset bigint, value binary"), planned_bytes(path=log)),
        ('`.schema("offset bigint")`', ours("offset bigint", SUMS[:2]), planned_bytes(path=log)),
        (f"{part:,} records by number", ours(**by_number), planned_bytes(path=log, **by_number)),
        ("about as many by time", ours(**by_time), planned_bytes(path=log, **by_time)),
    ]
    print("| query | wall s | CPU s | times Parquet's CPU | bytes read of the log |\n|---|---:|---:|---:|---:|")
    of_parquet = 0.0
    for name, query, size_bytes in rows:
        wall_s, cpu_s, answer = best(rounds, query)
        of_parquet = of_parquet or cpu_s
        assert records in tuple(answer) or size_bytes < planned_bytes(path=log) // 20
        read = f"{size_bytes:,}" if size_bytes else "-"
        print(f"| {name} | {wall_s:.2f} | {cpu_s:.2f} | {cpu_s / of_parquet:.2f} | {read} |", flush=True)
    spark.stop()


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintlog-bench-") as directory:
        place = Path(directory)
        fill(place / "log", arguments.records)
        queries(place, arguments.records, arguments.rounds)
        decoder(place, arguments.rounds)


if __name__ == "__main__":
    main()
