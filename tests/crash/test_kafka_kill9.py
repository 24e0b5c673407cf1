"""kill -9 of the server under librdkafka's idempotent producers and a group: nothing lost, doubled, or out of order.

Producers keep several requests under way, so that after each crash some come again of which the server has stored a
part, all or nothing. In the end every record that was ever produced is there once, at the offset that was acknowledged.
What the group has committed is after each crash what was acknowledged last, or what was asked for after that.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import ServerProcess, server
from tests.kafka_workers import FAST, NIGHTLY, WAIT_S, Producer, Worker, check_records, stored, until

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

ROUNDS = int(os.environ.get("QUINTLOG_KILL_ROUNDS", "200" if NIGHTLY else "2"))
PRODUCERS = 2
PARTITIONS = 3
TOPIC = "t"


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


def test_every_record_once_and_no_commit_lost(tmp_path: Path) -> None:
    chance = random.Random(9)
    with server(tmp_path / "data") as process:
        host, port = process.address("kafka")
        settings = {"bootstrap.servers": f"{host}:{port}"}
        admin = confluent_admin.AdminClient(settings)
        admin.create_topics([confluent_admin.NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
        producers = [Producer(settings, number, TOPIC, PARTITIONS) for number in range(PRODUCERS)]
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
        check_records(producers, stored(settings, TOPIC, PARTITIONS), PARTITIONS)
