"""kill -9 of the server under TANK publishers: what was acknowledged is there, once, in order, byte for byte.

Publishers send bundles of every kind to all partitions and note which were answered; after each crash the log of each
partition has to hold every acknowledged bundle, and nothing that was not sent.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from netserver.tank import messages
from netserver.testing import ServerProcess, server
from tests.echo import until
from tests.tank_peer import Peer, bundle, bundles_of, consume, produce

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = int(os.environ.get("QUINTLOG_KILL_ROUNDS", "400" if NIGHTLY else "3"))
PUBLISHERS = 4
PARTITIONS = 3
LOAD_S = 0.2


@dataclass
class Journal:
    """What one publisher sent to one partition, in order, and how much of it was acknowledged."""

    sent: list[bytes] = field(default_factory=list)
    acked: int = 0


class Publisher:
    """Keeps a window of requests open until the connection breaks."""

    def __init__(self, number: int, turn: int) -> None:
        self.name = b"%d/%d" % (turn, number)
        self.journals = [Journal() for _ in range(PARTITIONS)]
        self.chance = random.Random(self.name)
        self.count = 0

    def next_bundle(self, partition: int) -> bytes:
        self.count += 1
        mark = b"%s %d " % (self.name, self.count)
        size = self.chance.choice((1, 1, 1, 5, 100))
        values = [mark + b"%d " % n + b"." * self.chance.choice((0, 30, 300)) for n in range(size)]
        data = bundle(*values, codec=self.chance.choice((0, 1)))
        self.journals[partition].sent.append(data)
        return data

    async def run(self, address: tuple[str, int]) -> None:
        peer = await Peer.open(address)
        pending: dict[int, list[int]] = {}
        request_id = 0
        try:
            while True:
                while len(pending) < 16:
                    request_id += 1
                    pending[request_id] = self._send(peer, request_id)
                answer = await peer.answer(messages.ProduceResponse)
                partitions = pending.pop(answer.request_id)
                assert answer.codes == bytes(len(partitions))
                for partition in partitions:
                    self.journals[partition].acked += 1
        except (AssertionError, OSError, asyncio.IncompleteReadError) as end:
            if isinstance(end, AssertionError) and "closed" not in str(end):
                raise
        finally:
            peer.writer.transport.abort()

    def _send(self, peer: Peer, request_id: int) -> list[int]:
        """One bundle for one partition, or now and then a request for several."""
        if self.chance.random() < 0.8:
            partition = self.chance.randrange(PARTITIONS)
            peer.send(produce(request_id, b"t", self.next_bundle(partition), partition_id=partition))
            return [partition]
        partitions = [self.chance.randrange(PARTITIONS) for _ in range(3)]
        parts = tuple(messages.ProducePartition(partition, self.next_bundle(partition)) for partition in partitions)
        peer.send(messages.ProduceRequest(request_id, (messages.ProduceTopic(b"t", parts),)))
        return partitions


async def stored(peer: Peer, partition: int, from_seq: int) -> tuple[list[bytes], int]:
    """All bundles from a number on, and the number behind them; numbers go on without a gap but at the crash."""
    found: list[bytes] = []
    while True:
        peer.send(consume(1, b"t", (partition, from_seq, 1 << 20)))
        (entry,) = (await peer.answer(messages.ConsumeResponse)).topics[0].partitions
        assert entry.code == 0, entry
        chunk = list(bundles_of(entry.chunk))
        if not chunk:
            return found, entry.high_water_mark + 1
        assert entry.base_seq is not None
        assert entry.base_seq >= from_seq
        found += chunk
        from_seq = entry.base_seq + sum(count(data) for data in chunk)


def count(data: bytes) -> int:
    """Records of a dense bundle (the count is one byte long here)."""
    return data[0] >> 2 & 15 or data[1]


async def load(quintlog: ServerProcess, turn: int) -> list[Publisher]:
    publishers = [Publisher(number, turn) for number in range(PUBLISHERS)]
    address = quintlog.address("tank")
    running = [asyncio.ensure_future(publisher.run(address)) for publisher in publishers]
    await until(lambda: all(any(journal.acked for journal in publisher.journals) for publisher in publishers))
    await asyncio.sleep(LOAD_S * random.Random(turn).random())
    await asyncio.to_thread(quintlog.kill)
    await asyncio.gather(*running)
    return publishers


def check(found: list[bytes], journals: list[Journal]) -> None:
    """The log is a merge of a prefix of each publisher's bundles, at least as long as what was acknowledged."""
    positions = {id(journal): 0 for journal in journals}
    owner = {data: journal for journal in journals for data in journal.sent}
    for data in found:
        journal = owner.get(data)
        assert journal is not None, "a bundle that nobody sent"
        assert journal.sent[positions[id(journal)]] == data, "a bundle is doubled, missing or in the wrong place"
        positions[id(journal)] += 1
    for journal in journals:
        assert positions[id(journal)] >= journal.acked, "an acknowledged bundle is lost"


async def rounds(quintlog: ServerProcess) -> int:
    peer = await Peer.open(quintlog.address("tank"))
    assert await peer.create(b"t", PARTITIONS) == 0
    await peer.close()
    next_seqs = [1] * PARTITIONS
    acked = 0
    for turn in range(ROUNDS):
        publishers = await load(quintlog, turn)
        await asyncio.to_thread(quintlog.restart)
        peer = await Peer.open(quintlog.address("tank"))
        for partition in range(PARTITIONS):
            found, next_seqs[partition] = await stored(peer, partition, next_seqs[partition])
            journals = [publisher.journals[partition] for publisher in publishers]
            check(found, journals)
            acked += sum(journal.acked for journal in journals)
        await peer.close()
    return acked


def test_rounds(tmp_path: Path) -> None:
    with server(tmp_path) as quintlog:
        assert asyncio.run(asyncio.wait_for(rounds(quintlog), 60 + 5 * ROUNDS)) > 10 * ROUNDS


def test_a_torn_tail_is_cut_and_the_topic_goes_on(tmp_path: Path) -> None:
    """A half-written bundle at the end made the original hang its readers until an operator came."""
    kept = [bundle(b"%d" % n) for n in range(20)]

    async def publish(address: tuple[str, int], bundles: list[bytes]) -> None:
        peer = await Peer.open(address)
        await peer.create(b"t", PARTITIONS)
        for data in bundles:
            assert await peer.produce(b"t", data, partition_id=1) == b"\0"
        await peer.close()

    async def read(address: tuple[str, int]) -> list[bytes]:
        peer = await Peer.open(address)
        found, _ = await asyncio.wait_for(stored(peer, 1, 1), 10)
        await peer.close()
        return found

    with server(tmp_path) as quintlog:
        asyncio.run(publish(quintlog.address("tank"), kept[:10]))
        quintlog.kill()
        (segment,) = tmp_path.glob("topics/*/1/*.log")
        whole = segment.read_bytes()
        segment.write_bytes(whole + whole[-60:] + b"\x7f" * 100)
        quintlog.restart()
        assert asyncio.run(read(quintlog.address("tank"))) == kept[:10]
        asyncio.run(publish(quintlog.address("tank"), kept[10:]))
        assert asyncio.run(read(quintlog.address("tank"))) == kept
