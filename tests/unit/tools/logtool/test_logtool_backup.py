"""`logtool backup` and `restore`: beside a server under load, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from netserver import figg, fujin
from netserver.testing import ServerProcess, server
from tests.echo import until
from tests.unit.conftest import Logtool
from tools.logtool.cli import Settings
from tools.logtool.lib.output import Output
from tools.logtool.lib.progress import BytesProgress

SMALL_SEGMENTS = {"topics": {"segment_bytes": "64KiB"}}
LOADS = 3
BACKUPS = 3 if os.environ.get("QUINTLOG_NIGHTLY") == "1" else 1


async def load(process: ServerProcess, number: int, acknowledged: list[int], stop: asyncio.Event) -> None:
    """Publishes numbers to a topic of its own; `acknowledged` has the last one that is on disk."""
    async with figg.connect("{}:{}".format(*process.address("figg"))) as client:
        while not stop.is_set():
            first = acknowledged[number]
            await client.publish_many(f"topic {number}", [b"%d" % (first + n + 1) for n in range(50)])
            acknowledged[number] += 50


async def pairs(process: ServerProcess, committed: list[int], stop: asyncio.Event) -> None:
    """Transactions of one record in each of two topics."""
    ca = process.data_dir / "fujin-certificate.pem"
    async with fujin.connect("{}:{}".format(*process.address("fujin")), ca=ca) as client:
        while not stop.is_set():
            value = b"%d" % (committed[0] + 1)
            async with client.transaction() as transaction:
                await transaction.publish("left", value)
                await transaction.publish("right", value)
            committed[0] += 1


def values(logtool: Logtool, data_dir: Path, topic: str) -> list[int]:
    code, out, err = logtool("--data-dir", str(data_dir), "cat", topic)
    assert code == 0, err
    return [int(line) for line in out.splitlines()]


def test_a_backup_under_load_has_everything_that_was_acknowledged_before(tmp_path: Path, logtool: Logtool) -> None:
    backups: list[tuple[Path, list[int], int]] = []

    async def main(process: ServerProcess) -> None:
        acknowledged, committed, stop = [0] * LOADS, [0], asyncio.Event()
        tasks = [asyncio.create_task(load(process, number, acknowledged, stop)) for number in range(LOADS)]
        tasks.append(asyncio.create_task(pairs(process, committed, stop)))
        for number in range(BACKUPS):
            records, transactions = 500 * (number + 1), 5 * (number + 1)
            await until(lambda: min(acknowledged) >= records and committed[0] >= transactions, 60)  # noqa: B023
            out = tmp_path / f"backup {number}"
            backups.append((out, list(acknowledged), committed[0]))
            command = ("--data-dir", str(process.data_dir), "-o", "json", "backup", str(out))
            code, text, err = await asyncio.to_thread(logtool, *command)
            assert code == 0, err
            assert json.loads(text)["items"][0]["records"] >= sum(backups[-1][1])
        stop.set()
        await asyncio.gather(*tasks)

    with server(tmp_path / "data", SMALL_SEGMENTS) as process:
        asyncio.run(asyncio.wait_for(main(process), 100))
    for out, acknowledged, committed in backups:
        stored = values(logtool, out, "topic 0")
        assert stored[: acknowledged[0]] == list(range(1, acknowledged[0] + 1)), "a backup can be read as it is"
        restored = out.with_name(f"{out.name} restored")
        code, _, err = logtool("restore", str(out), str(restored))
        assert (code, err) == (0, "")
        with server(restored, SMALL_SEGMENTS) as process:
            for topic in process.admin("GET", "/v1/topics")["items"]:
                process.admin("GET", f"/v1/topics/{topic['name'].replace(' ', '%20')}")  # opens its partitions
            assert "lost" not in process.log_text
            for number, last in enumerate(acknowledged):
                stored = values(logtool, restored, f"topic {number}")
                assert stored == list(range(1, len(stored) + 1))
                assert len(stored) >= last
            left, right = values(logtool, restored, "left"), values(logtool, restored, "right")
            assert left == right == list(range(1, len(left) + 1))
            assert len(left) >= committed
        code, text, err = logtool("--data-dir", str(restored), "verify")
        assert code == 0, text + err


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory without a server; one of its segments is damaged in the copies that ask for it."""
    data_dir = tmp_path_factory.mktemp("backup") / "data"
    with server(data_dir, SMALL_SEGMENTS) as process:
        process.admin("POST", "/v1/topics", {"name": "empty", "partitions": 3})
        for _ in range(3):
            process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "x" * 1000}] * 50})
    return data_dir


