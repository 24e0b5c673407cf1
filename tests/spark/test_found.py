"""Spark finds the format wherever it is started, however the package was installed; and says why it cannot be used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quintlog
from tests.spark.conftest import require_spark
from tests.stored_log import example

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
LOOK_UP = """
from importlib import import_module
from pkgutil import iter_modules

for found in iter_modules():  # as Spark's look-up does
    if found.name.startswith("pyspark_"):
        source = import_module(found.name).DefaultSource
        print(source.name(), import_module(found.name).__file__)
        print(source({"includeHeaders": "true"}).schema())
"""
QUERY = """
import sys

from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
print("rows", builder.getOrCreate().read.format("quintlog").load(sys.argv[1]).count())
"""


def run(code: str, place: Path, *arguments: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, in a directory that has nothing of ours."""
    require_spark()
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    environment = kept | variables | ({"PYTHONPATH": path} if path else {})
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=110)


def test_found_from_any_directory(tmp_path: Path) -> None:
    done = run(LOOK_UP, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("quintlog ")
    assert "headers array" in done.stdout


def test_a_query_from_a_directory_of_its_own(tmp_path: Path) -> None:
    example(tmp_path / "log")
    place = tmp_path / "empty"
    place.mkdir()
    done = run(QUERY, place, str(tmp_path / "log"), SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    assert "rows 90" in done.stdout, done.stderr[-3000:]


def test_found_in_an_archive(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.package import write_package

    archive = tmp_path / "shipped.zip"
    write_package(archive)
    done = run(LOOK_UP, tmp_path, path=str(archive))
    assert done.returncode == 0, done.stderr
    assert f"quintlog {archive}" in done.stdout


@pytest.mark.skipif(not NIGHTLY, reason="builds the package")
def test_found_in_a_directory_of_packages(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    ignored = shutil.ignore_patterns(".*", "build", "tests", "*.so", "*.c", "__pycache__", "data")
    shutil.copytree(quintlog.ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    environment = os.environ | {"QUINTLOG_BUILD": "pure"}
    subprocess.run([*command, str(target), str(source)], env=environment, check=True)
    done = run(LOOK_UP, tmp_path, path=str(target))
    assert done.returncode == 0, done.stderr
    assert f"quintlog {target}" in done.stdout


@pytest.mark.parametrize("chosen", ["", "/opt/python"])
def test_an_interpreter_without_our_libraries(tmp_path: Path, chosen: str) -> None:
    (tmp_path / "xxhash.py").write_text("raise ModuleNotFoundError(\"No module named 'xxhash'\")\n")
    done = run(LOOK_UP, tmp_path, **({"PYSPARK_PYTHON": chosen} if chosen else {}))
    assert done.stdout.startswith("quintlog ")  # the look-up, which every source in Python needs, goes on
    why = f"PYSPARK_PYTHON is {chosen}" if chosen else "PYSPARK_PYTHON is not set"
    assert f"No module named 'xxhash'. Spark's Python is {sys.executable} ({why})" in done.stderr


def test_a_project_with_packages_of_our_names(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("")
    done = run(LOOK_UP, tmp_path)
    assert done.stdout.startswith("quintlog ")
    assert f"`import tools` finds {tmp_path / 'tools' / '__init__.py'}, not Quintlog's" in done.stderr
