"""A disk that is really full, under the engine and under the server (reliability rows 11, 13).

Publishing is refused with the reason, reading goes on, nothing dies, and it goes on by itself when there is room.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import DiskFull, EngineError
from engine.reports import TELL_AGAIN_MS
from netserver.testing import server
from tests.disks import NEEDS_ROOT, fill, tmpfs
from tests.engine_log import EngineLog
from tests.figg_peer import FiggPeer

pytestmark = NEEDS_ROOT

ROOM = 6 << 20
CONFIG = TopicConfig(segment_bytes=64 << 10)


def test_the_engine_on_a_full_disk(tmp_path: Path) -> None:
    with (
        tmpfs(tmp_path / "disk", ROOM) as disk,
        EngineLog(disk / "data", topic=CONFIG, retention_grace_ms=0) as engine,
    ):
        dice = random.Random(1)
        stored: dict[int, bytes] = {}
        engine.append([b"small"], topic="other")
        partition = engine.partition()

        def publish(value: bytes) -> None:
            engine.append([value])
            stored[partition.last_seq] = value

        def publish_until_refused() -> None:
            while True:
                publish(dice.randbytes(dice.choice((100, 5000, 30_000))))

        def check() -> None:
            assert {record.seq: record.value for record in engine.read()} == stored

        for _ in range(3):
            with pytest.raises(DiskFull, match="no space left"):
                publish_until_refused()
            filler = fill(disk)
            with pytest.raises(DiskFull):
                publish(b"x" * 30_000)
            check()  # reading goes on, and nothing of what was refused is there
            assert engine.values("other") == [b"small"]
            with pytest.raises(EngineError):  # a new topic needs room in the state, too
                engine.append([b"x" * 30_000], topic="new")
            filler.unlink()
            keep = partition.committed_seq - 3
            partition.trim(keep)
            for seq in [seq for seq in stored if seq < keep]:
                del stored[seq]
            engine.inbox.run_until(lambda keep=keep: partition.marked_log_start == keep)  # type: ignore[misc]
            before = engine.log.figures.removed_bytes
            engine.log.housekeeping.clean()
            engine.inbox.run_until(lambda before=before: engine.log.figures.removed_bytes > before)  # type: ignore[misc]
            publish(b"there is room again")
            check()


def test_publishers_that_try_again_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> int:
        return sum("'t' partition 0: no space left" in message for message in caplog.messages)

    with tmpfs(tmp_path / "disk", ROOM) as disk, EngineLog(disk / "data", topic=CONFIG) as engine:
        engine.append([b"one"])
        fill(disk)
        for _ in range(20):
            with pytest.raises(DiskFull):
                engine.append([b"x" * 30_000])
        assert told() == 1
        later = engine.log.now_ms() + TELL_AGAIN_MS
        monkeypatch.setattr(engine.log.context, "now_ms", lambda: later)
        with pytest.raises(DiskFull):
            engine.append([b"x" * 30_000])
        assert told() == 2


def test_a_start_on_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", ROOM) as disk:
        with EngineLog(disk / "data", topic=CONFIG) as engine:
            for number in range(10):
                engine.append([b"%d" % number * 1000] * 5)
            expected = engine.values()
        filler = fill(disk)
        with EngineLog(disk / "data", topic=CONFIG) as engine:
            assert engine.values() == expected
            with pytest.raises(DiskFull):
                engine.append([b"x" * 30_000])
            assert engine.values() == expected
            filler.unlink()
            engine.append([b"more"])
            assert engine.values() == [*expected, b"more"]


def test_a_server_starts_on_a_full_disk_and_is_read_from(tmp_path: Path) -> None:
    off = {name: {"listen": "off"} for name in ("tank", "reliably", "blipmq", "fujin", "kafka")}
    with tmpfs(tmp_path / "disk", ROOM) as disk:
        with server(disk / "data", off) as process, FiggPeer(process.address("figg")) as peer:
            peer.send(b"t", [b"%d" % number for number in range(100)])
            assert peer.wait_for_ack(99)
        fill(disk)
        with server(disk / "data", off) as process, FiggPeer(process.address("figg")) as reader:
            assert len(reader.read(b"t", 0, 100)) == 100
            assert "cannot write" in process.log_text
            assert not list((disk / "data").glob("server.json*"))


def test_the_server_on_a_full_disk(tmp_path: Path) -> None:
    off = {name: {"listen": "off"} for name in ("tank", "reliably", "blipmq", "fujin", "kafka")}
    with tmpfs(tmp_path / "disk", 3 * ROOM) as disk, server(disk / "data", off) as process:
        with FiggPeer(process.address("figg")) as peer:
            peer.send(b"t", [b"%d" % number for number in range(100)])
            assert peer.wait_for_ack(99)
        filler = fill(disk)
        with FiggPeer(process.address("figg"), timeout_s=0.5) as refused:
            refused.send(b"t", [b"x" * 200_000] * 5)
            with pytest.raises(TimeoutError):
                refused.wait_for_ack(4)
            deadline = time.monotonic() + 10
            while "no space left on the disk" not in process.log_text:
                assert time.monotonic() < deadline
                threading.Event().wait(0.02)
            with FiggPeer(process.address("figg")) as reader:
                assert len(reader.read(b"t", 0, 100)) == 100
            status = process.admin("GET", "/healthz")
            assert status
            filler.unlink()
        with FiggPeer(process.address("figg")) as peer:
            peer.send(b"t", [b"again"])
            assert peer.wait_for_ack(0)
            found = peer.read(b"t", 0, 101)
        values = [value for _, value in found]
        assert values[:100] == [b"%d" % number for number in range(100)]
        assert set(values[100:]) <= {b"again", b"x" * 200_000}
        process.kill()
        process.start()
        with FiggPeer(process.address("figg")) as peer:
            assert [value for _, value in peer.read(b"t", 0, 101)] == values
        assert "Traceback" not in process.log_text
