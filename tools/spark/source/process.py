"""The processes in which Spark runs a source in Python."""

from __future__ import annotations

import gc
import sys


def keep_imports() -> None:
    """To be called when all is imported: what is there now stays out of garbage collection.

    Spark keeps such a process for the next task or step of planning, and after each one runs a full collection: with
    Spark's, Arrow's and our modules in it, most of the CPU time of a small task. Other processes are left alone.
    """
    global _KEPT
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if not _KEPT and spec is not None and spec.name == "pyspark.daemon":
        gc.freeze()
        _KEPT = True


_KEPT = False
