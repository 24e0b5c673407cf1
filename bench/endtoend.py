"""End-to-end loads over TCP with compiled load clients, beside other servers in the same run.

    python -m bench.endtoend [--seconds 4] [--only GLOB] [--json FILE] [--markdown FILE] [--svg FILE]

Every row states the durability: *always* = an acknowledgement means fdatasync has returned. Wall figures on a small
machine depend on what else it does; ratios within one run and messages per server CPU second move far less.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import machine, peers
from bench.peers import Load
from bench.tank_loads import Tank
from netserver.testing import ServerProcess

HERE = Path(__file__).parent


@dataclass
class Row:
    """One line of the table."""

    name: str
    durability: str
    size: int
    messages: int
    per_second: float
    per_cpu_second: float
    p50_us: float
    p99_us: float


@dataclass
class Bench:
    """What a run has measured so far."""

    seconds: float
    directory: Path
    only: str
    rows: list[Row] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)

    def wants(self, name: str) -> bool:
        """Whether `--only` names this load."""
        return fnmatch.fnmatch(name, self.only)

    def add(self, name: str, durability: str, size: int, measure: Callable[[], Load]) -> Load | None:
        """Measures one load and prints it."""
        if not self.wants(name):
            return None
        load = measure()
        row = Row(name, durability, size, load.messages, load.per_second, load.per_cpu_second, load.p50_us, load.p99_us)
        self.rows.append(row)
        print(format_row(row), flush=True)
        return load


def format_row(row: Row) -> str:
    """A row for a terminal."""
    return (
        f"{row.name:46} {row.durability:10} {row.size:5d} B {row.per_second / 1e3:10.1f} k/s "
        f"{row.per_second * row.size / 1e6:8.1f} MB/s {row.per_cpu_second / 1e6:7.2f} M/cpu-s "
        f"p50 {row.p50_us:8.0f} us p99 {row.p99_us:8.0f} us"
    )


def build(directory: Path, name: str) -> Path:
    """Compiles a load client."""
    program = directory / name
    subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / f"{name}.c")], check=True)
    return program


class Figg:
    """Loads on a running server through the compiled Figg client."""

    def __init__(self, program: Path, server: ServerProcess) -> None:
        self.program = program
        self.server = server
        self.host, port = server.address("figg")
        self.port = str(port)

    def _run(self, *arguments: object) -> Load:
        before = machine.cpu_seconds(self.server.pid)
        run = subprocess.run(
            [str(self.program), *map(str, arguments)], capture_output=True, text=True, check=True, timeout=120
        )
        return load_of(run.stdout, machine.cpu_seconds(self.server.pid) - before)

    def publish(self, topic: str, size: int, connections: int, window: int, seconds: float) -> Load:
        """Publishes for `seconds`; counts what was acknowledged."""
        return self._run("publish", self.host, self.port, topic, size, connections, window, seconds)

    def consume(self, topic: str, connections: int, count: int) -> Load:
        """Every connection reads `count` records from the beginning."""
        return self._run("consume", self.host, self.port, topic, connections, count)

    @contextmanager
    def following(self, topic: str, subscribers: int) -> Iterator[list[Load]]:
        """Live subscribers for the time of the block; the list holds their sum afterwards."""
        arguments = ["follow", self.host, self.port, topic, str(subscribers), "600"]
        before = machine.cpu_seconds(self.server.pid)
        process = subprocess.Popen(
            [str(self.program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        process.stderr.readline()  # "attached"
        result: list[Load] = []
        try:
            yield result
        finally:
            process.terminate()
            output, _ = process.communicate()
            result.append(load_of(output, machine.cpu_seconds(self.server.pid) - before))


def load_of(output: str, cpu: float) -> Load:
    """What a load client printed."""
    fields = json.loads(output)
    return Load(fields["messages"], fields["seconds"], cpu, fields["p50_us"], fields["p99_us"])


@contextmanager
def server(bench: Bench, durability: str = "always") -> Iterator[ServerProcess]:
    """A server on a directory of its own."""
    directory = bench.directory / f"quintlog-{durability}"
    others = {name: {"listen": "off"} for name in ("reliably", "fujin")}
    with ServerProcess(directory, {**others, "topics": {"durability": durability}}) as process:
        yield process
    shutil.rmtree(directory)


def figg_loads(bench: Bench, program: Path) -> None:
    """Publishing and consuming through Figg."""
    seconds = bench.seconds
    with server(bench) as process:
        figg = Figg(program, process)
        for size in (100, 1024):
            for connections, window in ((1, 1), (1, 256), (1, 4096), (1, 20000), (100, 1), (100, 100)):
                name = f"figg publish {connections} x {window}"
                topic = f"p{size}-{connections}-{window}"
                bench.add(
                    name,
                    "always",
                    size,
                    lambda t=topic, s=size, c=connections, w=window: figg.publish(t, s, c, w, seconds),
                )  # type: ignore[misc]
        if bench.wants("figg consume history"):
            count = figg.publish("history", 100, 1, 20000, seconds).messages
            for _ in range(2):
                bench.add("figg consume history", "-", 100, lambda: figg.consume("history", 1, count))
        for subscribers in (1, 100):
            name = f"figg publish 1 x 4096, {subscribers} live"
            if not bench.wants(name):
                continue
            with figg.following(f"live{subscribers}", subscribers) as sums:
                bench.add(name, "always", 100, lambda n=subscribers: figg.publish(f"live{n}", 100, 1, 4096, seconds))  # type: ignore[misc]
            bench.add(
                f"figg deliveries to {subscribers} live", "always", 100, lambda found=sums: during(found[0], seconds)
            )  # type: ignore[misc]
        flood(bench, figg, program, process)
    with server(bench, "never") as process:
        figg = Figg(program, process)
        for window in (1, 4096, 20000):
            bench.add(
                f"figg publish 1 x {window}, no sync",
                "never",
                100,
                lambda w=window: figg.publish(f"n{w}", 100, 1, w, seconds),
            )  # type: ignore[misc]


def tank_loads(bench: Bench, program: Path) -> None:
    """Producing and consuming through TANK, in bundles of 100 messages and of one."""
    for durability in ("always", "never"):
        with server(bench, durability) as process:
            tank = Tank(program, process, bench.directory)
            tank_produce(bench, tank, durability)
            if durability == "always":
                tank_consume(bench, tank)


def tank_produce(bench: Bench, tank: Tank, durability: str) -> None:
    """Bundles of 100 messages and of one."""
    for records, window in ((100, 16), (100, 64), (1, 64)):
        topic = f"{records}-{window}".encode()
        bench.add(
            f"tank produce {records} x {window}",
            durability,
            100,
            lambda t=topic, r=records, w=window: tank.produce(t, r, w, bench.seconds),  # type: ignore[misc]
        )


def tank_consume(bench: Bench, tank: Tank) -> None:
    """The topics of ``tank_produce``, from their beginning, as often as it takes."""
    for records in (100, 1):
        name, topic = f"tank consume, bundles of {records}", f"{records}-64".encode()
        if not bench.wants(name):
            continue
        if not bench.wants(f"tank produce {records} x 64"):
            tank.produce(topic, records, 64, bench.seconds)
        count = int(8_000_000 * bench.seconds)
        bench.add(name, "-", 100, lambda t=topic, n=count: tank.consume(t, n))  # type: ignore[misc]


def during(load: Load, seconds: float) -> Load:
    """Deliveries by the time that the publisher ran, not by that which the subscribers were connected."""
    return Load(load.messages, seconds, load.cpu_seconds)


def flood(bench: Bench, figg: Figg, program: Path, process: ServerProcess) -> None:
    """A publisher at window 1 beside a flood of 1 KiB records."""
    name = "figg publish 1 x 1 beside a 1 KiB flood"
    if not bench.wants(name):
        return
    arguments = ["publish", figg.host, figg.port, "flood", "1024", "1", "4096", str(bench.seconds + 1)]
    other = subprocess.Popen([str(program), *arguments], stdout=subprocess.DEVNULL)
    try:
        bench.add(name, "always", 100, lambda: figg.publish("beside", 100, 1, 1, bench.seconds))
    finally:
        other.wait()


def peer_loads(bench: Bench) -> None:
    """Redis and NATS, each in its modes."""
    messages = int(150_000 * bench.seconds)
    if shutil.which("redis-server"):
        for appendfsync in ("always", "everysec"):
            with peers.redis(bench.directory / f"redis-{appendfsync}", appendfsync) as (port, pid):
                for size in (100, 1024):
                    for connections in (1, 50):
                        bench.add(
                            f"redis XADD {connections} x 500",
                            appendfsync,
                            size,
                            lambda s=size, c=connections, p=port, i=pid: peers.redis_publish(p, i, s, c, messages),  # type: ignore[misc]
                        )
    tools = peers.nats_tools(Path(tempfile.gettempdir()) / "quintlog-bench-nats") if bench.wants("jetstream") else None
    if tools is None:
        return
    for sync_always, durability, count in ((False, "2 min", messages), (True, "always", 4000)):
        with peers.nats(tools[0], bench.directory / f"nats-{durability[:1]}", sync_always=sync_always) as (port, pid):
            for size in (100, 1024):
                bench.add(
                    "jetstream",
                    durability,
                    size,
                    lambda s=size, p=port, i=pid, n=count: peers.nats_publish(tools[1], p, i, s, n, 4096),  # type: ignore[misc]
                )


def measure_limits(bench: Bench) -> None:
    """Bare figures of the machine."""
    for size, name in ((4096, "4 KiB"), (65536, "64 KiB"), (1 << 20, "1 MiB")):
        p50, p99 = machine.sync_us(bench.directory, size)
        bench.limits[f"write + fdatasync {name} p50 us"] = p50
        bench.limits[f"write + fdatasync {name} p99 us"] = p99
    bench.limits["loopback GB/s"] = machine.loopback_bytes_per_s() / 1e9
    bench.limits["memory copy GB/s"] = machine.copy_bytes_per_s() / 1e9
    print(machine.describe())
    for name, value in bench.limits.items():
        print(f"  {name:34} {value:10.1f}")


def markdown(bench: Bench) -> str:
    """The table for people."""
    lines = [f"{machine.describe()}. Limits of the same run: "]
    lines[0] += ", ".join(f"{name} {value:.1f}" for name, value in bench.limits.items()) + "."
    lines += ["", "| load | acknowledged | size | messages/s | MB/s | per server CPU second | p50 | p99 |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|")
    for row in bench.rows:
        lines.append(
            f"| {row.name} | {row.durability} | {row.size} B | {row.per_second:,.0f} "
            f"| {row.per_second * row.size / 1e6:,.1f} | {row.per_cpu_second:,.0f} "
            f"| {row.p50_us:,.0f} us | {row.p99_us:,.0f} us |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the loads that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each publishing load (default: 4)")
    parser.add_argument("--only", default="*", help="run the loads whose name matches this pattern")
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    parser.add_argument("--markdown", type=Path, help="write the table as Markdown")
    parser.add_argument("--svg", type=Path, help="write a chart (needs matplotlib)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintlog-bench-", dir=Path.cwd()) as name:
        bench = Bench(options.seconds, Path(name), options.only)
        measure_limits(bench)
        figg_loads(bench, build(bench.directory, "load_figg"))
        tank_loads(bench, build(bench.directory, "load_tank"))
        peer_loads(bench)
    if options.json:
        fields = {"machine": machine.describe(), "limits": bench.limits, "rows": [asdict(row) for row in bench.rows]}
        options.json.write_text(json.dumps(fields, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(bench))
    if options.svg:
        from bench.chart import draw

        draw(bench.rows, options.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
