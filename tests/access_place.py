"""A server with identities, and one try of each request that needs a right, by the real bytes of its protocol.

Over TCP an identity is an address of the loopback network, over QUIC a certificate, over HTTP a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from netserver.access.key_file import add_identity
from netserver.app import Server
from netserver.blipmq import codec as blipmq
from netserver.blipmq.codec import FrameType
from netserver.fujin import codec as fujin
from netserver.fujin.codec import PULL, Answer, Op
from netserver.fujin.codec_answers import AnswerDecoder, Fetched
from netserver.kafka.apis import Key
from netserver.kafka.errors import Code
from netserver.tank import messages as tank
from netserver.testing import running
from tests import blipmq_peer, fujin_peer, kafka_peer, reliably_peer, tank_peer
from tests.certificates import self_signed, signed
from tests.figg_peer import ATTACH, frame, publish_frame, text

ATTACHED, ACK, PING, PONG = 2, 6, 8, 9
FORBIDDEN: Final = 403


def key_of(name: str) -> str:
    return f"the key of {name}, which is long"


class Place:
    """A running server and its identities: name -> the fields of its line."""

    def __init__(self, server: Server, directory: Path, identities: dict[str, dict[str, Any]]) -> None:
        self.server = server
        self.path = directory / "access"
        self.writers: list[asyncio.StreamWriter] = []
        self._directory = directory
        self._numbers = {name: number for number, name in enumerate(identities, 1)}

    def host(self, name: str) -> str:
        """The address that an identity connects from."""
        return f"127.0.1.{self._numbers[name]}" if name in self._numbers else "127.0.0.1"

    def address(self, listener: str) -> tuple[str, int]:
        where = self.server.addresses[listener]
        return where.host, where.port

    async def streams(self, listener: str, who: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address(listener), local_addr=(self.host(who), 0))
        self.writers.append(writer)
        return reader, writer

    def quic(self, who: str) -> Any:
        """A client's configuration, with the certificate of an identity if it has one."""
        configuration = fujin_peer.client_configuration()
        if (self._directory / f"{who}.pem").exists():
            configuration.load_cert_chain(self._directory / f"{who}.pem", self._directory / f"{who}.key")
        return configuration

    def tls(self, who: str) -> ssl.SSLContext:
        """A client's context, with the certificate of an identity if it has one."""
        context = ssl.create_default_context(cafile=str(self._directory / "authority.pem"))
        context.check_hostname = False
        if (self._directory / f"{who}.pem").exists():
            context.load_cert_chain(self._directory / f"{who}.pem", self._directory / f"{who}.key")
        return context

    async def http(
        self,
        method: str,
        path: str,
        who: str,
        body: object = None,
        *,
        certificate: bool = False,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and document of a request with the key, or the certificate, of an identity."""
        host, port = self.address("admin")
        data = json.dumps(body).encode() if body is not None else None
        bearer = {"Authorization": f"Bearer {key_of(who)}"} if who and not certificate else {}
        tls = self.tls(who if certificate else "") if "admin" in self.server.tls_listeners else None
        scheme = "https" if tls is not None else "http"
        url = f"{scheme}://{host}:{port}{path}"
        request = urllib.request.Request(url, data, bearer | (headers or {}), method=method)

        def call() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        return await asyncio.to_thread(call)


def https(directory: Path) -> dict[str, str]:
    """Settings of an admin listener that takes keys and certificates of the place's authority."""
    authority = self_signed(directory, "authority")
    certificate, key = signed(directory, "localhost", authority, for_clients=False)
    files = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority[0]}
    return files | {"clients": "certificate,key"}


@contextlib.asynccontextmanager
async def place(
    directory: Path, identities: dict[str, dict[str, Any]], settings: dict[str, dict[str, Any]] | None = None
) -> AsyncIterator[Place]:
    """A server where these come in, and nobody else."""
    authority = str(directory / "authority.pem"), str(directory / "authority.key")
    if not (directory / "authority.pem").exists():
        self_signed(directory, "authority")
    path = directory / "access"
    path.touch(0o600)
    for number, (name, fields) in enumerate(identities.items(), 1):
        signed(directory, name, authority)
        known = {"networks": [f"127.0.1.{number}"], "certificates": [f"CN={name}"]}
        add_identity(path, {"name": name} | known | fields, key_of(name))
    own = {"access": {"file": str(path)}, "fujin": {"tls_client_ca": authority[0], "fetch_wait": "100ms"}}
    merged = {name: own.get(name, {}) | (settings or {}).get(name, {}) for name in {*own, *(settings or {})}}
    async with running(directory / "data", merged) as server:
        here = Place(server, directory, identities)
        yield here
        for writer in here.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


