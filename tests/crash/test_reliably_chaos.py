"""Streams through broken connections and a server that is killed: every client ends with the right checksum.

A proxy breaks connections at any byte; meanwhile the server is killed with -9 and started again, several times. All
that passes the proxy is compared: an id of a session always has the same line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random

import pytest

from netserver import errors, reliably
from netserver.testing import ServerProcess, server
from tests.chaos_proxy import ChaosProxy

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
CLIENTS = 200 if NIGHTLY else 20
MESSAGES = 1000 if NIGHTLY else 400
KILLS = 20 if NIGHTLY else 3
OFF = {name: {"listen": "off"} for name in ("tank", "blipmq", "fujin", "kafka")}


class Lines:
    """What passed: each id of each incarnation of a session with its line."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], dict[int, bytes]] = {}
        self.replayed = 0
        self._requests: dict[int, bytes] = {}
        self._session: dict[int, tuple[str, int]] = {}
        self._starts: dict[str, int] = {}
        self._rest: dict[int, bytes] = {}

    def to_server(self, number: int, data: bytes) -> None:
        if number in self._session:
            return
        text = self._requests.get(number, b"") + data
        self._requests[number] = text
        if b"\n" in text:
            request = json.loads(text.split(b"\n")[0])
            uuid = request["uuid"]
            if "params" in request:
                self._starts[uuid] = self._starts.get(uuid, 0) + 1
            self._session[number] = (uuid, self._starts[uuid])

    def to_client(self, number: int, data: bytes) -> None:
        *lines, rest = (self._rest.get(number, b"") + data).split(b"\n")
        self._rest[number] = rest
        for line in lines:
            message = json.loads(line)
            seen = self.seen.setdefault(self._session[number], {})
            before = seen.setdefault(message["id"], line)
            assert before == line
            self.replayed += before is not line


def soon(failures: int) -> float:
    return 0.05 * min(failures, 10)


async def read_numbers(port: int, count: int, rng: random.Random, failures: list[str]) -> int:
    """One client from the first message to the checksum; how many messages it was handed."""
    ack_every = rng.choice([1, 7, 16, 100, 0])
    while True:
        try:
            return await _read_numbers(port, count, ack_every)
        except errors.ConnectionFailed:  # the very first dial of a client is not repeated
            await asyncio.sleep(soon(1))
        except errors.QuintlogError as error:
            failures.append(repr(error))
            return 0


async def _read_numbers(port: int, count: int, ack_every: int) -> int:
    ids = []
    address = f"127.0.0.1:{port}"
    async with reliably.connect(address, params={"count": count}, ack_every=ack_every, backoff=soon) as numbers:
        async for message in numbers:
            ids.append(message.id)
    assert ids == list(range(1, count + 1))
    return len(ids)


async def kill_often(process: ServerProcess, times: int, rng: random.Random, done: asyncio.Event) -> int:
    """kill -9 and start again, as long as somebody still reads; how often."""
    for number in range(times):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), rng.uniform(0.1, 0.5))
        if done.is_set():
            return number
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(process.restart)
    return times


async def chaos(process: ServerProcess, seed: int) -> None:
    rng = random.Random(seed)
    lines = Lines()
    failures: list[str] = []
    proxy = ChaosProxy(process.address("reliably"), rng, 4000, lines.to_server, lines.to_client)
    async with proxy.running():
        done = asyncio.Event()
        killer = asyncio.ensure_future(kill_often(process, KILLS, rng, done))
        counts = await asyncio.gather(*(read_numbers(proxy.port, MESSAGES, rng, failures) for _ in range(CLIENTS)))
        done.set()
        kills = await killer
    assert failures == []
    assert counts == [MESSAGES] * CLIENTS
    assert kills > 0
    assert proxy.cuts > CLIENTS
    assert lines.replayed > 0


@pytest.mark.timeout(600)
def test_every_client_ends_with_the_right_checksum() -> None:
    # paced, so that the streams last as long as the kills
    with server(settings={**OFF, "reliably": {"interval_ms": 2}}) as process:
        asyncio.run(chaos(process, 11))
