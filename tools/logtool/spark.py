"""`spark`: runs one of the jobs of `tools.spark.jobs` in a Spark session of this process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column
from tools.spark.jobs import JOBS

ROOT = Path(__file__).resolve().parents[2]


def require_libraries() -> None:
    """Finds pyspark, which may be that of SPARK_HOME. Raises Failure, saying what to install."""
    home = os.environ.get("SPARK_HOME")
    if home and importlib.util.find_spec("pyspark") is None:
        sys.path[:0] = [f"{home}/python", *map(str, Path(home).glob("python/lib/py4j-*.zip"))]
        importlib.invalidate_caches()
    missing = [name for name in ("pyspark", "pyarrow", "numpy", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        text = f"{' and '.join(missing)} not installed for {sys.executable}"
        raise Failure(
            errors.UNREACHABLE,
            "no_spark",
            text,
            "install the extra spark; in a checkout: .venv/bin/pip install -e '.[spark]'",
        )


def require_java() -> None:
    """Raises Failure, saying what to install."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{home}/bin/java" if home else "java") is None:
        hint = "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; JAVA_HOME names one that is elsewhere"
        raise Failure(errors.UNREACHABLE, "no_java", "Spark needs Java 17 or newer, which is not installed", hint)


def prepare(master: str, conf: tuple[str, ...], package: Path) -> None:
    """Sets the environment from which pyspark starts Spark: with this Python, this package, and loopback when local."""
    submit = ["--master", master, "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"]
    for setting in conf:
        submit += ["--conf", setting]
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        from tools.spark.package import write_package

        write_package(package)
        submit += ["--py-files", str(package)]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*submit, "pyspark-shell"])


@click.command(cls=Command, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.option(
    "--master", metavar="URL", default="local[*]", help="Where it runs: local[*] (default), spark://HOST:PORT."
)
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated.")
@click.argument("name", metavar="[NAME]", required=False)
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def spark(settings: Settings, master: str, conf: tuple[str, ...], name: str | None, arguments: tuple[str, ...]) -> None:
    """Run the Spark job NAME with its ARGUMENTS; without a NAME list the jobs.

    --data-dir (or QUINTLOG_DATA_DIR) before NAME is the job's too. `logtool spark NAME --help` shows a job's options.
    Executors on other machines get this package's code; they need the libraries that docs/spark.md names.
    """
    if name is None:
        items = [{"name": job, "does": text} for job, text in JOBS.items()]
        settings.output.items([Column("name"), Column("does")], items)
        return
    if name not in JOBS:
        raise click.UsageError(f"no job {name!r}; there are {', '.join(JOBS)}")
    if settings.data_dir is None and (settings.given["server"] is not None or settings.context is not None):
        settings.need_directory("spark")
    require_libraries()
    require_java()
    if settings.data_dir is not None:  # and with it its server, not that of the environment
        os.environ["QUINTLOG_DATA_DIR"] = str(settings.data_dir.absolute())
        os.environ.pop("QUINTLOG_SERVER", None)
    with tempfile.TemporaryDirectory(prefix="quintlog-spark-") as temporary:
        prepare(master, conf, Path(temporary) / "quintlog.zip")
        code = importlib.import_module(f"tools.spark.jobs.{name}").main(list(arguments))
    if code:
        raise click.exceptions.Exit(code)
