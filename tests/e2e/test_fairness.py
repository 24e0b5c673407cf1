"""Whatever one client sends, the others do not wait for it: no turn of the event loop does much work.

Beside each load a client of another protocol publishes one record at a time. That no turn of the loop took more than
`TURN_S` of CPU time is asserted by the server's own metric, whatever else the machine does; what the other client
waited is stated (``-s``), with larger loads when QUINTLOG_NIGHTLY=1.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from itertools import islice

import msgpack
import pytest
from cramjam import snappy

from engine.formats.bundle_encode import encode_bundle
from netserver.blipmq import codec, codec_v2
from netserver.figg import codec as figg
from netserver.tank import codec as tank
from netserver.tank import messages
from netserver.tank.wire import varint
from netserver.testing import ServerProcess, server
from tests.blipmq_peer import Peer
from tests.figg_peer import FiggPeer, publish_frame
from tests.prober import Prober, percentile
from tests.tank_peer import produce

NIGHTLY = bool(os.environ.get("QUINTLOG_NIGHTLY"))
SCALE = 5 if NIGHTLY else 1
TURN_S = 0.1
"""The aim is 0.02; the processor's caches are shared with whatever else runs. It has to be a bound of the histogram."""

pytestmark = pytest.mark.timeout(900 if NIGHTLY else 120)  # the last one removes 10,000 topics' files, too

QUIET_PROBES = 1000 if NIGHTLY else 50
Load = Callable[[ServerProcess], None]


def metrics(process: ServerProcess) -> dict[str, str]:
    """Each with its labels."""
    lines = (line.rpartition(" ") for line in process.admin("GET", "/metrics").splitlines())
    return {name: value for name, _, value in lines}


def slow_turns(process: ServerProcess) -> tuple[int, float]:
    """(turns above `TURN_S`, CPU seconds of the longest one) since the start."""
    found = metrics(process)
    name = "quintlog_loop_slow_turn_seconds"
    above = float(found[f"{name}_count"]) - float(found[f'{name}_bucket{{le="{TURN_S:.10g}"}}'])
    return int(above), float(found["quintlog_loop_turn_seconds_max"])


def http(process: ServerProcess, requests: list[bytes]) -> None:
    """Send requests on connections of their own, and wait for each answer."""
    for request in requests:
        with socket.create_connection(process.address("admin"), 60) as peer:
            peer.sendall(request)
            assert peer.recv(1 << 16).startswith(b"HTTP/1.")


class TankPeer:
    """A raw TANK connection that sends without reading, then reads answers."""

    def __init__(self, process: ServerProcess) -> None:
        self.socket = socket.create_connection(process.address("tank"), 120)
        self.file = self.socket.makefile("rb")
        self.answer()  # the Ping

    def __enter__(self) -> TankPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *requests: messages.Request | bytes) -> None:
        self.socket.sendall(b"".join(r if isinstance(r, bytes) else tank.encode_request(r) for r in requests))

    def answer(self) -> bytes:
        """Payload of the next frame."""
        head = self.file.read(5)
        assert len(head) == 5, "the server closed the connection"
        return self.file.read(int.from_bytes(head[1:], "little"))


# --- the loads


def flood_of_small_records(process: ServerProcess) -> None:
    with FiggPeer(process.address("figg"), 120) as peer:
        for _ in range(20 * SCALE):
            peer.send(b"flood", [b"x" * 100] * 5000)
        assert peer.wait_for_ack(peer.sent - 1)


def history_to_many_readers(process: ServerProcess) -> None:
    with FiggPeer(process.address("figg"), 120) as peer:
        peer.send(b"history", [b"x" * 1000] * 2000)
        assert peer.wait_for_ack(peer.sent - 1)
    for _ in range(5 * SCALE):
        with FiggPeer(process.address("figg"), 120) as peer:
            assert len(peer.read(b"history", 0, 2000)) == 2000


def packed_admin_bodies(process: ServerProcess) -> None:
    packed = zlib.compress(bytes(200 << 20), wbits=31)
    head = f"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}"
    http(process, [head.encode() + b"\r\n\r\n" + packed] * 2 * SCALE)


