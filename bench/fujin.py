"""Fujin loads, durable, beside a bare tuned aioquic echo of the same shape in the same run.

    python -m bench.fujin [--seconds 2] [--rounds 3] [--only GLOB] [--markdown FILE]

For each shape the echo (``bench.fujin_echo``) and the server take turns, and the medians are compared: messages per
second of wall time, and per CPU second of the server's process. Durable writes are also compared with an echo that
appends what it gets to a file and syncs that before it answers: what is left then is not the disk's. The load client
(``bench.load_fujin``) is Python over aioquic too, so it must have a core of its own. ``no sync`` shapes tell what is
left when nobody waits for the disk. Last, question 4 of the design: what one Fujin client at half of its maximum does
to Figg's latency.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Bench
from bench.machine import cpu_seconds
from bench.watched_server import Stalls
from netserver.quic.certificates import own_certificate
from netserver.testing import ServerProcess

OTHERS = {name: {"listen": "off"} for name in ("reliably", "tank", "blipmq", "kafka")}
PRELOADED = 200_000
GROUPS = 64
SIZE = 100


@dataclass(frozen=True)
class Shape:
    """What a load does: arguments of ``bench.load_fujin`` behind the server's kind."""

    name: str
    arguments: tuple[str, ...]
    size: int = SIZE
    durability: str = "always"

    @property
    def reads(self) -> bool:
        """It reads what was stored before."""
        return self.arguments[0] in ("push", "pull")

    @property
    def is_durable_write(self) -> bool:
        """It waits for the disk."""
        return not self.reads and self.durability == "always"


def shapes(seconds: float) -> list[Shape]:
    """All loads."""
    s = str(seconds)
    found = []
    for durability in ("always", "never"):
        note = "" if durability == "always" else ", no sync"
        found += [
            Shape(f"64 synchronous writers{note}", ("sync", "64", str(SIZE), s), SIZE, durability),
            Shape(f"the same, gathered{note}", ("gathered", "64", str(SIZE), s), SIZE, durability),
            Shape(f"window 1024{note}", ("window", "1024", str(SIZE), s), SIZE, durability),
            Shape(f"window 1024{note}", ("window", "1024", "1024", s), 1024, durability),
        ]
    found += [
        Shape("push", ("push", "500", str(SIZE), str(PRELOADED))),
        Shape("pull by 500", ("pull", "500", str(SIZE), str(PRELOADED))),
    ]
    return found


@dataclass
class Result:
    """One run."""

    per_second: float
    per_cpu_second: float
    p50_us: float
    p99_us: float


