"""Kafka's own clients where they have to say who they are: by a key (SASL PLAIN) or a certificate, over TLS."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest

from netserver.access.key_file import add_identity
from netserver.testing import ServerProcess, server
from tests.certificates import Authority

confluent = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")
aiokafka_errors = pytest.importorskip("aiokafka.errors")

pytestmark = pytest.mark.whole

WAIT_S: Final = 30.0
KEY: Final = "the key of shop, which is long"
ORDERS: Final[dict[str, Any]] = {"publish": ["orders-*"], "subscribe": ["orders-*"]}
COUNT: Final = 20


class Guarded:
    """A server that lets in one by its key and one by its certificate."""

    def __init__(self, process: ServerProcess, authority: Authority, certificate: tuple[str, str]) -> None:
        host, port = process.address("kafka")
        self.where = f"{host}:{port}"
        self.authority = authority
        self.certificate = certificate

    def confluent(self, way: str, key: str = KEY) -> dict[str, Any]:
        """Settings of librdkafka."""
        settings = {"bootstrap.servers": self.where, "ssl.ca.location": self.authority.ca}
        if way == "certificate":
            own = {"ssl.certificate.location": self.certificate[0], "ssl.key.location": self.certificate[1]}
            return settings | own | {"security.protocol": "SSL"}
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "shop", "sasl.password": key}
        return settings | login | {"security.protocol": "SASL_SSL"}

    def aiokafka(self, way: str, key: str = KEY) -> dict[str, Any]:
        """Settings of aiokafka."""
        context = ssl.create_default_context(cafile=self.authority.ca)
        settings = {"bootstrap_servers": self.where, "ssl_context": context}
        if way == "certificate":
            context.load_cert_chain(*self.certificate)
            return settings | {"security_protocol": "SSL"}
        login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "shop", "sasl_plain_password": key}
        return settings | login | {"security_protocol": "SASL_SSL"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    path = tmp_path_factory.mktemp("guarded")
    authority = Authority(path / "authority")
    (certificate, key), own = authority.signed("server"), authority.signed("mill")
    add_identity(path / "access", {"name": "shop"} | ORDERS, KEY)
    add_identity(path / "access", {"name": "mill", "certificates": ["CN=mill"]} | ORDERS)
    tls = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.ca}
    settings = {"kafka": {**tls, "clients": "certificate,key"}, "access": {"file": str(path / "access")}}
    with server(settings=settings) as process:
        yield Guarded(process, authority, own)


@pytest.mark.parametrize("way", ["key", "certificate"])
def test_librdkafka_is_known(guarded: Guarded, way: str) -> None:
    settings, topic = guarded.confluent(way), f"orders-confluent-{way}"
    errors: list[Any] = []
    producer = confluent.Producer(settings)
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: errors.append(error))
    producer.produce("secrets", b"x", on_delivery=lambda error, _: errors.append(error.name() if error else None))
    assert producer.flush(WAIT_S) == 0
    assert errors.count(None) == COUNT
    assert "TOPIC_AUTHORIZATION_FAILED" in errors
    consumer = confluent.Consumer(settings | {"group.id": "shop", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found = [one for _ in range(COUNT) for one in consumer.consume(1, WAIT_S)]
        assert [one.value() for one in found] == [b"%d" % number for number in range(COUNT)]
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_librdkafka_is_told_that_its_key_is_wrong(guarded: Guarded) -> None:
    told, texts = threading.Event(), []

    def failed(error: Any) -> None:
        texts.append(str(error))
        if error.code() == confluent.KafkaError._AUTHENTICATION:
            told.set()

    producer = confluent.Producer(guarded.confluent("key", "a wrong key, which is long") | {"error_cb": failed})
    for _ in range(int(WAIT_S)):
        producer.poll(1.0)
        if told.is_set():
            break
    assert told.is_set(), texts
    assert any("its name in the access file" in text for text in texts), texts


@pytest.mark.parametrize("way", ["key", "certificate"])
def test_aiokafka_is_known(guarded: Guarded, way: str) -> None:
    topic = f"orders-aiokafka-{way}"

    async def main() -> None:
        where = guarded.aiokafka(way)
        async with aiokafka.AIOKafkaProducer(enable_idempotence=True, **where) as producer:
            for number in range(COUNT):
                await producer.send_and_wait(topic, b"%d" % number)
            with pytest.raises(aiokafka_errors.TopicAuthorizationFailedError):
                await producer.send_and_wait("secrets", b"x")
        group: dict[str, Any] = {"group_id": "mill", "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer(topic, **group, **where) as consumer:
            found = [(await consumer.getone()).value for _ in range(COUNT)]
            assert found == [b"%d" % number for number in range(COUNT)]

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_aiokafka_is_told_that_its_key_is_wrong(guarded: Guarded) -> None:
    async def main() -> None:
        producer = aiokafka.AIOKafkaProducer(**guarded.aiokafka("key", "a wrong key, which is long"))
        try:
            with pytest.raises(aiokafka_errors.KafkaError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
