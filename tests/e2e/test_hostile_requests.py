"""Whatever request is sent, in whatever shape, no turn of the server's event loop takes long: nobody else waits.

The server's own watchdog tells what its longest turn took, in processor time of the loop's thread. Ten programs on two
processors share caches too, so that the same work takes up to three times as long: the bound is multiplied by how much
longer a piece of work takes here and now than at best (`tests.cpu.Pace`). All of it takes minutes on a loaded machine:
QUINTLOG_NIGHTLY=1 sends it, QUINTLOG_HOSTILE_SCALE=5 five times as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from netserver.admin import server as admin_server
from netserver.blipmq import codec as blipmq
from netserver.figg import codec as figg
from netserver.figg.codec import TO_SERVER
from netserver.fujin import codec as fujin
from netserver.kafka.apis import APIS, Key
from netserver.kafka.codec import Head, encode_request
from netserver.limits import SLOW_TURN_S
from netserver.reliably import codec as reliably
from netserver.tank import codec as tank
from netserver.tank import messages
from netserver.tank.requests import REQUEST_IDS
from netserver.testing import ServerProcess, server
from tests import hostile_shapes
from tests.blipmq_peer import KEY
from tests.cpu import Pace
from tests.figg_peer import FiggPeer
from tests.fujin_peer import Peer as FujinPeer
from tests.fujin_peer import connect
from tests.hostile_kafka import KAFKA
from tests.hostile_shapes import NAME, SCALE, WIDE, Shapes

PATIENCE_S = 60.0 * SCALE
MARK = 0xFEED_FACE_0123
STREAMS = 100
ROUTE = re.compile(r"^(GET|POST|PATCH|DELETE) +(/\S*)", re.MULTILINE)
ROUTES = ROUTE.findall(admin_server.__doc__ or "")
BY_CLIENT = set(blipmq.FrameType) - {blipmq.FrameType.NACK, blipmq.FrameType.PONG}

TABLE: dict[str, tuple[Shapes, set[str]]] = {
    "figg": (
        hostile_shapes.FIGG,
        {
            name
            for name in vars(figg)
            if name.isupper() and name.title() in vars(figg) and vars(figg)[name] in TO_SERVER
        },
    ),
    "reliably": (hostile_shapes.RELIABLY, {kind.__name__ for kind in get_args(reliably.Request)}),
    "tank": (hostile_shapes.TANK, {messages.MessageId(number).name for number in REQUEST_IDS}),
    "blipmq": (hostile_shapes.BLIPMQ, {kind.name for kind in BY_CLIENT}),
    "blipmq 2": (hostile_shapes.BLIPMQ_V2, {kind.name for kind in BY_CLIENT}),
    "fujin": (hostile_shapes.FUJIN, {op.name for op in fujin.Op}),
    "kafka": (KAFKA, {api.key.name for api in APIS.values()}),
    "admin": (hostile_shapes.admin(ROUTES), {f"{method} {path}" for method, path in ROUTES}),
}
"""Protocol -> (shapes by request, the requests that its codec knows)."""

CASES = [
    pytest.param(protocol, request, make, id=f"{protocol} {request} {name}".replace(" ", "-"))
    for protocol, (shapes, _) in TABLE.items()
    for request, named in shapes.items()
    for name, make in named.items()
]


@pytest.mark.parametrize("protocol", TABLE)
def test_every_request_that_a_codec_knows_is_in_the_table(protocol: str) -> None:
    shapes, known = TABLE[protocol]
    assert known
    assert set(shapes) == known
    assert all(shapes.values())


class Watched:
    """A server, and its longest turn so far."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.longest_s = 0.0
        self.pace = Pace()

    def longer_turn_s(self) -> float:
        """CPU seconds of a turn that was longer than all before the last call; 0: there was none."""
        found = re.search(
            r"^quintlog_loop_turn_seconds_max (\S+)$", self.process.admin("GET", "/metrics"), re.MULTILINE
        )
        assert found is not None
        before, self.longest_s = self.longest_s, float(found[1])
        return self.longest_s if self.longest_s > before else 0.0


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    settings = {"blipmq": {"message_ttl": "1h"}, "engine": {"partitions_max": 200_000}}
    with server(settings=settings) as process:
        with FiggPeer(process.address("figg")) as peer:
            peer.send(NAME, [b"x" * 100] * 1000)
            assert peer.wait_for_ack(peer.sent - 1)
        process.admin("POST", "/v1/topics", {"name": WIDE.decode(), "partitions": 65_535})
        yield Watched(process)
        assert "Traceback" not in process.log_text, process.log_text[-3000:]


