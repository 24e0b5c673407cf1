"""Hostile Fujin clients against a real server, one after the other, while an honest one publishes: the server's memory
is bounded, its log shows no traceback, and nobody else notices.

QUINTLOG_NIGHTLY=1 makes it ten times as much, and transactions of real sizes. Each prints its figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netserver import errors, fujin
from netserver.fujin import codec
from netserver.fujin.codec import Answer, Op
from netserver.limits import STREAM_WINDOW_BYTES
from netserver.testing import ServerProcess, Settings, server
from tests.fujin_peer import Peer, client_configuration, connect
from tests.quic_attacker import Attacker, crypto_frame, number, packed, stream_frame

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
TIMES = 10 if NIGHTLY else 1
GROWTH_KIB = 64 * 1024
MIB = 1 << 20
SETTINGS: Settings = {
    **{name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")},
    "fujin": {"transaction_timeout": 1000, "idle_timeout": 10_000, "ping_interval": 500, "ping_timeout": 2000},
}
Address = tuple[str, int]


def rss_kib(process: ServerProcess) -> int:
    """Memory of the server."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with server(settings=SETTINGS) as running:
        yield running
        assert "Traceback" not in running.log_text, running.log_text[-3000:]
        assert "ERROR" not in running.log_text, running.log_text[-3000:]


# --- by hand-made packets; blocking code in a thread


