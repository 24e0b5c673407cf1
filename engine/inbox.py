"""An owner without an event loop: for tools, tests and benchmarks that use the engine in a plain program."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.log import Log


class Inbox:
    """What worker threads post is run by whoever calls `run_until`, on that thread: it is the owner."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """Takes a callable from any thread."""
        self._queue.put(callback)

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Runs what was posted until `condition` holds.

        Raises:
            TimeoutError: it did not within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"nothing happened within {timeout_s} s")
            try:
                self._queue.get(timeout=left_s)()
            except Empty:
                continue

    def run_pending(self) -> None:
        """Runs what has been posted so far, without waiting."""
        while True:
            try:
                callback = self._queue.get_nowait()
            except Empty:
                return
            callback()

    def close(self, log: Log) -> None:
        """Waits until everything is committed, then closes the log."""
        idle: list[bool] = []
        log.drain(lambda: idle.append(True))
        self.run_until(lambda: bool(idle))
        log.close()
        self.run_pending()
