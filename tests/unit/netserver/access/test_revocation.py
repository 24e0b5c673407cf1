"""Rights that are taken back while everybody is at work: a second later nothing succeeds, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from netserver.access.rights import Right
from netserver.blipmq import codec as blipmq
from netserver.blipmq.codec import FrameType
from netserver.fujin import codec as fujin
from netserver.fujin.codec import PUSH, Answer, Op
from netserver.tank import messages as tank
from netserver.tank.session import OPENING
from tests import blipmq_peer, fujin_peer, reliably_peer, tank_peer
from tests.access_place import Place, place
from tests.figg_peer import ATTACH, frame, publish_frame, text

pytestmark = pytest.mark.whole

EVERYTHING: Final[dict[str, Any]] = {right.value: ["*"] for right in Right}
GRACE_S: Final = 1.0
FED: Final = b"fed"
Done = Callable[[], None]


async def figg_publisher(place: Place, who: str, done: Done) -> None:
    reader, writer = await place.streams("figg", who)
    for number in range(1 << 30):
        writer.write(publish_frame(f"figg-{who}".encode(), number, b"x"))
        head = await reader.readexactly(8)
        await reader.readexactly(struct.unpack(">HHI", head)[2])
        done()


async def figg_reader(place: Place, who: str, done: Done) -> None:
    reader, writer = await place.streams("figg", who)
    writer.write(frame(ATTACH, struct.pack(">H", 0) + text(FED) + bytes(8)))
    while True:
        head = await reader.readexactly(8)
        await reader.readexactly(struct.unpack(">HHI", head)[2])
        done()


async def tank_publisher(place: Place, who: str, done: Done) -> None:
    peer = tank_peer.Peer(*await place.streams("tank", who))
    assert await peer.receive()
    while await peer.produce(b"made", tank_peer.bundle(b"x")) == b"\0":
        done()


async def tank_reader(place: Place, who: str, done: Done) -> None:
    """By requests that wait."""
    peer = tank_peer.Peer(*await place.streams("tank", who))
    assert await peer.receive()
    while True:
        peer.send(tank_peer.consume(3, FED, (0, tank.SEQ_END), max_wait_ms=5000, min_bytes=1))
        if not (await peer.answer(tank.ConsumeResponse)).topics[0].partitions[0].chunk:
            raise ConnectionError
        done()


async def blipmq_publisher(place: Place, who: str, done: Done) -> None:
    peer = blipmq_peer.AsyncPeer(*await place.streams("blipmq", who))
    peer.send(blipmq.hello(1) + blipmq.auth(2, "any"))
    if [one.type for one in await peer.frames(2)] != [FrameType.ACK] * 2:
        raise ConnectionError
    while True:
        peer.send(blipmq.publish(5, 1, f"blipmq-{who}".encode(), b"x"))
        if any(one.type == FrameType.NACK for one in await peer.until_pong()):
            raise ConnectionError
        done()


async def blipmq_pushed(place: Place, who: str, done: Done) -> None:
    peer = blipmq_peer.Peer2(*await place.streams("blipmq", who))
    peer.send(blipmq.hello(1, 2) + blipmq.auth(2, "any"))
    if [one.type for one in await peer.frames(2)] != [FrameType.ACK] * 2:
        raise ConnectionError
    await peer.join(FED, 0)
    while True:
        await peer.delivered(1)
        done()


async def fujin_transactions(place: Place, who: str, done: Done) -> None:
    async with fujin_peer.connect(place.address("fujin"), place.quic(who)) as peer:
        stream = peer.writer()
        topic = f"fujin-{who}".encode()
        while True:
            stream.send(fujin.tx(Op.BEGIN, 1) + fujin.write(2, topic, b"x"))
            await stream.take(12)
            stream.send(fujin.tx(Op.COMMIT, 3))
            if await stream.take(6) != fujin.done(Answer.COMMIT, 3):
                raise ConnectionError
            done()


async def fujin_group(place: Place, who: str, done: Done) -> None:
    async with fujin_peer.connect(place.address("fujin"), place.quic(who)) as peer:
        stream = await peer.reader(f"in-{who}".encode(), PUSH, auto=True)
        while True:
            await stream.event(auto=True)
            done()


async def reliably_session(place: Place, who: str, done: Done) -> None:
    peer = reliably_peer.Peer(*await place.streams("reliably", who))
    peer.send({"uuid": f"session-{who}", "params": {"topic": FED.decode(), "offset": "latest"}})
    while "id" in await peer.message():
        done()


WORK: Final[dict[str, Callable[[Place, str, Done], Awaitable[None]]]] = {
    one.__name__: one
    for one in (
        figg_publisher, figg_reader, tank_publisher, tank_reader, blipmq_publisher, blipmq_pushed, fujin_transactions,
        fujin_group, reliably_session,
    )
}  # fmt: skip


class Everybody:
    """Two identities, each at all kinds of work at once, dialling again when a connection ends."""

    def __init__(self, here: Place) -> None:
        self.here = here
        self.done: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.dialled: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.ended: dict[tuple[str, str], str] = {}
        self.over = False

    async def work(self, kind: str, who: str) -> None:
        while not self.over:
            self.dialled[kind, who] += 1
            try:
                await WORK[kind](self.here, who, lambda: self.done[kind, who].append(time.monotonic()))
            except (OSError, EOFError, AssertionError, TimeoutError, IndexError) as error:
                self.ended[kind, who] = repr(error)
            await asyncio.sleep(0.05)

    async def feed(self) -> None:
        _, writer = await self.here.streams("figg", "feeder")
        number = 0
        while not self.over:
            writer.write(b"".join(publish_frame(topic, number, b"x") for topic in (FED, b"in-stays", b"in-gone")))
            number += 1
            await asyncio.sleep(0.02)

    async def all_have(self, who: str, after: float) -> None:
        """Wait until everybody's work has got somewhere after a time."""
        deadline = time.monotonic() + 60
        while late := [kind for kind in WORK if not self.done[kind, who] or self.done[kind, who][-1] <= after]:
            assert time.monotonic() < deadline, f"{who} gets nowhere with {late}: {self.ended}"
            await asyncio.sleep(0.01)


