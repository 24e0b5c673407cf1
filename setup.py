"""Build of the package; the hot modules are compiled by `build_modules.py`.

Environment:
    QUINTLOG_BUILD=pure     compile nothing: a wheel for any machine
    QUINTLOG_BUILD=require  a missing or failing compiler is an error (otherwise the pure modules are used)
    QUINTLOG_BUILD=checked  like require, with bounds checks on (for tests and fuzzing)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build front end runs this file without

import build_modules  # noqa: E402

MODE = os.environ.get("QUINTLOG_BUILD", "")
MODULES = [] if MODE == "pure" else build_modules.modules(checked=MODE == "checked")


class BuildModules(build_ext):
    """Takes the modules from the cache of what was compiled, and compiles what is not there."""

    def run(self) -> None:
        try:
            build_modules.compile_missing(MODULES)
            build_modules.take(MODULES, ROOT if self.inplace else Path(self.build_lib))
        except build_modules.CompileError as error:
            if MODE:
                raise
            build_modules.say(f"{error}\nsetup: the hot modules run as plain Python, slower")
            self.extensions = []

    def get_source_files(self) -> list[str]:
        """None beyond the packages: what Cython makes of them is no source."""
        return []


setup(
    ext_modules=[Extension(module.name, [module.source]) for module in MODULES],
    cmdclass={"build_ext": BuildModules},
)
