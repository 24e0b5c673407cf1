"""Batches that are appended exactly once, and crashes: a batch of several parts over two topics is committed, and the
crash comes before each single step in turn; then the batch is repeated, as a stream processor does, with the same rows
staged anew, in another order.

Whatever the crash left, all rows are there once, in the order of the attempt that came first. Staged files are synced
when they are received, so they are on a real disk here; segments, watermarks and ``state`` are on a simulated one.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack
import pytest

import engine.commit.transactions
from engine.state.writer_ledger import Ledger
from netserver.admin.api import Api
from netserver.admin.staged_commits import DIRECTORY, Batch, Staging
from netserver.config import loading as config_reading
from tests.crash.test_transactions import FATES, Image, SimulatedServer
from tests.simulated_files import disk_with
from tests.unit.netserver.admin.test_staged_commits import stored

TOPICS = (b"a", b"b")
ROWS = [(TOPICS[number % 2], b"%d" % number + b"." * 900) for number in range(40)]
NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
TRANSACTION_BYTES = 16_000
"""So small that the rows make three parts."""


async def started(data: Path, image: Image) -> SimulatedServer:
    off = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "fujin", "reliably", "admin", "kafka")}
    config = config_reading.build(("test", {"server": {"data_dir": str(data)}, **off}))
    server = SimulatedServer(config, image.files, image.state)
    await server.start()
    return server


async def staged(staging: Staging, rows: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """Two files."""
    packed = [msgpack.packb([topic, 0, None, value, None, None]) for topic, value in rows]
    half = len(packed) // 2
    return [(await staging.stage(b"".join(part)))["name"] for part in (packed[:half], packed[half:])]


async def first_life(data: Path, fate: Callable[[], random.Random] | None, cut_at: int) -> tuple[Image, int]:
    """Up to the crash before step ``cut_at`` of the commit; returns how many steps there were, too."""
    start = Image(disk_with(data), {})
    images: list[Image] = []
    steps = 0
    answered = False

    def hook(name: str, path: Path) -> None:
        nonlocal steps
        if (steps == cut_at or answered) and not images:
            files = start.files.after_kill() if fate is None else start.files.after_power_cut(fate())
            images.append(Image(files, dict(start.state), answered, False, f"{name} {path.name}"))
            shutil.copytree(data / DIRECTORY, data / "staged at the crash")
        steps += 1

    server = await started(data, start)
    staging = Staging(server, Api(server))
    names = await staged(staging, ROWS)
    server.files.hook = hook
    found = await staging.commit(Batch("query", 3), names)
    assert (found["parts"], found["records"]) == (3, len(ROWS))
    answered = True
    commit_steps = steps
    hook("the commit is answered", Path())
    server.files.hook = None
    await server.drain()
    shutil.rmtree(data / DIRECTORY)
    shutil.move(data / "staged at the crash", data / DIRECTORY)
    return images[0], commit_steps


def values(server: SimulatedServer, data: Path) -> list[tuple[bytes, bytes]]:
    """(topic, value) of all records that readers of the files see."""
    files = server.files
    return [(topic, record.value) for topic in TOPICS for record in stored(data, topic, files=files)]


def by_topic(rows: Sequence[tuple[bytes, bytes]], *topics: bytes) -> list[tuple[bytes, bytes]]:
    return [row for topic in topics or TOPICS for row in rows if row[0] == topic]


async def second_life(data: Path, image: Image) -> str:
    """Repeats the batch; how much of it was there before."""
    server = await started(data, image)
    staging = Staging(server, Api(server))
    before, entry = values(server, data), Ledger(server.log.state).get("query")
    names = await staged(staging, ROWS[::-1])
    for topic in TOPICS:  # each has a watermark of its own, which may be behind the marker
        there = [row for row in before if row[0] == topic]
        assert there == by_topic(ROWS, topic)[: len(there)], image.step
    assert not before or entry is not None, image.step
    assert not image.answered or (entry is not None and entry.is_complete), image.step
    found = await staging.commit(Batch("query", 3), names)
    assert found["repeated"] == (entry is not None and entry.is_complete), image.step
    rows = ROWS if entry is not None else ROWS[::-1]  # as long as nothing is in the log, any attempt is as good
    assert values(server, data) == by_topic(rows), image.step
    await server.drain()
    return "nothing" if entry is None else "all" if entry.is_complete else "some"


@pytest.mark.parametrize("fate", FATES)
def test_a_crash_before_each_step_and_the_batch_repeated(
    tmp_path: Path, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.commit.transactions, "TRANSACTION_BYTES_MAX", TRANSACTION_BYTES)
    found: set[str] = set()

    async def main() -> None:
        cut_at, steps = 0, 1
        while cut_at <= steps:
            data = tmp_path / str(cut_at)
            image, steps = await first_life(data, FATES[fate], cut_at)
            found.add(await second_life(data, image))
            cut_at += 1 if fate == "kill" or NIGHTLY else 3
        assert steps >= 20

    asyncio.run(main())
    assert found == {"nothing", "some", "all"}
