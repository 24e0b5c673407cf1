"""Each request of each protocol in the shapes that cost most: as many as fit, as long and deep as allowed, pipelined.

``SHAPES[protocol][request][name]`` makes bytes for a connection that has logged in; `tests.e2e.test_hostile_requests`
sends them. The requests are named as the codecs name them, so that a new one has to be put here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable

from cramjam import snappy

from engine.formats.bundle_encode import encode_bundle
from netserver.blipmq import codec as blipmq
from netserver.blipmq import codec_v2
from netserver.figg import codec as figg
from netserver.fujin import codec as fujin
from netserver.reliably import codec as reliably
from netserver.tank import codec as tank
from netserver.tank import messages
from netserver.tank.wire import varint

SCALE = int(os.environ.get("QUINTLOG_HOSTILE_SCALE", "1"))
Shapes = dict[str, dict[str, Callable[[], bytes]]]

NAME = b"hostile"
"""A topic that is there, with a thousand records."""
WIDE = b"hostile-wide"
"""One with 65,535 partitions."""
LAST_SEQ = (1 << 64) - 1
MIB = 1 << 20
LARGE = 2 * MIB
"""A record: whoever is sent a larger one costs its copies, some milliseconds for each 4 MiB."""


def times(count: int, make: Callable[[int], bytes]) -> Callable[[], bytes]:
    """So many of them back to back."""
    return lambda: b"".join(map(make, range(count)))


FIGG: Shapes = {
    "ATTACH": {
        "new topics": times(300 * SCALE, lambda n: figg.attach(b"attach-%d" % n, 0)),
        "one again and again": times(3000 * SCALE, lambda n: figg.attach(NAME, 0)),
        "longest names": times(300, lambda n: figg.attach(b"%04d" % n + b"x" * 1020, None)),
    },
    "DETACH": {
        "very many": times(50_000 * SCALE, lambda n: figg.detach(b"nobody-%d" % n)),
        "longest names": times(1000, lambda n: figg.detach(b"x" * 1024)),
    },
    "PUBLISH": {
        "two topics by turns": times(20_000 * SCALE, lambda n: figg.publish((b"left", b"right")[n & 1], n, b"")),
        "new topics": times(300 * SCALE, lambda n: figg.publish(b"publish-%d" % n, n, b"x")),
        "largest": times(2, lambda n: figg.publish(NAME, n, bytes(LARGE))),
        "empty ones": times(100_000 * SCALE, lambda n: figg.publish(NAME, n, b"")),
    },
    "PING": {"very many": times(100_000 * SCALE, figg.ping)},
}

BLIPMQ_SUBSCRIPTION = 1
"""Number of a subscription that may be there or not."""

BLIPMQ: Shapes = {
    "HELLO": {"again and again": times(30_000 * SCALE, blipmq.hello)},
    "AUTH": {
        "again and again": times(30_000 * SCALE, lambda n: blipmq.auth(n, "k" * 20)),
        "longest": times(100, lambda n: blipmq.auth(n, "k" * 65_535)),
    },
    "PUBLISH": {
        "two topics by turns": times(20_000 * SCALE, lambda n: blipmq.publish(n, 1, (b"left", b"right")[n & 1], b"")),
        "new topics": times(300 * SCALE, lambda n: blipmq.publish(n, 1, b"blipmq-%d" % n, b"x")),
        "longest names": times(200, lambda n: blipmq.publish(n, 1, b"%03d" % n + b"x" * 65_532, b"")),
        "largest": times(2, lambda n: blipmq.publish(n, 1, NAME, bytes(LARGE))),
        "empty ones": times(100_000 * SCALE, lambda n: blipmq.publish(n, n & 1, NAME, b"")),
    },
    "SUBSCRIBE": {
        "new topics": times(300 * SCALE, lambda n: blipmq.subscribe(n, b"subscribe-%d" % n, 1)),
        "one again and again": times(2000 * SCALE, lambda n: blipmq.subscribe(n, NAME, 1)),
        "longest names": times(100, lambda n: blipmq.subscribe(n, b"%03d" % n + b"x" * 65_532, 1)),
    },
    "ACK": {
        "unknown subscriptions": times(30_000 * SCALE, lambda n: blipmq.ack(n, n + 1000)),
        "unknown tags": times(30_000 * SCALE, lambda n: blipmq.ack(2 * n, BLIPMQ_SUBSCRIPTION)),
    },
    "PING": {
        "very many": times(50_000 * SCALE, blipmq.ping),
        "behind publishes": times(5000 * SCALE, lambda n: blipmq.publish(n, 1, NAME, b"") + blipmq.ping(n)),
    },
    "POLL": {
        "unknown subscriptions": times(50_000 * SCALE, lambda n: blipmq.poll(n, n + 1000)),
        "one subscription": times(50_000 * SCALE, lambda n: blipmq.poll(n, BLIPMQ_SUBSCRIPTION)),
        "by turns with ACK": times(
            10_000 * SCALE, lambda n: blipmq.poll(n, BLIPMQ_SUBSCRIPTION) + blipmq.ack(n, BLIPMQ_SUBSCRIPTION)
        ),
    },
}

BLIPMQ_V2: Shapes = {
    **{name: BLIPMQ[name] for name in ("HELLO", "AUTH", "ACK", "PING", "POLL")},
    "PUBLISH": {
        **BLIPMQ["PUBLISH"],
        "with keys": times(5000 * SCALE, lambda n: codec_v2.publish(n, 1, NAME, b"x", key=b"%d" % n)),
        "with times to live": times(5000 * SCALE, lambda n: codec_v2.publish(n, 1, NAME, b"x", ttl_ms=n + 1)),
    },
    "SUBSCRIBE": {
        "new topics": times(300 * SCALE, lambda n: codec_v2.subscribe(n, b"v2-%d" % n, 1)),
        "one again and again, from the start": times(1000, lambda n: codec_v2.subscribe(n, NAME, 0, offset=0)),
        "groups": times(300 * SCALE, lambda n: codec_v2.subscribe(n, NAME, 1, b"group-%d" % n)),
        "patterns": times(900, lambda n: codec_v2.subscribe(n, b"*.x%d.*" % n, 0)),
        "everything": times(5, lambda n: codec_v2.subscribe(n, b">", 0)),
        "longest patterns": times(20, lambda n: codec_v2.subscribe(n, b"*." * 32_760 + b">", 0)),
    },
}


def produce(
    topics: Iterable[tuple[bytes, Iterable[int]]], bundle: bytes, request_id: int = 1, base_seq: int | None = None
) -> bytes:
    """One bundle for each partition of each topic."""
    entries = tuple(
        messages.ProduceTopic(name, tuple(messages.ProducePartition(index, bundle, base_seq or 0) for index in indexes))
        for name, indexes in topics
    )
    return tank.encode_request(messages.ProduceRequest(request_id, entries, base_seq is not None))


def consume(
    topics: Iterable[tuple[bytes, Iterable[int]]], seq: int, max_wait_ms: int = 0, request_id: int = 1
) -> bytes:
    """From a number on, of each partition of each topic."""
    entries = tuple(
        messages.ConsumeTopic(name, tuple(messages.ConsumePartition(index, seq, 1) for index in indexes))
        for name, indexes in topics
    )
    return tank.encode_request(messages.ConsumeRequest(request_id, entries, max_wait_ms, 1 if max_wait_ms else 0))


def of_wide(count: int) -> list[tuple[bytes, range]]:
    """The first partitions of `WIDE`, as entries of topics."""
    return [(WIDE, range(start, min(start + 250, count))) for start in range(0, count, 250)]


def empty_messages(count: int, *, packed: bool) -> bytes:
    """A bundle of messages without a byte of content."""
    content = b"\0" + bytes(8) + b"\0" + b"\2\0" * (count - 1)
    return bytes((packed,)) + varint(count) + (bytes(snappy.compress_raw(content)) if packed else content)


ONE = encode_bundle([b"x"], None, [1])


def request(made: messages.Request) -> bytes:
    return tank.encode_request(made)


TANK: Shapes = {
    "PRODUCE": {
        "65,025 bundles": lambda: produce([(NAME, [0] * 255)] * 255, ONE),
        "unknown topics": lambda: produce([(b"nobody-%d" % n, [0] * 255) for n in range(255)], ONE),
        "new partitions": lambda: produce(of_wide(500 * SCALE), ONE),
        "a million empty messages": lambda: produce([(NAME, [0])], empty_messages(MIB, packed=True)) * SCALE,
        "small ones": times(2000 * SCALE, lambda n: produce([(NAME, [0]), (WIDE, [1])], ONE, n)),
    },
    "PRODUCE_WITH_SEQ": {
        "wrong numbers": lambda: produce([(NAME, [0] * 255)] * 50, ONE, base_seq=5),
        "small ones": times(2000 * SCALE, lambda n: produce([(NAME, [0])], ONE, n, base_seq=(n + 1) << 20)),
    },
    "CONSUME": {
        "unknown topics": lambda: consume([(b"nobody-%d" % n, range(255)) for n in range(255)], 0),
        "one partition 65,025 times": lambda: consume([(NAME, [0] * 255)] * 255, 0),
        "many partitions": lambda: consume(of_wide(3000 * SCALE), 0),
        "many partitions, to wait": lambda: consume(of_wide(3000 * SCALE), LAST_SEQ, 100),
        "small ones": times(2000 * SCALE, lambda n: consume([(NAME, [0])], 1, 0, n)),
        "small ones, to wait": times(1000, lambda n: consume([(NAME, [0])], LAST_SEQ, 50, n)),
    },
    "PING": {"very many": times(100_000 * SCALE, lambda n: request(messages.Ping()))},
    "DISCOVER_PARTITIONS": {
        "65,535": times(3 * SCALE, lambda n: request(messages.DiscoverPartitionsRequest(n, WIDE, ()))),
        "named ones": lambda: request(messages.DiscoverPartitionsRequest(1, WIDE, tuple(range(65_535)))),
        "small ones": times(3000 * SCALE, lambda n: request(messages.DiscoverPartitionsRequest(n, NAME, (0,)))),
    },
    "CREATE_TOPIC": {
        "new ones": times(300 * SCALE, lambda n: request(messages.CreateTopicRequest(n, b"tank-%d" % n, 1, b""))),
        "one again and again": times(5000, lambda n: request(messages.CreateTopicRequest(n, NAME, 65_535, b""))),
        "longest settings": times(
            50, lambda n: request(messages.CreateTopicRequest(n, b"no-%d" % n, 1, b"retention.ms=1\n" * 4000))
        ),
    },
    "RELOAD_CONF": {"very many": times(20_000 * SCALE, lambda n: request(messages.ReloadConfRequest(n, NAME, 0)))},
    "STATUS": {"very many": times(10_000 * SCALE, lambda n: request(messages.StatusRequest(n)))},
    "DISCOVER_TOPICS": {"many": times(500 * SCALE, lambda n: request(messages.DiscoverTopicsRequest(n)))},
    "DISCOVER_TOPOLOGY": {
        "very many": times(20_000 * SCALE, lambda n: request(messages.DiscoverTopologyRequest(n))),
    },
}


def line(document: object) -> bytes:
    return json.dumps(document).encode() + b"\n"


RELIABLY: Shapes = {
    "StatelessRequest": {
        "very many": times(20_000 * SCALE, lambda n: reliably.stateless_request(None)),
        "a number of a million digits": lambda: reliably.stateless_request("9" * 1_000_000),
    },
    "StartRequest": {
        "one after the other": times(500 * SCALE, lambda n: reliably.start_request(f"u{n}", {"count": 65_535})),
        "one again and again": times(1000 * SCALE, lambda n: reliably.start_request("u", {"count": 65_535})),
        "of a topic": times(1000, lambda n: reliably.start_request("t", {"topic": NAME.decode()})),
        "longest line": lambda: line({"uuid": "u" * 255, "params": {"count": 1}, "more": "x" * 65_000}),
        "deepest": lambda: b'{"uuid":"u","params":' + b"[" * 60_000 + b"\n",
        "largest number": lambda: b'{"uuid":"u","params":{"count":' + b"9" * 60_000 + b"}}\n",
    },
    "ResumeRequest": {"unknown": times(10_000, lambda n: reliably.resume_request(f"nobody-{n}", 1))},
    "AckRequest": {
        "of a session": lambda: (
            reliably.start_request("a", {"count": 100})
            + times(20_000 * SCALE, lambda n: reliably.ack_request("a", 0))()
        ),
        "very long": times(20, lambda n: line({"uuid": "a", "ack": 1, "x": "y" * 65_000})),
    },
}


def strings(count: int, size: int) -> tuple[bytes, ...]:
    return tuple(b"%0*d" % (size, n) for n in range(count))


FUJIN: Shapes = {
    "CONNECT_WRITER": {"longest id": lambda: fujin.connect_writer(b"x" * 70_000)},
    "CONNECT_READER": {
        "longest name": lambda: fujin.connect_reader(fujin.PUSH, False, b"x" * 70_000),
        "all there is": lambda: fujin.connect_reader(fujin.PUSH, True, NAME),
    },
    "WRITE": {
        "small ones": times(20_000 * SCALE, lambda n: fujin.write(n, NAME, b"")),
        "two topics by turns": times(5000 * SCALE, lambda n: fujin.write(n, (b"left", b"right")[n & 1], b"")),
        "new topics": times(300 * SCALE, lambda n: fujin.write(n, b"fujin-%d" % n, b"x")),
        "largest": lambda: fujin.write(1, NAME, bytes(MIB)),
    },
    "BEGIN": {"very many": times(20_000 * SCALE, lambda n: fujin.tx(fujin.Op.BEGIN, n))},
    "COMMIT": {
        "empty": times(2000, lambda n: fujin.tx(fujin.Op.BEGIN, n) + fujin.tx(fujin.Op.COMMIT, n)),
        "of many": lambda: (
            fujin.tx(fujin.Op.BEGIN, 1)
            + times(10_000 * SCALE, lambda n: fujin.write(n, NAME, b"x"))()
            + fujin.tx(fujin.Op.COMMIT, 2)
        ),
    },
    "ROLLBACK": {
        "very many": times(20_000 * SCALE, lambda n: fujin.tx(fujin.Op.ROLLBACK, n)),
        "of many": lambda: (
            fujin.tx(fujin.Op.BEGIN, 1)
            + times(10_000 * SCALE, lambda n: fujin.write(n, NAME, b"x"))()
            + fujin.tx(fujin.Op.ROLLBACK, 2)
        ),
    },
    "FETCH": {
        "most": times(20, lambda n: fujin.fetch(n, (1 << 32) - 1)),
        "one each": times(5000, lambda n: fujin.fetch(n, 1)),
    },
    "ACK": {
        "unknown ids": times(3, lambda n: fujin.ack(fujin.Op.ACK, n, strings(10_000, 12))),
        "every second": lambda: fujin.ack(fujin.Op.ACK, 1, [fujin.message_id(0, n) for n in range(1, 20_000, 2)]),
        "one each": times(5000, lambda n: fujin.ack(fujin.Op.ACK, n, [fujin.message_id(0, n + 1)])),
    },
    "NACK": {
        "unknown ids": times(3, lambda n: fujin.ack(fujin.Op.NACK, n, strings(10_000, 12))),
        "every second": lambda: fujin.ack(fujin.Op.NACK, 1, [fujin.message_id(0, n) for n in range(1, 20_000, 2)]),
        "one each": times(5000, lambda n: fujin.ack(fujin.Op.NACK, n, [fujin.message_id(0, n + 1)])),
    },
    "DISCONNECT": {"at once": lambda: b""},
}

DEEP = b'{"x": ' + b"[" * 90_000 + b"]" * 90_000 + b"}"
SMALL_VALUES = b'{"x": [1' + b",1" * 100_000 + b"]}"
"""Just below what is decoded in the event loop."""


def http(method: str, path: str, body: bytes = b"", token: str = "TOKEN") -> bytes:
    """A request; TOKEN is replaced."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


