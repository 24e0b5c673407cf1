"""kill -9 of a server to which Fujin, Figg, TANK and BlipMQ publish at once, transactions of Fujin over three topics
among it, while readers of every protocol and of the files watch.

After each restart: what was acknowledged is there, once, in order, under its number; of a transaction everything is
there or nothing, all of it if its COMMIT was answered or any reader saw any of it; nothing of one that was rolled back
or not committed is ever seen. QUINTLOG_KILL_ROUNDS sets the number of rounds (3; 500 with QUINTLOG_NIGHTLY=1).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError
from engine.formats.record import Record
from engine.reader import DirectoryReader
from netserver import blipmq, figg, fujin, reliably, tank
from netserver.errors import QuintlogError
from netserver.testing import ServerProcess, Settings, server

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = int(os.environ.get("QUINTLOG_KILL_ROUNDS", "500" if NIGHTLY else "3"))
TOPICS = ("a", "b", "c")
PARTITIONS = 2
"""Of each topic; Fujin writes to the first one, TANK to both."""
WRITERS = 3
LOAD_S = 0.5
PATIENCE_S = 30
PADDING = (0, 30, 300, 20_000)

Seen = dict[tuple[str, int], dict[int, bytes]]
"""(topic, partition) -> number -> value."""


@dataclass
class Journal:
    """What one publisher sent to one partition of one topic, by their running numbers."""

    sent: int = 0
    acked: int = 0


@dataclass
class Transactions:
    """Of one writer: number -> records of each topic; and how they ended, as far as the writer knows."""

    records: dict[int, Counter[str]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    never: set[int] = field(default_factory=set)


@dataclass
class Round:
    """What publishers and readers know when the server is killed."""

    name: bytes
    chance: random.Random
    starts: dict[tuple[str, int], int]
    journals: dict[tuple[bytes, str, int], Journal] = field(default_factory=dict)
    transactions: dict[bytes, Transactions] = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)
    texts: set[tuple[str, bytes]] = field(default_factory=set)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    problems: list[BaseException] = field(default_factory=list)

    def start(self, main: Awaitable[None]) -> None:
        """Until the server is gone, or the round is over."""

        async def run() -> None:
            try:
                await main
            except QuintlogError:
                return  # the server was killed
            except Exception as problem:  # noqa: BLE001 - told at the end of the round
                self.problems.append(problem)

        self.tasks.append(asyncio.create_task(run()))

    def has_begun(self) -> bool:
        """Everybody has got somewhere."""
        writers = [found for name, found in self.transactions.items() if name != b"open"]
        everywhere = [self.journals.get((b"tank", topic, at)) for topic in TOPICS for at in range(PARTITIONS)]
        return (
            bool(self.seen)
            and len(writers) == WRITERS
            and all(found.committed for found in writers)
            and all(journal is not None and journal.acked for journal in everywhere)
        )

    def saw(self, topic: str, partition: int, number: int, value: bytes) -> None:
        """A reader was given a record; every reader is given the same one. (Groups get some of former rounds again.)"""
        if number < self.starts[topic, partition]:
            return
        before = self.seen.setdefault((topic, partition), {}).setdefault(number, value)
        assert before == value, (topic, partition, number)

    # --- publishers

    async def publish(self, kind: bytes, send: Callable[[str, int, bytes], Awaitable[Any]], partitions: int) -> None:
        """One record after the other, to every place at least one."""
        places = [(topic, partition) for topic in TOPICS for partition in range(partitions)]
        for at in count():
            topic, partition = places[at] if at < len(places) else self.chance.choice(places)
            journal = self.journals.setdefault((kind, topic, partition), Journal())
            journal.sent += 1
            padding = b"." * self.chance.choice(PADDING)
            await send(topic, partition, b"%s %s %d %s" % (self.name, kind, journal.sent, padding))
            journal.acked += 1

    async def transact(self, client: fujin.Client, writer: bytes) -> None:
        """One transaction after the other; every fourth is rolled back, some are left open with their stream."""
        own = self.transactions[writer] = Transactions()
        number = 0
        while True:
            number += 1
            own.records[number] = Counter()
            transaction = client.transaction(writer)
            await transaction.begin()
            for at in range(self.chance.choice((1, 3, 10))):
                topic = self.chance.choice(TOPICS)
                own.records[number][topic] += 1
                padding = b"." * self.chance.choice(PADDING)
                await transaction.publish(topic, b"%s %s %d.%d %s" % (self.name, writer, number, at, padding))
            if number % 4 == 0:
                own.never.add(number)
                await transaction.rollback()
            else:
                await transaction.commit()
                own.committed.add(number)

    async def leave_open(self, client: fujin.Client) -> None:
        """A transaction that nobody ever commits."""
        own = self.transactions[b"open"] = Transactions(never={1})
        transaction = client.transaction(b"open")
        await transaction.begin()
        for topic in TOPICS:
            own.records.setdefault(1, Counter())[topic] += 1
            await transaction.publish(topic, b"%s open 1.0 x" % self.name)

    # --- readers

    async def watch_figg(self, client: figg.Client, topic: str, start: int) -> None:
        async for record in client.subscribe(topic, start=start):
            self.saw(topic, 0, record.offset, record.value)

    async def watch_tank(self, client: tank.Client, topic: str, partition: int, start: int) -> None:
        async for record in client.subscribe(topic, partition=partition, start=start):
            self.saw(topic, partition, record.seq, record.value)

    async def watch_blipmq(self, client: blipmq.Client, topic: str) -> None:
        async for message in client.subscribe(topic):
            self.texts.add((topic, message.value))
            await message.ack()

    async def watch_fujin(self, client: fujin.Client, topic: str) -> None:
        async for message in client.subscribe(topic):
            self.saw(topic, 0, int.from_bytes(message.id[4:]), message.value)
            await message.ack()

    async def watch_json(self, address: str, topic: str, start: int) -> None:
        parameters = {"topic": topic, "offset": start}
        async with reliably.connect(address, params=parameters) as session:
            async for message in session:
                document = message.data
                encoded = document.get("value_base64")
                value = base64.b64decode(encoded) if encoded is not None else document["value"].encode()
                self.saw(topic, 0, document["offset"], value)

    async def watch_files(self, data_dir: Path) -> None:
        """As logtool and Spark read beside a running server."""
        while True:
            for (topic, partition), first in self.starts.items():
                for number, value in (await asyncio.to_thread(stored, data_dir, topic, partition, first)).items():
                    self.saw(topic, partition, number, value)
            await asyncio.sleep(0.02)


def stored(data_dir: Path, topic: str, partition: int, first: int) -> dict[int, bytes]:
    """What the files say is committed, from ``first`` on."""
    with contextlib.closing(DirectoryReader(data_dir)) as reader:
        try:
            opened = reader.partition(reader.topic(topic.encode()), partition)
        except (EngineError, OSError):
            return {}  # it has no files yet
        items = list(opened.records(first, opened.committed_seq + 1))
    assert all(isinstance(item, Record) for item in items), items[-1]
    numbers = [item.seq for item in items if isinstance(item, Record)]
    assert all(before < after for before, after in pairwise(numbers))
    return {item.seq: item.value for item in items if isinstance(item, Record)}


@contextlib.asynccontextmanager
async def clients(process: ServerProcess) -> AsyncIterator[dict[str, Any]]:
    """One client of each protocol that gives up when the server is gone."""
    places = {name: f"{host}:{port}" for name, (host, port) in process.addresses.items()}
    options: dict[str, Any] = {"give_up_after_s": 0, "flush_timeout_s": 0}
    made = {
        "figg": figg.connect(places["figg"], **options),
        "tank": tank.connect(places["tank"], give_up_after_s=0),
        "blipmq": blipmq.connect(places["blipmq"], api_key="any", **options),
        "fujin": fujin.connect(places["fujin"], verify=False, resend=False, **options),
    }
    async with AsyncExitStack() as stack:
        for client in made.values():
            await client
            stack.push_async_callback(_close, client)
        yield {**made, "json": places["reliably"]}


async def _close(client: Any) -> None:
    with contextlib.suppress(QuintlogError):
        await asyncio.wait_for(client.close(), PATIENCE_S)


async def one_round(process: ServerProcess, number: int, lasts: dict[tuple[str, int], int]) -> Round:
    """Load, and the kill in the midst of it."""
    starts = {place: last + 1 for place, last in lasts.items()}
    own = Round(b"r%d" % number, random.Random(number), starts)
    async with clients(process) as client:
        if number == 0:
            for topic in TOPICS:
                await client["tank"].create_topic(topic, partitions=PARTITIONS)
        own.start(own.watch_files(process.data_dir))
        for topic in TOPICS:
            own.start(own.watch_figg(client["figg"], topic, starts[topic, 0]))
            own.start(own.watch_json(client["json"], topic, starts[topic, 0]))
            own.start(own.watch_blipmq(client["blipmq"], topic))
            own.start(own.watch_fujin(client["fujin"], topic))
            for partition in range(PARTITIONS):
                own.start(own.watch_tank(client["tank"], topic, partition, starts[topic, partition]))
        own.start(own.publish(b"figg", lambda topic, _, value: client["figg"].publish(topic, value), 1))
        own.start(own.publish(b"blipmq", lambda topic, _, value: client["blipmq"].publish(topic, value), 1))
        own.start(own.publish(b"fujin", lambda topic, _, value: client["fujin"].publish(topic, value), 1))
        own.start(own.publish(b"tank", lambda topic, at, value: client["tank"].publish(topic, value, partition=at), 2))
        own.start(own.leave_open(client["fujin"]))
        for writer in range(WRITERS):
            own.start(own.transact(client["fujin"], b"w%d" % writer))
        deadline = time.monotonic() + PATIENCE_S
        while not own.has_begun():
            assert time.monotonic() < deadline, "the load has not begun"
            assert not own.problems, own.problems
            await asyncio.sleep(0.01)
        await asyncio.sleep(own.chance.random() * LOAD_S)  # the moment of the kill is the fault that is chosen
        await asyncio.to_thread(process.kill)
        for task in own.tasks:
            task.cancel()
        await asyncio.gather(*own.tasks, return_exceptions=True)
    assert not own.problems, own.problems
    return own


def check(own: Round, found: Seen) -> int:
    """``found`` is what is stored behind the former rounds; returns how many records are known to be acknowledged."""
    for place, records in own.seen.items():
        for number, value in records.items():
            assert found[place].get(number) == value, f"{place} {number} was seen and is gone or another one"
    for topic, value in own.texts:
        assert value in found[topic, 0].values(), f"{value[:50]!r} was seen and is gone"
    acked = 0
    numbers: dict[tuple[bytes, str, int], list[int]] = {}
    parts: dict[tuple[bytes, int], Counter[str]] = {}
    for (topic, partition), records in found.items():
        for value in records.values():
            name, kind, mark = value.split(b" ")[:3]
            assert name == own.name, "a record of nobody"
            if b"." in mark:
                parts.setdefault((kind, int(mark.split(b".")[0])), Counter())[topic] += 1
            else:
                numbers.setdefault((kind, topic, partition), []).append(int(mark))
    for key, journal in own.journals.items():
        there = numbers.pop(key, [])
        assert there == list(range(1, len(there) + 1)), f"{key}: records are missing, doubled or out of order"
        assert journal.acked <= len(there) <= journal.sent, (key, journal, len(there))
        acked += journal.acked
    assert not numbers
    for writer, transactions in own.transactions.items():
        for number, expected in transactions.records.items():
            there_of = parts.pop((writer, number), Counter())
            if number in transactions.never:
                assert not there_of, f"{writer!r} {number} was not committed"
            elif number in transactions.committed or there_of:
                assert there_of == expected, f"a part of {writer!r} {number}: {there_of} of {expected}"
                acked += expected.total() if number in transactions.committed else 0
    assert not parts
    return acked


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_rounds_of_kill_9(tmp_path: Path) -> None:
    places = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
    lasts = dict.fromkeys(places, 0)
    acked = committed = 0
    settings: Settings = {"topics": {"segment_bytes": "1MiB"}, "fujin": {"transaction_timeout": 0}}
    longest_s = 0.0
    with server(tmp_path / "data", settings) as process:
        for number in range(ROUNDS):
            own = asyncio.run(one_round(process, number, lasts))
            begun = time.monotonic()
            process.start()
            longest_s = max(longest_s, time.monotonic() - begun)
            asyncio.run(open_all(process))
            found = {(topic, at): stored(process.data_dir, topic, at, lasts[topic, at] + 1) for topic, at in places}
            acked += check(own, found)
            committed += sum(len(transactions.committed) for transactions in own.transactions.values())
            for place, records in found.items():
                lasts[place] = max(records, default=lasts[place])
        assert "Traceback" not in process.log_text, process.log_text[-5000:]
    print(
        f"\n{ROUNDS} rounds of kill -9 under all protocols: {acked} records acknowledged, {committed} transactions"
        f" committed, none lost, doubled, reordered or in part; longest start {longest_s:.2f} s"
    )
    assert committed >= ROUNDS * WRITERS


async def open_all(process: ServerProcess) -> None:
    """A reader opens every partition: what recovery keeps is committed then."""
    host, port = process.address("tank")
    async with tank.connect(f"{host}:{port}") as client:
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                async with client.subscribe(topic, partition=partition, start=tank.EARLIEST) as records:
                    await asyncio.wait_for(records.next(), PATIENCE_S)
