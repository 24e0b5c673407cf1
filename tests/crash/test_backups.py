"""Backups under load: segments are rolled, transactions and batches of a sink committed, records read and acknowledged,
topics made and deleted while each is taken. Each is restored, verified, opened, compared with what was acknowledged
before it began, used, and verified again.

No half of a transaction, no writer of a sink that cannot go on, no finding where nothing is wrong.

``QUINTLOG_BACKUPS`` is how many are taken (6; 500 with QUINTLOG_NIGHTLY=1).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest

import engine.commit.transactions
from engine.repair import Repair
from netserver import blipmq, figg, fujin
from netserver.admin.api import Api
from netserver.admin.staged_commits import Batch, Staging
from netserver.app import Server
from netserver.client import blocking
from netserver.config import loading
from netserver.testing import ServerProcess
from tests.echo import until
from tests.unit.conftest import Logtool
from tests.unit.netserver.admin.test_staged_commits import values
from tools.logtool.lib import backup_copy

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
BACKUPS = int(os.environ.get("QUINTLOG_BACKUPS", "500" if NIGHTLY else "6"))
ROUNDS = 10
"""Backups of one log before the next one is begun: it would grow, and each is read whole."""
TRANSACTION_BYTES = 20_000
"""So small that a batch of the sink makes several parts."""
ROWS = 60
EVERY = 1 if NIGHTLY else 4
"""Between how many steps of a backup something happens, in turn."""
SMALL = {
    "topics": {"segment_bytes": "64KiB"},
    "engine": {"retention_grace_ms": "0", "housekeeping_interval_ms": "50"},
    "tank": {"listen": "off"},
    "reliably": {"listen": "off"},
}
SERVER = f"""
import engine.commit.transactions
engine.commit.transactions.TRANSACTION_BYTES_MAX = {TRANSACTION_BYTES}
from tools.engine_server import main
main()
"""
PAIRS = 3
Numbers = dict[str, int]


@dataclass
class Acknowledged:
    """What the load knows to be on disk."""

    plain: int = 0
    """Numbers from 1 on, in "plain"; its oldest segments go."""
    pairs: Numbers = field(default_factory=dict)
    """Writer of transactions -> how many; each is one record in "left" and one in "right"."""
    batches: int = 0
    """Batches of the sink, of rows for "a" and "b" in turn."""
    passing: Numbers = field(default_factory=dict)
    """Topic that is deleted some time later -> numbers from 1 on."""
    deleted: set[str] = field(default_factory=set)
    read: int = 0
    """Records of "read" that a subscriber has acknowledged, or is about to."""

    def copy(self) -> Acknowledged:
        return Acknowledged(
            self.plain, dict(self.pairs), self.batches, dict(self.passing), set(self.deleted), self.read
        )


def rows(batch: int) -> list[bytes]:
    """The sink's rows of a batch, packed."""
    return [
        msgpack.packb([b"ab"[row % 2 :][:1], 0, None, b"%d:%d" % (batch, row) + b"." * 1000, None, None])
        for row in range(ROWS)
    ]