# --- one try of each request: whether it was carried out

Try = Callable[[Place, str, bytes], Awaitable[bool]]


async def _figg(place: Place, who: str, request: bytes, answer: int) -> bool:
    """Whether it is answered by a frame of this type, before a refusal is in the audit."""
    before = place.server.access.audit.refused
    reader, writer = await place.streams("figg", who)
    writer.write(request)

    async def answered() -> bool:
        while head := await reader.readexactly(8):
            await reader.readexactly(struct.unpack(">HHI", head)[2])
            if struct.unpack(">HHI", head)[0] == answer:
                return True
        return False

    async def refused() -> bool:
        while place.server.access.audit.refused == before:  # noqa: ASYNC110  (it tells nobody)
            await asyncio.sleep(0.001)
        return False

    tasks = [asyncio.ensure_future(answered()), asyncio.ensure_future(refused())]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    for task in tasks:
        task.cancel()
    writer.close()
    return done.pop().result()


async def figg_publish(place: Place, who: str, topic: bytes) -> bool:
    return await _figg(place, who, publish_frame(topic, 0, b"x"), ACK)


async def figg_attach(place: Place, who: str, topic: bytes) -> bool:
    return await _figg(place, who, frame(ATTACH, struct.pack(">H", 0) + text(topic) + bytes(8)), ATTACHED)


async def _tank(place: Place, who: str) -> tank_peer.Peer:
    peer = tank_peer.Peer(*await place.streams("tank", who))
    assert await peer.receive() == b"\x03\0\0\0\0"
    return peer


async def tank_produce(place: Place, who: str, topic: bytes) -> bool:
    codes = await (await _tank(place, who)).produce(topic, tank_peer.bundle(b"x"))
    assert codes in (b"\0", b"\xff"), codes
    return codes == b"\0"


async def tank_produce_with_seq(place: Place, who: str, topic: bytes) -> bool:
    seq = place.server.log.partition(place.server.log.catalog.get(topic)).last_seq + 1  # type: ignore[arg-type]
    codes = await (await _tank(place, who)).produce(topic, tank_peer.bundle(b"x"), base_seq=seq)
    assert codes in (b"\0", b"\xff"), codes
    return codes == b"\0"


async def tank_consume(place: Place, who: str, topic: bytes) -> bool:
    peer = await _tank(place, who)
    peer.send(tank_peer.consume(3, topic, (0, 1)))
    found = (await peer.answer(tank.ConsumeResponse)).topics[0].partitions
    return bool(found) and found[0].code != tank.ConsumeCode.UNKNOWN_PARTITION and bool(found[0].chunk)


async def tank_discover(place: Place, who: str, topic: bytes) -> bool:
    return bool(await (await _tank(place, who)).ranges(topic))


async def tank_create(place: Place, who: str, topic: bytes) -> bool:
    code = await (await _tank(place, who)).create(topic)
    assert code in (tank.CreateCode.EXISTS, tank.CreateCode.READ_ONLY), code
    return code == tank.CreateCode.EXISTS


async def tank_reload(place: Place, who: str, topic: bytes) -> bool:
    peer = await _tank(place, who)
    peer.send(tank.ReloadConfRequest(1, topic, 0))
    return (await peer.answer(tank.ReloadConfResponse)).code == tank.ReloadCode.NO_CONFIG_FILE


async def tank_topics(place: Place, who: str) -> set[bytes]:
    peer = await _tank(place, who)
    peer.send(tank.DiscoverTopicsRequest(1))
    return {entry.name for entry in (await peer.answer(tank.DiscoverTopicsResponse)).topics}


async def _kafka(place: Place, who: str, key: Key, body: dict[str, Any]) -> dict[str, Any]:
    return await kafka_peer.Peer(*await place.streams("kafka", who)).ask(key, body)


def _is_kafka_done(*errors: int) -> bool:
    assert set(errors) <= {0, Code.TOPIC_FORBIDDEN, Code.TOPIC_EXISTS, Code.INVALID_PARTITIONS}, errors
    return Code.TOPIC_FORBIDDEN not in errors


