"""How long a start takes with many records (reliability rows 8, 9): clean, after kill -9, without an index.

QUINTLOG_NIGHTLY=1 has 10 million records of 100 bytes. The server's time is from the start of the process to ``ready``,
Python's own start included; the engine's is for opening the log and its partition.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import TopicConfig
from netserver.testing import server
from tests.engine_log import EngineLog, segments
from tests.figg_peer import FiggPeer

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
RECORDS = 10_000_000 if NIGHTLY else 400_000
PER_APPEND = 20_000
PYTHON_S = 3.0
"""What a busy machine may need for starting Python and importing the server, in these assertions only."""


def seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def open_and_use(path: Path) -> None:
    with EngineLog(path) as engine:
        assert engine.partition().last_seq == RECORDS
        engine.read(start=RECORDS - 10)


@pytest.mark.timeout(900)
def test_starts_with_many_records(tmp_path: Path) -> None:
    data = tmp_path / "data"
    value = b"." * 100
    with EngineLog(data, topic=TopicConfig()) as engine:
        for _ in range(RECORDS // PER_APPEND):
            engine.append([value] * PER_APPEND)
        killed = engine.image(tmp_path / "killed")
    count = len(segments(data))
    figures = {
        "engine, clean": seconds(lambda: open_and_use(data)),
        "engine, killed": seconds(lambda: open_and_use(killed)),
    }

    def start(path: Path) -> float:
        begun = time.monotonic()
        with server(path) as process:
            ready_s = time.monotonic() - begun
            with FiggPeer(process.address("figg")) as peer:
                assert len(peer.read(b"t", RECORDS - 10, 10)) == 10
                figures["first record served"] = time.monotonic() - begun
            with FiggPeer(process.address("figg")) as peer:
                middle = peer.read(b"t", RECORDS // 2, 5)
                assert middle[0][0] == RECORDS // 2 + 1
            with FiggPeer(process.address("figg")) as peer:
                peer.send(b"t", [b"more"])
                assert peer.wait_for_ack(0)
            process.kill()
        return ready_s

    figures["server, clean"] = start(data)
    figures["server, killed"] = start(data)
    shutil.rmtree(data / "index")
    figures["server, index deleted"] = start(data)
    with EngineLog(data) as engine:
        partition = engine.partition()
        engine.log.index.flush()
        assert partition.seq_at_time(engine.read(start=RECORDS - 5)[0].timestamp_ms) > 1, "rebuilt behind"
        for segment in partition.sealed:
            entry = engine.log.index.floor(partition.number, segment.last_seq)
            assert entry is not None
            assert entry.segment_id == segment.segment_id
    print(f"{RECORDS} records in {count} segments: " + ", ".join(f"{k} {v:.2f} s" for k, v in figures.items()))
    assert figures["engine, clean"] < 1
    assert figures["engine, killed"] < 5
    assert figures["server, clean"] < 1 + PYTHON_S
    assert figures["server, killed"] < 5 + PYTHON_S
    assert figures["server, index deleted"] < 1 + PYTHON_S
