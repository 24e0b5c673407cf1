"""`verify`, `repair` and the server agree about what a kill leaves.

A log is copied before each call that changes a file, as a kill at that moment would leave it: nothing is wrong with any
of these, and all three say so.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import EngineError
from tests.engine_log import EngineLog
from tests.hooked_files import HookedFiles
from tests.unit.conftest import Logtool

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
EVERY = 1 if NIGHTLY else 3
SMALL = TopicConfig(segment_bytes=64 << 10)
INTERRUPTED = "never acknowledged"
"""The rest of a write that nobody was told of: it is mentioned by all, and wrong for none."""


def work(engine: EngineLog) -> None:
    """Topics, partitions, rolls."""
    for number in range(4):
        for topic in ("t", "other"):
            engine.append([b"%d" % number + b"." * 4000] * 10, topic=topic)
    engine.append([b"in another"], topic="t", index=0)
    engine.append([b"new"], topic="late")


def told_by_a_start(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the engine tells when everything is opened and read."""
    caplog.clear()
    lost: list[str] = []
    try:
        with caplog.at_level(logging.ERROR), EngineLog(path, topic=SMALL) as engine:
            for topic in engine.log.catalog:
                for index in topic.numbers:
                    engine.read(topic.name.decode(), index)
                    lost += map(str, engine.lost)
    except EngineError as problem:
        lost.append(str(problem))
    return [text for record in caplog.records if INTERRUPTED not in (text := record.getMessage())] + lost


def test_after_a_kill_nothing_is_wrong(tmp_path: Path, logtool: Logtool, caplog: pytest.LogCaptureFixture) -> None:
    files = HookedFiles()
    images: list[Path] = []
    calls = 0

    def hook(call: str, path: Path) -> None:
        nonlocal calls
        calls += 1
        if call != "open" and path.suffix in (".log", ".json", ".new", "") and calls % EVERY == 0:
            images.append(Path(shutil.copytree(tmp_path / "data", tmp_path / f"image {len(images)}")))

    with EngineLog(tmp_path / "data", files=files, topic=SMALL) as engine:
        files.hook = hook
        work(engine)
        files.hook = lambda call, path: None
    assert len(images) > 10
    for image in images:
        assert logtool("--data-dir", str(image), "verify")[0] == 0, image
        assert logtool("--data-dir", str(image), "repair")[0] == 0, image
        assert told_by_a_start(image, caplog) == [], image
        shutil.rmtree(image)