def test_what_is_in_a_backup(stopped: Path, tmp_path: Path, logtool: Logtool) -> None:
    out = tmp_path / "new" / "backup"
    code, text, err = logtool("--data-dir", str(stopped), "backup", str(out))
    assert (code, err) == (0, "")
    assert "records                  150\n" in text
    names = {path.name for path in out.iterdir()}
    assert names == {
        "VERSION",
        "backup.json",
        "fujin-certificate.pem",
        "fujin-key.pem",
        "state",
        "topics",
        "watermarks",
    }
    assert (out / "fujin-key.pem").stat().st_mode & 0o777 == 0o600
    assert out.stat().st_mode & 0o777 == 0o750
    assert logtool("--data-dir", str(out), "topics", "list", "-o", "csv")[1].splitlines()[1].startswith("empty,3")
    assert logtool("--data-dir", str(out), "verify")[0] == 0
    code, text, _ = logtool("restore", str(out), str(tmp_path / "restored"), "-o", "json")
    assert code == 0
    assert json.loads(text)["items"][0]["files"] > 5
    assert not (tmp_path / "restored" / "backup.json").exists()


def test_what_is_refused(stopped: Path, tmp_path: Path, logtool: Logtool) -> None:
    out = tmp_path / "backup"
    backup = ("--data-dir", str(stopped), "backup")
    assert logtool(*backup, str(out))[0] == 0
    for command in ((*backup, str(out)), ("restore", str(out), str(stopped))):
        code, _, err = logtool(*command)
        assert code == 6
        assert "is not empty" in err
    assert logtool(*backup, str(stopped / "inside"))[0] == 2
    code, _, err = logtool("restore", str(tmp_path), str(tmp_path / "restored"))
    assert code == 3
    assert "no backup" in err
    code, _, err = logtool("--data-dir", str(tmp_path / "nothing"), "backup", str(tmp_path / "of nothing"))
    assert code == 3
    assert not (tmp_path / "of nothing").exists(), "what was made is removed"


@pytest.mark.parametrize("fault", ["flipped", "missing", "cut", "manifest", "outside"])
def test_a_damaged_backup_is_not_restored(fault: str, stopped: Path, tmp_path: Path, logtool: Logtool) -> None:
    out, target = tmp_path / "backup", tmp_path / "restored"
    assert logtool("--data-dir", str(stopped), "backup", str(out))[0] == 0
    segment = next((out / "topics").rglob("*.log"))
    if fault == "flipped":
        data = bytearray(segment.read_bytes())
        data[-1] ^= 1
        segment.write_bytes(data)
    elif fault == "missing":
        segment.unlink()
    elif fault == "cut":
        os.truncate(segment, segment.stat().st_size - 1)
    else:
        manifest: dict[str, Any] = json.loads((out / "backup.json").read_text())
        manifest["files"][0]["path"] = "../outside" if fault == "outside" else None
        (out / "backup.json").write_text(json.dumps(manifest) if fault == "outside" else "{")
    code, _, err = logtool("restore", str(out), str(target))
    assert code == 1
    assert str(out) in err
    assert not target.exists()
    assert not (tmp_path / "outside").exists()


def test_damage_is_named_and_copied(stopped: Path, tmp_path: Path, logtool: Logtool) -> None:
    out = tmp_path / "backup"
    assert logtool("--data-dir", str(stopped), "backup", str(out))[0] == 0
    segment = next((out / "topics").rglob("*.log"))
    data = bytearray(segment.read_bytes())
    data[300] ^= 1
    segment.write_bytes(data)
    again = tmp_path / "again"
    code, text, err = logtool("--data-dir", str(out), "backup", str(again))
    assert code == 1
    assert str(segment) in err
    assert "damaged                  1\n" in text
    assert (again / segment.relative_to(out)).read_bytes() == bytes(data)


def test_progress() -> None:
    progress = BytesProgress(Output(), "copied", 400 << 20)
    progress.add(100 << 20)
    assert progress.text(2.0) == "copied 100.0 MiB of 400.0 MiB (25%), 6 s left, 50.0 MiB/s"
    assert BytesProgress(Settings().output, "sent").text(1.0) == "sent 0 B, 0 B/s"


def test_a_backup_and_verify_count_the_same_records(stopped: Path, tmp_path: Path, logtool: Logtool) -> None:
    damaged, out = tmp_path / "damaged", tmp_path / "out"
    shutil.copytree(stopped, damaged)
    file = next((damaged / "topics").rglob("*.log"))
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    code, text, _ = logtool("--data-dir", str(damaged), "backup", str(out), "-o", "json")
    assert code == 1
    code, verified, _ = logtool("--data-dir", str(out), "verify", "-o", "json")
    assert code == 1
    found = [item for item in json.loads(verified)["items"] if "records" in item]
    assert 0 < sum(item["records"] for item in found) == json.loads(text)["items"][0]["records"] < 150