class Load:
    """What publishers and readers do until `stop` is set."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.known = Acknowledged()
        self.stop = asyncio.Event()
        self.going = asyncio.Event()
        """Not while a backup is looked at."""
        self.going.set()

        self.is_committing = False
        """A batch of the sink is on its way."""
        self.patience_s = 0.0
        """How long the steps of a backup may still wait for something to happen."""

    @property
    def progress(self) -> int:
        """Rises with everything that is acknowledged."""
        known = self.known
        return sum(known.pairs.values()) + known.batches + known.read + len(known.deleted) + known.plain // 20

    async def goes_on(self) -> bool:
        await self.going.wait()
        return not self.stop.is_set()

    def address(self, name: str) -> str:
        return "{}:{}".format(*self.process.address(name))

    async def plain(self) -> None:
        async with figg.connect(self.address("figg")) as client:
            while await self.goes_on():
                first = self.known.plain + 1
                await client.publish_many("plain", [b"%d" % (first + n) + b"." * 1000 for n in range(20)])
                self.known.plain += 20

    async def pairs(self, writer: str) -> None:
        ca = self.process.data_dir / "fujin-certificate.pem"
        self.known.pairs[writer] = 0
        async with fujin.connect(self.address("fujin"), ca=ca) as client:
            while await self.goes_on():
                value = b"%s:%d" % (writer.encode(), self.known.pairs[writer] + 1) + b"." * 3000
                async with client.transaction() as transaction:
                    await transaction.publish("left", value)
                    await transaction.publish("right", value)
                self.known.pairs[writer] += 1

    async def sink(self) -> None:
        headers = {"Authorization": f"Bearer {self.process.token}"}
        async with aiohttp.ClientSession(
            headers=headers, raise_for_status=True, connector=aiohttp.TCPConnector(force_close=True)
        ) as http:
            while await self.goes_on():
                packed, names = rows(self.known.batches + 1), []
                for part in (packed[:25], packed[25:]):
                    url = f"{self.process.admin_url}/v1/staged"
                    async with http.post(url, data=b"".join(part)) as answer:
                        names.append((await answer.json())["name"])
                body = {"writer": "sink", "batch": self.known.batches + 1, "names": names}
                self.is_committing = True
                async with http.post(f"{self.process.admin_url}/v1/commits", json=body) as answer:
                    assert (await answer.json())["complete"]
                self.is_committing = False
                self.known.batches += 1

    async def passing(self) -> None:
        """Topics that come and go."""
        number = 0
        async with figg.connect(self.address("figg")) as client:
            while await self.goes_on():
                number += 1
                name = f"passing{number}"
                for first in range(1, 80, 20):
                    await client.publish_many(name, [b"%d" % (first + n) + b"." * 1000 for n in range(20)])
                    self.known.passing[name] = first + 19
                old = f"passing{number - 1}"
                if old in self.known.passing:
                    self.known.deleted.add(old)
                    await asyncio.to_thread(self.process.admin, "DELETE", f"/v1/topics/{old}")
                    del self.known.passing[old]

    async def reader(self) -> None:
        async with blipmq.connect(self.address("blipmq"), api_key="any key does") as client:
            await client.publish("read", b"first")
            subscription = await client.subscribe("read")
            while await self.goes_on():
                await client.publish("read", b"%d" % self.known.read + b"." * 1000)
                message = await subscription.next(timeout=30)
                self.known.read += 1
                await message.ack()

    async def run(self, rounds: Any) -> None:
        pairs = [self.pairs(f"writer{number}") for number in range(PAIRS)]
        loads = [self.plain(), *pairs, self.sink(), self.passing(), self.reader()]
        tasks = [asyncio.create_task(load) for load in loads]
        work = asyncio.create_task(rounds)
        done, _ = await asyncio.wait([work, *tasks], return_when=asyncio.FIRST_COMPLETED)
        self.stop.set()
        self.going.set()
        for task in done:
            task.result()
        await work
        await asyncio.gather(*tasks)


@contextmanager
def errors_told() -> Iterator[list[str]]:
    """What the engine and the server of this process tell as wrong."""
    told: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield told
    finally:
        logging.getLogger().removeHandler(handler)


def check_sound(logtool: Logtool, data_dir: Path) -> None:
    """`verify` and `repair` find nothing."""
    code, out, err = logtool("--data-dir", str(data_dir), "verify")
    assert code == 0, out + err
    assert [step for step in Repair(data_dir).run() if step.is_wrong] == []


def numbers(data_dir: Path, topic: str) -> list[int]:
    return [int(value.partition(b".")[0]) for value in values(data_dir, topic.encode())]


def check_records(data_dir: Path, before: Acknowledged, after: Acknowledged) -> None:
    """What is in a restored log, which a server has opened."""
    plain = numbers(data_dir, "plain")
    assert plain == list(range(plain[0], plain[0] + len(plain)))
    assert plain[-1] >= before.plain
    left, right = values(data_dir, b"left"), values(data_dir, b"right")
    assert sorted(left) == sorted(right), "half a transaction"
    assert len(set(left)) == len(left)
    for writer, last in before.pairs.items():
        found = [value for value in left if value.startswith(writer.encode() + b":")]
        assert len(found) >= last
        assert [int(value.partition(b":")[2].partition(b".")[0]) for value in found] == list(range(1, len(found) + 1))
    for name, last in before.passing.items():
        there = numbers(data_dir, name)
        assert there == list(range(1, len(there) + 1))
        if name not in after.deleted:
            assert len(there) >= last
        elif there:
            assert len(there) >= last, "a topic that was deleted meanwhile is whole, or not there"
    for name in before.deleted - before.passing.keys():
        assert numbers(data_dir, name) == []


def quiet_server(data_dir: Path) -> Server:
    """One that nobody can reach."""
    off = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "fujin", "reliably", "admin", "kafka")}
    own = {"server": {"data_dir": str(data_dir)}}
    return Server(loading.build(("test", SMALL), ("test", off), ("test", own)))


async def use(data_dir: Path, before: Acknowledged, after: Acknowledged) -> bool:
    """Opens a restored log with a server, goes on with the sink's batches; whether one was only partly in the log."""
    server = quiet_server(data_dir)
    await server.start()
    try:
        api = Api(server)
        for topic in server.log.catalog:
            for index in topic.numbers:
                await api.opened(topic, index)
        check_records(data_dir, before, after)
        for entry in server.log.cursors.entries():
            topic = server.log.catalog.by_id(entry.topic_id)
            if topic is not None:
                partition = await api.opened(topic, entry.partition)
                assert entry.deliveries[0] <= partition.committed_seq + 1, "a cursor beyond the end"
        staging = Staging(server, api)
        found = await staging.progress("sink") if after.batches or before.batches else {"batch": 0, "complete": True}
        assert found["batch"] >= before.batches
        last = int(found["batch"])
        for batch in (last, last + 1):  # a stream processor repeats its last batch, with its rows staged anew
            if batch:
                name = (await staging.stage(b"".join(rows(batch))))["name"]
                assert (await staging.commit(Batch("sink", batch), [name]))["complete"]
        for at, topic_name in enumerate((b"a", b"b")):
            wanted = [b"%d:%d" % (batch, row) for batch in range(1, last + 2) for row in range(at, ROWS, 2)]
            assert [value.partition(b".")[0] for value in values(data_dir, topic_name)] == wanted
        return not found["complete"]
    finally:
        await server.drain()


