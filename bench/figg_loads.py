"""Loads of the Figg protocol: publishing by window, history, live subscribers, a quiet publisher beside a flood."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import machine
from bench.harness import WARM_BYTES_A_SECOND, Bench, Row, load_of, run_client
from bench.peers import Load
from netserver.testing import ServerProcess

HEADLINE = ((1, 1), (1, 4096), (1, 20000), (100, 100))
"""(connections, window): measured twice with records of 100 B, since much is said of them."""
OTHERS = ((1, 256), (100, 1))
SHAPES = ((1, 1), (1, 256), (1, 4096), (1, 20000), (100, 1), (100, 100))


class Figg:
    """Loads on a running server through the compiled client."""

    def __init__(self, program: Path, server: ServerProcess) -> None:
        self.program = program
        self.server = server
        self.host, port = server.address("figg")
        self.port = str(port)

    def _run(self, command: str, *arguments: object) -> Load:
        return run_client([self.program, command, self.host, self.port, *arguments], self.server.pid)

    def publish(self, topic: str, size: int, connections: int, window: int, seconds: float) -> Load:
        """Publishes for `seconds`; counts what was acknowledged."""
        return self._run("publish", topic, size, connections, window, seconds)

    def consume(self, topic: str, connections: int, count: int) -> Load:
        """Every connection reads `count` records from the beginning."""
        return self._run("consume", topic, connections, count)

    def ping(self, seconds: float) -> Load:
        """PING, and the next one when the PONG is there."""
        return self._run("ping", seconds)

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


def publish(bench: Bench, figg: Figg, connections: int, window: int, size: int, again: str = "") -> None:
    """One publishing load, in a topic of its own."""
    if (connections, window) == (1, 1) and bench.wants("figg publish 1 x 1"):
        note_bare_sync(bench)
    topic = f"p{size}-{connections}-{window}{again}"
    bench.add(
        f"figg publish {connections} x {window}",
        "always",
        size,
        lambda: figg.publish(topic, size, connections, window, bench.seconds),
    )


def note_bare_sync(bench: Bench) -> None:
    """What write and fdatasync take at this very time: the machine's disk is shared, and changes."""
    p50_us, _ = machine.sync_us(bench.directory, 4096, rounds=400)
    key = "bare write + fdatasync p50 us"
    bench.facts[key] = min(p50_us, bench.facts.get(key, p50_us))


def headline(bench: Bench, turn: int) -> None:
    """The loads that the summary is about; called twice."""
    with bench.server(listeners=("figg",)) as process:
        figg = Figg(bench.build("load_figg"), process)
        for connections, window in HEADLINE:
            publish(bench, figg, connections, window, 100, f"-{turn}")
        publish(bench, figg, 1, 4096, 1024, f"-{turn}")


def loads(bench: Bench) -> None:
    """Everything else."""
    program = bench.build("load_figg")
    seconds = bench.seconds
    with bench.server(listeners=("figg",)) as process:
        figg = Figg(program, process)
        for connections, window in OTHERS:
            publish(bench, figg, connections, window, 100)
        for connections, window in SHAPES:
            if (connections, window) != (1, 4096):
                publish(bench, figg, connections, window, 1024)
    with bench.server(listeners=("figg",)) as process:
        figg = Figg(program, process)
        history(bench, figg)
        for subscribers in (1, 100):
            live(bench, figg, subscribers)
        flood(bench, figg)
    with bench.server("never", listeners=("figg",)) as process:
        figg = Figg(program, process)
        without_sync(bench, figg)
        for window in (4096, 20000):
            bench.add(
                f"figg publish 1 x {window}",
                "never",
                100,
                lambda w=window: figg.publish(f"n{w}", 100, 1, w, seconds),  # type: ignore[misc]
            )
    pure(bench, program)


def history(bench: Bench, figg: Figg) -> None:
    """A long topic from its beginning, for long enough."""
    name = "figg consume history"
    if not bench.wants(name):
        return
    count = figg.publish("history", 100, 1, 20000, bench.seconds).messages
    for _ in range(3):
        bench.add(name, "-", 100, lambda: figg.consume("history", 1, count))


def live(bench: Bench, figg: Figg, subscribers: int) -> None:
    """One publisher, and subscribers at the end of its topic."""
    name = f"figg publish 1 x 4096, {subscribers} live"
    if not bench.wants(name):
        return
    topic = f"live{subscribers}"
    with figg.following(topic, subscribers) as sums:
        bench.add(name, "always", 100, lambda: figg.publish(topic, 100, 1, 4096, bench.seconds))
    # Deliveries by the time that the publisher ran, not by that which the subscribers were connected.
    sum_of_all = sums[0]
    bench.rows.append(
        Row(
            f"figg deliveries to {subscribers} live",
            "always",
            100,
            sum_of_all.messages,
            sum_of_all.messages / bench.seconds,
            sum_of_all.per_cpu_second,
        )
    )


def flood(bench: Bench, figg: Figg) -> None:
    """A publisher at window 1 beside a flood of 1 KiB records."""
    name = "figg publish 1 x 1 beside a 1 KiB flood"
    if not bench.wants(name):
        return
    arguments = ["publish", figg.host, figg.port, "flood", "1024", "1", "4096", str(bench.seconds + 3)]
    machine.warm_memory(int((bench.seconds + 3) * WARM_BYTES_A_SECOND))
    with subprocess.Popen([str(figg.program), *arguments], stdout=subprocess.DEVNULL) as other:
        bench.add(name, "always", 100, lambda: figg.publish("beside", 100, 1, 1, bench.seconds))
        other.terminate()


def without_sync(bench: Bench, figg: Figg) -> None:
    """Window 1 without a sync, by turns with PING and PONG, which is the way there and back."""
    for turn in range(3):
        bench.add("figg PING to PONG", "-", 8, lambda: figg.ping(min(bench.seconds, 1.5)))
        bench.add(
            "figg publish 1 x 1",
            "never",
            100,
            lambda t=turn: figg.publish(f"n1-{t}", 100, 1, 1, min(bench.seconds, 1.5)),  # type: ignore[misc]
        )


def pure(bench: Bench, program: Path) -> None:
    """The server without compiled modules."""
    name = "figg publish 1 x 4096, pure Python"
    if not bench.wants(name):
        return
    with bench.server(listeners=("figg",), environment={"QUINTLOG_PURE": "1"}) as process:
        figg = Figg(program, process)
        bench.add(name, "always", 100, lambda: figg.publish("pure", 100, 1, 4096, bench.seconds))
