"""Build of the compiled hot modules: every ``x.py`` that has an ``x.pxd`` beside it is compiled by Cython.

Environment:
    QUINTLOG_BUILD=pure     compile nothing
    QUINTLOG_BUILD=require  a missing or failing compiler is an error (otherwise the pure modules are used)
    QUINTLOG_BUILD=checked  like require, with bounds checks on (for tests and fuzzing)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from setuptools import setup

MODE = os.environ.get("QUINTLOG_BUILD", "")
ROOT = Path(__file__).parent
PROCESSORS = os.cpu_count() or 1


def extensions() -> list[Any]:
    """The compiled modules; none when compiling is switched off or Cython is missing."""
    if MODE == "pure":
        return []
    sources = sorted(
        str(pxd.relative_to(ROOT).with_suffix(".py"))
        for package in ("engine", "netserver", "tools")
        for pxd in (ROOT / package).rglob("*.pxd")
        if pxd.with_suffix(".py").exists()
    )
    try:
        from Cython.Build import cythonize
    except ImportError:
        if MODE:
            raise
        return []
    checked = MODE == "checked"
    directives = {
        "boundscheck": checked,
        "initializedcheck": checked,
        "overflowcheck": False,
        "wraparound": False,
        "cdivision": True,
    }
    modules = cythonize(
        sources, language_level=3, compiler_directives=directives, force=checked, nthreads=PROCESSORS, quiet=True
    )
    for module in modules:
        module.optional = not MODE  # cythonize() drops optional=True given to Extension
        module.extra_compile_args = ["-O1" if checked else "-O3"]  # tests are short: compiling counts
    return list(modules)


setup(ext_modules=extensions(), options={"build_ext": {"parallel": PROCESSORS}})
