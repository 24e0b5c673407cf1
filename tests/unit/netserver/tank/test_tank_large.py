"""Large publishes of TANK: refused by what they announce, or checked on a thread while others have their turns."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from typing import Any

import pytest
from cramjam import snappy

from engine.formats.bundle_encode import encode_bundle
from engine.partitions.partition import Partition
from netserver.tank import messages, produce
from netserver.tank.errors import FormatError
from netserver.tank.limits import BUNDLE_RECORDS_MAX, BUNDLE_UNPACKED_BYTES_MAX
from netserver.tank.wire import varint
from tests.echo import until
from tests.tank_peer import Place, with_server

BUNDLE = encode_bundle([b"x"], None, [1])


def empties(count: int, *, packed: bool = True) -> bytes:
    """A bundle of messages without a byte of content."""
    messages = b"\0" + bytes(8) + b"\0" + b"\2\0" * (count - 1)
    content = bytes(snappy.compress_raw(messages)) if packed else messages
    return bytes((packed,)) + varint(count) + content


def request(*bundles: bytes, topics: int = 1) -> messages.ProduceRequest:
    entries = tuple(messages.ProducePartition(0, bundle, 0) for bundle in bundles)
    return messages.ProduceRequest(7, (messages.ProduceTopic(b"t", entries),) * topics, False)


@pytest.mark.parametrize(
    "bundle",
    [
        empties(BUNDLE_RECORDS_MAX + 1),
        empties(BUNDLE_RECORDS_MAX + 1, packed=False),
        b"\1\4" + varint(BUNDLE_UNPACKED_BYTES_MAX + (1 << 20)) + bytes(1 << 20),
        b"\4" + bytes(9) + varint(17 << 20) + bytes(17 << 20),
    ],
    ids=["messages", "messages as they are", "unpacked", "length"],
)
def test_what_is_too_large_is_refused_by_what_it_announces(bundle: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    check = produce.check_bundles

    def noted(*arguments: Any) -> object:
        try:
            return check(*arguments)
        except FormatError as error:
            refused.append(str(error))
            raise

    monkeypatch.setattr(produce, "check_bundles", noted)

    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 1) == 0
        peer.send(request(bundle))
        await peer.closed_by_server()
        topic = place.server.log.catalog.get(b"t")
        assert topic is not None
        assert place.server.log.partition(topic).last_seq == 0

    with_server(test)
    (text,) = refused
    assert "more than" in text


def test_others_have_their_turns_while_a_large_one_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    check = produce.check_bundles

    def held_up(*arguments: object) -> object:
        started.set()
        assert go_on.wait(20)
        return check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(produce, "check_bundles", held_up)

    async def test(place: Place) -> None:
        peer, other = await place.peer(), await place.peer()
        assert await peer.create(b"t", 1) == 0
        peer.send(request(empties(BUNDLE_RECORDS_MAX)), messages.StatusRequest(9))
        await until(started.is_set)
        other.send(messages.StatusRequest(8))
        assert (await other.answer(messages.StatusResponse)).request_id == 8
        go_on.set()
        assert (await peer.answer(messages.ProduceResponse)).codes == b"\0"
        assert (await peer.answer(messages.StatusResponse)).request_id == 9, "in order"
        peer.send(request(BUNDLE))
        assert (await peer.answer(messages.ProduceResponse)).codes == b"\0"
        partition = place.server.log.partition(place.server.log.catalog.get(b"t"))  # type: ignore[arg-type]
        assert partition.last_seq == BUNDLE_RECORDS_MAX + 1

    with_server(test)


def test_very_many_bundles_are_appended_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    left: list[int] = []
    append_bundle = Partition.append_bundle

    def parsed() -> int:
        return sum(type(one) is messages.ProducePartition for one in gc.get_objects())

    others = parsed()  # of tests before this one

    def watched(self: Partition, *arguments: Any, **more: Any) -> object:
        if self.last_seq == 4999:
            left.append(parsed())
        return append_bundle(self, *arguments, **more)

    monkeypatch.setattr(Partition, "append_bundle", watched)

    async def test(place: Place) -> None:
        peer = await place.peer()
        assert await peer.create(b"t", 1) == 0
        partition = place.server.log.partition(place.server.log.catalog.get(b"t"))  # type: ignore[arg-type]
        seen = [0]

        async def watch() -> None:
            while True:
                await asyncio.sleep(0)
                seen.append(partition.last_seq)

        watching = asyncio.ensure_future(watch())
        peer.send(request(*[BUNDLE] * 250, topics=20))
        assert (await peer.answer(messages.ProduceResponse)).codes == bytes(5000)
        watching.cancel()
        assert partition.last_seq == 5000
        assert len(left) == 1
        assert left[0] - others <= 250, "entries that are appended go with their topic"
        assert max(after - before for before, after in itertools.pairwise(seen)) <= 3

    with_server(test)
