"""The compiled modules really are compiled, each with the declarations of its .pxd.

Runs only with QUINTLOG_REQUIRE_COMPILED=1 (continuous integration sets it for the installed wheel) or ``checked`` (and
for the build with bounds checks): without a compiler the same modules run as plain Python, which is legal.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

import engine
import netserver
import tools

REQUIRED = os.environ.get("QUINTLOG_REQUIRE_COMPILED")
CHECK = b"Out of bounds on buffer access (axis %d)"
"""Message of a bounds check in compiled code."""

pytestmark = [
    pytest.mark.checked,
    pytest.mark.skipif(
        REQUIRED not in ("1", "checked") or os.environ.get("QUINTLOG_PURE") == "1",
        reason="compiled modules are not required here",
    ),
]

PXDS = [
    (package.__name__, pxd)
    for package in (engine, netserver, tools)
    for pxd in sorted(Path(str(package.__file__)).parent.rglob("*.pxd"))
]


def test_declarations_are_installed() -> None:
    assert PXDS, "no .pxd beside the installed modules"


@pytest.mark.parametrize(("package", "pxd"), PXDS, ids=[pxd.stem for _, pxd in PXDS])
def test_compiled_with_its_declarations(package: str, pxd: Path) -> None:
    folders = pxd.parts[len(pxd.parts) - pxd.parts[::-1].index(package) - 1 : -1]
    module = importlib.import_module(".".join([*folders, pxd.stem]))
    assert not str(module.__file__).endswith(".py"), f"{module.__name__} was not compiled"
    text = re.sub(r"#.*", "", pxd.read_text())
    functions = re.findall(r"^(?:cdef|cpdef)(?! *inline)(?! *class) [^(\n]*?(\w+)\(", text, re.MULTILINE)
    exported = getattr(module, "__pyx_capi__", {})
    assert [name for name in functions if name not in exported] == [], "declared, but compiled without the declaration"
    for name in re.findall(r"^cdef (?:public )?class (\w+)", text, re.MULTILINE):
        with pytest.raises(TypeError, match="immutable type"):
            setattr(getattr(module, name), "added", 1)  # noqa: B010  (an ordinary class would allow it)


@pytest.mark.parametrize("name", ["engine.formats.batch", "engine.formats.batch_seal", "netserver.figg.frames"])
def test_bounds_are_checked_in_the_checked_build_alone(name: str) -> None:
    library = Path(str(importlib.import_module(name).__file__)).read_bytes()
    assert (CHECK in library) == (REQUIRED == "checked")
