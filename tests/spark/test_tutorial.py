"""The tutorial of docs/spark.md, run as it is written, on a real log file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver.testing import server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
LOG_FILE = ROOT / "tests" / "data" / "dpkg.log"


def tutorial() -> str:
    return (ROOT / "docs" / "spark.md").read_text().partition("## Tutorial")[2]


def test_from_a_log_file_to_a_chart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = LOG_FILE.read_bytes().splitlines()
    with server(tmp_path / "data") as process:
        (command,) = re.findall(r"^\$ logtool (publish .*)$", tutorial(), re.MULTILINE)
        words = command.replace("/var/log/dpkg.log", str(LOG_FILE)).replace(
            "--via figg", "--via figg={}:{}".format(*process.address("figg"))
        )
        done = subprocess.run(
            [sys.executable, "-m", "tools.logtool", *words.split()],
            env=os.environ | {"QUINTLOG_DATA_DIR": "data", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stdout == f"{len(lines)} records acknowledged\n"
        names: dict[str, Any] = {}
        blocks = re.findall(r"^```python\n(.*?)^```$", tutorial(), re.DOTALL | re.MULTILINE)
        assert len(blocks) == 3
        for block in blocks:
            # The session's JVM was started elsewhere, and paths are relative to that.
            block = re.sub(r'"(data|dpkg-\w+)"', lambda name: repr(str(tmp_path / name[1])), block)
            exec(compile(block, "docs/spark.md", "exec"), names)
    shown = capsys.readouterr().out
    installs = sum(line.split()[2] == b"install" for line in lines)
    assert re.search(rf"\| +install\| +{installs}\|", shown)
    assert re.search(rf"={len(lines)}, .*={len(lines)}\)", shown)
    assert sum(row.install for row in names["rows"]) == installs
    assert Path("packages.png").read_bytes().startswith(b"\x89PNG")
