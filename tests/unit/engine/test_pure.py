"""QUINTLOG_PURE=1: plain Python, whatever is compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import quintlog

WALK = """
import importlib, pkgutil, sys
for package in ("engine", "netserver", "tools"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not found.name.startswith("tools.spark") and not found.name.endswith("__main__"):
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
