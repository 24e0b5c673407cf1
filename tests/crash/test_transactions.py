"""Transactions and crashes: a Fujin client commits over two topics while readers of all five protocols and of the files
watch, and the crash comes before each single step of the commit in turn.

Nobody sees anything of it before COMMIT. After the restart all of it is there or nothing; all, if COMMIT was answered
or any reader could see any of it. Steps are the calls to the disk (writes and syncs of both files, watermarks) and the
two moments around the marker in ``state``. The crash is a kill (the page cache survives) or a power cut that keeps
nothing, everything, or a random part of what was not synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, ReadOnly
from engine.formats.record import Record
from engine.log import Log
from engine.reader import DirectoryReader
from engine.state.store import OnDone, Op
from netserver import blipmq, errors, figg, fujin, reliably, tank
from netserver.app import Server
from netserver.config import loading as config_reading
from netserver.config.sections import PROTOCOL_SECTIONS, ServerConfig
from tests.crash.world import NoIndex
from tests.echo import until
from tests.simulated_files import KeepAll, LoseAll, SimulatedFiles, disk_with
from tests.simulated_state import SimulatedState

TOPICS = ("a", "b")
BEFORE, AFTER = b"before", b"after"
PARTS = {"a": [b"a1" + b"." * 40_000, b"a2" + b"." * 40_000, b"a3"], "b": [b"b1", b"b2" + b"." * 100_000]}
"""Several batches in one topic, one large and one small record in the other."""
FATES: dict[str, Callable[[], random.Random] | None] = {
    "kill": None,
    "nothing unsynced is kept": LoseAll,
    "everything is kept": KeepAll,
    "some is kept": lambda: random.Random(1),
}
QUICK = ("kill", "nothing unsynced is kept")


class LoopState(SimulatedState):
    """``state`` that commits in a turn of the loop and tells in the next one; both are steps for the disk's hook."""

    error: ReadOnly | None

    def __init__(self, files: SimulatedFiles, durable: dict[bytes, bytes]) -> None:
        super().__init__(durable)
        self.files = files
        self.loop = asyncio.get_running_loop()

    def submit(self, ops: Sequence[Op], on_done: OnDone | None = None) -> None:
        super().submit(ops, on_done)
        self.loop.call_soon(self._commit)

    def _commit(self) -> None:
        if self.queue:
            self._step("before the state commits")
            with self.files.lock:
                self.round()
            self._step("the state has committed and told nobody")
            self.loop.call_soon(self.answer)

    def _step(self, name: str) -> None:
        with self.files.lock:
            if self.files.hook is not None:
                self.files.hook(name, Path())


