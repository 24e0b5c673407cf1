"""The same source on older versions of Spark, and through Spark Connect: nightly, each installed beside ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT, require_spark
from tests.spark.sink_relay import TOO_SLOW
from tests.stored_log import example

pytestmark = [
    pytest.mark.skipif(os.environ.get("QUINTLOG_NIGHTLY") != "1", reason="installs Spark, 400 MB for each version"),
    pytest.mark.timeout(3600),
]
READING = ("test_found.py", "test_source.py", "test_options.py", "test_manifest.py")
WRITING = ("test_sink.py",)
STREAMING = ("test_stream.py",)
VERSIONS = {
    "4.0": READING,
    "4.1": (*READING, *WRITING),
    "4.2": (*READING, *WRITING, *STREAMING),
}
"""What is promised of each (docs/spark.md); the newest is what all other tests run on."""
WITH_STREAMS = ("test_a_stream", "test_object_storage_and_a_live_server")
LEFT_OUT = {"4.0": ("test_only_committed_records", *WITH_STREAMS), "4.1": WITH_STREAMS}
"""Tests by parts of their names. Spark 4.0 asks a source for its partitions each time that a DataFrame is used."""
SPARKS_OWN_LEAKS = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
CONNECT = """
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
orders = spark.read.format("quintlog").option("subscribe", "orders").load(sys.argv[1])
print("rows", orders.where("offset > 80").count(), orders.columns[0])
spark.stop()
"""


def installed(version: str, extra: str = "") -> Path:
    """A directory with that version of Spark, made once."""
    place = ROOT / "build" / f"spark-{version}{extra and '-connect'}"
    if not (place / "pyspark" / "jars").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place)]
        subprocess.run([*command, f"pyspark{extra}=={version}.*"], check=True, timeout=1800)
    return place


def environment(place: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "QUINTLOG_NIGHTLY")}
    paths = os.pathsep.join((str(place), *sys.path))
    return kept | {"PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_version(version: str, tmp_path: Path) -> None:
    require_spark()
    variables = environment(installed(version))
    ours = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    found = subprocess.run(ours, env=variables, capture_output=True, text=True, check=True).stdout
    assert found.startswith(f"{version}.")
    files = [str(ROOT / "tests" / "spark" / name) for name in VERSIONS[version]]
    options = ["-q", "--timeout", "600", "-o", f"cache_dir={tmp_path}", *SPARKS_OWN_LEAKS]
    if version in LEFT_OUT:
        options += ["-k", f"not ({' or '.join(LEFT_OUT[version])})"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    if done.returncode and TOO_SLOW in done.stdout:
        done = subprocess.run([*command, "--last-failed"], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    print(f"pyspark {found.strip()}: {done.stdout.splitlines()[-1]}")


def test_what_an_older_version_lacks_is_told(tmp_path: Path) -> None:
    require_spark()
    example(tmp_path)
    code = (
        "import sys\nfrom pyspark_quintlog import DefaultSource\n"
        "source = DefaultSource({'path': sys.argv[1]})\n"
        "for make in (lambda: source.streamReader(None), lambda: source.writer(None, False)):\n"
        "    try:\n        make()\n    except ImportError as error:\n        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment(installed("4.0")), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "streams need pyspark 4.2 or newer, this is 4.0." in done.stdout
    assert "writing needs pyspark 4.1 or newer, this is 4.0." in done.stdout


def test_spark_connect(tmp_path: Path) -> None:
    require_spark()
    example(tmp_path / "log")
    place = tmp_path / "empty"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, str(tmp_path / "log")],
        cwd=place, env=environment(installed("4.3", "[connect]")), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert "rows 10 key" in done.stdout, done.stderr[-5000:]
