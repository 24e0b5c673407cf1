"""The log: segments, indexes, commits, cursors and sessions. `engine.log.Log` is its face."""

from engine.pure import load_sources

load_sources()
