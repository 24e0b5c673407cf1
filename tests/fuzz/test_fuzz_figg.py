"""Figg fed with anything: bytes either parse or raise the codec's own error, in whatever portions they come; and a
server under such input ends the connections that sent it, and no other.

Meant to run with QUINTLOG_BUILD=checked too. QUINTLOG_NIGHTLY=1 makes it run for minutes, each time with other input.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Literal

import pytest

from netserver.figg import codec
from netserver.figg.codec import Decoder, FiggError, Message
from tests.echo import until
from tests.figg_support import Place, with_server

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
INPUTS = 5_000_000 if NIGHTLY else 20_000
"""Each is fed to both sides, whole and in portions: four times as many."""
ROUNDS = 20 if NIGHTLY else 1
SEED = int.from_bytes(os.urandom(4)) if NIGHTLY else 1
Side = Literal["server", "client"]
SIDES: tuple[Side, Side] = ("server", "client")
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "figg.jsonl").read_text().splitlines()]
CAPTURED = [bytes.fromhex(row["hex"]) for row in ROWS if row.get("hex") and len(row["hex"]) < 4000]
LENGTHS = (0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def mutated(dice: random.Random) -> bytes:
    """Captured frames back to back, with bytes and lengths changed, parts cut out, doubled or made up."""
    data = bytearray(b"".join(dice.choices(CAPTURED, k=dice.randrange(1, 6))))
    for _ in range(dice.randrange(5)):
        if not data:
            break
        at = dice.randrange(len(data))
        match dice.randrange(6):
            case 0:
                data[at] = dice.randrange(256)
            case 1:
                data[at : at + 4] = dice.choice(LENGTHS).to_bytes(4)
            case 2:
                del data[at : at + dice.randrange(1, 20)]
            case 3:
                data[at:at] = data[at : at + dice.randrange(1, 60)]
            case 4:
                data[at:at] = dice.randbytes(dice.randrange(1, 20))
            case 5:
                data[at] ^= 1 << dice.randrange(8)
    return bytes(data)


def portions(dice: random.Random, data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = dice.choice((1, 2, 7, 8, 30, 1000))
        found.append(data[at : at + size])
        at += size
    return found


def parsed(side: Side, parts: list[bytes]) -> tuple[list[Message], bool]:
    """(messages, whether it ended in an error)."""
    decoder = Decoder(side, 1 << 16)
    messages: list[Message] = []
    for part in parts:
        try:
            messages += decoder.feed(part)
        except FiggError:
            return messages + decoder.ready, True
    return messages, False


@pytest.mark.timeout(7200 if NIGHTLY else 120)
def test_any_bytes_parse_or_raise_the_codecs_error_in_any_portions() -> None:
    dice = random.Random(SEED)
    failed = 0
    print(f"seed {SEED}")
    for turn in range(INPUTS):
        data = mutated(dice) if turn % 4 else dice.randbytes(dice.randrange(200))
        for side in SIDES:
            whole = parsed(side, [data])
            assert parsed(side, portions(dice, data)) == whole
            failed += whole[1]
            for message in whole[0]:
                assert parsed(side, [codec.encode(message)]) == ([message], False)
    assert failed > INPUTS // 4, "there is something to refuse"
    print(f"{4 * INPUTS} inputs, {failed} of {2 * INPUTS} refused")


def test_every_bit_of_a_frame() -> None:
    """No flipped bit makes the codec read beyond a frame, hang, or raise anything else."""
    frame = codec.publish(b"topic", 7, b"value") + codec.attach(b"t", 3)
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        whole = parsed("server", [bytes(changed)])
        assert parsed("server", [bytes([byte]) for byte in changed]) == whole


def test_a_server_under_any_input_ends_only_the_connections_that_sent_it() -> None:
    dice = random.Random(SEED + 1)

    async def attack(place: Place, rounds: int) -> None:
        for _ in range(rounds):
            peer = await place.peer()
            for part in portions(dice, b"".join(mutated(dice) for _ in range(dice.randrange(1, 4)))):
                peer.send(part)
                if not dice.randrange(4):
                    await asyncio.sleep(0)
            if dice.randrange(2):
                peer.writer.write_eof()
                await asyncio.sleep(0)
            await peer.close()
            place.peers.remove(peer)

    async def live(place: Place) -> None:
        """A neighbour that publishes and reads its own topic all the while."""
        peer = await place.peer()
        peer.send(codec.Attach(b"neighbour", 0))
        await peer.read_attached()
        for number in range(150 * ROUNDS):
            peer.publish(b"neighbour", number, b"%d" % number)
            answers = [await peer.next(), await peer.next()]
            assert codec.Ack(number) in answers
            assert codec.Data(b"neighbour", number + 1, b"%d" % number) in answers

    async def test(place: Place) -> None:
        await asyncio.gather(live(place), *(attack(place, 60 * ROUNDS) for _ in range(4)))
        counters = place.server.counters["figg"]
        assert counters.session_errors == 0
        assert sum(counters.protocol_errors.values()) > 30
        await until(lambda: counters.connections <= 1 + 4)  # some are closed with a delay, see `RESENT_S`

    with_server(test)
