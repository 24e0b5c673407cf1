"""What it costs to know how far groups are behind: CPU of a server with many positions, and its longest turn.

    python -m bench.groups [--positions 10000] [--idle-s 30]

Positions of HTTP consumers over the partitions of ten topics, a tenth of them with records that wait. Compared is a
server without any; "at rest" is the noting of trends, a scrape is what a monitor asks for every 15 s.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.machine import cpu_seconds
from netserver.testing import ServerProcess, server

OTHERS = {name: {"listen": "off"} for name in ("figg", "reliably", "tank", "blipmq", "fujin", "kafka")}
TOPICS, PARTITIONS, SCRAPES = 10, 100, 3


def figure(process: ServerProcess, name: str) -> float:
    """The value of a metric; 0: there is none."""
    with urllib.request.urlopen(f"{process.admin_url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return max((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"quintlog_{name}")), default=0.0)


def fill(process: ServerProcess, positions: int) -> None:
    """Topics, records in a tenth of their partitions, and groups."""
    for topic in range(TOPICS):
        process.admin("POST", "/v1/topics", {"name": f"t{topic}", "partitions": PARTITIONS})
        for partition in range(0, PARTITIONS, 10):
            body = {"partition": partition, "records": [{"value": "x"}] * 50}
            process.admin("POST", f"/v1/topics/t{topic}/records", body)
    for group in range(positions // PARTITIONS):
        process.admin("POST", "/v1/groups", {"name": f"g{group}", "topic": f"t{group % TOPICS}"})


def measure(positions: int, idle_s: float) -> tuple[float, float, float]:
    """(share of a CPU at rest, CPU seconds of a scrape, longest turn in seconds)."""
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "data", OTHERS) as process:
        fill(process, positions)
        before_s, began_s = cpu_seconds(process.pid), time.monotonic()
        time.sleep(idle_s)
        share = (cpu_seconds(process.pid) - before_s) / (time.monotonic() - began_s)
        before_s = cpu_seconds(process.pid)
        for _ in range(SCRAPES):
            figure(process, "ready")
        scrape_s = (cpu_seconds(process.pid) - before_s) / SCRAPES
        for path in ("/v1/groups", "/v1/subscriptions"):
            process.admin("GET", path)
        return share, scrape_s, figure(process, "loop_turn_seconds_max")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--idle-s", type=float, default=30.0)
    asked = parser.parse_args()
    bare = measure(0, asked.idle_s)
    full = measure(asked.positions, asked.idle_s)
    rest, scrape_s = full[0] - bare[0], full[1] - bare[1]
    print(f"{asked.positions} positions at rest: {rest:.2%} of a CPU more than none ({bare[0]:.2%})")
    print(f"a scrape: {scrape_s * 1000:.0f} ms of CPU more, every 15 s {scrape_s / 15:.2%}")
    print(f"longest turn, with lists of all: {full[2] * 1000:.1f} ms")


if __name__ == "__main__":
    main()