def gaps_on_many_streams(address: Address) -> None:
    for _ in range(TIMES):
        with Attacker(address).handshake() as attacker:
            for payload in packed([stream_frame(4 * (at % 50), 9 + 2 * (at // 50), b"x") for at in range(20_000)]):
                attacker.send(payload)
            attacker.listen(3)


def last_bytes_of_windows(address: Address) -> None:
    with ExitStack() as stack:
        for _ in range(40 * TIMES):
            attacker = stack.enter_context(Attacker(address).handshake())
            for stream_id in range(0, 16, 4):
                attacker.send(stream_frame(stream_id, STREAM_WINDOW_BYTES - 1, b"x"))


def handshakes_in_crumbs(address: Address) -> None:
    for _ in range(20 * TIMES):
        with Attacker(address) as attacker:
            for payload in packed([crypto_frame(at, b"x") for at in range(9, 16_000, 2)], 1100):
                attacker.udp.sendto(attacker.initial(payload), address)


def messages_of_tls_without_end(address: Address) -> None:
    for _ in range(5 * TIMES):
        with Attacker(address).handshake() as attacker:
            for offset in range(0, 200_000, 1000):
                attacker.send(crypto_frame(offset, b"\x14\xff\xff\xff" * 250))
            attacker.listen(3)


def pings_and_no_acknowledgement(address: Address) -> None:
    with Attacker(address).handshake() as attacker:
        for _ in range(5000 * TIMES):
            attacker.send(b"\x01")


def floods_of_acknowledgements(address: Address) -> None:
    """Of packets that were never sent, in as many frames as fit; then such with many ranges."""
    with Attacker(address).handshake() as attacker:
        for _ in range(100 * TIMES):
            attacker.send(b"".join(b"\x02" + number(at) + number(0) * 3 for at in range(1, 200)))
            attacker.send(b"\x02" + number(2000) + number(0) + number(500) + number(0) * 1001)


def connections_that_vanish(address: Address) -> None:
    """Complete handshakes, as fast as they go, without a word after that."""
    for _ in range(100 * TIMES):
        Attacker(address).handshake().udp.close()


def garbage(address: Address) -> None:
    chance = random.Random(1)
    with Attacker(address).handshake() as attacker:
        own_id = attacker.quic._peer_cid.cid
        for _ in range(3000 * TIMES):
            head = chance.choice((b"", b"\x40", b"\xc0\x00\x00\x00\x01\x08", b"\xff\x00\x00\x00\x00\x08", b"\xf0"))
            attacker.udp.sendto(head + own_id + chance.randbytes(chance.choice((0, 20, 1200))), address)
        attacker.talk()
        assert attacker.closed is None, "who is called by his name is not hit by what others send in it"


def addresses_that_change(address: Address) -> None:
    """The connection goes on from each new address."""
    with Attacker(address).handshake() as attacker:
        quic = attacker.quic
        stream_id = quic.get_next_available_stream_id()
        quic.send_stream_data(stream_id, codec.connect_writer())
        for cid in range(30 * TIMES):
            attacker.udp.close()
            attacker.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            attacker.udp.settimeout(0.02)
            quic.send_stream_data(stream_id, codec.write(cid, b"migration", b"x"))
            deadline = time.monotonic() + 20
            while codec.done(Answer.WRITE, cid) not in attacker.received.get(stream_id, b""):
                assert attacker.closed is None, attacker.closed
                assert time.monotonic() < deadline, "the connection does not go on"
                attacker.talk()


ATTACKS = (
    gaps_on_many_streams,
    last_bytes_of_windows,
    handshakes_in_crumbs,
    messages_of_tls_without_end,
    pings_and_no_acknowledgement,
    floods_of_acknowledgements,
    connections_that_vanish,
    garbage,
    addresses_that_change,
)


@pytest.mark.timeout(600 if NIGHTLY else 60)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_packets(process: ServerProcess, attack: Callable[[Address], None]) -> None:
    host, port = process.address("fujin")

    async def main() -> None:
        before, published, longest_s = rss_kib(process), 0, 0.0
        async with fujin.connect(f"{host}:{port}", verify=False) as honest:
            under_attack = asyncio.create_task(asyncio.to_thread(attack, (host, port)))
            while not under_attack.done() or not published:
                begun = time.monotonic()
                await asyncio.wait_for(honest.publish("honest", b"x"), 30)
                longest_s = max(longest_s, time.monotonic() - begun)
                published += 1
                await asyncio.sleep(0.002)
            await under_attack
        grown = rss_kib(process) - before
        print(
            f"\n{attack.__name__}: {published} publishes beside it, the longest {1000 * longest_s:.0f} ms; {grown} KiB"
        )
        assert grown < GROWTH_KIB

    asyncio.run(main())


# --- by streams


async def flood_of_streams(peer: Peer) -> None:
    """More than there may be at once, each with a byte, all left alone."""
    for _ in range(1200):
        peer.open(b"\x01")
    await asyncio.sleep(0)


async def huge_lengths(peer: Peer) -> None:
    """Each length field at its largest; nothing follows."""
    for start in (
        b"\x01\xff\xff\xff\xff",
        codec.connect_writer() + b"\x03\0\0\0\1\xff\xff\xff\xff",
        codec.connect_writer() + b"\x03\0\0\0\1\0\0\0\1t\xff\xff\xff\xff",
        b"\x02\x01\x00\xff\xff\xff\xff",
    ):
        await asyncio.wait_for(peer.open(start).rest(), 20)
    for ids in (b"\x08\0\0\0\1\xff\xff\xff\xff", b"\x08\0\0\0\1\0\0\0\1\xff\xff\xff\xff"):
        reader = await peer.puller(b"lengths")
        reader.send(ids)
        await asyncio.wait_for(reader.rest(), 20)


async def ends_in_the_middle(peer: Peer) -> None:
    """FIN, RESET and STOP_SENDING after each byte of a transaction: nothing of it is stored."""
    whole = codec.connect_writer(b"id") + codec.tx(Op.BEGIN, 1) + codec.write(2, b"middle", b"never") * 2
    for at in range(len(whole) + 1):
        await asyncio.wait_for(peer.open(whole[:at], fin=True).rest(), 20)
        stream = peer.open(whole[:at])
        stream.reset()
        stream = peer.open(whole[:at])
        stream.stop()
        stream.send(b"", fin=True)
    await peer.publish(b"middle", b"after")
    reader = await peer.puller(b"middle", auto=True)
    reader.send(codec.fetch(1, 10))
    assert await reader.take(19) == codec.fetched(1, 1, codec.string(b"after"))


async def nothing_is_read(peer: Peer) -> None:
    """With windows of no bytes (see the test): WRITEs, transactions, FETCHes, readers."""
    commands = (codec.write(1, b"unread", b"x" * 100) * 2000, codec.tx(Op.COMMIT, 1) * 50_000)
    for command in commands:
        peer.open(codec.connect_writer() + command)
    for kind in (1, 2):
        peer.open(codec.connect_reader(kind, True, b"unread") + codec.fetch(1, 1000) * 1000)
    await asyncio.sleep(0.5)


STREAMS = (flood_of_streams, huge_lengths, ends_in_the_middle, nothing_is_read)


@pytest.mark.timeout(600 if NIGHTLY else 60)
@pytest.mark.parametrize("attack", STREAMS, ids=lambda attack: attack.__name__)
def test_streams(process: ServerProcess, attack: Callable[[Peer], asyncio.Future[None]]) -> None:
    address = process.address("fujin")
    configuration = client_configuration()
    if attack is nothing_is_read:
        configuration.max_data = configuration.max_stream_data = 0

    async def main() -> None:
        before = rss_kib(process)
        async with connect(address, configuration) as peer, connect(address) as honest:
            await attack(peer)
            await asyncio.wait_for(honest.publish(b"honest", *[b"x"] * 100), 30)
        grown = rss_kib(process) - before
        print(f"\n{attack.__name__}: {grown} KiB")
        assert grown < GROWTH_KIB

    asyncio.run(main())


def test_a_client_that_vanishes_in_a_transaction(process: ServerProcess) -> None:
    """It is rolled back, and its writer id is free, whether the connection or only the client's interest is gone."""
    host, port = process.address("fujin")

    async def main() -> None:
        with await asyncio.to_thread(lambda: Attacker((host, port)).handshake()) as attacker:
            start = codec.connect_writer(b"id") + codec.tx(Op.BEGIN, 1) + codec.write(2, b"vanished", b"never")
            attacker.send(stream_frame(0, 0, start))
        async with fujin.connect(f"{host}:{port}", verify=False) as client:
            async with client.transaction("id") as transaction:
                await transaction.publish("vanished", b"1")
            silent = client.transaction("other")
            await silent.begin()
            await silent.publish("vanished", b"never")
            await asyncio.sleep(2.5)  # longer than a transaction may be silent
            with pytest.raises(errors.Refused, match="timed out"):
                await silent.publish("vanished", b"never")
            await silent.rollback()
            await client.publish("vanished", b"2")
            async with client.subscribe("vanished", mode="pull") as messages:
                assert [(await messages.next()).value for _ in range(2)] == [b"1", b"2"]

    asyncio.run(main())


@pytest.mark.skipif(not NIGHTLY, reason="takes a minute: with QUINTLOG_NIGHTLY=1")
@pytest.mark.timeout(600)
def test_transactions_at_and_over_64_mib(process: ServerProcess) -> None:
    """Records of 1 MiB; what is over the limit is refused alone, and the rest can be committed."""
    host, port = process.address("fujin")

    async def main() -> None:
        async with fujin.connect(f"{host}:{port}", verify=False) as client:
            before = rss_kib(process)
            transaction = client.transaction()
            await transaction.begin()
            taken = 63  # 64 MiB with what each record takes beside its value
            for value in range(taken):
                await transaction.publish("large", bytes([1 + value]) * MIB)
            with pytest.raises(errors.Refused, match="transaction"):
                await transaction.publish("large", b"x" * MIB)
            await transaction.rollback()
            async with client.transaction() as whole:
                for value in range(taken):
                    await whole.publish("large", bytes([1 + value]) * MIB)
            found = []
            async with client.subscribe("large", mode="pull", fetch_records=4) as messages:
                for _ in range(taken):
                    message = await messages.next()
                    found.append((message.value[0], len(message.value)))
                    await message.ack()
            assert found == [(1 + value, MIB) for value in range(taken)]
            print(f"\na transaction of {taken} MiB: {(rss_kib(process) - before) // 1024} MB more at its end")

    asyncio.run(main())
