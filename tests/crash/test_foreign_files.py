"""Something else lies in the place of a file of the data directory: a link to a file that is not ours, a pipe.

Whoever may write into the directory may put it there, and who starts the server may be somebody else. Nothing that the
link leads to is written, made or removed, and nobody waits for the other end of a pipe.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import quintlog
from netserver.errors import ServerError
from netserver.testing import running
from tests.echo import ALONE
from tests.unit.conftest import Logtool

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
STAGED = "staged/0123456789abcdef-0123456789abcdef"
NAMES = (
    "LOCK", "VERSION", "VERSION.new", "admin.token", "admin.token.new", "server.json", "server.json.new", "watermarks",
    "state/data.mdb", "state/lock.mdb", "state/in-use", "index/data.mdb", "index/lock.mdb", "index/in-use",
    "topics/1/topic.json", "topics/1/topic.json.new", "topics/1/0/00000000000000000001.log", STAGED,
)  # fmt: skip
KINDS = ("text", "empty", "nothing", "directory", "pipe")
SOME = {("text", name) for name in ("LOCK", "watermarks", "state/lock.mdb", "server.json.new")} | {
    ("empty", "state/data.mdb"), ("empty", "index/data.mdb"), ("empty", "topics/1/topic.json"),
    ("nothing", "state/data.mdb"), ("nothing", "admin.token"), ("pipe", "LOCK"), ("pipe", "admin.token"),
    ("pipe", "state/data.mdb"), ("pipe", "index/data.mdb"), ("pipe", "index/lock.mdb"),
}  # fmt: skip
LOOKING = (
    ("status",), ("check",), ("topics", "list"), ("cat", "t"), ("verify",), ("repair",), ("commits", "list"),
    ("sessions", "list"), ("definitions", "export"), ("backup", "BACKUP"), ("publish", "t", "/dev/null"),
)  # fmt: skip
WAITED_S = 20


class Waited(BaseException):
    """It took so long that it waits for somebody."""


@contextmanager
def no_waiting() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise Waited

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(WAITED_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


async def serve(data: Path) -> None:
    """A start, a new topic, an end."""
    async with (
        running(data, {**ALONE, "figg": {"listen": "127.0.0.1:0"}}) as server,
        await quintlog.figg.connect(str(server.addresses["figg"])) as client,
    ):
        await client.publish(b"new", b"v")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a killed process leaves it."""
    path = tmp_path_factory.mktemp("foreign") / "image"

    async def main() -> None:
        async with running(path / "data", {**ALONE, "figg": {"listen": "127.0.0.1:0"}}) as server:
            async with await quintlog.figg.connect(str(server.addresses["figg"])) as client:
                await client.publish(b"t", b"v")
            shutil.copytree(path / "data", path / "killed")

    asyncio.run(main())
    return path / "killed"


def put(data: Path, name: str, kind: str, foreign: Path) -> None:
    path = data / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
        return
    if kind == "directory":
        foreign.mkdir()
        (foreign / "file").write_text("precious")
    elif kind != "nothing":
        foreign.write_text("precious\n" * 20 if kind == "text" else "")
    path.symlink_to(foreign)


def contents(foreign: Path) -> object:
    if foreign.is_dir():
        return {path.name: path.read_bytes() for path in foreign.iterdir()}
    return (foreign.read_bytes(), foreign.stat().st_mtime_ns, foreign.stat().st_mode) if foreign.exists() else None


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in NAMES if NIGHTLY or (kind, name) in SOME]
)
def test_a_start_changes_nothing_that_is_not_ours(image: Path, tmp_path: Path, kind: str, name: str) -> None:
    data, foreign = tmp_path / "data", tmp_path / "foreign"
    shutil.copytree(image, data)
    put(data, name, kind, foreign)
    before = contents(foreign)
    with no_waiting():
        refused = ""
        try:
            asyncio.run(serve(data))
        except ServerError as error:
            refused = str(error)
    assert not refused or str(data) in refused
    assert contents(foreign) == before


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (name, command)
        for name in NAMES
        for command in LOOKING
        if NIGHTLY or (name, command[0]) in {("LOCK", "status"), ("state/data.mdb", "verify"), ("admin.token", "cat")}
    ],
)
def test_no_command_waits_for_a_pipe(
    image: Path, tmp_path: Path, logtool: Logtool, name: str, command: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(image, data)
    put(data, name, "pipe", tmp_path / "foreign")
    words = [str(tmp_path / "backup") if word == "BACKUP" else word for word in command]
    with no_waiting():
        code, _, err = logtool("--data-dir", str(data), *words)
    assert code != 70, err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["backup.json", "state/data.mdb", "topics/1/topic.json"])
def test_no_restore_waits_for_a_pipe(image: Path, tmp_path: Path, logtool: Logtool, name: str) -> None:
    backup = tmp_path / "backup"
    assert logtool("--data-dir", str(image), "backup", str(backup))[0] == 0
    (backup / name).unlink()
    os.mkfifo(backup / name)
    with no_waiting():
        code, _, err = logtool("restore", str(backup), str(tmp_path / "restored"))
    assert code not in (0, 70), err
    assert "not a regular file" in err
