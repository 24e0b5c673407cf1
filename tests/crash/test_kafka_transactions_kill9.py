"""kill -9 of the server under transactional producers of Kafka's, and a group of two that reads and publishes.

After each crash some transactions are lost, and some are committed whose answer was lost. In the end each is there as a
whole or not at all: those whose commit was acknowledged are, those that were never committed are not. The group has
moved every record once, as its offsets are committed with what it has published; they never go back, and are where its
publishing says.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import server
from tests.kafka_workers import FAST, NIGHTLY, WAIT_S, Producer, Worker, check_records, stop_all, stored, until

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

ROUNDS = int(os.environ.get("QUINTLOG_KILL_ROUNDS", "200" if NIGHTLY else "1"))
PARTITIONS = 3
TOPIC, OUT, MOVED = "t", "out", "moved"
GROUP = "movers"
LOST_MS = 10_000


class Transactional(Worker):
    """Something with a transactional producer; after an error it begins anew, which ends what was open."""

    def __init__(self, settings: dict[str, Any], name: str) -> None:
        super().__init__()
        # librdkafka forgets a broker that is gone for a while, and then waits for ever for the coordinator it was
        self.settings = {**settings, **FAST, "metadata.recovery.strategy": "none"}
        self.name = name
        self.producer: Any = None
        self.chance = random.Random(name)
        self.done = 0

    def turn(self) -> None:
        try:
            if self.producer is None:
                wanted = {"transactional.id": self.name, "transaction.timeout.ms": LOST_MS, "retry.backoff.ms": 20}
                self.producer = confluent.Producer({**self.settings, **wanted, "linger.ms": 1})
                self.producer.init_transactions(WAIT_S)
            if self.transact():
                self.done += 1
        except confluent.KafkaException:
            self.producer = None
            self.failed()

    def transact(self) -> bool:
        """One transaction; whether it is committed."""
        raise NotImplementedError

    def failed(self) -> None:
        """What it did is committed or lost."""


class Writer(Transactional):
    """Commits most of its transactions. ``sizes`` has how many records each has; the sets, what became of it."""

    def __init__(self, settings: dict[str, Any], number: int) -> None:
        super().__init__(settings, f"writer {number}")
        self.number = number
        self.sizes: list[int] = []
        self.committed: set[int] = set()
        self.never: set[int] = set()

    def transact(self) -> bool:
        which, size = len(self.sizes), self.chance.choice((1, 2, 20, 300))
        is_wanted = self.chance.random() < 0.8
        self.sizes.append(size)
        if not is_wanted:
            self.never.add(which)
        self.producer.begin_transaction()
        for number in range(size):
            self.producer.produce(OUT, b"%d %d %d" % (self.number, which, number), partition=number % PARTITIONS)
        if is_wanted:
            self.producer.commit_transaction(WAIT_S)
            self.committed.add(which)
        else:
            self.producer.flush(self.chance.choice((0, 0.1)))
            self.producer.abort_transaction(WAIT_S)
        return is_wanted


class Mover(Transactional):
    """A member of a group that publishes where each record was that it has read."""

    def __init__(self, settings: dict[str, Any], number: int) -> None:
        super().__init__(settings, f"mover {number}")
        self.consumer: Any = None

    def transact(self) -> bool:
        if self.consumer is None:
            wanted = {"group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
            self.consumer = confluent.Consumer(
                {**self.settings, **wanted, "heartbeat.interval.ms": 200, "isolation.level": "read_committed"}
            )
            self.consumer.subscribe([TOPIC])
        found = [message for message in self.consumer.consume(500, 0.1) if message.error() is None]
        if not found:
            return False
        self.producer.begin_transaction()
        ends: dict[int, int] = {}
        for message in found:
            ends[message.partition()] = message.offset() + 1
            place = b"%d %d" % (message.partition(), message.offset())
            self.producer.produce(MOVED, place, partition=message.offset() % PARTITIONS)
        places = [confluent.TopicPartition(TOPIC, partition, offset) for partition, offset in ends.items()]
        self.producer.send_offsets_to_transaction(places, self.consumer.consumer_group_metadata(), WAIT_S)
        self.producer.commit_transaction(WAIT_S)
        return True

    def failed(self) -> None:
        self._leave()

    def _leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            consumer.close()

    def end(self) -> None:
        self._leave()


def committed(settings: dict[str, Any]) -> dict[int, int]:
    """Where the group is."""
    looker = confluent.Consumer({**settings, **FAST, "group.id": GROUP})
    try:
        places = [confluent.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        return {place.partition: max(place.offset, 0) for place in looker.committed(places, timeout=WAIT_S)}
    finally:
        looker.close()


def check_transactions(writers: list[Writer], found: dict[tuple[int, int], bytes]) -> None:
    """Each is there once and as a whole, or not at all, and they are in order."""
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    order: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (partition, _), value in sorted(found.items()):
        writer, which, number = map(int, value.split())
        seen[writer, which].append(number)
        order[writer, partition].append((which, number))
    for (name, which), numbers in seen.items():
        assert sorted(numbers) == list(range(writers[name].sizes[which])), "half a transaction, or one twice"
        assert which not in writers[name].never, "nobody has committed it"
    for writer in writers:
        assert all((writer.number, which) in seen for which in writer.committed), "a commit is lost"
    assert all(places == sorted(places) for places in order.values())


def check_moved(ends: dict[int, int], found: dict[tuple[int, int], bytes]) -> None:
    """Every record up to where the group is was moved once, none behind that."""
    moved = sorted(tuple(map(int, value.split())) for value in found.values())
    assert len(set(moved)) == len(moved), "moved twice"
    for partition, end in ends.items():
        offsets = [offset for where, offset in moved if where == partition]
        assert max(offsets, default=0) + 1 == max(end, 1), "the offset is not where the records are"


@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_no_transaction_is_lost_or_doubled_or_half_there(tmp_path: Path) -> None:
    chance = random.Random(5)
    with server(tmp_path / "data") as process:
        host, port = process.address("kafka")
        settings = {"bootstrap.servers": f"{host}:{port}"}
        admin = confluent_admin.AdminClient(settings)
        for made in admin.create_topics(
            [confluent_admin.NewTopic(name, PARTITIONS, 1) for name in (TOPIC, OUT, MOVED)]
        ).values():
            made.result(WAIT_S)
        source = Producer(settings, 0, TOPIC, PARTITIONS, pause_s=0.2)
        writers = [Writer(settings, number) for number in range(2)]
        movers = [Mover(settings, number) for number in range(2)]
        workers: list[Worker] = [source, *writers, *movers]
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for worker in workers:
            worker.start()
        try:
            for _ in range(ROUNDS):
                before = [writer.done for writer in writers]
                moved = sum(mover.done for mover in movers)
                until(lambda before=before: all(one.done > done for one, done in zip(writers, before, strict=True)))
                until(lambda moved=moved: sum(mover.done for mover in movers) > moved)
                time.sleep(chance.random() * 0.3)
                process.kill()
                process.restart()
                now = committed(settings)
                assert all(now[partition] >= end for partition, end in ends.items()), "an offset went back"
                ends = now
            source.stop()
            sent = stored(settings, TOPIC, PARTITIONS)
            last = {partition: max((at for where, at in sent if where == partition), default=0) for partition in ends}
            until(lambda: all(committed(settings)[partition] == max(last[partition] + 1, 1) for partition in ends))
        finally:
            stop_all(workers)
        check_records([source], sent, PARTITIONS)
        check_transactions(writers, stored(settings, OUT, PARTITIONS))
        check_moved(committed(settings), stored(settings, MOVED, PARTITIONS))
