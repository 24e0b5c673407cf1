"""Loads of records over HTTP, and a bare aiohttp server of the same answers to compare single publishes with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from aiohttp import web

from bench.harness import ROOT, Bench, run_client
from bench.peers import Load
from netserver.testing import ServerProcess

BATCH = 20_000
"""Records of a request: 2 MB of 100 B each, as the window of the fastest loads of the other protocols."""
FORMS = {"jsonl": "lines", "length": "raw"}
SINGLE_CONNECTIONS = (1, 32)
TURNS = 3
"""Runs of what is compared: the machine has other work, and both get some of its quiet moments."""


class Http:
    """Loads on a server through the compiled client."""

    def __init__(self, program: Path, address: tuple[str, int], pid: int, token: str = "-") -> None:
        self._program = program
        self._address = address
        self._pid = pid
        self._token = token

    def publish(self, topic: str, form: str, size: int, records: int, connections: int, seconds: float) -> Load:
        """Requests of so many records, the next one when the last is answered: all of it is on disk."""
        return self._run("publish", topic, form, size, records, connections, seconds)

    def consume(self, topic: str, form: str, count: int) -> Load:
        """Read so many records, in one answer when there are enough."""
        return self._run("consume", topic, form, count)

    def _run(self, command: str, topic: str, *arguments: object) -> Load:
        path = f"/v1/topics/{topic}/records"
        return run_client([self._program, command, *self._address, self._token, path, *arguments], self._pid)


def of(program: Path, process: ServerProcess) -> Http:
    """Loads on a server of ours."""
    return Http(program, process.address("admin"), process.pid, process.token)


def headline(bench: Bench, turn: int) -> None:
    """One connection, in batches, durable: by turns with the other servers."""
    with bench.server(listeners=()) as process:
        http = of(bench.build("load_http"), process)
        for form, name in FORMS.items():
            topic = f"{form}-{turn}"
            bench.add(
                f"http publish {name} 1 x {BATCH}",
                "always",
                100,
                lambda t=topic, f=form: http.publish(t, f, 100, BATCH, 1, bench.seconds),  # type: ignore[misc]
            )
            bench.add(
                f"http read {name}",
                "-",
                100,
                lambda t=topic, f=form: http.consume(t, f, int(2_000_000 * bench.seconds)),  # type: ignore[misc]
            )


def loads(bench: Bench) -> None:
    """Single publishes, by turns with a server that stores nothing; the best run of each stays."""
    if not bench.wants("http publish single 1"):
        return
    program = bench.build("load_http")
    with bench.server(listeners=()) as process, bare(program) as idle:
        ours = of(program, process)
        for _ in range(TURNS):
            for count in SINGLE_CONNECTIONS:
                for name, durability, http in (("", "always", ours), (", bare aiohttp", "-", idle)):
                    bench.add(
                        f"http publish single {count}{name}",
                        durability,
                        100,
                        lambda c=count, h=http: h.publish("single", "none", 100, 1, c, bench.seconds / 2),  # type: ignore[misc]
                    )


# --- the bare server: what aiohttp, uvloop and the kernel cost alone


ANSWER = {
    "schema": 1,
    "records": 1,
    "partitions": [{"partition": 0, "first_offset": 123456, "last_offset": 123456, "records": 1}],
}


async def answer(request: web.BaseRequest) -> web.Response:
    """Reads the body and keeps nothing."""
    await request.read()
    return web.json_response(ANSWER)


async def serve_bare() -> None:
    """Until the process is ended; prints its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(web.Server(answer, access_log=None), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def bare(program: Path) -> Iterator[Http]:
    """Loads on a bare server in a process of its own."""
    command = [sys.executable, "-m", "bench.http_loads"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Http(program, ("127.0.0.1", port), process.pid)
        finally:
            process.terminate()


if __name__ == "__main__":
    uvloop.run(serve_bare())
