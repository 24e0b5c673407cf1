"""A patient client beside a hostile one: publishes one record at a time, and how long each took.

It is a process of its own, so that the one who measures does not wait for the hostile one's interpreter::

    with Prober(server.address("figg")) as prober:
        quiet = prober.take(500)
        attack(server)
        beside = prober.take(20)

As a program it answers each line "COUNT" with the milliseconds of everything since the last answer, of COUNT records at
least, as JSON.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.blipmq_peer import Peer as BlipmqPeer
from tests.figg_peer import FiggPeer

PAUSE_S = 0.002
TOPIC = b"prober"
PATIENCE_S = 120.0


class Prober:
    """The process; probing begins at once.

    Args:
        protocol: "figg" or "blipmq".
        address: of its listener.
    """

    def __init__(self, protocol: str, address: tuple[str, int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.prober", protocol, address[0], str(address[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip
        try:
            self.take(1)
        except AssertionError:
            self._process.communicate()
            raise

    def take(self, count: int) -> list[float]:
        """Milliseconds of each publish since the last call, of ``count`` at least, the shortest first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the prober has ended"
        found: list[float] = json.loads(line)
        return sorted(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()  # the end of its input is its end
        assert kind or self._process.returncode == 0


def percentile(ordered: list[float], share: float) -> float:
    """Of a sorted list."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def probe(protocol: str, address: tuple[str, int]) -> None:
    """The process's work."""
    figg = FiggPeer(address, PATIENCE_S) if protocol == "figg" else None
    blipmq = BlipmqPeer(address) if protocol == "blipmq" else None
    if blipmq is not None:
        blipmq.socket.settimeout(PATIENCE_S)
    taken: list[float] = []
    wanted = 0
    number = 0
    while True:
        if select.select([sys.stdin], [], [], PAUSE_S)[0] and not wanted:
            line = sys.stdin.readline()
            if not line:
                return
            wanted = int(line)
        started = time.perf_counter()
        if figg is not None:
            figg.send(TOPIC, [b"x" * 100])
            assert figg.wait_for_ack(number)
        if blipmq is not None:
            blipmq.publish(TOPIC, b"x" * 100)
        taken.append((time.perf_counter() - started) * 1e3)
        number += 1
        if wanted and len(taken) >= wanted:
            print(json.dumps(taken), flush=True)
            taken, wanted = [], 0


if __name__ == "__main__":
    probe(sys.argv[1], (sys.argv[2], int(sys.argv[3])))