async def kafka_produce(place: Place, who: str, topic: bytes) -> bool:
    body = kafka_peer.produce(topic.decode(), kafka_peer.batch(b"x"))
    return _is_kafka_done(*kafka_peer.all_errors(await _kafka(place, who, Key.PRODUCE, body)))


async def kafka_fetch(place: Place, who: str, topic: bytes) -> bool:
    found = await _kafka(place, who, Key.FETCH, kafka_peer.fetch(topic.decode(), (0, 1)))
    done = _is_kafka_done(*kafka_peer.all_errors(found))
    assert bool(kafka_peer.result_of(found)["records"]) == done
    return done


async def kafka_offsets(place: Place, who: str, topic: bytes) -> bool:
    body = kafka_peer.by_topic(topic.decode(), [{"index": 0, "timestamp_ms": -1}])
    return _is_kafka_done(*kafka_peer.all_errors(await _kafka(place, who, Key.LIST_OFFSETS, body)))


async def kafka_commit(place: Place, who: str, topic: bytes) -> bool:
    body = kafka_peer.by_topic(topic.decode(), [{"index": 0, "offset": 1, "metadata": None}])
    body |= {"group": f"of {who}", "generation": -1, "member": ""}
    return _is_kafka_done(*kafka_peer.all_errors(await _kafka(place, who, Key.OFFSET_COMMIT, body)))


async def kafka_committed(place: Place, who: str, topic: bytes) -> bool:
    body = {"group": f"of {who}", "topics": [{"name": topic.decode(), "partitions": [0]}]}
    return _is_kafka_done(*kafka_peer.all_errors(await _kafka(place, who, Key.OFFSET_FETCH, body)))


async def _kafka_producer(place: Place, name: str) -> dict[str, Any]:
    """A transactional id of somebody who may do everything: whoever knows its numbers may go on with it."""
    body = {"transactional_id": name, "timeout_ms": 60_000}
    found = await _kafka(place, "everything", Key.INIT_PRODUCER_ID, body)
    assert not found["error"]
    return {"transactional_id": name, "producer": found["producer"], "epoch": found["epoch"]}


async def kafka_add_partitions(place: Place, who: str, topic: bytes) -> bool:
    body = await _kafka_producer(place, f"of {who}") | {"topics": [{"name": topic.decode(), "partitions": [0]}]}
    return _is_kafka_done(*kafka_peer.all_errors(await _kafka(place, who, Key.ADD_PARTITIONS_TO_TXN, body)))


async def kafka_commit_in_transaction(place: Place, who: str, topic: bytes) -> bool:
    body = await _kafka_producer(place, f"of {who}") | {"group": f"of {who}"}
    assert not (await _kafka(place, "everything", Key.ADD_OFFSETS_TO_TXN, body))["error"]
    body |= kafka_peer.by_topic(topic.decode(), [{"index": 0, "offset": 1, "metadata": None}])
    return _is_kafka_done(*kafka_peer.all_errors(await _kafka(place, who, Key.TXN_OFFSET_COMMIT, body)))


async def kafka_create(place: Place, who: str, topic: bytes) -> bool:
    found = await _kafka(place, who, Key.CREATE_TOPICS, kafka_peer.new_topic(topic.decode()))
    return _is_kafka_done(found["topics"][0]["error"])


async def kafka_delete(place: Place, who: str, topic: bytes) -> bool:
    await figg_publish(place, "everything", topic + b"-deleted")  # the topic itself is still needed
    body = {"names": [topic.decode() + "-deleted"], "timeout_ms": 1}
    return _is_kafka_done((await _kafka(place, who, Key.DELETE_TOPICS, body))["topics"][0]["error"])


async def kafka_trim(place: Place, who: str, topic: bytes) -> bool:
    body = kafka_peer.by_topic(topic.decode(), [{"index": 0, "offset": 1}], timeout_ms=1)
    return _is_kafka_done(*kafka_peer.all_errors(await _kafka(place, who, Key.DELETE_RECORDS, body)))


