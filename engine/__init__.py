"""The log: segments, indexes, commits, cursors and sessions.

Public for programs that hold a log themselves: the names of ``__all__``, each loaded when it is used. What the commands
and Spark may import besides, to work on files without a server, is the list ``ENGINE_PUBLIC`` of
``tests/unit/test_tidy.py``; everything else may change without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.pure import load_sources

if TYPE_CHECKING:
    from engine.config import EngineConfig, TopicConfig
    from engine.errors import EngineError
    from engine.formats.record import Record
    from engine.inbox import Inbox
    from engine.log import Log
    from engine.partitions.partition import Partition
    from engine.segments.batches import COMMITTED, FAILED, PENDING, outcome

__all__ = [
    "COMMITTED",
    "FAILED",
    "PENDING",
    "EngineConfig",
    "EngineError",
    "Inbox",
    "Log",
    "Partition",
    "Record",
    "TopicConfig",
    "outcome",
]

_HOMES = {
    "COMMITTED": "engine.segments.batches",
    "FAILED": "engine.segments.batches",
    "PENDING": "engine.segments.batches",
    "EngineConfig": "engine.config",
    "EngineError": "engine.errors",
    "Inbox": "engine.inbox",
    "Log": "engine.log",
    "Partition": "engine.partitions.partition",
    "Record": "engine.formats.record",
    "TopicConfig": "engine.config",
    "outcome": "engine.segments.batches",
}

load_sources()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
