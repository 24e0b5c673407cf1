"""What all parts of one log have in common: files, state, clock, and the ways to the owner's thread.

`engine.log.Log` makes it before any of its parts and hands it to each of them; none of them knows the log itself. What
a part needs of another part comes to it beside this, by that part's own type or by a small protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import ReadOnly
from engine.files.descriptors import Handles
from engine.files.lock import DirectoryLock
from engine.files.system import Files
from engine.histogram import Histogram
from engine.segments.buffers import BufferPool
from engine.segments.watermarks import Watermarks
from engine.slices import Slices
from engine.state.clock import DoubtedClock
from engine.state.index import Index
from engine.state.store import CallSoon, StateStore
from engine.state.topic_catalog import Catalog


class Backlog:
    """Records that were appended and are neither committed nor failed. Owner's thread only."""

    __slots__ = ("_call_soon", "_when_empty", "bytes", "write_batches")

    def __init__(self, call_soon: CallSoon) -> None:
        self.bytes = 0
        self.write_batches = 0
        """Those that wait for a round, or for the files of their partition."""
        self._when_empty: list[Callable[[], None]] = []
        self._call_soon = call_soon

    def settled(self, size_bytes: int) -> None:
        """A write batch that counted so many bytes was committed or has failed."""
        self.bytes -= size_bytes
        self.write_batches -= 1
        if not self.write_batches and self._when_empty:
            callbacks, self._when_empty = self._when_empty, []
            for callback in callbacks:
                self._call_soon(callback)

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Calls back when everything appended so far is committed or has failed."""
        if self.write_batches:
            self._when_empty.append(callback)
        else:
            callback()


def _read_histograms() -> dict[str, Histogram]:
    return {source: Histogram() for source in ("memory", "cache", "disk")}


@dataclass(slots=True)
class Figures:
    """Plain sums, read by the metrics at a scrape."""

    damaged_batches: int = 0
    damaged_records: int = 0
    """Numbers of records in batches that readers found damaged."""
    lost_records: int = 0
    """Numbers of committed records that recoveries found damaged or missing."""
    removed_bytes: int = 0
    """Bytes of segments that retention and trimming removed."""
    tail_reads: int = 0
    read_seconds: dict[str, Histogram] = field(default_factory=_read_histograms)
    """Time that reads took, by where they were answered."""


@dataclass(slots=True, eq=False)
class EngineContext:
    """See the module's text. Only `config` (at a reload), `error` and `is_closed` change, on the owner's thread."""

    data_dir: Path
    config: EngineConfig
    files: Files
    handles: Handles
    lock: DirectoryLock
    state: StateStore
    index: Index
    catalog: Catalog
    watermarks: Watermarks
    clock: DoubtedClock
    buffers: BufferPool
    slices: Slices
    call_soon: CallSoon
    """Calls a function in the owner's next turn; on the owner's thread alone, where that is cheaper."""
    call_soon_threadsafe: CallSoon
    """The same from any thread; calls come in their order."""
    backlog: Backlog
    now_ms: Callable[[], int]
    """Milliseconds since 1970 by the clock of the log (any thread)."""
    steady_ms: Callable[[], int]
    """Milliseconds by a clock that nobody sets."""
    figures: Figures = field(default_factory=Figures)
    error: ReadOnly | None = None
    """Why nothing more is stored at all, until a restart."""
    is_closed: bool = False
    """Closing has begun: results of worker threads that arrive late are dropped."""

    def check_directory(self) -> None:
        """Raises ReadOnly when the data directory is not where it was opened: paths name others then (any thread).

        OSError: it cannot be told now.
        """
        if not self.lock.is_in_place():
            raise ReadOnly(
                f"data directory {self.data_dir} was moved, replaced or removed while it was in use: nothing more is "
                "stored; put it back and restart the server"
            )
