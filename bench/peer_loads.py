"""The other servers' loads: Redis streams and NATS JetStream, each synced before the acknowledgement and later."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from bench import peers
from bench.harness import Bench

JETSTREAM_WINDOW = 4096
SYNCED_WINDOW = 500
"""With a sync for each message: its client gives up when one is not acknowledged within 5 s."""
REDIS_PIPELINE = 500


@cache
def nats_tools() -> tuple[str, str] | None:
    """nats-server and its client; None where there are none, and no Go to build them."""
    try:
        return peers.nats_tools(Path(tempfile.gettempdir()) / "quintlog-bench-nats")
    except (OSError, subprocess.SubprocessError):
        return None


def redis(bench: Bench, appendfsync: str, sizes: tuple[int, ...] = (100, 1024)) -> None:
    """XADD on one connection and on fifty."""
    if not bench.wants("redis XADD 50 x 500") and not bench.wants("redis XADD 1 x 500"):
        return
    if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
        bench.miss("redis", "there is no redis-server here")
        return
    rates = {("always", 1): 60_000, ("always", 50): 200_000, ("everysec", 1): 200_000, ("everysec", 50): 250_000}
    with peers.redis(Path(tempfile.mkdtemp(dir=bench.directory)) / "redis", appendfsync) as (port, pid):
        for size in sizes:
            for connections in (1, 50):
                count = int(rates[appendfsync, connections] * bench.seconds * (1 if size == 1024 else 2))
                bench.add(
                    f"redis XADD {connections} x {REDIS_PIPELINE}",
                    appendfsync,
                    size,
                    lambda s=size, c=connections, n=count: peers.redis_publish(port, pid, s, c, n, REDIS_PIPELINE),  # type: ignore[misc]
                )


def jetstream(bench: Bench, *, sync_always: bool, sizes: tuple[int, ...] = (100, 1024)) -> None:
    """Asynchronous publishes of one client."""
    if not bench.wants("jetstream"):
        return
    tools = nats_tools()
    if tools is None:
        bench.miss("jetstream", "there is no nats-server here, and it cannot be built (no Go, or no module proxy)")
        return
    count = 4000 if sync_always else int(150_000 * bench.seconds)
    window = SYNCED_WINDOW if sync_always else JETSTREAM_WINDOW
    directory = Path(tempfile.mkdtemp(dir=bench.directory)) / "nats"
    with peers.nats(tools[0], directory, sync_always=sync_always) as (port, pid):
        for size in sizes:
            bench.add(
                "jetstream",
                "always" if sync_always else "2 min",
                size,
                lambda s=size: peers.nats_publish(tools[1], port, pid, s, count, window),  # type: ignore[misc]
            )


def headline(bench: Bench) -> None:
    """What ours is compared with; called as often as its own headline loads."""
    redis(bench, "always", (100,))
    redis(bench, "everysec", (1024,))
    jetstream(bench, sync_always=False, sizes=(100,))


def loads(bench: Bench) -> None:
    """Everything else."""
    redis(bench, "always", (1024,))
    redis(bench, "everysec", (100,))
    jetstream(bench, sync_always=False, sizes=(1024,))
    jetstream(bench, sync_always=True)
