"""Power cuts of a real ext4 (plan D2): what the kernel had not written is gone.

The server publishes to a file system in an image file; the image is copied while it is mounted, the copy is mounted and
opened. The server stands still while its image is copied, so that the copy is of one moment: what was acknowledged
until then has to be in it. QUINTLOG_POWER_IMAGES sets the number of images.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import server
from tests.crash.test_kill9 import Publisher
from tests.disks import NEEDS_ROOT, make_ext4, memory_directory, mounted
from tests.engine_log import EngineLog

pytestmark = NEEDS_ROOT

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
IMAGES = int(os.environ.get("QUINTLOG_POWER_IMAGES", "500" if NIGHTLY else "10"))
IMAGE_BYTES = 96 << 20
PUBLISHERS = 3
SETTINGS = {
    "topics": {"segment_bytes": "256KiB", "retention_bytes": "4MiB"},
    "engine": {"housekeeping_interval_ms": "50", "retention_grace_ms": "0"},
    **{name: {"listen": "off"} for name in ("tank", "reliably", "blipmq", "fujin", "kafka")},
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    path = memory_directory(tmp_path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def check(copy: Path, mount: Path, acked: list[tuple[bytes, int]]) -> None:
    """Everything acknowledged is in the copy, unless retention had removed it; it opens by itself and takes more."""
    with mounted(copy, mount, "-o", "loop"), EngineLog(mount / "data") as engine:
        for topic in engine.log.catalog:
            name = topic.name.decode()
            partition = engine.partition(name)
            values = [record.value for record in engine.read(name)]
            assert engine.lost == []
            for mark, number in acked:
                mine = [int(value.split(b" ")[1]) for value in values if value.startswith(mark + b" ")]
                if topic.name == mark and partition.log_start == 1:
                    assert mine[:1] == [0]
                if topic.name == mark and mine:
                    assert mine == list(range(mine[0], mine[0] + len(mine))), "records are missing, doubled or moved"
                    assert mine[-1] >= number, f"acknowledged up to {number}, found up to {mine[-1]}"
                elif topic.name == mark:
                    assert number < 0
            engine.append([b"after"], topic=name)
        known = {topic.name for topic in engine.log.catalog}
        assert {mark for mark, number in acked if number >= 0} <= known


@pytest.mark.slow
@pytest.mark.timeout(120 + 5 * IMAGES)
def test_images_taken_at_random_times(place: Path) -> None:
    chance = random.Random(IMAGES)
    image = place / "disk.img"
    make_ext4(image, IMAGE_BYTES)
    total = 0
    with mounted(image, place / "mount", "-o", "loop") as mount:
        taken = 0
        while taken < IMAGES:
            with server(mount / "data", SETTINGS) as process:
                begun = threading.Barrier(PUBLISHERS + 1)
                publishers = [
                    Publisher(process.address("figg"), mark, mark, begun)
                    for mark in (b"r%d-p%d" % (taken, at) for at in range(PUBLISHERS))
                ]
                for publisher in publishers:
                    publisher.start()
                begun.wait(20)
                for _ in range(min(10, IMAGES - taken)):
                    threading.Event().wait(chance.random() * 0.2)  # the moment of the cut is the fault that is chosen
                    os.kill(process.pid, signal.SIGSTOP)
                    acked = [(publisher.mark, publisher.peer_acked) for publisher in publishers]
                    shutil.copyfile(image, place / "copy.img")
                    os.kill(process.pid, signal.SIGCONT)
                    check(place / "copy.img", place / "copied", acked)
                    total += sum(number + 1 for _, number in acked)
                    taken += 1
                process.kill()
                for publisher in publishers:
                    publisher.join(30)
                assert [publisher.problem for publisher in publishers if publisher.problem is not None] == []
            shutil.rmtree(mount / "data")
    print(f"{IMAGES} images, {total} acknowledged records looked for, none lost")
    assert total > IMAGES * 100
