"""Streams of numbers through the JSON streaming protocol, durable, beside bare synced LMDB commits of the same run.

    python -m bench.json_streams [--quick]

Every stream is checked: ids without a gap, the right checksum. A commit here is the least that a message can cost that
is stored before it is sent; messages are made ahead so that one commit carries many of them.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from bench.machine import cpu_seconds
from netserver.testing import ServerProcess

OTHERS = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "fujin", "kafka")}
HERE = Path(__file__).parent
MESSAGES_PER_COMMIT = 200
RATE_OF_100 = 150_000
RATE_OF_1000 = 200_000
IDLE_BYTES = 2048


class Commits:
    """A bare LMDB environment beside the server's."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._environment = lmdb.open(str(directory), map_size=1 << 30, lib_version=0)

    def once(self) -> float:
        """Seconds of one synced commit of 100 bytes."""
        start = time.perf_counter()
        with self._environment.begin(write=True) as transaction:
            transaction.put(b"key", b"v" * 100)
        return time.perf_counter() - start

    def median(self, count: int = 100) -> float:
        """Seconds."""
        return statistics.median(self.once() for _ in range(count))


def load(process: ServerProcess, connections: int, count: int) -> dict[str, Any]:
    """Runs the load client; its figures, and messages per second and per CPU second of the server."""
    before = cpu_seconds(process.pid)
    command = [sys.executable, str(HERE / "load_json.py"), str(process.ports["reliably"]), str(connections), str(count)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    figures: dict[str, Any] = json.loads(run.stdout)
    assert figures["bad"] == 0, "a stream is wrong"
    figures["per_second"] = figures["messages"] / figures["seconds"]
    figures["per_cpu_second"] = figures["messages"] / (cpu_seconds(process.pid) - before)
    return figures


def first_message(process: ServerProcess) -> float:
    """Seconds from the request of a new session to its first message."""
    with socket.create_connection(process.address("reliably")) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = b'{"uuid":"%s","params":{"count":5}}\n' % str(uuid.uuid4()).encode()
        start = time.perf_counter()
        connection.sendall(request)
        assert connection.recv(1024)
        return time.perf_counter() - start


def memory_bytes(process: ServerProcess) -> int:
    """Resident memory of the server."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def state_bytes(process: ServerProcess) -> int:
    """Size of the state's file."""
    return (process.data_dir / "state" / "data.mdb").stat().st_size


def idle_sessions(process: ServerProcess, count: int) -> tuple[float, float]:
    """(memory, disk) in bytes of a session that nobody uses."""
    for _ in range(200):
        first_message(process)
    memory, disk = memory_bytes(process), state_bytes(process)
    for _ in range(count):
        first_message(process)
    return (memory_bytes(process) - memory) / count, (state_bytes(process) - disk) / count


@contextmanager
def server(directory: Path) -> Iterator[ServerProcess]:
    """A server with this protocol alone."""
    with ServerProcess(directory, {**OTHERS, "reliably": {"session_expiry_ms": "1h"}}) as process:
        yield process


def line(name: str, figure: str, needed: str, good: bool) -> None:
    """A row for a terminal."""
    print(f"{name:44} {figure:>24}   needed {needed:24} {'yes' if good else 'NO'}", flush=True)


def run(directory: Path, quick: bool) -> None:
    """All loads."""
    commits = Commits(directory / "bare")
    with server(directory / "data") as process:
        for connections, count in ((1, 65535), (100, 2000 if quick else 10_000), (1000, 200 if quick else 1000)):
            bare_s = commits.median()
            runs = [load(process, connections, count) for _ in range(1 if quick else 3)]
            best = max(runs, key=lambda figures: float(figures["per_second"]))
            rate = best["per_second"]
            name = f"{connections} streams, {rate / 1e3:.0f} k/s, {best['per_cpu_second'] / 1e3:.0f} k per CPU s"
            if connections == 1:
                per_commit = rate * bare_s
                figure = f"{per_commit:.0f} a commit of {bare_s * 1e3:.2f} ms"
                line(name, figure, f"{MESSAGES_PER_COMMIT} a commit", per_commit >= MESSAGES_PER_COMMIT)
            else:
                needed = RATE_OF_100 if connections == 100 else RATE_OF_1000
                line(name, f"{rate / 1e3:.0f} k/s", f"{needed / 1e3:.0f} k/s", rate >= needed)
        pairs = [(commits.once(), first_message(process)) for _ in range(50 if quick else 300)]
        bare_s, first_s = (statistics.median(column) for column in zip(*pairs, strict=True))
        allowed_s = 2 * bare_s + 0.002
        line("first message, median", f"{first_s * 1e3:.2f} ms", f"{allowed_s * 1e3:.2f} ms", first_s <= allowed_s)
    with server(directory / "idle") as process:
        memory, disk = idle_sessions(process, 500 if quick else 5000)
        line("idle session, memory", f"{memory:.0f} B", f"{IDLE_BYTES} B", memory < IDLE_BYTES)
        line("idle session, disk", f"{disk:.0f} B", f"{IDLE_BYTES} B", disk < IDLE_BYTES)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--directory", type=Path, help="where to put the data (default: a temporary directory)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintlog-bench-", dir=arguments.directory) as directory:
        run(Path(directory), arguments.quick)


if __name__ == "__main__":
    main()
