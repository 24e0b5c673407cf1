"""kill -9 of the server under librdkafka's idempotent producers and a group: nothing lost, doubled, or out of order.

Producers keep several requests under way, so that after each crash some come again of which the server has stored a
part, all or nothing. In the end every record that was ever produced is there once, at the offset that was acknowledged.
What the group has committed is after each crash what was acknowledged last, or what was asked for after that.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import ServerProcess, server

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = int(os.environ.get("QUINTLOG_KILL_ROUNDS", "200" if NIGHTLY else "2"))
PRODUCERS = 2
PARTITIONS = 3
WAIT_S = 60.0
TOPIC = "t"
FAST = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}


class Worker(threading.Thread):
    """Does something again and again until it is told to stop; what went wrong is raised then."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = threading.Event()
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.turn()
            self.end()
        except BaseException as problem:  # noqa: BLE001 - whatever it is, `stop` raises it
            self.problem = problem

    def turn(self) -> None:
        """Does a little."""

    def end(self) -> None:
        """Comes last."""

    def stop(self) -> None:
        """Has it end."""
        self.ending.set()
        self.join(2 * WAIT_S)
        assert not self.is_alive()
        if self.problem is not None:
            raise self.problem


class Producer(Worker):
    """Publishes numbered values to all partitions in turn; ``acked`` has them by partition and offset."""

    def __init__(self, settings: dict[str, Any], number: int) -> None:
        super().__init__()
        wanted = {"enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 40, "retry.backoff.ms": 20}
        self.producer = confluent.Producer({**settings, **FAST, **wanted})
        self.number = number
        self.sent = 0
        self.acked: dict[tuple[int, int], bytes] = {}
        self.errors: list[Any] = []
        self.chance = random.Random(number)

    def turn(self) -> None:
        for _ in range(self.chance.choice((1, 10, 100))):
            value = b"%d %d %s" % (self.number, self.sent, b"." * self.chance.choice((0, 20, 400)))
            self.producer.produce(TOPIC, value, partition=self.sent % PARTITIONS, on_delivery=self._delivered)
            self.sent += 1
        self.producer.poll(0.005)
        while len(self.producer) > 1000 and not self.ending.is_set():
            self.producer.poll(0.02)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acked[message.partition(), message.offset()] = message.value()

    def end(self) -> None:
        assert self.producer.flush(WAIT_S) == 0


class Member(Worker):
    """Reads as the one member of a group, and commits. ``possible`` has what may be committed, by partition."""

    def __init__(self, settings: dict[str, Any], possible: dict[int, set[int]]) -> None:
        super().__init__()
        wanted = {"group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self.consumer = confluent.Consumer({**settings, **FAST, **wanted, "heartbeat.interval.ms": 200})
        self.consumer.subscribe([TOPIC])
        self.possible = possible
        self.commits = 0

    def turn(self) -> None:
        places = {}
        for message in self.consumer.consume(50, 0.1):
            if message.error() is None:
                places[message.partition()] = message.offset() + 1
        if not places:
            return
        for partition, offset in places.items():
            self.possible[partition].add(offset)
        wanted = [confluent.TopicPartition(TOPIC, partition, offset) for partition, offset in places.items()]
        try:
            found = self.consumer.commit(offsets=wanted, asynchronous=False)
        except confluent.KafkaException:
            return  # nobody knows
        for place in found:
            if place.error is None:
                self.possible[place.partition] = {place.offset}
        self.commits += 1

    def end(self) -> None:
        self.consumer.close()


def until(condition: Callable[[], object]) -> None:
    """Waits."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_commits(settings: dict[str, Any], possible: dict[int, set[int]]) -> None:
    """What the group has committed is one of what may be, and not behind the end of the log."""
    looker = confluent.Consumer({**settings, **FAST, "group.id": "g"})
    try:
        places = [confluent.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        for place in looker.committed(places, timeout=WAIT_S):
            assert place.offset in possible[place.partition]
            _, end = looker.get_watermark_offsets(confluent.TopicPartition(TOPIC, place.partition), timeout=WAIT_S)
            assert place.offset <= end
    finally:
        looker.close()


def stored(settings: dict[str, Any]) -> dict[tuple[int, int], bytes]:
    """All that is there."""
    reader = confluent.Consumer({**settings, "group.id": "reader", "enable.partition.eof": True})
    try:
        beginning = confluent.OFFSET_BEGINNING
        reader.assign([confluent.TopicPartition(TOPIC, partition, beginning) for partition in range(PARTITIONS)])
        found: dict[tuple[int, int], bytes] = {}
        ended: set[int] = set()
        deadline = time.monotonic() + WAIT_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline
            for message in reader.consume(1000, 0.1):
                if message.error() is not None:
                    ended.add(message.partition())
                else:
                    found[message.partition(), message.offset()] = message.value()
        return found
    finally:
        reader.close()


def life(process: ServerProcess, member: Member, producers: list[Producer], chance: random.Random) -> None:
    """One life of the server, until the group has committed and every producer has got on: then a crash."""
    before = [len(producer.acked) for producer in producers]
    member.start()
    try:
        until(lambda: member.commits or not member.is_alive())
        until(lambda: all(len(one.acked) > acked for one, acked in zip(producers, before, strict=True)))
        time.sleep(chance.random() * 0.3)
        process.kill()
    finally:
        process.restart()
        member.stop()


def check_records(producers: list[Producer], found: dict[tuple[int, int], bytes]) -> None:
    """Everything that was produced is there once, where its acknowledgement says, and in its order."""
    numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (partition, _), value in sorted(found.items()):
        name, number, _ = value.split(b" ")
        numbers[int(name), partition].append(int(number))
    for producer in producers:
        assert not producer.errors
        assert len(producer.acked) == producer.sent
        assert producer.acked.items() <= found.items()
        for partition in range(PARTITIONS):
            assert numbers[producer.number, partition] == list(range(partition, producer.sent, PARTITIONS))
    assert len(found) == sum(producer.sent for producer in producers)


def test_every_record_once_and_no_commit_lost(tmp_path: Path) -> None:
    chance = random.Random(9)
    with server(tmp_path / "data") as process:
        host, port = process.address("kafka")
        settings = {"bootstrap.servers": f"{host}:{port}"}
        admin = confluent_admin.AdminClient(settings)
        admin.create_topics([confluent_admin.NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
        producers = [Producer(settings, number) for number in range(PRODUCERS)]
        possible: dict[int, set[int]] = {partition: {confluent.OFFSET_INVALID} for partition in range(PARTITIONS)}
        for producer in producers:
            producer.start()
        try:
            for _ in range(ROUNDS):
                life(process, Member(settings, possible), producers, chance)
                check_commits(settings, possible)
        finally:
            for producer in producers:
                producer.stop()
        check_records(producers, stored(settings))
