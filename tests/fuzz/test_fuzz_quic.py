"""QUIC under random frames and damaged handshakes, against a running server: its log shows no traceback, and it serves.

The packets are such that the server can decrypt them, so that the frames are looked at. QUINTLOG_NIGHTLY=1 makes it
20,000 connections.
"""

from __future__ import annotations

import os
import random

import pytest
from aioquic import tls

from netserver.fujin import codec
from netserver.fujin.codec import Answer
from netserver.testing import server
from tests.quic_attacker import Attacker, crypto_frame, number, stream_frame

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
CONNECTIONS = 20_000 if NIGHTLY else 150
OFF = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}
TYPES = (*range(0x1F), 0x30, 0x31, 0x40, 0x3FFF)
NUMBERS = (0, 1, 2, 3, 4, 5, 8, 12, 20, 63, 64, 1000, 16_383, 262_143, 262_144, 1 << 20, 1 << 30, (1 << 62) - 1)
NEW_CONNECTION_ID, STREAMS, CLOSES = 0x18, range(0x08, 0x10), (0x1C, 0x1D)


def frame(chance: random.Random) -> bytes:
    """One frame, often a proper one."""
    kind = chance.choice(TYPES)
    head = number(kind)

    def any_number() -> bytes:
        return number(chance.choice(NUMBERS))

    if kind == NEW_CONNECTION_ID:
        size = chance.choice((0, 1, 8, 20, 21, 255))
        retired = number(chance.choice((0, 1, 2, 1000)))
        return head + any_number() + retired + bytes([size]) + chance.randbytes(size + chance.choice((16, 3)))
    if kind in CLOSES and chance.random() < 0.9:
        return b"\x01"  # too many would end what is to be tested
    if kind in STREAMS and chance.random() < 0.8:
        data = bytes(chance.choice(range(13)) for _ in range(chance.randint(0, 40)))
        offset = number(chance.choice((0, 0, 1, 5, 100, 262_000))) if kind & 4 else b""
        length = number(len(data)) if kind & 2 else b""
        return head + number(chance.choice((0, 4, 8, 12, 400))) + offset + length + data
    return head + b"".join(any_number() for _ in range(chance.randint(0, 6))) + chance.randbytes(chance.randint(0, 8))


def damaged_hello(chance: random.Random, attacker: Attacker) -> bytes:
    """A ClientHello with some bytes changed, or cut with a length that fits."""
    hello = bytearray(attacker.quic._crypto_streams[tls.Epoch.INITIAL].sender._buffer)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(hello))
        hello[at] = chance.choice((0, 1, 255, hello[at] ^ 1, chance.randrange(256)))
    if chance.random() < 0.3:
        del hello[chance.randrange(4, len(hello)) :]
        hello[1:4] = (len(hello) - 4).to_bytes(3)
    return bytes(hello)


def one_connection(chance: random.Random, address: tuple[str, int]) -> None:
    with Attacker(address) as attacker:
        way = chance.random()
        if way < 0.15:
            attacker.udp.sendto(attacker.initial(crypto_frame(0, damaged_hello(chance, attacker))), address)
            return
        if way < 0.25:
            for _ in range(5):
                attacker.udp.sendto(attacker.initial(frame(chance) + frame(chance)), address)
            return
        attacker.handshake()
        for _ in range(chance.randint(1, 20)):
            packet = bytearray(attacker.packet(b"".join(frame(chance) for _ in range(chance.randint(1, 4)))))
            if chance.random() < 0.05:
                packet[chance.randrange(len(packet))] ^= 1 << chance.randrange(8)
            attacker.udp.sendto(packet, address)
            if chance.random() < 0.1:
                attacker.listen()


@pytest.mark.timeout(7200 if NIGHTLY else 120)
def test_a_running_server() -> None:
    chance = random.Random(CONNECTIONS)
    with server(settings={**OFF, "fujin": {"ping_interval": 200, "ping_timeout": 1000}}) as process:
        address = process.address("fujin")
        for _ in range(CONNECTIONS):
            one_connection(chance, address)
        with Attacker(address).handshake() as honest:
            honest.quic.get_next_available_stream_id()
            honest.quic.send_stream_data(0, codec.connect_writer())
            honest.talk()
            honest.send(stream_frame(0, len(codec.connect_writer()), codec.write(1, b"t", b"x")))
            while codec.done(Answer.WRITE, 1) not in honest.received.get(0, b""):
                assert honest.closed is None
                honest.listen()
        assert "Traceback" not in process.log_text, process.log_text[process.log_text.index("Traceback") :][:3000]
        assert "ERROR" not in process.log_text
