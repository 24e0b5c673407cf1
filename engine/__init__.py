"""The log: segments, indexes, commits, cursors and sessions. The public face, loaded when a name of it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.pure import load_sources

if TYPE_CHECKING:
    from engine.config import EngineConfig, TopicConfig
    from engine.errors import EngineError
    from engine.formats.record import Record
    from engine.log import Log

__all__ = ["EngineConfig", "EngineError", "Log", "Record", "TopicConfig"]

_HOMES = {
    "EngineConfig": "engine.config",
    "EngineError": "engine.errors",
    "Log": "engine.log",
    "Record": "engine.formats.record",
    "TopicConfig": "engine.config",
}

load_sources()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