async def kafka_grow(place: Place, who: str, topic: bytes) -> bool:
    wanted = {"name": topic.decode(), "partitions": 9, "assignments": None}
    body = {"topics": [wanted], "timeout_ms": 1, "validate_only": False}
    return _is_kafka_done((await _kafka(place, who, Key.CREATE_PARTITIONS, body))["topics"][0]["error"])


async def kafka_configure(place: Place, who: str, topic: bytes) -> bool:
    config = {"name": "retention.ms", "operation": 0, "value": "-1"}
    body = {"resources": [{"type": 2, "name": topic.decode(), "configs": [config]}], "validate_only": False}
    return _is_kafka_done((await _kafka(place, who, Key.INCREMENTAL_ALTER_CONFIGS, body))["results"][0]["error"])


async def kafka_topics(place: Place, who: str) -> set[bytes]:
    found = await _kafka(place, who, Key.METADATA, {"topics": None})
    return {topic["name"].encode() for topic in found["topics"]}


async def reliably_start(place: Place, who: str, topic: bytes) -> bool:
    peer = reliably_peer.Peer(*await place.streams("reliably", who))
    peer.send({"uuid": f"{who}-{topic!r}", "params": {"topic": topic.decode(), "offset": "earliest"}})
    return "id" in await peer.message()


async def _blipmq(place: Place, who: str) -> blipmq_peer.AsyncPeer:
    peer = blipmq_peer.AsyncPeer(*await place.streams("blipmq", who))
    peer.send(blipmq.hello(1) + blipmq.auth(2, key_of(who)))
    assert [one.type for one in await peer.frames(2)] == [FrameType.ACK] * 2
    return peer


async def _not_401(peer: blipmq_peer.AsyncPeer, request: bytes) -> bool:
    peer.send(request)
    for one in await peer.until_pong():
        if one.type == FrameType.NACK:
            assert blipmq.parse_nack(one.payload).code == 401
            return False
    return True


async def blipmq_publish(place: Place, who: str, topic: bytes) -> bool:
    return await _not_401(await _blipmq(place, who), blipmq.publish(5, 1, topic, b"x"))


async def blipmq_subscribe(place: Place, who: str, topic: bytes) -> bool:
    return await _not_401(await _blipmq(place, who), blipmq.subscribe(5, topic, 1))


async def _subscribed(place: Place, topic: bytes) -> int:
    """A subscription of somebody who may, with a message."""
    owner = await _blipmq(place, "everything")
    subscription = await owner.subscribe(topic)
    await owner.publish(topic, b"x")
    return subscription


async def blipmq_poll(place: Place, who: str, topic: bytes) -> bool:
    subscription = await _subscribed(place, topic)
    return await _not_401(await _blipmq(place, who), blipmq.poll(5, subscription))


async def blipmq_ack(place: Place, who: str, topic: bytes) -> bool:
    subscription = await _subscribed(place, topic)
    owner = await _blipmq(place, "everything")
    assert await owner.poll(subscription) == [(1, b"x")]
    return await _not_401(await _blipmq(place, who), blipmq.ack(1, subscription))


async def fujin_write(place: Place, who: str, topic: bytes) -> bool:
    async with fujin_peer.connect(place.address("fujin"), place.quic(who)) as peer:
        stream = peer.writer()
        stream.send(fujin.write(1, topic, b"x") + fujin.DISCONNECT)
        return await stream.rest() == fujin.done(Answer.WRITE, 1) + fujin.DISCONNECT


async def fujin_commit(place: Place, who: str, topic: bytes) -> bool:
    async with fujin_peer.connect(place.address("fujin"), place.quic(who)) as peer:
        stream = peer.writer()
        stream.send(fujin.tx(Op.BEGIN, 1) + fujin.write(2, topic, b"in a transaction") + fujin.tx(Op.COMMIT, 3))
        stream.send(fujin.DISCONNECT)
        ok = [fujin.done(Answer.BEGIN, 1), fujin.done(Answer.WRITE, 2), fujin.done(Answer.COMMIT, 3), fujin.DISCONNECT]
        return await stream.rest() == b"".join(ok)


async def fujin_reader(place: Place, who: str, topic: bytes) -> bool:
    async with fujin_peer.connect(place.address("fujin"), place.quic(who)) as peer:
        stream = peer.open(fujin.connect_reader(PULL, True, topic))
        return await stream.take(2) == fujin.connected()


