"""The last release writes a directory, this version opens it and writes to it, and the last one opens it again.

It is built from its tag, which takes a clone of the repository with git.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from netserver import blipmq, figg, fujin, tank
from netserver.testing import ROOT as ROOT_OF_CODE
from netserver.testing import ServerProcess
from netserver.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ("v0.1.0", "7c57421")
"""The newest one that is not this version; by the commit where there is no tag."""
RECORDS = 200
pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(not os.environ.get("QUINTLOG_NIGHTLY"), reason="QUINTLOG_NIGHTLY=1: builds a release"),
]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the release is installed, as plain Python."""
    folder = tmp_path_factory.mktemp("previous")
    for name in RELEASES:
        made = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "-o", str(folder / "sources.tar"), name],
            capture_output=True,
            check=False,
        )
        if made.returncode == 0:
            break
    else:
        pytest.skip(f"no git repository with {RELEASES[0]}")
    with tarfile.open(folder / "sources.tar") as archive:
        archive.extractall(folder / "sources", filter="data")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*install, "--target", str(folder / "installed"), str(folder / "sources")],
        env={**os.environ, "QUINTLOG_BUILD": "pure"},
        check=True,
    )
    return folder / "installed"


def of_the_release(previous: Path, data_dir: Path) -> ServerProcess:
    """Its server."""
    return ServerProcess(data_dir, command=(sys.executable, "-P", str(previous / "quintlog.py"), "engine-server"))


async def publish(process: ServerProcess, mark: bytes) -> None:
    """Records through four protocols; each topic has its own."""
    at = {name: f"{host}:{port}" for name, (host, port) in process.addresses.items()}
    certificate = process.data_dir / "fujin-certificate.pem"
    async with (
        figg.connect(at["figg"]) as one,
        tank.connect(at["tank"]) as two,
        blipmq.connect(at["blipmq"]) as three,
        fujin.connect(at["fujin"], ca=certificate) as four,
    ):
        clients: dict[str, figg.Client | tank.Client | blipmq.Client | fujin.Client] = {
            "figg": one, "tank": two, "blipmq": three, "fujin": four,
        }  # fmt: skip
        for name, client in clients.items():
            for number in range(RECORDS):
                await client.publish(name, b"%s %d" % (mark, number))


async def check(process: ServerProcess, marks: list[bytes]) -> None:
    """All of all topics, in order."""
    host, port = process.address("figg")
    expected = [b"%s %d" % (mark, number) for mark in marks for number in range(RECORDS)]
    async with figg.connect(f"{host}:{port}") as client:
        for topic in ("figg", "tank", "blipmq", "fujin"):
            async with client.subscribe(topic, start=figg.EARLIEST) as records:
                found = [(await records.next()).value for _ in expected]
            assert found == expected, topic


def run(process: ServerProcess, mark: bytes, before: list[bytes]) -> None:
    """What was published before is there, and more can be."""

    async def main() -> None:
        if before:
            await check(process, before)
        await publish(process, mark)

    asyncio.run(asyncio.wait_for(main(), 120))


def logtool(*words: str) -> str:
    """What the command of this version says, which has to succeed."""
    command = [sys.executable, "-P", str(ROOT_OF_CODE / "quintlog.py"), "logtool", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_upgrade_and_back(previous: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with of_the_release(previous, data_dir) as process:
        process.admin("POST", "/v1/topics", {"name": "tank"})  # its clients make none
        run(process, b"old", [])
        assert f"version {VERSION} opens {data_dir}" in " ".join(logtool("upgrade", "check", str(data_dir)).split())
    with ServerProcess(data_dir) as process:
        run(process, b"new", [b"old"])
    logtool("--data-dir", str(data_dir), "verify")
    with of_the_release(previous, data_dir) as process:
        run(process, b"back", [b"old", b"new"])
    with ServerProcess(data_dir) as process:
        asyncio.run(asyncio.wait_for(check(process, [b"old", b"new", b"back"]), 120))
    logtool("--data-dir", str(data_dir), "verify")
