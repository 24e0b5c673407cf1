"""Any bytes are a request or raise `RequestError`; any line from a server is a message or raises `AnswerError`.

A plain mutator of real lines, by seeds; and the running session: however its input is cut, it answers the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from pathlib import Path

import pytest

from netserver.reliably.codec import AnswerError, RequestError, parse_answer, parse_request
from tests.reliably_peer import Place, place, run

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
LINES = 20_000_000 if NIGHTLY else 200_000
PARTS = 8
VECTORS = Path(__file__).parents[1] / "data" / "reliably.jsonl"
PIECES = (
    *(b'"uuid"', b'"state"', b'"ack"', b'"params"', b'"count"', b'"topic"', b'"offset"', b'"id"', b'"data"', b'"crc"'),
    *(b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u", b"\\ud800", b"\\udc00", b"null", b"true", b"NaN"),
    *(b"0", b"-1", b"1e9", b"2.0", b"65535", b"65536", b"4294967296", b"9" * 5000, b"-Infinity", b"1E400", b"0x1"),
    *(b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"\r", b"\t", b"\x0b", b'"earliest"'),
    *(b"[" * 40, b'{"a":' * 40, b" " * 100, b'"x":', b'"uuid":"u",', b'"params":{"topic":"t","offset":0}'),
)


def samples() -> list[bytes]:
    rows = map(json.loads, VECTORS.read_text().splitlines())
    lines = {line for row in rows if "hex" in row for line in bytes.fromhex(row["hex"]).split(b"\n")}
    return sorted(lines)


def mutated(rng: random.Random, line: bytes) -> bytes:
    data = bytearray(line)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at:at] = rng.choice(PIECES)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2 if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
            case 3:
                data[at : at + rng.randrange(9)] = rng.choice(PIECES)
            case 4:
                other = rng.randrange(len(data) + 1)
                data[at:at] = data[min(at, other) : max(at, other)][:200]
            case _:
                data += rng.choice(PIECES)
    return bytes(data)


@pytest.mark.timeout(7200 if NIGHTLY else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_bytes(part: int) -> None:
    rng = random.Random(part)
    lines = samples()
    requests = messages = 0
    refusals: set[str] = set()
    for _ in range(LINES // PARTS):
        line = mutated(rng, rng.choice(lines))
        try:
            parse_request(line)
            requests += 1
        except RequestError as error:
            refusals.add(error.kind)
        try:
            parse_answer(line)
            messages += 1
        except AnswerError:
            pass
    assert requests > 0
    assert messages > 0
    assert refusals == {"malformed", "not_json"}


# --- the session


def conversation(rng: random.Random) -> bytes:
    """Requests whose answers do not depend on when they come: one stream, what is ignored beside it, perhaps an end."""
    lines = [b'{"uuid":"u","params":{"count":%d}}' % rng.randrange(1, 30)]
    for _ in range(rng.randrange(4)):
        lines.append(rng.choice((b'{"state":"7"}', b"{}", b'{"junk":[1,2,{}]}')))
    if rng.random() < 0.3:
        lines.append(rng.choice((b"oops", b"[]", b'{"uuid":"u"}', b'{"uuid":"v","state":1}', b"\xff", b"[" * 100)))
    return b"\n".join(lines) + b"\n"


async def answers(here: Place, data: bytes, cuts: list[int]) -> list[bytes]:
    """What comes back for ``data`` written in pieces, up to the server's FIN or a second of quiet after all of it."""
    (wanted,) = re.findall(rb'"count":(\d+)', data)
    peer = await here.peer()
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        peer.writer.write(data[start:end])
        await peer.writer.drain()
        await asyncio.sleep(0)
    collected = b""
    while True:
        try:
            patience_s = 1.0 if collected.count(b"\n") >= int(wanted) else 30.0
            more = await asyncio.wait_for(peer.reader.read(1 << 20), patience_s)
        except TimeoutError:
            break
        collected += more
        if not more:
            break
    await peer.close()
    return collected.splitlines()


def outcome(lines: list[bytes]) -> list[bytes]:
    """What has to be the same however the input was cut: all lines, or the error in which they end."""
    return lines[-1:] if lines and lines[-1].startswith(b'{"error"') else lines


@pytest.mark.parametrize("seed", range(200 if NIGHTLY else 4))
def test_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)

    async def test() -> None:
        async with place({"interval_ms": 1, "stateless_bytes_per_s": 1024}, random_seed=lambda: 5) as here:
            data = conversation(rng)
            size = len(data)
            ways = [[], list(range(1, size)), sorted(rng.sample(range(1, size), min(5, size - 1)))]
            results = [outcome(await answers(here, data, way)) for way in ways]
            assert results.count(results[0]) == len(results), data
            assert here.server.counters["json"].session_errors == 0

    run(test())
