"""The one switch between compiled modules and plain Python: with ``QUINTLOG_PURE=1`` no compiled module is loaded.

Each module of ours is then loaded from its source, compiled form or not, and what chooses between a compiled module and
its twin finds that there is none. Every package of ours imports `engine` first, and that calls `load_sources`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

PURE = os.environ.get("QUINTLOG_PURE") == "1"
PACKAGES = ("engine", "netserver", "tools")


class _SourceFinder:
    """Finds the sources of our modules, before the usual finder would find what was compiled from them."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if path is None or name.partition(".")[0] not in PACKAGES:
            return None
        finders = (FileFinder(entry, (SourceFileLoader, SOURCE_SUFFIXES)) for entry in path)
        return next((spec for finder in finders if (spec := finder.find_spec(name)) is not None), None)


def load_sources() -> None:
    """Takes the sources from now on, if the switch says so."""
    if PURE:
        sys.meta_path.insert(0, _SourceFinder)
