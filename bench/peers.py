"""Other servers, run in the same minutes on the same machine: Redis streams and NATS JetStream."""

from __future__ import annotations

import csv
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.machine import cpu_seconds

NATS_SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
NATS_CLIENT = "github.com/nats-io/natscli/nats@v0.5.0"
GO_INSTALL_S = 240


@dataclass(frozen=True)
class Load:
    """One measured load; ``client_share``: of a CPU, that the load client took (0: not known)."""

    messages: int
    seconds: float
    cpu_seconds: float
    p50_us: float = 0.0
    p99_us: float = 0.0
    client_share: float = 0.0

    @property
    def per_second(self) -> float:
        """Messages per second of wall time."""
        return self.messages / self.seconds

    @property
    def per_cpu_second(self) -> float:
        """Messages per CPU second of the server."""
        return self.messages / self.cpu_seconds if self.cpu_seconds else 0.0


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Returns when somebody accepts connections on `port`."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)  # there is nothing to wait on but the port itself
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")


@contextmanager
def running(arguments: list[str], port: int, wait_s: float = 20) -> Iterator[int]:
    """A server process; gives its pid."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, process, wait_s)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def redis(directory: Path, appendfsync: str) -> Iterator[tuple[int, int]]:
    """(port, pid) of a redis-server with an append-only file."""
    port = free_port()
    directory.mkdir()
    arguments = ["redis-server", "--port", str(port), "--dir", str(directory), "--save", "", "--appendonly", "yes"]
    with running([*arguments, "--appendfsync", appendfsync], port) as pid:
        yield port, pid


def redis_publish(port: int, pid: int, size: int, connections: int, messages: int, pipeline: int = 500) -> Load:
    """XADD of one field, `pipeline` at a time on each connection."""
    arguments = ["redis-benchmark", "-p", str(port), "-c", str(connections), "-P", str(pipeline), "-n", str(messages)]
    before = cpu_seconds(pid)
    start = time.perf_counter()
    run = subprocess.run(
        [*arguments, "--csv", "XADD", "stream", "*", "f", "x" * size], capture_output=True, text=True, check=True
    )
    wall = time.perf_counter() - start
    cpu = cpu_seconds(pid) - before
    rows = list(csv.reader(line for line in run.stdout.splitlines() if line.startswith('"')))
    row = dict(zip(rows[0], rows[-1], strict=True))
    rate = float(row["rps"])
    return Load(
        messages,
        messages / rate if rate else wall,
        cpu,
        float(row["p50_latency_ms"]) * 1e3,
        float(row["p99_latency_ms"]) * 1e3,
    )


def nats_tools(directory: Path) -> tuple[str, str] | None:
    """Paths of nats-server and its client, built from the Go module proxy where Go is at hand."""
    found = shutil.which("nats-server"), shutil.which("nats")
    if found[0] and found[1]:
        return found[0], found[1]
    if shutil.which("go") is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    for module in (NATS_SERVER, NATS_CLIENT):
        name = module.split("@")[0].rsplit("/", 1)[1].replace("v2", "nats-server")
        if not (directory / name).exists():
            environment = {**os.environ, "GOBIN": str(directory)}
            run = subprocess.run(["go", "install", module], env=environment, check=False, timeout=GO_INSTALL_S)
            if run.returncode:
                return None
    return str(directory / "nats-server"), str(directory / "nats")


@contextmanager
def nats(server: str, directory: Path, *, sync_always: bool) -> Iterator[tuple[int, int]]:
    """(port, pid) of a nats-server with JetStream on files."""
    port = free_port()
    directory.mkdir()
    sync = "sync_interval: always" if sync_always else ""
    config = directory / "nats.conf"
    config.write_text(f'port: {port}\nhost: "127.0.0.1"\njetstream {{ store_dir: "{directory / "js"}"\n {sync} }}\n')
    with running([server, "-c", str(config)], port) as pid:
        yield port, pid


def nats_publish(client: str, port: int, pid: int, size: int, messages: int, batch: int = 500) -> Load:
    """Asynchronous JetStream publishes with at most `batch` unacknowledged."""
    url = f"nats://127.0.0.1:{port}"
    subprocess.run(
        [client, "-s", url, "stream", "add", "bench", "--subjects", "bench.>", "--storage", "file", "--defaults"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    arguments = [
        client,
        "-s",
        url,
        "bench",
        "js",
        "pub",
        "async",
        "bench.t",
        "--stream",
        "bench",
        "--batch",
        str(batch),
    ]
    before = cpu_seconds(pid)
    run = subprocess.run(
        [*arguments, "--msgs", str(messages), "--size", str(size), "--no-progress"],
        capture_output=True,
        text=True,
        check=True,
    )
    cpu = cpu_seconds(pid) - before
    match = re.search(r"([\d,]+) msgs/sec", run.stdout + run.stderr)
    if match is None:
        raise RuntimeError(f"no figure in what nats bench printed: {run.stdout[-500:]}{run.stderr[-500:]}")
    rate = float(match[1].replace(",", ""))
    return Load(messages, messages / rate, cpu)