@dataclass
class Figures:
    """Of all rounds."""

    backups: int = 0
    parts: int = 0
    """Backups that had a batch of the sink partly in the log."""
    deleted: int = 0
    """Topics that were deleted while a backup was taken."""
    committed: int = 0
    """Transactions meanwhile."""
    bytes: int = 0
    seconds: float = 0.0


def held_up(load: Load, dice: random.Random) -> Callable[[Callable[..., Any], bool], Callable[..., Any]]:
    """Makes steps of a backup wait now and then until the load has got on: else hardly anything happens meanwhile."""

    def waits(what: Callable[[], object]) -> None:
        while not what() and load.patience_s > 0:
            load.patience_s -= 0.001
            time.sleep(0.001)

    def wrapped(step: Callable[..., Any], is_state: bool) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if not load.going.is_set():  # a restore
                return step(*args)
            if is_state and dice.random() < 0.7:
                waits(lambda: load.is_committing)
                time.sleep(dice.random() * 0.005)
            elif dice.random() < 0.1:
                wanted = load.progress + dice.randrange(10)
                waits(lambda: load.progress >= wanted)
            return step(*args)

        return call

    return wrapped


async def one_round(logtool: Logtool, load: Load, place: Path, figures: Figures) -> None:
    aim = load.known.batches + 1
    await until(lambda: load.known.batches >= aim and load.known.plain > 0 and len(load.known.pairs) == PAIRS, 60)
    load.patience_s = 0.4
    before = load.known.copy()
    begun = time.monotonic()
    out = place / "backup"
    code, text, err = await asyncio.to_thread(
        logtool, "--data-dir", str(load.process.data_dir), "-o", "json", "backup", str(out)
    )
    assert code == 0, text + err
    figures.seconds += time.monotonic() - begun
    after = load.known.copy()
    figures.backups += 1
    figures.deleted += len(after.deleted - before.deleted)
    figures.committed += sum(after.pairs.values()) - sum(before.pairs.values())
    figures.bytes += int(json.loads(text)["items"][0]["bytes"])
    load.going.clear()
    figures.parts += await asyncio.to_thread(look_at, logtool, out, before, after)
    load.going.set()


def look_at(logtool: Logtool, out: Path, before: Acknowledged, after: Acknowledged) -> bool:
    """Restores a backup, and does everything with it; whether a batch of the sink was only partly in it."""
    restored = out.with_name("restored")
    check_sound(logtool, out)
    code, text, err = logtool("restore", str(out), str(restored))
    assert code == 0, text + err
    check_sound(logtool, restored)
    with errors_told() as told:
        is_partly = asyncio.run(use(restored, before, after))
    assert told == []
    check_sound(logtool, restored)
    shutil.rmtree(out)
    shutil.rmtree(restored)
    return is_partly


