"""Spark finds the format wherever it is started, however the package was installed; and says why it cannot be used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quintlog
from tests.spark.conftest import require_spark

README = Path(__file__).resolve().parents[2] / "README.md"
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


def run(code: str, place: Path, *arguments: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, in a directory that has nothing of ours."""
    require_spark()
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    environment = kept | variables | ({"PYTHONPATH": path} if path else {})
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=280)


def test_found_from_any_directory(tmp_path: Path) -> None:
    done = run(LOOK_UP, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("quintlog ")
    assert "headers array" in done.stdout


@pytest.mark.timeout(300)
def test_the_query_of_the_readme_in_an_empty_directory(tmp_path: Path) -> None:
    text = (README.read_text().partition("\n## Spark\n")[2]).partition("\n## ")[0]
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = run(code, tmp_path, SPARK_LOCAL_IP="127.0.0.1", PATH=path)
    shown = re.findall(r"\| +(\d+)\|[^|]*\| *order (\d+)\|", done.stdout)
    assert shown == [(str(number), str(number)) for number in range(996, 1001)], done.stderr[-3000:]


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
