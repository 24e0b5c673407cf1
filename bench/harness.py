"""What every load of ``bench.endtoend`` uses: the server with a meter in its loop, rows, and how a load is measured.

A protocol's loads are a function ``loads(bench)`` in ``bench/PROTOCOL_loads.py``::

    def loads(bench: Bench) -> None:
        program = bench.build("load_x")                     # compiles bench/load_x.c
        with bench.server() as process:                     # a ServerProcess on a directory of its own
            bench.add("x publish", "always", 100, lambda: ...)      # the function returns a `Load`

A load that is added again under the same name and size is a repetition: the better one stays. What a load raises is
said and counted, and the others go on.
"""

from __future__ import annotations

import fnmatch
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import machine
from bench.peers import Load
from bench.watched_server import Stalls
from netserver.testing import ServerProcess

HERE = Path(__file__).parent
ROOT = HERE.parent
LISTENERS = ("figg", "reliably", "tank", "blipmq", "fujin", "kafka")
WARM_BYTES_A_SECOND = 450 << 20
"""Memory made ready before a load, for each second of it: about what the fastest ones write."""


@dataclass
class Row:
    """One line of the table.

    Attributes:
        stall_ms: the longest time for which the server's loop did not look at its timers (wall clock).
        stall_cpu_ms: the most CPU time that it took between two looks.
        client_share: of a CPU, that the load client took: near 1 it is what was measured.
    """

    name: str
    durability: str
    size: int
    messages: int
    per_second: float
    per_cpu_second: float
    p50_us: float = 0.0
    p99_us: float = 0.0
    stall_ms: float | None = None
    stall_cpu_ms: float | None = None
    client_share: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        """Of the records' values."""
        return self.per_second * self.size

    @property
    def bytes_per_cpu_second(self) -> float:
        """Of the records' values."""
        return self.per_cpu_second * self.size


@dataclass
class Bench:
    """What a run has measured so far.

    Attributes:
        seconds: length of each publishing load.
        only: pattern of the names of loads to run.
        limits: bare figures of the machine.
        facts: further figures, for the aims of ``bench.targets``.
        missing: what could not be run, and why.
    """

    seconds: float
    directory: Path
    only: str = "*"
    rows: list[Row] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    about: str = ""
    load_seconds: float = 0.0
    _stalls: Stalls | None = None

    def wants(self, name: str) -> bool:
        """Whether `--only` names this load."""
        return fnmatch.fnmatch(name, self.only)

    def add(self, name: str, durability: str, size: int, measure: Callable[[], Load]) -> Load | None:
        """Measures one load and prints it; None if it is not wanted, or failed."""
        if not self.wants(name):
            return None
        machine.warm_memory(int(self.seconds * WARM_BYTES_A_SECOND))
        stalls = self._stalls
        if stalls is not None:
            stalls.reset()
        try:
            load = measure()
        except (OSError, RuntimeError, subprocess.SubprocessError, ValueError, AssertionError) as problem:
            self.miss(f"{name} ({durability}, {size} B)", problem)
            return None
        row = Row(name, durability, size, load.messages, load.per_second, load.per_cpu_second, load.p50_us, load.p99_us)
        row.client_share = load.client_share
        if stalls is not None:
            row.stall_ms, row.stall_cpu_ms = stalls.longest_ms()
        self._keep(row)
        print(format_row(row), flush=True)
        return load

    def _keep(self, row: Row) -> None:
        """In its place; of several with the same name the fastest."""
        for index, other in enumerate(self.rows):
            if (other.name, other.durability, other.size) == (row.name, row.durability, row.size):
                if row.per_second > other.per_second:
                    self.rows[index] = row
                return
        self.rows.append(row)

    def miss(self, what: str, problem: object) -> None:
        """Notes what could not be run."""
        text = " ".join(str(problem).split())[:300]
        detail = getattr(problem, "stderr", None)
        if detail:
            text += f": {' '.join(str(detail).split())[-300:]}"
        self.missing.append(f"{what}: {text}")
        print(f"{what}: NOT RUN: {text}", flush=True)

    def row(self, name: str, durability: str, size: int = 100) -> Row | None:
        """A row that was measured."""
        key = (name, durability, size)
        return next((row for row in self.rows if (row.name, row.durability, row.size) == key), None)

    def build(self, name: str) -> Path:
        """Compiles a load client."""
        program = self.directory / name
        if not program.exists():
            subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / f"{name}.c")], check=True)
        return program

    @contextmanager
    def server(
        self,
        durability: str = "always",
        listeners: tuple[str, ...] = LISTENERS,
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[ServerProcess]:
        """A server on a directory of its own; loads that are added meanwhile get the stalls of its loop."""
        directory = self.directory / f"quintlog-{time.monotonic_ns()}"
        off = {name: {"listen": "off"} for name in LISTENERS if name not in listeners}
        meter = self.directory / "stalls"
        command = (sys.executable, "-m", "bench.watched_server", str(meter))
        before = self._stalls
        self._stalls = Stalls(meter)
        try:
            settings = {**off, "topics": {"durability": durability}}
            with ServerProcess(directory, settings, environment=environment, command=command) as process:
                yield process
                with suppress(RuntimeError):
                    process.kill()  # nobody looks at what it holds any more
        finally:
            self._stalls = before
            shutil.rmtree(directory, ignore_errors=True)

    # --- as a file

    def as_json(self) -> str:
        """Everything measured."""
        fields = {
            "about": self.about,
            "seconds": self.seconds,
            "limits": self.limits,
            "facts": self.facts,
            "missing": self.missing,
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Bench:
        """What `as_json` gave."""
        fields: dict[str, Any] = json.loads(text)
        bench = cls(fields["seconds"], Path(), limits=fields["limits"], facts=fields["facts"])
        bench.about, bench.missing = fields["about"], fields["missing"]
        bench.rows = [Row(**row) for row in fields["rows"]]
        return bench


def format_row(row: Row) -> str:
    """A row for a terminal."""
    stall = f" stall {row.stall_ms:6.1f} ms" if row.stall_ms is not None else ""
    client = f" client {row.client_share:4.0%}" if row.client_share else ""
    return (
        f"{row.name:42} {row.durability:8} {row.size:5d} B {row.per_second / 1e3:10.1f} k/s "
        f"{row.bytes_per_second / 1e6:7.1f} MB/s {row.per_cpu_second / 1e6:7.3f} M/cpu-s "
        f"p50 {row.p50_us:7.0f} us p99 {row.p99_us:7.0f} us{stall}{client}"
    )


def load_of(output: str, cpu: float) -> Load:
    """What a load client printed."""
    fields = json.loads(output)
    return Load(fields["messages"], fields["seconds"], cpu, fields["p50_us"], fields["p99_us"])


def run_client(command: list[object], pid: int, timeout_s: float = 120) -> Load:
    """Runs a load client; CPU time is that of the server `pid` meanwhile."""
    before, clients_before = machine.cpu_seconds(pid), machine.cpu_seconds_of_ended()
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, timeout=timeout_s)
    load = load_of(run.stdout, machine.cpu_seconds(pid) - before)
    return replace(load, client_share=(machine.cpu_seconds_of_ended() - clients_before) / load.seconds)