def exchange(
    address: tuple[str, int], data: bytes, is_over: Callable[[bytes], bool], *, shut_after_s: float = 0
) -> None:
    """Send ``data`` and take all answers until ``is_over`` (of the latest ones) or the server ends the connection."""
    left = memoryview(data)
    latest = b""
    deadline = time.monotonic() + PATIENCE_S
    with socket.create_connection(address, PATIENCE_S) as peer, contextlib.suppress(ConnectionError):
        peer.setblocking(False)
        sent_at = 0.0
        while True:
            now = time.monotonic()
            assert now < deadline, f"no end; {len(left)} bytes are not sent, the latest answer was {latest[-100:]!r}"
            if not left and shut_after_s and sent_at and now - sent_at > shut_after_s:
                peer.shutdown(socket.SHUT_WR)
                shut_after_s = 0
            readable, writable, _ = select.select([peer], [peer] if left else [], [], 0.05)
            if writable:
                left = left[peer.send(left[: 1 << 20]) :]
                sent_at = time.monotonic()
            if readable:
                came = peer.recv(1 << 20)
                if not came or is_over(latest := latest[-64:] + came):
                    return


def send_figg(process: ServerProcess, _request: str, data: bytes) -> None:
    exchange(process.address("figg"), data + figg.ping(MARK), lambda latest: figg.pong(MARK) in latest)


def send_blipmq(process: ServerProcess, _request: str, data: bytes, version: int = 1) -> None:
    login = blipmq.hello(1, version) + blipmq.auth(2, KEY) + blipmq.subscribe(3, NAME, 1)
    exchange(process.address("blipmq"), login + data + blipmq.ping(MARK), lambda latest: blipmq.pong(MARK) in latest)


def send_blipmq_v2(process: ServerProcess, request: str, data: bytes) -> None:
    send_blipmq(process, request, data, 2)


def send_tank(process: ServerProcess, _request: str, data: bytes) -> None:
    mark = MARK & 0xFFFF_FFFF
    last = tank.encode_request(messages.StatusRequest(mark))
    exchange(process.address("tank"), data + last, lambda latest: mark.to_bytes(4, "little") in latest)
    time.sleep(0.15)  # what waits for records ends by then


def send_kafka(process: ServerProcess, _request: str, data: bytes) -> None:
    last = encode_request(Head(Key.API_VERSIONS, 0, MARK & 0x7FFF_FFFF), "", {})
    mark = last[8:12]
    exchange(process.address("kafka"), data + last, lambda latest: mark in latest)


def send_reliably(process: ServerProcess, _request: str, data: bytes) -> None:
    exchange(process.address("reliably"), data, lambda _latest: False, shut_after_s=0.2)


def send_admin(process: ServerProcess, _request: str, data: bytes) -> None:
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    data = data.replace(b"TOKEN", process.token.encode())
    exchange(process.address("admin"), data + last, lambda _latest: False)


def send_fujin(process: ServerProcess, request: str, data: bytes) -> None:
    async def main() -> None:
        async with connect(process.address("fujin")) as peer, asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(one.rest() for one in await streams(peer)))

    async def streams(peer: FujinPeer) -> list[Any]:
        if request.startswith("CONNECT"):
            return [peer.open(data + fujin.DISCONNECT, fin=True) for _ in range(STREAMS)]
        if request == "DISCONNECT":
            return [peer.open(fujin.connect_writer() + fujin.DISCONNECT) for _ in range(STREAMS)]
        if request in ("FETCH", "ACK", "NACK"):
            stream = await peer.reader(NAME, fujin.PULL if request == "FETCH" else fujin.PUSH)
        else:
            stream = peer.writer()
        stream.send(data + fujin.DISCONNECT)
        return [stream]

    asyncio.run(main())


SENDERS: dict[str, Callable[[ServerProcess, str, bytes], None]] = {
    "figg": send_figg, "reliably": send_reliably, "tank": send_tank, "blipmq": send_blipmq,
    "blipmq 2": send_blipmq_v2, "fujin": send_fujin, "kafka": send_kafka, "admin": send_admin,
}  # fmt: skip


@pytest.mark.skipif(not os.environ.get("QUINTLOG_NIGHTLY"), reason="QUINTLOG_NIGHTLY=1: takes minutes")
@pytest.mark.parametrize(("protocol", "request_name", "make"), CASES)
def test_no_request_makes_a_long_turn(
    watched: Watched, protocol: str, request_name: str, make: Callable[[], bytes]
) -> None:
    SENDERS[protocol](watched.process, request_name, make())
    watched.pace.sample()
    longer_s = watched.longer_turn_s()
    if longer_s:
        print(f"the longest turn so far, of {protocol} {request_name}: {longer_s * 1e3:.0f} ms")
    assert longer_s <= SLOW_TURN_S * watched.pace.ratio, (
        f"a turn of {longer_s * 1e3:.0f} ms, work takes {watched.pace.ratio:.1f} times as long as at best;\n"
        + "\n".join(text for text in watched.process.log_text.splitlines() if "turn of the event loop" in text)
    )
