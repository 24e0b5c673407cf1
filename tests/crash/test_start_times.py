"""How long a start takes with many records (reliability rows 8, 9): clean, after kill -9, without an index.

QUINTLOG_NIGHTLY=1 has 10 million records of 100 bytes. The server's time is from the start of the process to ``ready``,
Python's own start included; the engine's is for opening the log and its partition. Processor time is what is asserted;
the time on the clock is printed, with the load of the machine, as it is that of the machine, too.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.config import TopicConfig
from netserver.testing import server
from tests.engine_log import EngineLog, segments
from tests.figg_peer import FiggPeer

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
RECORDS = 10_000_000 if NIGHTLY else 400_000
PER_APPEND = 20_000
PYTHON_S = 1.5
"""For starting Python and importing the server."""


class Time(NamedTuple):
    clock_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.clock_s:.2f} s ({self.cpu_s:.2f} s of a processor)"


def measured(work: Callable[[], object]) -> Time:
    begun, used = time.monotonic(), time.process_time()
    work()
    return Time(time.monotonic() - begun, time.process_time() - used)


def cpu_of(pid: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_and_use(path: Path) -> None:
    with EngineLog(path) as engine:
        assert engine.partition().last_seq == RECORDS
        engine.read(start=RECORDS - 10)


@pytest.mark.slow
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
        "engine, clean": measured(lambda: open_and_use(data)),
        "engine, killed": measured(lambda: open_and_use(killed)),
    }

    def start(path: Path) -> Time:
        begun = time.monotonic()
        with server(path) as process:
            ready = Time(time.monotonic() - begun, cpu_of(process.pid))
            with FiggPeer(process.address("figg")) as peer:
                assert len(peer.read(b"t", RECORDS - 10, 10)) == 10
                figures["first record served"] = Time(time.monotonic() - begun, cpu_of(process.pid))
            with FiggPeer(process.address("figg")) as peer:
                middle = peer.read(b"t", RECORDS // 2, 5)
                assert middle[0][0] == RECORDS // 2 + 1
            with FiggPeer(process.address("figg")) as peer:
                peer.send(b"t", [b"more"])
                assert peer.wait_for_ack(0)
            process.kill()
        return ready

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
    print(f"{RECORDS} records in {count} segments: " + ", ".join(f"{k} {v}" for k, v in figures.items()))
    print(f"load {os.getloadavg()[0]:.1f}")
    assert figures["engine, clean"].cpu_s < 1
    assert figures["engine, killed"].cpu_s < 5
    assert figures["server, clean"].cpu_s < 1 + PYTHON_S
    assert figures["server, killed"].cpu_s < 5 + PYTHON_S
    assert figures["server, index deleted"].cpu_s < 1 + PYTHON_S