class SimulatedServer(Server):
    """A server over a simulated disk and state."""

    def __init__(self, config: ServerConfig, files: SimulatedFiles, durable: dict[bytes, bytes]) -> None:
        super().__init__(config)
        self.files = files
        self.state = LoopState(files, durable)

    def _open_log(self, loop: asyncio.AbstractEventLoop) -> Log:
        def call_soon_threadsafe(callback: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # a crash closes the loop, but does not end our threads
                loop.call_soon_threadsafe(callback)

        return Log.open(self.data_dir, self.config.engine, call_soon_threadsafe, self.files, self.state, NoIndex())


@dataclass
class Image:
    """What the crash leaves, and what anybody knew at that moment."""

    files: SimulatedFiles
    state: dict[bytes, bytes]
    answered: bool = False
    visible: bool = False
    step: str = ""


@dataclass
class Watchers:
    """Values seen by each protocol's readers, by (protocol, topic)."""

    seen: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    subscription_ids: dict[str, int] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def watch(self, protocol: str, topic: str, values: AsyncIterator[bytes]) -> None:
        found = self.seen[protocol, topic] = []

        async def run() -> None:
            try:
                async for value in values:
                    found.append(value)
            except errors.QuintlogError:
                return  # the server is gone

        self.tasks.append(asyncio.create_task(run()))

    def have(self, *values: bytes) -> bool:
        """Everybody has seen all of these."""
        return all(value in found for found in self.seen.values() for value in values)


@asynccontextmanager
async def serving(data: Path, image: Image) -> AsyncIterator[SimulatedServer]:
    listeners = {name: {"listen": "127.0.0.1:0"} for name in PROTOCOL_SECTIONS}
    off = {"admin": {"listen": "off"}}
    config = config_reading.build(("test", {"server": {"data_dir": str(data)}, **listeners, **off}))
    quintlog = SimulatedServer(config, image.files, image.state)
    await quintlog.start()
    try:
        yield quintlog
    finally:
        quintlog.files.hook = None
        await quintlog.drain()


@asynccontextmanager
async def watching(quintlog: SimulatedServer, before: Watchers | None = None) -> AsyncIterator[Watchers]:
    """Readers of all protocols, and of the files, on both topics."""
    watchers = Watchers()
    where = {name: str(address) for name, address in quintlog.addresses.items()}
    async with AsyncExitStack() as stack:
        figg_client = await stack.enter_async_context(figg.connect(where["figg"], flush_timeout_s=1))
        tank_client = await stack.enter_async_context(tank.connect(where["tank"]))
        blipmq_client = await stack.enter_async_context(blipmq.connect(where["blipmq"], api_key="any"))
        fujin_client = await stack.enter_async_context(fujin.connect(where["fujin"], verify=False))
        for topic in TOPICS:
            by_figg = figg_client.subscribe(topic, start=figg.EARLIEST)
            by_tank = tank_client.subscribe(topic, start=tank.EARLIEST, max_wait_ms=200)
            by_fujin = fujin_client.subscribe(topic, mode="pull")
            resume = before.subscription_ids[topic] if before is not None else None
            by_blipmq = await blipmq_client.subscribe(topic, resume=resume)
            watchers.subscription_ids[topic] = by_blipmq.id
            for name, reader in (("figg", by_figg), ("tank", by_tank), ("blipmq", by_blipmq), ("fujin", by_fujin)):
                await watchers.watch(name, topic, _values(reader))
            await watchers.watch("json", topic, _json_values(where["reliably"], topic))
            await watchers.watch("files", topic, _stored_values(quintlog, topic))
        try:
            yield watchers
        finally:
            for task in watchers.tasks:
                task.cancel()
            await asyncio.gather(*watchers.tasks, return_exceptions=True)


async def _values(reader: Any) -> AsyncIterator[bytes]:
    async for record in reader:
        yield record.value


async def _json_values(address: str, topic: str) -> AsyncIterator[bytes]:
    async with reliably.connect(address, params={"topic": topic, "offset": "earliest"}) as session:
        async for message in session:
            yield message.data["value"].encode()


async def _stored_values(quintlog: SimulatedServer, topic: str) -> AsyncIterator[bytes]:
    """As logtool and Spark read beside the server."""
    next_seq = 1
    while True:
        try:
            reader = DirectoryReader(quintlog.data_dir, quintlog.files)
            partition = reader.partition(reader.topic(topic.encode()))
            records = list(partition.records(next_seq, partition.committed_seq + 1))
        except (EngineError, OSError):
            records = []  # not there yet
        for record in records:
            assert isinstance(record, Record)
            next_seq = record.seq + 1
            yield record.value
        await asyncio.sleep(0.005)


async def publish(quintlog: SimulatedServer, value: bytes) -> None:
    async with fujin.connect(str(quintlog.addresses["fujin"]), verify=False) as client:
        for topic in TOPICS:
            await client.publish(topic, value)


def is_visible(quintlog: SimulatedServer) -> bool:
    """A reader may see something of the transaction: more than ``before`` is committed somewhere."""
    topics = [quintlog.log.catalog.get(topic.encode()) for topic in TOPICS]
    return any(topic is not None and quintlog.log.partition(topic).committed_seq > 1 for topic in topics)


async def first_life(data: Path, fate: Callable[[], random.Random] | None, cut_at: int) -> tuple[Image, Watchers, int]:
    """Up to the crash before step ``cut_at`` of the commit; returns how many steps there were, too."""
    start = Image(disk_with(data), {})
    images: list[Image] = []
    steps = 0
    answered = False

    def hook(name: str, path: Path) -> None:
        nonlocal steps
        if (steps == cut_at or answered) and not images:
            files = start.files.after_kill() if fate is None else start.files.after_power_cut(fate())
            step = f"{name} {path.name}"
            images.append(Image(files, dict(start.state), answered, is_visible(quintlog), step))
        steps += 1

    async with serving(data, start) as quintlog:
        await publish(quintlog, BEFORE)
        async with watching(quintlog) as watchers:
            async with fujin.connect(str(quintlog.addresses["fujin"]), verify=False) as client:
                tx = client.transaction("writer")
                await tx.begin()
                for topic, values in PARTS.items():
                    for value in values:
                        await tx.publish(topic, value)
                await until(
                    lambda: all(found == [BEFORE] for (name, _), found in watchers.seen.items() if name != "blipmq")
                )
                assert not is_visible(quintlog), "nothing is visible before COMMIT"
                await until(lambda: not quintlog.state.queue and not quintlog.state.answers)
                quintlog.log.cursors.tick = lambda: None  # type: ignore[method-assign]  # only the commit is looked at
                quintlog.files.hook = hook
                await tx.commit()
                answered = True
                quintlog.files.hook = None
                commit_steps = steps
                hook("the commit is answered", Path())
            await until(lambda: whole(watchers))
    return images[0], watchers, commit_steps


def whole(watchers: Watchers) -> bool:
    return all(found[-len(PARTS[topic]) :] == PARTS[topic] for (_, topic), found in watchers.seen.items())


async def second_life(data: Path, image: Image, before: Watchers) -> bool:
    """What is there after the crash; whether the transaction is."""
    async with serving(data, image) as quintlog, watching(quintlog, before) as watchers:
        await publish(quintlog, AFTER)
        await until(lambda: watchers.have(AFTER))
        kept = set()
        for (protocol, topic), found in watchers.seen.items():
            if protocol == "blipmq":  # goes on where its subscription stood, with what was not acknowledged
                assert {value for value in found if value not in PARTS[topic]} == {AFTER}
                continue
            assert found in ([BEFORE, AFTER], [BEFORE, *PARTS[topic], AFTER]), (image.step, protocol, topic)
            kept.add(len(found) > 2)
        assert len(kept) == 1, f"a part of the transaction is there: {image.step}"
        return kept.pop()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "fate", [fate if fate in QUICK else pytest.param(fate, marks=pytest.mark.slow) for fate in FATES]
)
def test_a_crash_before_each_step_of_a_commit(tmp_path: Path, fate: str) -> None:
    outcomes: dict[str, bool] = {}

    async def main() -> None:
        cut_at, steps = 0, 1
        while cut_at <= steps:
            data = tmp_path / str(cut_at)
            image, watchers, steps = await first_life(data, FATES[fate], cut_at)
            is_there = await second_life(data, image, watchers)
            assert is_there or not image.answered, f"an answered COMMIT is lost: {image.step}"
            assert is_there or not image.visible, f"somebody has seen what is gone: {image.step}"
            outcomes[f"{cut_at} {image.step}"] = is_there
            cut_at += 1

    asyncio.run(main())
    assert len(outcomes) >= 8, outcomes
    assert set(outcomes.values()) == {False, True}
    kinds = {step.split(" ", 1)[1] for step in outcomes}
    assert {"before the state commits ", "the state has committed and told nobody ", "the commit is answered "} <= kinds
    assert any(kind.startswith("sync_data") for kind in kinds)
    assert any(kind.startswith("write watermarks") for kind in kinds)
