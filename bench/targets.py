"""What the log is meant to reach, beside what a run has measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.harness import Bench, Row

STALL_MS = 20.0
FSYNC_US = 80.0
PING_US = 30.0
DELIVERY_US = 150.0


@dataclass(frozen=True)
class Aim:
    """One line: what is aimed at, what was measured, whether that is enough."""

    text: str
    figure: str
    met: bool


def redis_always(bench: Bench) -> Row | None:
    """Redis with a sync before each acknowledgement, 100 B, in its faster mode."""
    return best(bench, "redis XADD", "always", 100)


def best(bench: Bench, name: str, durability: str, size: int) -> Row | None:
    """The fastest of the rows whose name begins like this."""
    rows = [row for row in bench.rows if (row.durability, row.size) == (durability, size) and row.name.startswith(name)]
    return max(rows, key=lambda row: row.per_second, default=None)


def aims(bench: Bench) -> list[Aim]:
    """All aims for which this run has the figures."""
    return [*_publishing(bench), *_reading(bench), *_latency(bench), *_blipmq(bench), *_http(bench), *_rest(bench)]


def _ratio(text: str, ours: Row | None, theirs: Row | None, least: float) -> Iterator[Aim]:
    if ours is not None and theirs is not None:
        ratio = ours.per_second / theirs.per_second
        yield Aim(text, f"{ratio:.1f}", ratio >= least)


def _publishing(bench: Bench) -> Iterator[Aim]:
    redis = redis_always(bench)
    window_4096, window_20000 = (bench.row(f"figg publish 1 x {window}", "always") for window in (4096, 20000))
    yield from _ratio("100 B, window 4096: 4 times Redis, always", window_4096, redis, 4)
    jetstream = bench.row("jetstream", "2 min")
    yield from _ratio("100 B, window 4096: 10 times JetStream, which does not sync", window_4096, jetstream, 10)
    yield from _ratio("100 B, window 20000: 5 times Redis, always", window_20000, redis, 5)
    many = bench.row("figg publish 100 x 100", "always")
    yield from _ratio("100 B, 100 connections of window 100: twice Redis, always", many, redis, 2)
    large = best(bench, "figg publish", "always", 1024)
    yield from _ratio("1 KiB: ahead of Redis, everysec", large, best(bench, "redis XADD", "everysec", 1024), 1)
    if large is not None:
        most = max(row.bytes_per_cpu_second for row in bench.rows if row.size == 1024 and row.name.startswith("figg"))
        yield Aim("1 KiB: 0.5 GB per CPU second of the server", f"{most / 1e9:.2f} GB", most >= 0.5e9)


def _rate(bench: Bench, text: str, name: str, durability: str, least: float) -> Iterator[Aim]:
    row = bench.row(name, durability)
    if row is not None:
        per_cpu = f"{row.per_cpu_second / 1e6:.2f} M a CPU second"
        yield Aim(text, f"{row.per_second / 1e6:.2f} M/s, {per_cpu}", row.per_second >= least)


def _reading(bench: Bench) -> Iterator[Aim]:
    yield from _rate(bench, "history, 100 B: 8 M records/s", "figg consume history", "-", 8e6)
    name = "figg publish 1 x 4096, 1 live"
    yield from _rate(bench, "publishing with one live subscriber: 1.5 M/s", name, "always", 1.5e6)
    yield from _rate(bench, "100 live subscribers together: 8 M/s", "figg deliveries to 100 live", "always", 8e6)


def _latency(bench: Bench) -> Iterator[Aim]:
    flood = bench.row("figg publish 1 x 1 beside a 1 KiB flood", "always")
    if flood is not None:
        yield Aim("window 1 beside a flood: p50 under 10 ms", f"{flood.p50_us / 1e3:.1f} ms", flood.p50_us < 10_000)
    one, bare = bench.row("figg publish 1 x 1", "always"), bench.facts.get("bare write + fdatasync p50 us")
    if one is not None and bare is not None:
        text = f"window 1, p50: {FSYNC_US:.0f} us more than bare write + fdatasync"
        yield Aim(text, f"{one.p50_us:.0f} us, bare {bare:.0f} us", one.p50_us <= bare + FSYNC_US)
    never, ping = bench.row("figg publish 1 x 1", "never"), bench.row("figg PING to PONG", "-", 8)
    if never is not None and ping is not None:
        text = f"window 1 without a sync, p50: {PING_US:.0f} us more than PING to PONG"
        figure = f"{never.p50_us:.0f} us, PING {ping.p50_us:.0f} us"
        yield Aim(text, figure, never.p50_us <= ping.p50_us + PING_US)


def _blipmq(bench: Bench) -> Iterator[Aim]:
    yield from _rate(bench, "BlipMQ, QoS 1, a PING every 4096: 1 M/s", "blipmq publish QoS 1", "always", 1e6)
    yield from _rate(bench, "BlipMQ, QoS 0: 1.5 M/s", "blipmq publish QoS 0", "-", 1.5e6)
    yield from _rate(bench, "BlipMQ, POLL and ACK by 128: 0.3 M/s", "blipmq POLL + ACK by 128", "lazy", 0.3e6)
    one_by_one, bare = "blipmq POLL, ACK one by one", bench.row("blipmq POLL, ACK one by one, bare uvloop", "-")
    yield from _ratio("BlipMQ, POLL and ACK one by one: 0.8 of bare uvloop", bench.row(one_by_one, "lazy"), bare, 0.8)
    delivery = bench.row("blipmq publish to delivery", "always")
    sync = bench.facts.get("write + fdatasync beside deliveries p50 us")
    if delivery is not None and sync is not None:
        text = f"BlipMQ, publish to delivery, p50: {DELIVERY_US:.0f} us more than write + fdatasync"
        yield Aim(text, f"{delivery.p50_us:.0f} us, bare {sync:.0f} us", delivery.p50_us <= sync + DELIVERY_US)


def _http(bench: Bench) -> Iterator[Aim]:
    yield from _rate(bench, "HTTP, lines of JSON by 20,000: 0.3 M/s", "http publish lines 1 x 20000", "always", 0.3e6)
    yield from _rate(bench, "HTTP, raw values by 20,000: 1 M/s", "http publish raw 1 x 20000", "always", 1e6)
    yield from _rate(bench, "HTTP, reading lines of JSON: 0.5 M/s", "http read lines", "-", 0.5e6)
    yield from _rate(bench, "HTTP, reading raw values: 2 M/s", "http read raw", "-", 2e6)
    for count in (1, 32):
        name = f"http publish single {count}"
        text = f"HTTP, single publishes on {count} connections: half of bare aiohttp, which stores nothing"
        ours, bare = bench.row(name, "always"), bench.row(f"{name}, bare aiohttp", "-")
        if ours is not None and bare is not None:
            figure = f"{ours.per_second / bare.per_second:.2f}, by CPU {ours.per_cpu_second / bare.per_cpu_second:.2f}"
            yield Aim(text, figure, ours.per_second >= bare.per_second / 2)


def _rest(bench: Bench) -> Iterator[Aim]:
    name = "figg publish 1 x 4096, pure Python"
    yield from _rate(bench, "without compiled modules: 0.5 M/s", name, "always", 0.5e6)
    for what, name in (("by the clock", "stall_ms"), ("by its own work", "stall_cpu_ms")):
        stalls = {_named(row): getattr(row, name) for row in bench.rows if row.stall_ms is not None}
        if stalls:
            worst = max(stalls, key=lambda name: stalls[name])
            late = sum(stall > STALL_MS for stall in stalls.values())
            figure = f"{late} of {len(stalls)} loads above it; the longest {stalls[worst]:.0f} ms ({worst})"
            yield Aim(f"the event loop never stalls for {STALL_MS:.0f} ms, {what}", figure, late == 0)


def _named(row: Row) -> str:
    return f"{row.name}, {row.durability}, {row.size} B"
