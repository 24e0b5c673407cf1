"""A cluster of Spark's own kind: a master and two workers with one core each, which outlive drivers.

The workers have addresses of their own: Spark runs no copy of a slow task on the machine that has the task, and takes
all parts of a ``local-cluster`` for one machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_S = 60.0
PACKAGE = "org.apache.spark.deploy"


class Standalone:
    """Its processes, as they log into ``place``."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs = ExitStack()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"spark://127.0.0.1:{free.getsockname()[1]}"

    def start(self, name: str, host: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self.logs.enter_context((self.place / f"{name}.log").open("ab"))
        log.truncate(0)
        settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
        command = [str(home / "bin" / "spark-class"), f"{PACKAGE}.{name.partition(' ')[0]}", "--host", host]
        self.processes[name] = subprocess.Popen(
            [*command, "--webui-port", "0", *arguments],
            env=os.environ | settings | {"PYSPARK_PYTHON": sys.executable}, cwd=self.place, stdout=log, stderr=log,
        )  # fmt: skip

    def start_worker(self, number: int) -> None:
        """Worker 1 or 2."""
        arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.place / f"work {number}"), self.url)
        name = f"worker.Worker {number}"
        self.start(name, f"127.0.0.{1 + number}", *arguments)
        self.wait_for(name, "Successfully registered with master")

    def wait_for(self, name: str, text: str) -> None:
        end = time.monotonic() + START_S
        while text not in (found := (self.place / f"{name}.log").read_text("utf-8", "replace")):
            assert self.processes[name].poll() is None, found[-3000:]
            assert time.monotonic() < end, found[-3000:]
            time.sleep(0.02)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def restart_worker(self, number: int) -> None:
        """kill -9, which ends the worker's executors, too."""
        self.kill(f"worker.Worker {number}")
        self.start_worker(number)


@contextmanager
def standalone(place: Path) -> Iterator[Standalone]:
    cluster = Standalone(place)
    try:
        cluster.start("master.Master", "127.0.0.1", "--port", cluster.url.rpartition(":")[2])
        cluster.wait_for("master.Master", "I have been elected leader")
        for number in (1, 2):
            cluster.start_worker(number)
        yield cluster
    finally:
        for name in list(cluster.processes):
            cluster.kill(name)
        cluster.logs.close()
