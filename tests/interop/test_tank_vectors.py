"""Captured exchanges of the real TANK server and its clients, replayed against ours: the answers have to be equal.

Different on purpose, and only this: times in Status; a chunk does not end where a segment of the original ended;
DiscoverPartitions of chosen partitions gives their numbers; ConsumePeer, which belongs to clusters, is refused; a
Consume of no topics is answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.formats.bundle import check_bundle, decode_bundle
from engine.formats.bundle_encode import encode_bundle
from netserver.tank import codec, messages
from netserver.testing import server
from tests.tank_peer import Peer, bundles_of

VECTORS = Path(__file__).parents[1] / "data" / "tank.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
Row = dict[str, Any]


def frame(case: str, step: int) -> bytes:
    return next(bytes.fromhex(row["hex"]) for row in ROWS if row["case"] == case and row["step"] == step)


def chunks(answer: bytes) -> Iterator[tuple[int | None, bytes]]:
    """(base number, chunk) of each partition in a Consume answer."""
    (response,) = codec.response_decoder().feed(answer)
    assert isinstance(response, messages.ConsumeResponse)
    for topic in response.topics:
        for partition in topic.partitions:
            yield partition.base_seq, bytes(partition.chunk)


class Replay:
    """The cases in their order, against one server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.compared = 0

    async def helper(self, *requests: messages.Request) -> None:
        peer = await Peer.open(self.address)
        for request in requests:
            peer.send(request)
            assert (await peer.receive())[-1] == 0, f"{request} was refused"
        await peer.close()

    async def publish(self, topic: bytes, bundles: list[tuple[int | None, bytes]]) -> None:
        """Bundles with the numbers that they had in the capture, by another connection."""
        for base_seq, bundle in bundles:
            part = messages.ProducePartition(0, bundle, base_seq or 0)
            await self.helper(messages.ProduceRequest(9, (messages.ProduceTopic(topic, (part,)),), True))

    async def before(self, case: str) -> None:
        """What the capture's server had got from connections that are not in the file."""
        if case == "cli_retention_boundary_below":
            for step in (5, 7, 9, 11):
                ((base_seq, chunk),) = chunks(frame(case, step))
                assert base_seq is not None
                await self.publish(b"conf", [(base_seq + n, bundle) for n, bundle in enumerate(bundles_of(chunk))])
        elif case == "go_01":
            await self.helper(messages.CreateTopicRequest(1, b"govg1", 1), messages.CreateTopicRequest(1, b"govg2", 1))
            ((_, chunk),) = chunks(frame("go_01", 3))
            await self.publish(b"govg1", [(None, bundle) for bundle in bundles_of(chunk)])
            ((_, chunk),) = chunks(frame("go_12", 3))
            await self.publish(b"govg2", [(None, bundle) for bundle in bundles_of(chunk)])
        elif case == "java_session":
            await self.helper(messages.CreateTopicRequest(1, b"javav", 2))

    async def during(self, case: str, step: int) -> None:
        """What another connection published while this one waited, before the answer ``step`` came."""
        topics = {("go_11", 3): b"govg1", ("java_session", 31): b"javav"}
        topic = topics.get((case, step))
        if topic is not None:
            ((_, chunk),) = chunks(frame(case, step))
            await self.publish(topic, [(None, bundle) for bundle in bundles_of(chunk)])

    async def case(self, name: str, rows: list[Row], compare: Callable[[Row, bytes], bool]) -> None:
        await self.before(name)
        peers: dict[int, Peer] = {}
        for row in rows:
            number = row.get("conn", 1)
            if number not in peers:
                peers[number] = Peer(*await asyncio.open_connection(*self.address))
            peer = peers[number]
            data = bytes.fromhex(row["hex"])
            if row["dir"] == "c2s":
                peer.send(data)
                continue
            await self.during(name, row["step"])
            answer = await peer.receive()
            if compare(row, answer):
                assert answer == data, f"{name} step {row['step']}: {row['note']}"
                self.compared += 1
            if not answer:
                break
        for peer in peers.values():
            await peer.close()


def status_without_times(answer: bytes) -> messages.StatusResponse:
    (response,) = codec.response_decoder().feed(answer)
    assert isinstance(response, messages.StatusResponse)
    return response._replace(opening_ms=0, started_unix_s=0)


