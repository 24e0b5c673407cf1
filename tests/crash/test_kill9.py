"""kill -9 under load, again and again: nothing acknowledged is lost, doubled, reordered or renumbered.

QUINTLOG_KILL_ROUNDS sets the number of rounds (8; 2,000 with QUINTLOG_NIGHTLY=1).
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from engine.formats.record import Record
from engine.reader import DirectoryReader, Loss
from netserver.testing import ServerProcess, server
from tests.figg_peer import FiggPeer
from tests.server_support import FIGG_ONLY

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = int(os.environ.get("QUINTLOG_KILL_ROUNDS", "2000" if NIGHTLY else "8"))
PUBLISHERS = 4
TOPICS = (b"even", b"odd")
LOAD_S = 0.15
FULL_CHECK_EVERY = 10


class Publisher(threading.Thread):
    """Publishes numbered records in bursts, waits for acknowledgements by turns, until the connection breaks."""

    def __init__(self, address: tuple[str, int], mark: bytes, topic: bytes, begun: threading.Barrier) -> None:
        super().__init__()
        self.address = address
        self.mark = mark
        self.topic = topic
        self.begun = begun
        self.acked = -1
        self.sent = 0
        self.problem: BaseException | None = None
        self.peer: FiggPeer | None = None

    @property
    def peer_acked(self) -> int:
        """The last publish that is acknowledged so far."""
        return self.peer.acked if self.peer is not None else self.acked

    def run(self) -> None:
        chance = random.Random(self.mark)
        try:
            with FiggPeer(self.address) as peer:
                self.peer = peer
                try:
                    self._publish(peer, chance)
                except OSError:
                    pass  # the server was killed
                finally:
                    self.acked, self.sent = peer.acked, peer.sent
        except BaseException as problem:  # noqa: BLE001 - told by the test's thread
            self.problem = problem
            self.begun.abort()

    def _publish(self, peer: FiggPeer, chance: random.Random) -> None:
        while True:
            burst = chance.choice((1, 10, 200))
            padding = b"." * chance.choice((0, 20, 20, 300))
            peer.send(self.topic, [b"%s %d %s" % (self.mark, peer.sent + at, padding) for at in range(burst)])
            # Often a part of the burst is still on its way when the next one follows.
            slack = chance.choice((0, 0, 100)) if peer.acked >= 0 else 0
            if not peer.wait_for_ack(peer.sent - 1 - slack):
                return
            if peer.sent == burst:  # the load is only worth the name once everybody publishes
                self.begun.wait(20)


@dataclass
class Expected:
    """What a topic has to hold: the records of past rounds as they were read, then those of the last one."""

    read: list[tuple[int, bytes]] = field(default_factory=list)

    def check(self, stored: list[tuple[int, bytes]], publishers: list[Publisher], *, whole: bool) -> None:
        """`stored` is the whole topic when `whole`, else what lies behind the records of past rounds."""
        if whole:
            assert stored[: len(self.read)] == self.read, "a record of an earlier round changed"
            stored = stored[len(self.read) :]
        last = self.read[-1][0] if self.read else 0
        offsets = [last, *(offset for offset, _ in stored)]
        assert all(before < after for before, after in pairwise(offsets)), "numbers do not rise"
        for publisher in publishers:
            mine = [int(value.split(b" ")[1]) for _, value in stored if value.startswith(publisher.mark + b" ")]
            assert mine == list(range(len(mine))), "records are missing, doubled or out of order"
            assert publisher.acked < len(mine) <= publisher.sent, (publisher.acked, len(mine), publisher.sent)
        marks = {publisher.mark for publisher in publishers}
        assert {value.split(b" ")[0] for _, value in stored} <= marks, "records of nobody"
        self.read += stored


def stored_records(reader: DirectoryReader, topic: bytes, first: int) -> list[tuple[int, bytes]]:
    partition = reader.partition(reader.topic(topic))
    items = list(partition.records(first, partition.committed_seq + 1))
    assert not [item for item in items if isinstance(item, Loss)]
    return [(item.seq, item.value) for item in items if isinstance(item, Record)]


def run_round(process: ServerProcess, number: int, chance: random.Random) -> list[Publisher]:
    """Four publishers, and the kill in the midst of it."""
    begun = threading.Barrier(PUBLISHERS + 1)
    publishers = [
        Publisher(process.address("figg"), b"r%d-p%d" % (number, at), TOPICS[at % 2], begun) for at in range(PUBLISHERS)
    ]
    for publisher in publishers:
        publisher.start()
    try:
        begun.wait(20)
        threading.Event().wait(chance.random() * LOAD_S)  # the moment of the kill is the fault that is chosen
    finally:
        process.kill()
        for publisher in publishers:
            publisher.join(30)
    assert [publisher.problem for publisher in publishers if publisher.problem is not None] == []
    return publishers


@pytest.mark.timeout(60 + 12 * ROUNDS)
def test_rounds_of_kill_9(tmp_path: Path) -> None:
    chance = random.Random(ROUNDS)
    expected = {topic: Expected() for topic in TOPICS}
    acked_total = 0
    with server(tmp_path / "data", {**FIGG_ONLY, "topics": {"segment_bytes": "1MiB"}}) as process:
        for number in range(ROUNDS):
            publishers = run_round(process, number, chance)
            acked_total += sum(publisher.acked + 1 for publisher in publishers)
            process.start()
            for topic in TOPICS:
                with FiggPeer(process.address("figg")) as peer:
                    peer.read(topic, 0, 1)  # opens the partition: what recovery keeps is committed now
            reader = DirectoryReader(tmp_path / "data")
            whole = number % FULL_CHECK_EVERY == 0 or number == ROUNDS - 1
            for topic in TOPICS:
                known = expected[topic].read
                first = 1 if whole or not known else known[-1][0] + 1
                mine = [publisher for publisher in publishers if publisher.topic == topic]
                expected[topic].check(stored_records(reader, topic, first), mine, whole=whole)
            reader.close()
            if number % 100 == 99 or number == ROUNDS - 1:
                print(f"{number + 1} rounds, {acked_total} records acknowledged", flush=True)
        assert not process.log_text.count("Traceback"), process.log_text[-5000:]
    assert acked_total > 100 * ROUNDS