@contextmanager
def echo(directory: Path) -> Iterator[tuple[int, int]]:
    """(pid, port) of the bare echo."""
    files = [str(path) for path in own_certificate(directory, "echo")]
    command = [sys.executable, "-m", "bench.fujin_echo", *files, str(directory / "echo.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def server(directory: Path, durability: str) -> Iterator[ServerProcess]:
    """A server with a reader group for each reading run."""
    readers = ", ".join(f'r{n} = {{ topic = "p", group = "g{n}" }}' for n in range(GROUPS))
    settings = {**OTHERS, "topics": {"durability": durability}, "fujin": {"readers": f"{{ {readers} }}"}}
    with ServerProcess(directory / durability, settings) as process:
        yield process


def load(pid: int, port: int, kind: str, *arguments: str) -> Result:
    """Runs the load client against one of the two."""
    before = cpu_seconds(pid)
    command = [sys.executable, "-m", "bench.load_fujin", str(port), kind, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    figures = json.loads(run.stdout)
    cpu = max(cpu_seconds(pid) - before, 0.01)
    messages = figures["messages"]
    return Result(messages / figures["seconds"], messages / cpu, figures["p50_us"], figures["p99_us"])


def median(results: list[Result]) -> Result:
    """Of each figure."""
    return Result(*(statistics.median(values) for values in zip(*(vars(one).values() for one in results), strict=True)))


def compare(shape: Shape, rounds: int, of_echo: tuple[int, int], process: ServerProcess, groups: Iterator[int]) -> str:
    """Runs one shape on both by turns; its row of the table."""
    echoes, syncing, ours = [], [], []
    for _ in range(rounds):
        if shape.is_durable_write:
            syncing.append(load(*of_echo, "disk", *shape.arguments))
        echoes.append(load(*of_echo, "echo", *shape.arguments))
        more = (f"r{next(groups)}",) if shape.reads else ()
        ours.append(load(process.pid, process.ports["fujin"], "real", *shape.arguments, *more))
    bare, real = median(echoes), median(ours)
    of_disk = f"{real.per_second / median(syncing).per_second:.0%}" if syncing else ""
    return (
        f"| {shape.name} | {shape.size} B | {real.per_second:,.0f} | {real.per_second * shape.size / 1e6:.1f} "
        f"| {real.per_cpu_second * shape.size / 1e6:.1f} | {bare.per_second:,.0f} "
        f"| {real.per_second / bare.per_second:.0%} | {real.per_cpu_second / bare.per_cpu_second:.0%} "
        f"| {of_disk} | {real.p50_us:,.0f} us | {real.p99_us:,.0f} us |"
    )


def beside_figg(seconds: float, rounds: int) -> Iterator[str]:
    """Question 4 of the design: Figg's latency beside a Fujin client at half of what it can do, line by line.

    The load client is Python and takes most of a core; it would be on another machine, so here it has the lowest
    priority: it gets what server and Figg leave over, and the table says how much it managed of its rate. The same load
    on another server (the echo that syncs) tells what of it is the machine's and the disk's; the last ratio is what
    sharing a server costs. The longest turn of the server's loop is in CPU time, so it tells what a
    record may have to wait for whatever else the machine does.
    """
    with tempfile.TemporaryDirectory(prefix="quintlog-bench-") as name:
        directory = Path(name)
        bench = Bench(seconds, directory)
        program = bench.build("load_figg")
        stalls = Stalls(directory / "stalls")
        with echo(directory) as (_, other_port), bench.server(listeners=("figg", "fujin")) as process:
            host, figg_port = process.address("figg")
            fujin_port = process.ports["fujin"]

            def figg() -> tuple[float, float]:
                command = [str(program), "publish", host, str(figg_port), "quiet", str(SIZE), "1", "1", str(seconds)]
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                return found["p50_us"], found["p99_us"]

            def beside(port: int, kind: str, rate: float) -> tuple[float, float]:
                half = [sys.executable, "-m", "bench.load_fujin", str(port), kind, "rate", str(rate), str(SIZE)]
                command = ["nice", "-n", "19", *half, str(seconds + 2)]
                with subprocess.Popen(command, stdout=subprocess.PIPE) as load_process:
                    time.sleep(1.0)
                    found = figg()
                    said, _ = load_process.communicate()
                if kind == "real":
                    figures = json.loads(said)
                    managed.append(figures["messages"] / figures["seconds"])
                return found

            yield (
                "| Fujin load | Figg alone: p50 / p99 | on another server | on the same "
                "| of alone | of the other | longest turn |"
            )
            yield "|---|---:|---:|---:|---:|---:|---:|"
            managed: list[float] = []
            for shape, number in (("window", 1024), ("sync", 64)):
                rate = load(process.pid, fujin_port, "real", shape, str(number), str(SIZE), str(seconds)).per_second / 2
                found: tuple[list[tuple[float, float]], ...] = ([], [], [])
                turns = []
                managed.clear()
                for _ in range(rounds):
                    found[0].append(figg())
                    found[1].append(beside(other_port, "disk", rate))
                    stalls.reset()
                    found[2].append(beside(fujin_port, "real", rate))
                    turns.append(stalls.longest_ms()[1])
                columns = [tuple(map(statistics.median, zip(*runs, strict=True))) for runs in found]
                shown = " | ".join(f"{p50:,.0f} / {p99:,.0f} us" for p50, p99 in columns)
                alone, other, same = (p99 for _, p99 in columns)
                turn = statistics.median(turns)
                yield (
                    f"| {shape} {number}, {statistics.median(managed):,.0f} of {rate:,.0f}/s | {shown} "
                    f"| {same / alone:.2f} | {same / other:.2f} | {turn:.1f} ms |"
                )


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="*")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    lines = [
        "| load | size | messages/s | MB/s | MB/s per server core "
        "| bare echo | of the echo | by CPU time | of an echo that syncs | p50 | p99 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    if options.only != "figg":
        print(*lines, sep="\n")
    with tempfile.TemporaryDirectory(prefix="quintlog-bench-") as name:
        directory = Path(name)
        groups = iter(range(GROUPS))
        with echo(directory) as of_echo:
            for durability in ("always", "never"):
                wanted = [
                    one
                    for one in shapes(options.seconds)
                    if one.durability == durability and fnmatch.fnmatch(one.name, options.only)
                ]
                if not wanted:
                    continue
                with server(directory, durability) as process:
                    if any(shape.reads for shape in wanted):
                        load(process.pid, process.ports["fujin"], "real", "fill", "1024", str(SIZE), str(PRELOADED))
                    for shape in wanted:
                        lines.append(compare(shape, options.rounds, of_echo, process, groups))
                        print(lines[-1], flush=True)
    if fnmatch.fnmatch("figg", options.only):
        lines.append("")
        print()
        for line in beside_figg(options.seconds, options.rounds):
            lines.append(line)
            print(line, flush=True)
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
