"""What Kafka clients ask about topics and do to them, in a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import TopicConfig
from engine.errors import InvalidConfig
from netserver.app import Server
from netserver.config import loading
from netserver.errors import ConfigError
from netserver.kafka.apis import Key
from netserver.kafka.errors import Code
from netserver.kafka.listener_state import is_new_name
from netserver.kafka.topic_config import SETTINGS, setting_of, settings_of
from tests.kafka_peer import Peer, Record, by_topic, metadata, new_topic, result_of, with_server

pytestmark = pytest.mark.whole


async def errors(peer: Peer, key: Key, body: dict[str, Any], version: int | None = None) -> list[int]:
    """Those of the things that a request names."""
    found = await peer.ask(key, body, version)
    return [one["error"] for one in found["results" if "results" in found else "topics"]]


def test_metadata_tells_where_the_client_is_and_what_there_is() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("b", 3)
        server.log.catalog.create(b"\xff", partition_count=1)  # which no client can spell
        host, port = server.addresses["kafka"].host, server.addresses["kafka"].port
        for version in range(11):
            found = await peer.ask(Key.METADATA, {"topics": [] if version == 0 else None}, version)
            assert found["brokers"] == [{"id": 1, "host": host, "port": port, "rack": None}]
            assert found["controller"] in (1, None)
            assert [topic["name"] for topic in found["topics"]] == ["b"]
            for number, partition in enumerate(found["topics"][0]["partitions"]):
                assert (partition["index"], partition["leader"], partition["leader_epoch"]) == (number, 1, -1)
                assert partition["replicas"] == partition["isr"] == [1]
        assert (await peer.ask(Key.METADATA, {"topics": []}, 1))["topics"] == []

    with_server(test)


def test_metadata_makes_topics_and_answers_them_at_once() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await errors(peer, Key.METADATA, metadata("new", "a b", "..")) == [0, 17, 17]
        assert await errors(peer, Key.METADATA, metadata("old-clients-make-them-always"), 1) == [0]
        assert await errors(peer, Key.METADATA, metadata("not-made", auto_create=False)) == [Code.UNKNOWN_TOPIC]
        assert await errors(peer, Key.METADATA, {"topics": [{"id": b"x" * 16, "name": None}]}) == [Code.UNKNOWN_TOPIC]
        assert (await peer.produce("new", b"x"))["offset"] == 1
        assert {topic.name for topic in server.log.catalog} == {b"new", b"old-clients-make-them-always"}

    with_server(test)

    async def without(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await errors(peer, Key.METADATA, metadata("new")) == [Code.UNKNOWN_TOPIC]

    with_server(without, settings={"topics": {"auto_create": False}})
    with_server(without, settings={"topics": {"auto_create_by_readers": False}})

    async def full(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await errors(peer, Key.METADATA, metadata("one", "two")) == [0, Code.POLICY]

    with_server(full, settings={"engine": {"topics_max": 1}})


def test_clients_are_sent_where_the_setting_says() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        (broker,) = (await peer.ask(Key.METADATA, {"topics": []}, 1))["brokers"]
        assert (broker["host"], broker["port"]) == ("log.example", 19092)

    with_server(test, settings={"kafka": {"advertised": "log.example:19092"}})
    for good in ("log.example:1", "my_host:1", "10.0.0.7:9092", "[fd00::7]:9092", "localhost:1", "a.b.:1"):
        loading.build(("test", {"server": {"data_dir": "x"}, "kafka": {"advertised": good}}))
    for wrong in (
        "0.0.0.0:9092",
        "[::]:9092",
        "host",
        "host:0",
        "ho st:1",
        "h/x:1",
        "-h:1",
        "a..b:1",
        f"{'h' * 254}:1",
    ):
        with pytest.raises(ConfigError, match="advertised"):
            loading.build(("test", {"server": {"data_dir": "x"}, "kafka": {"advertised": wrong}}))


def test_a_listener_on_all_addresses_tells_the_one_that_was_used() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(("127.0.0.1", server.addresses["kafka"].port))
        (broker,) = (await peer.ask(Key.METADATA, {"topics": []}, 1))["brokers"]
        assert broker["host"] == "127.0.0.1"

    with_server(test, settings={"kafka": {"listen": "0.0.0.0:0"}, "server": {"insecure": True}})


def test_topics_with_many_partitions_are_answered_in_slices() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await peer.make("many", 5000) == 0
        found = await peer.ask(Key.METADATA, metadata("many"))
        assert [one["index"] for one in found["topics"][0]["partitions"]] == list(range(5000))

    with_server(test)


def test_topics_are_made_as_asked_or_refused_with_a_reason(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        body = new_topic("t", 3, retention_ms="3600000", retention_bytes="-1", cleanup_policy="delete")
        assert await errors(peer, Key.CREATE_TOPICS, body) == [0]
        assert await errors(peer, Key.CREATE_TOPICS, body) == [Code.TOPIC_EXISTS]
        for wrong, code in (
            (new_topic("a/b"), Code.INVALID_TOPIC),
            (new_topic("r3", replicas=3), Code.INVALID_REPLICATION),
            (new_topic("p0", 0), Code.INVALID_PARTITIONS),
            (new_topic("c", no_such="1"), Code.INVALID_CONFIG),
            (new_topic("c", cleanup_policy="compact"), Code.INVALID_CONFIG),
            (new_topic("c", retention_ms="x"), Code.INVALID_CONFIG),
        ):
            (found,) = (await peer.ask(Key.CREATE_TOPICS, wrong))["topics"]
            assert found["error"] == code
            assert found["message"]
        assert await errors(peer, Key.CREATE_TOPICS, new_topic("valid", validate_only=True)) == [0]
        assigned = new_topic("assigned", -1)
        assigned["topics"][0]["assignments"] = [{"partition": n, "brokers": [1]} for n in range(4)]
        assert await errors(peer, Key.CREATE_TOPICS, assigned) == [0]
        assert await errors(peer, Key.CREATE_TOPICS, new_topic("default", -1, -1)) == [0]
        made = {topic.name: topic.partition_count for topic in server.log.catalog}
        assert made == {b"t": 3, b"assigned": 4, b"default": 1}
        topic = server.log.catalog.get(b"t")
        assert topic is not None
        assert (topic.config.retention_ms, topic.config.retention_bytes) == (3_600_000, 0)

    async def after(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert {topic.name for topic in server.log.catalog} == {b"t", b"assigned", b"default"}
        assert await errors(peer, Key.DELETE_TOPICS, {"names": ["t", "none"], "timeout_ms": 1}) == [0, 3]
        assert server.log.catalog.get(b"t") is None

    with_server(test, tmp_path)
    with_server(after, tmp_path)


def test_configurations_are_told_and_changed() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", retention_ms="3600000")

        async def configs(*names: str) -> dict[str, tuple[str, int]]:
            asked = {"type": 2, "name": "t", "names": list(names) or None}
            body = {"resources": [asked], "synonyms": False}
            found = (await peer.ask(Key.DESCRIBE_CONFIGS, body))["results"][0]["configs"]
            return {one["name"]: (one["value"], one["source"]) for one in found}

        async def alter(
            *changes: tuple[str, int, str | None], name: str = "t", kind: int = 2, **more: bool
        ) -> list[int]:
            listed = [{"name": one, "operation": operation, "value": value} for one, operation, value in changes]
            resource = {"type": kind, "name": name, "configs": listed}
            body = {"resources": [resource], "validate_only": False} | more
            return await errors(peer, Key.INCREMENTAL_ALTER_CONFIGS, body)

        found = await configs()
        assert found["retention.ms"] == ("3600000", 1)
        assert found["retention.bytes"] == ("-1", 5)
        assert found["cleanup.policy"] == ("delete", 5)
        assert found["quintlog.durability"] == ("always", 5)
        assert "quintlog.retention" not in found, "it has a name of Kafka's"
        assert await configs("retention.ms", "nothing") == {"retention.ms": ("3600000", 1)}
        assert await alter(("retention.bytes", 0, "1000000"), ("quintlog.durability", 0, "interval")) == [0]
        assert await alter(("retention.ms", 1, None)) == [0]
        assert await alter(("segment.bytes", 0, "9999999999999999"), validate_only=True) == [Code.INVALID_CONFIG]
        assert await alter(("segment.bytes", 0, "9999999"), validate_only=True) == [0]
        assert await configs("retention.ms", "retention.bytes") == {
            "retention.ms": ("-1", 5), "retention.bytes": ("1000000", 1),
        }  # fmt: skip
        topic = server.log.catalog.get(b"t")
        assert topic is not None
        assert topic.config.durability == "interval"
        assert await alter(("retention.ms", 2, "1")) == [Code.INVALID_CONFIG]
        assert await alter(("nothing", 0, "1")) == [Code.INVALID_CONFIG]
        assert await alter(name="none") == [Code.UNKNOWN_TOPIC]
        assert await alter(kind=4) == [Code.INVALID_REQUEST]
        resources = [{"type": kind, "name": name, "names": None} for kind, name in ((2, "none"), (4, "1"), (8, "x"))]
        body = {"resources": resources, "synonyms": False}
        for version in (1, 2, 3):
            assert await errors(peer, Key.DESCRIBE_CONFIGS, body, version) == [3, 0, Code.INVALID_REQUEST]

    with_server(test)


def test_what_configurations_mean() -> None:
    assert setting_of("retention.ms", "-1") == {"retention_ms": "0"}
    assert setting_of("segment.ms", None) == {"segment_age_ms": "default"}
    assert setting_of("quintlog.retention", "1h") == {"retention_ms": "1h"}
    assert setting_of("min.insync.replicas", "1") == setting_of("compression.type", None) == {}
    for name, value in (("min.insync.replicas", "2"), ("quintlog.none", "1"), ("retention_ms", "1")):
        with pytest.raises(InvalidConfig):
            setting_of(name, value)
    assert settings_of([{"name": "max.message.bytes", "value": "9"}, {"name": "x", "value": None}], TopicConfig()) == {
        "record_bytes_max": "9"
    }
    for name, value in SETTINGS.items():
        assert setting_of(name, "100000000") == {value: "100000000"}
    for name, value, told in (
        ("retention.ms", "0", "retention.ms=0: expected a number of ms, 1000 to "),
        ("retention.ms", "7d", ", or -1 for no limit"),
        ("retention.bytes", "-2", "retention.bytes=-2: expected a number of bytes"),
        ("max.message.bytes", "9" * 300, "max.message.bytes=999"),
        ("segment.bytes", "\u0661", "expected a number of bytes"),
    ):
        with pytest.raises(InvalidConfig) as refused:
            setting_of(name, value)
        assert told in str(refused.value)
        assert "retention_" not in str(refused.value)
    assert is_new_name(b"a.B_-9")
    assert is_new_name(b"x" * 249)
    for wrong in (b"", b"x" * 250, b".", b"..", b"a b", "ä".encode()):
        assert not is_new_name(wrong)


def test_partitions_cannot_be_added() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 3)
        wanted = [{"name": name, "partitions": 5, "assignments": None} for name in ("t", "none")]
        body = {"topics": wanted, "timeout_ms": 1, "validate_only": False}
        assert await errors(peer, Key.CREATE_PARTITIONS, body) == [Code.INVALID_PARTITIONS, Code.UNKNOWN_TOPIC]

    with_server(test)


def test_the_start_of_a_log_is_raised() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t")
        await peer.produce("t", *(b"%d" % number for number in range(10)))

        async def trim(offset: int, topic: str = "t", index: int = 0) -> tuple[int, int]:
            body = by_topic(topic, [{"index": index, "offset": offset}], timeout_ms=1)
            found = result_of(await peer.ask(Key.DELETE_RECORDS, body))
            return found["error"], found["log_start"]

        assert await trim(4) == (0, 4)
        assert (await peer.fetch("t", 3))["error"] == Code.OUT_OF_RANGE
        assert [record.value for record in await peer.records("t", 4)] == [b"%d" % number for number in range(3, 10)]
        assert (await peer.fetch("t", 0))["error"] == Code.OUT_OF_RANGE, "there is more before the first one now"
        assert (await peer.offset("t", -2))["offset"] == 4
        assert await trim(2) == (0, 4)
        assert await trim(12) == (Code.OUT_OF_RANGE, -1)
        assert await trim(1, "none") == await trim(1, "t", 1) == (Code.UNKNOWN_TOPIC, -1)
        assert await trim(-1) == (0, 11)
        assert await peer.records("t", 11) == []

    with_server(test)


def test_records_are_found_by_their_time() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t", 2)
        times = [100, 300, 200, 500, 500, 400]
        for time_ms in times:
            await peer.produce("t", Record(b"x" * 100_000, timestamp_ms=time_ms))

        async def found(timestamp_ms: int, index: int = 0, version: int | None = None) -> tuple[int, int, int]:
            one = await peer.offset("t", timestamp_ms, index, version)
            return one["error"], one["offset"], one["timestamp_ms"]

        for version in range(1, 8):
            assert await found(-1, version=version) == (0, 7, -1)
            assert await found(-2, version=version) == (0, 1, -1)
            assert await found(150, version=version) == (0, 2, 300)
        assert await found(0) == (0, 1, 100)
        assert await found(500) == (0, 4, 500)
        assert await found(501) == (0, -1, -1)
        assert await found(-3) == (0, 4, 500)
        assert await found(-3, index=1) == (0, -1, -1)
        assert await found(-3, version=6) == await found(-4) == (Code.UNSUPPORTED_VERSION, -1, -1)
        assert await found(-1, index=2) == (Code.UNKNOWN_TOPIC, -1, -1)

    with_server(test)


def test_the_newest_record_is_found_also_where_the_index_has_passed_it() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t")
        for number in range(40):
            time_ms = 9000 if number == 5 else 1000 + number
            await peer.produce("t", Record(b"x" * 5000, timestamp_ms=time_ms))
        found = await peer.offset("t", -3)
        assert (found["offset"], found["timestamp_ms"]) == (6, 9000)

    with_server(test)
