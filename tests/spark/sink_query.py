"""A driver for the tests of the sink: copies topics into one, each by a query of its own, batch by batch to their ends.

    python sink_query.py SERVER TOKEN PLACE MASTER ROWS_PER_TRIGGER TOPIC...

Amid its rows a task kills its Python worker, or its executor, where ``PLACE/kill worker`` or ``kill executor`` is. On a
cluster, where Spark runs copies of tasks that are slow, one task at a time waits for its copy; then both go on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

AT_ROW = 150
COPY_WAIT_S = 60.0
"""No copy by then: Spark did not find room for it."""


def harmed(place: str, life: str) -> Callable[[bytes], bytes]:
    """A step of a query on binary values. Tasks wait in a `life` of the driver that has a name."""
    rows = 0

    def once(name: str) -> bool:
        try:
            os.unlink(f"{place}/{name}")
        except FileNotFoundError:
            return False
        return True

    def parent_of(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def race() -> None:
        """Of a task and its copy."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        copy = Path(place, "copies", f"{life} {query} {context.stageId()}")
        if context.partitionId() != 0:
            return
        if context.attemptNumber() > 0:
            copy.touch()
            once(f"waiting in {life}")
            return
        try:
            os.close(os.open(f"{place}/waiting in {life}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        end = time.monotonic() + COPY_WAIT_S
        while not copy.exists() and time.monotonic() < end:
            time.sleep(0.002)

    def step(value: bytes) -> bytes:
        nonlocal rows
        rows += 1
        if rows == AT_ROW:
            if once("kill worker"):
                os._exit(1)
            if once("kill executor"):
                os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the parent is Spark's Python daemon
            if life:
                race()
        return value

    return step


def session(master: str) -> Any:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.speculation": "true",
        "spark.speculation.interval": "20ms",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    builder: Any = SparkSession.builder.master(master).appName("sink faults")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(server: str, token: str, place: str, master: str, rows_per_trigger: str, *topics: str) -> None:
    from pyspark.sql.functions import udf

    spark = session(master)
    life = spark.sparkContext.applicationId if master.startswith("spark:") else ""
    step = udf(harmed(place, life), "binary", useArrow=False)
    queries = []
    for topic in topics:
        source = spark.readStream.format("quintlog").option("subscribe", topic).option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", rows_per_trigger).option("minPartitions", "4")
        written = source.load(f"{place}/data").select("key", step("value").alias("value"))
        sink = written.writeStream.format("quintlog").option("topic", "out").option("server", server)
        sink = sink.option("token", token).option("stageBytes", "20000")
        queries.append(sink.option("checkpointLocation", f"{place}/of {topic}").trigger(availableNow=True).start())
    for query, topic in zip(queries, topics, strict=True):
        query.awaitTermination()
        Path(place, f"of {topic}", "query").write_text(str(query.id))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
