"""Build of the compiled hot modules: every ``x.py`` that has an ``x.pxd`` beside it is compiled by Cython.

What Cython needs for typed memoryviews is 20,000 lines of C: they are compiled once, as ``engine._cyutility``, instead
of in each module.

Environment:
    QUINTLOG_BUILD=pure     compile nothing
    QUINTLOG_BUILD=require  a missing or failing compiler is an error (otherwise the pure modules are used)
    QUINTLOG_BUILD=checked  like require, with bounds checks on (for tests and fuzzing)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

MODE = os.environ.get("QUINTLOG_BUILD", "")
ROOT = Path(__file__).parent
UTILITY = "engine._cyutility"
PROCESSORS = os.cpu_count() or 1


def extensions() -> list[Any]:
    """The compiled modules; none when compiling is switched off or Cython is missing."""
    if MODE == "pure":
        return []
    with_views, without = [], []
    for package in ("engine", "netserver", "tools"):
        for pxd in sorted((ROOT / package).rglob("*.pxd")):
            if pxd.with_suffix(".py").exists():
                chosen = with_views if "[:" in pxd.read_text() else without
                chosen.append(str(pxd.relative_to(ROOT).with_suffix(".py")))
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
    options: dict[str, Any] = {"language_level": 3, "compiler_directives": directives, "force": checked}
    options |= {"nthreads": PROCESSORS, "quiet": True}
    utility = Extension(UTILITY, [UTILITY.replace(".", "/") + ".c"])
    modules = cythonize([utility, *with_views], shared_utility_qualified_name=UTILITY, **options)
    modules += cythonize(without, **options)
    for module in modules:
        module.optional = not MODE  # cythonize() drops optional=True given to Extension
        module.extra_compile_args = ["-O1" if checked else "-O3", "-g0"]  # tests are short: compiling counts
    return list(modules)


setup(ext_modules=extensions(), options={"build_ext": {"parallel": PROCESSORS}})
