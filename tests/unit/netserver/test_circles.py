"""What a client leaves behind goes away with it: nothing waits for the interpreter to look for circles of objects.

Such a look at all objects takes a turn of the event loop (`netserver.shell.collection`), so none may be needed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections import Counter
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


async def visited(data_dir: Path) -> dict[str, list[str]]:
    """Kind of visit -> what is left of such visits."""
    left = {}
    async with running(data_dir) as server:
        addresses = {name: [address.host, address.port] for name, address in server.addresses.items()}
        token = (data_dir / TOKEN_FILE).read_text("ascii").strip()
        visitors = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.visitors", json.dumps(addresses), token,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        assert visitors.stdin is not None
        assert visitors.stdout is not None
        for kind in KINDS:
            for count in (1, VISITS):  # some are made once: by imports, for caches
                gc.collect()
                visitors.stdin.write(f"{kind} {count}\n".encode())
                assert await visitors.stdout.readline() == b"done\n", kind
                await until(lambda: is_quiet(server))
                await asyncio.sleep(0)
                left[kind] = found()
        visitors.stdin.close()
        assert await visitors.wait() == 0
    return left


def test_no_visit_leaves_circles_behind(tmp_path: Path) -> None:
    gc.disable()
    logging.disable()  # pytest keeps what is logged, and the errors in it keep their circles from being found
    try:
        left = uvloop.run(visited(tmp_path / "data"))
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
    assert list(left) == list(KINDS)
    for kind, objects in left.items():
        if len(objects) > OBJECTS_MAX:
            pytest.fail(f"{VISITS} visits of {kind} leave {len(objects)} objects behind: {sorted(set(objects))}")
