"""Kafka's protocol with librdkafka, and Apache Kafka by turns, where its jars are.

``QUINTLOG_BENCH_KAFKA`` names the folder of jars: of ``org.apache.kafka:kafka_2.13`` and all that it depends on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.harness import HERE, Bench, run_client
from bench.peers import free_port, running

SIZE = 100
PARTITIONS = (1, 8)
TURNS = 2
MESSAGES_A_SECOND = 200_000
WARM_UP_MESSAGES = 300_000
"""A JVM compiles what it has run for a while."""
START_S = 120.0
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
offsets.topic.replication.factor=1
"""


@contextmanager
def apache(jars: str, directory: Path) -> Iterator[tuple[int, int]]:
    """(port, pid) of a broker that is its own controller, with Kafka's defaults: it leaves syncing to the system."""
    port, settings = free_port(), directory / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=free_port(), directory=directory))
    java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
    tool = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
    subprocess.run(tool, check=True, capture_output=True)
    with running([*java, "kafka.Kafka", str(settings)], port, START_S) as pid:
        yield port, pid


def measure(bench: Bench, name: str, durability: str, port: int, pid: int, turn: int) -> None:
    """All loads of one server, with topics of its own for each turn."""
    for partitions in PARTITIONS:
        rest = (port, f"t{turn}-{partitions}", partitions, int(MESSAGES_A_SECOND * bench.seconds))
        for what, promise in (("produce", durability), ("consume", "-")):
            command: list[object] = [sys.executable, HERE / "load_kafka.py", what, *rest]
            bench.add(f"{name} {what}, partitions: {partitions}", promise, SIZE, partial(run_client, command, pid))


def ours(bench: Bench, turn: int) -> None:
    """On a server of its own."""
    with bench.server(listeners=("kafka",)) as server:
        measure(bench, "kafka", "always", server.ports["kafka"], server.pid, turn)


def loads(bench: Bench) -> None:
    """Both servers by turns, the better figure of each counts; only ours where there is no other."""
    if not any(
        bench.wants(f"{prefix}kafka {what}, partitions: {count}")
        for prefix in ("", "apache ")
        for what in ("produce", "consume")
        for count in PARTITIONS
    ):
        return
    jars = os.environ.get("QUINTLOG_BENCH_KAFKA")
    if jars is None or shutil.which("java") is None:
        bench.miss("apache kafka", "QUINTLOG_BENCH_KAFKA names no folder of its jars, or there is no java")
        ours(bench, 0)
        return
    with apache(jars, Path(tempfile.mkdtemp(dir=bench.directory))) as (port, pid):
        run_client([sys.executable, HERE / "load_kafka.py", "produce", port, "warm", 1, WARM_UP_MESSAGES], pid)
        for turn in range(TURNS):
            ours(bench, turn)
            measure(bench, "apache kafka", "never", port, pid, turn)
