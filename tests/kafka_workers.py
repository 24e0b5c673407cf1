"""Threads with clients of librdkafka, for tests that kill the server under them."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

confluent = pytest.importorskip("confluent_kafka")

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
WAIT_S = 60.0
FAST = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}


class Worker(threading.Thread):
    """Does something again and again until it is told to stop; what went wrong is raised then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
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


def stop_all(workers: Sequence[Worker]) -> None:
    """Has all of them end, whatever goes wrong with one."""
    for worker in workers:
        worker.ending.set()
    for worker in workers:
        worker.stop()


class Producer(Worker):
    """Publishes numbered values to all partitions in turn; ``acked`` has them by partition and offset."""

    def __init__(
        self, settings: dict[str, Any], number: int, topic: str, partitions: int, pause_s: float = 0.0
    ) -> None:
        super().__init__()
        wanted = {"enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 40, "retry.backoff.ms": 20}
        self.producer = confluent.Producer({**settings, **FAST, **wanted})
        self.number = number
        self.topic = topic
        self.partitions = partitions
        self.pause_s = pause_s
        self.sent = 0
        self.acked: dict[tuple[int, int], bytes] = {}
        self.errors: list[Any] = []
        self.chance = random.Random(number)

    def turn(self) -> None:
        for _ in range(self.chance.choice((1, 10, 100))):
            value = b"%d %d %s" % (self.number, self.sent, b"." * self.chance.choice((0, 20, 400)))
            self.producer.produce(self.topic, value, partition=self.sent % self.partitions, on_delivery=self._delivered)
            self.sent += 1
        self.producer.poll(0.005)
        self.ending.wait(self.pause_s)
        while len(self.producer) > 1000 and not self.ending.is_set():
            self.producer.poll(0.02)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acked[message.partition(), message.offset()] = message.value()

    def end(self) -> None:
        assert self.producer.flush(WAIT_S) == 0


def until(condition: Callable[[], object]) -> None:
    """Waits."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stored(settings: dict[str, Any], topic: str, partitions: int) -> dict[tuple[int, int], bytes]:
    """All that is there, by partition and offset."""
    reader = confluent.Consumer({**settings, "group.id": "reader", "enable.partition.eof": True})
    try:
        beginning = confluent.OFFSET_BEGINNING
        reader.assign([confluent.TopicPartition(topic, partition, beginning) for partition in range(partitions)])
        found: dict[tuple[int, int], bytes] = {}
        ended: set[int] = set()
        deadline = time.monotonic() + WAIT_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline
            for message in reader.consume(1000, 0.1):
                if message.error() is not None:
                    ended.add(message.partition())
                else:
                    found[message.partition(), message.offset()] = message.value()
        return found
    finally:
        reader.close()


def check_records(producers: Sequence[Producer], found: dict[tuple[int, int], bytes], partitions: int) -> None:
    """Everything that was produced is there once, where its acknowledgement says, and in its order."""
    numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (partition, _), value in sorted(found.items()):
        name, number, _ = value.split(b" ")
        numbers[int(name), partition].append(int(number))
    for producer in producers:
        assert not producer.errors
        assert len(producer.acked) == producer.sent
        assert producer.acked.items() <= found.items()
        for partition in range(partitions):
            assert numbers[producer.number, partition] == list(range(partition, producer.sent, partitions))
    assert len(found) == sum(producer.sent for producer in producers)
