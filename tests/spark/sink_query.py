"""A driver for ``test_sink_faults``: copies one topic into another, batch by batch, until there is nothing more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf


def dying_once(marker: str) -> Callable[[bytes], bytes]:
    """A step that kills the Python worker in which it runs, amid its rows; once, as the marker says."""
    rows = 0

    def step(value: bytes) -> bytes:
        nonlocal rows
        rows += 1
        if rows == 300 and os.path.exists(marker):
            os.unlink(marker)
            os._exit(1)
        return value

    return step


def main(data_dir: str, server: str, token: str, checkpoint: str, rows_per_trigger: str, marker: str) -> None:
    builder = SparkSession.builder.master("local[2,4]").appName("sink faults")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format("quintlog").option("subscribe", "in").option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", rows_per_trigger).option("minPartitions", "2").load(data_dir)
    step = udf(dying_once(marker), "binary", useArrow=False)
    written = rows.select("key", step("value").alias("value"))
    sink = written.writeStream.format("quintlog").option("topic", "out").option("server", server).option("token", token)
    sink = sink.option("stageBytes", "20000").option("checkpointLocation", checkpoint)
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    Path(checkpoint, "query").write_text(str(query.id))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
