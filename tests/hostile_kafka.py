"""Kafka's part of `tests.hostile_shapes`: each request in the shapes that cost most."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netserver.kafka.apis import APIS, Key
from netserver.kafka.codec import Head, encode_request
from netserver.kafka.limits import ELEMENTS_MAX
from tests.hostile_shapes import MIB, NAME, SCALE, WIDE, Shapes, times
from tests.kafka_peer import batch, by_topic, metadata, new_topic, produce

TOPIC, ALL = NAME.decode(), WIDE.decode()
LAST_OFFSET = (1 << 63) - 1
FIRST = {"index": 0, "offset": 1, "max_bytes": 1}
MANY = 50_000
"""Partitions, names or members in one request."""


def ask(key: Key, body: dict[str, Any], version: int | None = None) -> bytes:
    return bytes(encode_request(Head(key, APIS[key].last if version is None else version, 1), "hostile", body))


def wide(count: int, **fields: Any) -> dict[str, Any]:
    """So many partitions of `WIDE`, which begin anew when there are no more."""
    return by_topic(ALL, [{"index": number % 65_535, **fields} for number in range(count)])


def names(count: int, first: str = "nobody") -> list[str]:
    return [f"{first}-{number}" for number in range(count)]


def unknown(count: int, **fields: Any) -> dict[str, Any]:
    """A partition each of topics that are not there."""
    return {"topics": [{"name": name, "partitions": [{"index": 0, **fields}]} for name in names(count)]}


def published(body: dict[str, Any], acks: int = -1) -> bytes:
    return ask(Key.PRODUCE, body | {"acks": acks, "timeout_ms": 1000})


def fetched(body: dict[str, Any], wait_ms: int = 0) -> bytes:
    return ask(Key.FETCH, body | {"wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 50 << 20, "isolation": 0})


def of_group(group: str = "hostile", **more: Any) -> dict[str, Any]:
    return {"group": group, "generation": -1, "member": "", "instance": None} | more


def joining(protocols: Iterable[dict[str, Any]], **more: Any) -> bytes:
    usual = {"session_ms": 10_000, "rebalance_ms": 10_000, "protocol_type": "consumer", "protocols": list(protocols)}
    return ask(Key.JOIN_GROUP, of_group(**usual) | more)


def configured(count: int, name: str) -> bytes:
    configs = [{"name": name, "operation": 0, "value": "3600000"}]
    resources = [{"type": 2, "name": TOPIC, "configs": configs} for _ in range(count)]
    return ask(Key.INCREMENTAL_ALTER_CONFIGS, {"resources": resources, "validate_only": False})


PUBLISHING: Shapes = {
    "PRODUCE": {
        "small ones": times(2000 * SCALE, lambda n: published(produce(TOPIC, batch(b"x")))),
        "small ones without answers": times(2000 * SCALE, lambda n: published(produce(TOPIC, batch(b"x")), 0)),
        "many partitions of nothing": lambda: published(wide(MANY, records=b"")),
        "many partitions": lambda: published(wide(1000 * SCALE, records=batch(b"x"))),
        "one partition again and again": lambda: published(
            by_topic(TOPIC, [{"index": 0, "records": batch(b"x")}] * 20_000)
        ),
        "unknown topics": lambda: published(unknown(30_000, records=b"")),
        "very many records": lambda: published(produce(TOPIC, batch(*[b""] * 50_000))),
        "largest": lambda: published(produce(TOPIC, batch(bytes(2 * MIB)))),
    },
    "INIT_PRODUCER_ID": {
        "very many": times(
            3000 * SCALE, lambda n: ask(Key.INIT_PRODUCER_ID, {"transactional_id": None, "timeout_ms": 1})
        )
    },
}

READING: Shapes = {
    "FETCH": {
        "small ones": times(2000 * SCALE, lambda n: fetched(by_topic(TOPIC, [FIRST]))),
        "many partitions": lambda: fetched(wide(20_000, offset=0, max_bytes=1)),
        "many partitions, to wait": lambda: fetched(wide(3000 * SCALE, offset=1, max_bytes=MIB), 50),
        "one partition again and again": lambda: fetched(
            by_topic(TOPIC, [{"index": 0, "offset": 1, "max_bytes": MIB}] * MANY)
        ),
        "unknown topics": lambda: fetched(unknown(40_000, offset=1, max_bytes=1)),
    },
    "LIST_OFFSETS": {
        "many partitions": lambda: ask(Key.LIST_OFFSETS, wide(MANY, timestamp_ms=-1)),
        "by time": lambda: ask(Key.LIST_OFFSETS, by_topic(TOPIC, [{"index": 0, "timestamp_ms": LAST_OFFSET}] * 5000)),
        "highest time": lambda: ask(Key.LIST_OFFSETS, by_topic(TOPIC, [{"index": 0, "timestamp_ms": -3}] * 5000)),
        "unknown topics": lambda: ask(Key.LIST_OFFSETS, unknown(40_000, timestamp_ms=-1)),
    },
    "METADATA": {
        "all topics": times(3 * SCALE, lambda n: ask(Key.METADATA, {"topics": None})),
        "one again and again": lambda: ask(Key.METADATA, metadata(*[TOPIC] * 90_000)),
        "nothing but names that are null": lambda: ask(
            Key.METADATA, {"topics": [{"name": None}] * 30_000, "auto_create": False}, 8
        ),
        "65,535 partitions": lambda: ask(Key.METADATA, metadata(*[ALL] * 10)),
        "new topics": lambda: ask(Key.METADATA, metadata(*names(300 * SCALE, "kafka"))),
        "longest names": lambda: ask(Key.METADATA, metadata(*(f"{n:05}" + "x" * 30_000 for n in range(100)))),
    },
}

GROUPS: Shapes = {
    "OFFSET_COMMIT": {
        "many partitions": lambda: ask(Key.OFFSET_COMMIT, of_group() | wide(MANY, offset=1, metadata=None)),
        "small ones": times(
            1000 * SCALE,
            lambda n: ask(Key.OFFSET_COMMIT, of_group() | by_topic(TOPIC, [{"index": 0, "offset": n, "metadata": ""}])),
        ),
        "long texts": lambda: ask(Key.OFFSET_COMMIT, of_group("long") | wide(900, offset=1, metadata="x" * 4096)),
        "unknown topics": lambda: ask(Key.OFFSET_COMMIT, of_group() | unknown(30_000, offset=1, metadata=None)),
    },
    "OFFSET_FETCH": {
        "many partitions": lambda: ask(
            Key.OFFSET_FETCH, {"group": "hostile", "topics": [{"name": ALL, "partitions": [*range(MANY)]}]}
        ),
        "all there is": times(2, lambda n: ask(Key.OFFSET_FETCH, {"group": "hostile", "topics": None})),
        "unknown topics": lambda: ask(
            Key.OFFSET_FETCH, {"group": "", "topics": [{"name": name, "partitions": [0]} for name in names(40_000)]}
        ),
    },
    "FIND_COORDINATOR": {
        "very many": times(3000 * SCALE, lambda n: ask(Key.FIND_COORDINATOR, {"key": f"g{n}", "kind": 0}))
    },
    "JOIN_GROUP": {
        "ids for nobody": times(1000 * SCALE, lambda n: joining([{"name": "range", "metadata": b""}])),
        "new groups": times(1000 * SCALE, lambda n: joining([{"name": "x", "metadata": b""}], group=f"new-{n}")),
        "many protocols": lambda: joining({"name": name, "metadata": b""} for name in names(MANY)),
        "longest": lambda: joining([{"name": "range", "metadata": bytes(3 * MIB)}], member="x" * 30_000),
    },
    "SYNC_GROUP": {
        "many members": lambda: ask(
            Key.SYNC_GROUP, of_group(assignments=[{"member": name, "assignment": b""} for name in names(MANY)])
        ),
        "small ones": times(3000 * SCALE, lambda n: ask(Key.SYNC_GROUP, of_group(assignments=()))),
    },
    "HEARTBEAT": {"very many": times(3000 * SCALE, lambda n: ask(Key.HEARTBEAT, of_group()))},
    "LEAVE_GROUP": {
        "many members": lambda: ask(
            Key.LEAVE_GROUP, of_group(members=[{"member": name, "instance": name} for name in names(MANY)])
        ),
        "small ones": times(2000 * SCALE, lambda n: ask(Key.LEAVE_GROUP, of_group(members=()))),
    },
    "LIST_GROUPS": {
        "very many": times(20 * SCALE, lambda n: ask(Key.LIST_GROUPS, {"states": ()})),
        "many states": lambda: ask(Key.LIST_GROUPS, {"states": names(90_000)}),
    },
    "DESCRIBE_GROUPS": {
        "unknown ones": lambda: ask(Key.DESCRIBE_GROUPS, {"groups": names(90_000)}),
        "one again and again": lambda: ask(Key.DESCRIBE_GROUPS, {"groups": ["hostile"] * (100 * SCALE)}),
    },
    "DELETE_GROUPS": {
        "unknown ones": lambda: ask(Key.DELETE_GROUPS, {"groups": names(90_000)}),
        "one with very many offsets": lambda: ask(Key.DELETE_GROUPS, {"groups": ["hostile"]}),
    },
}

ADMINISTRATION: Shapes = {
    "API_VERSIONS": {"very many": times(3000 * SCALE, lambda n: ask(Key.API_VERSIONS, {}))},
    "SASL_HANDSHAKE": {"again and again": times(1000, lambda n: ask(Key.SASL_HANDSHAKE, {"mechanism": "PLAIN"}))},
    "SASL_AUTHENTICATE": {"longest": lambda: ask(Key.SASL_AUTHENTICATE, {"token": bytes(4 * MIB - 100)})},
    "CREATE_TOPICS": {
        "new ones": lambda: ask(
            Key.CREATE_TOPICS, _together(*(new_topic(name) for name in names(300 * SCALE, "created")))
        ),
        "one again and again": times(100, lambda n: ask(Key.CREATE_TOPICS, new_topic(TOPIC, 65_535))),
        "no names": lambda: ask(Key.CREATE_TOPICS, _together(*(new_topic("/") for _ in range(MANY)))),
        "many configurations": lambda: ask(
            Key.CREATE_TOPICS, new_topic("configured", 1, **{f"c{n}": "1" for n in range(90_000)})
        ),
        "known configurations": lambda: ask(
            Key.CREATE_TOPICS, _together(*(new_topic(f"no {n}", 1, retention_ms="1") for n in range(20_000)))
        ),
        "many assignments": lambda: ask(Key.CREATE_TOPICS, _assigned(40_000)),
    },
    "DELETE_TOPICS": {
        "unknown ones": lambda: ask(Key.DELETE_TOPICS, {"names": names(90_000), "timeout_ms": 1}),
    },
    "DELETE_RECORDS": {
        "many partitions": lambda: ask(Key.DELETE_RECORDS, wide(20_000, offset=-1) | {"timeout_ms": 1}),
        "one again and again": lambda: ask(
            Key.DELETE_RECORDS, by_topic(TOPIC, [{"index": 0, "offset": 1}] * 20_000, timeout_ms=1)
        ),
    },
    "CREATE_PARTITIONS": {
        "one again and again": lambda: ask(
            Key.CREATE_PARTITIONS,
            {
                "topics": [{"name": TOPIC, "partitions": 9, "assignments": None}] * MANY,
                "timeout_ms": 1,
                "validate_only": False,
            },
        )
    },
    "DESCRIBE_CONFIGS": {
        "one again and again": lambda: ask(Key.DESCRIBE_CONFIGS, _described(10_000, None)),
        "many names": lambda: ask(Key.DESCRIBE_CONFIGS, _described(1, names(90_000))),
    },
    "INCREMENTAL_ALTER_CONFIGS": {
        "one again and again": lambda: configured(300, "retention.ms"),
        "unknown ones": lambda: configured(20_000, "no.such.thing"),
    },
}


def _together(*bodies: dict[str, Any]) -> dict[str, Any]:
    return bodies[0] | {"topics": [body["topics"][0] for body in bodies]}


def _assigned(count: int) -> dict[str, Any]:
    body = new_topic("assigned")
    body["topics"][0]["assignments"] = [{"partition": number, "brokers": [1]} for number in range(count)]
    return body


def _described(count: int, wanted: list[str] | None) -> dict[str, Any]:
    return {"resources": [{"type": 2, "name": TOPIC, "names": wanted}] * count, "synonyms": True}


PRODUCER = {"transactional_id": "hostile", "producer": 1, "epoch": 0}

TRANSACTIONS: Shapes = {
    "ADD_PARTITIONS_TO_TXN": {
        "many partitions": lambda: ask(
            Key.ADD_PARTITIONS_TO_TXN, PRODUCER | {"topics": [{"name": ALL, "partitions": [*range(MANY)]}]}
        )
    },
    "ADD_OFFSETS_TO_TXN": {
        "very many": times(2000 * SCALE, lambda n: ask(Key.ADD_OFFSETS_TO_TXN, PRODUCER | {"group": f"g{n}"}))
    },
    "TXN_OFFSET_COMMIT": {
        "many partitions": lambda: ask(
            Key.TXN_OFFSET_COMMIT, PRODUCER | of_group() | wide(MANY, offset=1, leader_epoch=-1, metadata=None)
        )
    },
    "END_TXN": {"very many": times(2000 * SCALE, lambda n: ask(Key.END_TXN, PRODUCER | {"commit": True}))},
}

KAFKA: Shapes = {**TRANSACTIONS, **PUBLISHING, **READING, **GROUPS, **ADMINISTRATION}
assert ELEMENTS_MAX >= 2 * MANY - 1, "else these are refused unread"
