"""Puts the figures of a run into the documentation: ``docs/benchmarks.md``, its chart, and the README's summary.

Text between ``<!-- figures -->`` and ``<!-- end of figures -->`` is made here, everything else in those pages by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from bench import targets
from bench.chart import draw
from bench.harness import Bench, Row

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def write(bench: Bench) -> None:
    """Renews the pages. Raises ValueError if a page has no place for figures."""
    put(ROOT / "docs" / "benchmarks.md", page(bench))
    put(ROOT / "README.md", summary(bench))
    (ROOT / "docs" / "benchmarks.svg").write_text(draw(bench.rows))


def put(path: Path, text: str) -> None:
    """Replaces what stands between the marks."""
    content = path.read_text()
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if len(pattern.findall(content)) != 1:
        raise ValueError(f"{path} needs {BEGIN} and {END}, once each")
    path.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text.strip()}\n\n{END}", content))


def page(bench: Bench) -> str:
    """What `docs/benchmarks.md` says of this run."""
    lines = ["## What is aimed at, and what this run shows", "", "| aim | this run | reached |", "|---|---:|---|"]
    lines += [f"| {aim.text} | {aim.figure} | {'yes' if aim.met else '**no**'} |" for aim in targets.aims(bench)]
    lines += ["", "## All loads", "", f"{bench.about}; {bench.seconds:g} s a load. Limits of the same run:", ""]
    lines += ["| limit | |", "|---|---:|"]
    lines += [f"| {name} | {value:,.1f} |" for name, value in {**bench.limits, **bench.facts}.items()]
    lines += [
        "",
        "| load | acknowledged | size | messages/s | MB/s | per server CPU second | p50 | p99 | stall | (CPU) "
        "| client |",
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    lines += [_line(row) for row in bench.rows]
    if bench.missing:
        lines += ["", "Not run:", "", *(f"- {what}" for what in bench.missing)]
    return "\n".join(lines)


def _line(row: Row) -> str:
    latency = [f"{value:,.0f} us" if value else "" for value in (row.p50_us, row.p99_us)]
    client = f"{row.client_share:.0%}" if row.client_share else ""
    stalls = [f"{value:.1f} ms" if value is not None else "" for value in (row.stall_ms, row.stall_cpu_ms)]
    return (
        f"| {row.name} | {row.durability} | {row.size} B | {row.per_second:,.0f} | {row.bytes_per_second / 1e6:,.1f} "
        f"| {row.per_cpu_second:,.0f} | {' | '.join(latency)} | {' | '.join(stalls)} | {client} |"
    )


def summary(bench: Bench) -> str:
    """The README's table."""
    redis = targets.redis_always(bench)
    wanted = [
        ("Figg, window 4096", bench.row("figg publish 1 x 4096", "always")),
        ("Figg, window 20000", bench.row("figg publish 1 x 20000", "always")),
        ("Figg, 100 connections of window 100", bench.row("figg publish 100 x 100", "always")),
        ("TANK, 64 bundles of 100 under way", bench.row("tank produce 100 x 64", "always")),
        ("Redis XADD, `appendfsync always`, its best mode", redis),
        ("NATS JetStream, synced every 2 minutes", bench.row("jetstream", "2 min")),
        ("NATS JetStream, `sync_interval: always`", bench.row("jetstream", "always")),
    ]
    lines = ["| | acknowledged messages/s | times Redis `appendfsync always` |", "|---|---:|---:|"]
    for name, row in wanted:
        if row is not None:
            ratio = f"{row.per_second / redis.per_second:.2g} x" if redis is not None and row is not redis else "1"
            lines.append(f"| {name} | {_rounded(row.per_second)} | {ratio} |")
    lines += ["", *_sentences(bench)]
    return "\n".join(lines)


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate < 10_000 else f"{round(rate, -3):,.0f}"


def _sentences(bench: Bench) -> list[str]:
    text = []
    history = bench.row("figg consume history", "-"), bench.row("tank consume, bundles of 100", "-")
    if history[0] is not None and history[1] is not None:
        figg, tank = (row.per_second / 1e6 for row in history if row is not None)
        text.append(f"Reading history: {figg:.1f} M records/s through Figg, {tank:.1f} M/s through TANK.")
    one, bare = bench.row("figg publish 1 x 1", "always"), bench.facts.get("bare write + fdatasync p50 us")
    if one is not None and bare is not None:
        text.append("A single publisher that waits for each acknowledgement")
        text.append(f"gets it after {one.p50_us / 1e3:.2f} ms (median; a bare write and fdatasync took")
        text.append(f"{bare / 1e3:.2f} ms).")
    words = " ".join(text).split()
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > 118:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
