"""Many partitions under a small descriptor limit: all of them are written, synced, rolled, read and recovered."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.segments.batches import COMMITTED
from tests.engine_log import EngineLog

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
PARTITIONS, DESCRIPTORS = (5000, 1024) if NIGHTLY else (700, 160)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_partitions_than_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = max(DESCRIPTORS, len(os.listdir("/proc/self/fd")) + 100)  # other tests of this process have some
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    config = TopicConfig(segment_bytes=64 << 10)
    took: dict[str, float] = {}

    def timed(what: str, begun: float) -> None:
        took[what] = time.monotonic() - begun

    try:
        with EngineLog(tmp_path / "d", topic=config) as engine:
            engine.log.catalog.create(b"wide", partition_count=PARTITIONS)
            topic = engine.log.catalog.get(b"wide")
            assert topic is not None
            partitions = [engine.log.partition(topic, index) for index in range(PARTITIONS)]
            for number in range(3):
                begun = time.monotonic()
                write_batches = [
                    partition.append([b"%d %d" % (partition.index, number) + b"." * 30_000]) for partition in partitions
                ]
                for write_batch in write_batches:
                    assert engine.settle(write_batch).state == COMMITTED, write_batch.error
                timed(f"round {number}", begun)
            assert all(partition.sealed for partition in partitions[::50]), "every one has rolled"
            assert len(engine.log.handles) <= descriptors
            engine.image(tmp_path / "killed")
        begun = time.monotonic()
        with EngineLog(tmp_path / "killed", topic=config) as engine:
            timed("start after a kill", begun)
            begun = time.monotonic()
            for index in range(PARTITIONS):
                found = [value.split(b".")[0] for value in engine.values("wide", index)]
                assert found == [b"%d %d" % (index, number) for number in range(3)]
            timed("opening and reading all", begun)
            assert engine.log.committer.counters.failed_parts == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    figures = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in took.items())
    print(f"{PARTITIONS} partitions under {descriptors} descriptors: {figures}")
    assert took["start after a kill"] < 5
