"""Kafka's own clients against a running server: librdkafka (confluent-kafka) and aiokafka.

Each publishes and reads as its users do, with what it does by default: versions, idempotence, retries, long polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import ServerProcess, server
from tests.certificates import Authority

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")
aiokafka = pytest.importorskip("aiokafka")

WAIT_S = 30.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 200


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with server() as started:
        yield started


def address(process: ServerProcess) -> str:
    host, port = process.address("kafka")
    return f"{host}:{port}"


def publish(topic: str, records: list[tuple[bytes | None, bytes | None, list[Any]]], **settings: Any) -> list[int]:
    """By confluent-kafka, to partition 0; the offsets."""
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        offsets.append(message.offset())

    producer = confluent.Producer({"linger.ms": 5, **settings})
    for value, key, headers in records:
        producer.produce(topic, value, key, partition=0, headers=headers, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    return offsets


def read(topic: str, count: int, start: int = confluent.OFFSET_BEGINNING, **settings: Any) -> list[Any]:
    """By confluent-kafka, from partition 0."""
    consumer = confluent.Consumer({"group.id": "none", "enable.auto.commit": False, **settings})
    try:
        consumer.assign([confluent.TopicPartition(topic, 0, start)])
        found: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} came"
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None
                found.append(message)
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_librdkafka_publishes_and_reads(process: ServerProcess, codec: str, idempotent: bool) -> None:
    topic = f"confluent-{codec}-{idempotent}"
    records = [(b"value %d " % n * 20, b"k%d" % (n % 7), [("n", b"%d" % n), ("none", None)]) for n in range(COUNT)]
    settings = {"bootstrap.servers": address(process)}
    offsets = publish(
        topic, [*records, (None, b"tombstone", [])],
        **settings, **{"compression.type": codec, "enable.idempotence": idempotent},
    )  # fmt: skip
    assert offsets == list(range(1, COUNT + 2))
    found = read(topic, COUNT + 1, **settings)
    assert [(one.value(), one.key(), one.headers()) for one in found[:-1]] == records
    assert (found[-1].value(), found[-1].key()) == (None, b"tombstone")
    assert [one.offset() for one in found] == offsets


def test_librdkafka_administers(process: ServerProcess) -> None:
    settings = {"bootstrap.servers": address(process)}
    admin = confluent_admin.AdminClient(settings)
    made = admin.create_topics([confluent_admin.NewTopic("administered", 3, 1, config={"retention.ms": "3600000"})])
    made["administered"].result(WAIT_S)
    assert len(admin.list_topics(timeout=WAIT_S).topics["administered"].partitions) == 3
    resource = confluent_admin.ConfigResource(confluent_admin.ConfigResource.Type.TOPIC, "administered")
    (described,) = admin.describe_configs([resource]).values()
    assert described.result(WAIT_S)["retention.ms"].value == "3600000"
    publish("administered", [(b"%d" % n, None, []) for n in range(10)], **settings)
    where = confluent.TopicPartition("administered", 0, 4)
    (trimmed,) = admin.delete_records([where]).values()
    assert trimmed.result(WAIT_S).low_watermark == 4
    (latest,) = admin.list_offsets({where: confluent_admin.OffsetSpec.latest()}).values()
    assert latest.result(WAIT_S).offset == 11
    (grown,) = admin.create_partitions([confluent_admin.NewPartitions("administered", 5)]).values()
    with pytest.raises(confluent.KafkaException, match="keeps these"):
        grown.result(WAIT_S)
    (deleted,) = admin.delete_topics(["administered"]).values()
    deleted.result(WAIT_S)


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_aiokafka_publishes_and_reads(process: ServerProcess, codec: str | None) -> None:
    topic = f"aiokafka-{codec}"

    async def main() -> None:
        where = {"bootstrap_servers": address(process)}
        async with aiokafka.AIOKafkaProducer(compression_type=codec, enable_idempotence=True, **where) as producer:
            sent = [await producer.send(topic, b"value %d" % n, key=b"k", headers=[("h", b"x")]) for n in range(COUNT)]
            assert [(await one).offset for one in sent] == list(range(1, COUNT + 1))
            async with aiokafka.AIOKafkaConsumer(enable_auto_commit=False, **where) as consumer:
                partition = aiokafka.TopicPartition(topic, 0)
                consumer.assign([partition])
                await consumer.seek_to_beginning(partition)
                found = [await consumer.getone() for _ in range(COUNT)]
                assert [(one.offset, one.value) for one in found] == [(n + 1, b"value %d" % n) for n in range(COUNT)]
                assert found[0].headers == (("h", b"x"),)
                assert (await consumer.beginning_offsets([partition]))[partition] == 1
                times = await consumer.offsets_for_times({partition: found[0].timestamp})
                assert times[partition].offset == 1
                live = asyncio.create_task(consumer.getone())  # a long poll that an append ends
                await producer.send_and_wait(topic, b"live")
                assert (await live).value == b"live"

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_consumers_of_a_group_share_partitions_and_go_on_where_they_were(process: ServerProcess) -> None:
    settings = {"bootstrap.servers": address(process)}
    admin = confluent_admin.AdminClient(settings)
    admin.create_topics([confluent_admin.NewTopic("shared", 3, 1)])["shared"].result(WAIT_S)
    producer = confluent.Producer(settings)

    def send(first: int) -> set[bytes]:
        values = [b"%d" % number for number in range(first, first + 60)]
        for number, value in enumerate(values):
            producer.produce("shared", value, partition=number % 3)
        assert producer.flush(WAIT_S) == 0
        return set(values)

    def read_by(*consumers: Any, wanted: set[bytes]) -> None:
        seen: set[bytes] = set()
        deadline = time.monotonic() + WAIT_S
        while seen != wanted:
            assert time.monotonic() < deadline, f"{len(seen)} of {len(wanted)} came"
            for consumer in consumers:
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    seen.add(message.value())

    joining = {**settings, "group.id": "sharing", "auto.offset.reset": "earliest", "heartbeat.interval.ms": 100}
    first, second = [confluent.Consumer(joining) for _ in range(2)]
    first.subscribe(["shared"])
    read_by(first, wanted=send(0))
    first.commit(asynchronous=False)
    second.subscribe(["shared"])
    deadline = time.monotonic() + WAIT_S
    while not second.assignment():
        assert time.monotonic() < deadline
        first.poll(0.05)
        second.poll(0.05)
    read_by(first, second, wanted=send(100))
    first.close()
    second.close()
    third = confluent.Consumer(joining)
    third.subscribe(["shared"])
    read_by(third, wanted=send(200))
    third.close()


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    with server(tmp_path / "data") as process:
        settings = {"bootstrap.servers": address(process)}
        records: list[Any] = [(b"%d" % n, None, []) for n in range(COUNT)]
        offsets = publish("kept", records, **settings)
        process.kill()
        process.restart()
        found = read("kept", COUNT, **settings)
        assert [one.offset() for one in found] == offsets
        assert [one.value() for one in found] == [value for value, _, _ in records]


def test_librdkafka_over_tls_with_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    (certificate, key), own = authority.signed("server"), authority.signed("client")
    tls = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.ca}
    with server(settings={"kafka": {**tls, "advertised": "localhost:1"}}) as process:
        _, port = process.address("kafka")
        settings = {
            "bootstrap.servers": f"localhost:{port}",
            "security.protocol": "ssl",
            "ssl.ca.location": authority.ca,
            "ssl.certificate.location": own[0],
            "ssl.key.location": own[1],
        }
        admin = confluent_admin.AdminClient(settings)
        (broker,) = admin.list_topics(timeout=WAIT_S).brokers.values()
        assert (broker.host, broker.port) == ("localhost", 1)
