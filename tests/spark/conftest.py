"""One Spark session for all tests, and directories to read."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For all of Java here, also of executors and drivers of their own: it lives for seconds, and so costs half."""


def missing() -> str:
    """What keeps Spark from running here; empty: nothing."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "Java 17 or newer is not installed (Debian, Ubuntu: apt-get install default-jre-headless)"
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        return f"{error}: pip install -e '.[spark]'"
    return ""


def require_spark() -> None:
    """Skips the test where Spark cannot run; where CI is set that is a failure."""
    reason = missing()
    if reason and os.environ.get("QUINTLOG_REQUIRE_SPARK") == "1":
        pytest.fail(f"Spark's tests cannot run: {reason}")
    if reason:
        pytest.skip(f"SPARK IS NOT TESTED: {reason}")
    os.environ["JAVA_TOOL_OPTIONS"] = QUICK_JAVA


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two executor threads; executors' processes find the packages of this checkout."""
    require_spark()
    from pyspark.sql import SparkSession

    place = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={place}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.python.authenticate.socketTimeout": "120s",  # 15 s are too short for a busy machine
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }
    builder = SparkSession.builder.master("local[2]").appName("quintlog tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
