"""QUINTLOG_PURE=1: plain Python, whatever is compiled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import engine
import netserver
import quintlog
import tools

WALK = """
import importlib, pkgutil, sys
for package in ("engine", "netserver", "tools"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not found.name.startswith("tools.spark") and not found.name.endswith(("__main__", "_cyutility")):
            importlib.import_module(found.name)
files = {name: str(module.__file__) for name, module in sys.modules.items()
         if name.partition(".")[0] in ("engine", "netserver", "tools")}
print(len(files), [name for name, file in files.items() if not file.endswith(".py")])
"""


def test_no_compiled_module_is_loaded() -> None:
    environment = {**os.environ, "QUINTLOG_PURE": "1", "PYTHONPATH": str(quintlog.ROOT)}
    done = subprocess.run([sys.executable, "-c", WALK], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    count, compiled = done.stdout.split(" ", 1)
    assert int(count) > 200
    assert compiled == "[]\n"


def test_the_public_face_is_loaded_when_it_is_used() -> None:
    lean = "import sys, engine; assert 'engine.log' not in sys.modules; engine.Record; assert 'lmdb' not in sys.modules"
    whole = (
        "import engine, engine.log; assert engine.Log is engine.log.Log; [getattr(engine, n) for n in engine.__all__]"
    )
    environment = {**os.environ, "PYTHONPATH": str(quintlog.ROOT)}
    for program in (lean, whole):
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=100)


def signatures(path: Path) -> dict[str, str]:
    """Of each public function and method of a source: its parameters with their types, and its result."""
    found: dict[str, str] = {}
    tree = ast.parse(path.read_text())
    for scope in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        for node in scope.body:
            if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
                name = node.name if scope is tree else f"{scope.name}.{node.name}"  # type: ignore[attr-defined]
                found[name] = f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns) if node.returns else ''}"
    return found


def test_twins_have_the_same_signatures() -> None:
    """What uses a pair is type-checked against the compiled module's source: its twin takes and gives the same."""
    packages = (engine, netserver, tools)
    twins = [path for package in packages for path in Path(str(package.__file__)).parent.rglob("*_pure.py")]
    assert len(twins) >= 8
    for twin in twins:
        plain, compiled = signatures(twin), signatures(twin.with_name(twin.name.replace("_pure", "")))
        shared = plain.keys() & compiled.keys()
        assert shared, twin
        assert {name: plain[name] for name in shared} == {name: compiled[name] for name in shared}, twin
