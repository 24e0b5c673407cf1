"""What rights, quotas and wrong keys cost the server, by its CPU time.

::

    python -m bench.access rights [ROUNDS]       window 4096 with an access file, beside the same without one
    python -m bench.access quotas [ROUNDS]       a publisher alone, and beside an identity that is at its limit
    python -m bench.access wrong-keys [SECONDS]  1,000 wrong keys a second, BlipMQ and HTTP, kept and new connections

What is compared is run by turns, and medians are told: a machine with other work has better and worse minutes.
"""

from __future__ import annotations

import http.client
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench import machine
from bench.figg_loads import Figg
from bench.harness import HERE, LISTENERS
from bench.peers import Load
from netserver.access.key_file import add_identity, add_key
from netserver.blipmq import codec
from netserver.testing import ServerProcess

WINDOW: Final = 4096
SECONDS: Final = float(os.environ.get("BENCH_SECONDS", "1"))
LIMITED: Final = "127.0.7.1"
"""The address of the identity with a quota."""
RATE: Final = 10_000
HTTP_RATE: Final = 100
KEY: Final = "the key of the one that is limited over HTTP"
TRIES_PER_S: Final = 1000


@contextmanager
def serving(directory: Path, lines: list[dict[str, Any]], *, listeners: tuple[str, ...] = ("figg",)) -> Iterator[Any]:
    """A server with these identities; without any: without an access file."""
    settings: dict[str, dict[str, Any]] = {name: {"listen": "off"} for name in LISTENERS if name not in listeners}
    data = directory / f"data-{time.monotonic_ns()}"
    if lines:
        path = directory / f"access-{time.monotonic_ns()}"
        for line in lines:
            add_identity(path, line, "" if "networks" in line else KEY)
        settings["access"] = {"file": str(path)}
    with ServerProcess(data, settings) as process:
        yield process
        process.kill()
    shutil.rmtree(data, ignore_errors=True)


def compare(rounds: int, ways: dict[str, Callable[[], Load]]) -> None:
    """Run all ways by turns; the ratios to the first one."""
    found: dict[str, list[Load]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            load = ways[name]()
            found[name].append(load)
            per_cpu = load.per_cpu_second
            print(f"  round {number + 1} {name:24} {load.per_second:12,.0f}/s {per_cpu:12,.0f}/cpu-s", flush=True)
    first = next(iter(ways))
    for name in list(ways)[1:]:
        for what in ("per_second", "per_cpu_second"):
            of, base = ([getattr(load, what) for load in found[one]] for one in (name, first))
            ratios = sorted(a / b for a, b in zip(of, base, strict=True))
            quarter = len(ratios) // 4
            print(
                f"{name} to {first}, {what}: medians {statistics.median(of):,.0f} and {statistics.median(base):,.0f}; "
                f"median of the rounds' ratios {statistics.median(ratios):.3f}, half of them lie in "
                f"{ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}"
            )
        costs = [
            sum(load.cpu_seconds for load in found[one]) / sum(load.messages for load in found[one])
            for one in (name, first)
        ]
        print(f"{name} to {first}, CPU of all rounds by records of all rounds: {costs[0] / costs[1]:.3f}")


def rights(directory: Path, program: Path, rounds: int) -> None:
    """Window 4096 of somebody whose rights are a list of patterns, the last of which fits."""
    globs = [f"other-{number}.*" for number in range(20)] + ["bench-*"]
    line = {"name": "bench", "networks": ["127.0.0.0/8"], "publish": globs, "subscribe": globs}

    def publish(lines: list[dict[str, Any]]) -> Load:
        """On a server of its own: two that run for long differ by more than what is looked for."""
        with serving(directory, lines) as process:
            figg = Figg(program, process)
            figg.publish("bench-t", 100, 1, WINDOW, SECONDS / 4)
            machine.warm_memory(1 << 29)
            return figg.publish("bench-t", 100, 1, WINDOW, SECONDS)

    compare(rounds, {"without": lambda: publish([]), "with rights": lambda: publish([line])})


@contextmanager
def politely(process: ServerProcess, path: str, per_s: int) -> Iterator[None]:
    """Somebody publishes a record over HTTP so often, and never more."""
    done = threading.Event()

    def publish() -> None:
        connection = http.client.HTTPConnection(*process.address("admin"))
        at = time.monotonic()
        while not done.wait(max(at - time.monotonic(), 0)):
            connection.request("POST", path, b"x" * 100, {"Authorization": f"Bearer {KEY}"})
            connection.getresponse().read()
            at += 1 / per_s
        connection.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def quotas(directory: Path, program: Path, rounds: int) -> None:
    """One that publishes by a window of 4096, beside one at its limit that never stops; alone twice: that is the noise.

    Over Figg 8 connections of windows of 4096, over HTTP 32 that come again as soon as they are answered, and beside
    them one that keeps to the same rate by itself: what the rate costs whoever uses it.
    """
    load_http = directory / "load_http"
    subprocess.run(["cc", "-O2", "-o", str(load_http), str(HERE / "load_http.c")], check=True)
    lines = [
        {"name": "limited", "networks": [LIMITED], "publish": ["*"], "quotas": {"records_in_per_s": RATE}},
        {"name": "limited-2", "publish": ["*"], "quotas": {"records_in_per_s": HTTP_RATE}},
        {"name": "other", "networks": ["127.0.0.0/8"], "publish": ["*"]},
    ]
    with serving(directory, lines) as process:
        figg = Figg(program, process)
        over_figg = [program, "publish", figg.host, figg.port, "bench-a", 100, 8, WINDOW, 600]
        records = "/v1/topics/bench-b/records"
        over_http = [load_http, "publish", *process.address("admin"), KEY, records, "none", 100, 1, 32, 600]

        def publish() -> Load:
            machine.warm_memory(1 << 29)
            return figg.publish("bench-t", 100, 1, WINDOW, SECONDS)

        def beside(command: list[object]) -> Load:
            environment = {**os.environ, "LOAD_FROM": LIMITED, "LOAD_REFUSALS": "1"}
            with subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL) as flood:
                time.sleep(1)  # until its burst is over
                try:
                    return publish()
                finally:
                    flood.kill()

        def beside_polite() -> Load:
            with politely(process, records, HTTP_RATE):
                time.sleep(1)
                return publish()

        publish()
        ways = {"alone": publish, "alone again": publish}
        ways |= {"beside Figg": lambda: beside(over_figg), "beside HTTP": lambda: beside(over_http)}
        ways |= {"beside polite HTTP": beside_polite}
        compare(rounds, ways)
        found = str(process.admin("GET", "/metrics")).splitlines()
        print(*(line for line in found if line.startswith("quintlog_identity_records_total")), sep="\n")


