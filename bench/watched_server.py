"""``engine-server`` with a meter in its event loop: how long it did not get to its timers.

    python -m bench.watched_server FILE [options of engine-server]

A timer of 2 ms notes by how much it is late at worst, and how much CPU time the loop's thread took between two of its
calls at worst: the first is what a client may have waited for, whoever had the processor; the second is the work of one
turn of the loop. ``FILE`` holds both, and may be reset by whoever reads it (`Stalls`).
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

INTERVAL_S = 0.002
_TWO = struct.Struct("<dd")


class Stalls:
    """The file: longest stall by the clock, longest by CPU time, in seconds."""

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(_TWO.size)
            self._map = mmap.mmap(file.fileno(), _TWO.size)

    def reset(self) -> None:
        """Begin anew."""
        _TWO.pack_into(self._map, 0, 0.0, 0.0)

    def note(self, late_s: float, cpu_s: float) -> None:
        """The longer ones stay."""
        longest_s, most_s = _TWO.unpack_from(self._map)
        if late_s > longest_s or cpu_s > most_s:
            _TWO.pack_into(self._map, 0, max(longest_s, late_s), max(most_s, cpu_s))

    def longest_ms(self) -> tuple[float, float]:
        """(by the clock, by CPU time) since the last reset."""
        longest_s, most_s = _TWO.unpack_from(self._map)
        return longest_s * 1e3, most_s * 1e3


class Meter:
    """Looks at the loop's delays for as long as it runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stalls: Stalls) -> None:
        self._loop = loop
        self._stalls = stalls
        self._again()

    def _again(self) -> None:
        self._due = time.perf_counter() + INTERVAL_S
        self._cpu = time.thread_time()
        self._loop.call_later(INTERVAL_S, self._look)

    def _look(self) -> None:
        self._stalls.note(time.perf_counter() - self._due, time.thread_time() - self._cpu)
        self._again()


def main() -> None:
    """Runs the server."""
    import uvloop

    from tools.engine_server import main as serve

    stalls = Stalls(Path(sys.argv.pop(1)))
    run = uvloop.run

    def watched(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def both() -> Any:
            Meter(asyncio.get_running_loop(), stalls)
            return await main

        return run(both(), **options)

    uvloop.run = watched
    serve()


if __name__ == "__main__":
    main()
