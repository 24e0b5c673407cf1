"""A disk that really fails (question 8): syncs of a real ext4 return EIO, because its device cannot take the blocks.

The file system lies in a sparse file on a memory file system that is filled up: the loop device then answers writes of
new blocks with an error. Linux reports it to one fdatasync and calls the pages clean. Then the process starts again on
the same page cache, and then the power is cut: the image is copied and mounted.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import DataDirectoryError, EngineError, NotStored, ReadOnly
from tests.disks import NEEDS_ROOT, fill, make_ext4, mounted, tmpfs
from tests.engine_log import EngineLog

pytestmark = NEEDS_ROOT

CONFIG = TopicConfig(segment_bytes=256 << 10)
ROUNDS = 60


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """An ext4 image on a memory file system with little room beside it."""
    with tmpfs(tmp_path / "device", 48 << 20) as memory:
        image = memory / "disk.img"
        make_ext4(image, 256 << 20)
        yield image


def append(engine: EngineLog, acked: dict[int, bytes], value: bytes) -> None:
    engine.append([value])
    acked[engine.partition().last_seq] = value


def stored(engine: EngineLog) -> dict[int, bytes]:
    return {record.seq: record.value for record in engine.read()}


def after_power_cut(image: Path, place: Path) -> dict[int, bytes]:
    shutil.copyfile(image, place / "copy.img")
    with mounted(place / "copy.img", place / "copied", "-o", "loop"), EngineLog(place / "copied" / "data") as engine:
        found = stored(engine)
        assert engine.lost == []
        engine.append([b"it goes on"])
        return found


def restart(mount: Path, acked: dict[int, bytes]) -> dict[int, bytes]:
    """What may not be lost any more after the next process was there: what it showed, and acknowledged."""
    seen = dict(acked)
    with contextlib.suppress(DataDirectoryError, NotStored), EngineLog(mount / "data", topic=CONFIG) as engine:
        seen = stored(engine)
        assert acked.items() <= seen.items()
        append(engine, seen, b"after the restart")
    return seen


def test_nothing_acknowledged_or_read_is_lost(device: Path, tmp_path: Path) -> None:
    acked: dict[int, bytes] = {}
    with mounted(device, tmp_path / "mount", "-o", "loop") as mount:
        engine = EngineLog(mount / "data", topic=CONFIG)
        for number in range(ROUNDS):
            append(engine, acked, b"%d " % number * 3000)
        filler = fill(device.parent)
        problem: EngineError | None = None
        try:
            while True:
                append(engine, acked, b"does this fit? " * 3000)
        except EngineError as error:
            problem = error
        assert isinstance(problem, ReadOnly), f"the sync failed: {problem}"
        assert stored(engine) == acked, "reading goes on"
        with pytest.raises(ReadOnly):
            engine.append([b"refused"])
        assert acked.items() <= after_power_cut(device, tmp_path).items(), "the power is cut at once"
        filler.unlink()
        engine.close()
        # The next process finds the page cache of the last one; the file system may have made itself read-only.
        seen = restart(mount, acked)
        assert seen.items() <= after_power_cut(device, tmp_path).items(), "the power is cut after the restart"
