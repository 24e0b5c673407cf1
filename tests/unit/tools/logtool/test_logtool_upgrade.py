"""A directory that an earlier version has written (`tests/data/format-1.tar.xz`, of 28 November 2026): this one opens
it, reads it and writes to it; and directories of formats that it does not know."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path

import pytest

from netserver import blipmq, figg, tank
from netserver.testing import server
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole

WRITTEN = Path(__file__).resolve().parents[3] / "data" / "format-1.tar.xz"
RECORDS, KEYED = 300, 20


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The directory."""
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o750)
    with tarfile.open(WRITTEN) as archive:
        archive.extractall(data_dir, filter="data")
    return data_dir


def contents(data_dir: Path) -> dict[str, bytes]:
    """Every file but LMDB's tables of readers, which a reader enters itself in."""
    files = [path for path in sorted(data_dir.rglob("*")) if path.is_file() and path.name != "lock.mdb"]
    return {str(path): path.read_bytes() for path in files}


def test_check_says_that_it_opens_and_touches_nothing(old: Path, logtool: Logtool) -> None:
    before = contents(old)
    code, _, err = logtool("upgrade", "check", str(old))
    assert code == 0
    assert f"opens {old} (format 1, 2 topics); what changes: nothing;" in " ".join(err.split())
    item = json.loads(logtool("--data-dir", str(old), "upgrade", "check", "-o", "json")[1])["items"][0]
    assert (item["opens"], item["format"], item["oldest_version"]) == (True, 1, "0.1.0")
    assert contents(old) == before


def test_settings_that_this_version_does_not_know_are_named(old: Path, logtool: Logtool) -> None:
    from engine.reader import StoredTopic
    from tools.logtool.upgrade import ignored_settings

    topic = StoredTopic(1, b"orders", 1, 0, {"retention_ms": "7d", "colour": "red"})
    (text,) = ignored_settings(topic)
    assert text.startswith("topic orders: unknown setting 'colour'")


@pytest.mark.parametrize("number", ["2", "0"])
def test_a_format_that_is_not_known_is_refused_in_one_sentence(old: Path, logtool: Logtool, number: str) -> None:
    path = old / "VERSION"
    path.write_text(path.read_text().replace('"format": 1', f'"format": {number}'))
    before = contents(old)
    code, _, err = logtool("upgrade", "check", str(old))
    assert code == 3
    assert f"has format {number}; this version reads format 1: use the one that wrote it" in " ".join(err.split())
    assert contents(old) == before
    with pytest.raises(RuntimeError, match=f"has format {number}; this version reads format 1"), server(old):
        pass


def test_what_an_earlier_version_has_written_is_read_verified_and_written_to(old: Path, logtool: Logtool) -> None:
    code, _, err = logtool("--data-dir", str(old), "verify")
    assert (code, "no findings" in err) == (0, True)
    with server(old) as process:
        addresses = {name: f"{host}:{port}" for name, (host, port) in process.addresses.items()}
        asyncio.run(asyncio.wait_for(use(addresses), 60))
    assert logtool("--data-dir", str(old), "verify")[0] == 0


async def use(addresses: dict[str, str]) -> None:
    """Its records, keys, settings and subscriptions are there, and more can be written."""
    async with figg.connect(addresses["figg"]) as client:
        await client.publish("orders", b"new")
        async with client.subscribe("orders", start=figg.EARLIEST) as records:
            found = [await records.next() for _ in range(RECORDS + 1)]
    assert [one.offset for one in found] == list(range(1, RECORDS + 2))
    assert found[7].value == b"order 7 " + b"x" * 300
    assert found[-1].value == b"new"
    reader = tank.connect(addresses["tank"])
    async with reader, reader.subscribe("orders", partition=1, start=tank.EARLIEST) as keyed:
        pairs = [((one := await keyed.next()).key, one.value) for _ in range(KEYED)]
    assert pairs == [(b"k%d" % number, b"keyed %d" % number) for number in range(KEYED)]
    async with blipmq.connect(addresses["blipmq"], version=2) as other:
        await other.publish("letters", b"two")
        async with other.subscribe("letters", start=blipmq.EARLIEST) as letters:
            found_letters: set[bytes] = set()
            while found_letters != {b"one", b"two"}:  # one may come twice on a slow machine
                message = await letters.next()
                found_letters.add(message.value)
                await message.ack()
