"""The original's own client (Ruby) against our server: straight, through broken connections, over kills of the server.

Needs Ruby and a checkout of the original: QUINTLOG_RELIABLY=DIRECTORY names it.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.chaos_proxy import ChaosProxy

CLIENT = Path(os.environ.get("QUINTLOG_RELIABLY", "/nowhere")) / "client" / "bin" / "client"
OFF = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "fujin", "kafka")}

pytestmark = [
    pytest.mark.skipif(not CLIENT.exists() or shutil.which("ruby") is None, reason="the original's client is not here"),
]


async def run_client(port: int, mode: str, count: int) -> str:
    """What the client prints."""
    command = ("ruby", str(CLIENT), "-p", str(port), "-m", mode, "-n", str(count))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err
    return out.decode()


async def run_clients(port: int, counts: list[int]) -> None:
    """Streams at the same time; each checksum has to be right."""
    for out in await asyncio.gather(*(run_client(port, "crc", count) for count in counts)):
        assert out.split()[1] == "ok"


async def kill_often(process: ServerProcess, rng: random.Random, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(rng.uniform(0.1, 0.4))
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(process.restart)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 64, 320, 3200, 65535])
def test_streams(count: int) -> None:
    with server(settings=OFF) as process:
        asyncio.run(run_clients(process.ports["reliably"], [count] * 4))


def test_sum() -> None:
    with server(settings=OFF) as process:
        total = int(asyncio.run(run_client(process.ports["reliably"], "sum", 10)))
    assert total % 1023 == 0


@pytest.mark.parametrize(("interval_ms", "count"), [(0, 65535), (1, 1500)])
def test_kills_of_the_server(interval_ms: int, count: int) -> None:
    async def run(process: ServerProcess) -> None:
        killer = asyncio.ensure_future(kill_often(process, random.Random(count), 4))
        await run_clients(process.ports["reliably"], [count] * 6)
        await killer

    with server(settings={**OFF, "reliably": {"interval_ms": interval_ms}}) as process:
        asyncio.run(run(process))


@pytest.mark.parametrize(("interval_ms", "count", "cut_bytes"), [(0, 20000, 200_000), (1, 1500, 4000)])
def test_broken_connections_and_kills(interval_ms: int, count: int, cut_bytes: int) -> None:
    async def run(process: ServerProcess) -> None:
        rng = random.Random(count)
        # By reset only: at a FIN in mid-line this client ends with an error, whoever the server is.
        proxy = ChaosProxy(process.address("reliably"), rng, cut_bytes, fin=False)
        async with proxy.running():
            killer = asyncio.ensure_future(kill_often(process, rng, 3))
            await run_clients(proxy.port, [count] * 6)
            await killer
        assert proxy.cuts > 0

    with server(settings={**OFF, "reliably": {"interval_ms": interval_ms}}) as process:
        asyncio.run(run(process))
