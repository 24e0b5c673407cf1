"""What a client leaves behind goes away with it: nothing waits for the interpreter to look for circles of objects.

Such a look at all objects takes a turn of the event loop (`netserver.shell.collection`), so none may be needed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from netserver.admin.names import TOKEN_FILE
from netserver.app import Server
from netserver.fujin.listener import FujinListener
from netserver.testing import running
from tests.echo import until
from tests.visitors import KINDS

ROOT = Path(__file__).resolve().parents[3]
VISITS = 3
OBJECTS_MAX = VISITS // 2
"""What is found once is no circle of a visit."""

NIGHTLY = bool(os.environ.get("QUINTLOG_NIGHTLY"))
BLOCKS_MAX = 8000
"""Of memory in use, beyond those before the visits: the interpreter keeps some thousand to use again; a connection
takes 100, a topic 150."""


def is_quiet(server: Server) -> bool:
    """Nobody is connected any more."""
    fujin = server.listeners["fujin"]
    assert isinstance(fujin, FujinListener)
    assert server.admin is not None
    return not (server.shell.connections or fujin.endpoint.peers or server.admin.connection_count)


def found() -> list[str]:
    """What only a look for circles finds: how many objects of each type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        types = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
        return [f"{count} {name}" for name, count in types.most_common() for _ in range(count)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@asynccontextmanager
async def visitors(data_dir: Path) -> AsyncIterator[Callable[[str, int], Awaitable[None]]]:
    """A server, and what has so many visits of a kind made to it, until all visitors have gone."""
    async with running(data_dir) as server:
        addresses = {name: [address.host, address.port] for name, address in server.addresses.items()}
        token = (data_dir / TOKEN_FILE).read_text("ascii").strip()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.visitors", json.dumps(addresses), token,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip

        async def visit(kind: str, count: int) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{kind} {count}\n".encode())
            assert await process.stdout.readline() == b"done\n", kind
            await until(lambda: is_quiet(server))
            await asyncio.sleep(0)

        try:
            yield visit
        finally:
            assert process.stdin is not None
            process.stdin.close()
            code = await process.wait()
        assert code == 0


async def visited(data_dir: Path) -> dict[str, list[str]]:
    """Kind of visit -> what is left of such visits."""
    left = {}
    async with visitors(data_dir) as visit:
        for kind in KINDS:
            for count in (1, VISITS):  # some are made once: by imports, for caches
                gc.collect()
                gc.freeze()  # what was there before, mostly pytest's, is not looked at for each visit
                await visit(kind, count)
                left[kind] = found()
    return left


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The interpreter does not look for circles. Nothing is logged: pytest keeps the errors in it, and theirs."""
    gc.disable()
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.unfreeze()
    gc.enable()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_collection")
def test_no_visit_leaves_circles_behind(tmp_path: Path) -> None:
    left = uvloop.run(visited(tmp_path / "data"))
    assert list(left) == list(KINDS)
    for kind, objects in left.items():
        if len(objects) > OBJECTS_MAX:
            pytest.fail(f"{VISITS} visits of {kind} leave {len(objects)} objects behind: {sorted(set(objects))}")


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    ("kind", "visits"), [("silence", 20_000 if NIGHTLY else 150), ("topics", 5000 if NIGHTLY else 80)]
)
def test_memory_does_not_grow_with_visits(tmp_path: Path, kind: str, visits: int) -> None:
    """Connections that come and go (five with each visit of silence), topics that are made, written to and deleted."""

    async def grown() -> None:
        async with visitors(tmp_path / "data") as visit:
            await visit(kind, 10)
            gc.collect()
            before = sys.getallocatedblocks()
            await visit(kind, visits)
            await until(
                lambda: sys.getallocatedblocks() - before < BLOCKS_MAX
            )  # the last few are remembered for seconds

    uvloop.run(grown())