def admin(rows: Iterable[tuple[str, str]]) -> Shapes:
    """Of each route: pipelined, with long names, and with bodies that cost most to read."""
    shapes: Shapes = {}
    for method, path in rows:
        known = path.replace("/topics/NAME", f"/topics/{NAME.decode()}")
        made: dict[str, Callable[[], bytes]] = {}
        if method == "GET":
            made["pipelined"] = times(50 * SCALE, lambda n, at=known: http("GET", at))  # type: ignore[misc]
        else:
            made["deep"] = times(10, lambda n, how=method, at=known: http(how, at, DEEP))  # type: ignore[misc]
            made["small values"] = times(10, lambda n, how=method, at=known: http(how, at, SMALL_VALUES))  # type: ignore[misc]
        if path != known or path.rpartition("/")[2].isupper():
            long = path.replace("NAME", "%41" * 2000).replace("UUID", "u" * 6000).replace("ID", "1" * 6000)
            made["long name"] = times(50, lambda n, how=method, at=long: http(how, at))  # type: ignore[misc]
        shapes[f"{method} {path}"] = made
    shapes["GET /metrics/topics"]["patterns"] = times(
        50, lambda n: http("GET", f"/metrics/topics?topic={n}" + "*[ab]" * 50)
    )
    return shapes
