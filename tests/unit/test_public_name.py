"""`import quintlog`, and the commands where somebody else's packages have the names of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quintlog
from netserver.testing import server

SERVER_ONLY = ("aiohttp", "click", "lmdb", "msgspec", "prometheus_client", "pyspark", "rich", "uvloop")
CLIENTS = ("figg", "tank", "blipmq", "fujin", "reliably")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with packages of its own that have the names of ours."""
    for name in quintlog.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the package of the project')\n")
    return tmp_path


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project)}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["engine-server", "logtool"])
def test_commands_start_in_a_project_with_packages_of_our_names(project: Path, name: str) -> None:
    script = Path(sys.executable).with_name(name)
    for command in ((str(script),), (sys.executable, "-P", str(quintlog.ROOT / "quintlog.py"), name)):
        done = run(project, *command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert name in done.stdout


def test_servers_for_tests_start_there(project: Path) -> None:
    start = "from netserver.testing import server\nwith server() as process: print(process.output[-1])"
    code = f"import sys; sys.path.insert(0, {str(quintlog.ROOT)!r})\n{start}"
    done = run(project, sys.executable, "-P", "-c", code)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr


def test_clients_say_whose_package_they_met(project: Path) -> None:
    code = f"import sys; sys.path.append({str(quintlog.ROOT)!r}); import quintlog; quintlog.connect"
    done = run(project, sys.executable, "-c", code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"ImportError: `import engine` finds {project / 'engine' / '__init__.py'}, not Quintlog's"
    )


def test_clients_by_the_public_name() -> None:
    with server() as process:
        host, port = process.address("figg")
        with quintlog.connect("figg", f"{host}:{port}") as client:
            client.publish("greetings", b"hello")
            with client.subscribe("greetings", start=quintlog.figg.EARLIEST) as greetings:
                assert greetings.next(timeout=30).value == b"hello"


def test_clients_need_nothing_that_the_server_needs(tmp_path: Path) -> None:
    for name in SERVER_ONLY:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name={name!r})\n")
    code = f"import quintlog\nfor name in {CLIENTS}: getattr(quintlog, name).connect\nprint(quintlog.connect.__name__)"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{quintlog.ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "connect\n"), done.stderr


def test_commands_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no click', name='click')\n")
    done = run(tmp_path, sys.executable, "-P", str(quintlog.ROOT / "quintlog.py"), "logtool")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "logtool: click is not installed: pip install 'quintlog[server]'\n"