async def revoke(here: Place) -> None:
    status, content = await here.http("DELETE", "/v1/keys/gone", "admin")
    assert status == 200, content


async def narrow(here: Place) -> None:
    """As a reload of the file does."""
    lines = [json.loads(line) for line in here.path.read_text().splitlines()]
    for line in lines:
        if line["name"] == "gone":
            line.update({right.value: ["elsewhere"] for right in Right})
    here.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    here.server.reload(here.server.config)


@pytest.mark.parametrize("change", [revoke, narrow], ids=["revoked", "narrowed"])
def test_a_second_later_nothing_succeeds_and_nobody_else_notices(
    tmp_path: Path, change: Callable[[Place], Awaitable[None]]
) -> None:
    identities = {"gone": EVERYTHING, "stays": EVERYTHING, "feeder": EVERYTHING, "admin": {"role": "operator"}}

    async def test() -> None:
        async with place(tmp_path, identities) as here:
            everybody = Everybody(here)
            first = tank_peer.Peer(*await here.streams("tank", "stays"))
            assert await first.receive()
            assert await first.create(b"made") == tank.CreateCode.CREATED
            tasks = [asyncio.ensure_future(everybody.feed())]
            tasks += [asyncio.ensure_future(everybody.work(kind, who)) for kind in WORK for who in ("gone", "stays")]
            began = time.monotonic()
            await everybody.all_have("gone", began)
            await everybody.all_have("stays", began)
            await change(here)
            at = time.monotonic()
            await asyncio.sleep(GRACE_S)
            await everybody.all_have("stays", time.monotonic())
            await asyncio.sleep(GRACE_S / 2)
            late = {kind: times[-1] - at for (kind, who), times in everybody.done.items() if who == "gone"}
            everybody.over = True
            for writer in here.writers:
                writer.transport.abort()
            _, left = await asyncio.wait(tasks, timeout=1)  # a dial that is cancelled would leave its socket open
            for task in left:
                task.cancel()
            await asyncio.wait(tasks, timeout=20)
            assert {kind: after for kind, after in late.items() if after > GRACE_S} == {}
            assert {kind: everybody.dialled[kind, "stays"] for kind in WORK} == dict.fromkeys(WORK, 1)

    asyncio.run(test())


def test_a_publish_that_waits_for_its_partition_is_not_carried_out_after_its_right_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {}) as here:
            partition = here.server.log.partition(here.server.log.catalog.get_or_create(b"t"), 0)
            partition.append([b"before the restart"])
            while not partition.committed_seq:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        async with place(tmp_path, {"gone": EVERYTHING, "admin": {"role": "operator"}}) as here:
            log, may_open = here.server.log, threading.Event()
            log.file_worker.submit(may_open.wait, lambda _: None)
            try:
                peer = tank_peer.Peer(*await here.streams("tank", "gone"))
                assert await peer.receive()
                peer.send(tank_peer.produce(2, b"t", tank_peer.bundle(b"x")))
                tank_listener = here.server.listeners["tank"]
                while not any(OPENING in one.hold_reasons for one in tank_listener.connections()):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                await revoke(here)
                assert await peer.receive() == b"", "the connection is closed"
            finally:
                may_open.set()
            partition, opened = log.partition(log.catalog.get_or_create(b"t"), 0), asyncio.Event()
            partition.when_open(opened.set)
            await opened.wait()
            assert partition.last_seq == 1

    asyncio.run(test())


def test_more_rights_count_at_once_on_the_open_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"grows": {"publish": ["a"], "subscribe": []}}) as here:
            peer = tank_peer.Peer(*await here.streams("tank", "grows"))
            assert await peer.receive()
            assert await peer.create(b"a") == tank.CreateCode.CREATED
            assert await peer.create(b"b") == tank.CreateCode.READ_ONLY
            line = json.loads(here.path.read_text())
            here.path.write_text(json.dumps(line | {"publish": ["a", "b"]}) + "\n")
            here.server.reload(here.server.config)
            assert await peer.create(b"b") == tank.CreateCode.CREATED
            assert await peer.produce(b"b", tank_peer.bundle(b"x")) == b"\0"

    asyncio.run(test())