# --- wrong keys


SETTLED_S: Final = 7.0
"""After so long the first answers that were put off have come, and connections that were made are done with."""


def wrong_key(listener: str, number: int) -> bytes:
    """What is sent for one try."""
    if listener == "blipmq, no key":
        return codec.ping(2)
    if listener == "admin, no key":
        return b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    if listener == "blipmq":
        return codec.auth(2, f"wrong key {number}, which is as long as a right one")
    return f"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong{number}\r\n\r\n".encode()


def dial(address: tuple[str, int], listener: str, number: int) -> socket.socket:
    """A connection, from one of 200 addresses."""
    made = socket.socket()
    made.bind((f"127.1.{number % 200 // 100}.{number % 100 + 1}", 0))
    made.connect(address)
    made.setblocking(False)
    if listener.startswith("blipmq"):
        made.send(codec.hello(1))
    return made


def kept(process: ServerProcess, listener: str, seconds: float, connections: int) -> tuple[int, float]:
    """Every connection tries the next key as soon as it is answered; how many were answered, and the server's CPU."""
    address = process.address(listener)
    selector = selectors.DefaultSelector()
    for number in range(connections):
        made = dial(address, listener, number)
        made.send(wrong_key(listener, number))
        selector.register(made, selectors.EVENT_READ)
    _answered(selector, listener, SETTLED_S)
    before = machine.cpu_seconds(process.pid)
    tries = _answered(selector, listener, seconds)
    cpu = machine.cpu_seconds(process.pid) - before
    for key in tuple(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    return tries, cpu


def _answered(selector: selectors.BaseSelector, listener: str, seconds: float) -> int:
    tries, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            connection: Any = key.fileobj
            try:
                if not connection.recv(65536):
                    raise ConnectionResetError
                tries += 1
                connection.send(wrong_key(listener, time.monotonic_ns()))
            except ConnectionError:
                selector.unregister(connection)
                connection.close()
    return tries


def anew(process: ServerProcess, listener: str, seconds: float, _connections: int) -> tuple[int, float]:
    """The same, every try on a connection of its own, which does not wait for the answer."""
    address = process.address(listener.partition(",")[0])
    before, began, tries = machine.cpu_seconds(process.pid), time.monotonic(), 0
    while (taken := time.monotonic() - began) < seconds:
        while tries < TRIES_PER_S * taken:
            with dial(address, listener, tries) as made:
                made.send(wrong_key(listener, tries))
            tries += 1
        time.sleep(0.001)
    return tries, machine.cpu_seconds(process.pid) - before


def wrong_keys(directory: Path, seconds: float) -> None:
    """The share of a CPU that the server takes meanwhile, beyond what it takes when nothing comes."""
    path = directory / "access"
    for number in range(50):
        add_key(path, f"key-{number}")
    settings = {**{name: {"listen": "off"} for name in LISTENERS if name != "blipmq"}, "access": {"file": str(path)}}
    with ServerProcess(directory / "data", settings) as process:
        before = machine.cpu_seconds(process.pid)
        time.sleep(seconds)
        idle = (machine.cpu_seconds(process.pid) - before) / seconds
        print(f"idle: {idle:.1%} of a CPU")
        for listener, go, connections in (
            ("blipmq", kept, 200),
            ("blipmq", kept, 5000),
            ("blipmq", anew, 0),
            ("blipmq, no key", anew, 0),
            ("admin", kept, 64),
            ("admin", anew, 0),
            ("admin, no key", anew, 0),
        ):
            tries, cpu = go(process, listener, seconds, connections)
            share = cpu / seconds - idle
            what = f"{connections} connections" if connections else "new connections"
            each = share * seconds / max(tries, 1) * 1e6
            print(f"{listener}, {what}: {tries / seconds:,.0f}/s, {share:.1%} of a CPU, {each:.0f} us each", flush=True)
            time.sleep(SETTLED_S)
        process.kill()


def main() -> int:
    """Runs one of them."""
    what, count = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0
    directory = Path(tempfile.mkdtemp(prefix="quintlog-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        if what == "wrong-keys":
            wrong_keys(directory, count or 10)
            return 0
        program = directory / "load_figg"
        subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "load_figg.c")], check=True)
        {"rights": rights, "quotas": quotas}[what](directory, program, int(count or 7))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