@pytest.mark.slow
def test_backups_under_load(tmp_path: Path, logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.commit.transactions, "TRANSACTION_BYTES_MAX", TRANSACTION_BYTES)
    figures = Figures()

    async def rounds(load: Load, count: int) -> None:
        for _ in range(count):
            await one_round(logtool, load, tmp_path, figures)

    dice = random.Random()
    copy_file, take_state = backup_copy.copy_file, backup_copy.Backup._take_state

    async def main(process: ServerProcess, count: int) -> None:
        process.admin("POST", "/v1/topics", {"name": "plain", "config": {"retention_bytes": "512KiB"}})
        load = Load(process)
        wrapped = held_up(load, dice)
        monkeypatch.setattr(backup_copy, "copy_file", wrapped(copy_file, False))
        monkeypatch.setattr(backup_copy.Backup, "_take_state", wrapped(take_state, True))
        await load.run(rounds(load, count))

    while figures.backups < BACKUPS:
        data_dir = tmp_path / "data"
        with ServerProcess(data_dir, SMALL, command=(sys.executable, "-c", SERVER)) as process:
            asyncio.run(main(process, min(ROUNDS, BACKUPS - figures.backups)))
        shutil.rmtree(data_dir)
    print(figures)


# --- one thing at a time, between any two steps


class Steps:
    """A small log beside which backups are taken, and what happens meanwhile."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.count = 0
        self.deleted = 0
        ca = process.data_dir / "fujin-certificate.pem"
        self.fujin = blocking.connect("fujin", "{}:{}".format(*process.address("fujin")), ca=ca)

    def transaction(self) -> None:
        """One over two topics, whose segments are sealed right behind it."""
        self.count += 1
        with self.fujin.transaction() as transaction:
            for topic in ("left", "right"):
                transaction.publish(topic, b"%d" % self.count)
        for topic in ("left", "right"):
            records = [{"value": "." * 60_000}]
            self.process.admin("POST", f"/v1/topics/{topic}/records", {"records": records})

    def deletion(self) -> None:
        """Of a topic, and the next one is made, which may get its partition's number."""
        self.process.admin("DELETE", f"/v1/topics/gone{self.deleted}")
        self.deleted += 1
        self.process.admin("POST", f"/v1/topics/gone{self.deleted}/records", {"records": [{"value": "x"}] * 3})

    def trim(self) -> None:
        """The oldest segments go."""
        self.transaction()
        found = self.process.admin("GET", "/v1/topics/left")["partition_details"][0]
        self.process.admin("POST", "/v1/topics/left/trim", {"before": found["next_offset"]})


@pytest.mark.parametrize("name", ["transaction", "deletion", "trim"])
def test_between_any_two_steps(name: str, tmp_path: Path, logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_file, take_state = backup_copy.copy_file, backup_copy.Backup._take_state
    with ServerProcess(tmp_path / "data", SMALL) as process:
        steps = Steps(process)
        process.admin("POST", "/v1/topics/gone0/records", {"records": [{"value": "x"}] * 3})
        process.admin("POST", "/v1/topics/kept/records", {"records": [{"value": "x"}] * 3})
        steps.transaction()
        left, at = 0, 0

        def stepped(step: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    getattr(steps, name)()
                return step(*args)

            return call

        while left <= 0:
            at += EVERY
            left, count, deleted = at, steps.count, steps.deleted
            out, restored = tmp_path / f"out{at}", tmp_path / f"restored{at}"
            with monkeypatch.context() as patch:
                patch.setattr(backup_copy, "copy_file", stepped(copy_file))
                patch.setattr(backup_copy.Backup, "_take_state", stepped(take_state))
                code, text, err = logtool("--data-dir", str(process.data_dir), "backup", str(out))
            assert code == 0, text + err
            check_sound(logtool, out)
            assert logtool("restore", str(out), str(restored))[0] == 0
            with errors_told() as told:
                asyncio.run(opened(restored))
            assert told == []
            check_sound(logtool, restored)
            halves = [
                [value for value in values(restored, topic) if value[:1] != b"."] for topic in (b"left", b"right")
            ]
            if name != "trim":
                assert halves[0] == halves[1] == [b"%d" % (n + 1) for n in range(len(halves[0]))]
                assert len(halves[0]) >= count
            assert values(restored, b"kept") == [b"x"] * 3
            if steps.deleted == deleted:
                assert values(restored, b"gone%d" % deleted) == [b"x"] * 3
            else:
                assert values(restored, b"gone%d" % deleted) in ([], [b"x"] * 3)
        assert at > 2 * EVERY, "it came between some of them"
        steps.fujin.close()


async def opened(data_dir: Path) -> None:
    """A server opens everything, and stops."""
    server = quiet_server(data_dir)
    await server.start()
    for topic in server.log.catalog:
        for index in topic.numbers:
            await Api(server).opened(topic, index)
    await server.drain()
