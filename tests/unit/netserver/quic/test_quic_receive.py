"""The short way of usual packets: what comes out is what aioquic makes of them."""

from __future__ import annotations

import dataclasses
import gc
import random
import weakref
from typing import Any

import pytest
from aioquic import tls
from aioquic.quic import events
from aioquic.quic.connection import QuicConnection
from aioquic.quic.recovery import MAX_ACK_RANGES

from netserver.quic.bounded import BoundedQuic, PacketDropped, QuicConfiguration
from netserver.quic.certificates import own_certificate
from netserver.quic.receive import QuickReceiving
from tests.fujin_peer import client_configuration
from tests.quic_attacker import number, reset_frame, stream_frame

HERE, THERE, ELSEWHERE = ("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)
FIRST_NUMBER = 100
HISTORIES = 60
STEPS = 150
WINDOW_BYTES = 40_000
FIXED, SPIN, RESERVED, PHASE = 0x40, 0x20, 0x08, 0x04
PING, PADDING, ACK = b"\x01", b"\0", b"\x02\0\0\0\0"


class LongWay(BoundedQuic):
    """The server's connection, with every packet left to aioquic."""

    def _look_whether_usual(self) -> None:
        return


class Pair:
    """A server's connection and the client that has completed a handshake with it, without a network.

    Packets are made by hand then, so that two pairs can be given the same ones.
    """

    def __init__(self, kind: type[BoundedQuic], configuration: QuicConfiguration) -> None:
        self.now = 1.0
        self.number = FIRST_NUMBER
        self.events: list[dict[str, Any]] = []
        client = self.client = QuicConnection(configuration=client_configuration())
        client.connect(THERE, now=self.now)
        ((data, _),) = client.datagrams_to_send(now=self.now)
        self.server = kind(configuration, 16, original_destination_connection_id=data[6 : 6 + data[5]])
        self.server.receive_datagram(data, HERE, self.now)
        client.send_stream_data(0, b"0")
        for _ in range(4):
            for data, _ in self.server.datagrams_to_send(now=self.now):
                client.receive_datagram(data, THERE, now=self.now)
            self.now += 0.01
            for data, _ in client.datagrams_to_send(now=self.now):
                self.server.receive_datagram(data, HERE, self.now)
        assert client._handshake_confirmed
        self.take_events()
        self.events.clear()

    def packet(self, frames: bytes, gap: int = 0, bits: int = 0, size: int = 2, to: int = 0) -> bytes:
        """A packet whose number is ``gap`` behind the one that would come next, to one of the connection's ids."""
        self.number += 1
        which = self.number - gap
        crypto = self.client._cryptos[tls.Epoch.ONE_RTT]
        head = bytes([FIXED | bits | crypto.key_phase << 2 | size - 1]) + self.server._host_cids[to].cid
        shown = (which & (1 << 8 * size) - 1).to_bytes(size, "big")
        return crypto.encrypt_packet(head + shown, frames.ljust(5 - size, PADDING), which)

    def receive(self, data: bytes, address: tuple[str, int] = HERE) -> None:
        try:
            self.server.receive_datagram(data, address, self.now)
        except PacketDropped:
            self.events.append({"dropped": True})
        self.take_events()

    def take_events(self) -> None:
        while (event := self.server.next_event()) is not None:
            if not isinstance(event, events.ConnectionIdIssued | events.ConnectionIdRetired):
                self.events.append({"kind": type(event).__name__, **dataclasses.asdict(event)})

    def state(self) -> dict[str, Any]:
        """What packets leave behind."""
        server = self.server
        space = server._spaces[tls.Epoch.ONE_RTT]
        return {
            "events": self.events,
            "streams": {
                one.stream_id: (
                    one.receiver._buffer_start,
                    one.receiver.highest_offset,
                    bytes(one.receiver._buffer),
                    list(one.receiver._ranges),
                    one.receiver._final_size,
                    one.receiver.is_finished,
                    one.max_stream_data_local,
                    one.max_stream_data_remote,
                )
                for one in server._streams.values()
            },
            "used": server._local_max_data.used,
            "room": server._remote_max_data,
            "received": (list(space.ack_queue), space.largest_received_packet, space.largest_received_time),
            "ack at": space.ack_at,
            "idle": (server._close_at, server._ack_eliciting_sent_since_receipt),
            "id": [one.cid for one in server._host_cids].index(server.host_cid),
            "spin": (server._spin_bit, server._spin_highest_pn),
            "closed": server._close_event and (server._close_event.error_code, server._close_event.reason_phrase),
            "paths": [(path.addr, path.is_validated or path.bytes_received) for path in server._network_paths],
            "gaps": server._gaps,
        }


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> QuicConfiguration:
    made = QuicConfiguration(
        is_client=False, alpn_protocols=["fujin"], max_data=WINDOW_BYTES * 2, max_stream_data=WINDOW_BYTES
    )
    made.load_cert_chain(*own_certificate(tmp_path_factory.mktemp("certificate"), "fujin"))
    return made


class Chance:
    """Packets as they come, for two pairs alike."""

    def __init__(self, seed: int, pairs: tuple[Pair, Pair]) -> None:
        self.chance = random.Random(seed)
        self.pairs = pairs
        self.address = HERE
        self.ends = {stream_id: 1 if not stream_id else 0 for stream_id in (0, 4, 8)}

    def next_of(self, stream_id: int) -> bytes:
        chance = self.chance
        data = chance.randbytes(chance.choice((1, 3, 300, 1200)))
        at = self.ends[stream_id]
        self.ends[stream_id] += len(data)
        kind = 0x08 | (4 if at or chance.random() < 0.5 else 0) | (2 if chance.random() < 0.5 else 0)
        return (
            bytes([kind])
            + number(stream_id)
            + (number(at) if kind & 4 else b"")
            + (number(len(data)) if kind & 2 else b"")
            + data
        )

    def frames(self) -> bytes:
        chance = self.chance
        stream_id = chance.choice((0, 0, 0, 4, 8))
        what = chance.random()
        if what < 0.7:
            return self.next_of(stream_id)
        at = self.ends[stream_id]
        if what < 0.71:
            return stream_frame(stream_id, at, b"", fin=True)
        if what < 0.715:  # what ends the connection
            return chance.choice(
                (
                    b"\x0a" + number(stream_id),
                    b"\x0e" + number(stream_id) + b"\xff",
                    b"\x0c" + number(stream_id) + number(at),
                    b"\xbf\xff\xff\xff",
                    stream_frame(2, 0, b"one way"),
                    stream_frame(4 * 30, 0, b"too many"),
                    stream_frame(1, 0, b"not theirs"),
                    stream_frame(stream_id, WINDOW_BYTES, b"beyond"),
                    PADDING * 3 + b"\x3f",
                )
            )
        return chance.choice(
            (
                stream_frame(stream_id, at + 700, b"later"),
                stream_frame(stream_id, max(at - 2, 0), b"again" if at > 1 else b""),
                stream_frame(stream_id, at, b""),
                stream_frame(stream_id, at, b"") + PING,
                PING,
                PADDING,
                ACK,
                b"\x10" + number(1 << 22),
                b"\x11" + number(stream_id) + number(1 << 22),
                PING + PADDING,
                reset_frame(12, 0),
            )
        )

    def step(self) -> None:
        chance = self.chance
        frames = self.frames()
        gap = chance.choice((0, 0, 0, 0, 0, 0, 1, 2, 7, -3, 90))
        to = 1 if chance.random() < 0.01 else 0
        bits = chance.choice((0, 0, 0, 0, SPIN, SPIN)) | (RESERVED if chance.random() < 0.002 else 0)
        size = chance.choice((2, 2, 2, 1, 3, 4))
        hurt = chance.random()
        if chance.random() < 0.03:
            self.address = ELSEWHERE if self.address == HERE else HERE
        later_s = chance.choice((0, 0, 0.001))
        sends = chance.random() < 0.1
        for pair in self.pairs:
            data = pair.packet(frames, gap, bits, size, to)
            if hurt < 0.02:
                data = data[:-1] + bytes([data[-1] ^ 1])
            elif hurt < 0.04:
                data = data[: 1 + int((hurt - 0.02) * 2000)]
            elif hurt < 0.05:
                data = data[:1] + bytes(8) + data[9:]
            pair.now += later_s
            pair.receive(data, self.address)
            if hurt > 0.95:
                pair.receive(data, self.address)
            if sends:
                pair.server.datagrams_to_send(now=pair.now)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_it_comes_out_as_it_would_the_long_way(configuration: QuicConfiguration, seed: int) -> None:
    pairs = Pair(BoundedQuic, configuration), Pair(LongWay, configuration)
    assert pairs[0].server._usual is not None
    chance = Chance(seed, pairs)
    for _ in range(STEPS):
        chance.step()
        short, long = (pair.state() for pair in pairs)
        assert short == long
    assert pairs[1].server._usual is None


def test_the_usual_packet_goes_the_short_way(configuration: QuicConfiguration, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(BoundedQuic, configuration)
    pair.server.datagrams_to_send(now=pair.now)
    assert pair.server.is_quiet
    monkeypatch.setattr(QuicConnection, "receive_datagram", None)
    monkeypatch.setattr(QuickReceiving, "_any_frames", None)
    data = b"".join(bytes([at]) * 1000 for at in range(1, 39))
    for at in range(0, len(data), 1000):
        pair.receive(pair.packet(stream_frame(0, 1 + at, data[at : at + 1000])))
    assert b"".join(event["data"] for event in pair.events) == data
    assert pair.server.is_quiet
    assert pair.server.sends_nothing_before() is not None


def test_what_is_more_than_the_next_bytes_is_looked_at_soon(configuration: QuicConfiguration) -> None:
    for frames in (PING, ACK, b"\x10" + number(1 << 22), stream_frame(0, 1, b"x", fin=True), stream_frame(4, 9, b"x")):
        pair = Pair(BoundedQuic, configuration)
        pair.server.datagrams_to_send(now=pair.now)
        assert pair.server.is_quiet
        pair.receive(pair.packet(frames))
        assert not pair.server.is_quiet
        assert pair.server.sends_nothing_before() is None


def test_new_keys_are_taken(configuration: QuicConfiguration) -> None:
    pair = Pair(BoundedQuic, configuration)
    for at in range(4):
        pair.receive(pair.packet(stream_frame(0, 1 + 2 * at, b"a")))
        pair.client._cryptos[tls.Epoch.ONE_RTT]._update_key("local_update")
        pair.receive(pair.packet(stream_frame(0, 2 + 2 * at, b"b")))
    assert b"".join(event["data"] for event in pair.events) == b"ab" * 4


@pytest.mark.parametrize("kind", [BoundedQuic, LongWay])
@pytest.mark.parametrize("streams", [1, 3])
def test_windows_end_where_they_were_promised(
    configuration: QuicConfiguration, kind: type[BoundedQuic], streams: int
) -> None:
    """One stream fills its window, three that of the connection, to the last byte and no further."""
    pair = Pair(kind, configuration)
    room = {0: WINDOW_BYTES - 1} if streams == 1 else {0: WINDOW_BYTES - 2, 4: WINDOW_BYTES - 2, 8: 3}
    for stream_id, size in room.items():
        start = 0 if stream_id else 1
        pair.receive(pair.packet(stream_frame(stream_id, start, b"a" * (size - 1))))
        pair.receive(pair.packet(stream_frame(stream_id, start + size - 1, b"b")))
        pair.receive(pair.packet(stream_frame(stream_id, start, b"")))
    assert pair.state()["closed"] is None
    assert sum(len(event["data"]) for event in pair.events) == sum(room.values())
    last, end = max(room), room[max(room)] + (0 if max(room) else 1)
    pair.receive(pair.packet(stream_frame(last, end, b"c")))
    assert "limit" in pair.state()["closed"][1]


def test_of_many_gaps_the_oldest_are_forgotten(configuration: QuicConfiguration) -> None:
    pairs = Pair(BoundedQuic, configuration), Pair(LongWay, configuration)
    for pair in pairs:
        for at in range(3 * MAX_ACK_RANGES):
            pair.number += 1  # a packet that is lost
            pair.receive(pair.packet(stream_frame(0, 1 + at, b"x")))
    assert pairs[0].state() == pairs[1].state()
    assert len(pairs[0].state()["received"][0]) == MAX_ACK_RANGES


def test_a_connection_that_is_let_go_leaves_no_circle(configuration: QuicConfiguration) -> None:
    server = Pair(BoundedQuic, configuration).server
    server.send_ping(1)
    assert server.datagrams_to_send(2.0), "under way, and never acknowledged"
    server.let_go()
    left = weakref.ref(server)
    gc.disable()
    try:
        del server
        assert left() is None
    finally:
        gc.enable()
