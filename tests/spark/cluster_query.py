"""A driver of its own, with executors in their own processes, for test_cluster: a query by batch, then an endless one.

    python cluster_query.py LOG PLACE ROWS_PER_TRIGGER

It is told by its environment what executors may import: of the project, only what it ships. In the endless query a
Python worker is killed once, and an executor once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TASK_DIES_AT = 1_000
EXECUTOR_DIES_AT = 3_000


def modules(_: Iterator[int]) -> Iterator[tuple[int, str]]:
    import tools.spark.source.decoder

    yield os.getppid(), tools.spark.source.decoder.__file__


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def dying(place: str) -> Callable[[int], int]:
    def once(name: str) -> bool:
        try:
            os.close(os.open(f"{place}/{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def passed(offset: int) -> int:
        if offset == TASK_DIES_AT and once("task died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if offset == EXECUTOR_DIES_AT and once("executor died"):
            os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the parent is Spark's Python daemon
        return offset

    return passed


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    log, place, rows_per_trigger = sys.argv[1:]
    builder: Any = SparkSession.builder.master("local-cluster[2,1,512]").appName("quintlog cluster test")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ["EXECUTOR_PATH"],
        "spark.submit.pyFiles": f"{place}/quintlog.zip",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.read.format("quintlog").option("splitBytes", "65536").load(log)
    row = frame.selectExpr("count(*)", "sum(offset)", "count(distinct value)", "min(length(value))").first()
    found = spark.sparkContext.parallelize(range(8), 8).mapPartitions(modules).collect()
    print(json.dumps({"totals": list(row)[:3], "modules": found}), flush=True)
    stream = spark.readStream.format("quintlog").options(
        startingOffsets="earliest", maxOffsetsPerTrigger=rows_per_trigger, splitBytes="65536"
    )

    lines = stream.load(log).select(udf(dying(place), "bigint", useArrow=False)("offset").alias("offset"), "value")
    writer = lines.writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
    writer.start(f"{place}/out").awaitTermination()


if __name__ == "__main__":
    main()