async def _fujin_fetched(place: Place, who: str, topic: bytes, op: Op | None) -> bool:
    """Whether a record comes by FETCH, and ACK or NACK takes it."""
    await figg_publish(place, "everything", topic)
    async with fujin_peer.connect(place.address("fujin"), place.quic(who)) as peer:
        stream = peer.open(fujin.connect_reader(PULL, op is None, topic))
        if await stream.take(2) != fujin.connected():
            return False
        stream.decoder = AnswerDecoder(auto=op is None)
        stream.send(fujin.fetch(3, 1))
        event = await stream.event(auto=op is None)
        assert isinstance(event, Fetched)
        if op is not None:
            acked: Any = await fujin_peer.acknowledge(stream, event.messages[0].message_id, op=op)
            return bool(acked.results[0][1] is None)
        return len(event.messages) == 1


async def fujin_fetch(place: Place, who: str, topic: bytes) -> bool:
    return await _fujin_fetched(place, who, topic, None)


async def fujin_ack(place: Place, who: str, topic: bytes) -> bool:
    return await _fujin_fetched(place, who, topic, Op.ACK)


async def fujin_nack(place: Place, who: str, topic: bytes) -> bool:
    return await _fujin_fetched(place, who, topic, Op.NACK)


async def reliably_resume(place: Place, who: str, topic: bytes) -> bool:
    """Whether somebody goes on with a session of somebody who may."""
    uuid = f"resumed-{who}-{topic!r}"
    first = reliably_peer.Peer(*await place.streams("reliably", "everything"))
    first.send({"uuid": uuid, "params": {"topic": topic.decode(), "offset": "earliest"}})
    assert "id" in await first.message()
    await first.close()
    peer = reliably_peer.Peer(*await place.streams("reliably", who))
    peer.send({"uuid": uuid, "state": 0})
    return "id" in await peer.message()


TRIES: Final[dict[tuple[str, str], Try]] = {
    ("figg", "PUBLISH"): figg_publish,
    ("figg", "ATTACH"): figg_attach,
    ("tank", "PRODUCE"): tank_produce,
    ("tank", "PRODUCE_WITH_SEQ"): tank_produce_with_seq,
    ("tank", "CONSUME"): tank_consume,
    ("tank", "DISCOVER_PARTITIONS"): tank_discover,
    ("tank", "CREATE_TOPIC"): tank_create,
    ("tank", "RELOAD_CONF"): tank_reload,
    ("kafka", "PRODUCE"): kafka_produce,
    ("kafka", "FETCH"): kafka_fetch,
    ("kafka", "LIST_OFFSETS"): kafka_offsets,
    ("kafka", "OFFSET_COMMIT"): kafka_commit,
    ("kafka", "OFFSET_FETCH"): kafka_committed,
    ("kafka", "ADD_PARTITIONS_TO_TXN"): kafka_add_partitions,
    ("kafka", "TXN_OFFSET_COMMIT"): kafka_commit_in_transaction,
    ("kafka", "CREATE_TOPICS"): kafka_create,
    ("kafka", "DELETE_TOPICS"): kafka_delete,
    ("kafka", "DELETE_RECORDS"): kafka_trim,
    ("kafka", "CREATE_PARTITIONS"): kafka_grow,
    ("kafka", "INCREMENTAL_ALTER_CONFIGS"): kafka_configure,
    ("reliably", "StartRequest"): reliably_start,
    ("reliably", "ResumeRequest"): reliably_resume,
    ("blipmq", "PUBLISH"): blipmq_publish,
    ("blipmq", "SUBSCRIBE"): blipmq_subscribe,
    ("blipmq", "POLL"): blipmq_poll,
    ("blipmq", "ACK"): blipmq_ack,
    ("fujin", "WRITE"): fujin_write,
    ("fujin", "COMMIT"): fujin_commit,
    ("fujin", "CONNECT_READER"): fujin_reader,
    ("fujin", "FETCH"): fujin_fetch,
    ("fujin", "ACK"): fujin_ack,
    ("fujin", "NACK"): fujin_nack,
}


SOME_NAME: Final = "some-name"
"""Of a group, a key, a session ..."""


def url_of(path: tuple[str, ...], topic: bytes) -> str:
    """A route's path, with a topic or some name in it."""
    return "/v1/" + "/".join({"TOPIC": quote(topic), "NAME": SOME_NAME}.get(part, part) for part in path)
