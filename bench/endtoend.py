"""End-to-end loads over TCP with compiled load clients, beside other servers in the same run.

    python -m bench.endtoend [--seconds 2.5] [--only GLOB] [--json FILE] [--docs]
    python -m bench.endtoend --from FILE --docs

Every row states the durability: *always* = an acknowledgement means fdatasync has returned. Wall figures on a small
machine depend on what else it does; ratios within one run and messages per server CPU second move far less.

``--docs`` writes the figures into ``docs/benchmarks.md``, its chart, and the README; ``--from`` takes those of an
earlier run. Loads are in ``bench/*_loads.py`` (see ``bench.harness``).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import figg_loads, http_loads, machine, peer_loads, report, targets
from bench.harness import Bench

PROTOCOLS = ("figg", "tank", "blipmq", "fujin", "kafka", "http")
"""Those whose loads are run, if there is a module of them."""
TURNS = 2
"""How often the loads of the summary are run, by turns with the other servers'; the better figure of each counts."""


def measure_limits(bench: Bench) -> None:
    """Bare figures of the machine."""
    bench.about = machine.describe()
    for size, name in ((4096, "4 KiB"), (65536, "64 KiB"), (1 << 20, "1 MiB")):
        p50, p99 = machine.sync_us(bench.directory, size)
        bench.limits[f"write + fdatasync {name} p50 us"] = p50
        bench.limits[f"write + fdatasync {name} p99 us"] = p99
    bench.limits["loopback GB/s"] = machine.loopback_bytes_per_s() / 1e9
    bench.limits["memory copy GB/s"] = machine.copy_bytes_per_s() / 1e9
    print(bench.about)
    for name, value in bench.limits.items():
        print(f"  {name:34} {value:10.1f}")


def part(bench: Bench, name: str, run: Callable[[], None]) -> None:
    """Runs some loads; what goes wrong with a server is said, and the rest goes on."""
    started = time.monotonic()
    try:
        run()
    except Exception as problem:  # noqa: BLE001 - figures of the other loads must not be lost
        bench.miss(name, repr(problem))
    print(f"-- {name}: {time.monotonic() - started:.0f} s", flush=True)


def run_all(bench: Bench) -> None:
    """Every load that was asked for."""
    measure_limits(bench)
    for turn in range(TURNS):
        part(bench, "figg, summary", lambda turn=turn: figg_loads.headline(bench, turn))  # type: ignore[misc]
        part(bench, "http, summary", lambda turn=turn: http_loads.headline(bench, turn))  # type: ignore[misc]
        part(bench, "others, summary", lambda: peer_loads.headline(bench))
    for protocol in PROTOCOLS:
        if importlib.util.find_spec(f"bench.{protocol}_loads") is not None:
            module = importlib.import_module(f"bench.{protocol}_loads")
            part(bench, protocol, lambda module=module: module.loads(bench))  # type: ignore[misc]
    part(bench, "others", lambda: peer_loads.loads(bench))


def main() -> int:
    """Runs the loads that were asked for, or reads what a run has written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.5, help="length of each publishing load (default: 2.5)")
    parser.add_argument("--only", default="*", help="run the loads whose name matches this pattern")
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    parser.add_argument("--from", dest="source", type=Path, help="run nothing: take the figures from this JSON file")
    parser.add_argument("--docs", action="store_true", help="write the figures into the documentation")
    options = parser.parse_args()
    if options.source is not None:
        bench = Bench.from_json(options.source.read_text())
    else:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="quintlog-bench-", dir=Path.cwd()) as name:
            bench = Bench(options.seconds, Path(name), options.only)
            run_all(bench)
        print(f"-- all: {time.monotonic() - started:.0f} s")
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(bench.as_json())
    print()
    for aim in targets.aims(bench):
        print(f"{'yes' if aim.met else 'NO ':3} {aim.text}: {aim.figure}")
    for what in bench.missing:
        print(f"not run: {what}")
    if options.docs:
        report.write(bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