def compare(row: Row, answer: bytes) -> bool:
    """Whether an answer has to be equal; False after it was found to differ as it should."""
    case, expected = row["case"], bytes.fromhex(row["hex"])
    if expected[:1] == b"\x0a":
        assert status_without_times(answer) == status_without_times(expected)
        return False
    if case == "cli_retention_boundary_below" and row["step"] in (5, 7, 9):
        (ours,), (theirs,) = chunks(answer), chunks(expected)
        assert ours[0] == theirs[0]
        assert len(ours[1]) > len(theirs[1])
        assert ours[1].startswith(theirs[1])
        return False
    if case == "raw_discover_selected_partitions_standalone" and row["step"] == 3:
        (response,) = codec.response_decoder().feed(answer)
        assert isinstance(response, messages.DiscoverPartitionsResponse)
        assert response.partitions == (messages.PartitionRange(1, 11), messages.PartitionRange(1, 41))
        return False
    if case == "raw_consume_peer_standalone" and row["step"] == 3:
        assert answer == b""
        return False
    if case == "raw_consume_no_topics" and row["step"] == 3:
        (response,) = codec.response_decoder().feed(answer)
        assert response == messages.ConsumeResponse(1, ())
        return False
    return True


def exchanges() -> Iterator[tuple[str, list[Row]]]:
    """The cases; of java_session without what belongs to frames that the file leaves out."""
    for case, rows in groupby(ROWS, key=lambda row: row["case"]):
        yield case, [row for row in rows if case != "java_session" or row["step"] not in range(14, 18)]


def test_every_exchange() -> None:
    async def replay(address: tuple[str, int]) -> int:
        run = Replay(address)
        for case, rows in exchanges():
            await run.case(case, rows, compare)
        return run.compared

    with server() as quintlog:
        assert asyncio.run(replay(quintlog.address("tank"))) > 150


def all_bundles() -> list[bytes]:
    """Every bundle of the file, as sent by clients and as sent by the server."""
    found = {}
    for row in ROWS:
        data = bytes.fromhex(row["hex"])
        if row["dir"] == "s2c" and data[:1] == b"\x02":
            found.update((bundle, None) for _, chunk in chunks(data) for bundle in bundles_of(chunk))
        elif row["dir"] == "c2s" and data[:1] in (b"\x01", b"\x05") and "raw_produce_" not in row["case"]:
            (request,) = codec.request_decoder().feed(data)
            assert isinstance(request, messages.ProduceRequest)
            found.update((bytes(part.bundle), None) for topic in request.topics for part in topic.partitions)
    return list(found)


def test_bundles_decode_and_encode_again() -> None:
    canonical = 0
    for bundle in all_bundles():
        info = check_bundle(bundle, 0, len(bundle))
        records = decode_bundle(bundle, 0, len(bundle), 1)
        assert len(records) == info.count
        again = encode_bundle(
            [record.value for record in records],
            [record.key for record in records],
            [record.timestamp_ms for record in records],
            sparse_seqs=[record.seq for record in records] if info.sparse else None,
            codec=info.codec,
        )
        canonical += again == bundle
        assert decode_bundle(again, 0, len(again), 1) == records
    assert canonical > len(all_bundles()) // 2


async def stored_and_served(address: tuple[str, int], publish: bool) -> None:
    peer = await Peer.open(address)
    bundles = all_bundles()
    if publish:
        assert await peer.create(b"each", len(bundles)) == 0
        for index, bundle in enumerate(bundles):
            assert await peer.produce(b"each", bundle, partition_id=index) == b"\0"
    for index, bundle in enumerate(bundles):
        (partition,) = await peer.consume(b"each", (index, 0, 1))
        assert list(bundles_of(partition.chunk)) == [bundle]
    await peer.close()


def test_bundles_are_stored_and_served_unchanged_also_after_a_crash() -> None:
    with server() as quintlog:
        asyncio.run(stored_and_served(quintlog.address("tank"), True))
        quintlog.kill()
        quintlog.restart()
        asyncio.run(stored_and_served(quintlog.address("tank"), False))
