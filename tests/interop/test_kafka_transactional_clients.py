"""Transactions by Kafka's own clients against a running server: librdkafka (confluent-kafka) and aiokafka.

Each commits, aborts, publishes what it has read together with its offsets, and is fenced, as its users do it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from netserver.testing import ServerProcess, server

confluent = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")

WAIT_S = 30.0
LATE_S = 100
COUNT = 50


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with server() as started:
        yield started


def address(process: ServerProcess) -> str:
    host, port = process.address("kafka")
    return f"{host}:{port}"


def reader(process: ServerProcess, group: str, **settings: Any) -> Any:
    usual = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    return confluent.Consumer({"bootstrap.servers": address(process), "group.id": group, **usual, **settings})


def values(process: ServerProcess, topic: str, count: int) -> list[bytes]:
    """So many from partition 0, and that nothing is behind them."""
    consumer = reader(process, "none")
    try:
        place = confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)
        consumer.assign([place])
        found: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                found.append(message.value())
        assert consumer.get_watermark_offsets(place, timeout=WAIT_S)[1] == count + 1
        return found
    finally:
        consumer.close()


def committed(process: ServerProcess, topic: str, group: str) -> int:
    consumer = reader(process, group)
    try:
        (place,) = consumer.committed([confluent.TopicPartition(topic, 0)], timeout=WAIT_S)
        return int(place.offset)
    finally:
        consumer.close()


def test_librdkafka_commits_aborts_and_is_fenced(process: ServerProcess) -> None:
    settings = {"bootstrap.servers": address(process), "transactional.id": "confluent", "log_level": 0}
    producer = confluent.Producer(settings)
    producer.init_transactions(WAIT_S)
    for end, name in ((producer.commit_transaction, b"a"), (producer.abort_transaction, b"b")):
        producer.begin_transaction()
        for number in range(COUNT):
            producer.produce("confluent", b"%s %d" % (name, number), partition=0)
        assert producer.flush(WAIT_S) == 0
        end(WAIT_S)
    producer.begin_transaction()
    producer.produce("confluent", b"fenced", partition=0)
    assert producer.flush(WAIT_S) == 0
    newer = confluent.Producer(settings)
    newer.init_transactions(WAIT_S)
    with pytest.raises(confluent.KafkaException) as refused:
        producer.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    newer.begin_transaction()
    newer.produce("confluent", b"newer", partition=0)
    newer.commit_transaction(WAIT_S)
    assert values(process, "confluent", COUNT + 1) == [*(b"a %d" % number for number in range(COUNT)), b"newer"]


def test_librdkafka_publishes_what_it_has_read(process: ServerProcess) -> None:
    settings = {"bootstrap.servers": address(process)}
    source = confluent.Producer(settings)
    for number in range(COUNT):
        source.produce("read", b"%d" % number, partition=0)
    assert source.flush(WAIT_S) == 0
    consumer = reader(process, "moving")
    consumer.subscribe(["read"])
    producer = confluent.Producer({**settings, "transactional.id": "moving"})
    producer.init_transactions(WAIT_S)
    done = 0
    deadline = time.monotonic() + WAIT_S
    while done < COUNT:
        assert time.monotonic() < deadline
        found = consumer.consume(20, 0.5)
        if not found:
            continue
        producer.begin_transaction()
        for message in found:
            producer.produce("moved", b"moved " + message.value(), partition=0)
        places = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), WAIT_S)
        producer.commit_transaction(WAIT_S)
        done += len(found)
    consumer.close()
    assert values(process, "moved", COUNT) == [b"moved %d" % number for number in range(COUNT)]
    assert committed(process, "read", "moving") == COUNT + 1


def test_aiokafka_commits_aborts_and_publishes_what_it_has_read(process: ServerProcess) -> None:
    async def main() -> None:
        where = {"bootstrap_servers": address(process)}
        async with aiokafka.AIOKafkaProducer(transactional_id="aiokafka", **where) as producer:
            async with producer.transaction():
                for number in range(COUNT):
                    await producer.send("ai", b"%d" % number, partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait("ai", b"aborted", partition=0)
            await producer.abort_transaction()
            consumer = aiokafka.AIOKafkaConsumer(
                "ai", group_id="ai", enable_auto_commit=False, auto_offset_reset="earliest",
                isolation_level="read_committed", **where,
            )  # fmt: skip
            async with consumer:
                done = 0
                while done < COUNT:
                    found = await consumer.getmany(timeout_ms=LATE_S)
                    async with producer.transaction():
                        ends = {}
                        for partition, records in found.items():
                            for record in records:
                                await producer.send("ai-moved", record.value, partition=0)
                                ends[partition] = record.offset + 1
                            done += len(records)
                        if ends:
                            await producer.send_offsets_to_transaction(ends, "ai")

    asyncio.run(asyncio.wait_for(main(), 2 * WAIT_S))
    wanted = [b"%d" % number for number in range(COUNT)]
    assert values(process, "ai", COUNT) == wanted
    assert values(process, "ai-moved", COUNT) == wanted
    assert committed(process, "ai", "ai") == COUNT + 1
