"""Clients that come and go: each visit opens a connection, uses what its protocol has, and leaves.

As a program it answers each line "KIND COUNT" with a line when so many visits of a kind are over; so what the clients
leave behind in memory is none of the server's::

    python -m tests.visitors '{"figg": ["127.0.0.1", 8119], ...}' ADMIN-TOKEN
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator

from netserver.blipmq import codec as blipmq
from netserver.blipmq import codec_v2
from netserver.fujin import codec as fujin
from netserver.kafka.apis import APIS, Key
from netserver.kafka.codec import Head, encode_request
from netserver.reliably import codec as reliably
from netserver.tank import codec as tank
from netserver.tank import messages
from tests.blipmq_peer import Peer as BlipmqPeer
from tests.figg_peer import FiggPeer
from tests.fujin_peer import acknowledge, connect
from tests.kafka_peer import batch, by_topic, metadata
from tests.kafka_peer import fetch as kafka_fetch
from tests.kafka_peer import produce as kafka_produce
from tests.tank_peer import bundle, consume, produce

PATIENCE_S = 20.0
LARGE_BYTES = 300 << 10  # above what is looked at in the event loop
LAST_SEQ = (1 << 64) - 1
LAST_OFFSET = (1 << 63) - 1
Addresses = dict[str, tuple[str, int]]


class Visitors:
    """Knows where the server is; each method is a visit."""

    def __init__(self, addresses: Addresses, token: str) -> None:
        self._addresses = addresses
        self._token = token
        self._serial = 0

    def figg(self) -> None:
        """Publishes, reads, goes."""
        with FiggPeer(self._addresses["figg"]) as peer:
            peer.send(b"seen", [b"x"] * 10)
            assert peer.wait_for_ack(9)
            peer.attach(b"seen", 0)
            next(peer.frames())
            next(peer.frames())

    def reliably(self) -> None:
        """A stateless stream, one with numbers, one of a topic."""
        self.figg()
        for request in (
            reliably.stateless_request(None),
            reliably.start_request(str(uuid.uuid4()), {"count": 5}),
            reliably.start_request(str(uuid.uuid4()), {"topic": "seen"}),
        ):
            with self._connected("reliably") as peer:
                peer.sendall(request)
                assert peer.recv(100)

    def tank(self) -> None:
        """Produces, consumes, waits for records in vain and goes, asks."""
        with self._connected("tank") as peer, peer.makefile("rb") as file:
            for request in (
                messages.Ping(),
                messages.CreateTopicRequest(1, b"seen-by-tank", 3, b""),
                produce(2, b"seen-by-tank", bundle(b"x"), partition_id=2),
                consume(3, b"seen-by-tank", (0, 0), (2, 0)),
                messages.DiscoverPartitionsRequest(4, b"seen-by-tank", ()),
                consume(5, b"seen-by-tank", (1, LAST_SEQ), max_wait_ms=20, min_bytes=1),
            ):
                if not isinstance(request, messages.Ping):
                    peer.sendall(tank.encode_request(request))
                assert file.read(int.from_bytes(file.read(5)[1:], "little")) or isinstance(request, messages.Ping)
            peer.sendall(tank.encode_request(consume(6, b"seen-by-tank", (1, LAST_SEQ), max_wait_ms=9000, min_bytes=1)))

    def kafka(self) -> None:
        """Asks, publishes, reads, waits for records in vain and goes."""
        with self._connected("kafka") as peer, peer.makefile("rb") as file:
            for number, (key, body) in enumerate((
                (Key.API_VERSIONS, {}),
                (Key.METADATA, metadata("seen-by-kafka")),
                (Key.PRODUCE, kafka_produce("seen-by-kafka", batch(b"x"))),
                (Key.FETCH, kafka_fetch("seen-by-kafka", (0, 1))),
                (Key.LIST_OFFSETS, by_topic("seen-by-kafka", [{"index": 0, "timestamp_ms": -3}])),
                (Key.DESCRIBE_CONFIGS, {"resources": [{"type": 2, "name": "seen-by-kafka"}], "synonyms": False}),
                (Key.FETCH, kafka_fetch("seen-by-kafka", (0, LAST_OFFSET), wait_ms=20)),
            )):  # fmt: skip
                peer.sendall(encode_request(Head(key, APIS[key].last, number), "visitor", body))
                assert file.read(int.from_bytes(file.read(4), "big"))
            waiting = kafka_fetch("seen-by-kafka", (0, 2), wait_ms=200)
            peer.sendall(encode_request(Head(Key.FETCH, 11, 9), "visitor", waiting))

    def blipmq(self) -> None:
        """Subscribes, publishes, polls, acknowledges some."""
        with BlipmqPeer(self._addresses["blipmq"]) as peer:
            subscription = peer.subscribe(b"seen")
            peer.publish(b"seen", b"a", b"b")
            tags = [tag for tag, _ in peer.poll(subscription, 2)]
            peer.ack(subscription, *tags[:1])
            peer.send(blipmq.publish(1, 1, b"seen", b"c"))

    def blipmq_v2(self) -> None:
        """A topic, a group and a pattern are pushed; some are acknowledged."""
        with BlipmqPeer(self._addresses["blipmq"], version=2) as peer, peer.socket.makefile("rb") as file:
            peer.send(blipmq.publish(1, 1, b"pushed.a", b"x"))
            peer.send(codec_v2.subscribe(2, b"pushed.a", 1, offset=0))
            peer.send(codec_v2.subscribe(3, b"pushed.a", 1, b"group"))
            peer.send(codec_v2.subscribe(4, b"pushed.*", 1))
            peer.send(codec_v2.publish(5, 1, b"pushed.a", b"y", key=b"k"))
            for _ in range(6):  # three answers, three messages at least
                assert file.read(int.from_bytes(file.read(4), "big"))

    async def fujin(self) -> None:
        """A writer with a transaction, a reader that is pushed to, one that fetches, a stream that is reset."""
        async with connect(self._addresses["fujin"]) as peer:
            await peer.publish(b"seen", b"x", b"y")
            writer = peer.writer()
            writer.send(fujin.tx(fujin.Op.BEGIN, 1) + fujin.write(2, b"seen", b"z") + fujin.tx(fujin.Op.COMMIT, 3))
            assert len(await writer.take(15)) == 15
            pushed = await peer.reader(b"seen")
            found = await pushed.messages(1)
            assert found[0].message_id
            await acknowledge(pushed, found[0].message_id)
            fetching = await peer.puller(b"seen")
            fetching.send(fujin.fetch(4, 1))
            peer.open(fujin.connect_writer()).reset()

    def admin(self) -> None:
        """Reads, publishes, is refused, and is wrong."""
        for method, path, body in (
            ("GET", "/healthz", b""),
            ("GET", "/metrics", b""),
            ("GET", "/v1/topics", b""),
            ("POST", "/v1/topics/seen/records", b'{"records":[{"value":"x"}]}'),
            ("POST", "/v1/topics/seen/records", b'{"records":'),
            ("GET", "/v1/nothing", b""),
        ):
            assert self._http(method, path, body).startswith(b"HTTP/1.1 ")

    def large(self) -> None:
        """What a thread looks at: a request that is refused, bodies that are read and that are none."""
        with self._connected("tank") as peer, peer.makefile("rb") as file:
            file.read(int.from_bytes(file.read(5)[1:], "little"))  # the Ping
            peer.sendall(tank.encode_request(produce(1, b"seen", b"\xff" * LARGE_BYTES, base_seq=1)))
            assert not file.read()
        for rest in (b'"}]}', b"", b'"}]'):
            body = b'{"records":[{"value":"%b' % (b"x" * LARGE_BYTES) + rest
            assert self._http("POST", "/v1/topics/seen/records", body).startswith(b"HTTP/1.1 ")

    def topics(self) -> None:
        """A topic is made, written to, read, and deleted."""
        self._serial += 1
        name = b"gone-%d" % self._serial
        with FiggPeer(self._addresses["figg"]) as peer:
            peer.attach(name, 0)
            peer.send(name, [b"x"] * 10)
            assert peer.wait_for_ack(9)
            assert self._http("DELETE", f"/v1/topics/{name.decode()}").startswith(b"HTTP/1.1 200")

    def silence(self) -> None:
        """Opens a connection and leaves."""
        for name in ("figg", "reliably", "tank", "blipmq", "admin"):
            self._connected(name).close()

    def noise(self) -> None:
        """Sends what is no protocol's."""
        for name in ("figg", "reliably", "tank", "blipmq", "admin"):
            with self._connected(name) as peer:
                peer.sendall(b"\xff" * 64 + b"\r\n\r\n")
                if name == "admin":
                    assert b" 400 " in peer.recv(100)

    def _connected(self, name: str) -> socket.socket:
        return socket.create_connection(self._addresses[name], PATIENCE_S)

    def _http(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        with self._connected("admin") as peer:
            peer.sendall(f"{head}Authorization: Bearer {self._token}\r\n\r\n".encode() + body)
            return b"".join(self._until_the_end(peer))

    @staticmethod
    def _until_the_end(peer: socket.socket) -> Iterator[bytes]:
        try:
            while data := peer.recv(1 << 16):
                yield data
        except ConnectionError:
            return


KINDS = (
    "figg",
    "reliably",
    "tank",
    "kafka",
    "blipmq",
    "blipmq_v2",
    "fujin",
    "admin",
    "large",
    "topics",
    "silence",
    "noise",
)


def main(addresses: Addresses, token: str) -> None:
    """The process's work."""
    visitors = Visitors(addresses, token)
    for line in sys.stdin:
        kind, _, count = line.partition(" ")
        visit: Callable[[], Awaitable[None] | None] = getattr(visitors, kind)

        async def visits(visit: Callable[[], Awaitable[None] | None] = visit, count: int = int(count)) -> None:
            for _ in range(count):
                under_way = visit()
                if under_way is not None:
                    await under_way

        asyncio.run(visits())
        print("done", flush=True)


if __name__ == "__main__":
    main({name: (host, port) for name, (host, port) in json.loads(sys.argv[1]).items()}, sys.argv[2])