def admin_patterns(process: ServerProcess) -> None:
    request = "GET /metrics/topics?topic={} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    http(process, [request.format(f"{number}" + "*[ab]" * 1500).encode() for number in range(50 * SCALE)])
    http(process, [request.format(f"{number}" + "*[ab]" * 50).encode() for number in range(50 * SCALE)])


def held_admin_connections(process: ServerProcess) -> None:
    held = [socket.create_connection(process.address("admin"), 60) for _ in range(200)]
    http(process, [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"] * 20)
    for peer in held:
        peer.close()


def blipmq_patterns(process: ServerProcess) -> None:
    with Peer(process.address("blipmq"), version=2) as peer:
        peer.send(b"".join(codec.subscribe(1, b"a.b%d.c" % number, 1) for number in range(500 * SCALE)))
        peer.frames(500 * SCALE)
        long = b"*." * 32_760 + b">"
        peer.send(b"".join(codec_v2.subscribe(2, long, 0) for _ in range(10)))
        peer.send(b"".join(codec_v2.subscribe(2, b"*.x%d.*" % number, 0) for number in range(900)))
        peer.send(b"".join(codec.subscribe(3, b"n.x%d.c" % number, 1) for number in range(50)))
        peer.frames(10 + 900 + 50)


def very_many_small_frames_of_two_topics(process: ServerProcess) -> None:
    with Peer(process.address("blipmq")) as peer:
        peer.send((codec.publish(1, 1, b"left", b"") + codec.publish(1, 1, b"right", b"")) * 5000 * SCALE)
        assert peer.until_pong() == []


def many_new_topics(process: ServerProcess) -> None:
    with Peer(process.address("blipmq")) as peer:
        peer.send(b"".join(codec.publish(1, 1, b"new-%d" % number, b"x") for number in range(300 * SCALE)))
        assert peer.until_pong() == []


def many_new_topics_of_figg(process: ServerProcess) -> None:
    """Made by publishers and by readers."""
    count = 1500 * SCALE
    with FiggPeer(process.address("figg"), 120) as peer:
        peer.sent = count
        peer.socket.sendall(b"".join(figg.publish(b"figg-%d" % number, number, b"x") for number in range(count)))
        assert peer.wait_for_ack(count - 1)
    with FiggPeer(process.address("figg"), 120) as peer:
        peer.socket.sendall(b"".join(figg.attach(b"read-%d" % number, 0) for number in range(count)))
        assert sum(1 for _ in islice(peer.frames(), count)) == count


def empty_messages(count: int, *, packed: bool) -> bytes:
    """A Produce of one bundle of messages without a byte of content."""
    content = b"\0" + bytes(8) + b"\0" + b"\2\0" * (count - 1)
    if packed:
        content = bytes(snappy.compress_raw(content))
    part = messages.ProducePartition(0, bytes((packed,)) + varint(count) + content, 0)
    return tank.encode_request(messages.ProduceRequest(1, (messages.ProduceTopic(b"tank", (part,)),), False))


def millions_of_empty_messages(process: ServerProcess) -> None:
    with TankPeer(process) as peer:
        peer.send(messages.CreateTopicRequest(1, b"tank", 255, b""))
        peer.answer()
        for packed in (True, False):
            peer.send(empty_messages(1 << 20, packed=packed) * 3 * SCALE)
            for _ in range(3 * SCALE):
                peer.answer()
    with FiggPeer(process.address("figg"), 120) as reader:
        reader.attach(b"tank", 0)
        left = (2 << 20) * len(publish_frame(b"tank", 0, b""))
        while left > 0:
            data = reader.socket.recv(1 << 20)
            assert data, "the server closed the connection"
            left -= len(data)
    for packed in (True, False):
        with TankPeer(process) as peer:
            with contextlib.suppress(OSError):  # it is closed before all is sent
                peer.send(empty_messages(20_000_000, packed=packed))
            with pytest.raises((AssertionError, OSError)):
                peer.answer()


def requests_for_very_many_partitions(process: ServerProcess) -> None:
    one = tuple(messages.ConsumePartition(number, 0, 1) for number in range(255))
    last = tuple(messages.ConsumePartition(number, (1 << 64) - 1, 1) for number in range(255))
    bundle = encode_bundle([b"x"], None, [1])
    entries = tuple(messages.ProducePartition(number, bundle, 0) for number in range(255))
    topics = 50 * SCALE
    with TankPeer(process) as peer:
        peer.send(messages.ProduceRequest(1, (messages.ProduceTopic(b"tank", entries),) * topics, False))
        peer.send(messages.ConsumeRequest(2, (messages.ConsumeTopic(b"tank", one),) * topics, 0, 0))
        peer.send(messages.ConsumeRequest(3, (messages.ConsumeTopic(b"tank", last),) * topics, 200, 1))
        for _ in range(3):
            peer.answer()


def a_large_transaction(process: ServerProcess) -> None:
    rows = b"".join(msgpack.packb([b"sink", 0, None, b"x" * 20, None, None]) for _ in range(100_000 * SCALE))
    request = urllib.request.Request(
        process.admin_url + "/v1/staged", rows, {"Authorization": f"Bearer {process.token}"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        name = json.loads(answer.read())["name"]
    process.admin("POST", "/v1/commits", {"writer": "w", "batch": 1, "names": [name]})


def large_json_bodies(process: ServerProcess) -> None:
    head = f"POST /v1/topics/json/records HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {process.token}\r\n"
    allowed, many = b'{"value":""}' + b',{"value":""}' * 49_000, b"{}" + b",{}" * 9_000_000
    for content, status in ((allowed, b"200"), (many, b"413"), (b"[]" + b",[]" * 80_000, b"400")):
        body = b'{"records":[%b]}' % content
        request = b"%bContent-Length: %d\r\n\r\n%b" % (head.encode(), len(body), body)
        for _ in range(SCALE):
            with socket.create_connection(process.address("admin"), 60) as peer:
                peer.sendall(request)
                assert peer.recv(1 << 16).startswith(b"HTTP/1.1 " + status)


def questions_about_many_partitions(process: ServerProcess) -> None:
    with TankPeer(process) as peer:
        peer.send(messages.CreateTopicRequest(1, b"many-partitions", 65_535, b""))
        assert peer.answer()[-1] == messages.CreateCode.CREATED
        count = 20 * SCALE
        peer.send(*(messages.DiscoverPartitionsRequest(number, b"many-partitions", ()) for number in range(count)))
        for number in range(count):
            answer = peer.answer()
            assert int.from_bytes(answer[:4], "little") == number
            assert len(answer) > 65_535 * 16


def numbers_left_out(process: ServerProcess) -> None:
    """Each record 2^32 behind the one before; then a reader from the start."""
    with TankPeer(process) as peer:
        peer.send(messages.CreateTopicRequest(1, b"gaps", 1, b""))
        assert peer.answer()[-1] == messages.CreateCode.CREATED
        for number in range(1, 31 * SCALE):
            bundle = encode_bundle([b"x"], None, [time.time_ns() // 1_000_000], sparse_seqs=[number << 32])
            peer.send(produce(number, b"gaps", bundle))
            peer.answer()
    with Peer(process.address("blipmq"), version=2) as reader:
        reader.send(codec_v2.subscribe(5, b"gaps", 0, offset=0))
        with reader.socket.makefile("rb") as file:
            for _ in range(31 * SCALE):  # the answer, and each record
                assert file.read(int.from_bytes(file.read(4), "big"))


def very_many_expired_records(process: ServerProcess) -> None:
    """Each is looked at by whoever polls, and given to nobody."""
    bundle = encode_bundle([b""] * 100_000, None, [1] * 100_000)
    with TankPeer(process) as peer:
        peer.send(messages.CreateTopicRequest(1, b"expired", 1, b""))
        assert peer.answer()[-1] == messages.CreateCode.CREATED
        with Peer(process.address("blipmq")) as reader, Peer(process.address("blipmq"), version=2) as pushed:
            subscription = reader.subscribe(b"expired")
            for number in range(2 * SCALE):
                part = messages.ProducePartition(0, bundle, 0)
                peer.send(messages.ProduceRequest(number, (messages.ProduceTopic(b"expired", (part,)),), False))
                peer.answer()
            reader.publish(b"expired", b"fresh")
            pushed.send(codec_v2.subscribe(5, b"expired", 0, offset=0))
            reader.socket.settimeout(120)
            found: list[tuple[int, bytes]] = []
            while not found:
                found = reader.poll(subscription, 100)
            assert [body for _, body in found] == [b"fresh"]
            pushed.socket.settimeout(120)
            with pushed.socket.makefile("rb") as file:
                frames = [file.read(int.from_bytes(file.read(4), "big")) for _ in range(2)]  # the answer, and a record
            assert b"fresh" in frames[1]


def lists_of_thousands_of_topics(process: ServerProcess) -> None:
    count = 10_000 if NIGHTLY else 500
    with Peer(process.address("blipmq")) as peer:
        peer.send(b"".join(codec.publish(1, 1, b"listed-%d" % number, b"x") for number in range(count)))
        peer.socket.settimeout(120)
        assert peer.until_pong() == []
    for path in ("/v1/topics", "/v1/topics?name=listed-1*", "/metrics", "/metrics/topics"):
        assert process.admin("GET", path)
    with TankPeer(process) as tank_peer:
        tank_peer.send(*(messages.DiscoverTopicsRequest(number) for number in range(20)))
        for _ in range(20):
            assert len(tank_peer.answer()) > count


LOADS: list[tuple[Load, str]] = [
    (blipmq_patterns, "figg"),
    (very_many_small_frames_of_two_topics, "figg"),
    (many_new_topics, "figg"),
    (many_new_topics_of_figg, "blipmq"),
    (millions_of_empty_messages, "blipmq"),
    (requests_for_very_many_partitions, "blipmq"),
    (a_large_transaction, "blipmq"),
    (flood_of_small_records, "blipmq"),
    (history_to_many_readers, "blipmq"),
    (packed_admin_bodies, "figg"),
    (admin_patterns, "figg"),
    (large_json_bodies, "figg"),
    (held_admin_connections, "figg"),
    (questions_about_many_partitions, "figg"),
    (numbers_left_out, "figg"),
    (very_many_expired_records, "figg"),
    (lists_of_thousands_of_topics, "figg"),
]
"""Each load, and the protocol of the client beside it."""


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    """One server for all loads: what one leaves behind must not slow the next."""
    with server(settings={"blipmq": {"message_ttl": "1h"}}) as started:
        yield started


@pytest.mark.parametrize(("load", "protocol"), LOADS, ids=[load.__name__ for load, _ in LOADS])
def test_nobody_waits_for_what_another_client_sends(process: ServerProcess, load: Load, protocol: str) -> None:
    before, _ = slow_turns(process)
    with Prober(protocol, process.address(protocol)) as prober:
        quiet = prober.take(QUIET_PROBES)
        load(process)
        beside = prober.take(10)
    above, longest_s = slow_turns(process)
    print(
        f"\n{load.__name__}: p99 {percentile(quiet, 0.99):.1f} ms quiet, {percentile(beside, 0.99):.1f} ms beside it "
        f"({len(beside)} probes, longest {beside[-1]:.1f}); longest turn so far {longest_s * 1e3:.0f} ms of CPU time"
    )
    assert above == before, process.log_text[-2000:]


def test_the_interpreter_never_looks_at_all_objects(process: ServerProcess) -> None:
    """Behind all loads, which have made tens of thousands of topics by night."""
    found = metrics(process)
    longest_s = float(found["quintlog_collection_seconds_max"])
    print(f"\nlongest look for circles {longest_s * 1e3:.1f} ms of CPU time")
    assert found["quintlog_full_collections_total"] == "0.0"
    assert 0 < longest_s < TURN_S
