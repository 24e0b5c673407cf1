"""Whose files are: no other user of the machine can read data and keys, or put others in their place."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files.system import make_directory
from netserver.access.key_file import add_key
from netserver.testing import running
from tests import access_place
from tests.access_place import place
from tests.certificates import self_signed

pytestmark = pytest.mark.whole

PUBLIC = {"fujin-certificate.pem"}
"""Clients of other users know the server by it."""
OWNERS_ALONE = ("admin.token", "fujin-key.pem")
OTHERS = stat.S_IRWXO
GROUP_CHANGES = stat.S_IWGRP


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Everything that is made is open to everybody, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def exposed(directory: Path) -> list[str]:
    """What others can get at, or the group can change."""
    found = [directory, *directory.rglob("*")]
    private = (path for path in found if path.name not in PUBLIC)
    return [f"{path} {mode(path):o}" for path in private if mode(path) & (OTHERS | GROUP_CHANGES)]


@pytest.mark.usefixtures("open_umask")
def test_an_umask_that_opens_everything_opens_nothing_of_the_server(tmp_path: Path) -> None:
    data, audit = tmp_path / "place" / "data", tmp_path / "audit"

    async def test() -> None:
        (tmp_path / "place").mkdir(0o750)
        everything = {right: ["*"] for right in ("publish", "subscribe", "create")}
        identities = {"all": everything, "admin": {"role": "operator"}}
        settings = {"access": {"audit": str(audit)}, "topics": {"segment_bytes": 65536}}
        async with place(tmp_path / "place", identities, settings) as here:
            for publish in (access_place.figg_publish, access_place.fujin_write, access_place.blipmq_publish):
                assert await publish(here, "all", b"t")
            assert await access_place.blipmq_subscribe(here, "all", b"t")
            assert await access_place.reliably_start(here, "all", b"t")
            body = {"records": [{"value": "x" * 50_000}]}
            for _ in range(5):  # several segments
                assert (await here.http("POST", "/v1/topics/t/records", "all", body))[0] == 200
            assert (await here.http("POST", "/v1/keys", "admin", {"name": "new"}))[0] == 201
            assert exposed(data) == []
            assert mode(here.path) == 0o600
        assert exposed(data) == []

    asyncio.run(test())
    assert mode(data) == 0o750
    assert [mode(data / name) for name in OWNERS_ALONE] == [0o600] * 2
    assert mode(audit) == 0o600
    assert len([path for path in (data / "topics").rglob("*") if path.is_file()]) > 3


@pytest.mark.usefixtures("open_umask")
def test_directories_above_are_not_for_others_to_write(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b" / "data")
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/data")] == [0o755, 0o755, 0o750]


def test_what_logtool_makes_is_not_open_either(tmp_path: Path) -> None:
    keys, certificates, data = tmp_path / "keys", tmp_path / "certificates", tmp_path / "data"

    def logtool(*arguments: str) -> None:
        command = [sys.executable, "-m", "tools.logtool", *arguments]
        environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        done = subprocess.run(command, env=environment, umask=0, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    async def fill() -> None:
        async with running(data) as server:
            server.log.catalog.get_or_create(b"t")

    asyncio.run(fill())
    logtool("keys", "add", "shop", "--publish", "*", "--file", str(keys))
    logtool("certificates", "make", "client", "shop", "--dir", str(certificates))
    logtool("context", "add", "here", "--data-dir", str(data))
    logtool("--data-dir", str(data), "backup", str(tmp_path / "backup"))
    logtool("restore", str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert mode(keys) == 0o600
    assert [mode(certificates), mode(certificates / "ca.key"), mode(certificates / "shop.key")] == [0o700, 0o600, 0o600]
    assert exposed(tmp_path / "config" / "quintlog") == []
    assert exposed(tmp_path / "backup") == []
    assert exposed(tmp_path / "restored") == []


def test_secrets_that_everybody_can_read_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = self_signed(tmp_path)
    access = tmp_path / "access"
    add_key(access, "a")
    data = tmp_path / "data"
    settings = {
        "access": {"file": str(access)},
        "figg": {"tls_certificate": certificate, "tls_key": key},
        "fujin": {"tls_certificate": certificate, "tls_key": key},
    }

    async def start() -> list[str]:
        caplog.clear()
        async with running(data, settings):
            return [record.message for record in caplog.records if record.name == "quintlog.access"]

    Path(key).chmod(0o640)
    assert asyncio.run(start()) == []
    for path in (access, Path(key), data / "admin.token"):
        path.chmod(0o644)
    data.chmod(0o757)
    told = asyncio.run(start())
    for text in (f"access file {access}", f"private key {key}", f"token {data / 'admin.token'}", f"directory {data}"):
        assert any(text in line for line in told), (text, told)
    assert json.dumps(told).count("chmod o-") == len(told)
