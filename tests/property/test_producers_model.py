"""Producers that number their records against a model, over a real log that is closed, killed and cut between batches.

Whatever happens: each record that a producer sent until it got an answer is in the log once, whole batches that come
again are answered with their old number, and one of which a crash kept a part gets exactly the rest.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.formats.batch import BatchWriter
from engine.formats.batch_header import read_header
from engine.segments.batches import COMMITTED, PENDING
from netserver.kafka.appending import Appended, append_records
from netserver.kafka.checking import Records, check_records
from netserver.kafka.record_errors import OUT_OF_SEQUENCE, RecordsError
from netserver.kafka.records import build_records, crc32c
from tests.engine_log import EngineLog, segments

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
SEEDS = 600 if NIGHTLY else 6
STEPS = 40
WRAP = 1 << 31


class Nobody:
    """A waiter that does nothing."""

    def round_done(self) -> None:
        pass


@dataclass
class Sent:
    """A batch that a producer made: its first count, and its values."""

    first: int
    values: list[bytes]
    base_seq: int = 0


@dataclass
class Client:
    """One producer: what it sent last, oldest first; all of it was answered."""

    id: int
    next: int
    epoch: int = 0
    sent: list[Sent] = field(default_factory=list)


def request(client: Client, sent: Sent) -> Records:
    """The batch as it comes from the wire."""
    writer = BatchWriter(bytearray(200_000), 1)
    writer.begin(1)
    for value in sent.values:
        assert writer.put(value, 0, len(value))
    writer.close_batch()
    made = bytearray(build_records(writer.buffer[: writer.position], 1, 1 << 20)[0])
    made[0:8] = bytes(8)
    made[43:51] = client.id.to_bytes(8, "big")
    made[51:53] = client.epoch.to_bytes(2, "big")
    made[53:57] = (sent.first % WRAP).to_bytes(4, "big")
    made[17:21] = crc32c(made, 21, len(made)).to_bytes(4, "big")
    return check_records(bytes(made), 1 << 20)


class History:
    """One seed: a log, its producers, and what should be in it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.images = 0
        self.expected: list[bytes] = []
        self.log = self.opened(path / "0")
        self.clients = [Client(number, self.rng.choice([0, 7, WRAP - 300])) for number in range(3)]

    def opened(self, path: Path) -> EngineLog:
        log = EngineLog(path, topic=TopicConfig(segment_bytes=64 << 10))
        log.partition()
        return log

    def append(self, client: Client, sent: Sent) -> Appended:
        return append_records(self.log.partition(), request(client, sent), Nobody())

    def settle(self, appended: Appended) -> None:
        for write_batch, _, _ in appended.write_batches:
            self.log.inbox.run_until(lambda write_batch=write_batch: write_batch.state != PENDING)
            assert write_batch.state == COMMITTED

    def made(self, client: Client) -> Sent:
        """The next batch of a producer."""
        count = self.rng.choice([1, 2, 40, 255, 256, 600])
        values = [b"%d %d %d" % (client.id, client.epoch, client.next + place) for place in range(count)]
        sent = Sent(client.next, values)
        client.next += count
        client.sent = [*client.sent[-4:], sent]
        return sent

    # --- steps

    def send(self) -> None:
        client = self.rng.choice(self.clients)
        sent = [self.made(client) for _ in range(self.rng.randint(1, 3))]
        appended = [self.append(client, one) for one in sent]  # on their way together
        if self.rng.random() < 0.3:
            again = self.append(client, sent[0])  # before there is an answer
            assert again.base_seq == appended[0].base_seq
            assert sum(records for _, records, _ in again.write_batches) == 0
            assert again.write_batches
        for one, answer in zip(sent, appended, strict=True):
            self.settle(answer)
            one.base_seq = answer.base_seq
            assert sum(records for _, records, _ in answer.write_batches) == len(one.values)
            self.expected += one.values

    def repeat(self) -> None:
        client = self.rng.choice(self.clients)
        if client.sent:
            sent = self.rng.choice(client.sent)
            assert self.append(client, sent) == Appended(sent.base_seq, [])

    def leave_out(self) -> None:
        client = self.rng.choice(self.clients)
        if client.sent:
            with pytest.raises(RecordsError) as caught:
                self.append(client, Sent(client.next + self.rng.choice([1, 1000]), [b"never"]))
            assert caught.value.code == OUT_OF_SEQUENCE

    def others(self) -> None:
        values = [b"others"] * self.rng.choice([1, 300])
        self.log.append(values)
        self.expected += values

    def new_epoch(self) -> None:
        client = self.rng.choice(self.clients)
        client.epoch, client.next, client.sent = client.epoch + 1, 0, []

    def close(self) -> None:
        self.log.close()
        self.log = self.opened(self.log.path)

    def kill(self) -> None:
        self.reopen(self.image())

    def cut(self) -> None:
        """Dies between two batches of the log while a producer's batch is written; the producer sends it again."""
        if not self.log.partition().has_files:
            self.others()
        client = self.rng.choice(self.clients)
        sent = self.made(client)
        image, position = self.image(), self.log.partition().active_segment.position
        self.settle(self.append(client, sent))
        path = segments(self.log.path)[-1]
        kept = image / path.relative_to(self.log.path)
        if kept.exists():  # else the segment was rolled: all of it is lost
            kept.write_bytes(path.read_bytes()[: self.rng.choice(borders(path, position))])
        self.reopen(image)
        answer = self.append(client, sent)
        self.settle(answer)
        sent.base_seq = answer.base_seq
        self.expected += sent.values

    def image(self) -> Path:
        self.images += 1
        return self.log.image(self.path / str(self.images))

    def reopen(self, image: Path) -> None:
        self.log.close()
        self.log = self.opened(image)

    def run(self) -> None:
        steps = [self.send] * 6 + [self.repeat] * 5
        steps += [self.leave_out, self.others, self.new_epoch, self.close, self.kill, self.cut, self.cut]
        try:
            for _ in range(STEPS):
                self.rng.choice(steps)()
            assert sorted(self.log.values()) == sorted(self.expected)
        finally:
            self.log.close()


def borders(path: Path, position: int) -> list[int]:
    """The end of each batch from ``position`` on, and that itself."""
    data = path.read_bytes()
    segment_id = int.from_bytes(data[40:48], "little")
    found = [position]
    while (header := read_header(data, found[-1], segment_id, found[-1])) is not None:
        found.append(header.end)
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history(tmp_path: Path, seed: int) -> None:
    History(tmp_path, seed).run()
