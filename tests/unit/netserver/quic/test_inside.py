"""What of aioquic's inside is used is named in one place, is there, and is told when it is not.

Who allows another version: read what aioquic has changed in connection, recovery, stream and crypto, compare
the methods that `netserver.quic.bounded` and `netserver.quic.receive` override or take over, then run what
`test_the_first_version_does` runs with the first and with the last version.
"""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

import netserver
from netserver.errors import ServerError
from netserver.quic.bounded import BoundedQuic
from netserver.quic.inside import INSIDE, OVERRIDDEN, VERSIONS, UnsupportedAioquic, check

TREE = Path(__file__).resolve().parents[4]
PACKAGE = Path(netserver.__file__).parent
NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
REACHING = ("bounded", "receive")
"""Modules of `netserver.quic` that reach in."""
DOCUMENTED = "aioquic.quic.events"


def tree(name: str) -> ast.Module:
    return ast.parse((PACKAGE / "quic" / f"{name}.py").read_text())


def test_everything_that_is_used_is_named_and_nothing_else() -> None:
    plain = QuicConnection(configuration=QuicConfiguration(is_client=True))
    named = {name for one in INSIDE.values() for name in one.names}
    private, used = set(), set()
    for node in (node for name in REACHING for node in ast.walk(tree(name))):
        if isinstance(node, ast.FunctionDef):
            used.add(node.name)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
            is_ours = isinstance(node.value, ast.Name) and node.value.id == "self" and not hasattr(plain, node.attr)
            if node.attr.startswith("_") and not node.attr.startswith("__") and not is_ours:
                private.add(node.attr)
    assert private - OVERRIDDEN.keys() == {name for name in named if name.startswith("_")}
    assert named | OVERRIDDEN.keys() <= used


def test_nobody_else_reaches_in() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found: list[str] = []
            if isinstance(node, ast.ImportFrom):
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            theirs = [name for name in found if name.partition(".")[0] == "aioquic"]
            assert path.name == "inside.py" or all(name.startswith(DOCUMENTED) for name in theirs), (path, theirs)


@pytest.mark.parametrize("version", ["1.6.1", "0.9", "1.8.0", "2.0", "nonsense"])
def test_another_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedAioquic, match=r"and .* is installed: pip install 'aioquic>=1\.7,<1\.8'"):
        check(version)


def test_the_versions_are_those_that_are_installed() -> None:
    check("1.7.0")
    check("1.7.99")
    (first, second), (_, end) = VERSIONS
    assert f'"aioquic>={first}.{second},<{first}.{end}"' in (TREE / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["_write_stream_limits", "_idle_timeout"])
def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(QuicConnection, name)
    with pytest.raises(UnsupportedAioquic, match=name):
        check()


def test_other_parameters_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuicConnection, "_payload_received", lambda self, context, plain: (True, True))
    with pytest.raises(UnsupportedAioquic, match="_payload_received"):
        check()


def test_ours_have_the_parameters_of_theirs() -> None:
    for name, parameters in OVERRIDDEN.items():
        assert tuple(inspect.signature(getattr(BoundedQuic, name)).parameters) == parameters


def test_a_server_says_so_in_one_line(tmp_path: Path) -> None:
    """What lies there as aioquic has another version, and less in it."""
    package = tmp_path / "aioquic"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "1.6.1"\n')
    command = [sys.executable, "-P", "-m", "quintlog", "engine-server", "--data-dir", str(tmp_path / "data")]
    for name in ("figg", "reliably", "tank", "blipmq", "fujin", "kafka", "admin"):
        command += [f"--{name}", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ServerError.exit_code, done.stderr
    assert "Traceback" not in done.stderr
    assert "aioquic 1.7 is needed, and 1.6.1 is installed" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(not NIGHTLY, reason="QUINTLOG_NIGHTLY=1: takes the first version from the package index")
@pytest.mark.timeout(1800)
def test_the_first_version_does(tmp_path: Path) -> None:
    (first, second), _ = VERSIONS
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, f"aioquic=={first}.{second}.0"], check=True, timeout=300)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "QUINTLOG_NIGHTLY": ""}
    tests = ["tests/unit/netserver/quic", "tests/fuzz/test_fuzz_quic.py", "tests/unit/netserver/fujin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
