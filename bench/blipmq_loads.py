"""Loads of the BlipMQ protocol, and a bare uvloop server of the same frames to compare round trips with."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import uvloop

from bench import machine
from bench.harness import Bench, run_client
from bench.peers import Load
from netserver.blipmq import codec
from netserver.blipmq.codec import FrameType

ROOT = Path(__file__).parent.parent
WINDOW = 128
WINDOWS = f"blipmq POLL + ACK by {WINDOW}"
ONE_BY_ONE = "blipmq POLL, ACK one by one"
BARE = "blipmq POLL, ACK one by one, bare uvloop"
DELIVERY = "blipmq publish to delivery"
TURNS = 4
"""Runs of what is compared: the machine has other work, and both get some of its quiet moments."""
ID_FRAME_BYTES = 21


class Blipmq:
    """Loads on a server through the compiled client."""

    def __init__(self, program: Path, address: tuple[str, int], pid: int) -> None:
        self.program = program
        self.address = address
        self.pid = pid

    def subscribe(self, topic: str) -> int:
        """A new subscription, which outlives this connection."""
        with socket.create_connection(self.address) as connection:
            connection.sendall(
                codec.hello(1) + codec.auth(2, "bench") + codec.subscribe(3, topic.encode(), 1) + codec.ping(4)
            )
            decoder = codec.Decoder()
            while True:
                decoder.receive(connection.recv(1000))
                while (frame := decoder.next_frame()) is not None:
                    if frame.cid == 3:
                        return codec.parse_ack(frame.payload)

    def publish(self, topic: str, size: int, qos: int, seconds: float) -> Load:
        """Publish for so long; counted is what a PONG has confirmed."""
        return self._run("publish", topic, size, qos, seconds)

    def consume(self, subscription: int, count: int, window: int = WINDOW) -> Load:
        """POLL and ACK by windows."""
        return self._run("consume", subscription, window, count // window * window)

    def single(self, subscription: int, count: int) -> Load:
        """POLL and ACK one by one."""
        return self._run("single", subscription, count)

    def latency(self, topic: str, subscription: int, size: int, count: int) -> Load:
        """Publish to delivery."""
        return self._run("latency", topic, subscription, size, count)

    def _run(self, command: str, *arguments: object) -> Load:
        return run_client([self.program, command, *self.address, *arguments], self.pid)


def loads(bench: Bench) -> None:
    """Publishing with a PING every 4096 messages, POLL with ACK, and how long a delivery takes."""
    program = bench.build("load_blipmq")
    with bench.server(listeners=("blipmq",)) as process:
        client = Blipmq(program, process.address("blipmq"), process.pid)
        for qos, durability in ((1, "always"), (0, "-")):
            bench.add(
                f"blipmq publish QoS {qos}",
                durability,
                100,
                lambda q=qos: client.publish(f"qos{q}", 100, q, bench.seconds),  # type: ignore[misc]
            )
        if bench.wants(WINDOWS):
            subscription = client.subscribe("windows")
            client.publish("windows", 100, 1, bench.seconds)
            bench.add(WINDOWS, "lazy", 100, lambda: client.consume(subscription, int(200_000 * bench.seconds)))
        round_trips(bench, client)
        deliveries(bench, client)


def round_trips(bench: Bench, client: Blipmq) -> None:
    """POLL and ACK one by one, by turns with a server that has nothing to do; the best run of each stays."""
    if not bench.wants(ONE_BY_ONE):
        return
    subscription, count = client.subscribe("single"), int(2000 * bench.seconds)
    with bare(client.program) as idle:
        for _ in range(TURNS):
            client.publish("single", 100, 1, 0.1)
            bench.add(ONE_BY_ONE, "lazy", 100, lambda: client.single(subscription, count))
            bench.add(BARE, "-", 100, lambda: idle.single(1, count))


def deliveries(bench: Bench, client: Blipmq) -> None:
    """From a publish to its delivery to a busy poller, by turns with the sync that it waits for."""
    if not bench.wants(DELIVERY):
        return
    subscription, count = client.subscribe("latency"), int(200 * bench.seconds)
    syncs = []
    for _ in range(TURNS):
        syncs.append(machine.sync_us(bench.directory, 4096)[0])
        bench.add(DELIVERY, "always", 100, lambda: client.latency("latency", subscription, 100, count))
    bench.facts["write + fdatasync beside deliveries p50 us"] = min(syncs)


# --- the bare server: what uvloop and the kernel cost alone


class Bare(asyncio.BufferedProtocol):
    """Answers HELLO and AUTH, and each POLL with the same delivery; ACKs are passed over."""

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 18)
        self._logins = 0
        self._delivery = codec.publish(1, 1, b"single", bytes(100))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._logins:
            self._logins = 2
            self._transport.write(codec.ack(1) + codec.ack(2))
            return
        kinds = self._buffer[4:nbytes:ID_FRAME_BYTES]
        polls = kinds.count(FrameType.POLL)
        if polls:
            self._transport.write(self._delivery * polls)


async def serve_bare() -> None:
    """Until the process is ended; prints its port."""
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def bare(program: Path) -> Iterator[Blipmq]:
    """Loads on a bare server in a process of its own."""
    command = [sys.executable, "-m", "bench.blipmq_loads"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Blipmq(program, ("127.0.0.1", port), process.pid)
        finally:
            process.terminate()


if __name__ == "__main__":
    uvloop.run(serve_bare())
