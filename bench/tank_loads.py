"""Loads of the TANK protocol: bundles of 100 messages of 100 bytes, as its own client sends them, and single ones."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from bench.harness import Bench, run_client
from bench.peers import Load
from engine.formats.bundle_encode import encode_bundle
from netserver.tank import codec, messages
from netserver.testing import ServerProcess

SIZE = 100
ANY_SEQ = 0x1122334455667788
"""Stands in a Consume for the number that the load client writes there."""
TOPIC = b"bench"


def text(count: int) -> list[bytes]:
    """Values that compress about as text does."""
    chance = random.Random(1)
    words = [chance.randbytes(5).hex().encode() for _ in range(200)]
    return [b" ".join(chance.choice(words) for _ in range(10))[:SIZE] for _ in range(count)]


class Tank:
    """Loads on a running server through the compiled client.

    Args:
        directory: for the files that the client is given.
    """

    def __init__(self, program: Path, server: ServerProcess, directory: Path) -> None:
        self.program = program
        self.server = server
        self.address = server.address("tank")
        self.frame = directory / "tank-frame"

    def create(self, topic: bytes) -> None:
        """Make a topic."""
        with socket.create_connection(self.address) as connection:
            connection.sendall(codec.encode_request(messages.CreateTopicRequest(1, topic, 1)))
            answer = b""
            while len(answer) < 5 + 5 + 4 + 1 + len(topic) + 1:  # the Ping, then the answer
                answer += connection.recv(100)
        assert answer[-1] in (messages.CreateCode.CREATED, messages.CreateCode.EXISTS), answer

    def produce(self, topic: bytes, records: int, window: int, seconds: float) -> Load:
        """Publish bundles of ``records`` messages (with snappy when there are many)."""
        self.create(topic)
        bundle = encode_bundle(text(records), None, [1_700_000_000_000] * records, codec=int(records > 10))
        parts = (messages.ProducePartition(0, bundle),)
        request = messages.ProduceRequest(7, (messages.ProduceTopic(topic, parts),), client_id=b"bench")
        self.frame.write_bytes(codec.encode_request(request))
        return self._run("produce", self.frame, records, window, seconds)

    def consume(self, topic: bytes, count: int) -> Load:
        """Read ``count`` messages, again from the beginning when there are fewer."""
        parts = (messages.ConsumePartition(0, ANY_SEQ, 8 << 20),)
        frame = codec.encode_request(messages.ConsumeRequest(1, (messages.ConsumeTopic(topic, parts),)))
        self.frame.write_bytes(frame)
        return self._run("consume", self.frame, frame.index(ANY_SEQ.to_bytes(8, "little")), count)

    def _run(self, command: str, *arguments: object) -> Load:
        return run_client([self.program, command, *self.address, *arguments], self.server.pid)


def loads(bench: Bench) -> None:
    """Producing and consuming, in bundles of 100 messages and of one."""
    program = bench.build("load_tank")
    for durability in ("always", "never"):
        with bench.server(durability, listeners=("tank",)) as process:
            tank = Tank(program, process, bench.directory)
            produce(bench, tank, durability)
            if durability == "always":
                consume(bench, tank)


def produce(bench: Bench, tank: Tank, durability: str) -> None:
    """Bundles of 100 messages and of one."""
    for records, window in ((100, 16), (100, 64), (1, 64)):
        topic = f"{records}-{window}".encode()
        bench.add(
            f"tank produce {records} x {window}",
            durability,
            100,
            lambda t=topic, r=records, w=window: tank.produce(t, r, w, bench.seconds),  # type: ignore[misc]
        )


def consume(bench: Bench, tank: Tank) -> None:
    """The topics of `produce`, from their beginning, as often as it takes."""
    for records in (100, 1):
        name, topic = f"tank consume, bundles of {records}", f"{records}-64".encode()
        if not bench.wants(name):
            continue
        if not bench.wants(f"tank produce {records} x 64"):
            tank.produce(topic, records, 64, bench.seconds)
        count = int(8_000_000 * bench.seconds)
        bench.add(name, "-", 100, lambda t=topic, n=count: tank.consume(t, n))  # type: ignore[misc]
